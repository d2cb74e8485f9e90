"""Functions of the family without argument checks, for layers and `api`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rifflemix.ops.butterfly import cpu, eager, reference
from rifflemix.ops.butterfly.maps import BlockMap
from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.native import note_slow_call

_FAMILY = Family(reference, eager, cpu=cpu)
# Slowest first.
_FAST_CPU: tuple[str, ...] = (*PLAIN, "cpu")
_SLOW_CPU: tuple[str, ...] = ("reference", "cpu", "eager")


def butterfly_split(
    x: Tensor, block: int, stride: int, dim: int = 1, backend: str = "auto"
) -> Tensor:
    """Run `rifflemix.ops.butterfly_split`; `dim` is not negative."""
    groups: Tensor = _FAMILY.pick(backend).butterfly_split(x, block, stride, dim)
    return groups


def butterfly_merge(y: Tensor, stride: int, dim: int = 1, backend: str = "auto") -> Tensor:
    """Run `rifflemix.ops.butterfly_merge`; `dim` is not negative."""
    merged: Tensor = _FAMILY.pick(backend).butterfly_merge(y, stride, dim)
    return merged


def block_mlp(x: Tensor, maps: Sequence[BlockMap], backend: str = "auto") -> Tensor:
    """Run `rifflemix.ops.block_mlp`; `block_linear` is `block_mlp` with one layer."""
    if cpu.supports(x, maps):
        names = _FAST_CPU if cpu.pays(x, maps) else _SLOW_CPU
    else:
        note_slow_call(x)
        names = PLAIN
    y: Tensor = _FAMILY.pick(backend, names).block_mlp(x, maps)
    return y
