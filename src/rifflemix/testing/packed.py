"""Packed batches: each sequence gives the same outputs as alone."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from rifflemix.mixers.base import TokenMixer
from rifflemix.testing.forms import Form, require_close, require_refusal, tokens

ROWS = ((5, 1, 0, 17, 5, 64, 2, 1, 33, 0, 17), (7, 7, 7), (24,), (0, 0, 3))


def packed_sequences_do_not_meet(form: Form) -> None:
    """Check that packed sequences have the same outputs and gradients as alone."""
    mixer = form.build()
    for lengths, dtype in zip(ROWS, (torch.int32, torch.int64) * 2, strict=True):
        row = tokens(1, sum(lengths))
        row[:, ::3] = row[:, ::3].round()  # ties
        x, y = row.clone().requires_grad_(), row.clone().requires_grad_()
        bounds = torch.tensor((0, *accumulate(lengths)), dtype=dtype)
        together = _with_gradients(mixer, x, mixer(x, cu_seqlens=bounds))
        each = [mixer(part) for part in y.split(lengths, 1) if part.shape[1]]
        alone = _with_gradients(mixer, y, torch.cat(each, 1))
        what = f"sequences of {', '.join(map(str, lengths))} tokens"
        require_close(together, alone, what, atol=1e-10, rtol=1e-8)


def packing_is_refused(form: Form) -> None:
    """Check that a mixer with packed=False in its card rejects cu_seqlens."""
    mixer, bounds = form.build(), torch.tensor((0, 2, 5))
    require_refusal(lambda: mixer(tokens(1, 5), cu_seqlens=bounds), "cu_seqlens: expected None")


def _with_gradients(mixer: TokenMixer, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
    """Return the outputs and the gradients of `x` and all parameters."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    leaves = [x, *mixer.parameters()]
    return y.detach(), *torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True)
