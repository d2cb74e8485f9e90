"""Kernels of the library that are compiled for one instruction set."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from ctypes import CDLL
from pathlib import Path

import pytest

from rifflemix.ops import native

INSTRUCTION_SETS = [("x86-64-v3", 3), ("x86-64-v4", 4)]
"""Names of gcc, and levels of `native.instruction_level`."""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")


def compile_kernels(sources: Iterable[str], instructions: str, level: int, folder: Path) -> CDLL:
    """Compile source files of the library. Skip the test if the processor cannot run them."""
    if native.instruction_level() < level:
        pytest.skip("this processor cannot run it")
    files = [Path(native.__file__).with_name(f"{name}.cpp") for name in sources]
    flags = ["-std=c++17", "-O2", "-fno-math-errno", "-Wno-psabi", "-pthread", "-fPIC", "-shared"]
    alone = ["-DRIFFLEMIX_ONE_INSTRUCTION_SET", f"-march={instructions}"]
    library = folder / "kernels.so"
    subprocess.run(["g++", *flags, *alone, *files, "-o", library], check=True, timeout=300)
    return CDLL(str(library))
