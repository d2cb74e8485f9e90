"""Hashes of code outside of plugin files, such as a class in a notebook cell."""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from rifflemix.plugins.names import defined_in

_NO_CODE = ("__annotations__", "__doc__", "__firstlineno__", "__static_attributes__")
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_WRAPPERS = ("__func__", "__wrapped__", "fget", "fset", "func")


def is_outside(definition: Any) -> bool:
    """Return whether a class or function is defined outside of rifflemix.

    Plugin files, other packages and notebooks are outside.
    """
    module = defined_in(definition)
    return not module.startswith("rifflemix.") or module.startswith("rifflemix.plugins.")


def code_hash(definition: Any) -> str:
    """Hash a function or class with the definitions that it uses (sha256).

    Includes base classes, and the functions, classes and simple values of the same package or
    notebook that the code refers to by name. With the same Python version, equal code has an equal
    hash.
    """
    text = "\n".join(_Reader(_package(defined_in(definition))).read(definition))
    return hashlib.sha256(text.encode()).hexdigest()


def outside_classes(cls: type) -> list[type]:
    """Return a class and its bases, except rifflemix, torch and Python classes."""
    return [
        of
        for of in cls.__mro__
        if is_outside(of) and _package(defined_in(of)) not in ("abc", "builtins", "torch")
    ]


class _Reader:
    """Reader of the parts of definitions as text. It reads each definition once.

    Args:
        package: top-level package of the used functions and classes to read.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self._seen: list[Any] = []

    def read(self, value: Any) -> Iterator[str]:
        """Yield the parts of a class, function, property or simple value."""
        if isinstance(value, type):
            for cls in outside_classes(value):
                yield from self._class(cls)
            return
        for held in (value, *(getattr(value, name, None) for name in _WRAPPERS)):
            if isinstance(held, FunctionType):
                yield from self._function(held)
        if _is_plain(value):
            yield _plain_text(value)

    def _class(self, cls: type) -> Iterator[str]:
        if not self._is_new(cls):
            return
        for name, value in sorted(vars(cls).items()):
            if name not in _NO_CODE:
                yield from (cls.__qualname__, name)
                yield from self._used(value) if isinstance(value, type) else self.read(value)

    def _function(self, function: FunctionType) -> Iterator[str]:
        if not self._is_new(function):
            return
        yield from _code_parts(function.__code__)
        if _package(function.__globals__.get("__name__", "")) == self.package:
            for value in _values_in(function):
                yield from self._used(value)

    def _used(self, value: Any) -> Iterator[str]:
        """Yield the parts of a simple value or a package definition."""
        is_ours = callable(value) and _package(defined_in(value)) == self.package
        if is_ours or _is_plain(value):
            yield from self.read(value)

    def _is_new(self, value: Any) -> bool:
        is_new = not any(value is other for other in self._seen)
        if is_new:
            self._seen.append(value)
        return is_new


def _package(module: str) -> str:
    return module.partition(".")[0]


def _values_in(function: FunctionType) -> Iterator[Any]:
    """Yield the defaults, closure values and used globals of a function."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty cell
            yield cell.cell_contents
    known = function.__globals__
    for code in _codes(function.__code__):
        used = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
        for name in sorted(name for name in used & known.keys() if not name.startswith("__")):
            yield known[name]
            if isinstance(known[name], ModuleType):
                yield from _values_of(known[name], code, _package(known["__name__"]))


def _values_of(module: ModuleType, code: CodeType, package: str) -> Iterator[Any]:
    """Yield the attributes that code may use from a module."""
    if _package(module.__name__) == package:
        yield from (vars(module)[name] for name in code.co_names if name in vars(module))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and its nested code objects."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _code_parts(code: CodeType) -> Iterator[str]:
    yield from (code.co_code.hex(), *code.co_names, *code.co_varnames, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield _plain_text(constant)


def _is_plain(value: Any) -> bool:
    """Return whether a value is simple or contains only simple values.

    Empty mutable containers do not count, because they may fill up later.
    """
    if isinstance(value, dict):
        return bool(value) and all(_is_plain(part) for part in (*value, *value.values()))
    if isinstance(value, list | set):
        return bool(value) and all(map(_is_plain, value))
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, _SIMPLE)


def _plain_text(value: Any) -> str:
    if isinstance(value, dict):
        return repr(sorted(map(_plain_text, value.items())))
    if isinstance(value, set | frozenset):
        return repr(sorted(map(_plain_text, value)))  # sets are unordered
    if isinstance(value, list | tuple):
        return repr([*map(_plain_text, value)])
    return repr(value)
