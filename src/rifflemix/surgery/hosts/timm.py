"""Attention of timm vision transformers, recognized by class names and attributes.

rifflemix never imports timm. See `timm_copies` for attention that is derived or copied from timm.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    Adapter,
    HostAttention,
    arguments_of,
    forward_is_its_own,
    forward_is_of,
    has_class_token,
    is_linear,
    not_plain,
)
from rifflemix.surgery.masks import check_causality, key_padding_mask
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.weights import HostWeights, Projection

_KNOWN = {
    "Attention",
    "AttentionRope",
    "DiffAttention",
    "EvaAttention",
    "TalkingHeadAttn",
    "WindowAttention",
    "XCA",
}
_MAPS = ("qkv", "q_proj", "k_proj", "v_proj", "proj")
_REFUSED = {
    "ClassAttn": "only its class token is a query, so its cost is linear in the tokens already",
    "DiffParallelScalingBlock": "its attention and its MLP share one linear layer",
    "ParallelScalingBlock": "its attention and its MLP share one linear layer",
}
RELATIVE = (
    "attention_biases",
    "cpb_mlp",
    "meta_mlp",
    "rel_pos",
    "rel_pos_h",
    "relative_position_bias_table",
)
RELATIVE_BIAS = "it adds relative position biases to its scores, but token mixers have no scores"
_NOTES = {
    "DiffAttention": "the host subtracts a second attention map, the mixer does not",
    "TalkingHeadAttn": "the host mixes its heads before and after the softmax, the mixer does not",
    "XCA": "the host's cross-covariance attention is linear in the tokens already",
}
ROTARY = (
    "rotary positions are lost: token mixers do not use them; without other positions in the "
    "model, a permutation-equivariant mixer cannot know the order of the tokens"
)
# _IMAGES: all tokens of an image (B, H, W, C) attend to each other. _BLOCKS: tokens attend only
# within their block (B, T, N, C).
_IMAGES = ("timm.models.volo", "timm.models.vision_transformer_sam")
_BLOCKS = ("timm.models.nest",)
_CHANNELS_FIRST = ("timm.models.fastvit",)


class SwappedTimmAttention(SwappedAttention):
    """Mixer with the arguments of an attention module for tokens.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.
        understood: names of the arguments with the same meaning as in timm's `Attention`.
    """

    def __init__(self, mixer: TokenMixer, original: Any, understood: Collection[str]) -> None:
        super().__init__(mixer, original)
        self.num_heads = original.num_heads
        self.layout = _layout(original)
        self.proj_drop = nn.Dropout(probability(original, "proj_drop")).train(original.training)
        self.tokens, *others = (defaults := arguments_of(type(original)))
        self.defaults = {name: defaults[name] for name in others}
        self.understood = frozenset(understood)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Mix the tokens and return them in their shape. Rotary positions are ignored.

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
                    f"{default}: {self.mixer.card.title} cannot use it",
                    f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value),
                    "write an adapter that reads it (register_adapter)",
                )
        tokens = x
        if self.layout == "images":
            tokens = x.flatten(1, -2)
        elif self.layout == "blocks":
            tokens = x.flatten(0, -3)
        y: Tensor = self.proj_drop(mixed(self.mixer, tokens, **known))
        return y.reshape(x.shape)


class TimmAttention(Adapter):
    """Adapter for `Attention`, `EvaAttention` and similar modules of timm.

    The query, key and value projections may be fused or separate.
    """

    name = "timm"

    def matches(self, module: nn.Module) -> bool:
        """Return whether a timm module is multi-head attention with its own `forward`."""
        kind = type(module)
        if kind.__module__.partition(".")[0] != "timm" or not forward_is_of(kind, "timm"):
            return False
        if forward_is_its_own(module):
            return False
        attends = any(word in kind.__name__ for word in ("Attention", "Attn"))
        in_heads = hasattr(module, "num_heads") or hasattr(module, "heads")
        return (attends and in_heads) or kind.__name__ in {*_KNOWN, *_REFUSED}

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe heads, dropout and lost features, or why replacement is impossible."""
        host: Any = module
        refusal = _refusal(module, parents)
        if refusal:
            return HostAttention(dim=1, num_heads=1, refusal=refusal)
        return HostAttention(
            dim=host.proj.out_features,
            num_heads=host.num_heads,
            dropout=probability(module, "attn_drop"),
            inner_dim=host.proj.in_features,
            causal=None if "is_causal" in arguments_of(type(module)) else False,
            class_token=has_class_token(parents),
            notes=tuple(notes_of(module)),
            warnings=(ROTARY,) if _is_rotary(module, parents) else (),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a `SwappedTimmAttention`."""
        return SwappedTimmAttention(mixer, module, {"attn_mask", "is_causal"})

    def weights(self, module: nn.Module) -> HostWeights:
        """Read `qkv` (or `q_proj`, `k_proj`, `v_proj`) and `proj`."""
        host: Any = module
        query, key, value = _split_maps(host)
        heads = host.num_heads
        query = _scaled(query, host, query.weight.shape[0] // heads)
        groups = query.weight.shape[0] // key.weight.shape[0]
        if groups > 1:
            key, value = (_repeated(part, groups, heads // groups) for part in (key, value))
        output = host.proj.weight
        if _layout(module) == "blocks":  # heads are interleaved by channel before `proj`
            output = output.unflatten(1, (-1, heads)).transpose(1, 2).flatten(1)
        return HostWeights(query, key, value, Projection(output, host.proj.bias))

    def macs(self, module: nn.Module, host: HostAttention, length: int) -> int | None:
        """Count multiply-accumulates.

        Cross-covariance attention (XCA) multiplies matrices of shape C / H x N.
        """
        if type(module).__name__ != "XCA":
            return super().macs(module, host, length)
        maps = sum(p.numel() for p in module.parameters() if p.dim() == 2)
        return length * (maps + 2 * host.dim * host.dim // host.num_heads)


def mixed(
    mixer: TokenMixer, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    check_causality(is_causal, mixer)
    padding = key_padding_mask(
        attn_mask, batch=x.shape[0], length=x.shape[1], causal=mixer.causal, per_query=True
    )
    return mixer(x, key_padding_mask=padding)


def _refusal(module: nn.Module, parents: Sequence[nn.Module]) -> str:
    kind = type(module).__name__
    if kind in _REFUSED:
        return _REFUSED[kind]
    if any(is_set(module, name) for name in RELATIVE) or "RelPos" in kind:
        return RELATIVE_BIAS
    takes_bias = any(name.startswith("shared_rel_pos") for name in arguments_of(type(module)))
    if takes_bias and any(
        is_set(p, n) for p in parents for n in ("rel_pos_bias", "shared_rel_pos")
    ):
        return RELATIVE_BIAS
    for name, part in module.named_children():
        if kind in _KNOWN and name in _MAPS and not is_linear(part):
            return not_plain(name, part)
    if kind not in _KNOWN or not has_maps(module):
        return f"{kind} is not attention on tokens (B, N, C) with qkv and proj"
    if type(module).__module__ in _CHANNELS_FIRST:
        return "it reads images (B, C, H, W) instead of tokens (B, N, C)"
    return misshapen(module)


def misshapen(host: Any) -> str:
    """Return why the shapes do not fit self-attention, or an empty string."""
    maps = host.qkv if is_set(host, "qkv") else host.q_proj
    if maps.in_features != host.proj.out_features:
        return f"it turns {maps.in_features} channels into {host.proj.out_features}"
    if host.proj.out_features % host.num_heads:
        return f"its {host.num_heads} heads do not divide its {host.proj.out_features} channels"
    return ""


def notes_of(module: nn.Module) -> list[str]:
    kind = type(module).__name__
    notes = [_NOTES[kind]] if kind in _NOTES else []
    if any(_is_layer(module, name) for name in ("q_norm", "k_norm")):
        notes.append("the host normalizes queries and keys (qk_norm), the mixer does not")
    if _is_layer(module, "norm") or _is_layer(module, "sub_norm"):
        notes.append("the host normalizes the attended values before proj, the mixer does not")
    if is_set(module, "gate"):
        notes.append("the host gates the attended values, the mixer does not")
    return notes


def _is_rotary(module: nn.Module, parents: Sequence[nn.Module]) -> bool:
    if is_set(module, "rope"):
        return True
    return "rope" in arguments_of(type(module)) and any(
        is_set(parent, "rope") for parent in parents
    )


def has_maps(module: nn.Module) -> bool:
    """Return whether a module has heads and Q/K/V/O projections of timm.

    The projections are `qkv` (or `q_proj`, `k_proj`, `v_proj`) and `proj`.
    """
    parts = ("qkv",) if is_set(module, "qkv") else ("q_proj", "k_proj", "v_proj")
    maps = (getattr(module, name, None) for name in (*parts, "proj"))
    return all(is_linear(part) for part in maps) and isinstance(
        getattr(module, "num_heads", None), int
    )


def _split_maps(host: Any) -> tuple[Projection, ...]:
    if not is_set(host, "qkv"):
        parts = (host.q_proj, host.k_proj, host.v_proj)
        return tuple(Projection(part.weight, part.bias) for part in parts)
    weights, bias = host.qkv.weight.chunk(3), host.qkv.bias
    if bias is not None:
        biases = bias.chunk(3)
    elif getattr(host, "q_bias", None) is not None:
        biases = (host.q_bias, None, host.v_bias)
    else:
        biases = (None, None, None)
    return tuple(Projection(w, b) for w, b in zip(weights, biases, strict=True))


def _scaled(query: Projection, host: Any, head_dim: int) -> Projection:
    """Scale queries for scores that are divided by sqrt(head_dim).

    The scores then match the scale of the host module.
    """
    factor = float(getattr(host, "scale", head_dim**-0.5)) * math.sqrt(head_dim)
    if math.isclose(factor, 1.0):
        return query
    bias = None if query.bias is None else query.bias * factor
    return Projection(query.weight * factor, bias)


def _repeated(part: Projection, groups: int, heads: int) -> Projection:
    """Repeat each key or value head for all queries that share it."""

    def repeat(tensor: Tensor) -> Tensor:
        by_head = torch.unflatten(tensor, 0, (heads, -1))
        return by_head.repeat_interleave(groups, 0).flatten(0, 1)

    return Projection(repeat(part.weight), None if part.bias is None else repeat(part.bias))


def probability(module: nn.Module, name: str) -> float:
    return float(getattr(getattr(module, name, None), "p", 0.0))


def _layout(module: nn.Module) -> str:
    home = type(module).__module__
    return "images" if home in _IMAGES else "blocks" if home in _BLOCKS else "tokens"


def is_set(module: nn.Module, name: str) -> bool:
    return getattr(module, name, None) is not None


def _is_layer(module: nn.Module, name: str) -> bool:
    return not isinstance(getattr(module, name, None), nn.Identity | None)
