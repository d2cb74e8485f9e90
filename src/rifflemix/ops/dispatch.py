"""Backend selection for all operators.

A family is a subpackage. Its backend modules define the same functions. Every family has
`reference` and `eager`; families with kernels also have `cpu` or `triton`. The module `backends` of
a family lists the backends that support a call, and `Family.pick` selects one of them. A public
function checks its arguments first. Mixers have checked theirs.
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
"""Backends that support all arguments on all devices, slowest first."""

_preferred: ContextVar[str | None] = ContextVar("rifflemix_preferred_backend", default=None)
# Preferences of all threads. If empty, calls skip the context variable. A compiler cannot guard a
# context variable, but it guards this tuple and recompiles a graph when the tuple changes.
_active: tuple[str, ...] = ()
_changes = threading.Lock()


@contextmanager
def prefer_backend(backend: str) -> Iterator[None]:
    """Make "auto" select `backend` if that backend supports the arguments.

    The preference applies to the current thread or asyncio task. A thread that starts inside the
    context does not inherit it, unless the thread runs in `contextvars.copy_context()`. A backward
    pass uses the backend of its forward pass, on any thread.

    Raises:
        InputError: unknown backend name.
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
    """Return the preference of the current thread or task, or None."""
    return _preferred.get()


def choose(backend: str, available: tuple[str, ...]) -> str:
    """Return the name of the backend to run.

    "auto" selects the preferred backend if it is available, otherwise the last of `available`.

    Args:
        backend: requested backend, one of `BACKENDS`.
        available: backends that support these arguments on this machine, slowest first.

    Raises:
        InputError: unknown name, or a backend that does not support these arguments here.
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
        reference: module that implements the equations literally; slow.
        eager: module in plain torch, for any device.
        cpu: module with compiled CPU kernels, if any.
        load_triton: function that imports and returns the module with GPU kernels, if any.
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

    def pick(self, backend: str = "auto", available: tuple[str, ...] = PLAIN) -> Any:
        """Return the module of the backend that `choose` selects.

        Raises:
            InputError: same conditions as for `choose`.
        """
        # Fast path for the most frequent call: no further function call.
        is_plain = isinstance(backend, str) and backend == "auto" and not _active
        name = available[-1] if is_plain else choose(backend, available)
        if name == "triton" and self._load_triton is not None:
            return self._load_triton()
        return self._modules[name]
