"""What the source of a class, mostly of transformers, tells of its attention."""

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
    """The text of its `forward`; empty where there is none."""
    return text_of(cls.forward)


def text_of(part: Any) -> str:
    """The text of a class or function; empty where there is none."""
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return ""


@cache
def arguments_of(cls: Any) -> tuple[str, ...]:
    """Names of the arguments of its `forward`, but for the catch-all."""
    parameters = inspect.signature(cls.forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)[1:]


def is_rotary(cls: Any) -> bool:
    """Whether it turns queries and keys by their positions."""
    return _TURNS.search(source_of(cls)) is not None


def is_rotary_by_window(cls: Any) -> bool:
    """Whether its window says of a layer that it does so (Cohere 2, EXAONE 4)."""
    return _TURNS_BY_WINDOW.search(source_of(cls)) is not None


def adds_positions(cls: Any) -> bool:
    """Whether it adds positions to what queries and keys are made of (DETR)."""
    return "hidden_states + position_embeddings" in source_of(cls)


def grows_with_position(cls: Any) -> bool:
    """Whether it multiplies queries by a number that grows with their position (Llama 4)."""
    return _TEMPERATURE.search(source_of(cls)) is not None


def keeps_groups_apart(cls: Any) -> bool:
    """Whether it splits the tokens, while it is trained, into groups that do not see each other."""
    return "self.config.group_detr" in source_of(cls)


def has_gate(cls: Any) -> bool:
    """Whether its query map makes, beside each query, a gate for what the query attends to."""
    return _GATE.search(source_of(cls)) is not None
