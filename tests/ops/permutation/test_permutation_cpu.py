"""The compiled kernels give exactly the values, indices and gradients of the eager backend."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from collections.abc import Callable
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from permutation_cases import MASK_TENSORS, tied, tokens
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.ops import (
    channel_permute,
    circular_shift,
    group_sort,
    max_exchange,
    native,
    rank_filter,
    shift_steps,
)
from rifflemix.ops.permutation import cpu, cpu_common

NATIVE = Path(native.__file__).parent
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = (*range(1, 71), 127, 128, 129, 255, 256, 257, 513, 1000)
CHANNELS = (1, 3, 16, 17, 33)
ORDERS: dict[str, dict[str, Any]] = {
    "reference": {"order": "reference"},
    "ascending": {"order": "ascending"},
    "descending": {"order": "descending"},
    "mixed": {"descending": True},
}

pytestmark = pytest.mark.skipif(
    native.instruction_level() < 3, reason="the compiled kernels, or AVX2, are missing"
)

Operator = Callable[..., Any]


def values(batch: int, length: int, channels: int, dtype: torch.dtype) -> Tensor:
    """Create values with some ties, zeros of either sign, infinities and NaN."""
    x = torch.randn(batch, length, channels).to(dtype)
    x = torch.where(torch.rand(x.shape) < 0.5, tied(batch, length, channels, dtype), x)
    return torch.where(torch.rand(x.shape) < 0.1, torch.full_like(x, float("nan")), x)


def same(a: Tensor, b: Tensor) -> bool:
    """Compare values, signs of zeros, and positions of NaN."""
    numbers = torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5))
    signs = torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())
    return numbers and signs and torch.equal(a.isnan(), b.isnan())


def check_filter(x: Tensor, ranks: Tensor, window_size: int) -> None:
    """Compare values and gradients. Integer weights make the sums of the gradient exact."""
    weight, x = torch.randint(-3, 4, x.shape).to(x), x.detach().requires_grad_()
    results = []
    for backend in ("eager", "cpu"):
        y = rank_filter(x, ranks, window_size, backend=backend)
        results.append((y, torch.autograd.grad(y, x, weight)[0]))
    assert all(map(same, *results))


def check(operator: Operator, x: Tensor, *arguments: Any, **options: Any) -> None:
    """Compare with eager: with and without indices, and with gradients."""
    weight = torch.randn(x.shape).to(x)
    x = x.detach().requires_grad_()
    expected, expected_index = operator(
        x, *arguments, return_indices=True, backend="eager", **options
    )
    (expected_gradient,) = torch.autograd.grad(expected, x, weight)
    y, index = operator(x, *arguments, return_indices=True, backend="cpu", **options)
    assert torch.equal(index, expected_index)
    for found in (y, operator(x, *arguments, backend="cpu", **options)):
        assert same(found, expected)
        assert torch.equal(torch.autograd.grad(found, x, weight)[0], expected_gradient)
    with torch.no_grad():
        y = operator(x, *arguments, backend="cpu", **options)
    assert same(y, expected)
    assert y.is_contiguous()


def largest_divisor(number: int, most: int) -> int:
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= most)


def options_of(order: str, channels: int) -> dict[str, Any]:
    if order == "mixed":
        return {"descending": torch.arange(channels) % 3 == 0}
    return ORDERS[order]


def mask_of(kind: int, length: int) -> Tensor | None:
    """Return no mask, a mask with little padding, or a mask with much padding."""
    return None if kind == 0 else torch.rand(2, length) < (0.1, 0.8)[kind - 1]


@pytest.mark.parametrize("channels", CHANNELS)
def test_sort_of_all_tokens(channels: int) -> None:
    kinds = itertools.cycle(itertools.product(DTYPES, ORDERS, range(3), (1, 2)))
    for length in LENGTHS:
        dtype, order, mask, some = next(kinds)
        options = options_of(order, channels) | {"key_padding_mask": mask_of(mask, length)}
        heads = largest_divisor(channels, 3 * some)
        check(group_sort, values(2, length, channels, dtype), heads=heads, **options)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 15, 16, 31, 64, 100])
def test_groups(size: int, order: str) -> None:
    for dtype, mask, groups in zip(DTYPES, range(3), (1, 3, 20), strict=True):
        length = size * groups
        options = {"heads": 6, "key_padding_mask": mask_of(mask, length), **options_of(order, 42)}
        check(group_sort, values(2, length, 42, dtype), groups, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 2, 4, 32, 64])
def test_heads(heads: int, dtype: torch.dtype) -> None:
    x = values(2, 60, 64, dtype)
    for groups in (1, 5, 30):
        check(group_sort, x, groups, heads=heads)
        check(channel_permute, x, torch.arange(64) * 7, groups, heads=heads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 70, 200])
def test_shifts(length: int, dtype: torch.dtype) -> None:
    for channels, mask in itertools.product((5, 16, 32, 40), range(3)):
        x = values(2, length, channels, dtype)
        steps = torch.randint(-2 * length, 2 * length + 1, (channels,))
        options = {"key_padding_mask": mask_of(mask, length)}
        check(circular_shift, x, steps, **options)
        check(max_exchange, x, **options)
        check(channel_permute, x, steps, 1, order="descending", **options)
        if length % 2 == 0:
            check(channel_permute, x, steps, length // 2, **options)
            check(channel_permute, x, steps, length // 2, order="descending", **options)


@pytest.mark.parametrize("mask", MASK_TENSORS)
def test_padding_anywhere(mask: str) -> None:
    options = {"key_padding_mask": MASK_TENSORS[mask]}
    x = values(3, 12, 24, torch.float32)
    for groups, order in itertools.product((1, 2, 6, 12), ("reference", "ascending", "descending")):
        check(group_sort, x, groups, order=order, **options)
        check(channel_permute, x, list(range(24)), groups, order=order, **options)
    check(circular_shift, x, list(range(24)), **options)
    check(max_exchange, x, **options)


@settings(max_examples=60, deadline=None)
@given(case=tokens(), order=st.sampled_from(list(ORDERS)))
def test_any_tokens(case: tuple[Tensor, Tensor | None, int], order: str) -> None:
    x, mask, groups = case
    x = x if x.dtype in DTYPES else x.float()
    channels = x.shape[2]
    check(group_sort, x, groups, key_padding_mask=mask, **options_of(order, channels))
    if order != "mixed":
        steps = torch.randint(-9, 9, (channels,))
        check(channel_permute, x, steps, groups, order=order, key_padding_mask=mask)
    check(max_exchange, x, key_padding_mask=mask)


@pytest.mark.parametrize("length", [32768, 32769, 65536, 65537])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_long_sequences(length: int, dtype: torch.dtype) -> None:
    """Lengths around the limit of 16-bit indices in sort keys and in the backward pass."""
    check(group_sort, values(1, length, 2, dtype), order="ascending")


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda x: torch.cat((x, x), dim=2)[:, :, : x.shape[2]],
        lambda x: torch.cat((x, x), dim=1)[:, : x.shape[1]],
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x[:, :, :1].expand_as(x),
        lambda x: x[:1].expand_as(x),
        lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    ],
    ids=["channels", "tokens", "transposed", "one channel", "one sample", "every second"],
)
def test_memory_layouts(lay_out: Callable[[Tensor], Tensor]) -> None:
    x = lay_out(values(2, 24, 20, torch.float32))
    for groups in (1, 12):
        check(group_sort, x, groups)
        check(channel_permute, x, torch.arange(20), groups)
    check(max_exchange, x)
    y = group_sort(values(2, 24, 20, torch.float32).requires_grad_(), 12, backend="cpu")
    y.backward(lay_out(torch.randn(2, 24, 20)))


def test_threads_and_batch_change_nothing() -> None:
    x = values(3, 256, 100, torch.float32)
    steps = torch.arange(100)
    operators: list[Operator] = [
        group_sort,
        lambda x: group_sort(x, 128),
        lambda x: group_sort(x, 4, order="ascending"),
        lambda x: channel_permute(x, steps, 128),
        lambda x: circular_shift(x, steps),
        max_exchange,
    ]
    threads = torch.get_num_threads()
    try:
        for operator in operators:
            torch.set_num_threads(1)
            alone = torch.cat([operator(sample) for sample in x.split(1)])
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                assert same(operator(x), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("groups", [1, 12])
@pytest.mark.parametrize("shifted", [False, True])
def test_second_order_gradients(groups: int, shifted: bool) -> None:
    mask = torch.rand(2, 24) < 0.3
    found = []
    x, weight, other = (torch.randn(2, 24, 20) for _ in range(3))
    for backend in ("eager", "cpu"):
        leaf, direction = x.clone().requires_grad_(), weight.clone().requires_grad_()
        options = {"key_padding_mask": mask, "backend": backend}
        if shifted:
            y = channel_permute(leaf, torch.arange(20), groups, **options)
        else:
            y = max_exchange(group_sort(leaf, groups, **options), **options)
        (gradient,) = torch.autograd.grad(y, leaf, direction, create_graph=True)
        found.append(torch.autograd.grad(gradient, direction, other)[0])
    assert torch.equal(*found)


def test_tensors_saved_for_backward_are_small() -> None:
    x = torch.randn(2, 64, 48, requires_grad=True)

    def kept(operator: Operator) -> int:
        sizes = []

        def note(saved: Tensor) -> Tensor:
            sizes.append(saved.nbytes)
            return saved

        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            operator()
        return sum(sizes)

    assert kept(lambda: group_sort(x, backend="cpu")) == 2 * x.numel()
    assert kept(lambda: group_sort(x, 32, backend="cpu")) == x.numel() // 2
    assert kept(lambda: group_sort(x.detach(), backend="cpu")) == 0


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
def test_operator_registration(name: str) -> None:
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


class Everything(nn.Module):
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


def both(length: int) -> tuple[Tensor, Tensor]:
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
def test_compile(dynamic: bool) -> None:
    torch._dynamo.reset()
    run = torch.compile(Everything("auto"), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (64, 80):
        x, mask = both(length)
        weight = torch.randn(x.shape)
        y = run(x, mask)
        expected = Everything("eager")(x, mask)
        assert same(y, expected)
        gradients = [torch.autograd.grad(out, x, weight)[0] for out in (y, expected)]
        assert torch.equal(*gradients)


@pytest.mark.slow
@old_warning
@pytest.mark.parametrize(("backend", "kernels"), [("auto", False), ("eager", False), ("cpu", True)])
def test_export(backend: str, kernels: bool) -> None:
    """An exported program contains no compiled kernels, unless the backend is "cpu"."""
    x, mask = both(64)
    program = torch.export.export(Everything(backend), (x, mask))
    assert calls_kernels(program) == kernels
    assert same(program.module()(x, mask), Everything("eager")(x, mask))


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
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize(("instructions", "level"), [("x86-64-v3", 3), ("x86-64-v4", 4)])
def test_instruction_sets(
    instructions: str, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each instruction set of the library works when built alone."""
    if native.instruction_level() < level:
        pytest.skip("this processor cannot run it")
    names = ("sort", "pairs", "shift", "scatter", "largest", "memory", "threads")
    names += ("rank_filter", "rank_filter_short", "rank_filter_back")
    library = tmp_path / "kernels.so"
    flags = ("-std=c++17", "-O2", "-fno-math-errno", "-Wno-psabi", "-pthread", "-fPIC", "-shared")
    subprocess.run(
        ["g++", *flags, "-DRIFFLEMIX_ONE_INSTRUCTION_SET", f"-march={instructions}"]
        + [str(NATIVE / f"{name}.cpp") for name in names]
        + ["-o", str(library)],
        check=True,
        timeout=300,
    )
    monkeypatch.setattr(cpu_common, "_KERNELS", CDLL(str(library)))
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


class Deaf(torch.autograd.Function):
    """Pass the input on, but return no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


@pytest.mark.parametrize("groups", [1, 128])
def test_undefined_output_gradient_gives_no_input_gradient(groups: int) -> None:
    x = torch.randn(1, 256, 64, requires_grad=True)
    Deaf.apply(group_sort(x, groups, backend="cpu")).sum().backward()
    assert x.grad is None
