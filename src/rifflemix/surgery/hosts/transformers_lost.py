"""Features of transformers attention that a replacement loses."""

from __future__ import annotations

import re

from torch import nn

from rifflemix.surgery.hosts.transformers_source import (
    adds_positions,
    grows_with_position,
    has_gate,
    is_rotary,
    is_rotary_by_window,
)

NORM = re.compile(r"(q|k|v|qk|query|key|value)_?(layer)?_?norm")
_ROTARY = (
    "{name}: the rotary positions of its queries and keys are lost; unless something else in the "
    "model tells positions, a mixer that knows no order by itself has at most causality to tell it"
)
_ADDED = "{name}: the positions that it adds to its queries and keys are lost"
_NORMS = "{name}: the norms of its queries and keys are lost"
_VALUE_NORM = "{name}: the norm of its values is lost"
_CAP = "{name}: the cap on its scores (attn_logit_softcapping) is lost"
_TEMPERATURE = "{name}: the factor of its queries that grows with their position is lost"
_GATE = "{name}: the gate of what it attended to, a part of its query map, is lost"
_WIDTHS = "{name}: its queries and keys are wider or narrower than its values, and not copied"
_CLIP = "{name}: the bounds of its queries, keys and values (clip_qkv) are lost"
_NOTES = {
    "AutoformerAttention": "the host adds up values shifted by a few delays (AutoCorrelation), "
    "which is no softmax attention: softmax with its weights is another function",
    "InformerProbSparseAttention": "in the host few queries attend, the others get a mean of the "
    "values (ProbSparse), which is no softmax attention: softmax with its weights is another "
    "function",
}


def notes_of(module: nn.Module) -> tuple[str, ...]:
    """Describe features that are not softmax attention, one sentence each."""
    note = _NOTES.get(type(module).__name__)
    return () if note is None else (note,)


def lost(module: nn.Module) -> tuple[str, ...]:
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
        _TEMPERATURE: _has_temperature(module),
        _CLIP: clip is not None,
        _WIDTHS: _has_two_widths(module),
        _GATE: has_gate(type(module)),
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
