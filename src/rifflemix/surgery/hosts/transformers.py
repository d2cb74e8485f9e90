"""Self-attention of Hugging Face transformers, recognized by its structure.

Since version 5 nearly all attention modules of transformers have the same structure.
`forward(hidden_states, ...)` returns `attn_output, attn_weights`, and the four projections have one
of a few sets of names. rifflemix can replace modules with this structure and without other
parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.compat import values_can_be_read
from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    Adapter,
    HostAttention,
    SwappedAttention,
    class_names,
    forward_is_its_own,
    forward_is_of,
    has_class_token,
    is_linear,
)
from rifflemix.surgery.hosts.transformers_lengths import (
    embeddings_around,
    image_length,
    longest,
)
from rifflemix.surgery.hosts.transformers_lost import NORM, lost, notes_of
from rifflemix.surgery.hosts.transformers_maps import (
    maps_of,
    misshapen,
    num_heads,
    read_weights,
    unreadable,
)
from rifflemix.surgery.hosts.transformers_masks import padding_of
from rifflemix.surgery.hosts.transformers_source import (
    arguments_of,
    keeps_groups_apart,
    source_of,
)
from rifflemix.surgery.masks import check_causality
from rifflemix.surgery.triangles import is_square, is_triangle, triangles
from rifflemix.surgery.weights import HostWeights

# Modules that return a third value are not supported: mixers return two.
_ENDS_IN = re.compile(
    r"return (attn_output|output|context_layer), (attn_weights(_reshaped)?|attention_probs)$",
    re.MULTILINE,
)
_OF_IMAGES = re.compile(r"height, width, _ = hidden_states.shape")
_OF_ANOTHER_SEQUENCE = ("encoder_hidden_states", "key_value_states")
_CROSS = re.compile(r"cross|encoder_attn|(?<![a-z])x_attn|pooling", re.IGNORECASE)
_CROSS_AROUND = re.compile(r"cross_?att", re.IGNORECASE)
# Host models may pass the ends of packed sequences in these arguments instead of the mask.
_OF_PACKED_SEQUENCES = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
CACHES = ("past_key_values", "layer_past", "cache")
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
    *_OF_ANOTHER_SEQUENCE,
}
# A dropout after the output projection belongs to the host module, not to the mixer.
_DROPOUTS = ("resid_dropout", "residual_dropout", "out_drop", "projection_dropout")
_BIASED = "it adds a bias of relative positions to its scores, and a token mixer has no scores"
_IN_BLOCKS = (
    "it attends to some blocks of tokens alone (block_sparse); set attention_type='original_full' "
    "in the model's config, or in from_pretrained"
)
# Classes with `is_causal` that use only the mask. In cross-modal layers it shows all tokens.
_OF_MASKS_ALONE = {"BridgeTowerSelfAttention"}
_WITH_BIAS = ("T5", "MT5", "UMT5", "LongT5", "SwitchTransformers", "Udop", "Pop2Piano")
_REFUSED = {
    "DisentangledSelfAttention": "its attention is disentangled: relative positions are part of "
    "its scores, and a token mixer has no scores",
    "GitSelfAttention": "it sees all tokens of an image, but of the text behind only earlier ones, "
    "and a token mixer hides later tokens of both or of neither",
    "MPNetSelfAttention": _BIASED,
    "BigBirdBlockSparseAttention": _IN_BLOCKS,
    "BigBirdPegasusBlockSparseAttention": _IN_BLOCKS,
    **{f"{name}Attention": _BIASED for name in _WITH_BIAS},
}


class SwappedTransformersAttention(SwappedAttention):
    """Mixer with the interface of transformers attention. It returns (outputs, None).

    During generation the cache of the host model contains the streaming state of the mixer instead
    of keys and values. See `rifflemix.surgery.hosts.transformers_cache`.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.
    """

    def __init__(self, mixer: TokenMixer, original: nn.Module) -> None:
        super().__init__(mixer, original)
        self.names = tuple(inspect.signature(type(original).forward).parameters)[2:]
        self.layer_idx = getattr(original, "layer_idx", getattr(original, "layer_id", None))
        self.is_causal = mixer.causal
        self.hidden_anyway = bool(triangles(original))
        found = (getattr(original, name, None) for name in _DROPOUTS)
        part = next((part for part in found if part is not None), None)
        if isinstance(part, int | float):
            part = nn.Dropout(part).train(original.training)
        self.output_dropout = part

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Mix the tokens (B, N, C); return None instead of attention weights.

        Raises:
            InputError: attention weights are requested, or another sequence is passed. The mask
                expresses more than padding and causality. The cache cannot store the state of the
                mixer.
        """
        arguments = {**dict(zip(self.names, args, strict=False)), **kwargs}
        self._check(arguments)
        mask = arguments.get("attention_mask")
        if mask is None and len(hidden_states) == 1 and reads_positions(self.original):
            check_one_sequence(arguments.get("position_ids"))
        caches = (arguments.get(name) for name in CACHES)
        past = next((cache for cache in caches if cache is not None), None)
        if past is None:
            padding = padding_of(
                mask, hidden_states, causal=self.mixer.causal, hidden_anyway=self.hidden_anyway
            )
            y = self.mixer(hidden_states, key_padding_mask=padding)
        else:
            from rifflemix.surgery.hosts.transformers_cache import continue_stream

            y = continue_stream(
                self.mixer, hidden_states, mask, past, self.layer_idx, self.hidden_anyway
            )
        return (y if self.output_dropout is None else self.output_dropout(y)), None

    def _check(self, arguments: dict[str, Any]) -> None:
        for name in _OF_ANOTHER_SEQUENCE:
            if arguments.get(name) is not None:
                raise bad_argument(
                    name, "None: a token mixer reads one sequence", "another sequence"
                )
        check_not_packed(arguments)
        # CLIP's text encoder passes is_causal, and a mask only if there is padding.
        check_causality(arguments.get("is_causal"), self.mixer)
        if arguments.get("output_attentions") or weights_are_collected():
            raise bad_argument(
                "output_attentions",
                f"False: {self.mixer.card.title} has no attention weights",
                True,
            )


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
            warnings=lost(module),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a `SwappedTransformersAttention`."""
        return SwappedTransformersAttention(mixer, module)

    def weights(self, module: nn.Module) -> HostWeights | None:
        """Read the projections with `read_weights`."""
        maps = maps_of(module)
        return None if maps is None else read_weights(module, maps)


def check_not_packed(arguments: Mapping[str, Any]) -> None:
    """Raise if a host model passes the ends of packed sequences."""
    for name in _OF_PACKED_SEQUENCES:
        if arguments.get(name) is not None:
            raise bad_argument(
                name,
                "None: sequences packed into one row would mix",
                "the ends of packed sequences",
                "pad them, or keep the host's attention",
            )


def reads_positions(module: Any) -> bool:
    """Return whether the host's flash attention detects packed sequences by positions."""
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return "flash" in str(implementation) and values_can_be_read()


def check_one_sequence(positions: Tensor | None) -> None:
    """Raise if positions (1, N) restart, since the sequence is then packed.

    Other attention implementations receive a mask in this case.
    """
    if positions is not None and positions.dim() == 2 and bool((positions.diff() != 1).any()):
        raise bad_argument(
            "position_ids",
            "those of one sequence: sequences packed into one row would mix",
            "positions that start again",
            "pad them, or keep the host's attention",
        )


def weights_are_collected() -> bool:
    """Return whether a transformers model is collecting attention weights.

    Some host models collect weights by hooks and do not pass `output_attentions` to the attention.
    """
    if torch.compiler.is_compiling():
        return False
    from transformers.utils import output_capturing

    return "attentions" in (output_capturing._active_collector.get() or ())


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
    arguments = arguments_of(cls)
    if arguments[:1] != ("hidden_states",):
        return False
    return _ENDS_IN.search(source_of(cls)) is not None


def _refusal(module: nn.Module) -> str:
    """Return why this class cannot be replaced, or an empty string."""
    names = class_names(module)
    if _OF_IMAGES.search(source_of(_class(module))):
        return "it reads images (B, H, W, C), no tokens (B, N, C)"
    config: Any = getattr(module, "config", None)
    if keeps_groups_apart(_class(module)) and config.group_detr > 1:
        return (
            f"in training its queries are {config.group_detr} groups (group_detr) that do not see "
            "each other, and a token mixer would mix them"
        )
    return next((reason for name, reason in _REFUSED.items() if name in names), "")


def _unknown_arguments(module: nn.Module) -> str:
    unknown = sorted(set(arguments_of(_class(module))) - _KNOWN_ARGUMENTS)
    return f"its forward takes {', '.join(unknown)}, which a token mixer has no use for" * bool(
        unknown
    )


def _unknown_parts(module: nn.Module) -> str:
    """Return a reason for refusal if the structure is not supported.

    Reasons are parameters other than the four projections, a window, and unreadable weights.
    """
    maps = maps_of(module)
    if maps is None:
        return "its maps cannot be read"
    reason = unreadable(module, maps)
    if reason:
        return reason
    parts = {name.partition(".")[0] for name, _ in module.named_parameters()}
    others = [name for name in sorted(parts - {*maps.names}) if not NORM.fullmatch(name)]
    if others:
        return f"a token mixer has no place for its {', '.join(others)}"
    reason = _window(module)
    if reason:
        return reason
    buffers = module.named_buffers(recurse=False)
    patterns = [name for name, t in buffers if is_square(t) and not is_triangle(t)]
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
    if not window or _sees_all(module):  # a window of 0 means no window
        return ""
    mixed = getattr(config, "layer_types", getattr(config, "attention_types", None))
    setting = "sliding_window=None" if mixed is None else "this layer's type to full attention"
    return (
        f"it sees a sliding window of {window} tokens; set {setting} in the model's config if it "
        "need not"
    )


def _sees_all(module: nn.Module) -> bool:
    """Return whether the config defines full attention for this layer."""
    return _kind(module) == "full_attention"


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
    return bool(said or triangles(module))


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
