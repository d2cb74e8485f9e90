"""Nystromformer: softmax attention approximated with landmarks."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.multi_head import ValidTokensFirst
from rifflemix.mixers._attention.softmax_parts import masked_attention
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.precision import without_autocast

PINV_INITS = ("per_matrix", "batch")
LANDMARKS = ("valid", "all")


class Nystromformer(ValidTokensFirst):
    """Nystrom approximation of attention: softmax(q K~) pinv(softmax(Q~ K~)) softmax(Q~ k) v.

    The landmarks Q~, K~ are the means of m segments of the queries and keys. Segment s contains the
    tokens n with floor(n m / N) = s: N / m tokens if m divides N. Sequences of at most m tokens use
    exact softmax attention, because the formula equals it. A depthwise convolution of the values
    over the tokens is added to the output.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the product of
            the first two factors.
        num_landmarks: number m of landmarks.
        pinv_iterations: iterations for the pseudo-inverse; 6 in the paper.
        pinv_init: scale of the first iterate. "per_matrix": the largest column sum of each matrix.
            "batch": the largest column sum in the batch, as in the released code. Outputs of a
            sample then depend on the other samples.
        landmarks: tokens that the segments and the convolution cover. "valid": the valid tokens.
            "all": all positions, with zeros at padded positions, as in the released code. Outputs
            then depend on the position and amount of padding.
        conv_kernel: odd width of the convolution; None omits the convolution.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: an unknown name, an even kernel, or a number below 1.

    Source: Xiong et al. 2021, "Nystromformer: A Nystrom-Based Algorithm for Approximating
    Self-Attention", section 3, Algorithm 1.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("nystromformer", 64, num_heads=4, num_landmarks=32)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="nystromformer",
        title="Nystromformer",
        paper="Xiong et al. 2021, Nystromformer: A Nystrom-Based Algorithm for Approximating "
        "Self-Attention",
        equations="section 3, Algorithm 1",
        complexity="O(N m C), m landmarks",
        cost_exponent=1.0,
        thread_sums="the gradient of the depthwise convolution",
    )
    fixed_options: ClassVar[frozenset[str]] = frozenset({"keep_positions"})

    def __init__(
        self,
        dim: int,
        *,
        num_landmarks: int = 64,
        pinv_iterations: int = 6,
        pinv_init: str = "per_matrix",
        landmarks: str = "valid",
        conv_kernel: int | None = 35,
        **shared: Any,
    ) -> None:
        check_choice("landmarks", landmarks, LANDMARKS)
        keep_positions = landmarks == "all"
        super().__init__(dim, keep_positions=keep_positions, **shared)
        self.num_landmarks = check_integer("num_landmarks", num_landmarks, 1)
        self.pinv_iterations = check_integer("pinv_iterations", pinv_iterations, 1)
        check_choice("pinv_init", pinv_init, PINV_INITS)
        self.pinv_init = pinv_init
        self.landmarks = landmarks
        self.conv = None if conv_kernel is None else self._make_conv(conv_kernel)

    def _make_conv(self, conv_kernel: int) -> nn.Conv2d:
        width = check_integer("conv_kernel", conv_kernel, 1)
        if width % 2 == 0:
            raise bad_argument("conv_kernel", "an odd number of tokens", width)
        heads = self.num_heads
        return nn.Conv2d(
            heads, heads, (width, 1), padding=(width // 2, 0), bias=False, groups=heads
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if key_padding_mask is not None:
            padded = key_padding_mask[:, None, :, None]
            q, k, v = (torch.where(padded, 0.0, t) for t in (q, k, v))
        if q.shape[2] <= self.num_landmarks:
            y = masked_attention(
                q, k, v, key_padding_mask=key_padding_mask, dropout=self.dropout_now
            )
        else:
            y = self._attend_through_landmarks(q, k, v, key_padding_mask)
        return y if self.conv is None else y + self.conv(v)

    def _attend_through_landmarks(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        members = self._segments(q.shape[2], key_padding_mask, q.device)
        # The pseudo-inverse magnifies errors: all steps around it use float32 or wider.
        with without_autocast(q):
            means = members.to(wide) / members.sum(-1, keepdim=True).clamp_min(1)
            q_marks, k_marks = means @ q.to(wide), means @ k.to(wide)
            first = self._softmax(q.to(wide), k_marks)
            middle = self._softmax(q_marks, k_marks)
            weights = first @ self._pseudo_inverse(middle)
        if key_padding_mask is not None and self.landmarks == "valid":
            # With at most m valid tokens, each token is its own landmark and uses the row of that
            # landmark. The formula fails there because some landmarks may be empty.
            few = (~key_padding_mask).sum(1) <= self.num_landmarks
            weights = torch.where(few[:, None, None, None], members.mT.to(wide), weights)
        weights = drop(weights, self.dropout_now).to(v.dtype)
        return weights @ masked_attention(
            q_marks.to(v.dtype), k, v, key_padding_mask=key_padding_mask
        )

    def _segments(self, length: int, key_padding_mask: Tensor | None, device: Any) -> Tensor:
        """Return the tokens of each landmark as (B or 1, 1, m, N) bool."""
        position = torch.arange(length, device=device)
        marks = torch.arange(self.num_landmarks, device=device).unsqueeze(-1)
        if key_padding_mask is None or self.landmarks == "all":
            return (position * self.num_landmarks // length == marks)[None, None]
        count = (~key_padding_mask).sum(1, keepdim=True).clamp_min(1)
        segment = (position * self.num_landmarks // count).masked_fill(key_padding_mask, -1)
        return (segment.unsqueeze(1) == marks).unsqueeze(1)

    def _softmax(self, q: Tensor, k_marks: Tensor) -> Tensor:
        return torch.softmax(q @ k_marks.mT / math.sqrt(self.head_dim), dim=-1)

    def _pseudo_inverse(self, a: Tensor) -> Tensor:
        """Approximate the Moore-Penrose inverse of (..., m, m) with matrix products only."""
        largest = a.sum(-2).amax(-1)[..., None, None]
        if self.pinv_init == "batch":
            largest = largest.amax()
        identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        z = a.mT / largest
        for _ in range(self.pinv_iterations):
            az = a @ z
            z = 0.25 * z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az)))
        return z

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_landmarks={self.num_landmarks}"
