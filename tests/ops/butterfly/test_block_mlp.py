"""Compare fused chains of block-diagonal layers and activations with one layer at a time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import rifflemix as rm
from rifflemix.ops import BlockMap, block_linear, block_mlp
from rifflemix.ops.butterfly import cpu
from rifflemix.ops.native import instruction_level
from single_instruction_set import INSTRUCTION_SETS, compile_kernels, needs_compiler

needs_kernels = pytest.mark.skipif(instruction_level() < 2, reason="needs the compiled kernels")
BACKENDS = ["reference", "eager", pytest.param("cpu", marks=needs_kernels)]
ACTIVATIONS = {None: lambda x: x, "gelu": functional.gelu, "elu": functional.elu}


def make_maps(
    features: int, blocks: list[tuple[int, int]], activations: list[Any], **options: Any
) -> list[BlockMap]:
    """Build random layers for `features` inputs, one per (blocks, outputs per block) pair."""
    maps = []
    for index, ((count, out), activation) in enumerate(zip(blocks, activations, strict=True)):
        width = features // count
        bias = torch.randn(count, out, **options) if index % 2 == 0 else None
        weight = torch.randn(count, width, out, **options) / width**0.5
        strides = (count, 1) if index % 2 else (1, count)
        maps.append(BlockMap(weight, bias, *strides, activation))
        features = count * out
    return maps


def one_by_one(x: Tensor, maps: list[BlockMap]) -> Tensor:
    for weight, bias, in_stride, out_stride, activation in maps:
        y = block_linear(
            x, weight, bias, in_stride=in_stride, out_stride=out_stride, backend="reference"
        )
        x = ACTIVATIONS[activation](y)
    return x


def results(x: Tensor, maps: list[BlockMap], grad: Tensor, call: Any) -> list[Tensor]:
    """Return the output and the gradients of x and all parameters."""
    leaves = [t.detach().requires_grad_() for m in maps for t in m[:2] if t is not None]
    parts, own = iter(leaves), []
    for m in maps:
        weight = next(parts)
        own.append(m._replace(weight=weight, bias=None if m.bias is None else next(parts)))
    x = x.detach().requires_grad_()
    y = call(x, own)
    return [y.detach(), *torch.autograd.grad(y, [x, *leaves], grad)]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 140),
    widths=st.lists(st.integers(1, 18), min_size=1, max_size=4),
    activations=st.lists(st.sampled_from([None, "gelu", "elu"]), min_size=4, max_size=4),
    across=st.booleans(),
)
def test_equals_separate_linear_layers(
    rows: int, widths: list[int], activations: list[Any], across: bool, backend: str
) -> None:
    maps = make_maps(12, [(6, w) for w in widths], activations[: len(widths)], dtype=torch.float64)
    x = torch.randn(2, rows, 12, dtype=torch.float64)
    x = x.mT.contiguous().mT if across else x
    grad = torch.randn(2, rows, 6 * widths[-1], dtype=torch.float64)
    found = results(x, maps, grad, lambda x, maps: block_mlp(x, maps, backend=backend))
    expected = results(x, maps, grad, one_by_one)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


@needs_kernels
@pytest.mark.parametrize("name", ["gelu", "elu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_activations_of_the_kernel_are_exact(name: str, dtype: torch.dtype) -> None:
    """Values and slopes are exact over the whole range, up to the error of exp(-x^2 / 2)."""
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6, 50.0, -50.0, 3e38, -100.0])
    x = torch.cat([torch.linspace(-14, 14, 20001), special]).to(dtype)[:, None].requires_grad_()
    one = BlockMap(torch.ones(1, 1, 1, dtype=dtype), activation=name)
    y = block_mlp(x, [one], backend="cpu")
    (slope,) = torch.autograd.grad(y.sum(), x)
    wide = x.detach().double().requires_grad_()
    # Use erfc: the 1 + erf of torch's GELU cancels for small values.
    exact = (
        wide * torch.erfc(-wide / 2**0.5) / 2
        if name == "gelu"
        else torch.where(wide > 0, wide, torch.expm1(wide.clamp(max=0.0)))
    )
    (exact_slope,) = torch.autograd.grad(exact.sum(), wide)
    eps = torch.finfo(dtype).eps
    relative = (6 + 2 * wide.detach().clamp(-14, 14) ** 2) * eps
    assert ((y.double() - exact).abs() <= relative * exact.abs() + 1e-37).all()
    torch.testing.assert_close(slope.double(), exact_slope, rtol=6 * eps, atol=2 * eps)


@needs_kernels
def test_nan_and_infinity_behave_as_in_torch() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf")])[:, None].expand(3, 16)
    for name, function in ACTIVATIONS.items():
        one = BlockMap(torch.ones(16, 1, 1), activation=name)
        y = block_mlp(x, [one], backend="cpu")
        torch.testing.assert_close(y, function(x), equal_nan=True)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_in_other_dtypes(dtype: torch.dtype) -> None:
    """Intermediate results are float32: results are rounded once, for any number of layers."""
    torch.manual_seed(0)
    maps = make_maps(121, [(11, 22), (22, 11), (11, 11)], ["gelu", "elu", None])
    maps = [
        m._replace(weight=m.weight.to(dtype), bias=None if m.bias is None else m.bias.to(dtype))
        for m in maps
    ]
    x, grad = torch.randn(2, 70, 121).to(dtype), torch.randn(2, 70, 121).to(dtype)
    found = results(x, maps, grad, lambda x, maps: block_mlp(x, maps, backend="cpu"))
    wide = [
        m._replace(weight=m.weight.double(), bias=None if m.bias is None else m.bias.double())
        for m in maps
    ]
    expected = results(x.double(), wide, grad.double(), one_by_one)
    for ours, exact in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), exact, atol=1e-4, rtol=torch.finfo(dtype).eps)


@needs_kernels
def test_the_kernel_gives_the_same_bits_for_any_number_of_threads() -> None:
    maps = make_maps(64, [(8, 8), (8, 8), (8, 16)], ["gelu", None, "elu"])
    x, grad = torch.randn(5, 700, 64), torch.randn(5, 700, 128)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(x, maps, grad, lambda x, m: block_mlp(x, m, backend="cpu")))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients(backend: str) -> None:
    maps = make_maps(6, [(3, 3), (3, 2)], ["gelu", "elu"], dtype=torch.float64)
    leaves = [t.requires_grad_() for m in maps for t in m[:2] if t is not None]
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)

    def mapped(x: Tensor, weight: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        own = [maps[0]._replace(weight=weight, bias=bias), maps[1]._replace(weight=second)]
        return block_mlp(x, own, backend=backend)

    assert torch.autograd.gradcheck(mapped, (x, *leaves))
    assert torch.autograd.gradgradcheck(mapped, (x, *leaves))


@needs_kernels
def test_backward_keeps_only_the_input_and_the_parameters() -> None:
    maps = make_maps(64, [(8, 32), (32, 8), (8, 8)], ["gelu", "elu", None])
    weights = [m.weight.requires_grad_() for m in maps]
    x = torch.randn(100, 64, requires_grad=True)
    kept: list[int] = []

    def pack(saved: Tensor) -> Tensor:
        kept.append(saved.numel())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        block_mlp(x, maps, backend="cpu")
    parameters = sum(t.numel() for m in maps for t in m[:2] if t is not None)
    assert sorted(kept) == sorted([x.numel(), parameters])
    assert weights


@needs_kernels
def test_auto_uses_the_kernel_if_it_is_faster() -> None:
    """A fused chain stores no intermediate results, so "auto" accepts wider blocks."""

    def is_taken(width: int, rows: int, length: int) -> bool:
        weight = torch.randn(8, width, width)
        with torch.profiler.profile() as profile:
            block_mlp(torch.randn(rows, 8 * width), length * [BlockMap(weight)])
        return "rifflemix::block_maps" in {event.key for event in profile.key_averages()}

    widest = 32 if instruction_level() == 4 else 16
    assert is_taken(widest, 600, 2)
    assert not is_taken(widest, 600, 1)
    assert not is_taken(widest + 1, 600, 2)
    assert not is_taken(8, 600, 2)


@needs_kernels
def test_only_requested_gradients_are_computed() -> None:
    maps = make_maps(6, [(3, 4), (3, 2)], ["gelu", None])
    tensors = [torch.randn(20, 6), *(t for m in maps for t in m[:2] if t is not None)]
    for asked in tensors:
        asked.requires_grad_()
        block_mlp(tensors[0], maps, backend="cpu").sum().backward()
        assert asked.grad is not None
        assert all(t.grad is None for t in tensors if t is not asked)
        asked.requires_grad_(False)
        asked.grad = None


@needs_kernels
def test_compile_and_vmap_do_not_change_results() -> None:
    maps = make_maps(64, [(8, 8), (8, 8)], ["gelu", None])
    x = torch.randn(20, 70, 64)
    expected = block_mlp(x, maps)
    mapped = torch.func.vmap(lambda one: block_mlp(one, maps))(x)
    torch.testing.assert_close(mapped, expected)
    compiled = torch.compile(lambda x: block_mlp(x, maps), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.slow
@needs_kernels
@needs_compiler
@pytest.mark.parametrize(("instructions", "level"), INSTRUCTION_SETS)
def test_instruction_sets(
    instructions: str, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build each instruction set of the library alone. Any processor runs the shorter vectors."""
    names = ("block_maps", "tokens", "threads")
    library = compile_kernels(names, instructions, level, tmp_path)
    monkeypatch.setattr(cpu, "_KERNELS", library)
    for dtype, rows in itertools.product((torch.float32, torch.float64), (1, 17, 64, 131)):
        maps = make_maps(12, [(6, 1), (3, 9), (3, 17), (3, 4)], ["gelu", "elu", None, "gelu"])
        maps = [m._replace(weight=m.weight.to(dtype), bias=None) for m in maps]
        x, grad = torch.randn(2, rows, 12, dtype=dtype), torch.randn(2, rows, 12, dtype=dtype)
        found = results(x, maps, grad, lambda x, maps: block_mlp(x, maps, backend="cpu"))
        for ours, theirs in zip(found, results(x, maps, grad, one_by_one), strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def test_empty_input() -> None:
    maps = make_maps(6, [(3, 4), (3, 2)], ["gelu", None])
    x = torch.randn(2, 0, 6, requires_grad=True)
    y = block_mlp(x, maps)
    assert y.shape == (2, 0, 6)
    y.sum().backward()
    assert x.grad is not None


W = torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    ("maps", "named"),
    [
        ([], "maps:"),
        (W, "maps: .*BlockMap"),
        ([(W, None, 1, 1, None)], "maps: .*BlockMap"),
        ([BlockMap(torch.randn(2, 4, 4))], r"x: .*got \(2, 6\)"),
        ([BlockMap(W), BlockMap(W)], r"maps\[1\].weight: .*in = 8"),
        ([BlockMap(W.double())], r"maps\[0\].weight: .*got torch\.float64"),
        ([BlockMap(W, torch.randn(4))], r"maps\[0\].bias: .*got \(4,\)"),
        ([BlockMap(W, activation="tanh")], r"maps\[0\].activation: expected"),
        ([BlockMap(W, in_stride=3)], r"maps\[0\].in_stride: .*got 3"),
        ([BlockMap(W, out_stride=0)], r"maps\[0\].out_stride: .*got 0"),
    ],
)
def test_bad_arguments_are_refused(maps: Any, named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        block_mlp(torch.randn(2, 6), maps)
