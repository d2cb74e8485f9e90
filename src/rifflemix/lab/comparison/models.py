"""Building the models that are compared, and what one training step of them needs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.errors import InputError
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.runs.fit import (
    check_batch_size,
    first_batch,
    fit_model,
    pair_settings,
    task_settings,
    try_out,
)
from rifflemix.lab.runs.measure import peak_memory
from rifflemix.lab.runs.split import check_split, split_model
from rifflemix.lab.tasks import Task, card_of
from rifflemix.lab.train.data import micro_batch_size
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.optim import build_optimizer
from rifflemix.lab.train.protocols import Batch
from rifflemix.lab.train.targets import change_batch, training_loss
from rifflemix.mixers import TokenMixer, list_mixers
from rifflemix.models import Model, model_card, model_settings


def build_model(config: CompareConfig, task: Task, mixer: str, seed: int) -> Model:
    """The backbone with one mixer.

    Mixers draw different amounts of random numbers when they are made, which would shift all
    weights that are drawn after them. So that mixers are compared from the same start, everything
    outside the mixers is copied from a reference model of the same seed.

    Args:
        config: the comparison.
        task: gives vocabulary or features, classes and lengths.
        mixer: registry name, or a label of the comparison's variants.
        seed: of the initial weights.

    Raises:
        InputError: the mixer or the backbone cannot be built at this shape.
    """
    reference = _create(config, task, list_mixers()[0], {}, seed)
    model = _create(
        config, task, config.mixer_name(mixer), dict(config.mixer_options.get(mixer, {})), seed
    )
    _copy_backbone(reference, model)
    return model


def check_model(config: CompareConfig, task: Task, mixer: str) -> int:
    """Build a model and run two samples through it.

    Returns:
        Number of trainable parameters.

    Raises:
        InputError: it cannot be built or run, naming the mixer, or the batch is too large.
    """
    check_batch_size(config.train.batch_size, task)
    first_batch(task)  # raises at a damaged file, which no mixer is to blame for
    try:
        model = try_out(lambda: build_model(config, task, mixer, config.seeds[0]), task)
        check_split(model, task, config.context_parallel)
    except InputError as error:
        raise InputError(f"mixer {mixer}: {error}") from error
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def training_memory(config: CompareConfig, task: Task, mixer: str) -> int:
    """Peak bytes of two training steps from nothing, on the first samples of the training split.

    Weights, gradients, optimiser state and activations are all counted; the batch is not. A step
    has as many backward passes as in training. Processes that share sequences call it together, and
    each measures itself.
    """
    device = torch.device(config.device)
    engine = None
    if config.context_parallel > 1:
        engine = Engine(config.train, config.device, config.context_parallel)
    parts = first_parts(config, task, device)
    built = build_model(config, task, mixer, config.seeds[0])

    def two_steps() -> None:
        model = copy.deepcopy(built).to(device).train()
        if engine is not None:
            split_model(model, engine)
        optimizer = build_optimizer(model, config.train)
        for _ in range(2):  # the optimizer's state exists in the second update only
            update(model, optimizer, config, task, parts)

    return peak_memory(two_steps, device)


def update(
    model: nn.Module, optimizer: Optimizer, config: CompareConfig, task: Task, parts: list[Batch]
) -> None:
    """Make one update of a model outside a run, with a backward pass for each part of a batch."""
    for batch in parts:
        outputs = outputs_of(model, config, batch)
        training_loss(task, outputs, batch, config.train.label_smoothing).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def outputs_of(model: nn.Module, config: CompareConfig, batch: Batch) -> Tensor:
    """Run a model in the precision of a comparison."""
    kind, bf16 = torch.device(config.device).type, config.train.precision == "bf16"
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=bf16):
        return run_model(model, batch)


def first_parts(config: CompareConfig, task: Task, device: torch.device) -> list[Batch]:
    """The first update's batch as training sees it: a part for each backward pass."""
    train = task.split("train")
    count = min(config.train.batch_size, len(train))
    size = micro_batch_size(config.train, 1)
    parts = []
    for start in range(0, count, size):
        at = range(start, min(start + size, count))
        batch = change_batch(task, config.train, task.collate([train[i] for i in at]), at)
        parts.append({name: tensor.to(device) for name, tensor in batch.items()})
    return parts


def _create(
    config: CompareConfig, task: Task, mixer: str, options: dict[str, Any], seed: int
) -> Model:
    _check_inputs(config.model, task)
    settings = {
        "mixer": mixer,
        "mixer_options": options,
        "dim": config.dim,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
    }
    if task.num_sequences > 1:
        settings |= pair_settings(config.model, task)
    _check_settings(config.model, task, settings)
    return fit_model(config.model, task, settings, seed)


def _check_settings(model: str, task: Task, chosen: Iterable[str]) -> None:
    """Raise unless a backbone has what a comparison and the task set."""
    known, is_generative = model_settings(model), card_of(task).is_generative
    fitting = card_of(task).backbone_for(task.options)
    for name in (*chosen, *task_settings(task)):
        if name not in known and not (name == "num_classes" and is_generative):
            raise InputError(
                f"model {model} has no setting {name}, which a comparison on task {task.name} "
                f"needs; choose a model that has it, such as {fitting}"
            )


def _check_inputs(model: str, task: Task) -> None:
    """Raise unless a backbone takes what the samples of a task are."""
    inputs, kind = model_card(model).inputs, task.input_kind
    is_pairs = inputs == "pairs of token sequences" and task.num_sequences > 1
    if kind in inputs or (is_pairs and kind == "tokens"):
        return
    layout = ""
    if "layout" in task.options and kind == "images" and inputs != "graphs":
        layout = ", or layout 'sequence'"
    elif "layout" in task.options and inputs == "images":
        layout = ", or layout 'image'"
    raise InputError(
        f"model {model} takes {inputs}, but task {task.name} has {kind}; choose a model that "
        f"takes {kind}, such as {card_of(task).backbone_for(task.options)}{layout}"
    )


def _copy_backbone(source: nn.Module, target: nn.Module) -> None:
    """Copy every tensor that lies outside all mixers, where both models have it."""
    mixers = tuple(
        f"{name}." for name, module in target.named_modules() if isinstance(module, TokenMixer)
    )
    values = source.state_dict()
    for name, tensor in target.state_dict().items():
        same = name in values and values[name].shape == tensor.shape
        if same and not name.startswith(mixers):
            tensor.copy_(values[name])
