from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import StatisticsState, causal_token_statistics, token_statistics

sys.path.append(str(Path(__file__).parents[1]))
from triton_device import DEVICE, INTERPRETED, on_gpu, require_kernels

require_kernels()

Outputs = tuple[Tensor, ...]
# Odd sizes, one head, one feature, more tokens than a chunk.
SHAPES = [
    (2, 3, 37, 5),
    (1, 2, 100, 16),
    pytest.param((2, 1, 5, 1), marks=pytest.mark.slow),
    pytest.param((1, 1, 70, 1100), marks=pytest.mark.slow),
]


def tokens(
    batch: int, heads: int, length: int, features: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Create tokens with (B, N, H, D) storage, like a projection."""
    w = torch.randn(batch, length, heads, features, device=DEVICE)
    return w.to(dtype).transpose(1, 2).requires_grad_()


def padding(w: Tensor) -> Tensor:
    """Pad scattered tokens in sample 0, leading tokens in sample 1, and all of sample 2."""
    mask = torch.rand(w.shape[0], w.shape[2], device=DEVICE) < 0.4
    mask[1:2, : w.shape[2] // 2] = True
    mask[2:] = True
    return mask


def check(run: Callable[[str], Outputs], inputs: list[Tensor], tolerance: float = 1e-5) -> None:
    """Compare with eager in float64: eager in float32 has errors as large as Triton's."""
    weights: list[Tensor] = []

    def results(backend: str) -> Outputs:
        outputs = run(backend)
        weights.extend(torch.randn_like(value) for value in outputs[len(weights) :])
        total = sum(
            (v * w.to(v.dtype)).double().sum() for v, w in zip(outputs, weights, strict=True)
        )
        return (*outputs, *torch.autograd.grad(total, inputs))

    found = results("triton")
    types = [value.dtype for value in run("eager")] + [x.dtype for x in inputs]
    with in_float64(inputs):
        expected = results("eager")
    for value, dtype, right in zip(found, types, expected, strict=True):
        assert value.dtype == dtype
        assert value.shape == right.shape
        atol = tolerance * max(right.abs().max().item(), 1e-3)
        torch.testing.assert_close(value.double(), right.double(), rtol=0, atol=atol)


@contextmanager
def in_float64(leaves: list[Tensor]) -> Iterator[None]:
    """Convert the leaves to float64 within the context."""
    before = [leaf.data for leaf in leaves]
    for leaf in leaves:
        leaf.data = leaf.data.double()
    try:
        yield
    finally:
        for leaf, data in zip(leaves, before, strict=True):
            leaf.data = data


MASKED = [pytest.param(False, id="whole", marks=pytest.mark.slow), pytest.param(True, id="padded")]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("masked", MASKED)
def test_token_statistics(shape: tuple[int, int, int, int], masked: bool) -> None:
    check_token_statistics(shape, masked, normalize=True)


@pytest.mark.parametrize("masked", MASKED)
def test_without_normalization(masked: bool) -> None:
    check_token_statistics((2, 3, 37, 5), masked, normalize=False)


def check_token_statistics(shape: tuple[int, int, int, int], masked: bool, normalize: bool) -> None:
    w = tokens(*shape)
    temperature = (torch.rand(shape[1], device=DEVICE) + 0.5).requires_grad_()
    options = {
        "normalize": normalize,
        "key_padding_mask": padding(w) if masked else None,
        "return_membership": True,
    }
    check(
        lambda backend: token_statistics(w, temperature, backend=backend, **options),
        [w, temperature],
    )


def causal_case(
    shape: tuple[int, int, int, int], masked: bool, stated: bool, biased: bool
) -> tuple[Callable[[str], Outputs], list[Tensor]]:
    batch, heads, length, features = shape
    w = tokens(*shape)
    inputs = [w, (torch.rand(heads, device=DEVICE) + 0.5).requires_grad_()]
    bias, state = None, None
    if biased:
        bias = (0.1 * torch.randn(heads, length + batch, device=DEVICE)).requires_grad_()
        inputs.append(bias)
    if stated:
        sizes = ((batch, heads, features), (batch, heads, features), (batch, heads))
        sums = [torch.rand(s, device=DEVICE, dtype=torch.float64).requires_grad_() for s in sizes]
        state = StatisticsState(*sums, torch.arange(batch, device=DEVICE))
        inputs += sums
    mask = padding(w) if masked else None

    def run(backend: str) -> Outputs:
        y, pi, end = causal_token_statistics(
            w,
            inputs[1],
            bias,
            initial_state=state,
            return_state=True,
            return_membership=True,
            key_padding_mask=mask,
            backend=backend,
        )
        assert end.position.dtype == torch.int64
        return (y, pi, *end[:3])

    return run, inputs


# One argument at a time. test_causal_sizes combines all three.
@pytest.mark.parametrize("given", ["nothing", "masked", "stated", "biased"])
def test_causal_token_statistics(given: str) -> None:
    check(*causal_case((3, 2, 37, 5), *(given == one for one in ("masked", "stated", "biased"))))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_causal_sizes(shape: tuple[int, int, int, int]) -> None:
    check(*causal_case(shape, True, True, True))


def test_chunks_equal_the_whole_sequence() -> None:
    w = tokens(1, 2, 150, 4)
    temperature = torch.ones(2, device=DEVICE)
    whole = causal_token_statistics(w, temperature, backend="triton")
    state, pieces = None, []
    for piece in w.split((7, 130, 13), dim=2):
        y, state = causal_token_statistics(
            piece, temperature, initial_state=state, return_state=True, backend="triton"
        )
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_columns_of_zeros(operator: Callable[..., Tensor]) -> None:
    values = torch.randn(1, 2, 9, 3, device=DEVICE)
    values[:, :, :4] = 0.0
    values[..., 1] = 0.0
    w = values.requires_grad_()
    temperature = torch.ones(2, device=DEVICE)
    check(lambda backend: (operator(w, temperature, backend=backend),), [w])


@pytest.mark.slow
@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_tokens_below_the_floors(operator: Callable[..., Tensor]) -> None:
    values = torch.randn(1, 2, 9, 3, device=DEVICE)
    values[:, :, :5] *= 1e-7
    values[..., 1] *= 1e-13
    w = values.requires_grad_()
    temperature = torch.ones(2, device=DEVICE)
    check(lambda backend: (operator(w, temperature, backend=backend),), [w])


@pytest.mark.slow
@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_layouts(operator: Callable[..., Tensor]) -> None:
    """Tokens and gradients may have any strides. The result has (B, N, H, D) storage."""
    temperature = torch.ones(3, device=DEVICE)
    for w in (
        torch.randn(2, 3, 9, 4, device=DEVICE),
        torch.randn(2, 3, 4, 9, device=DEVICE).transpose(2, 3),
        torch.randn(2, 9, 3, 8, device=DEVICE)[..., ::2].transpose(1, 2),
    ):
        w.requires_grad_()
        check(lambda backend, w=w: (operator(w, temperature, backend=backend),), [w])
        y = operator(w, temperature, backend="triton")
        assert y.transpose(1, 2).is_contiguous()
    total, expected = (
        torch.autograd.grad(operator(w, temperature, backend=b).sum(), w)[0]
        for b in ("triton", "eager")
    )
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_heads_with_very_large_strides(operator: Callable[..., Tensor]) -> None:
    """32-bit offsets would overflow at the third head. Memory between the heads is never read."""
    apart = 2**30 + 8
    memory = torch.empty(2 * apart + 32, dtype=torch.float16, device=DEVICE)
    w = memory.as_strided((1, 3, 4, 8), (3 * apart, apart, 8, 1))
    near = w.copy_(torch.randn(w.shape)).clone().requires_grad_()
    w.requires_grad_()
    temperature = torch.ones(3, device=DEVICE)
    results = []
    for tokens in (w, near):
        y = operator(tokens, temperature, backend="triton")
        results.append((y, *torch.autograd.grad(y.square().sum(), tokens)))
    for value, expected in zip(*results, strict=True):
        assert torch.equal(value, expected)


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_nan_spreads_to_tokens_but_not_to_padding(operator: Callable[..., Outputs]) -> None:
    values = torch.randn(1, 2, 7, 3, device=DEVICE)
    values[0, 0, 1, 2] = torch.nan
    w, mask = values.requires_grad_(), torch.arange(7, device=DEVICE)[None] > 4
    temperature = torch.ones(2, device=DEVICE)
    options = {"key_padding_mask": mask, "return_membership": True}
    y, membership = operator(w, temperature, backend="triton", **options)
    (slope,) = torch.autograd.grad(y.sum(), w)
    eager = operator(w, temperature, backend="eager", **options)[1]
    assert torch.equal(membership.isnan(), eager.isnan())
    assert y[:, :, 4].isnan().all()
    assert (y[:, :, 5:] == 0).all()
    assert (slope[:, :, 5:] == 0).all()


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_gradient_of_a_gradient(operator: Callable[..., Tensor]) -> None:
    w = tokens(1, 2, 7, 3)
    temperature = torch.ones(2, device=DEVICE, requires_grad=True)
    second = []
    for backend in ("triton", "eager"):
        y = operator(w, temperature, backend=backend)
        first = torch.autograd.grad(y.square().sum(), (w, temperature), create_graph=True)
        total = sum(value.square().sum() for value in first)
        second.append(torch.autograd.grad(total, (w, temperature)))
    torch.testing.assert_close(*second)


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_gradient_with_a_graph_of_dependent_inputs(operator: Callable[..., Tensor]) -> None:
    w = tokens(1, 2, 7, 3)
    y = operator(w, w.mean((0, 2, 3)).exp(), backend="triton").square().sum()
    (found,) = torch.autograd.grad(y, w, create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(y, w)[0])


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_gradient_of_the_membership_only(operator: Callable[..., Outputs]) -> None:
    w = tokens(1, 2, 7, 3)
    temperature = torch.ones(2, device=DEVICE, requires_grad=True)

    def run(backend: str) -> Outputs:
        return (operator(w, temperature, return_membership=True, backend=backend)[1],)

    check(run, [w, temperature])


def test_results_are_deterministic() -> None:
    w = tokens(1, 2, 150, 8)
    temperature = torch.ones(2, device=DEVICE)
    for operator in (token_statistics, causal_token_statistics):
        first, again = (operator(w, temperature, backend="triton") for _ in range(2))
        assert torch.equal(first, again)


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_empty_batch(operator: Callable[..., Tensor]) -> None:
    w = tokens(0, 2, 5, 3)
    y = operator(w, torch.ones(2, device=DEVICE), backend="triton")
    assert y.shape == w.shape
    y.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
def test_compiles_to_one_graph(operator: Callable[..., Tensor]) -> None:
    w = tokens(1, 2, 7, 3)
    temperature = torch.ones(2, device=DEVICE, requires_grad=True)

    def call(w: Tensor) -> Tensor:
        return operator(w, temperature, backend="triton")

    y = torch.compile(call, fullgraph=True, backend="aot_eager")(w)
    expected = call(w)
    torch.testing.assert_close(y, expected)
    weight = torch.randn_like(y)
    gradients = [torch.autograd.grad(out, (w, temperature), weight) for out in (y, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
def test_opcheck() -> None:
    w = tokens(1, 2, 5, 3)
    temperature = torch.ones(2, device=DEVICE, requires_grad=True)
    mask = torch.zeros(1, 5, dtype=torch.bool, device=DEVICE)
    for operator in (token_statistics, causal_token_statistics):
        operator(w, temperature, backend="triton")  # registers the operators
    operators = torch.ops.rifflemix
    torch.library.opcheck(operators.triton_token_statistics, (w, temperature, mask, True))
    bias = torch.zeros(1, 5, 2, device=DEVICE, requires_grad=True)
    energy = torch.ones(1, 2, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
    members = torch.ones(1, 2, 4, device=DEVICE, dtype=torch.float64, requires_grad=True)
    inputs = (w, temperature, bias, energy, members, mask)
    torch.library.opcheck(operators.triton_causal_token_statistics, inputs)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU it does choose the kernels")
def test_auto_never_interprets() -> None:
    y = token_statistics(tokens(1, 2, 5, 3), torch.ones(2))
    assert "triton" not in type(y.grad_fn).__name__.lower()


@pytest.mark.parametrize(
    "w", [torch.randn(1, 2, 5, 3).double(), torch.randn(1, 3, 1, 5000)], ids=["float64", "width"]
)
def test_unsupported_inputs_are_refused(w: Tensor) -> None:
    w, temperature = w.to(DEVICE), torch.ones(w.shape[1], device=DEVICE)
    for operator in (token_statistics, causal_token_statistics):
        with pytest.raises(InputError, match="backend:"):
            operator(w, temperature, backend="triton")
        operator(w, temperature)


@pytest.mark.parametrize("from_end", [False, True])
def test_more_chunks_than_a_tile_has(from_end: bool) -> None:
    from rifflemix.ops.statistics import triton, triton_causal

    sums = torch.randn(1, 2, 300, 33, device=DEVICE)
    start = torch.randn(1, 2, 33, device=DEVICE, dtype=torch.float64)
    found, end = triton_causal._add_up(sums, start, from_end=from_end)
    parts = torch.cat((start.unsqueeze(2), sums.flip(2) if from_end else sums), 2).cumsum(2)
    torch.testing.assert_close(found, parts.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(end, parts[:, :, -1], atol=1e-5, rtol=1e-5)
    total = torch.empty(1, 2, 33, device=DEVICE)
    triton._add_chunks(sums, total)
    torch.testing.assert_close(total, sums.double().sum(2).float(), atol=1e-5, rtol=1e-5)


def test_sums_of_many_chunks_are_accurate() -> None:
    from rifflemix.ops.statistics import triton, triton_causal

    chunks = 1 << 17
    sums = torch.full((1, 1, chunks, 1), 0.1, device=DEVICE)
    exact = chunks * float(sums[0, 0, 0, 0])
    total = torch.empty(1, 1, 1, device=DEVICE)
    triton._add_chunks(sums, total)
    _, end = triton_causal._add_up(sums, None)
    assert [float(total), float(end)] == pytest.approx([exact] * 2, rel=1e-6)


class TestOnGpu:
    """Large sizes and all types, on a GPU."""

    pytestmark = on_gpu

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
    @pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
    @pytest.mark.parametrize(
        "shape",
        [(8, 12, 4096, 64), (3, 8, 1000, 64), (2, 6, 197, 32), (1, 16, 2048, 128), (2, 3, 77, 80),
         (1, 64, 300, 8)],
        ids=str,
    )  # fmt: skip
    def test_near_eager(
        self, shape: tuple[int, int, int, int], causal: bool, masked: bool, dtype: torch.dtype
    ) -> None:
        w = tokens(*shape, dtype=dtype)
        temperature = torch.ones(shape[1], device=DEVICE, requires_grad=True)
        mask = padding(w) if masked else None
        operator = causal_token_statistics if causal else token_statistics

        def run(backend: str) -> Outputs:
            return operator(
                w, temperature, key_padding_mask=mask, return_membership=True, backend=backend
            )

        # The kernels round results to the type of w. Their statistics are float32.
        check(run, [w, temperature], {torch.float32: 1e-4}.get(dtype, 1e-2))

    def test_auto_is_triton(self) -> None:
        y = token_statistics(tokens(1, 2, 5, 3), torch.ones(2, device=DEVICE))
        assert "triton" in type(y.grad_fn).__name__.lower()
