"""Small layers, and a base class of modules with constant buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from rifflemix.checks import check_integer, check_positive, check_probability
from rifflemix.compat import hooks_of
from rifflemix.errors import check_choice
from rifflemix.ops.dropout.backends import dropout


class KeepsConstants(nn.Module):
    """A module that restores its constant buffers after `to_empty` and loading.

    Large models are built on the meta device. Then `to_empty` allocates uninitialized memory, or
    `load_state_dict(assign=True)` assigns the tensors of a checkpoint. Both leave non-persistent
    buffers without values.
    """

    _constants: Mapping[str, Tensor] = MappingProxyType({})
    """Values of the constants on the CPU, by name."""

    def keep_constants(self, compute: Callable[[], Mapping[str, Tensor | None]]) -> None:
        """Register tensors as constant buffers on the default device.

        Args:
            compute: returns name -> tensor, or None for a buffer without a value. It runs
                on the CPU.
        """
        device = torch.get_default_device()
        with torch.device("cpu"):
            computed = compute()
        self._constants = {name: value for name, value in computed.items() if value is not None}
        for name, value in computed.items():
            on_device = None if value is None else value.to(device)
            self.register_buffer(name, on_device, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # not annotated in torch
        with torch.no_grad():
            for name, value in self._constants.items():
                buffer = self.get_buffer(name)
                if not buffer.is_meta:
                    buffer.copy_(value)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        if not local_metadata.get("assign_to_params_buffers"):
            return
        tensors = (value for value in state_dict.values() if isinstance(value, Tensor))
        here = next((tensor.device for tensor in tensors), torch.get_default_device())
        for name, value in self._constants.items():
            buffer = self.get_buffer(name)
            if buffer.is_meta:
                self.register_buffer(name, value.to(here, buffer.dtype), persistent=False)


_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}

ACTIVATIONS = tuple(_LAYERS)
"""Names of the activations: gelu is exact, gelu_tanh is the tanh approximation."""


def activation_layer(name: str) -> nn.Module:
    """Build the activation `name`, one of `ACTIVATIONS`.

    Raises:
        InputError: `name` is not in `ACTIVATIONS`.
    """
    check_choice("activation", name, ACTIVATIONS)
    return _LAYERS[name]()


class Dropout(nn.Dropout):
    """In training, zero each element with probability `p` and divide the others by 1 - p.

    A `torch.nn.Dropout` that runs `rifflemix.ops.dropout`. On a CPU, all threads draw random
    numbers, and the result does not depend on the number of threads.

    Args:
        p: probability in [0, 1).

    Raises:
        InputError: `p` is out of range.
    """

    def __init__(self, p: float) -> None:
        super().__init__(check_probability("dropout", p))

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of `x`, of any shape and floating-point dtype."""
        return dropout(x, self.p) if self.training else x


class DropPath(nn.Module):
    """In training, zero each sample with probability `p` and divide the others by 1 - p.

    Args:
        p: probability in [0, 1).

    Source: Huang et al. 2016, "Deep Networks with Stochastic Depth".
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_probability("p", p)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(1.0 - self.p)
        return x * (kept / (1.0 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class LayerScale(nn.Module):
    """Multiply each channel by a learned factor.

    Args:
        dim: channels C.
        initial: initial value of all factors.

    Source: Touvron et al. 2021, "Going Deeper with Image Transformers", LayerScale.
    """

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        initial = check_positive("initial", initial)
        self.scale = nn.Parameter(torch.full((check_integer("dim", dim, 1),), initial))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class ClassToken(nn.Module):
    """Prepend one learned token to each sequence.

    Args:
        dim: channels C.
        std: standard deviation of the normal initialization.

    Source: Dosovitskiy et al. 2021, equation (1).
    """

    def __init__(self, dim: int, *, std: float) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, 1, check_integer("dim", dim, 1)).normal_(std=std))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, C) to (B, 1 + N, C)."""
        return torch.cat((self.token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)

    def no_weight_decay(self) -> set[str]:
        return {"token"}


class FeedForward(nn.Module):
    """Apply linear, activation, dropout, linear, dropout to each token.

    Args:
        dim: input and output channels C.
        hidden_dim: channels between the two linear layers.
        dropout: dropout probability in [0, 1).
        hidden_dropout: dropout probability after the activation, by default `dropout`.
        activation: one of `rifflemix.nn.layers.ACTIVATIONS`.
        bias: add a bias to both linear layers.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        hidden_dropout: float | None = None,
        activation: str = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        dim, hidden_dim = check_integer("dim", dim, 1), check_integer("hidden_dim", hidden_dim, 1)
        dropout = check_probability("dropout", dropout)
        hidden_dropout = dropout if hidden_dropout is None else hidden_dropout
        self.fc1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.act = activation_layer(activation)
        self.hidden_drop = Dropout(check_probability("hidden_dropout", hidden_dropout))
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.hidden_drop(self.act(self.fc1(x)))))


class WeightReadLinear(NonDynamicallyQuantizableLinear):
    """Linear layer that dynamic quantization skips, so that its weight stays readable."""


def weight_is_plain(linear: nn.Module) -> bool:
    """Check that a mixer may read the weight instead of calling the layer.

    A call is required if hooks compute the weight (pruning, weight normalization), or if another
    module replaced the `WeightReadLinear` (adapters).
    """
    return type(linear) is WeightReadLinear and not hooks_of(linear)
