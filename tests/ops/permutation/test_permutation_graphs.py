"""Compiled permutation kernels in graphs, and the choice between kernels and eager code."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from kernel_checks import (
    DTYPES,
    ORDERS,
    check,
    check_filter,
    mask_of,
    needs_kernels,
    options_of,
    same,
    values,
)
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.ops import (
    channel_permute,
    circular_shift,
    group_sort,
    max_exchange,
    shift_steps,
)
from rifflemix.ops.permutation import cpu, cpu_common
from single_instruction_set import INSTRUCTION_SETS, compile_kernels, needs_compiler

pytestmark = needs_kernels

OPERATIONS = {
    "group_sort": (cpu._sort_groups, (2, 4, None, None, None, torch.int64)),
    "group_sort, masked": (cpu._sort_groups, (2, 0, "flip", "mask", "steps", torch.int32)),
    "group_sort, no index": (cpu._sort_groups, (2, 4, None, None, None, None)),
    "scatter": (cpu._scatter, ("index", "mask", 1)),
    "sort_pairs": (cpu._sort_pairs, (4, None, "mask", "steps", True)),
    "exchange_pairs": (cpu._exchange_pairs, ("swaps", "mask", "steps")),
    "circular_shift": (cpu._shift, ("steps", "mask")),
    "first_largest": (cpu._first_largest, ("mask",)),
    "swap_positions": (cpu._swap_positions, ("first", "second", "mask")),
}

WITHOUT_GRADIENT = ("group_sort, no index", "first_largest")


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.slow
def test_operators_pass_opcheck(name: str) -> None:
    operation, arguments = OPERATIONS[name]
    tensors = {
        "flip": torch.arange(8) % 2 == 0,
        "mask": torch.arange(24).view(2, 12) % 5 == 0,
        "steps": torch.arange(8),
        "index": torch.arange(12).view(1, 12, 1).expand(2, 12, 8).contiguous(),
        "swaps": torch.rand(2, 6, 8) < 0.5,
        "first": torch.zeros(2, 1, 8, dtype=torch.int64),
        "second": torch.full((2, 1, 8), 3),
    }
    x = torch.randn(2, 12, 8, requires_grad=name not in WITHOUT_GRADIENT)
    given_ = [tensors.get(a, a) if isinstance(a, str) else a for a in arguments]
    torch.library.opcheck(operation.overload, (x, *given_))


def test_a_sort_without_index_has_no_gradient() -> None:
    x = torch.randn(2, 12, 8, requires_grad=True)
    y, _ = cpu._sort_groups(x, 2, 0, None, None, None, None)
    with pytest.raises(InputError, match="index"):
        y.sum().backward()
    y, _ = cpu._sort_pairs(x, 0, None, None, None, False)
    with pytest.raises(InputError, match="swaps"):
        y.sum().backward()


class AllOperators(nn.Module):
    """Apply all permutation operators in sequence."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        steps = shift_steps("linear", x.shape[1], x.shape[2], device=x.device)
        options = {"key_padding_mask": mask, "backend": self.backend}
        x = group_sort(x, order="ascending", **options)
        x = channel_permute(x, steps, 8, **options)
        x = group_sort(circular_shift(x, steps, **options), x.shape[1] // 2, **options)
        return max_exchange(x, **options)


def tokens_and_mask(length: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, length, 64, requires_grad=True), torch.rand(2, length) < 0.2


def calls_kernels(program: torch.export.ExportedProgram) -> bool:
    return any("rifflemix." in str(node.target) for node in program.graph.nodes)


# Warning of torch's own modules on their first import.
old_warning = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)


@old_warning
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_operators_equal_eager(dynamic: bool) -> None:
    torch._dynamo.reset()
    run = torch.compile(AllOperators("auto"), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (64, 80):
        x, mask = tokens_and_mask(length)
        weight = torch.randn(x.shape)
        y = run(x, mask)
        expected = AllOperators("eager")(x, mask)
        assert same(y, expected)
        gradients = [torch.autograd.grad(out, x, weight)[0] for out in (y, expected)]
        assert torch.equal(*gradients)


@pytest.mark.slow
@old_warning
@pytest.mark.parametrize(("backend", "kernels"), [("auto", False), ("eager", False), ("cpu", True)])
def test_exported_operators_equal_eager(backend: str, kernels: bool) -> None:
    """An exported program contains no compiled kernels, unless the backend is "cpu"."""
    x, mask = tokens_and_mask(64)
    program = torch.export.export(AllOperators(backend), (x, mask))
    assert calls_kernels(program) == kernels
    assert same(program.module()(x, mask), AllOperators("eager")(x, mask))


@old_warning
def test_function_transforms_use_the_eager_backend() -> None:
    x, tangent = torch.randn(2, 64, 64), torch.randn(2, 64, 64)
    y, found = torch.func.jvp(group_sort, (x,), (tangent,))
    _, index = group_sort(x, return_indices=True)
    assert torch.equal(y, group_sort(x))
    assert torch.equal(found, tangent.gather(1, index))
    stacked = torch.func.vmap(group_sort)(torch.stack((x, tangent)))
    assert torch.equal(stacked[1], group_sort(tangent))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        found = torch.autograd.forward_ad.unpack_dual(group_sort(dual)).tangent
    assert torch.equal(found, tangent.gather(1, index))


def test_auto_uses_the_kernels_if_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(cpu, "permute", lambda x, *_: called.append(x.shape) or (x, None))
    group_sort(torch.randn(1, 64, 64))
    group_sort(torch.randn(1, 8, 8))
    group_sort(torch.randn(1, 64, 64, dtype=torch.float64))
    assert called == [(1, 64, 64)]


def test_available_backends() -> None:
    with pytest.raises(InputError, match=r"backend: .*'cpu'"):
        group_sort(torch.randn(1, 4, 4, dtype=torch.float64), backend="cpu")


def test_eager_is_used_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(2, 64, 64, torch.float32)
    expected = group_sort(x)
    monkeypatch.setattr(cpu_common, "_KERNELS", None)
    assert same(group_sort(x), expected)
    with pytest.raises(InputError, match="backend"):
        circular_shift(x, [0] * 64, backend="cpu")


def test_old_processors_sort_long_keys_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "SORTS_LONG_KEYS", False)
    with pytest.raises(InputError, match="backend"):
        group_sort(torch.zeros(1, (1 << 15) + 1, 1, dtype=torch.bfloat16), backend="cpu")
    x = torch.randn(1, 64, 64)
    with pytest.raises(InputError, match="backend"):
        group_sort(x, backend="cpu")
    group_sort(x, 32, backend="cpu")
    group_sort(x.bfloat16(), backend="cpu")


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("instructions", "level"), INSTRUCTION_SETS)
def test_instruction_sets(
    instructions: str, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each instruction set of the library works when built alone."""
    names = ("sort", "pairs", "shift", "scatter", "largest", "memory", "threads")
    names += ("rank_filter", "rank_filter_short", "rank_filter_back")
    library = compile_kernels(names, instructions, level, tmp_path)
    monkeypatch.setattr(cpu_common, "_KERNELS", library)
    for dtype, length in itertools.product(DTYPES, (1, 7, 16, 64, 300, 600)):
        x, mask = values(2, length, 40, dtype), mask_of(1, length)
        groups = math.ceil(length / 2) if length % 2 == 0 else 1
        for order, count in itertools.product(ORDERS, (1, groups)):
            options = options_of(order, 40) | {"key_padding_mask": mask}
            check(group_sort, x, count, **options)
        check(channel_permute, x, torch.arange(40) * 5, groups, key_padding_mask=mask)
        check(circular_shift, x, torch.arange(40) * 5)
        check_filter(x, torch.arange(40) % 5, 5)
        check(max_exchange, x)
