"""A hash of code that lies in no plugin file, such as a class of a notebook's cell."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import CodeType
from typing import Any

from rifflemix.plugins.names import defined_in

_NO_CODE = ("__doc__", "__firstlineno__")
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def is_outside(definition: Any) -> bool:
    """Whether a class or function is from a plugin's file, another package or a notebook."""
    module = defined_in(definition)
    return not module.startswith("rifflemix.") or module.startswith("rifflemix.plugins.")


def code_hash(definition: Any) -> str:
    """sha256 of a function, or of a class's functions and simple values and those it inherits.

    The same wherever and whenever the same lines are run, by one version of Python.
    """
    total = hashlib.sha256()
    if not isinstance(definition, type):
        total.update("\n".join(_parts(definition)).encode())
        return total.hexdigest()
    for of in outside_classes(definition):
        held = {name: value for name, value in vars(of).items() if name not in _NO_CODE}
        for name, value in sorted(held.items()):
            total.update("\n".join((of.__qualname__, name, *_parts(value))).encode())
    return total.hexdigest()


def outside_classes(cls: type) -> list[type]:
    """A class and those it inherits from, without those of the package, torch and Python."""
    return [
        of
        for of in cls.__mro__
        if is_outside(of) and defined_in(of).partition(".")[0] not in ("abc", "builtins", "torch")
    ]


def _parts(value: Any) -> Iterator[str]:
    """What a function, a property or a simple value consists of, as text."""
    for held in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "fset"))):
        code = getattr(held, "__code__", None)
        if isinstance(code, CodeType):
            yield from _code_parts(code)
            yield repr((held.__defaults__, held.__kwdefaults__)) if _is_plain(held) else ""
    if isinstance(value, _SIMPLE):
        yield repr(value)


def _code_parts(code: CodeType) -> Iterator[str]:
    yield from (code.co_code.hex(), *code.co_names, *code.co_varnames, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))  # sets have no order of their own
        else:
            yield repr(constant)


def _is_plain(function: Any) -> bool:
    values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return all(isinstance(value, _SIMPLE) for value in values)
