"""Compare the Triton kernels of Sinkhorn attention with the reference in float64.

Runs on a GPU, or through test_triton_interpreter.py on the CPU in Triton's interpreter.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from block_variants import VARIANTS, causal_sort, settings_of
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

sys.path.append(str(Path(__file__).parents[1]))
from triton_device import DEVICE, INTERPRETED, on_gpu, require_kernels

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.models.macs import flop_formulas
from rifflemix.ops import sinkhorn_attention
from rifflemix.ops.dispatch import prefer_backend
from rifflemix.ops.sinkhorn import triton
from rifflemix.ops.sinkhorn.kernel_attention import Visibility, attend_to_blocks

require_kernels()

# A GPU computes a float32 product as three products of a shorter type.
TOLERANCE = {
    torch.float32: 3e-6 if INTERPRETED else 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}


class Sizes(NamedTuple):
    batch: int
    heads: int
    blocks: int
    block_size: int
    width: int
    sorted_blocks: int = 1  # per block of queries


def inputs(sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Create tokens (B, N, 3, H, D), a sort matrix, and a gradient of the output."""
    generator = torch.Generator().manual_seed(sum(sizes))
    length = sizes.blocks * sizes.block_size
    tokens = torch.randn(sizes.batch, length, 3, sizes.heads, sizes.width, generator=generator)
    rows = sizes.blocks * sizes.sorted_blocks
    scores = torch.randn(sizes.batch, sizes.heads, rows, sizes.blocks, generator=generator)
    grad = torch.randn(sizes.batch, sizes.heads, length, sizes.width, generator=generator)
    sort = (2 * scores).softmax(-1)
    return tokens.to(DEVICE, dtype), sort.to(DEVICE, dtype), grad.to(DEVICE, dtype)


def settings_for(form: str, sizes: Sizes) -> dict[str, Any]:
    torch.manual_seed(sum(sizes))
    settings = settings_of(VARIANTS[form], sizes.batch, sizes.blocks, sizes.block_size)
    return {k: v.to(DEVICE) if isinstance(v, Tensor) else v for k, v in settings.items()}


def attend(tokens: Tensor, sort: Tensor, block_size: int, backend: str, **settings: Any) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in tokens.unbind(2))
    if settings.get("causal"):
        sort = causal_sort(sort)
    return sinkhorn_attention(q, k, v, sort, block_size, backend=backend, **settings)


def output_and_gradients(
    sizes: Sizes, dtype: torch.dtype, backend: str, like: torch.dtype, settings: dict[str, Any]
) -> tuple[Tensor, ...]:
    """Return output and gradients in `dtype`, for inputs that were created in `like`."""
    tokens, sort, grad = (x.to(dtype) for x in inputs(sizes, like))
    leaves = (tokens.requires_grad_(), sort.requires_grad_())
    y = attend(*leaves, sizes.block_size, backend, **settings)
    grads = torch.autograd.grad(y, leaves, grad, materialize_grads=True)
    return y.detach(), *grads


def compare(sizes: Sizes, dtype: torch.dtype, expected_by: str, form: str = "plain") -> None:
    settings = settings_for(form, sizes)
    found = output_and_gradients(sizes, dtype, "triton", dtype, settings)
    expected = output_and_gradients(sizes, torch.float64, expected_by, dtype, settings)
    assert_close(found, expected, dtype)


def assert_close(
    found: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype
) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        error = torch.linalg.norm(a.double() - b)
        assert error <= TOLERANCE[dtype] * torch.linalg.norm(b), error


SIZES = [
    Sizes(2, 2, 4, 8, 16),
    Sizes(1, 3, 3, 5, 7),  # no power of two
    Sizes(2, 1, 5, 6, 24, sorted_blocks=2),
    Sizes(1, 2, 1, 3, 1),  # one block, one feature
    Sizes(1, 1, 9, 1, 4),  # blocks of one token
    Sizes(1, 1, 1, 70, 20),  # keys of a block in three tiles
    Sizes(1, 1, 3, 33, 8, sorted_blocks=3),
    Sizes(1, 1, 20, 17, 40),  # positions distributed by the last program
]


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [*((torch.float32, sizes) for sizes in SIZES), (torch.float16, SIZES[1])],
    ids=str,
)
def test_kernel_equals_reference(dtype: torch.dtype, sizes: Sizes) -> None:
    compare(sizes, dtype, "reference")


# Two samples, because all tokens of the first sample are padding.
HIDDEN_SIZES = [
    Sizes(2, 3, 3, 5, 7),
    Sizes(2, 1, 5, 6, 24, sorted_blocks=2),
    Sizes(2, 2, 2, 3, 1),
    Sizes(2, 1, 9, 1, 4),
    Sizes(2, 1, 3, 35, 6, sorted_blocks=2),
]


# Every variant with odd sizes. The variant with most terms and the argmax rule also run with
# the other sizes.
HIDDEN = [
    *((HIDDEN_SIZES[0], form) for form in VARIANTS if form != "plain"),
    *(
        (sizes, form)
        for sizes in HIDDEN_SIZES[1:]
        for form in ("causal mixture padded", "argmax rule")
    ),
]


@pytest.mark.parametrize(("sizes", "form"), HIDDEN, ids=str)
def test_kernel_hides_the_same_keys_as_the_reference(sizes: Sizes, form: str) -> None:
    compare(sizes, torch.float32, "reference", form)


def dropping(sizes: Sizes, form: str) -> tuple[int, Visibility]:
    """Return the block size and the kernel terms of a variant with dropout."""
    settings = settings_for(form, sizes)
    rows = sizes.blocks * sizes.sorted_blocks
    unseen = torch.rand(sizes.batch, sizes.heads, rows, sizes.block_size) > 0.7
    seed = torch.tensor(2**62 + 5, device=DEVICE)
    padding, causal = settings.get("key_padding_mask"), settings.get("causal", False)
    return sizes.block_size, Visibility(unseen.to(DEVICE), padding, False, causal, seed, 0.3)


@pytest.mark.parametrize("form", ["plain", "causal padded"])
@pytest.mark.parametrize("sizes", [*SIZES[1:3], SIZES[5]], ids=str)
def test_kernel_drops_the_same_weights_as_the_formula(sizes: Sizes, form: str) -> None:
    block_size, terms = dropping(sizes, form)
    results = []
    for dtype in (torch.float32, torch.float64):
        tokens, sort, grad = (x.to(dtype) for x in inputs(sizes, torch.float32))
        leaves = (tokens.requires_grad_(), sort.requires_grad_())
        q, k, v = (part.transpose(1, 2) for part in tokens.unbind(2))
        if dtype == torch.float32:
            y = triton._attend(q, k, v, sort, block_size, *terms)[0]
        else:
            y = attend_to_blocks(q, k, v, sort, block_size, terms, triton._drop)
        results.append((y.detach(), *torch.autograd.grad(y, leaves, grad)))
    assert_close(*results, torch.float32)


def test_dropout_draws_each_weight_independently() -> None:
    """The keep rate is right at every position and pair of positions, and changes with the seed."""
    p, weights = 0.3, torch.ones(2, 2, 3, 12, 28, device=DEVICE)
    kept = torch.stack(
        [
            triton._drop(weights, Visibility(seed=torch.tensor(s, device=DEVICE), p=p)) > 0
            for s in range(8)
        ]
    ).double()
    normal = (kept - (1 - p)) / (p * (1 - p)) ** 0.5
    for axis in range(kept.dim()):  # axis 0: the seed
        lines = normal.transpose(0, axis).flatten(1)
        limit = 4.5 / lines.shape[1] ** 0.5
        assert (lines.mean(1).abs() < limit).all()
        assert (lines[0] * lines[1]).mean().abs() < limit
    sorted_keys, own = normal[..., :12], normal[..., 16:]
    assert (sorted_keys * own).mean().abs() < 4.5 / own.numel() ** 0.5


def test_kernels_get_integer_probabilities_as_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """An integer 0 would compile another program. Triton reuses that program for 0.0 and fails."""
    given: list[Any] = []

    def note(kernel: Any, programs: int, like: Tensor, *arguments: Any, **options: Any) -> None:
        given.extend(arguments)

    monkeypatch.setattr(triton, "launch", note)
    tokens, sort, _ = inputs(SIZES[0], torch.float32)
    attend(tokens, sort, SIZES[0].block_size, "triton", dropout_p=0)
    zeros = [value for value in given if isinstance(value, float | int) and not value]
    assert [type(value) for value in zeros] == [float]


@pytest.mark.parametrize("form", ["plain", "causal padded"])
def test_dropout_draws_from_the_generator(form: str) -> None:
    sizes = HIDDEN_SIZES[2]
    tokens, sort, _ = inputs(sizes, torch.float32)

    def run(seed: int) -> Tensor:
        settings = settings_for(form, sizes) | {"dropout_p": 0.5}
        torch.manual_seed(seed)
        return attend(tokens, sort, sizes.block_size, "triton", **settings)

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))


def test_nan_spreads_even_if_dropped() -> None:
    tokens, sort, _ = inputs(Sizes(2, 2, 9, 1, 4), torch.float32)
    spoilt = tokens.clone()
    spoilt[0, 3, 1] = torch.nan  # a key, which is sorted into all blocks
    y = attend(spoilt, sort, 1, "triton", dropout_p=0.5)
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


def test_padding_that_is_not_finite_is_not_read() -> None:
    sizes = Sizes(2, 2, 3, 4, 5)
    tokens, sort, _ = inputs(sizes, torch.float32)
    settings = settings_for("padded", sizes)
    padded = settings["key_padding_mask"][:, :, None, None, None]
    y = attend(tokens, sort, 4, "triton", **settings)
    spoilt = tokens.clone()
    spoilt[:, :, 1:] = spoilt[:, :, 1:].masked_fill(padded, torch.nan)
    spoilt.requires_grad_()
    other = attend(spoilt, sort, 4, "triton", **settings)
    assert torch.equal(y, other)
    (grad,) = torch.autograd.grad(other.sum(), spoilt)
    assert ((grad * padded)[:, :, 1:] == 0).all()


def test_empty_batch() -> None:
    plain: dict[str, Any] = {}
    sizes, dtype = Sizes(0, 2, 4, 8, 16), torch.float32
    found = output_and_gradients(sizes, dtype, "triton", dtype, plain)
    assert [x.shape[0] for x in found] == [0, 0, 0]


def test_tokens_may_have_any_strides() -> None:
    tokens, sort, grad = inputs(Sizes(2, 2, 3, 5, 8), torch.float32)
    q, k, v = tokens.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    q, k = q.transpose(-1, -2).contiguous().transpose(-1, -2), k.flip(2)
    sort = sort.transpose(-1, -2).contiguous().transpose(-1, -2)
    found, expected = [], []
    for backend, into in (("triton", found), ("reference", expected)):
        leaves = [x.detach().double() if into is expected else x.detach() for x in (q, k, v, sort)]
        for leaf in leaves:
            leaf.requires_grad_()
        y = sinkhorn_attention(*leaves, 5, backend=backend)
        slope = grad.transpose(1, 2).contiguous().transpose(1, 2).to(y.dtype)
        into += [y.detach(), *torch.autograd.grad(y, leaves, slope)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


def test_large_scores_stay_finite() -> None:
    tokens, sort, grad = inputs(Sizes(1, 2, 3, 8, 16), torch.float32)
    leaf = (100 * tokens).requires_grad_()
    y = attend(leaf, sort, 8, "triton")
    (slope,) = torch.autograd.grad(y, leaf, grad)
    assert y.isfinite().all()
    assert slope.isfinite().all()
    torch.testing.assert_close(y, attend(leaf, sort, 8, "eager"), atol=2e-3, rtol=1e-4)


def test_very_low_scores_stay_finite() -> None:
    """Padding of a tile has no weight: next to scores of -800, its zero scores would overflow."""
    q = torch.full((1, 1, 6, 4), 20.0, device=DEVICE, requires_grad=True)
    sort = torch.eye(2, device=DEVICE).expand(1, 1, 2, 2)
    y = sinkhorn_attention(q, -q, q, sort, 3, backend="triton")
    (slope,) = torch.autograd.grad(y.sum(), q)
    torch.testing.assert_close(y, q)
    torch.testing.assert_close(slope, torch.ones_like(q), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("form", ["plain", "causal padded"])
def test_second_derivatives(form: str) -> None:
    """Second derivatives equal eager in float64, up to float32 rounding in the first pass."""
    sizes = Sizes(2, 2, 3, 4, 8)
    tokens, sort, _ = inputs(sizes, torch.float32)
    settings = settings_for(form, sizes)

    def twice(tokens: Tensor, sort: Tensor, backend: str) -> tuple[Tensor, ...]:
        tokens, sort = tokens.requires_grad_(), sort.requires_grad_()
        energy = attend(tokens, sort, 4, backend, **settings).square().sum()
        (slope,) = torch.autograd.grad(energy, tokens, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (tokens, sort))

    found = twice(tokens, sort, "triton")
    for a, b in zip(found, twice(tokens.double(), sort.double(), "eager"), strict=True):
        assert (a - b).abs().max() < 1e-5 * b.abs().max()


@pytest.mark.parametrize(
    "change",
    [
        {"rotation": 1, "causal": True},
        {"sortcut": 1},
        {"combine": "sum_out"},
        {"combine": "sum_logits"},
    ],
    ids=lambda change: str(next(iter(change.values()))),
)
def test_unsupported_inputs_are_refused(change: dict[str, object]) -> None:
    tokens, sort, _ = inputs(Sizes(1, 2, 3, 4, 8), torch.float32)
    q, k, v = (part.transpose(1, 2) for part in tokens.unbind(2))
    with pytest.raises(InputError, match=r"^backend:"):
        sinkhorn_attention(q, k, v, sort, 4, backend="triton", **change)


@pytest.mark.parametrize("shape", [(2, 129, 4), (129, 1, 4), (2, 4, 129), (2, 65, 65)], ids=str)
def test_sizes_that_do_not_fit_are_refused(shape: tuple[int, int, int]) -> None:
    tokens, sort, _ = inputs(Sizes(1, 1, *shape), torch.float32)
    with pytest.raises(InputError, match=r"^backend:"):
        attend(tokens, sort, shape[1], "triton")


@pytest.mark.parametrize("causal", [False, True])
def test_layer_uses_the_kernels(causal: bool) -> None:
    options = {"num_heads": 2, "max_length": 40, "block_size": 8, "num_iterations": 2}
    layer = rm.create_mixer("sinkhorn", 16, causal=causal, **options).to(DEVICE)
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    mask = torch.arange(40, device=DEVICE) >= torch.tensor([[40], [21]], device=DEVICE)
    x.requires_grad_()
    found = []
    for backend in ("triton", "eager"):
        torch.manual_seed(0)  # seed of the noise
        with prefer_backend(backend):
            y = layer(x, key_padding_mask=mask)
            slopes = torch.autograd.grad(y.square().sum(), (x, layer.qkv.weight))
            found.append((y.detach(), *slopes))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_operations_of_the_kernels_are_counted() -> None:
    """The FLOP counts equal those of the CPU backend. tests/test_compat.py checks each product."""
    sizes = Sizes(2, 4, 3, 16, 16)
    tokens, sort, _ = inputs(sizes, torch.float32)
    parts = [part.transpose(1, 2).requires_grad_() for part in tokens.unbind(2)]
    counted = []
    for backend in ("triton", "cpu"):
        where = DEVICE if backend == "triton" else torch.device("cpu")
        moved = [x.detach().to(where).requires_grad_() for x in (*parts, sort)]
        counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
        with counter:
            y = sinkhorn_attention(*moved, sizes.block_size, backend=backend)
            counted.append(counter.get_total_flops())
            y.sum().backward()
            counted.append(counter.get_total_flops())
    assert counted[0] > 0
    assert counted[:2] == counted[2:]


class TestOnAGpu:
    """Large sizes, on a GPU."""

    pytestmark = on_gpu

    @pytest.mark.parametrize(
        "sizes",
        [Sizes(8, 8, 32, 32, 64), Sizes(8, 8, 64, 64, 64), Sizes(4, 4, 16, 64, 32, 2)],
        ids=str,
    )
    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    @pytest.mark.parametrize("form", ["plain", "padded", "causal padded"])
    def test_many_blocks(self, dtype: torch.dtype, sizes: Sizes, form: str) -> None:
        compare(sizes, dtype, "eager", form)

    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    def test_dropout_of_many_blocks(self, dtype: torch.dtype) -> None:
        sizes = Sizes(4, 8, 32, 32, 64)
        block_size, terms = dropping(sizes, "causal padded")
        tokens, sort, _ = inputs(sizes, dtype)
        q, k, v = (part.transpose(1, 2) for part in tokens.unbind(2))
        y = triton._attend(q, k, v, sort, block_size, *terms)[0]
        exact = (x.double() for x in (q, k, v, sort))
        expected = attend_to_blocks(*exact, block_size, terms, triton._drop)
        assert_close((y,), (expected,), dtype)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_the_largest_blocks(self, dtype: torch.dtype) -> None:
        compare(Sizes(2, 2, 128, 128, 128), dtype, "eager")
