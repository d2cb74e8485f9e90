"""Mixers as attention implementations of transformers (`attn_implementation="rifflemix_linear"`).

The host model keeps its projections, positions and cache. The mixer replaces only the operator on
queries, keys and values, so mixers with other weights are not supported. Each mixer also needs an
entry in the mask interface of transformers. Without the entry transformers passes no mask and
reports nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer, create_mixer, mixer_card, mixer_class, usable_mixers
from rifflemix.mixers.baselines.bigbird import BigBird
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.surgery.hosts.transformers_masks import padding_of
from rifflemix.surgery.hosts.transformers_swapped import check_not_packed, weights_are_collected

PREFIX = "rifflemix_"
SCHEDULED = (Butterfly, BigBird)
"""Mixers that compute a different function in every layer."""
_MAPS = ("qkv", "proj")
_KEPT = "_rifflemix_operator"
_OWN = "its own attention code"
_BY_MASK = "attention that is causal only by its mask"
_SPARSE = (
    "axk2", "deepseek_v32", "deepseek_v4", "dots3_note_text", "glm5_next_text", "glm_moe_dsa",
    "hy_v4", "minimax_m3_vl_text", "mistral_large4_text", "qwen4_exp_text",
)  # fmt: skip
_REFUSED = {
    **dict.fromkeys(("bigbird_pegasus", "git"), _OWN),  # in one of their two parts
    "aimv2_text_model": _BY_MASK,
    "doge": "attention that adds to its mask",
    "gemma4_audio": _OWN,
    **dict.fromkeys(_SPARSE, "attention that chooses its keys by a mask"),
}
_UNKNOWN = ("softcap", "s_aux", "position_bias", "cu_seq_lens_q", "cu_seq_lens_k")


def register_attention() -> None:
    """Register every mixer that is only an operator, as "rifflemix_" + name."""
    for name in usable_mixers():
        if is_operator(name):
            AttentionInterface.register(PREFIX + name, partial(attend, name))
            AttentionMaskInterface.register(PREFIX + name, padding_alone)


def is_operator(name: str) -> bool:
    """Return whether a mixer is a function of Q, K and V.

    The mixer may have one input and one output projection, and no other weights or buffers.
    """
    try:
        with torch.device("meta"):  # meta tensors do not consume random numbers
            mixer = create_mixer(name, 8, num_heads=2, max_length=16)
    except InputError:  # a user's mixer that needs more arguments
        return False
    maps = [part.qkv for part in mixer.modules() if hasattr(part, "qkv")]
    owners = {key.rpartition(".")[0].rpartition(".")[2] for key in mixer.state_dict()}
    has_buffers = any(True for _ in mixer.buffers())
    return (
        owners == set(_MAPS) and not has_buffers and all(type(part) is nn.Linear for part in maps)
    )


def attend(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Run a mixer with the interface of an attention function in transformers.

    With a cache there are fewer queries than keys. The function then computes the outputs of all
    tokens, and returns only the outputs of new tokens. This is correct for every operator, but the
    cost grows with the sequence length.

    Args:
        name: name of the mixer.
        module: attention module of the host model. It also stores the operator between calls.
        query: (B, H, Q, D).
        key: (B, H or fewer, K, D). Heads that several queries share are repeated.
        value: same shape as `key`.
        attention_mask: mask from `padding_alone`, or a mask of the caller (B, 1, Q, K).
        scaling: factor of the scores. Queries are multiplied by its ratio to 1 / sqrt(D).
        dropout: dropout probability of the mixing weights. It is 0 outside of training.
        is_causal: whether to hide later tokens. Default: as in the module.
        others: other arguments of the host model.

    Returns:
        (B, Q, H, D), and None instead of attention weights.

    Raises:
        InputError: the module is cross-attention, or is causal while the mixer is bidirectional.
            The mask expresses more than padding and causality. The host model changes the scores in
            other ways, or requests attention weights.
    """
    causal = _is_causal(module) if is_causal is None else bool(is_causal)
    _check(name, module, causal, query, key, value, others)
    heads, length, width = query.shape[1:]
    key, value = (part.repeat_interleave(heads // part.shape[1], 1) for part in (key, value))
    factor = 1.0 if scaling is None else scaling * math.sqrt(width)
    before = key.shape[2] - length
    query = F.pad(query if math.isclose(factor, 1.0) else query * factor, (0, 0, before, 0))
    x = torch.cat([part.transpose(1, 2).flatten(2) for part in (query, key, value)], -1)
    operator = _operator(name, module, causal, heads, width, dropout)
    y = operator(x, key_padding_mask=padding_of(attention_mask, x, causal=causal))
    return y[:, before:].unflatten(-1, (heads, width)), None


def padding_alone(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Create the mask for `attend` in the mask interface of transformers.

    If the mask expresses more than padding and causality (packed sequences, windows), the function
    returns all of it, (B, 1, Q, K). `attend` rejects such a mask with a specific message.

    Returns:
        (B, K) bool, True = keep; None without a mask; or the whole mask (B, 1, Q, K).

    Raises:
        InputError: the mask is for cross-attention. The cache has a fixed size, so some keys are
            not tokens. The host model has its own attention code and would add the mask to its
            scores. The host model is causal only through its mask.
    """
    both_ways = mask_function is bidirectional_mask_function
    _check_host(options.get("config"), mask_function is causal_mask_function)
    if both_ways and q_length != kv_length:
        raise _not_self_attention(f"a mask of {q_length} tokens", "a token mixer")
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            **options,
        )
    if isinstance(q_offset, Tensor) or q_offset + q_length != kv_offset + kv_length:
        raise bad_argument(
            "past_key_values",
            "a cache that grows (DynamicCache, the default of generate)",
            f"{kv_length} keys for {q_length} tokens from {q_offset} on",
        )
    return None if attention_mask is None else attention_mask[:, kv_offset:][:, :kv_length]


def _not_self_attention(what: str, title: str) -> InputError:
    return InputError(
        f"attn_implementation: expected self-attention, got {what} on another sequence, but "
        f"{title} reads one sequence; set it for the encoder alone, or use "
        "rifflemix.replace_attention"
    )


def _check_host(config: Any, is_causal: bool) -> None:
    kind: Any = type(config)
    reason = None if torch.compiler.is_compiling() else _refusal(kind)
    if is_causal and getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        reason = _BY_MASK  # PaliGemma has this setting in its text model
    if reason:
        raise bad_argument(
            "attn_implementation",
            "a model that requests an attention function",
            f"{kind.__name__} with {reason}",
            "use rifflemix.replace_attention",
        )


@cache
def _refusal(config: type) -> str | None:
    """Return why no implementation fits the models of a config.

    The result is None for supported models and for models of users.
    """
    models = [
        cls
        for cls in _derived(PreTrainedModel)
        if cls.config_class is config and cls.__module__.startswith("transformers.")
    ]
    reason = _REFUSED.get(getattr(config, "model_type", ""))
    if reason or not models or any(cls._can_set_attn_implementation() for cls in models):
        return reason
    return _OWN


def _derived(cls: Any) -> Iterator[Any]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _derived(derived)


def _is_causal(module: Any) -> bool:
    config = getattr(module, "config", None)
    return bool(getattr(module, "is_causal", False)) and getattr(config, "is_causal", True)


def _check(
    name: str,
    module: Any,
    causal: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    others: dict[str, Any],
) -> None:
    title = mixer_card(name).title
    if causal and not mixer_card(name).causal:
        raise bad_argument(
            "attn_implementation", "a mixer that can be causal", f"{name}, a bidirectional mixer"
        )
    if _is_cross(module, causal) or not (causal or query.shape[2] == key.shape[2]):
        raise _not_self_attention(type(module).__name__, title)
    if query.shape[-1] != value.shape[-1]:
        raise bad_argument("value", f"{query.shape[-1]} channels a head", value.shape[-1])
    check_not_packed(others)
    for argument in _UNKNOWN:
        if others.get(argument) is not None:
            raise bad_argument(argument, f"none: {title} has no scores to change", "some")
    if others.get("output_attentions") or weights_are_collected():
        raise bad_argument("output_attentions", f"False: {title} has no attention weights", True)


def _is_cross(module: Any, causal: bool) -> bool:
    """Return whether a module of transformers is cross-attention.

    The class name, a flag, or a decoder without causality indicates it.
    """
    if "Cross" in type(module).__name__ or getattr(module, "is_cross_attention", False):
        return True
    return bool(getattr(module, "is_decoder", False)) and not causal


def _operator(
    name: str, module: nn.Module, causal: bool, heads: int, width: int, dropout: float
) -> TokenMixer:
    """Return the mixer between the host's projections, cached per configuration."""
    form = (name, causal, heads, width, dropout)
    kept = getattr(module, _KEPT, None)
    if kept is None or kept[0] != form:
        # A tuple keeps the mixer out of the submodules, so the state_dict does not change.
        kept = (form, _build(*form, module))
        setattr(module, _KEPT, kept)
    return kept[1]


def _build(
    name: str, causal: bool, heads: int, width: int, dropout: float, module: Any
) -> TokenMixer:
    config = getattr(module, "config", None)
    layer = getattr(module, "layer_idx", None)
    if layer is None and issubclass(mixer_class(name), SCHEDULED):
        raise bad_argument(
            "attn_implementation",
            "attention that knows its layer_idx",
            type(module).__name__,
            f"{name} differs from layer to layer; use rifflemix.replace_attention",
        )
    layer = layer or 0
    longest = getattr(config, "max_position_embeddings", None)
    with torch.device("meta"):  # the projections are replaced by identities below
        mixer = create_mixer(
            name,
            heads * width,
            num_heads=heads,
            max_length=longest if isinstance(longest, int) else None,
            layer_index=layer,
            num_layers=max(layer + 1, getattr(config, "num_hidden_layers", None) or 1),
            causal=causal,
            dropout=dropout,
        ).train(dropout > 0)
    for part in mixer.modules():
        if hasattr(part, "qkv"):
            part.qkv, part.proj = nn.Identity(), nn.Identity()
        if isinstance(part, TokenMixer):
            part.dim *= 3  # the input is q, k and v concatenated
    return mixer
