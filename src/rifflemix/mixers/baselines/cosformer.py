"""cosFormer: linear attention with ReLU features and weights that decrease with distance."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.mixers._attention.linear import LinearAttentionMixer
from rifflemix.mixers._attention.multi_head import ValidTokensFirst
from rifflemix.mixers.cards import MixerCard


class CosFormer(ValidTokensFirst, LinearAttentionMixer):
    """Linear attention with weights relu(q_i) relu(k_j) cos(pi (i - j) / 2M), M = `max_length`.

    The cosine is expanded into cosines and sines of the two positions, so each head has 2D
    features. Positions count valid tokens only. With `causal=True` each token sees the tokens up
    to itself, and `init_state` and `step` run with constant memory. Dropout has no effect: there
    are no attention weights.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `max_length` is required: M is
            the distance at which a weight reaches 0.
        keep_positions: count padded tokens as positions too.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Source: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", the cos-based
    re-weighting.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("cosformer", 64, num_heads=4, max_length=1024)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="cosformer",
        title="cosFormer",
        paper="Qin et al. 2022, cosFormer: Rethinking Softmax in Attention",
        equations="cos-based re-weighting",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        needs_max_length=True,
    )
    epsilon = 1e-6

    def __init__(
        self,
        dim: int,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.fade_length = check_integer("max_length", self.max_length, 1)

    def features(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        q, k = torch.relu(q), torch.relu(k)
        if key_padding_mask is not None:
            k = torch.where(key_padding_mask[:, None, :, None], 0.0, k)
        wide = torch.promote_types(q.dtype, torch.float32)
        position = torch.arange(q.shape[2], device=q.device, dtype=wide)
        if start is not None:
            position = position + start[:, None, None]
        angle = position.unsqueeze(-1) * (math.pi / (2 * self.fade_length))
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        return torch.cat((q * cos, q * sin), -1), torch.cat((k * cos, k * sin), -1)

    def num_features_per_head(self) -> int:
        """Return 2 D: a cosine and a sine for each channel of the head."""
        return 2 * self.head_dim
