"""Clang builds the same kernels as GCC: all instruction sets, same choice, same results."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rifflemix.ops import native
from rifflemix.ops.permutation import channel_permute, circular_shift, group_sort, max_exchange
from rifflemix.ops.permutation import cpu_common as permutation
from rifflemix.ops.statistics import causal_token_statistics, token_statistics
from rifflemix.ops.statistics import cpu_common as statistics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang"),
    pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels"),
]
SOURCES = sorted(native._FOLDER.glob("*.cpp"))
# Flags of setup.py, without optimization, which would take most of the time.
FLAGS = [
    "-std=c++17",
    "-O0",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-pthread",
    "-fPIC",
    "-Wno-psabi",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library with Clang and return its folder."""
    folder = tmp_path_factory.mktemp("clang")

    def run(*arguments: str) -> None:
        subprocess.run(["clang++", *FLAGS, *arguments], check=True, cwd=folder, timeout=280)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: run("-c", str(source)), SOURCES))
    run("-shared", *(f"{source.stem}.o" for source in SOURCES), "-o", native._LIBRARY)
    return folder


def symbols(library: Path) -> Counter[str]:
    """Count the functions of each instruction set."""
    said = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout
    return Counter(re.findall(r" [tT] _Z\w*_(v[34])", said))


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64, where sets are chosen")
def test_every_instruction_set_is_there(folder: Path) -> None:
    found = symbols(folder / native._LIBRARY)
    assert found["v4"] == found["v3"] > 0


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
def test_functions_with_vector_arguments_are_always_inlined(folder: Path) -> None:
    """No function has vector arguments: instruction sets pass vectors by different conventions."""
    command = ["nm", "--demangle", str(folder / native._LIBRARY)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [re.sub(r".*\{lambda.*?\}::", "", line) for line in printed.splitlines()]
    by_value = re.compile(r"(__vector\(\d+\)|::Type|::Integers)([,)]| rifflemix)")
    assert not [name for name in names if by_value.search(name)]


def test_clang_library_is_loaded_and_has_the_same_level(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_FOLDER", folder)
    kernels, why = native.find_library()
    assert kernels is not None, why
    assert kernels.rifflemix_instruction_level() == native.instruction_level()


def results(x: Tensor, mask: Tensor) -> list[Tensor]:
    """Run the kernels on tokens (B, N, C) and padding (B, N)."""
    steps, temperature = torch.arange(x.shape[2]) * 5, torch.ones(4)
    heads = x.unflatten(2, (4, -1)).transpose(1, 2)
    return [
        *group_sort(x, key_padding_mask=mask, return_indices=True, backend="cpu"),
        channel_permute(x, steps, 1, key_padding_mask=mask, backend="cpu"),
        circular_shift(x, steps, backend="cpu"),
        max_exchange(x, backend="cpu"),
        token_statistics(heads, temperature, key_padding_mask=mask, backend="cpu"),
        causal_token_statistics(heads, temperature, key_padding_mask=mask, backend="cpu"),
    ]


@pytest.mark.parametrize("length", [1, 16, 63, 600])
def test_clang_library_gives_the_same_results(
    length: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = CDLL(str(folder / native._LIBRARY))
    x, mask = torch.randn(2, length, 24), torch.rand(2, length) < 0.2
    expected = results(x, mask)
    for module in (permutation, statistics):
        monkeypatch.setattr(module, "_KERNELS", kernels)
    *sorted_, own, causal = results(x, mask)
    assert all(map(torch.equal, sorted_, expected))
    # This build is not vectorized, so the order of summation differs.
    torch.testing.assert_close(own, expected[-2])
    torch.testing.assert_close(causal, expected[-1])
