"""Checks whether Triton kernels can run, without importing Triton."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import (
    constant_for_compiler,
    has_plain_autograd,
    statically_known_true,
)
from rifflemix.errors import bad_argument

# Option for kernels in which lanes exchange partial sums so that every lane gets the total. A fused
# multiply-add does not round the product, so the totals of the lanes would differ in the last bit.
ROUNDED = {"enable_fp_fusion": False}
# Read once at import, because a traced graph must not contain this lookup.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INSTALLED = importlib.util.find_spec("triton") is not None
# Triton needs a C compiler for the launch code. The tile sizes are tuned for NVIDIA GPUs.
_HAS_COMPILER = any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))
_ON_GPU = _HAS_COMPILER and torch.version.hip is None
# Cache of `launch`. Its size is limited, because every new sequence length adds an entry.
_compiled: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
_MOST_COMPILED = 4096
_NUMBERS = {int, float, type(None)}


def with_triton(names: tuple[str, ...], x: Tensor, *conditions: bool) -> tuple[str, ...]:
    """Add "triton" to the backends if its kernels can run.

    "triton" is the slowest backend if Triton interprets the kernels (for tests only). It also comes
    first during export, because an exported program must run without rifflemix. In both cases the
    kernels run only if the caller requests "triton".

    Args:
        names: the other backends, slowest first.
        x: tensor with the device of the kernel inputs; any device if Triton is in interpreter mode.
        conditions: conditions on the sizes; all must be true. They are not evaluated if no kernel
            can run, so that a traced graph gets no guards on them.
    """
    # The transforms of torch.func need registered operators. Forward-mode differentiation also
    # needs them, because it would treat the results of a kernel as constants.
    if not INSTALLED or not has_plain_autograd():
        return names
    if not (INTERPRETED or (x.is_cuda and _ON_GPU)):
        return names
    if torch.compiler.is_exporting():
        return ("triton", *names) if all(map(statically_known_true, conditions)) else names
    if not all(conditions):
        return names
    return ("triton", *names) if INTERPRETED else (*names, "triton")


def why_not_triton() -> str:
    """Return why Triton kernels cannot run on a GPU, or ""."""
    if not INSTALLED:
        return 'no Triton: pip install "rifflemix[gpu]"'
    if not torch.cuda.is_available():
        return "no GPU"
    if torch.version.hip is not None:
        return "the kernels are cut for NVIDIA's GPUs"
    if not _HAS_COMPILER:
        return "no C compiler, which Triton needs: install gcc or clang"
    return ""


def check_device(x: Tensor) -> None:
    """Check that Triton can run kernels on the device of `x`."""
    if not (x.is_cuda or INTERPRETED):
        raise bad_argument("x", "a tensor on a GPU", f"one on {x.device}")


@constant_for_compiler
def shared_memory(device: torch.device) -> int:
    """Return the shared memory per program in bytes.

    The result is `sys.maxsize` if `device` is not a GPU.

    An H100 has 227 KiB, an A100 163 KiB, most workstation GPUs 99 KiB.
    """
    return _shared_memory(device)


@functools.cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return sys.maxsize
    properties: Any = torch.cuda.get_device_properties(device)  # the stub lacks the field below
    return int(properties.shared_memory_per_block_optin)


def launch(kernel: Any, programs: int, like: Tensor, *arguments: Any, **options: Any) -> None:
    """Launch a kernel with `programs` programs on the device of `like`.

    At every launch Triton inspects all arguments. This takes longer than most kernels, so the
    compiled kernel is cached by the types, alignment and sizes of the arguments.
    """
    if not programs:
        return
    with torch.cuda.device_of(like):
        if INTERPRETED:
            kernel[(programs,)](*arguments, **options)
            return
        # The key contains the values of numbers: finer than necessary, but fast to build.
        kinds = [
            value if value.__class__ in _NUMBERS else (value.dtype, value.data_ptr() % 16)
            for value in arguments
        ]
        key = (id(kernel), like.device, *kinds, *options.values())
        known = _compiled.get(key)
        if known is not None:
            program, constants = known
            program[(programs, 1, 1)](*arguments, *constants)
            return
        program = kernel[(programs,)](*arguments, **options)
        constants = [options[name] for name in kernel.arg_names[len(arguments) :]]
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.clear()
        _compiled[key] = program, constants
