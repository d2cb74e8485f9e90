"""Choice of the backend of a call: one of the modules reference, eager, cpu and triton.

The function does not check its arguments, because mixers and the public function have checked them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.native import note_slow_call
from rifflemix.ops.precision import without_autocast
from rifflemix.ops.recurrence import cpu, eager, reference
from rifflemix.ops.recurrence.common import Erase, with_triton
from rifflemix.ops.triton_support import INTERPRETED


def _load_triton() -> Any:
    from rifflemix.ops.recurrence import triton

    return triton


FAMILY = Family(reference, eager, cpu=cpu, load_triton=_load_triton)


def for_tokens(q: Tensor, backend: str = "auto") -> Any:
    """Choose the module for `linear_recurrence`."""
    names: tuple[str, ...] = PLAIN
    if cpu.supports(q):
        names = (*PLAIN, "cpu")
    else:
        note_slow_call(q)
    if q.is_cuda or INTERPRETED:
        names = with_triton(names, q)
    return FAMILY.pick(backend, names)


def linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    erase: Erase | None = None,
    initial_state: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    offsets: Sequence[int] | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run `rifflemix.ops.linear_recurrence`; return the output and the last state.

    `offsets` are the numbers in `cu_seqlens`.
    """
    if key_padding_mask is not None:
        # With zeros, a padded token neither decays nor removes nor writes, and reads 0.
        padding = key_padding_mask[:, None, :, None]
        q, k, v = _hide(q, padding), _hide(k, padding), _hide(v, padding)
        if log_decay is not None:
            log_decay = _hide(log_decay, padding if log_decay.dim() == 4 else padding.squeeze(-1))
        if beta is not None:
            beta = _hide(beta, padding.squeeze(-1))
        if erase is not None:
            erase = (_hide(erase[0], padding), _hide(erase[1], padding))
    with without_autocast(q):
        y, state = for_tokens(q, backend).linear_recurrence(
            q, k, v, log_decay, beta, erase, initial_state, offsets
        )
    return y, state


def _hide(x: Tensor, padding: Tensor) -> Tensor:
    return torch.where(padding, 0.0, x)
