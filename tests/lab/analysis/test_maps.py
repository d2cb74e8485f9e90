"""Tests of the maps of mixers against their definitions in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.lab.analysis import Call, matrix_of, permutation_of
from rifflemix.lab.analysis.trace import undisturbed

C, H, N = 8, 2, 7
# Valid tokens: all, only the first, or with gaps.
MASKS = {
    "whole": None,
    "padded": torch.tensor([[False] * 5 + [True] * 2, [True, False, False, True] + [False] * 3]),
}


def call_of(name: str, mask: Tensor | None = None, **options: Any) -> Call:
    mixer = rm.create_mixer(name, C, num_heads=H, max_length=N, **options).double()
    x = torch.randn(2, N, C, dtype=torch.float64)
    with undisturbed(mixer):
        y = mixer(x, key_padding_mask=mask)
    return Call("mixer", mixer, x, y, mask)


def valid(mask: Tensor | None, sample: int) -> np.ndarray:
    return np.ones(N, bool) if mask is None else ~mask[sample].numpy()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_softmax_attention_by_its_equation(mask: Tensor | None, causal: bool) -> None:
    call = call_of("softmax", mask, causal=causal)
    found = matrix_of(call)
    assert found is not None
    weight, bias = (t.detach().numpy() for t in (call.module.qkv.weight, call.module.qkv.bias))
    for sample in range(2):
        there = valid(mask, sample)
        x = call.x[sample].numpy()
        q, k, _ = (x @ weight.T + bias).reshape(N, 3, H, C // H).transpose(1, 2, 0, 3)
        for head in range(H):
            scores = q[head] @ k[head].T / np.sqrt(C // H)
            seen = there[None, :] & (np.tri(N, dtype=bool) if causal else True)
            weights = np.where(seen, np.exp(scores), 0.0)
            expected = weights / np.maximum(weights.sum(1, keepdims=True), 1e-300)
            got = found[sample, head].numpy()
            np.testing.assert_allclose(got[there], expected[there], atol=1e-12)
            assert not got[~there].any()


LINEAR = (
    "softmax",
    "butterfly",
    "token_parallel",
    "sinkhorn",
    "local",
    "linear",
    "performer",
    "linformer",
    "nystromformer",
    "cosformer",
    "sinkformer",
    "synthesizer",
    "bigbird",
    "sparse_transformer",
)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", LINEAR)
def test_matrix_gives_the_output_of_the_layer(name: str, mask: Tensor | None) -> None:
    """Check that the output is an affine function of the map and the values from `qkv`."""
    call = call_of(name, mask)
    matrix = matrix_of(call)
    assert matrix is not None
    host = getattr(call.module, "attention", call.module)
    groups = getattr(host, "num_groups", 1)
    x = call.x if mask is None else call.x.masked_fill(mask.unsqueeze(-1), 0.0)
    with torch.no_grad():
        values = host.qkv(x).unflatten(-1, (groups, 3, H // groups, -1))[..., 2, :, :]
        mixed = (matrix @ values.flatten(2, 3).transpose(1, 2)).transpose(1, 2).flatten(2)
        y = mixed if host.proj is None else host.proj(mixed)
    if mask is not None:
        y = y.masked_fill(mask.unsqueeze(-1), 0.0)
    torch.testing.assert_close(y, call.y, rtol=1e-9, atol=1e-9)


def test_butterfly_groups_are_blocks_one_stride_apart() -> None:
    call = call_of("butterfly", layer_index=1, num_layers=2, block_size=2)
    matrix = matrix_of(call)
    assert matrix is not None
    stride = call.module.strides(N)[1]
    there = np.zeros((N, N), bool)
    for i in range(N):
        for j in range(N):
            block = i // (2 * stride) == j // (2 * stride)
            there[i, j] = block and i % stride == j % stride
    assert np.array_equal(matrix[0, 0].numpy() > 0, there)
    # A single valid token attends only to itself or to padding.
    np.testing.assert_allclose(matrix.sum(-1).numpy(), 1.0, atol=1e-12)


@pytest.mark.parametrize("name", ["xca", "tssa", "fnet", "reformer", "average", "csp"])
def test_mixers_without_an_attention_matrix_return_none(name: str) -> None:
    assert matrix_of(call_of(name)) is None


CSP_OPTIONS: dict[str, dict[str, Any]] = {
    "pairs": {},
    "one group": {"num_groups": 1},
    "shift alone": {"group_size": 1},
    "ascending": {"group_size": 3, "order": "ascending", "pad": True},
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("options", CSP_OPTIONS.values(), ids=CSP_OPTIONS)
def test_the_permutation_gathers_the_output(options: dict[str, Any], mask: Tensor | None) -> None:
    call = call_of("csp", mask, **options)
    check_permutation(call, mask)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("variant", ["ascending", "descending", "interleave", "max_exchange"])
def test_sliceformer_permutes_too(variant: str, mask: Tensor | None) -> None:
    call = call_of("sliceformer", mask, variant=variant)
    check_permutation(call, mask)
    if variant == "ascending":
        index = permutation_of(call)
        assert index is not None
        values = call.x.masked_fill(mask.unsqueeze(-1), 0.0) if mask is not None else call.x
        values = call.module.value(values).detach()
        there = valid(mask, 1)
        expected = np.argsort(values[1].numpy()[there], axis=0, kind="stable")
        assert np.array_equal(index[1].numpy()[there], np.flatnonzero(there)[expected])


def check_permutation(call: Call, mask: Tensor | None) -> None:
    index = permutation_of(call)
    assert index is not None
    x = call.x if mask is None else call.x.masked_fill(mask.unsqueeze(-1), 0.0)
    with torch.no_grad():
        y = call.module.proj(call.module.value(x).gather(1, index))
    if mask is not None:
        y = y.masked_fill(mask.unsqueeze(-1), 0.0)
        own = torch.arange(N)[None, :, None].expand_as(index)
        assert torch.equal(index[mask], own[mask])
    torch.testing.assert_close(y, call.y, rtol=1e-12, atol=1e-12)
    assert torch.equal(index.sort(1).values, torch.arange(N)[None, :, None].expand_as(index))


def test_mixer_is_not_changed() -> None:
    call = call_of("sinkhorn", gumbel="always")
    call.module.train()
    state = torch.get_rng_state()
    first = matrix_of(call)
    assert call.module.training
    assert torch.equal(torch.get_rng_state(), state)
    again = matrix_of(call)
    assert first is not None
    assert again is not None
    assert torch.equal(first, again)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["softmax", "local"])
def test_a_layer_in_16_bits_has_the_matrix_of_its_weights(name: str, dtype: torch.dtype) -> None:
    call = call_of(name)
    half = replace(call, module=call.module.to(dtype), x=call.x.to(dtype), y=call.y.to(dtype))
    found = matrix_of(half)
    wide = matrix_of(replace(half, module=half.module.double(), x=half.x.double()))
    assert found is not None
    assert wide is not None
    torch.testing.assert_close(found, wide.float())
