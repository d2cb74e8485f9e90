"""Cross-covariance attention: the mixer of XCiT, attention between channels."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.precision import sum_of_products


class XCA(MultiHeadMixer):
    """Cross-covariance attention: the channels of each head attend to each other.

    The cost is linear in N. Each channel of the queries and keys is scaled to unit norm over the
    valid tokens. The D x D matrix softmax(temperature * q^T k) then mixes the channels of each
    value.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        shared: other arguments of `MultiHeadMixer` and `TokenMixer`.

    Source: El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", section 3.2.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("xca", 64, num_heads=4)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="xca",
        title="Cross-covariance attention (XCiT)",
        paper="El-Nouby et al. 2021, XCiT: Cross-Covariance Image Transformers",
        equations="section 3.2",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        permutation_equivariant=True,
    )

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.temperature = nn.Parameter(torch.ones(self.num_heads, 1, 1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if key_padding_mask is not None:
            padded = key_padding_mask[:, None, :, None]
            q, k = torch.where(padded, 0.0, q), torch.where(padded, 0.0, k)
        # Prevents 0 / 0 if all tokens are padding. float16 cannot represent 1e-12.
        smallest = max(1e-12, torch.finfo(q.dtype).tiny)
        q, k = (F.normalize(t, dim=-2, eps=smallest) for t in (q, k))
        scores = sum_of_products(q, k) * self.temperature
        weights = drop(scores.softmax(dim=-1), self.dropout_now)
        return v @ weights.to(v.dtype).mT

    def no_weight_decay(self) -> set[str]:
        return {"temperature"}
