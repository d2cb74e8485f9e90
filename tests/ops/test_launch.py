"""How Triton kernels are launched, tested without Triton: compilation and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rifflemix.ops import triton_support
from rifflemix.ops.triton_support import launch


class Program:
    """Stand-in for a compiled Triton program."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self.launches.append((grid, *arguments))


class Kernel:
    """Stand-in for a Triton kernel(x, mask, length, floor, WIDTH, ROWS)."""

    arg_names = ("x", "mask", "length", "floor", "WIDTH", "ROWS")

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Program]:
        def run(*_: Any, **__: Any) -> Program:
            self.programs.append(Program())
            return self.programs[-1]

        return run


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "INTERPRETED", False)
    monkeypatch.setattr(triton_support, "_compiled", {})


def test_compiled_program_is_launched_again_with_its_constants() -> None:
    kernel, x = Kernel(), torch.zeros(64)
    for programs in (3, 5):
        launch(kernel, programs, x, x, None, 7, 0.5, ROWS=4, num_warps=2, WIDTH=8)
    assert len(kernel.programs) == 1
    assert kernel.programs[0].launches == [((5, 1, 1), x, None, 7, 0.5, 8, 4)]


def test_other_arguments_are_compiled_again() -> None:
    kernel, x, mask = Kernel(), torch.zeros(64), torch.zeros(64, dtype=torch.uint8)
    usual = {"ROWS": 4, "WIDTH": 8, "num_warps": 2}
    changes: list[tuple[tuple[Any, ...], dict[str, int]]] = [
        ((x, None, 7, 0.5), usual),
        ((x[1:], None, 7, 0.5), usual),
        ((x.double(), None, 7, 0.5), usual),
        ((x, mask, 7, 0.5), usual),
        ((x, None, 8, 0.5), usual),
        ((x, None, 7, 0.25), usual),
        ((x, None, 7, 0.5), usual | {"ROWS": 8}),
        ((x, None, 7, 0.5), usual | {"num_warps": 4}),
    ]
    for _ in range(2):
        for arguments, options in changes:
            launch(kernel, 1, x, *arguments, **options)
    assert len(kernel.programs) == len(changes)
    assert all(len(program.launches) == 1 for program in kernel.programs)
    other = Kernel()
    launch(other, 1, x, x, None, 7, 0.5, **usual)
    assert len(other.programs) == 1


def test_other_addresses_do_not_recompile() -> None:
    kernel = Kernel()
    kept = [torch.zeros(64) for _ in range(4)]
    for x in kept:
        launch(kernel, 1, x, x, None, 7, 0.5, ROWS=4, WIDTH=8)
    assert len({x.data_ptr() % 16 for x in kept}) == len(kernel.programs) == 1


def test_cache_of_programs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "_MOST_COMPILED", 3)
    kernel, x = Kernel(), torch.zeros(64)
    for length in range(10):
        launch(kernel, 1, x, x, None, length, 0.5, ROWS=4, WIDTH=8)
        assert len(triton_support._compiled) <= 3


def test_empty_grid_is_not_launched() -> None:
    kernel, x = Kernel(), torch.zeros(0)
    launch(kernel, 0, x, x, None, 7, 0.5, ROWS=4, WIDTH=8)
    assert not kernel.programs
