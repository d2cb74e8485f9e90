"""The Triton kernels give exactly the values, indices and gradients of the eager backend."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_checks import same
from permutation_cases import check_permutation, in_turn, tied
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import channel_permute, circular_shift, group_sort, shift_steps

sys.path.append(str(Path(__file__).parents[1]))
from triton_device import DEVICE, INTERPRETED, on_gpu, require_kernels

require_kernels()

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ORDERS = ("reference", "ascending", "descending", "mixed")


def numbers(batch: int, length: int, channels: int, dtype: torch.dtype) -> Tensor:
    """Create values with ties, zeros of either sign, infinities and NaN."""
    x = tied(batch, length, channels, dtype)
    return torch.where(torch.rand(x.shape) < 0.1, torch.full_like(x, float("nan")), x).to(DEVICE)


def options_of(order: str, channels: int) -> dict[str, object]:
    if order == "mixed":
        return {"descending": (torch.arange(channels) % 3 == 0).to(DEVICE)}
    return {"order": order}


def check(operator: object, x: Tensor, *arguments: object, **options: object) -> None:
    """Check that values, indices and gradients exactly equal the eager backend."""
    x = x.requires_grad_()
    mask = options.get("key_padding_mask")
    weight = torch.randn(x.shape).to(x)
    found = {}
    for backend in ("triton", "eager"):
        y, index = operator(x, *arguments, return_indices=True, backend=backend, **options)
        found[backend] = (y, index, torch.autograd.grad(y, x, weight)[0])
    y, index, gradient = found["triton"]
    expected, expected_index, expected_gradient = found["eager"]
    assert torch.equal(index, expected_index)
    assert same(y, expected)
    assert torch.equal(gradient, expected_gradient)
    check_permutation(
        x.detach().cpu(), y.detach().cpu(), index.cpu(), None if mask is None else mask.cpu()
    )
    with torch.no_grad():
        assert same(operator(x, *arguments, backend="triton", **options), expected)


# (N, groups): pairs, full and padded windows, one window of all tokens.
GRID = [(12, 6), (12, 3), (7, 1), (3, 3)]


@pytest.mark.parametrize(("shape", "order"), in_turn(GRID, ORDERS))
def test_group_sort(shape: tuple[int, int], order: str) -> None:
    length, groups = shape
    dtype = DTYPES[ORDERS.index(order) % 3]
    x = numbers(2, length, 6, dtype)
    check(group_sort, x, groups, heads=2, **options_of(order, 6))


def test_pairs_of_many_channels() -> None:
    """Channel tiles follow one reference channel, in another tile or in the same tile."""
    check(group_sort, numbers(2, 6, 300, torch.bfloat16), 3)
    check(channel_permute, numbers(2, 6, 256, torch.bfloat16), list(range(256)), 3)


@pytest.mark.parametrize(("groups", "order"), in_turn([6, 3], ["reference", "mixed"]))
def test_group_sort_with_padding(groups: int, order: str) -> None:
    mask = (torch.rand(3, 12) < 0.4).to(DEVICE)
    mask[1] = True
    x = numbers(3, 12, 4, torch.bfloat16 if order == "mixed" else torch.float32)
    check(group_sort, x, groups, key_padding_mask=mask, **options_of(order, 4))


@pytest.mark.parametrize(("shape", "order"), in_turn(GRID[:3], ["reference", "descending"]))
def test_channel_permute(shape: tuple[int, int], order: str) -> None:
    length, groups = shape
    steps = torch.tensor([0, 5, -1, 12, 25, -30], device=DEVICE)
    x = numbers(2, length, 6, torch.float32 if order == "reference" else torch.bfloat16)
    check(channel_permute, x, steps, groups, order=order, heads=1 + (order == "reference"))


def test_channel_permute_with_padding() -> None:
    mask = (torch.rand(3, 12) < 0.4).to(DEVICE)
    x = numbers(3, 12, 4, torch.float32)
    check(channel_permute, x, [0, 5, -1, 7], 6, key_padding_mask=mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_circular_shift(dtype: torch.dtype) -> None:
    check(circular_shift, numbers(2, 9, 5, dtype), [0, 1, -4, 9, 100])


# The interpreter needs 15 seconds for a window of 64, or of 32 in bfloat16. The GPU tests below use
# windows of thousands.
@pytest.mark.parametrize(
    ("length", "groups", "order", "dtype"),
    [
        *((1, 1, "mixed", dtype) for dtype in DTYPES[:2]),
        (10, 2, "reference", DTYPES[0]),
        (13, 1, "mixed", DTYPES[1]),
        pytest.param(34, 2, "reference", torch.float32, marks=pytest.mark.slow),
        pytest.param(20, 1, "mixed", torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_longer_windows(length: int, groups: int, order: str, dtype: torch.dtype) -> None:
    check(group_sort, numbers(1, length, 3, dtype), groups, **options_of(order, 3))


@pytest.mark.parametrize(
    ("shape", "dtype", "order"),
    [
        ((9, 1), torch.float16, "ascending"),
        ((24, 2), torch.bfloat16, "mixed"),
        ((16, 1), torch.float32, "descending"),
    ],
    ids=str,
)
def test_transposed_windows(
    shape: tuple[int, int], dtype: torch.dtype, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long windows are sorted in a transposed copy, with the tokens of a channel contiguous."""
    from rifflemix.ops.permutation import triton_windows as windows

    monkeypatch.setattr(windows, "_MOST_ACROSS", 8)
    turn, turned = windows._turn, []

    def noted(x: Tensor, y: Tensor) -> Tensor:
        turned.append(x.dtype)
        return turn(x, y)

    monkeypatch.setattr(windows, "_turn", noted)
    length, groups = shape
    x = numbers(1, length, 4, dtype)
    check(group_sort, x, groups, heads=2, **options_of(order, 4))
    # Transpose and back: values and order, then values alone (in pairs if the GPU compares halves).
    in_pairs = dtype != torch.float32 and windows._compares_halves(x.device)
    alone = torch.int32 if in_pairs else dtype
    assert turned == [dtype, dtype, torch.uint8, alone, alone]
    if order != "mixed":
        check(channel_permute, x.detach().abs(), [0, 1, 5, 3], groups, heads=2, order=order)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("zeros", ["none negative", "some negative"])
@pytest.mark.parametrize(
    ("length", "groups", "order"), [(12, 3, "ascending"), (5, 1, "mixed"), (9, 3, "descending")]
)
def test_values_without_index(
    length: int,
    groups: int,
    order: str,
    zeros: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two channels are sorted at a time if there is no -0.0, otherwise each channel separately."""
    from rifflemix.ops.permutation import triton_windows as windows

    left: list[int] = []
    by_pairs = windows._sort_values

    def counted(*arguments: Any) -> Tensor:
        marks = by_pairs(*arguments)
        left.append(int(marks.sum()))
        return marks

    monkeypatch.setattr(windows, "_sort_values", counted)
    x = numbers(2, length, 6, dtype)
    if zeros == "none negative":
        x = torch.where(x == 0, 0.0, x)
    else:
        x[:, :, 2:] = x[:, :, 2:].abs()
        x[0, 1, 0] = -0.0
    found, expected = (
        group_sort(x, groups, backend=backend, **options_of(order, 6))
        for backend in ("triton", "eager")
    )
    assert same(found, expected)
    if windows._compares_halves(x.device):
        assert [count > 0 for count in left] == [zeros == "some negative"]


def test_values_without_index_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second kernel skips windows that the first kernel has sorted."""
    from rifflemix.ops.permutation import triton_windows as windows

    def leave_the_last_sample(x: Tensor, y: Tensor, *_: Any) -> Tensor:
        y.fill_(7.0)
        left = torch.zeros(2, 32, dtype=torch.uint8, device=x.device)
        left[1] = 1
        return left

    monkeypatch.setattr(windows, "_sort_values", leave_the_last_sample)
    monkeypatch.setattr(windows, "_compares_halves", lambda _: True)
    x = numbers(2, 64, 64, torch.bfloat16)
    y = group_sort(x, 1, order="ascending", backend="triton")
    assert (y[0] == 7.0).all()
    assert same(y[1], group_sort(x, 1, order="ascending", backend="eager")[1])


def test_values_without_index_of_shifted_channels() -> None:
    x = numbers(1, 6, 4, torch.bfloat16).abs()
    found, expected = (
        channel_permute(x, [0, 1, 4, 5], 1, order="ascending", backend=backend)
        for backend in ("triton", "eager")
    )
    assert same(found, expected)


def test_tokens_that_are_not_contiguous() -> None:
    x = numbers(2, 5, 12, torch.float32).transpose(1, 2)
    check(group_sort, x, 6)
    check(group_sort, numbers(2, 24, 5, torch.float32)[:, ::2], 3)
    check(circular_shift, x, [1, 2, 3, 4, 5])


def test_a_gradient_that_is_not_contiguous() -> None:
    x = torch.randn(2, 6, 4, device=DEVICE, requires_grad=True)
    for groups in (3, 2):
        weight = torch.randn(2, 4, 6, device=DEVICE).transpose(1, 2)
        gradients = [
            torch.autograd.grad(group_sort(x, groups, backend=backend), x, weight)[0]
            for backend in ("triton", "eager")
        ]
        assert torch.equal(*gradients)
        total = torch.autograd.grad(group_sort(x, groups, backend="triton").sum(), x)[0]
        assert torch.equal(total, torch.ones_like(x))


def test_gradient_of_a_gradient() -> None:
    x = torch.randn(1, 6, 3, device=DEVICE, requires_grad=True)
    for groups in (3, 2):
        second = []
        for backend in ("triton", "eager"):
            y = channel_permute(x, [0, 1, 2], groups, backend=backend)
            (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
            second.append(torch.autograd.grad((first**2).sum(), x)[0])
        torch.testing.assert_close(*second)


def test_empty_batch() -> None:
    x = torch.zeros(0, 6, 3, device=DEVICE, requires_grad=True)
    y, index = channel_permute(x, [0, 1, 2], 2, return_indices=True, backend="triton")
    assert y.shape == index.shape == x.shape
    y.sum().backward()


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [(circular_shift, ([1, 2],)), (group_sort, (6,)), (channel_permute, ([1, 2], 3))],
    ids=["shift", "pairs", "permute"],
)
@pytest.mark.slow
def test_compiles_to_one_graph(operator: object, arguments: tuple[object, ...]) -> None:
    x = torch.randn(2, 12, 2, device=DEVICE, requires_grad=True)

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        return operator(x, *arguments, return_indices=True, backend="triton")

    y, index = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    expected, expected_index = call(x)
    assert torch.equal(y, expected)
    assert torch.equal(index, expected_index)
    weight = torch.randn_like(y)
    gradients = [torch.autograd.grad(out, x, weight)[0] for out in (y, expected)]
    assert torch.equal(*gradients)


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [3, 2], ids=["pairs", "sort"])
def test_opcheck(num_groups: int) -> None:
    x = torch.randn(2, 6, 2, device=DEVICE, requires_grad=True)
    steps = torch.tensor([1, 2], device=DEVICE)
    operators = torch.ops.rifflemix
    group_sort(x, num_groups, backend="triton")  # registers the operators
    inputs = (x, steps, None, None, num_groups, True, 1, True)
    torch.library.opcheck(operators.triton_group_sort, inputs)
    _, code = operators.triton_group_sort(*inputs)
    torch.library.opcheck(operators.triton_group_unsort, (x, code, steps, None, num_groups))
    torch.library.opcheck(operators.triton_shift, (x, steps))


def test_an_exported_program_needs_no_kernels() -> None:
    class Sort(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return group_sort(x, order="ascending")

    x = torch.randn(2, 6, 2, device=DEVICE)
    any_length = {"x": {1: torch.export.Dim("length", min=3)}}
    program = torch.export.export(Sort(), (x,), dynamic_shapes=any_length)
    assert "triton" not in str(program.graph)
    longer = torch.randn(2, 9, 2, device=DEVICE)
    assert torch.equal(program.module()(longer), longer.sort(dim=1).values)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU it does choose the kernels")
def test_auto_never_interprets() -> None:
    x = torch.randn(1, 4, 2, requires_grad=True)
    assert "Triton" not in type(group_sort(x, 2).grad_fn).__name__


def refused() -> list[object]:
    x = torch.randn(1, 4, 2, device=DEVICE)
    mask = torch.zeros(1, 4, dtype=torch.bool, device=DEVICE)
    return [
        pytest.param(group_sort, (x.double(),), {}, id="float64"),
        pytest.param(group_sort, (torch.zeros(1, 2**15, 1, device=DEVICE),), {}, id="window"),
        pytest.param(circular_shift, (x, [0, 1]), {"key_padding_mask": mask}, id="masked-shift"),
    ]


@pytest.mark.parametrize(("operator", "arguments", "options"), refused())
def test_unsupported_inputs_are_refused(
    operator: object, arguments: tuple[object, ...], options: dict[str, object]
) -> None:
    with pytest.raises(InputError, match="backend:"):
        operator(*arguments, backend="triton", **options)
    operator(*arguments, **options)


class TestOnGpu:
    """Large sizes, on a GPU."""

    pytestmark = on_gpu

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize(
        ("length", "groups"),
        [(4096, 2048), (4096, 256), (4096, 64), (4096, 16), (4096, 4), (4096, 1), (4000, 1),
         (197, 1), (1000, 5), (2048, 1), (8192, 1), (3 * 1024, 3), (576, 2)],
    )  # fmt: skip
    def test_group_sort(self, length: int, groups: int, order: str, dtype: torch.dtype) -> None:
        check(group_sort, numbers(3, length, 192, dtype), groups, heads=3, **options_of(order, 192))

    @pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
    @pytest.mark.parametrize("order", ["ascending", "mixed"])
    @pytest.mark.parametrize(
        ("length", "groups"), [(4096, 64), (1024, 1), (4096, 1), (4000, 1), (16384, 1)]
    )
    def test_values_without_index(
        self, length: int, groups: int, order: str, dtype: torch.dtype
    ) -> None:
        x = numbers(3, length, 192, dtype)
        x[1:] = torch.where(x[1:] == 0, 0.0, x[1:])
        found, expected = (
            group_sort(x, groups, backend=backend, **options_of(order, 192))
            for backend in ("triton", "eager")
        )
        assert same(found, expected)

    @pytest.mark.parametrize("length", [10000, 16384])
    def test_longest_windows(self, length: int) -> None:
        check(group_sort, numbers(2, length, 40, torch.bfloat16), order="ascending")

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("groups", [2048, 512, 64, 1])
    @pytest.mark.parametrize("channels", [1, 7, 128, 200])
    def test_channel_permute(self, channels: int, groups: int, dtype: torch.dtype) -> None:
        steps = torch.randint(-(2**31), 2**31, (channels,), device=DEVICE)
        check(channel_permute, numbers(2, 4096, channels, dtype), steps, groups)

    @pytest.mark.parametrize("groups", [2048, 512, 64, 1])
    @pytest.mark.parametrize("order", ORDERS)
    def test_padding(self, order: str, groups: int) -> None:
        shares = torch.tensor([0.1, 0.9, 1.1], device=DEVICE)[:, None]
        mask = torch.rand(3, 4096, device=DEVICE) < shares
        x = numbers(3, 4096, 72, torch.bfloat16)
        check(group_sort, x, groups, key_padding_mask=mask, **options_of(order, 72))

    def test_many_elements(self) -> None:
        check(group_sort, torch.randn(40, 4096, 1024, device=DEVICE).bfloat16(), 2048)

    def test_auto_is_triton(self) -> None:
        x = torch.randn(1, 4, 2, device=DEVICE, requires_grad=True)
        assert "triton" in type(group_sort(x, 2).grad_fn).__name__.lower()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(
        ("length", "channels"), [(1024, 512), (4096, 100), (16384, 512), (4096, 7), (62, 300)]
    )
    def test_shifted_pairs(self, length: int, channels: int, dtype: torch.dtype) -> None:
        """Tiles have one memory sector of channels and many tokens."""
        steps = shift_steps("linear", length, channels, device=DEVICE)
        check(channel_permute, numbers(2, length, channels, dtype), steps, length // 2)
        check(circular_shift, numbers(2, length, channels, dtype), steps)
