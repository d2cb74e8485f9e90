"""Select the submodules that a model's own initialization rule applies to."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def modules_to_draw(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield names and modules inside `model`, except networks with `keeps_start = True`.

    Such networks generate weights, for example the values of a kernel, and have a matching
    initialization. Weights of the usual scale of a model would make the generated values almost
    zero.
    """
    kept = tuple(
        f"{name}." for name, part in model.named_modules() if getattr(part, "keeps_start", False)
    )
    for name, part in model.named_modules():
        if not name.startswith(kept):
            yield name, part
