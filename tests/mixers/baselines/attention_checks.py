"""Shared checks for the tests of attention-like mixers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rifflemix as rm

TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}


def queries_keys_values(arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.from_numpy(arrays[name]) for name in ("Q", "K", "V"))
    return q, k, v


def padding_mask(arrays: Mapping[str, np.ndarray]) -> Tensor:
    """Return a mask in which True marks padding.

    The golden vectors mark valid tokens by 1.
    """
    return torch.from_numpy(arrays["mask"]) == 0


def assert_valid_equal(y: Tensor, expected: np.ndarray, key_padding_mask: Tensor) -> None:
    valid = ~key_padding_mask
    assert valid.any()
    assert key_padding_mask.any()
    torch.testing.assert_close(
        y.transpose(1, 2)[valid], torch.from_numpy(expected).transpose(1, 2)[valid], **TOLERANCE
    )


def assert_acts_on_valid_tokens(mixer: rm.TokenMixer) -> None:
    """Check that padding at any position does not change valid tokens and has output 0."""
    x = torch.randn(5, 13, mixer.dim, dtype=torch.float64)
    mask = torch.rand(5, 13) < 0.4
    mask[1] = torch.arange(13) < 5  # leading
    mask[2] = torch.arange(13) >= 5  # trailing
    mask[3] = torch.arange(13) != 6  # one valid token
    mask[4] = True
    y = mixer(x, key_padding_mask=mask)
    assert not y[mask].any()
    for sample, padded, out in zip(x[:4], mask[:4], y[:4], strict=True):
        alone = mixer(sample[~padded].unsqueeze(0))[0]
        torch.testing.assert_close(out[~padded], alone, atol=1e-10, rtol=1e-8)


def assert_streams(mixer: rm.TokenMixer, length: int) -> None:
    x = torch.randn(2, length, mixer.dim, dtype=torch.float64)
    expected = mixer(x)
    state = mixer.init_state(2)
    for n in range(length):
        y, state = mixer.step(x[:, n], state)
        torch.testing.assert_close(y, expected[:, n], atol=1e-9, rtol=1e-8)


class _Largest(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


def largest_tensor(run: Callable[[], Any]) -> int:
    """Count the elements of the largest tensor in both passes of `run`."""
    with _Largest() as mode:
        run()
    return mode.numel


def assert_linear_memory(mixer: rm.TokenMixer, per_token: int, length: int = 2048) -> None:
    """Check that every tensor has at most `per_token` numbers per token."""
    assert per_token < length / 4, "a tensor of N x N numbers must be seen to be too large"
    x = torch.randn(1, length, mixer.dim, dtype=next(mixer.parameters()).dtype)
    largest = largest_tensor(lambda: mixer(x.requires_grad_()).sum().backward())
    assert largest <= per_token * length
