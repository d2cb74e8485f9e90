"""Average: every token receives the mean of all tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.compat import widest_float
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard


class AveragePooling(TokenMixer):
    """The mean of the valid tokens, or if causal the running mean, without parameters.

    This equals attention with equal scores. Sums use float32, or float64 for float64 inputs. The
    sum in the streaming state is float64 (float32 on MPS).

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` and `dropout`
            are ignored.
        shared: the other arguments of `TokenMixer`.

    Source: Zhang et al. 2018, "Accelerating Neural Transformer via an Average Attention Network",
    equation (1) (causal only), without its feed-forward and gating layers.

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.tensor([[[1.0], [3.0], [8.0]]])
        >>> rm.create_mixer("average", 1)(x).flatten().tolist()
        [4.0, 4.0, 4.0]
        >>> rm.create_mixer("average", 1, causal=True)(x).flatten().tolist()
        [1.0, 2.0, 4.0]
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="average",
        title="Average of the tokens",
        paper="Zhang et al. 2018, Accelerating Neural Transformer via an Average Attention Network",
        equations="(1)",
        complexity="O(N C)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        permutation_equivariant=True,
        permutation_invariant=True,
    )

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        counted = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if key_padding_mask is not None:
            counted = ~key_padding_mask
        count = counted.to(torch.promote_types(x.dtype, torch.float32)).unsqueeze(-1)
        tokens = x.to(count.dtype)
        if self.causal:
            mean = tokens.cumsum(1) / count.cumsum(1).clamp(min=1)
        else:
            mean = tokens.sum(1, keepdim=True) / count.sum(1, keepdim=True).clamp(min=1)
            # One copy per token: later operations may write in place.
            mean = mean.repeat(1, x.shape[1], 1)
        return mean.to(x.dtype)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create the sum of the tokens so far.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens; the state does not depend on it.

        Returns:
            "sum" (B, C), float64 (float32 on MPS).
        """
        wide = widest_float(device)
        return {"sum": torch.zeros(batch_size, self.dim, device=device, dtype=wide)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        total = state["sum"] + x_t.to(widest_float(x_t.device))
        return (total / (state["position"] + 1).unsqueeze(-1)).to(x_t.dtype), {"sum": total}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # Padded tokens are zero, so that the sum needs no mask.
        return self.mix(x, key_padding_mask), {"sum": x.sum(1, dtype=widest_float(x.device))}
