"""The one way to choose the implementation of an operator that runs.

A family is a folder with modules of the same functions: `reference` and `eager` always, `cpu` and
`triton` where kernels exist. A public function checks its arguments and calls its namesake in the
family's `unchecked` module, which says what can run them; `Family.pick` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rifflemix.errors import bad_argument, check_choice

BACKENDS = ("auto", "reference", "eager", "cpu", "triton")
PLAIN = ("reference", "eager")
"""Backends that run any arguments on any device, slowest first."""

_preferred: str | None = None


@contextmanager
def prefer_backend(backend: str) -> Iterator[None]:
    """Inside, "auto" means `backend` wherever that supports the arguments; for all threads.

    Raises:
        InputError: an unknown name.
    """
    global _preferred
    check_choice("backend", backend, BACKENDS)
    before, _preferred = _preferred, backend
    try:
        yield
    finally:
        _preferred = before


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
        return available[-1] if _preferred not in available else _preferred
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
        is_plain = isinstance(backend, str) and backend == "auto" and _preferred is None
        name = available[-1] if is_plain else choose(backend, available)
        if name == "triton" and self._load_triton is not None:
            return self._load_triton()
        return self._modules[name]
