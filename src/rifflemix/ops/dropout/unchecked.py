"""The family without argument checks, for callers that have made them: layers, and `api`."""

from __future__ import annotations

from torch import Tensor

from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.dropout import cpu, eager, reference
from rifflemix.ops.dropout.spec import draw_seed

_FAMILY = Family(reference, eager, cpu=cpu)


def dropout(x: Tensor, p: float, backend: str = "auto") -> Tensor:
    """`rifflemix.ops.dropout`."""
    if p == 0.0:
        return x
    module = _FAMILY.pick(backend, (*PLAIN, "cpu") if cpu.supports(x) else PLAIN)
    draws = module is not eager or eager.takes_seed(x)
    y: Tensor = module.dropout(x, p, draw_seed() if draws else None)
    return y
