"""The one way to choose the implementation of an operator that runs.

A family is a folder with modules of the same functions: `reference` and `eager` always, `cpu` and
`triton` where kernels exist. A public function checks its arguments and calls its namesake in the
family's `unchecked` module, which says what can run them; `Family.pick` does the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rifflemix.compat import constant_for_compiler
from rifflemix.errors import bad_argument, check_choice

BACKENDS = ("auto", "reference", "eager", "cpu", "triton")
PLAIN = ("reference", "eager")
"""Backends that run any arguments on any device, slowest first."""

_preferred: ContextVar[str | None] = ContextVar("rifflemix_preferred_backend", default=None)
# The preferences of all threads. Calls outside of any look no further. A compiler cannot guard a
# context variable: a graph is compiled again when these change.
_active: tuple[str, ...] = ()
_changes = threading.Lock()


@contextmanager
def prefer_backend(backend: str) -> Iterator[None]:
    """Make "auto" mean `backend` wherever that backend supports the arguments.

    The preference holds for the current thread or asyncio task. A thread that starts inside does
    not inherit it, unless the thread runs in `contextvars.copy_context()`. A backward pass uses the
    backend of its forward pass, on any thread.

    Raises:
        InputError: an unknown name.
    """
    global _active
    check_choice("backend", backend, BACKENDS)
    token = _preferred.set(backend)
    with _changes:
        _active = (*_active, backend)
    try:
        yield
    finally:
        with _changes:
            at = _active.index(backend)
            _active = _active[:at] + _active[at + 1 :]
        _preferred.reset(token)


@constant_for_compiler
def preferred_backend() -> str | None:
    """Return the preference of the current thread or task; None outside of `prefer_backend`."""
    return _preferred.get()


def choose(backend: str, available: tuple[str, ...]) -> str:
    """The backend that will run: for "auto" the preferred one or else the last of `available`.

    Args:
        backend: what the caller asked for, one of `BACKENDS`.
        available: the backends that support these arguments here, slowest first.

    Raises:
        InputError: an unknown name, or a backend that cannot run these arguments here.
    """
    check_choice("backend", backend, BACKENDS)
    if backend == "auto":
        preferred = preferred_backend() if _active else None
        return available[-1] if preferred not in available else preferred
    if backend not in available:
        raise bad_argument(
            "backend",
            f"one that supports these arguments here ({', '.join(available)})",
            repr(backend),
            'use backend="auto"',
        )
    return backend


class Family:
    """The implementations of one operator family.

    Args:
        reference: the equations, literal and slow.
        eager: plain torch, on any device.
        cpu: compiled kernels on the CPU.
        load_triton: imports and returns the kernels on a GPU.
    """

    def __init__(
        self,
        reference: Any,
        eager: Any,
        *,
        cpu: Any = None,
        load_triton: Callable[[], Any] | None = None,
    ) -> None:
        self._modules = {"reference": reference, "eager": eager, "cpu": cpu}
        self._load_triton = load_triton

    def pick(self, backend: str, available: tuple[str, ...] = PLAIN) -> Any:
        """The module that will run; see `choose`.

        Raises:
            InputError: as `choose`.
        """
        # What nearly every call asks for costs no further call.
        is_plain = isinstance(backend, str) and backend == "auto" and not _active
        name = available[-1] if is_plain else choose(backend, available)
        if name == "triton" and self._load_triton is not None:
            return self._load_triton()
        return self._modules[name]
