"""`rifflemix bench published`: steps of rows whose papers print time and memory, beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.lab.bench.models import Subject
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Candidate, Group, Hooks, Settings, run_benchmark
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.models import create_model, model_settings
from rifflemix.models.vision.images import ImageModel

_MIB = 2**20
# Dimension Mixer, Table 4: milliseconds of a training step and MiB, dense and butterfly
# attention, on one GeForce RTX 3090.
_TABLE4: dict[str, tuple[tuple[float, int], tuple[float, int]]] = {
    "cifar10-p4-l8": ((17.41, 434), (17.32, 386)),
    "cifar10-p4-l4": ((9.34, 304), (9.45, 270)),
    "cifar10-p2-l4": ((16.88, 1300), (9.53, 418)),
    "cifar10-p1-l4": ((198.04, 16592), (26.72, 1698)),
    "cifar100-p4-l4": ((9.56, 434), (9.64, 380)),
    "cifar100-p2-l4": ((32.53, 2468), (15.61, 810)),
}
PRINTED: dict[str, tuple[float, int]] = {
    f"dimension_mixer/table4-{size}-{kind}": cost
    for size, costs in _TABLE4.items()
    for kind, cost in zip(("dense", "butterfly"), costs, strict=True)
}
"""Recipe -> milliseconds and MiB of a training step that its paper prints."""


def run(
    names: Sequence[str] | None = None,
    *,
    batch: int | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure training steps of rows on random images, the paper's figures beside ours.

    Args:
        names: recipes out of `PRINTED`, all by default.
        batch: samples of a step; the recipe's by default, as the paper's figures are of it.
        settings: type, device, number of timings and limits.
        hooks: progress, stopping and saving.

    Returns:
        See benchmarks/README.md. Rows of kind "model" as of `rifflemix bench models`, named as
        recipes; "extra" has printed_seconds and printed_memory_bytes too where the batch is the
        paper's.

    Raises:
        InputError: a recipe whose paper prints no such figures, or a setting out of range.
    """
    settings = settings or Settings()
    if batch is not None and batch < 1:
        raise bad_argument("batch", "at least 1", batch)
    names = list(PRINTED) if names is None else list(names)
    for name in names:
        if name not in PRINTED:
            raise unknown_name("row with printed time and memory", name, PRINTED)
    candidates: dict[Shape, list[Candidate]] = {}
    for name in names:
        recipe = get_recipe(name)
        shape = _shape(recipe, batch or recipe.train.batch_size)
        subject = _subject(recipe, shape.batch)
        candidates.setdefault(shape, []).append(subject.candidate(settings))
    groups = [Group(shape, found, ()) for shape, found in candidates.items()]
    details = {"rows": names, "batch": batch, "optimizer": "AdamW"}
    return run_benchmark("published", groups, settings, details, hooks=hooks)


def _shape(recipe: Recipe, batch: int) -> Shape:
    """The batch, and the patches, channels and heads of the row's model."""
    with torch.device("meta"):
        model = _model(recipe)
    known = model_settings(recipe.model) | dict(recipe.model_settings)
    return Shape(batch, model.num_patches, known["dim"], known["num_heads"])


def _model(recipe: Recipe) -> ImageModel:
    return cast(ImageModel, create_model(recipe.model, **recipe.model_settings))


def _subject(recipe: Recipe, batch: int) -> Subject:
    """The row's model; the paper's figures where the batch is the paper's."""
    milliseconds, mebibytes = PRINTED[recipe.name]
    extra = {"printed_seconds": milliseconds / 1e3, "printed_memory_bytes": mebibytes * _MIB}
    return Subject(
        recipe.name,
        lambda shape: _model(recipe),
        _images,
        gate_tokens=None,
        extra=extra if batch == recipe.train.batch_size else {},
    )


def _images(model: nn.Module, shape: Shape) -> Tensor:
    kind = cast(ImageModel, model)
    return torch.randn(shape.batch, kind.in_channels, *kind.image_size)
