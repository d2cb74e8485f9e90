"""Base class of mixers with a recurrence over a matrix state, and their short convolution."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.packed import Segments
from rifflemix.mixers.padding import fill_valid_tokens, mix_valid_tokens, take_tokens
from rifflemix.ops.convolution.backends import short_convolution
from rifflemix.ops.precision import wide
from rifflemix.ops.recurrence.backends import linear_recurrence


class ShortConvolution(nn.Module):
    """y[n] = bias + sum over i < kernel_size of weight[kernel_size - 1 - i] x[n + ahead - i].

    The parameters have the names, shapes and initial values of `torch.nn.Conv1d`.

    Args:
        channels: number of channels, each with its own kernel.
        kernel_size: taps of a kernel.
        bias: add a bias to each channel.
        ahead: number of later tokens that an output reads.
    """

    def __init__(self, channels: int, kernel_size: int, *, bias: bool, ahead: int = 0) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.ahead = ahead
        bound = 1.0 / math.sqrt(kernel_size)
        start = torch.empty(channels, 1, kernel_size).uniform_(-bound, bound)
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """Convolve tokens (B, N, C); `past` contains the kernel_size - 1 tokens before them."""
        length, before = x.shape[1], self.kernel_size - 1
        first = self.ahead - before
        if past is not None:
            x, first = extended(x, past, before), self.ahead
        return short_convolution(x, self.weight.squeeze(1).mT, self.bias, first, length)

    def start(self, batch_size: int, device: Any, dtype: Any) -> Tensor:
        """Return zeros in place of the tokens before a stream: (B, kernel_size - 1, C)."""
        shape = (batch_size, self.kernel_size - 1, len(self.weight))
        return torch.zeros(shape, device=device, dtype=dtype)

    def past_after(self, x: Tensor, mask: Tensor | None, past: Tensor | None) -> Tensor:
        """Return the state of a stream after the tokens; see `past_after`."""
        return past_after(x, mask, past, self.kernel_size - 1)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, kernel_size={self.kernel_size}, bias={self.bias is not None}"


def past_after(x: Tensor, mask: Tensor | None, past: Tensor | None, count: int) -> Tensor:
    """Return the last `count` valid tokens of a stream, after zeros if it has fewer.

    Args:
        x: (B, N, C) tokens.
        mask: (B, N) bool, True = padding at the end; None in the middle of a stream.
        past: (B, count, C) tokens before `x`; None at the start.
        count: number of tokens to keep.

    Returns:
        (B, count, C).
    """
    if mask is None:
        return extended(x, past, count)[:, x.shape[1] :]
    first = (~mask).sum(1, keepdim=True) - count
    return take_tokens(x, first + torch.arange(count, device=x.device), 1)


def extended(x: Tensor, past: Tensor | None, count: int) -> Tensor:
    """Prepend `past`, or `count` zeros."""
    return F.pad(x, (0, 0, count, 0)) if past is None else torch.cat((past.to(x.dtype), x), 1)


State = dict[str, Tensor]
Parts = tuple[Tensor, ...]


class RecurrentMixer(TokenMixer):
    """Project each token, run a recurrence over the tokens, project the result.

    Subclasses implement `project` and `scan`, and set `key_dim` and `value_dim`. `proj` is the
    output projection.

    Without `causal` the recurrence also runs from the last token to the first, with the same
    parameters, and the outputs of both directions are added. So the bidirectional mixer has the
    parameters of the causal mixer.

    Attributes:
        key_dim: features D of the keys of a head.
        value_dim: features E of the values of a head.
    """

    key_dim: int
    value_dim: int
    proj: nn.Linear

    def project(self, x: Tensor) -> Parts:
        """Project each token alone.

        Args:
            x: (B, N, C) tokens.

        Returns:
            Tensors (B, N, ...) for `scan`.
        """
        raise NotImplementedError

    def scan(self, parts: Parts, mask: Tensor | None, before: State) -> tuple[Tensor, State]:
        """Run the recurrence from the first token to the last.

        Args:
            parts: result of `project`, zero at padded positions.
            mask: (B, N) bool, True = padding, at the start or at the end; or None.
            before: streaming state before the first token; empty at the start of a sequence.

        Returns:
            (B, N, H E), the input of the output projection, and the state after the last token.
            The state is not used if the padding comes first.
        """
        raise NotImplementedError

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self.proj(mix_valid_tokens(self._mixed, x, key_padding_mask))

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        return self.proj(segments.mix(self._mixed, x, exact=False))

    def _mixed(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the input of the output projection. Padding comes last."""
        parts = self._projected(x, mask)
        if self.causal:
            return self.scan(parts, None, {})[0]  # padding at the end reaches no other token
        directions = tuple(_with_reversed(part) for part in parts)
        masks = None if mask is None else _with_reversed(mask)
        outputs = self.scan(directions, masks, {})[0]
        forward, backward = torch.unflatten(outputs, 0, (2, -1)).unbind(0)
        return forward + backward.flip(1)

    def _projected(self, x: Tensor, mask: Tensor | None) -> Parts:
        parts = self.project(x)
        if mask is None:
            return parts
        return tuple(part.masked_fill(mask.unsqueeze(-1), 0.0) for part in parts)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> State:
        shape = (batch_size, self.num_heads, self.key_dim, self.value_dim)
        wide = torch.promote_types(dtype, torch.float32)
        return {"memory": torch.zeros(shape, device=device, dtype=wide)}

    def advance_stream(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        y, after = self.scan(self.project(x_t.unsqueeze(1)), None, state)
        return self.proj(y.squeeze(1)), after

    def fill_stream(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, State]:
        y, after = fill_valid_tokens(self._filled, x, key_padding_mask)
        return self.proj(y), after

    def _filled(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, State]:
        return self.scan(self._projected(x, mask), mask, {})

    def recur(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        before: State,
        *,
        log_decay: Tensor | None = None,
        beta: Tensor | None = None,
        erase: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run `rifflemix.ops.linear_recurrence` on tensors with the heads after the tokens.

        Args:
            q: (B, N, H, D) queries.
            k: (B, N, H, D) keys.
            v: (B, N, H, E) values.
            mask: see `scan`.
            before: see `scan`.
            log_decay: (B, N, H) or (B, N, H, D), at most 0.
            beta: (B, N, H) step size of the delta rule.
            erase: a and b (B, N, H, D) of the removal S - a (b^T S).

        Returns:
            (B, N, H, E) outputs, and the state (B, H, D, E) after the last token.
        """
        removal = None if erase is None else (_heads_first(erase[0]), _heads_first(erase[1]))
        y, memory = linear_recurrence(
            _heads_first(q),
            _heads_first(k),
            _heads_first(v),
            None if log_decay is None else _heads_first(log_decay),
            None if beta is None else _heads_first(beta),
            removal,
            before.get("memory"),
            mask,
        )
        return y.transpose(1, 2), memory


class WideRMSNorm(nn.RMSNorm):
    """RMS norm in float32 or wider: in float16, gradients of small inputs overflow."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        weight = None if self.weight is None else wide(self.weight)
        return F.rms_norm(wide(x), self.normalized_shape, weight, self.eps).to(x.dtype)


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def _with_reversed(x: Tensor) -> Tensor:
    """Append the sequences of (B, N, ...) in reversed order: (2 B, N, ...)."""
    return torch.stack((x, x.flip(1))).flatten(0, 1)


def heads_of(x: Tensor, num_heads: int) -> Tensor:
    """Split channels into heads: (B, N, H D) -> (B, N, H, D)."""
    return torch.unflatten(x, -1, (num_heads, -1))


def unit_norm(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Divide by the length of the last dimension, in float32 or wider; zeros stay zeros."""
    whole = wide(x)
    return (whole * torch.rsqrt(whole.square().sum(-1, keepdim=True) + epsilon)).to(x.dtype)


def softplus_bias(count: int, shortest: float = 1e-3, longest: float = 1e-1) -> Tensor:
    """Draw biases with a log-uniform softplus from `shortest` to `longest`.

    Source: Gu and Dao 2023, "Mamba", section 3.6.
    """
    steps = torch.empty(count).uniform_(math.log(shortest), math.log(longest)).exp()
    steps = steps.clamp_min(1e-4)
    return steps + torch.log(-torch.expm1(-steps))
