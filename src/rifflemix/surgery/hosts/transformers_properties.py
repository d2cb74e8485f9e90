"""Properties of transformers attention: from source code, features that are lost, and lengths.

Most of these classes are from transformers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor, nn

_TURNS = re.compile(r"rotary|(?<![a-z])rope", re.IGNORECASE)
_TURNS_BY_WINDOW = re.compile(r"if self\.sliding_window is (not None|None or self\.is_sliding)")
_TEMPERATURE = re.compile(r"query_states \* (attn_scales|get_llama_4_attn_scale\()")
_GATE = re.compile(r"query_states, gate = torch\.chunk\(\s*self\.q_proj\(")

_NORMED = re.compile(r"self\.LayerNorm\(hidden_states \+ attn_output\)")


@cache
def source_of(cls: Any) -> str:
    """Return the source code of `forward`, or an empty string."""
    return text_of(cls.forward)


def text_of(part: Any) -> str:
    """Return the source code of an object, or an empty string."""
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return ""


def is_rotary(cls: Any) -> bool:
    """Return whether queries and keys have rotary positions."""
    return _TURNS.search(source_of(cls)) is not None


def is_rotary_by_window(cls: Any) -> bool:
    """Return whether the window decides about rotary positions (Cohere 2, EXAONE 4)."""
    return _TURNS_BY_WINDOW.search(source_of(cls)) is not None


def adds_positions(cls: Any) -> bool:
    """Return whether positions are added before the Q/K projections (DETR)."""
    return "hidden_states + position_embeddings" in source_of(cls)


def grows_with_position(cls: Any) -> bool:
    """Return whether queries have a position-dependent factor (Llama 4)."""
    return _TEMPERATURE.search(source_of(cls)) is not None


def keeps_groups_apart(cls: Any) -> bool:
    """Return whether tokens are split into separate groups during training."""
    return "self.config.group_detr" in source_of(cls)


def has_gate(cls: Any) -> bool:
    """Return whether the query projection also computes a gate for each output."""
    return _GATE.search(source_of(cls)) is not None


def adds_and_norms(cls: Any) -> bool:
    """Return whether the residual connection and its LayerNorm are in the attention (ALBERT)."""
    return _NORMED.search(source_of(cls)) is not None


NORM = re.compile(r"(q|k|v|qk|query|key|value)_?(layer)?_?norm")
_ROTARY = (
    "{name}: the rotary positions of its queries and keys are lost; without other positions in the "
    "model, a permutation-equivariant mixer knows the order of tokens only if it is causal"
)
_ADDED = "{name}: the positions that it adds to its queries and keys are lost"
_NORMS = "{name}: the norms of its queries and keys are lost"
_VALUE_NORM = "{name}: the norm of its values is lost"
_CAP = "{name}: the cap on its scores (attn_logit_softcapping) is lost"
_TEMPERATURE_NOTE = "{name}: the factor of its queries that grows with their position is lost"
_GATE_NOTE = "{name}: the gate of its outputs, a part of its query projection, is lost"
_WIDTHS = "{name}: its queries and keys are wider or narrower than its values, and not copied"
_CLIP = "{name}: the bounds of its queries, keys and values (clip_qkv) are lost"
_NOTES = {
    "AutoformerAttention": "the host adds up values shifted by a few delays (AutoCorrelation); "
    "softmax attention with its weights is another function",
    "InformerProbSparseAttention": "in the host few queries attend, the others get a mean of the "
    "values (ProbSparse); softmax attention with its weights is another function",
}


def notes_of(module: nn.Module) -> tuple[str, ...]:
    """Describe features that are not softmax attention, one sentence each."""
    note = _NOTES.get(type(module).__name__)
    return () if note is None else (note,)


def warnings_of(module: nn.Module) -> tuple[str, ...]:
    """Describe features that a mixer does not replace, one sentence each."""
    norms = [
        name
        for name, part in module.named_children()
        if NORM.fullmatch(name) and not isinstance(part, nn.Identity)
    ]
    of_values = [name for name in norms if name.startswith("v")]
    clip = getattr(module, "clip_qkv", getattr(getattr(module, "config", None), "clip_qkv", None))
    found = {
        _ROTARY: _is_turned(module),
        _ADDED: adds_positions(type(module)),
        _NORMS: len(norms) > len(of_values),
        _VALUE_NORM: len(of_values) > 0,
        _CAP: getattr(module, "attn_logit_softcapping", None) is not None,
        _TEMPERATURE_NOTE: _has_temperature(module),
        _CLIP: clip is not None,
        _WIDTHS: _has_two_widths(module),
        _GATE_NOTE: has_gate(type(module)),
    }
    name = type(module).__name__
    return tuple(sentence.format(name=name) for sentence, is_so in found.items() if is_so)


def _has_two_widths(module: nn.Module) -> bool:
    """Return whether value heads have another width than query and key heads."""
    width = getattr(module, "head_dim", None)
    return getattr(module, "v_head_dim", width) != width


def _has_temperature(module: nn.Module) -> bool:
    """Return whether queries have a factor that grows with the position."""
    is_on = getattr(module, "attn_temperature_tuning", True) and not getattr(
        module, "use_rope", False
    )
    return bool(is_on) and grows_with_position(type(module))


def _is_turned(module: nn.Module) -> bool:
    """Return whether queries and keys have rotary positions."""
    cls, config = type(module), getattr(module, "config", None)
    if getattr(module, "position_embedding_type", "rotary") != "rotary" or not is_rotary(cls):
        return False
    if getattr(config, "position_embedding_type", "rope") in (None, "nope"):  # Granite 4
        return False
    if is_rotary_by_window(cls):
        return _is_turned_by_window(module)
    return bool(getattr(module, "use_rope", True))


def _is_turned_by_window(module: nn.Module) -> bool:
    has_window = getattr(module, "sliding_window", None) is not None
    is_sliding = getattr(module, "is_sliding", None)
    if is_sliding is None:
        return has_window or bool(getattr(module, "force_rope", False))
    return bool(is_sliding) or not has_window


# Time series models have positions for the past values and for the predicted values.
_OF_SERIES = ("context_length", "prediction_length")


def embeddings_around(parents: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the embeddings of the innermost model around the attention.

    The list is empty if no model has embeddings.
    """
    found = (getattr(parent, "embeddings", None) for parent in reversed(parents))
    return [part for part in found if isinstance(part, nn.Module)][:1]


def image_length(parents: Sequence[nn.Module]) -> int | None:
    """Return the number of tokens of a default-size image, or None."""
    for embeddings in embeddings_around(parents):
        table = getattr(embeddings, "position_embeddings", None)
        if isinstance(table, Tensor) and table.dim() == 3:
            registers = getattr(embeddings, "register_tokens", None)  # these have no position
            return table.shape[1] + (0 if registers is None else registers.shape[1])
    return None


def longest(parents: Sequence[nn.Module]) -> int | None:
    """Return the token limit of the innermost model that has one."""
    for embeddings in embeddings_around(parents):
        table = getattr(embeddings, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - first
    for parent in reversed(parents):
        for owner, name in (
            (parent, "max_target_positions"),
            (parent, "max_source_positions"),
            (getattr(parent, "config", None), "max_position_embeddings"),
        ):
            limit = getattr(owner, name, None)
            if isinstance(limit, int):
                return limit
        found = (getattr(getattr(parent, "config", None), name, None) for name in _OF_SERIES)
        series = [length for length in found if isinstance(length, int)]
        if len(series) == len(_OF_SERIES):  # Informer, Autoformer
            return sum(series)
    return None
