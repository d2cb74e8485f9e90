"""Self-attention of Hugging Face transformers, recognized by its structure.

Since version 5 nearly all attention modules of transformers have the same structure.
`forward(hidden_states, ...)` returns `attn_output, attn_weights`, and the four projections have one
of a few sets of names. rifflemix can replace modules with this structure and without other
parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import nn

from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    Adapter,
    HostAttention,
    arguments_of,
    class_names,
    forward_is_its_own,
    forward_is_of,
    has_class_token,
    is_linear,
)
from rifflemix.surgery.hosts.transformers_properties import (
    NORM,
    adds_and_norms,
    embeddings_around,
    image_length,
    keeps_groups_apart,
    longest,
    maps_of,
    misshapen,
    notes_of,
    num_heads,
    read_weights,
    source_of,
    unreadable,
    warnings_of,
)
from rifflemix.surgery.hosts.transformers_swapped import (
    CACHES,
    OF_ANOTHER_SEQUENCE,
    SwappedNormedAttention,
    SwappedTransformersAttention,
)
from rifflemix.surgery.masks import causal_buffers, is_causal_mask, is_square
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.weights import HostWeights

# Modules that return a third value are not supported: mixers return two.
_ENDS_IN = re.compile(
    r"return (attn_output|output|context_layer), (attn_weights(_reshaped)?|attention_probs)$",
    re.MULTILINE,
)
_OF_IMAGES = re.compile(r"height, width, _ = hidden_states.shape")
_CROSS = re.compile(r"cross|encoder_attn|(?<![a-z])x_attn|pooling", re.IGNORECASE)
_CROSS_AROUND = re.compile(r"cross_?att", re.IGNORECASE)
_KNOWN_ARGUMENTS = {
    "self",
    "hidden_states",
    "attention_mask",
    "position_embeddings",
    "position_ids",
    "cache_position",
    "output_attentions",
    "use_cache",
    "encoder_attention_mask",
    *CACHES,
    *OF_ANOTHER_SEQUENCE,
}
_BIASED = "it adds a bias of relative positions to its scores, but token mixers have no scores"
_IN_BLOCKS = (
    "it attends to some blocks of tokens only (block_sparse); set attention_type='original_full' "
    "in the model's config, or in from_pretrained"
)
# Classes with `is_causal` that use only the mask. In cross-modal layers it shows all tokens.
_OF_MASKS_ALONE = {"BridgeTowerSelfAttention"}
_WITH_BIAS = ("T5", "MT5", "UMT5", "LongT5", "SwitchTransformers", "Udop", "Pop2Piano")
_REFUSED = {
    "DisentangledSelfAttention": "its attention is disentangled: relative positions are part of "
    "its scores, but token mixers have no scores",
    "GitSelfAttention": "it sees all tokens of an image, but of the text behind only earlier ones, "
    "and a token mixer hides later tokens of both or of neither",
    "MPNetSelfAttention": _BIASED,
    "BigBirdBlockSparseAttention": _IN_BLOCKS,
    "BigBirdPegasusBlockSparseAttention": _IN_BLOCKS,
    **{f"{name}Attention": _BIASED for name in _WITH_BIAS},
}


class TransformersAttention(Adapter):
    """Adapter for self-attention of transformers: BERT, ViT, GPT-2, Llama and similar models."""

    name = "transformers"
    has_cache = True

    def matches(self, module: nn.Module) -> bool:
        """Return whether a module has the known structure of transformers attention.

        Derived classes also match.
        """
        if forward_is_its_own(module):
            return False
        return _is_attention(_class(module)) and (
            _refusal(module) != "" or maps_of(module) is not None
        )

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe the attention, with warnings about lost features."""
        if _is_cross(module, parents):
            return HostAttention(dim=1, num_heads=1, cross=True)
        refusal = _refusal(module) or _unknown_arguments(module) or _unknown_parts(module)
        refusal = refusal or (_BIASED if _are_biased(parents) else "")
        maps = maps_of(module)
        if refusal or maps is None:
            return HostAttention(dim=1, num_heads=1, refusal=refusal)
        inner, dim = read_weights(module, maps).value.weight.shape
        images = image_length(parents)
        return HostAttention(
            dim=dim,
            num_heads=num_heads(module, maps),
            causal=_is_causal(module),
            dropout=_dropout(module),
            inner_dim=inner,
            max_length=None if images else longest(parents),
            usual_length=images,
            class_token=has_class_token(embeddings_around(parents)),
            notes=notes_of(module),
            warnings=warnings_of(module),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return the module that replaces the attention."""
        if adds_and_norms(_class(module)):
            return SwappedNormedAttention(mixer, module)
        return SwappedTransformersAttention(mixer, module)

    def weights(self, module: nn.Module) -> HostWeights | None:
        """Read the projections with `read_weights`."""
        maps = maps_of(module)
        return None if maps is None else read_weights(module, maps)


def _class(module: nn.Module) -> Any:
    return type(module)


@cache
def _is_attention(cls: Any) -> bool:
    """Return whether a class has the structure of transformers attention."""
    if not any(base.__module__.startswith("transformers.models.") for base in cls.__mro__):
        return False
    if not forward_is_of(cls, "transformers"):
        return False
    if any(base.__name__ in _REFUSED for base in cls.__mro__):
        return True
    if next(iter(arguments_of(cls)), None) != "hidden_states":
        return False
    return _ENDS_IN.search(source_of(cls)) is not None


def _refusal(module: nn.Module) -> str:
    """Return why this class cannot be replaced, or an empty string."""
    names = class_names(module)
    if _OF_IMAGES.search(source_of(_class(module))):
        return "it reads images (B, H, W, C) instead of tokens (B, N, C)"
    config: Any = getattr(module, "config", None)
    if keeps_groups_apart(_class(module)) and config.group_detr > 1:
        return (
            f"in training its queries are {config.group_detr} groups (group_detr) that do not see "
            "each other, and a token mixer would mix them"
        )
    return next((reason for name, reason in _REFUSED.items() if name in names), "")


def _unknown_arguments(module: nn.Module) -> str:
    unknown = sorted(set(arguments_of(_class(module))) - _KNOWN_ARGUMENTS)
    return (
        f"its forward takes {', '.join(unknown)}, but token mixers cannot use these arguments"
        * bool(unknown)
    )


def _unknown_parts(module: nn.Module) -> str:
    """Return a reason for refusal if the structure is not supported.

    Reasons are parameters other than the four projections, a window, and unreadable weights.
    """
    maps = maps_of(module)
    if maps is None:
        return "its projections cannot be read"
    reason = unreadable(module, maps)
    if reason:
        return reason
    parts = {name.partition(".")[0] for name, _ in module.named_parameters()}
    kept = {*maps.names, *(("LayerNorm",) if adds_and_norms(_class(module)) else ())}
    others = [name for name in sorted(parts - kept) if not NORM.fullmatch(name)]
    if others:
        return f"a token mixer has no place for its {', '.join(others)}"
    reason = _window(module)
    if reason:
        return reason
    buffers = module.named_buffers(recurse=False)
    patterns = [name for name, t in buffers if is_square(t) and not is_causal_mask(t)]
    if patterns:
        return f"a token mixer has no scores for its {', '.join(patterns)}"
    return misshapen(module, maps)


def _window(module: nn.Module) -> str:
    """Return why windowed attention cannot be replaced, or an empty string."""
    config = getattr(module, "config", None)
    window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    if getattr(module, "attention_type", "") == "local":  # GPT-Neo
        window = getattr(config, "window_size", None)
    if _kind(module) == "chunked_attention":
        return (
            f"it sees a chunk of {getattr(config, 'attention_chunk_size', '?')} tokens; set this "
            "layer's type to full attention in the model's config if it need not"
        )
    if not window or _kind(module) == "full_attention":  # a window of 0 means no window
        return ""
    mixed = getattr(config, "layer_types", getattr(config, "attention_types", None))
    setting = "sliding_window=None" if mixed is None else "this layer's type to full attention"
    return (
        f"it sees a sliding window of {window} tokens; set {setting} in the model's config if it "
        "need not"
    )


def _kind(module: nn.Module) -> str:
    """Return the layer type in the config, or an empty string."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None) or ()
    index = getattr(module, "layer_idx", None)
    return str(kinds[index]) if index is not None and index < len(kinds) else ""


def _are_biased(parents: Sequence[nn.Module]) -> bool:
    """Return whether a parent adds relative position biases to the mask (BEiT)."""
    parts = (part for parent in parents for part in parent.children())
    return any(type(part).__name__.endswith("RelativePositionBias") for part in parts)


def _is_causal(module: nn.Module) -> bool:
    """Return whether attributes or a mask buffer indicate causal attention."""
    said = getattr(module, "is_decoder", False)
    if type(module).__name__ not in _OF_MASKS_ALONE:
        said = said or getattr(module, "is_causal", False)
    return bool(said or causal_buffers(module))


def _dropout(module: nn.Module) -> float:
    """Return the dropout probability of attention weights, under any known name."""
    for name in ("attention_dropout", "attn_dropout", "dropout", "dropout_prob"):
        value = getattr(module, name, None)
        if value is not None:
            return float(value.p if isinstance(value, nn.Dropout) else value)
    return 0.0


def _is_cross(module: nn.Module, parents: Sequence[nn.Module]) -> bool:
    """Return whether the structure or name indicates cross-attention."""
    if getattr(module, "is_cross_attention", False) or _reads_two_widths(module):
        return True
    own, *around = _names_in_layer(module, parents)
    names = f"{type(module).__name__} {own}"
    return bool(_CROSS.search(names) or any(_CROSS_AROUND.search(name) for name in around))


def _names_in_layer(module: nn.Module, parents: Sequence[nn.Module]) -> list[str]:
    """Return the module's attribute name, and names around it in the layer.

    For each module around it, the entry contains the class and attribute name. The innermost
    numbered module ends the list.
    """
    names: list[str] = []
    for inside, parent in zip([module, *reversed(parents)], reversed(parents), strict=False):
        name = next((name for name, child in parent.named_children() if child is inside), "")
        if name.isdecimal():
            break
        names.append(f"{type(inside).__name__} {name}" if names else name)
    return names or [""]


def _reads_two_widths(module: nn.Module) -> bool:
    """Return whether keys and queries have different input widths."""
    maps = maps_of(module)
    parts = [] if maps is None else [getattr(module, name) for name in (maps.query, maps.key)]
    return len({part.in_features for part in parts if is_linear(part)}) > 1
