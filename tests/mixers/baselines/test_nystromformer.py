"""Nystromformer against explicit segment means, softmax attention and golden vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from attention_checks import (
    TOLERANCE,
    assert_acts_on_valid_tokens,
    assert_linear_memory,
    assert_valid_equal,
    padding_mask,
    queries_keys_values,
)
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.nystromformer import Nystromformer

Golden = Callable[[str], dict[str, np.ndarray]]


def build(dim: int = 8, num_heads: int = 2, **options) -> Nystromformer:
    mixer = rm.create_mixer("nystromformer", dim, num_heads=num_heads, **options)
    return mixer.double().eval()


def literal(mixer: Nystromformer, x: Tensor) -> Tensor:
    """Compute one sequence (N, C) with the exact pseudo-inverse.

    It is the limit of many iterations.
    """
    m, heads = mixer.num_landmarks, mixer.num_heads
    y = []
    parts = (t.chunk(heads, -1) for t in mixer.qkv(x).chunk(3, -1))
    for h, (q, k, v) in enumerate(zip(*parts, strict=True)):
        segments = [[n for n in range(len(x)) if n * m // len(x) == s] for s in range(m)]
        q_marks = torch.stack([q[s].mean(0) for s in segments])
        k_marks = torch.stack([k[s].mean(0) for s in segments])
        scale = q.shape[1] ** -0.5
        middle = (q_marks @ k_marks.T * scale).softmax(-1)
        left = (q @ k_marks.T * scale).softmax(-1)
        right = (q_marks @ k.T * scale).softmax(-1)
        out = left @ torch.linalg.pinv(middle) @ right @ v
        if mixer.conv is not None:
            kernel = mixer.conv.weight[h, 0, :, 0]
            reach = len(kernel) // 2
            for n in range(len(x)):
                for s in range(max(0, n - reach), min(len(x), n + reach + 1)):
                    out[n] = out[n] + kernel[s - n + reach] * v[s]
        y.append(out)
    return mixer.proj(torch.cat(y, -1))


@pytest.mark.parametrize("conv_kernel", [None, 1, 5])
@pytest.mark.parametrize(("length", "num_landmarks"), [(12, 4), (13, 4), (7, 3), (5, 1)])
def test_equals_explicit_landmarks(
    length: int, num_landmarks: int, conv_kernel: int | None
) -> None:
    mixer = build(num_landmarks=num_landmarks, conv_kernel=conv_kernel, pinv_iterations=30)
    torch.nn.init.normal_(mixer.qkv.weight)  # large enough for an invertible middle matrix
    x = torch.randn(2, length, 8, dtype=torch.float64)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("num_landmarks", [1, 3, 6, 13, 20])
def test_padding_does_not_change_valid_tokens(num_landmarks: int) -> None:
    """Check empty landmarks: with few valid tokens the result is softmax attention."""
    assert_acts_on_valid_tokens(build(num_landmarks=num_landmarks, conv_kernel=3))


@pytest.mark.parametrize("masked", [False, True])
def test_one_landmark_per_token_equals_softmax_attention(masked: bool) -> None:
    mixer = build(num_landmarks=9, conv_kernel=None)
    softmax = rm.create_mixer("softmax", 8, num_heads=2).double()
    softmax.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 14 if masked else 9, 8, dtype=torch.float64)
    mask = None
    if masked:
        mask = torch.rand(2, 14).argsort(1) >= 9  # nine valid tokens at random positions
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), softmax(x, key_padding_mask=mask))


def test_more_landmarks_approximate_softmax_attention_better() -> None:
    x = torch.randn(2, 64, 8, dtype=torch.float64).cumsum(1) / 8  # neighbors are similar
    errors = []
    for num_landmarks in (2, 8, 32):
        torch.manual_seed(3)
        mixer = build(num_landmarks=num_landmarks, conv_kernel=None, pinv_iterations=20)
        softmax = rm.create_mixer("softmax", 8, num_heads=2).double()
        softmax.load_state_dict(mixer.state_dict())
        errors.append((mixer(x) - softmax(x)).norm().item())
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("padding", [False, True])
def test_gradients_are_correct(padding: bool) -> None:
    mixer = build(4, 2, num_landmarks=3, conv_kernel=3)
    x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    mask = None
    if padding:
        mask = torch.tensor([[0, 1, 0, 0, 0, 1, 0], [1, 1, 0, 1, 1, 1, 0]]).bool()
    assert torch.autograd.gradcheck(lambda x: mixer(x, key_padding_mask=mask), x)


def test_sample_of_padding_only_is_finite() -> None:
    mixer = build(num_landmarks=3)
    x = torch.randn(2, 7, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1] = True
    y = mixer(x, key_padding_mask=mask)
    y.square().sum().backward()
    assert (y[1] == 0).all()
    assert all(t.grad.isfinite().all() for t in (x, *mixer.parameters()))


def test_samples_affect_each_other_only_as_in_the_released_code() -> None:
    a, b = torch.randn(2, 12, 8).double(), 5 * torch.randn(2, 12, 8).double()
    for pinv_init, apart in (("per_matrix", True), ("batch", False)):
        mixer = build(num_landmarks=4, pinv_init=pinv_init, pinv_iterations=2)
        torch.nn.init.normal_(mixer.qkv.weight)
        together, alone = mixer(torch.cat((a, b))), torch.cat((mixer(a), mixer(b)))
        assert torch.allclose(together, alone, atol=1e-10) == apart


def test_bfloat16_keeps_the_pseudo_inverse_in_float32() -> None:
    mixer = build(32, 4, num_landmarks=8, conv_kernel=None)
    torch.nn.init.normal_(mixer.qkv.weight, std=0.3)
    mixer = mixer.bfloat16()
    x = torch.randn(2, 64, 32).bfloat16()
    exact = mixer.double()(x.double())
    y = mixer.bfloat16()(x).double()
    assert (y - exact).abs().mean() < 0.01 * exact.abs().mean()


@pytest.mark.slow
def test_compiles_and_exports_through_landmarks() -> None:
    mixer = build(num_landmarks=4).float()
    x = torch.randn(2, 11, 8)
    mask = torch.arange(11) >= torch.tensor([[11], [3]])
    expected = mixer(x, key_padding_mask=mask)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, key_padding_mask=mask), expected)
    program = torch.export.export(mixer, (x,), {"key_padding_mask": mask}, strict=False)
    torch.testing.assert_close(program.module()(x, key_padding_mask=mask), expected)


def test_memory_is_linear_in_the_length() -> None:
    assert_linear_memory(build(num_landmarks=16), per_token=2 * 16)


def test_dropout_acts_in_training_only() -> None:
    mixer = build(num_landmarks=3, dropout=0.5).train()
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    assert not torch.equal(mixer(x), mixer(x))
    mixer.eval()
    assert torch.equal(mixer(x), mixer(x))


def test_equals_the_golden_file(golden: Golden) -> None:
    arrays = golden("lra_nystrom_conv")
    weight = torch.from_numpy(arrays["p.conv.weight"])
    mixer = rm.create_mixer(
        "nystromformer",
        8,
        num_heads=2,
        num_landmarks=4,
        pinv_init="batch",
        landmarks="all",
        conv_kernel=weight.shape[2],
    )
    mixer.conv.load_state_dict({"weight": weight})
    q, k, v = queries_keys_values(arrays)
    expected = torch.from_numpy(arrays["y_nomask"])
    torch.testing.assert_close(mixer.attend(q, k, v, None), expected, **TOLERANCE)
    mask = padding_mask(arrays)
    assert_valid_equal(mixer.attend(q, k, v, mask), arrays["y_masked"], mask)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_landmarks", 0),
        ("pinv_iterations", 0),
        ("pinv_init", "exact"),
        ("landmarks", "some"),
        ("conv_kernel", 4),
        ("conv_kernel", 0),
    ],
)
def test_options_out_of_range(option: str, value: object) -> None:
    with pytest.raises(rm.InputError, match=f"^{option}: expected"):
        build(**{option: value})
