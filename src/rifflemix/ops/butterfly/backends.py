"""Choice of the backend of a call: one of the modules reference, eager and cpu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rifflemix.ops.butterfly import cpu, eager, reference
from rifflemix.ops.butterfly.eager import BlockMap
from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.native import note_slow_call

FAMILY = Family(reference, eager, cpu=cpu)
# Slowest first.
_FAST_CPU: tuple[str, ...] = (*PLAIN, "cpu")
_SLOW_CPU: tuple[str, ...] = ("reference", "cpu", "eager")


def for_blocks(x: Tensor, maps: Sequence[BlockMap], backend: str = "auto") -> Any:
    """Choose the module for `block_mlp`."""
    if cpu.supports(x, maps):
        names = _FAST_CPU if cpu.pays(x, maps) else _SLOW_CPU
    else:
        note_slow_call(x)
        names = PLAIN
    return FAMILY.pick(backend, names)
