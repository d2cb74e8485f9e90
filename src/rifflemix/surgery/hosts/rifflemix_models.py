"""Softmax attention of rifflemix's own models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rifflemix.mixers import TokenMixer
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.surgery.adapters import HostAttention, forward_is_its_own, has_class_token
from rifflemix.surgery.hosts.timm import TimmAttention
from rifflemix.surgery.swapped import SwappedAttention

ROTARY = (
    "rotary positions are lost, unless the mixer has the option rotary and you pass "
    "mixer_options={'rotary': True}"
)


class SwappedMixer(SwappedAttention):
    """Mixer in place of another mixer. Streams and properties are those of the new mixer."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """Mix tokens; see `TokenMixer.forward`."""
        return self.mixer(x, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "mixer":
                raise
            return getattr(self.mixer, name)


class RifflemixAttention(TimmAttention):
    """Adapter for the mixer `softmax` in models of `create_model` and in trained runs.

    The mixer has the projections of timm's attention, `qkv` and `proj`.
    """

    name = "rifflemix"

    def matches(self, module: nn.Module) -> bool:
        """Return whether a module is the mixer `softmax`."""
        return type(module) is SoftmaxAttention and not forward_is_its_own(module)

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe the mixer with the options that it was built with."""
        host: Any = module
        return HostAttention(
            dim=host.dim,
            num_heads=host.num_heads,
            causal=host.causal,
            dropout=host.dropout,
            inner_dim=host.inner_dim,
            max_length=host.max_length,
            class_token=has_class_token(parents),
            warnings=(ROTARY,) if host.rotary else (),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a `SwappedMixer`."""
        return SwappedMixer(mixer, module)
