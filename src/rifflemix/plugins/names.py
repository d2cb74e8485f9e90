"""Names of user-defined mixers, tasks and models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rifflemix.errors import InputError, bad_argument

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_new_name(kind: str, name: Any, value: Any, known: Mapping[str, Any]) -> None:
    """Raise InputError unless `value` can be registered as `name`.

    A class or function can be registered again after a new definition, for instance in a notebook
    cell or a changed file.

    Args:
        kind: "mixer", "task" or "model".
        name: name in the card.
        value: definition to register.
        known: registered definitions by name.

    Raises:
        InputError: `name` is not valid in commands and file names, or another definition has it.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad_argument(
            f"name of the {kind}", "a letter, then at most 63 letters, digits, _ or -", repr(name)
        )
    if name in known and not same_definition(known[name], value):
        raise InputError(
            f"{kind} {name!r} is registered already, by {_origin(known[name])}; give the one of "
            f"{_origin(value)} another name"
        )


def same_definition(one: Any, other: Any) -> bool:
    """Return whether two definitions or instances have the same module and name."""
    return _place(one) == _place(other)


def defined_in(value: Any) -> str:
    """Return the module of a definition or of an instance's class."""
    return _place(value)[0]


def _place(value: Any) -> tuple[str, str]:
    named = value if hasattr(value, "__qualname__") else type(value)
    return named.__module__, named.__qualname__


def _origin(value: Any) -> str:
    return ".".join(_place(value))
