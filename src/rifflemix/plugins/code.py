"""Names of third-party objects, and hashes of code outside of plugin files."""

from __future__ import annotations

import dis
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from rifflemix.errors import InputError, bad_argument

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_RECIPE = re.compile(rf"{_NAME.pattern}/[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}")


def check_new_name(kind: str, name: Any, value: Any, known: Mapping[str, Any]) -> None:
    """Raise InputError unless `value` can be registered as `name`.

    A class or function can be registered again after a new definition, for instance in a notebook
    cell or a changed file.

    Args:
        kind: "mixer", "task", "model", "analysis" or "recipe".
        name: name in the card or recipe.
        value: definition to register.
        known: registered definitions by name.

    Raises:
        InputError: `name` is not valid in commands and file names, or another definition has it.
    """
    pattern = _RECIPE if kind == "recipe" else _NAME
    if not isinstance(name, str) or not pattern.fullmatch(name):
        expected = "a letter, then at most 63 letters, digits, _ or -"
        if kind == "recipe":
            expected = "PAPER/ENTRY of letters, digits, _, - and, in ENTRY, dots"
        raise bad_argument(f"name of the {kind}", expected, repr(name))
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
    while isinstance(value, partial):
        value = value.func
    named = value if hasattr(value, "__qualname__") else type(value)
    return named.__module__, named.__qualname__


def _origin(value: Any) -> str:
    return ".".join(_place(value))


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
