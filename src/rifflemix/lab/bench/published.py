"""`rifflemix bench published`: training steps compared with reported time and memory."""

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
from rifflemix.models.vision.images import PatchModel

_MIB = 2**20
# Dimension Mixer, Table 4: milliseconds of a training step and MiB for dense and butterfly
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
"""Recipe -> reported milliseconds and MiB of a training step."""


def run(
    names: Sequence[str] | None = None,
    *,
    batch: int | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure training steps of recipes on random images, for comparison with papers.

    Args:
        names: recipes in `PRINTED`, all by default.
        batch: batch size; by default the batch size of the recipe, as in the paper.
        settings: data type, device, number of timings and limits.
        hooks: callbacks for progress, stopping and saving.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "model", as in
        `rifflemix bench models`, and the names of recipes. If the batch size is the paper's,
        "extra" also contains printed_seconds and printed_memory_bytes.

    Raises:
        InputError: a recipe without reported time and memory, or a setting out of range.
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
    """Return the shape: batch size, and sizes of the recipe's model."""
    with torch.device("meta"):
        model = _model(recipe)
    known = model_settings(recipe.model) | dict(recipe.model_settings)
    return Shape(batch, model.num_patches, known["dim"], known["num_heads"])


def _model(recipe: Recipe) -> PatchModel:
    return cast(PatchModel, create_model(recipe.model, **recipe.model_settings))


def _subject(recipe: Recipe, batch: int) -> Subject:
    """Build the subject of a recipe.

    Reported values are added only at the batch size of the paper.
    """
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
    kind = cast(PatchModel, model)
    return torch.randn(shape.batch, kind.in_channels, *kind.image_size)
