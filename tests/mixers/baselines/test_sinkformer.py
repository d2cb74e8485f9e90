"""Sinkformer against explicit scaling vectors of the kernel matrix, and golden vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from attention_checks import TOLERANCE
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.sinkformer import Sinkformer, balanced_attention

Golden = Callable[[str], dict[str, np.ndarray]]


def build(dim: int = 12, num_heads: int = 3, **options) -> Sinkformer:
    mixer = rm.create_mixer("sinkformer", dim, num_heads=num_heads, **options)
    return mixer.double().eval()


def scaled_kernel(scores: Tensor, steps: int) -> Tensor:
    """Compute diag(u) exp(scores) diag(v).

    The updates of u and v alternate until rows and columns sum to 1.
    """
    kernel = scores.exp()
    u, v = torch.ones(len(scores)).double(), torch.ones(len(scores)).double()
    for step in range(steps):
        if step % 2 == 0:
            u = 1 / (kernel @ v)
        else:
            v = 1 / (kernel.T @ u)
    return u[:, None] * kernel * v[None, :]


def literal(mixer: Sinkformer, x: Tensor) -> Tensor:
    """Compute one sequence (N, C), head by head."""
    q, k, v = mixer.qkv(x).chunk(3, -1)
    width = mixer.dim // mixer.num_heads
    heads = []
    for h in range(mixer.num_heads):
        part = slice(h * width, (h + 1) * width)
        scores = q[:, part] @ k[:, part].T / width**0.5 / mixer.epsilon
        heads.append(scaled_kernel(scores, mixer.num_iterations) @ v[:, part])
    return mixer.proj(torch.cat(heads, -1))


@pytest.mark.parametrize("epsilon", [1.0, 0.5])
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_equals_the_scaled_kernel(steps: int, epsilon: float) -> None:
    mixer = build(num_iterations=steps, epsilon=epsilon)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-10)
    mask = torch.rand(2, 7) < 0.4
    y = mixer(x, key_padding_mask=mask)
    for sample, padded, out in zip(x, mask, y, strict=True):
        torch.testing.assert_close(
            out[~padded], literal(mixer, sample[~padded]), atol=1e-10, rtol=1e-10
        )


@pytest.mark.parametrize(("steps", "dim"), [(5, -1), (6, -2)], ids=["odd rows", "even columns"])
def test_the_last_step_sums_to_one(steps: int, dim: int) -> None:
    weights = balanced_attention(3 * torch.randn(2, 2, 9, 9).double(), steps)
    torch.testing.assert_close(weights.sum(dim), torch.ones(2, 2, 9).double())
    assert not torch.allclose(weights.sum(-3 - dim), torch.ones(2, 2, 9).double(), atol=1e-6)


def test_one_step_is_softmax_attention() -> None:
    mixer = build(num_iterations=1)
    softmax = rm.create_mixer("softmax", 12, num_heads=3).double()
    softmax.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    mask = torch.rand(2, 7) < 0.4
    for key_padding_mask in (None, mask):
        torch.testing.assert_close(
            mixer(x, key_padding_mask=key_padding_mask),
            softmax(x, key_padding_mask=key_padding_mask),
        )


def test_scores_of_any_size_stay_finite() -> None:
    scores = (1e4 * torch.randn(1, 2, 8, 8)).requires_grad_()
    mask = torch.tensor([[False] * 5 + [True] * 3])
    weights = balanced_attention(scores, 7, mask)
    assert weights.isfinite().all()
    assert (weights[..., 5:] == 0).all()
    assert (weights[..., 5:, :] == 0).all()
    weights.square().sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.slow
def test_dropout_is_applied_to_the_weights() -> None:
    mixer = build(dropout=0.5, out_bias=False).train()
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    outputs = torch.stack([mixer(x) for _ in range(3000)])
    assert outputs.std(0).min() > 0
    torch.testing.assert_close(outputs.mean(0), mixer.eval()(x), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("steps", [1, 5])
def test_layer_equals_the_golden_file(golden: Golden, steps: int) -> None:
    arrays = golden(f"sinkformer_it{steps}")
    mixer = rm.create_mixer("sinkformer", 16, num_heads=2, num_iterations=steps, bias=False)
    names = {"to_qkv.weight": "qkv.weight"}
    names |= {f"to_out.0.{part}": f"proj.{part}" for part in ("weight", "bias")}
    mixer.load_state_dict(
        {ours: torch.from_numpy(arrays[f"p.{theirs}"]) for theirs, ours in names.items()}
    )
    x = torch.from_numpy(arrays["x"]).requires_grad_()
    y = mixer(x)
    torch.testing.assert_close(y, torch.from_numpy(arrays["y"]), **TOLERANCE)
    q, k, _ = mixer.split(mixer.qkv(x))
    weights = balanced_attention(q @ k.mT / 8**0.5, mixer.num_iterations)
    torch.testing.assert_close(weights, torch.from_numpy(arrays["attn"]), **TOLERANCE)
    (y * torch.from_numpy(arrays["ct"])).sum().backward()
    torch.testing.assert_close(x.grad, torch.from_numpy(arrays["gx"]), **TOLERANCE)
    for theirs, ours in names.items():
        torch.testing.assert_close(
            mixer.get_parameter(ours).grad, torch.from_numpy(arrays[f"gp.{theirs}"]), **TOLERANCE
        )


def test_operator_equals_the_golden_file(golden: Golden) -> None:
    arrays = golden("sinkformer_operator")
    scores = torch.from_numpy(arrays["c"]).unsqueeze(1)
    for name in arrays.keys() - {"c"}:
        epsilon, _, steps = name.removeprefix("pi_eps").rpartition("_it")
        epsilon = 1.0 if name.startswith("pi_it") else float(epsilon)
        plan = balanced_attention(scores / epsilon, int(steps)) / 6
        expected = torch.from_numpy(arrays[name]).unsqueeze(1)
        torch.testing.assert_close(plan, expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_iterations", 0), ("num_iterations", 1.5), ("epsilon", 0.0), ("epsilon", "1")],
)
def test_options_out_of_range(option: str, value: object) -> None:
    with pytest.raises(rm.InputError, match=f"^{option}: expected"):
        build(**{option: value})
