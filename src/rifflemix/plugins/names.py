"""Names of what is registered from outside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rifflemix.errors import InputError, bad_argument

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_new_name(kind: str, name: Any, value: Any, known: Mapping[str, Any]) -> None:
    """Raise unless `name` can be given to `value`.

    A class or function that is defined again, in a notebook's cell or a file that was changed, may
    take the place of its earlier self.

    Args:
        kind: "mixer", "task" or "model".
        name: what its card says.
        value: what is to be registered.
        known: what has been registered.

    Raises:
        InputError: no name that commands, files and folders can hold, or one that is taken.
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
    """Whether two classes, functions or instances come from one place in one module."""
    return _place(one) == _place(other)


def defined_in(value: Any) -> str:
    """The module of a class or function, or of the class of an instance."""
    return _place(value)[0]


def _place(value: Any) -> tuple[str, str]:
    named = value if hasattr(value, "__qualname__") else type(value)
    return named.__module__, named.__qualname__


def _origin(value: Any) -> str:
    return ".".join(_place(value))
