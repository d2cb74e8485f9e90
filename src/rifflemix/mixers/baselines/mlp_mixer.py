"""The token mixing of MLP-Mixer: one MLP over the positions, shared by all channels."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import take_first
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.nn.layers import WeightReadLinear, weight_is_plain
from rifflemix.ops.dropout.backends import dropout as drop


class TokenMLP(TokenMixer):
    """y[:, c] = W_2 gelu(W_1 x[:, c]) over tokens, with W_1 and W_2 shared by all channels c.

    Each position has its own weights. Shorter inputs use the weights of the first N positions.
    Padded positions add nothing.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `max_length` is required: it is
            the width of W_1 and W_2. Dropout acts on the hidden values.
        hidden_dim: hidden values D_S per channel. Default: C / 2, as in the paper's models.
        bias: add a bias to both linear layers.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: `hidden_dim` below 1, or no `max_length`.

    Source: Tolstikhin et al. 2021, "MLP-Mixer: An all-MLP Architecture for Vision", equation (1).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("mlp_mixer", 64, max_length=196, hidden_dim=32)
        >>> mixer(torch.randn(2, 196, 64)).shape
        torch.Size([2, 196, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="mlp_mixer",
        title="MLP-Mixer token mixing",
        paper="Tolstikhin et al. 2021, MLP-Mixer: An all-MLP Architecture for Vision",
        equations="(1), token mixing",
        complexity="O(N C D_S), D_S = C/2",
        cost_exponent=1.0,
        by_position="its weights belong to positions",
        needs_max_length=True,
    )

    def __init__(
        self, dim: int, *, hidden_dim: int | None = None, bias: bool = True, **shared: Any
    ) -> None:
        super().__init__(dim, **shared)
        hidden = max(1, self.dim // 2) if hidden_dim is None else hidden_dim
        self.hidden_dim = check_integer("hidden_dim", hidden, 1)
        self.positions = check_integer("max_length", self.max_length, 1)
        self.fc1 = WeightReadLinear(self.positions, self.hidden_dim, bias=bias)
        self.fc2 = WeightReadLinear(self.hidden_dim, self.positions, bias=bias)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        hidden = drop(F.gelu(self._to_hidden(x.mT)), self.dropout_now)
        return self._to_tokens(hidden, x.shape[1]).mT

    def _to_hidden(self, tokens: Tensor) -> Tensor:
        """Apply `fc1` to the first N positions: (B, C, N) -> (B, C, D_S)."""
        length = tokens.shape[2]
        if weight_is_plain(self.fc1):
            return F.linear(tokens, take_first(self.fc1.weight, length, 1), self.fc1.bias)
        return self.fc1(F.pad(tokens, (0, self.positions - length)))

    def _to_tokens(self, hidden: Tensor, length: int) -> Tensor:
        """Apply `fc2` and keep the first N positions: (B, C, D_S) -> (B, C, N)."""
        if not weight_is_plain(self.fc2):
            return take_first(self.fc2(hidden), length, 2)
        bias = None if self.fc2.bias is None else take_first(self.fc2.bias, length, 0)
        return F.linear(hidden, take_first(self.fc2.weight, length, 0), bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, hidden_dim={self.hidden_dim}"
