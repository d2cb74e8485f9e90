"""Linformer against explicit projections, and a golden vector."""

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
from rifflemix.mixers.baselines.linformer import Linformer


def build(dim: int = 6, num_heads: int = 2, max_length: int = 16, **options) -> Linformer:
    mixer = rm.create_mixer("linformer", dim, num_heads=num_heads, max_length=max_length, **options)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer.double().eval()


def literal(mixer: Linformer, x: Tensor) -> Tensor:
    """Compute one sequence (N, C).

    Key e is the sum over n of E[e, n] k[n].
    """
    y = []
    heads = (t.chunk(mixer.num_heads, -1) for t in mixer.qkv(x).chunk(3, -1))
    for h, (q, k, v) in enumerate(zip(*heads, strict=True)):
        of_keys = mixer.key_projection[h % len(mixer.key_projection)]
        of_values = of_keys
        if mixer.value_projection is not None:
            of_values = mixer.value_projection[h % len(mixer.value_projection)]
        keys = sum(of_keys[:, n : n + 1] * k[n] for n in range(len(x)))
        values = sum(of_values[:, n : n + 1] * v[n] for n in range(len(x)))
        y.append((q @ keys.T / q.shape[1] ** 0.5).softmax(-1) @ values)
    return mixer.proj(torch.cat(y, -1))


SHARING = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize(("share_heads", "share_kv"), SHARING)
@pytest.mark.parametrize("length", [1, 9, 16])
def test_equals_explicit_projections(length: int, share_heads: bool, share_kv: bool) -> None:
    mixer = build(projected_length=5, share_heads=share_heads, share_kv=share_kv)
    x = torch.randn(2, length, 6, dtype=torch.float64)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("share_heads", "share_kv"), SHARING)
def test_shapes_of_the_projections(share_heads: bool, share_kv: bool) -> None:
    mixer = build(projected_length=5, share_heads=share_heads, share_kv=share_kv)
    shape = (1 if share_heads else 2, 5, 16)
    assert mixer.key_projection.shape == shape
    assert (mixer.value_projection is None) == share_kv
    assert share_kv or mixer.value_projection.shape == shape


def test_default_lengths() -> None:
    assert build(max_length=40).key_projection.shape == (1, 40, 40)
    assert build(max_length=1000).key_projection.shape == (1, 256, 1000)


def test_padding_does_not_change_valid_tokens() -> None:
    assert_acts_on_valid_tokens(build(projected_length=5))


def test_memory_is_linear_in_the_length() -> None:
    mixer = build(max_length=2048, projected_length=32)
    assert_linear_memory(mixer, per_token=2 * 32)


def test_equals_the_golden_file(golden: Callable[[str], dict[str, np.ndarray]]) -> None:
    arrays = golden("lra_linformer")
    mixer = build(8, projected_length=6, share_heads=False).float()
    mixer.load_state_dict({"key_projection": torch.from_numpy(arrays["p.E"])}, strict=False)
    q, k, v = queries_keys_values(arrays)
    expected = torch.from_numpy(arrays["y_nomask"])
    torch.testing.assert_close(mixer.attend(q, k, v, None), expected, **TOLERANCE)
    mask = padding_mask(arrays)
    assert_valid_equal(mixer.attend(q, k, v, mask), arrays["y_masked"], mask)


def test_no_projected_keys() -> None:
    with pytest.raises(rm.InputError, match=r"projected_length: .*\b1\b"):
        build(projected_length=0)
