"""Functions of the family without argument checks, for mixers and `api`.

Permutations return (y, index). The index is None unless `with_index` is True.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.compat import leaves_package, statically_known_true
from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.native import note_slow_call
from rifflemix.ops.permutation import cpu, cpu_soft, eager, eager_soft, reference
from rifflemix.ops.permutation.spec import Permuted, SortSpec
from rifflemix.ops.permutation.triton_limits import with_triton
from rifflemix.ops.triton_support import INTERPRETED


def _load_triton() -> Any:
    from rifflemix.ops.permutation import triton

    return triton


_FAMILY = Family(reference, eager, cpu=cpu, load_triton=_load_triton)
_SOFT = Family(reference, eager_soft, cpu=cpu_soft)


def circular_shift(
    x: Tensor,
    steps: Tensor,
    mask: Tensor | None = None,
    with_index: bool = False,
    backend: str = "auto",
) -> Permuted:
    """Run `rifflemix.ops.circular_shift` for steps (C,) int64 on x's device."""
    names = _with_cpu(x)
    if mask is None:
        names = with_triton(names, x)
    y, index = _FAMILY.pick(backend, names).circular_shift(x, steps, mask, with_index)
    return y, None if index is None else index.contiguous()


def group_sort(
    x: Tensor,
    spec: SortSpec,
    mask: Tensor | None = None,
    with_index: bool = False,
    backend: str = "auto",
) -> Permuted:
    """Run `rifflemix.ops.group_sort`."""
    module = _FAMILY.pick(backend, _sorters(x, spec, with_index))
    permuted: Permuted = module.group_sort(x, spec, mask, with_index)
    return permuted


def channel_permute(
    x: Tensor,
    steps: Tensor,
    spec: SortSpec,
    mask: Tensor | None = None,
    with_index: bool = False,
    backend: str = "auto",
) -> Permuted:
    """Run `rifflemix.ops.channel_permute` for steps (C,) int64 on x's device."""
    module = _FAMILY.pick(backend, _sorters(x, spec, with_index))
    permuted: Permuted = module.channel_permute(x, steps, spec, mask, with_index)
    return permuted


def max_exchange(
    x: Tensor, mask: Tensor | None = None, with_index: bool = False, backend: str = "auto"
) -> Permuted:
    """Run `rifflemix.ops.max_exchange`."""
    module = _FAMILY.pick(backend, _with_cpu(x))
    permuted: Permuted = module.max_exchange(x, mask, with_index)
    return permuted


def causal_shift(x: Tensor, steps: Tensor, longest: int, backend: str = "auto") -> Tensor:
    """Run `rifflemix.ops.causal_shift` for steps (C,) int64, at most `longest`, on x's device."""
    y: Tensor = _FAMILY.pick(backend, _with_cpu(x)).causal_shift(x, steps, longest)
    return y


def rank_filter(x: Tensor, ranks: Tensor, window_size: int, backend: str = "auto") -> Tensor:
    """Run `rifflemix.ops.rank_filter` for ranks (C,) int64 on x's device."""
    names = _with_cpu(x) if cpu.filters(window_size) else PLAIN
    y: Tensor = _FAMILY.pick(backend, names).rank_filter(x, ranks, window_size)
    return y


def soft_sort(
    x: Tensor,
    num_groups: int,
    temperature: float,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Run `rifflemix.ops.soft_sort`."""
    y: Tensor = _SOFT.pick(backend, _soft(x, num_groups)).soft_sort(
        x, num_groups, temperature, mask
    )
    return y


def soft_rank(
    x: Tensor,
    num_groups: int,
    temperature: float,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Run `rifflemix.ops.soft_rank`."""
    y: Tensor = _SOFT.pick(backend, _soft(x, num_groups)).soft_rank(
        x, num_groups, temperature, mask
    )
    return y


def token_of_rank(window: Tensor, ranks: Tensor) -> Tensor:
    """Compute the last output (B, C) of `rank_filter` on one full window (B, G, C)."""
    return eager.token_of_rank(window, ranks)


def _sorters(x: Tensor, spec: SortSpec, with_index: bool) -> tuple[str, ...]:
    needs_sort = cpu.needs_sort(x, spec.num_groups, with_index)
    names = PLAIN if needs_sort and not cpu.sorts(x, spec.num_groups) else _with_cpu(x)
    if x.is_cuda or INTERPRETED:
        names = with_triton(names, x, x.shape[1] // spec.num_groups)
    return names


def _soft(x: Tensor, num_groups: int) -> tuple[str, ...]:
    """List backends as `_with_cpu`, but prefer kernels for few values too."""
    if not cpu.supports(x) or not cpu.sorts(x, num_groups):
        note_slow_call(x)
        return PLAIN
    return ("cpu", *PLAIN) if leaves_package() else (*PLAIN, "cpu")


def _with_cpu(x: Tensor) -> tuple[str, ...]:
    """List the backends that support `x` here, slowest first, except "triton"."""
    if not cpu.supports(x):
        note_slow_call(x)
        return PLAIN
    # In two cases the kernel runs only if the caller requests "cpu". For a small tensor, torch is
    # faster than the call of a kernel. An exported program must run without rifflemix.
    is_small = statically_known_true(x.numel() < cpu.WORTH_A_CALL)
    if is_small or leaves_package():
        return ("cpu", *PLAIN)
    return (*PLAIN, "cpu")
