"""Attention of timm vision transformers, recognized by class names and attributes.

rifflemix never imports timm. See `timm_copies` for attention that is derived or copied from timm.
"""

from __future__ import annotations

import copyreg
import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer, create_mixer
from rifflemix.surgery.adapters import (
    Adapter,
    HostAttention,
    SwappedAttention,
    forward_is_its_own,
    forward_is_of,
    has_class_token,
    is_linear,
    not_plain,
)
from rifflemix.surgery.masks import check_causality, key_padding_mask
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
    "ClassAttn": "in it the class token alone asks, at a cost linear in the tokens",
    "DiffParallelScalingBlock": "its attention and its MLP share one map",
    "ParallelScalingBlock": "its attention and its MLP share one map",
}
RELATIVE = (
    "attention_biases",
    "cpb_mlp",
    "meta_mlp",
    "rel_pos",
    "rel_pos_h",
    "relative_position_bias_table",
)
RELATIVE_BIAS = "it adds relative position biases to the scores, which a token mixer has not"
_NOTES = {
    "DiffAttention": "the host subtracts a second attention map, the mixer does not",
    "TalkingHeadAttn": "the host mixes its heads before and after the softmax, the mixer does not",
    "XCA": "the host's cross-covariance attention is linear in the tokens already",
}
ROTARY = (
    "rotary positions are lost: a token mixer takes none; without other positions in the model, "
    "a permutation-equivariant mixer cannot know the order of the tokens"
)
# _IMAGES: all tokens of an image (B, H, W, C) attend to each other. _BLOCKS: tokens attend only
# within their block (B, T, N, C).
_IMAGES = ("timm.models.volo", "timm.models.vision_transformer_sam")
_BLOCKS = ("timm.models.nest",)
_CHANNELS_FIRST = ("timm.models.fastvit",)


class SwappedTimmAttention(SwappedAttention):
    """Mixer with the interface of timm's `Attention`, followed by its output dropout.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.
    """

    def __init__(self, mixer: TokenMixer, original: Any) -> None:
        super().__init__(mixer, original)
        self.num_heads = original.num_heads
        self.layout = _layout(original)
        self.proj_drop = nn.Dropout(probability(original, "proj_drop")).train(original.training)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Mix the tokens and return them in the shape of `x`.

        Raises:
            InputError: the mask expresses more than padding and causality.
        """
        tokens = x
        if self.layout == "images":
            tokens = x.flatten(1, -2)
        elif self.layout == "blocks":
            tokens = x.flatten(0, -3)
        y: Tensor = self.proj_drop(mixed(self.mixer, tokens, attn_mask, is_causal))
        return y.reshape(x.shape)


class SwappedRotaryAttention(SwappedTimmAttention):
    """Mixer for host modules with rotary positions. It ignores them; the replacement warns."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        rope: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Mix the tokens, see `SwappedTimmAttention`; `rope` is ignored."""
        return super().forward(x, attn_mask, is_causal)


class SwappedBiasedAttention(SwappedTimmAttention):
    """Mixer for host modules with optional relative position biases. It rejects biases."""

    def forward(  # type: ignore[override]
        self, x: Tensor, shared_rel_pos_bias: Tensor | None = None
    ) -> Tensor:
        """Mix the tokens, see `SwappedTimmAttention`; biases raise InputError."""
        if shared_rel_pos_bias is not None:
            raise InputError(f"shared_rel_pos_bias: expected None, got a tensor; {RELATIVE_BIAS}")
        return super().forward(x)


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
            causal=None if "is_causal" in _arguments(module) else False,
            class_token=has_class_token(parents),
            notes=tuple(notes_of(module)),
            warnings=(ROTARY,) if _is_rotary(module, parents) else (),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Select the wrapper by the arguments of the host module's `forward`."""
        arguments = _arguments(module)
        if "rope" in arguments:
            return SwappedRotaryAttention(mixer, module)
        if any(name.startswith("shared_rel_pos") for name in arguments):
            return SwappedBiasedAttention(mixer, module)
        return SwappedTimmAttention(mixer, module)

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


class MixerAttention(nn.Module):
    """Token mixer with the constructor and call of timm's `Attention`.

    `attn_layer` derives classes from it.
    """

    settings: ClassVar[dict[str, Any]]
    num_layers: ClassVar[int]
    built: ClassVar[int]

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,
        device: Any = None,
        dtype: Any = None,
        **others: Any,
    ) -> None:
        super().__init__()
        cls = type(self)
        for name, wanted in {"qk_norm": qk_norm, "scale_norm": scale_norm, **others}.items():
            if wanted:
                mixer = cls.settings["name"]
                raise bad_argument(name, f"none: {mixer} has no such part", repr(wanted))
        layer_index = cls.built % cls.num_layers
        cls.built += 1
        self.mixer = create_mixer(
            dim=dim,
            num_heads=num_heads,
            layer_index=layer_index,
            num_layers=cls.num_layers,
            dropout=attn_drop,
            **cls.settings,
        ).to(device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Mix the tokens (B, N, C)."""
        y: Tensor = self.proj_drop(mixed(self.mixer, x, attn_mask, is_causal))
        return y


class _Made(type):
    """Metaclass of the classes from `attn_layer`; it makes their settings picklable.

    timm stores its arguments in the model, including this class.
    """

    settings: dict[str, Any]
    num_layers: int


def _make(settings: dict[str, Any], num_layers: int) -> _Made:
    values = {"settings": settings, "num_layers": num_layers, "built": 0}
    return _Made("MixerAttention", (MixerAttention,), {"__module__": __name__, **values})


copyreg.pickle(_Made, lambda cls: (_make, (cls.settings, cls.num_layers)))


def attn_layer(
    mixer: str, *, num_layers: int = 1, max_length: int | None = None, **options: Any
) -> type[nn.Module]:
    """Create a class for the argument `attn_layer` of timm models.

    Use it as `timm.create_model(name, attn_layer=attn_layer("tssa"))`.

    The class accepts the arguments of timm's `Attention`. timm does not pass the layer index. The
    class therefore counts its instances and restarts after `num_layers`. You can pickle models that
    contain the class.

    Args:
        mixer: name in `list_mixers()`.
        num_layers: number of layers in the model, for mixers that depend on the depth.
        max_length: maximum number of tokens per sequence.
        options: options of the mixer.

    Raises:
        InputError: the error occurs when timm builds a layer. `qk_norm` or `scale_norm` is set,
            which mixers do not support, or the arguments do not suit the mixer.
    """
    made = _make({"name": mixer, "max_length": max_length, **options}, num_layers)
    return cast(type[nn.Module], made)


def mixed(mixer: TokenMixer, x: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    check_causality(is_causal, mixer)
    padding = key_padding_mask(
        attn_mask, batch=x.shape[0], length=x.shape[1], causal=mixer.causal, per_query=True
    )
    y: Tensor = mixer(x, key_padding_mask=padding)
    return y


def _refusal(module: nn.Module, parents: Sequence[nn.Module]) -> str:
    kind = type(module).__name__
    if kind in _REFUSED:
        return _REFUSED[kind]
    if any(is_set(module, name) for name in RELATIVE) or "RelPos" in kind:
        return RELATIVE_BIAS
    takes_bias = any(name.startswith("shared_rel_pos") for name in _arguments(module))
    if takes_bias and any(
        is_set(p, n) for p in parents for n in ("rel_pos_bias", "shared_rel_pos")
    ):
        return RELATIVE_BIAS
    for name, part in module.named_children():
        if kind in _KNOWN and name in _MAPS and not is_linear(part):
            return not_plain(name, part)
    if kind not in _KNOWN or not has_maps(module):
        return f"{kind} is no attention of tokens (B, N, C) through qkv and proj"
    if type(module).__module__ in _CHANNELS_FIRST:
        return "it reads images (B, C, H, W), no tokens (B, N, C)"
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
        notes.append("the host normalises queries and keys (qk_norm), the mixer does not")
    if _is_layer(module, "norm") or _is_layer(module, "sub_norm"):
        notes.append("the host normalises what it attended to before proj, the mixer does not")
    if is_set(module, "gate"):
        notes.append("the host gates what it attended to, the mixer does not")
    return notes


def _is_rotary(module: nn.Module, parents: Sequence[nn.Module]) -> bool:
    if is_set(module, "rope"):
        return True
    return "rope" in _arguments(module) and any(is_set(parent, "rope") for parent in parents)


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


def _arguments(module: nn.Module) -> list[str]:
    return list(inspect.signature(type(module).forward).parameters)


def probability(module: nn.Module, name: str) -> float:
    return float(getattr(getattr(module, name, None), "p", 0.0))


def _layout(module: nn.Module) -> str:
    home = type(module).__module__
    return "images" if home in _IMAGES else "blocks" if home in _BLOCKS else "tokens"


def is_set(module: nn.Module, name: str) -> bool:
    return getattr(module, name, None) is not None


def _is_layer(module: nn.Module, name: str) -> bool:
    return not isinstance(getattr(module, name, None), nn.Identity | None)
