"""Build and check the compared models, and measure the memory of a training step."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.runs.build_for_task import (
    check_batch_size,
    check_split,
    first_batch,
    fit_model,
    output_settings,
    pair_settings,
    split_model,
    task_settings,
    try_out,
)
from rifflemix.lab.runs.measure import peak_memory
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
    """Build the backbone with one mixer.

    Mixers draw different amounts of random numbers, and this would change all weights that are
    drawn later. For equal initial weights, everything outside the mixers is copied from a reference
    model of the same seed.

    Args:
        config: the comparison.
        task: task with the vocabulary or features, the classes and the lengths.
        mixer: name of a mixer, or label of a variant in the comparison.
        seed: seed of the initial weights.

    Returns:
        The model.

    Raises:
        InputError: the mixer or the backbone cannot be built at this shape.

    Example:
        >>> import rifflemix as rm
        >>> from rifflemix.lab.comparison import build_model, resolve
        >>> task = rm.tasks.load_task("digits")
        >>> config = resolve(rm.tasks.card_of(task), {"csp": "csp"}, [0])
        >>> type(build_model(config, task, "csp", seed=0)).__name__
        'Encoder'
    """
    reference = _create(config, task, list_mixers()[0], {}, seed)
    model = _create(
        config, task, config.mixer_name(mixer), dict(config.mixer_options.get(mixer, {})), seed
    )
    _copy_backbone(reference, model)
    return model


class ModelSize(NamedTuple):
    """Size of a model.

    Attributes:
        parameters: trainable parameters.
        state: numbers that a stream keeps per sequence at the maximum length.
    """

    parameters: int
    state: int


def check_model(config: CompareConfig, task: Task, mixer: str) -> ModelSize:
    """Build a model and run two samples through it.

    Args:
        config: the comparison.
        task: the data.
        mixer: registry name, or a label of the comparison's variants.

    Returns:
        Size of the model.

    Raises:
        InputError: it cannot be built or run, naming the mixer, or the batch is too large.

    Example:
        >>> import rifflemix as rm
        >>> from rifflemix.lab.comparison import check_model, resolve
        >>> task = rm.tasks.load_task("digits")
        >>> config = resolve(rm.tasks.card_of(task), {"csp": "csp"}, [0])
        >>> check_model(config, task, "csp").parameters
        56138
    """
    check_batch_size(config.train.batch_size, task)
    first_batch(task)  # a damaged file raises here, before an error would name a mixer
    try:
        model = try_out(lambda: build_model(config, task, mixer, config.seeds[0]), task)
        check_split(model, task, config.context_parallel)
    except InputError as error:
        raise InputError(f"mixer {mixer}: {error}") from error
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return ModelSize(trainable, model.state_size(task.max_length))


def training_memory(config: CompareConfig, task: Task, mixer: str) -> int:
    """Measure the peak bytes of two training steps on the first training samples.

    The peak includes weights, gradients, optimizer state and activations, but not the batch. A step
    has as many backward passes as in training. Processes that share sequences call this function
    together, and each process measures its own memory.

    Args:
        config: the comparison.
        task: the data.
        mixer: registry name, or a label of the comparison's variants.

    Returns:
        Bytes.

    Example:
        >>> import rifflemix as rm
        >>> from rifflemix.lab.comparison import resolve, training_memory
        >>> task = rm.tasks.load_task("digits")
        >>> config = resolve(rm.tasks.card_of(task), {"csp": "csp"}, [0])
        >>> training_memory(config, task, "csp") > 0
        True
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
        for _ in range(2):  # the state of the optimizer exists from the second update on
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
    """Return the batch of the first update: one part per backward pass."""
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
        settings |= pair_settings(config.model, task.name, task.num_sequences)
    settings |= output_settings(config.model, task.output)
    _check_settings(config.model, task, settings)
    _check_options(config, task, settings)
    settings |= config.model_options
    return fit_model(config.model, task, settings, seed)


def _check_options(config: CompareConfig, task: Task, chosen: Iterable[str]) -> None:
    """Raise unless the backbone has `model_options` and a comparison does not set them."""
    taken = {*chosen, *task_settings(task)}
    free = [name for name in model_settings(config.model) if name not in taken]
    for name in config.model_options:
        if name not in free:
            raise bad_argument(
                "model_options", f"settings of {config.model}: {', '.join(free)}", name
            )


def _check_settings(model: str, task: Task, chosen: Iterable[str]) -> None:
    """Raise InputError unless the backbone has the settings of the comparison and the task."""
    known, is_generative = model_settings(model), card_of(task).is_generative
    fitting = card_of(task).backbone
    for name in (*chosen, *task_settings(task)):
        if name not in known and not (name == "num_classes" and is_generative):
            raise InputError(
                f"model {model} has no setting {name}, which a comparison on task {task.name} "
                f"needs; choose a model that has it, such as {fitting}"
            )


def _check_inputs(model: str, task: Task) -> None:
    """Raise InputError unless the backbone accepts the samples of the task."""
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
        f"takes {kind}, such as {card_of(task).backbone}{layout}"
    )


def _copy_backbone(source: nn.Module, target: nn.Module) -> None:
    """Copy every tensor outside the mixers that both models have."""
    mixers = tuple(
        f"{name}." for name, module in target.named_modules() if isinstance(module, TokenMixer)
    )
    values = source.state_dict()
    for name, tensor in target.state_dict().items():
        same = name in values and values[name].shape == tensor.shape
        if same and not name.startswith(mixers):
            tensor.copy_(values[name])
