"""Choice of the backend of a call: one of the modules reference, eager, cpu and triton.

Mixers call the functions of the module directly, because their base class has checked the input.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.compat import has_plain_autograd, runs_kernels, statically_known_true
from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.native import note_slow_call
from rifflemix.ops.permutation import cpu, eager, reference
from rifflemix.ops.permutation.arguments import SortSpec
from rifflemix.ops.permutation.cpu_common import supports
from rifflemix.ops.permutation.triton_limits import with_triton
from rifflemix.ops.triton_support import INTERPRETED


def _load_triton() -> Any:
    from rifflemix.ops.permutation import triton

    return triton


_FAMILY = Family(reference, eager, cpu=cpu, load_triton=_load_triton)


def for_sort(x: Tensor, spec: SortSpec, with_index: bool = False, backend: str = "auto") -> Any:
    """Choose the module for `permute`."""
    names: tuple[str, ...] = PLAIN
    if (
        cpu.SORTS_LONG_KEYS
        or cpu.has_short_keys(x, spec.num_groups)
        or not cpu.needs_sort(x, spec.num_groups, with_index)
    ):
        names = _with_cpu(x)
    if x.is_cuda or INTERPRETED:
        names = with_triton(names, x, x.shape[1] // spec.num_groups)
    return _FAMILY.pick(backend, names)


def for_shift(x: Tensor, mask: Tensor | None = None, backend: str = "auto") -> Any:
    """Choose the module for `circular_shift`."""
    names = _with_cpu(x)
    return _FAMILY.pick(backend, names if mask is not None else with_triton(names, x))


def for_tokens(x: Tensor, backend: str = "auto") -> Any:
    """Choose the module for `max_exchange` and `causal_shift`."""
    return _FAMILY.pick(backend, _with_cpu(x))


def for_windows(x: Tensor, window_size: int, backend: str = "auto") -> Any:
    """Choose the module for `rank_filter`."""
    return _FAMILY.pick(backend, _with_cpu(x) if cpu.filters(window_size) else PLAIN)


def _with_cpu(x: Tensor) -> tuple[str, ...]:
    """List the backends that support `x` here, slowest first, except "triton"."""
    if supports(x):
        if runs_kernels():
            # For a small tensor, torch is faster than the call of a kernel.
            is_small = statically_known_true(x.numel() < cpu.WORTH_A_CALL)
            return ("cpu", *PLAIN) if is_small else (*PLAIN, "cpu")
        if has_plain_autograd():
            # An exported program must run without rifflemix.
            return ("cpu", *PLAIN)
    note_slow_call(x)
    return PLAIN
