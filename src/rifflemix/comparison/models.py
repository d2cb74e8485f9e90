"""Building the models that are compared, and what one training step of them needs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from rifflemix.comparison.config import CompareConfig, default_model
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer, list_mixers
from rifflemix.models import create_model, model_card, model_settings
from rifflemix.runs.measure import peak_memory
from rifflemix.tasks import Task, task_card
from rifflemix.tasks.images.pixels import WholeImages
from rifflemix.train.evaluate import run_model
from rifflemix.train.optim import build_optimizer
from rifflemix.train.seeds import seed_everything


def build_model(config: CompareConfig, task: Task, mixer: str, seed: int) -> nn.Module:
    """The backbone with one mixer.

    Mixers draw different amounts of random numbers when they are made, which would shift all
    weights that are drawn after them. So that mixers are compared from the same start, everything
    outside the mixers is copied from a reference model of the same seed.

    Args:
        config: the comparison.
        task: gives vocabulary or features, classes and lengths.
        mixer: registry name.
        seed: of the initial weights.

    Raises:
        InputError: the mixer or the backbone cannot be built at this shape.
    """
    reference = _create(config, task, list_mixers()[0], {}, seed)
    model = _create(config, task, mixer, dict(config.mixer_options.get(mixer, {})), seed)
    _copy_backbone(reference, model)
    return model


def check_model(config: CompareConfig, task: Task, mixer: str) -> int:
    """Build a model and run two samples through it.

    Returns:
        Number of trainable parameters.

    Raises:
        InputError: it cannot be built or run, naming the mixer, or the batch is too large.
    """
    _check_batch(config, task)
    try:
        model = build_model(config, task, mixer, config.seeds[0]).eval()
        batch = task.collate([task.split("train")[index] for index in range(2)])
        with torch.no_grad():
            outputs = run_model(model, batch)
            task.loss(outputs, batch)  # refuses outputs of another kind
    except InputError as error:
        raise InputError(f"mixer {mixer}: {error}") from error
    except (RuntimeError, MemoryError, OverflowError) as error:  # more memory than there is
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"mixer {mixer}: no model of this size can be made here: {reason}"
        ) from error
    if not torch.isfinite(outputs).all():
        raise InputError(
            f"mixer {mixer}: expected finite outputs for the first samples of task {task.name}, "
            "got NaN or infinity; check the data"
        )
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def training_memory(config: CompareConfig, task: Task, mixer: str) -> int:
    """Peak bytes of two training steps from nothing, on the first samples of the training split.

    Weights, gradients, optimiser state and activations are all counted; the batch is not.
    """
    device = torch.device(config.device)
    train = task.split("train")
    count = min(config.train.batch_size, len(train))
    batch = {k: v.to(device) for k, v in task.collate([train[i] for i in range(count)]).items()}
    built = build_model(config, task, mixer, config.seeds[0])
    bf16 = config.train.precision == "bf16"

    def two_steps() -> None:
        model = copy.deepcopy(built).to(device).train()
        optimizer = build_optimizer(model, config.train)
        for _ in range(2):  # the second one runs beside the optimiser's state
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                outputs = run_model(model, batch)
            task.loss(outputs, batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return peak_memory(two_steps, device)


def _create(
    config: CompareConfig, task: Task, mixer: str, options: dict[str, Any], seed: int
) -> nn.Module:
    seed_everything(seed)
    _check_inputs(config.model, task)
    settings = {
        "mixer": mixer,
        "mixer_options": options,
        "dim": config.dim,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        **_task_settings(config.model, task),
    }
    known = model_settings(config.model)
    for name in settings:
        if name not in known:
            fitting = default_model(task.name, task.options)
            raise InputError(
                f"model {config.model} has no setting {name}, which a comparison on task "
                f"{task.name} needs; choose a model that has it, such as {fitting}"
            )
    return create_model(config.model, **settings)


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
        f"takes {kind}, such as {default_model(task.name, task.options)}{layout}"
    )


def _task_settings(model: str, task: Task) -> dict[str, Any]:
    """Settings of a backbone that follow from a task's samples and labels."""
    if isinstance(task, WholeImages):
        channels, size, _ = task.image_shape
        own: dict[str, Any] = {"image_size": size, "in_channels": channels}
    elif task.input_kind == "tokens":
        own = {"max_length": task.max_length, "vocab_size": task.vocab_size}
    elif task.input_kind == "vectors":
        own = {"max_length": task.max_length, "in_channels": task.num_features}
    else:  # graphs of any size, with the features that the presets are made for
        own = {}
    if not task_card(task.name).is_generative:
        own["num_classes"] = task.num_classes
    if task.num_sequences > 1:
        own |= _pair_settings(model, task)
    return own


def _pair_settings(model: str, task: Task) -> dict[str, Any]:
    """Settings of a backbone that follow from samples of two sequences.

    Their product and difference go to the head too: a linear head on the two alone cannot
    tell how alike they are.
    """
    if "num_sequences" not in model_settings(model):
        raise InputError(
            f"model {model} takes one sequence at a time, but a sample of task {task.name} has "
            f"{task.num_sequences}; choose a model that takes num_sequences, such as encoder"
        )
    return {"num_sequences": task.num_sequences, "pair_mix": "concat_product_difference"}


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


def _check_batch(config: CompareConfig, task: Task) -> None:
    """Raise unless a batch holds each training sample at most once."""
    available = len(task.split("train"))
    if config.train.batch_size > available:
        raise bad_argument(
            "batch_size",
            f"at most the {available} samples of the training split",
            config.train.batch_size,
        )
