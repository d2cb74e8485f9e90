"""What the source of a class of transformers tells of its attention."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

_GATE = re.compile(r"query_states, gate = torch\.chunk\(\s*self\.q_proj\(")


@cache
def source_of(cls: Any) -> str:
    """The text of its `forward`; empty where there is none."""
    try:
        return inspect.getsource(cls.forward)
    except (OSError, TypeError):
        return ""


@cache
def arguments_of(cls: Any) -> tuple[str, ...]:
    """Names of the arguments of its `forward`, but for the catch-all."""
    parameters = inspect.signature(cls.forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)[1:]


def has_gate(cls: Any) -> bool:
    """Whether its query map makes, beside each query, a gate for what the query attends to."""
    return _GATE.search(source_of(cls)) is not None
