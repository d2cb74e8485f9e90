"""Attention classes of any library that are derived or copied from timm's `Attention`.

The names of the parts do not prove what a class computes. rifflemix therefore runs a copy before
the replacement.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    HostAttention,
    SwappedAttention,
    has_class_token,
    place_of,
)
from rifflemix.surgery.hosts.timm import (
    RELATIVE,
    RELATIVE_BIAS,
    ROTARY,
    SwappedTimmAttention,
    TimmAttention,
    has_maps,
    is_set,
    misshapen,
    notes_of,
    probability,
)
from rifflemix.surgery.hosts.trial import Trial, arguments_of, try_out
from rifflemix.surgery.triangles import triangles
from rifflemix.surgery.unknown import looks_like_attention

_PARTS = {
    *("qkv", "q_proj", "k_proj", "v_proj", "q_bias", "k_bias", "v_bias", "proj"),
    *("q_norm", "k_norm", "norm"),
}
_ADAPTER = "; an adapter of your own can tell what it does (register_adapter)"


class SwappedCopy(SwappedTimmAttention):
    """Mixer with the interface of third-party attention.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.
        understood: names of the arguments with the same meaning as in timm's `Attention`.
    """

    def __init__(self, mixer: TokenMixer, original: nn.Module, understood: frozenset[str]) -> None:
        super().__init__(mixer, original)
        self.tokens, *others = (defaults := arguments_of(original))
        self.defaults = {name: defaults[name] for name in others}
        self.understood = understood

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Mix the tokens (B, N, C).

        Raises:
            InputError: the mask expresses more than padding and causality. Another argument differs
                from the default of the host module.
        """
        names = [self.tokens, *self.defaults][: len(args)]
        arguments = {**dict(zip(names, args, strict=True)), **kwargs}
        x = arguments.pop(self.tokens)
        known = {name: arguments.pop(name) for name in self.understood & arguments.keys()}
        for name, value in arguments.items():
            default = self.defaults.get(name)
            if name != "rope" and (isinstance(value, Tensor) or value != default):
                raise bad_argument(
                    name,
                    f"{default}: {self.mixer.card.title} has no use for it",
                    f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value),
                    "an adapter of your own can read it (register_adapter)",
                )
        return super().forward(x, **known)


class CopiedTimmAttention(TimmAttention):
    """Adapter for attention with `qkv` and `proj` that passes a trial run."""

    name = "copy of timm"

    def matches(self, module: nn.Module) -> bool:
        """Return whether a module looks like attention and has timm's projections."""
        return looks_like_attention(module) and has_maps(module)

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe softmax attention, causal or not, or why it differs."""
        host: Any = module
        trial = _tried(module)
        if trial.refusal:
            return HostAttention(dim=1, num_heads=1, refusal=trial.refusal)
        sizes = (buffer.shape[-1] for buffer in triangles(module).values())
        return HostAttention(
            dim=host.proj.out_features,
            num_heads=host.num_heads,
            causal=trial.causal,
            dropout=probability(module, "attn_drop"),
            inner_dim=host.proj.in_features,
            max_length=min(sizes, default=None),
            class_token=has_class_token(parents),
            notes=(*notes_of(module), *_lost_dropouts(module)),
            warnings=(ROTARY,) if "rope" in arguments_of(module) else (),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a `SwappedCopy`."""
        return SwappedCopy(mixer, module, _tried(module).understood)


def _tried(module: nn.Module) -> Trial:
    """Run a trial unless the structure already rules out a replacement."""
    reason = _refusal(module)
    if reason or place_of(module) is None:  # quantized modules are rejected elsewhere
        return Trial(reason)
    adapter = CopiedTimmAttention()
    trial = try_out(module, adapter.weights)
    return trial._replace(refusal=trial.refusal + _ADAPTER) if trial.refusal else trial


def _refusal(module: nn.Module) -> str:
    if any(is_set(module, name) for name in RELATIVE):
        return RELATIVE_BIAS
    weights = [*module.named_parameters(), *module.named_buffers()]
    parts = {name.partition(".")[0] for name, _ in weights} - _PARTS - triangles(module).keys()
    if parts:
        return f"a token mixer has no place for its {', '.join(sorted(parts))}{_ADAPTER}"
    if any(buffer.is_meta for buffer in module.buffers()):
        return "its buffers are on the meta device; replace it when they have memory"
    others = list(arguments_of(module).items())[1:]
    needed = [name for name, default in others if default is inspect.Parameter.empty]
    if needed:
        return (
            f"its forward needs {', '.join(needed)} beside the tokens, which a token mixer has no "
            f"use for{_ADAPTER}"
        )
    return misshapen(module)


def _lost_dropouts(module: nn.Module) -> list[str]:
    return [
        f"the host's dropout {name} is lost: the mixer knows attn_drop and proj_drop"
        for name, part in module.named_children()
        if isinstance(part, nn.Dropout) and part.p and name not in ("attn_drop", "proj_drop")
    ]
