"""Whether Triton kernels can run, decided without importing Triton."""

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

# Option of a kernel in which lanes add what they have to what another brings, so that all hold the
# sum. A product that is fused with its addition is not rounded: the lanes would hold, and write,
# sums that differ in the last bit.
ROUNDED = {"enable_fp_fusion": False}
# Looked up once: a graph that is being traced must not meet it.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INSTALLED = importlib.util.find_spec("triton") is not None
# Triton compiles the code that launches a kernel; how kernels are cut is made for NVIDIA's GPUs.
_HAS_COMPILER = any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))
_ON_GPU = _HAS_COMPILER and torch.version.hip is None
# What `launch` keeps, and how much of it: lengths that change with every batch add up.
_compiled: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
_MOST_COMPILED = 4096
_NUMBERS = {int, float, type(None)}


def with_triton(names: tuple[str, ...], x: Tensor, *conditions: bool) -> tuple[str, ...]:
    """Backends, slowest first, with "triton" among them where its kernels run.

    Interpreted they are the slowest, for tests; and an exported program must run without this
    library, so they run only where a caller names them.

    Args:
        names: the other backends.
        x: a tensor like those for the kernels; on any device when Triton interprets them.
        conditions: on the sizes, which must all hold. Where no kernel runs they are not looked
            at, so that a traced graph is not bound to them.
    """
    # torch.func's transforms need operators that torch knows, and so does forward mode, which would
    # take a kernel's results for constants.
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
    """Why Triton's kernels do not run on a GPU here; empty if they do."""
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
    """Raise unless Triton runs kernels on tensors like `x` here."""
    if not (x.is_cuda or INTERPRETED):
        raise bad_argument("x", "a tensor on a GPU", f"one on {x.device}")


@constant_for_compiler
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program can have on a GPU; no limit elsewhere.

    An H100 gives 227 KiB, an A100 163, most GPUs of workstations 99.
    """
    return _shared_memory(device)


@functools.cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return sys.maxsize
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks this one
    return int(properties.shared_memory_per_block_optin)


def launch(kernel: Any, programs: int, like: Tensor, *arguments: Any, **options: Any) -> None:
    """Run this many programs of a kernel on the device of `like`.

    Triton studies all arguments at every launch, which takes longer than most kernels do. What it
    has compiled is kept here for arguments of the same types, alignment and sizes.
    """
    if not programs:
        return
    with torch.cuda.device_of(like):
        if INTERPRETED:
            kernel[(programs,)](*arguments, **options)
            return
        # Numbers count as they are, which is finer than need be; asking for their class is fast.
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
