"""Properties of attention classes that rifflemix finds in their source code.

Most of these classes are from transformers.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

_TURNS = re.compile(r"rotary|(?<![a-z])rope", re.IGNORECASE)
_TURNS_BY_WINDOW = re.compile(r"if self\.sliding_window is (not None|None or self\.is_sliding)")
_TEMPERATURE = re.compile(r"query_states \* (attn_scales|get_llama_4_attn_scale\()")
_GATE = re.compile(r"query_states, gate = torch\.chunk\(\s*self\.q_proj\(")


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


@cache
def arguments_of(cls: Any) -> tuple[str, ...]:
    """Return the argument names of `forward` without `**kwargs`."""
    parameters = inspect.signature(cls.forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)[1:]


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
