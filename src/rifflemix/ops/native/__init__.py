"""Load the optional C++ kernels. Without them, rifflemix uses the eager operators."""

from __future__ import annotations

import ctypes
import functools
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor

from rifflemix.errors import InputError

_LOG = logging.getLogger("rifflemix")
_FOLDER = Path(__file__).parent
_LIBRARY = "_kernels.so"  # same name in setup.py
_INTERFACE = 14  # RIFFLEMIX_INTERFACE of kernels.h
_BUILD_LOG = "_kernels_build.txt"  # same name in setup.py
# By default, pip would reinstall the package without kernels from its cache.
_AGAIN = (
    "install rifflemix where there is a C++ compiler "
    "(again: with pip's --force-reinstall --no-deps --no-cache-dir)"
)
_OUT_OF_MEMORY = -1  # kOutOfMemory of kernels.h
_LARGE = 1 << 12  # smallest number of values for which a missing kernel matters
TYPE_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
"""Suffixes of kernel names by dtype, for operators that support all four dtypes."""
HUGE = 1 << 25
"""Smallest size in bytes for which every allocation requests new memory from the system."""


class MissingKernels(UserWarning):
    """The compiled kernels are missing, so slower plain torch ran instead (warned once)."""


def find_library() -> tuple[ctypes.CDLL | None, str]:
    """Load the compiled kernels.

    Returns:
        The library and its path, or None and the reason why it cannot be used.
    """
    path = _FOLDER / _LIBRARY
    if not path.exists():
        why = "its compilation failed: " if build_log() else ""
        return None, f"{path} is not there: {why}{_AGAIN}"
    try:
        kernels = ctypes.CDLL(str(path))
        found = kernels.rifflemix_interface()
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be loaded: {error}"
    if found != _INTERFACE:
        return None, f"{path} has interface {found}, not {_INTERFACE}: install rifflemix again"
    if kernels.rifflemix_instruction_level() == 0:
        return None, f"{path} needs a processor with AVX2"
    return kernels, str(path)


def build_log() -> str:
    """Read the compiler errors of a failed build; empty after success."""
    try:
        return (_FOLDER / _BUILD_LOG).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None if they cannot be used.

    The reason is logged once, at debug level.
    """
    kernels, why = find_library()
    if kernels is None:
        _LOG.debug("no compiled kernels, the eager operators serve: %s", why)
    return kernels


def note_slow_call(x: Tensor) -> None:
    """Warn once if missing kernels slow down a call on `x`."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() < _LARGE:
        return
    if library() is None:
        _warn_of_missing_kernels()


@functools.cache
def _warn_of_missing_kernels() -> None:
    warnings.warn(
        "no compiled kernels: on the CPU plain torch serves in their place, which is slower; "
        "`rifflemix doctor` says why",
        MissingKernels,
        stacklevel=2,
    )


def require_library(kernels: ctypes.CDLL | None) -> ctypes.CDLL:
    """Return the compiled kernels, or raise InputError if they are missing."""
    if kernels is None:
        raise InputError(
            "this operator needs the compiled kernels; `rifflemix doctor` says why there are none"
        )
    return kernels


@functools.cache
def instruction_level() -> int:
    """Return the instruction set of the kernels.

    4: AVX-512, 3: AVX2, 2: NEON, 1: another architecture, 0: no compiled kernels.
    """
    kernels = library()
    return 0 if kernels is None else int(kernels.rifflemix_instruction_level())


def raise_on_error(result: int) -> int:
    """Return the result of a kernel, after a check for failed allocations.

    Raises:
        MemoryError: the kernel could not allocate memory.
    """
    if result == _OUT_OF_MEMORY:
        raise MemoryError("no memory for a compiled kernel; smaller batches need less")
    return result


def in_huge_pages(new: Tensor) -> Tensor:
    """Request huge pages for a large new output, and return it."""
    kernels = library()
    if new.nbytes >= HUGE and kernels is not None:
        kernels.rifflemix_advise_huge_pages(
            ctypes.c_void_p(new.data_ptr()), ctypes.c_int64(new.nbytes)
        )
    return new
