"""Linear attention with elu + 1 features: the Linear Transformer."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.mixers._attention.autograd_functions import elu_plus_one
from rifflemix.mixers._attention.linear import LinearAttentionMixer, linear_attention
from rifflemix.mixers.cards import MixerCard


class LinearAttention(LinearAttentionMixer):
    """Linear attention with features elu(x) + 1, not scaled by 1 / sqrt(D).

    With `causal=True` each token sees the sums over the tokens up to itself. `init_state` and
    `step` then run with constant memory. Dropout has no effect: there are no attention weights.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        normalize: divide by the sum of the weights. False divides by the square root of the
            number of valid tokens, as one widely used benchmark of efficient attention does.
            These sums grow with the features: in float16, values above 65,504 become infinite.
        shared: other arguments of `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: `normalize=False` with `causal=True`. This combination is not defined.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers
    with Linear Attention", equations (4)-(7); causal: (8)-(12), (16)-(20).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("linear", 64, num_heads=4, causal=True)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
        >>> mixer.state_size(1000)
        1088
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="linear",
        title="Linear Transformer",
        paper="Katharopoulos et al. 2020, Transformers are RNNs: Fast Autoregressive "
        "Transformers with Linear Attention",
        equations="(4)-(7); causal (8)-(12), (16)-(20)",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
        permutation_equivariant=True,
    )
    epsilon = 1e-6

    def __init__(
        self,
        dim: int,
        *,
        normalize: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if self.causal and not normalize:
            raise bad_argument("normalize", "True with causal=True", False)
        self.normalize = normalize

    def features(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        q, k = elu_plus_one(q), elu_plus_one(k)
        if key_padding_mask is not None:
            k = torch.where(key_padding_mask[:, None, :, None], 0.0, k)
        return q, k

    def num_features_per_head(self) -> int:
        return self.head_dim

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if self.normalize:
            return super().attend(q, k, v, key_padding_mask)
        q, k = self.features(q, k, key_padding_mask, None)
        if key_padding_mask is None:
            return linear_attention(q / math.sqrt(q.shape[2]), k, v, epsilon=None)
        count = (~key_padding_mask).sum(1).clamp_min(1).to(q.dtype)
        return linear_attention(q * count.rsqrt()[:, None, None, None], k, v, epsilon=None)
