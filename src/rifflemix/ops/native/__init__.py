"""Loads the optional C++ kernels; where they are missing, the eager operators serve."""

from __future__ import annotations

import ctypes
import functools
import logging
import sysconfig
from pathlib import Path

from torch import Tensor

_LOG = logging.getLogger("rifflemix")
_FOLDER = Path(__file__).parent
_INTERFACE = 2  # RIFFLEMIX_INTERFACE of kernels.h
HUGE = 1 << 25
"""Bytes from which memory is asked of the system at every allocation."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None with one debug-level log line that says why not."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    path = _FOLDER / f"_kernels{suffix}"
    try:
        kernels = ctypes.CDLL(str(path))
        found = kernels.rifflemix_interface()
    except (OSError, AttributeError) as error:
        _LOG.debug("no compiled kernels, the eager operators serve: %s", error)
        return None
    if found != _INTERFACE:
        _LOG.debug(
            "compiled kernels of interface %d, not %d: install rifflemix again; the eager "
            "operators serve",
            found,
            _INTERFACE,
        )
        return None
    return kernels


@functools.cache
def instruction_level() -> int:
    """4: AVX-512, 3: AVX2, 2: NEON, 1: baseline; 0 without compiled kernels."""
    kernels = library()
    return 0 if kernels is None else int(kernels.rifflemix_instruction_level())


def in_huge_pages(new: Tensor) -> Tensor:
    """An output that is about to be filled: in huge pages, if new memory has to be asked for."""
    kernels = library()
    if new.nbytes >= HUGE and kernels is not None:
        kernels.rifflemix_advise_huge_pages(
            ctypes.c_void_p(new.data_ptr()), ctypes.c_int64(new.nbytes)
        )
    return new
