"""Sinkhorn balancing, Gumbel noise, top-k selection."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import gumbel_noise, gumbel_sinkhorn, sinkhorn, top_k_blocks
from rifflemix.ops.native import library

needs_kernels = pytest.mark.skipif(library() is None, reason="needs the compiled kernels")
DOUBLE = torch.float64


def scores_of(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=DOUBLE)


def masked_scores() -> tuple[Tensor, Tensor]:
    """Create scores with dead blocks (at the end, in the middle, everywhere) and hard zeros."""
    scores = scores_of(4, 2, 6, 6)
    dead = torch.zeros(4, 6, dtype=torch.bool)
    dead[1, 4:] = True
    dead[2, [0, 3]] = True
    dead[3] = True
    scores[0, 0, 2, 3] = -math.inf
    scores[0, 1, 4] = -math.inf
    return scores, dead


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_marginals_approach_one(n: int) -> None:
    scores = scores_of(3, n, n)
    row_error = []
    for iterations in (1, 2, 5, 20, 200):
        sort = sinkhorn(scores, iterations)
        torch.testing.assert_close(sort.sum(-2), torch.ones(3, n, dtype=DOUBLE))
        row_error.append((sort.sum(-1) - 1).abs().max().item())
    assert row_error[-1] < 1e-9
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(row_error))


def test_no_iterations_is_the_exponential() -> None:
    scores = scores_of(2, 5, 5)
    torch.testing.assert_close(sinkhorn(scores, 0), scores.exp())
    expected = scores.exp().tril(-1)
    torch.testing.assert_close(sinkhorn(scores, 0, causal=True), expected)


def test_scaling_rows_and_columns_does_not_change_the_limit() -> None:
    scores = scores_of(4, 4)
    scaled = scores + scores_of(4, 1) + scores_of(1, 4)
    torch.testing.assert_close(sinkhorn(scores, 300), sinkhorn(scaled, 300))


def test_low_temperature_tends_to_the_best_permutation() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(5):
        torch.manual_seed(seed)
        scores = scores_of(6, 6)
        sort = gumbel_sinkhorn(scores, 2000, temperature=0.003)
        _, source = optimize.linear_sum_assignment(scores.numpy(), maximize=True)
        expected = torch.nn.functional.one_hot(torch.from_numpy(source), 6).to(DOUBLE)
        torch.testing.assert_close(sort, expected, atol=1e-2, rtol=0)


@pytest.mark.parametrize("final_row_norm", [True, False])
@pytest.mark.parametrize("iterations", [0, 1, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_eager_equals_reference(causal: bool, iterations: int, final_row_norm: bool) -> None:
    scores, dead = masked_scores()
    options = {
        "causal": causal,
        "final_row_norm": final_row_norm,
        "block_padding_mask": dead,
    }
    eager = sinkhorn(scores, iterations, backend="eager", **options)
    torch.testing.assert_close(eager, sinkhorn(scores, iterations, backend="reference", **options))
    assert (eager[3] == 0).all()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_hidden_blocks_are_ignored(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 7))
    dead = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    causal = data.draw(st.booleans())
    iterations = data.draw(st.integers(0, 4))
    scores = scores_of(1, 2, n, n)
    sort = sinkhorn(scores, iterations, causal=causal, block_padding_mask=dead[None])
    live = (~dead).nonzero().flatten()
    if len(live):
        alone = sinkhorn(scores[..., live, :][..., live], iterations, causal=causal)
        torch.testing.assert_close(sort[..., live, :][..., live], alone)
    assert (sort[..., dead, :] == 0).all()
    assert (sort[..., dead] == 0).all()


def test_causal_weights_are_strictly_past_and_convex() -> None:
    sort = sinkhorn(scores_of(2, 6, 6), 5, causal=True)
    assert (sort.triu() == 0).all()
    torch.testing.assert_close(sort.sum(-1)[:, 1:], torch.ones(2, 5, dtype=DOUBLE))
    literal = sinkhorn(scores_of(2, 6, 6), 5, causal=True, final_row_norm=False)
    torch.testing.assert_close(literal.diagonal(-1, -2, -1), torch.ones(2, 5, dtype=DOUBLE))


@pytest.mark.parametrize("final_row_norm", [True, False])
def test_causal_rows_read_no_later_row(final_row_norm: bool) -> None:
    scores = scores_of(6, 6)
    sort = sinkhorn(scores, 5, causal=True, final_row_norm=final_row_norm)
    for u in range(1, 6):
        changed = scores.clone()
        changed[u:] += 3 * torch.randn(6 - u, 6, dtype=DOUBLE)
        after = sinkhorn(changed, 5, causal=True, final_row_norm=final_row_norm)
        assert torch.equal(after[:u], sort[:u])
        # With at most one source, the sort matrix cannot change.
        assert u < 2 or not torch.equal(after[u:], sort[u:])


# One random direction by default, all directions in the slow tests.
DIRECTIONS = [
    pytest.param(True, id="one way"),
    pytest.param(False, id="all", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("fast", DIRECTIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_gradients_are_correct(iterations: int, causal: bool, fast: bool) -> None:
    scores, dead = masked_scores()
    live = scores.isfinite()
    values = scores.masked_fill(~live, 0.0).requires_grad_()

    def run(values: Tensor) -> Tensor:
        scores = values.masked_fill(~live, -math.inf)
        return sinkhorn(scores, iterations, causal=causal, block_padding_mask=dead)

    assert torch.autograd.gradcheck(run, (values,), fast_mode=fast)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients_are_finite_in_float32(scale: float, causal: bool) -> None:
    scores = (scale * torch.randn(2, 8, 8)).requires_grad_()
    sinkhorn(scores, 8, causal=causal)[..., 1].square().sum().backward()
    assert scores.grad.isfinite().all()


STEPS = {
    "both ways": {},
    "causal": {"causal": True},
    "causal, columns last": {"causal": True, "final_row_norm": False},
}
each_kind_of_steps = pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())


@needs_kernels
@each_kind_of_steps
@pytest.mark.parametrize("scale", [3.0, 100.0])
@pytest.mark.parametrize("n", [1, 3, 8, 17])
@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32], ids=str)
def test_kernel_equals_eager(
    n: int, dtype: torch.dtype, scale: float, steps: dict[str, Any]
) -> None:
    torch.manual_seed(n)
    scores = scores_of(2, 3, n, n, scale=scale)
    scores[0, 0, n // 2, n // 3] = -math.inf
    scores[1, 1, 0] = -math.inf
    scores[1, 2, :, 0] = -math.inf
    dead = torch.zeros(2, n, dtype=torch.bool)
    dead[0, n - 1] = True
    inputs = scores.to(dtype).requires_grad_(), scores.requires_grad_()
    grad = scores_of(2, 3, n, n)
    sorts = [
        sinkhorn(given, 6, block_padding_mask=dead, backend=backend, **steps)
        for given, backend in zip(inputs, ("cpu", "eager"), strict=True)
    ]
    found, expected = (
        (sort, *torch.autograd.grad(sort, given, grad.to(sort.dtype)))
        for sort, given in zip(sorts, inputs, strict=True)
    )
    tolerance = (1e-12 if dtype == DOUBLE else 3e-6) * max(scale / 10, 1)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, atol=tolerance, rtol=0)


@needs_kernels
@each_kind_of_steps
def test_second_derivatives_of_the_kernel(steps: dict[str, Any]) -> None:
    scores = scores_of(2, 4, 4).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda s: sinkhorn(s, 3, backend="cpu", **steps), (scores,))


@needs_kernels
def test_kernel_refuses_unsupported_inputs() -> None:
    for causal in (False, True):
        with pytest.raises(InputError, match=r"^backend:"):
            sinkhorn(scores_of(3, 3), 0, causal=causal, backend="cpu")


def test_bfloat16_is_balanced_in_float32() -> None:
    scores = (3 * torch.randn(4, 32, 32)).bfloat16()
    for causal in (False, True):
        sort = sinkhorn(scores, 8, causal=causal)
        assert sort.dtype == torch.bfloat16
        expected = sinkhorn(scores.float(), 8, causal=causal)
        torch.testing.assert_close(sort, expected.bfloat16(), atol=0, rtol=0)


def test_gumbel_noise_has_the_right_moments_and_follows_the_seed() -> None:
    noise = gumbel_noise((200_000,), generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    assert abs(noise.mean().item() - 0.5772) < 0.01
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.02
    again = gumbel_noise((200_000,), generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    assert torch.equal(noise, again)
    assert gumbel_noise((5,), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert gumbel_noise((100_000,)).isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_null", [0, 2])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_top_k_eager_equals_reference(k: int, num_null: int, causal: bool) -> None:
    scores = scores_of(3, 2, 5, num_null + 5).round()  # rounded, for ties
    dead = torch.zeros(3, 5, dtype=torch.bool)
    dead[1, 3:] = True
    dead[2] = True
    options = {
        "temperature": 0.5,
        "causal": causal,
        "num_null": num_null,
        "block_padding_mask": dead,
    }
    eager = top_k_blocks(scores, k, backend="eager", **options)
    assert eager.shape == (3, 2, 5 * k, num_null + 5)
    torch.testing.assert_close(eager, top_k_blocks(scores, k, backend="reference", **options))


def test_top_k_selects_distinct_blocks_and_the_first_of_ties() -> None:
    scores = torch.zeros(1, 4, 4, dtype=DOUBLE)
    sort = top_k_blocks(scores, 3)
    assert sort[0, :3].argmax(-1).tolist() == [0, 1, 2]
    torch.testing.assert_close(sort[0, :3].amax(-1), torch.tensor([1 / 4, 1 / 3, 1 / 2]).double())
    first = top_k_blocks(scores, 2, causal=True)
    assert (first[0, :2] == 0).all()  # no block precedes block 0
    assert (first[0, 3] == 0).all()  # only one block precedes block 1


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_top_k_gradients(backend: str) -> None:
    scores = scores_of(2, 4, 6).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s: top_k_blocks(s, 2, causal=True, num_null=2, backend=backend), (scores,)
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda s: sinkhorn(s[:, :2], 3), "log_scores"),
        (lambda s: sinkhorn(s.long(), 3), "log_scores"),
        (lambda s: sinkhorn([1], 3), "log_scores"),
        (lambda s: sinkhorn(s, -1), "num_iterations"),
        (lambda s: sinkhorn(s, 3, backend="cuda"), "backend"),
        (lambda s: sinkhorn(s, 3, backend="triton"), "backend"),
        (lambda s: sinkhorn(s, 3, block_padding_mask=torch.ones(2, 4)), "block_padding_mask"),
        (
            lambda s: sinkhorn(s, 3, block_padding_mask=torch.ones(4, 2) > 0),
            "block_padding_mask",
        ),
        (lambda s: gumbel_sinkhorn(s, 3, temperature=0.0), "temperature"),
        (lambda s: gumbel_sinkhorn(s, 3, kernel="tanh"), "kernel"),
        (lambda s: gumbel_sinkhorn(s, 3, noise=torch.zeros(1)), "noise"),
        (lambda s: top_k_blocks(s, 5), "k"),
        (lambda s: top_k_blocks(s, 0), "k"),
        (lambda s: top_k_blocks(s, 1, causal=True, num_null=1), "scores"),
        (lambda s: top_k_blocks(s, 1, num_null=-1), "num_null"),
    ],
)
def test_bad_input_names_the_argument(call, name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}:"):
        call(torch.randn(2, 4, 4))
