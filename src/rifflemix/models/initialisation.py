"""Which parts of a model its host draws anew, where it has a rule of its own for the start."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def modules_to_draw(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of everything inside `model`, without networks that keep their start.

    A network says so by `keeps_start = True`. One that makes weights, such as the values of a
    kernel, has a start that fits it; maps of a host's usual size would leave next to nothing of
    what it makes.
    """
    kept = tuple(
        f"{name}." for name, part in model.named_modules() if getattr(part, "keeps_start", False)
    )
    for name, part in model.named_modules():
        if not name.startswith(kept):
            yield name, part
