"""Token-parallel attention against one dense attention per group of channels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.token_parallel import TokenParallel


def build(dim: int = 12, num_heads: int = 4, **options) -> TokenParallel:
    mixer = rm.create_mixer("token_parallel", dim, num_heads=num_heads, **options)
    return mixer.double().eval()


def group_by_group(
    mixer: TokenParallel, x: Tensor, may_attend: Tensor, softmax_dim: int = -1
) -> Tensor:
    """Apply attention to each group of channels, split into heads."""
    width = mixer.dim // mixer.num_groups
    head = mixer.dim // mixer.num_heads
    outputs = []
    for g in range(mixer.num_groups):
        own = x[..., g * width : (g + 1) * width]
        q, k, v = (own @ mixer.qkv.weight[g] + mixer.qkv.bias[g]).chunk(3, dim=-1)
        y = []
        for start in range(0, width, head):
            part = slice(start, start + head)
            scores = q[..., part] @ k[..., part].mT / math.sqrt(head)
            scores = scores.masked_fill(~may_attend, -torch.inf)
            y.append(scores.softmax(softmax_dim).nan_to_num(0.0) @ v[..., part])
        y = torch.cat(y, -1)
        if mixer.proj is not None:
            y = y @ mixer.proj.weight[g] + mixer.proj.bias[g]
        outputs.append(y)
    return torch.cat(outputs, -1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("use_wout", [False, True])
@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_equals_attention_group_by_group(num_groups: int, use_wout: bool, causal: bool) -> None:
    mixer = build(num_groups=num_groups, use_wout=use_wout, causal=causal)
    x = torch.randn(3, 7, 12, dtype=torch.float64)
    mask = torch.rand(3, 7) < 0.4
    mask[2] = True
    earlier = torch.ones(7, 7, dtype=torch.bool).tril(0 if causal else 7)
    torch.testing.assert_close(mixer(x), group_by_group(mixer, x, earlier), atol=1e-10, rtol=1e-10)
    expected = group_by_group(mixer, x, earlier & ~mask[:, None, :])
    expected = expected.masked_fill(mask.unsqueeze(-1), 0.0)
    y = mixer(x, key_padding_mask=mask)
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)


def test_softmax_over_queries() -> None:
    mixer = build(num_groups=2, softmax_over="queries")
    x = torch.randn(3, 7, 12, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 7) < 0.4
    mask[2] = True
    pairs = ~mask[:, None, :] & ~mask[:, :, None]
    expected = group_by_group(mixer, x, pairs, softmax_dim=-2)
    y = mixer(x, key_padding_mask=mask)
    expected = expected.masked_fill(mask.unsqueeze(-1), 0.0)
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)
    assert torch.autograd.grad(y.square().sum(), x)[0].isfinite().all()
    unmasked = group_by_group(mixer, x, torch.ones(7, 7, dtype=torch.bool), softmax_dim=-2)
    torch.testing.assert_close(mixer(x), unmasked, atol=1e-10, rtol=1e-10)


def test_softmax_over_queries_cannot_be_causal() -> None:
    with pytest.raises(rm.InputError, match=r"softmax_over: .*'keys'.*causal=True"):
        build(softmax_over="queries", causal=True)
    with pytest.raises(rm.InputError, match=r"softmax_over: .*got 'rows'"):
        build(softmax_over="rows")


def test_groups_do_not_affect_each_other() -> None:
    mixer = build(num_groups=2, use_wout=True)
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    moved = x.clone()
    moved[..., :6] += 1.0
    change = mixer(moved) - mixer(x)
    assert change[..., :6].abs().max() > 1e-3
    assert not change[..., 6:].any()


def grouped_conv(weight: Tensor, groups: int) -> Tensor:
    """Return a grouped 1x1 convolution's weight as (blocks, in, out)."""
    return weight.view(groups, -1, weight.shape[1]).mT


def load_official(mixer: TokenParallel, p: dict[str, Tensor]) -> None:
    g = mixer.num_groups
    names = ("queries", "keys", "values")
    with torch.no_grad():
        weights = [grouped_conv(p[f"p.{n}.conv.weight"], g) for n in names]
        mixer.qkv.weight.copy_(torch.cat(weights, dim=2))
        biases = [p[f"p.{n}.conv.bias"].view(g, -1) for n in names]
        mixer.qkv.bias.copy_(torch.cat(biases, dim=1))


def test_equals_the_golden_file(golden: Callable[[str], dict[str, np.ndarray]]) -> None:
    vectors = golden("token_parallel_attention_wout0")
    p = {name: torch.from_numpy(array) for name, array in vectors.items()}
    mixer = rm.create_mixer(
        "token_parallel",
        16,
        num_heads=4,
        num_groups=2,
        use_wout=False,
        softmax_over="queries",
    )
    load_official(mixer, p)
    torch.testing.assert_close(mixer.eval()(p["x"]), p["y"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("num_groups", "expected"), [(None, False), (4, False), (2, True), (1, True)]
)
def test_output_projection_follows_the_paper_by_default(
    num_groups: int | None, expected: bool
) -> None:
    mixer = build(num_groups=num_groups)
    assert mixer.num_groups == (num_groups or 4)
    assert (mixer.proj is not None) == expected


@pytest.mark.parametrize(("num_groups", "total"), [(4, 404618), (8, 388746)], ids=["TP-2", "TP-1"])
def test_parameters_of_the_papers_table(num_groups: int, total: int) -> None:
    """Check the released settings.

    These are 4 layers, patch 4, 128 channels, 8 heads and the flag of the released code.
    """
    mixer = rm.create_mixer(
        "token_parallel", 128, num_heads=8, num_groups=num_groups, use_wout=num_groups == 8
    )
    attention = sum(p.numel() for p in mixer.parameters())
    norms, mlp = 2 * 2 * 128, (128 * 256 + 256) + (256 * 128 + 128)
    embedding, head = 48 * 128 + 128, 64 * 128 * 10 + 10
    assert 4 * (attention + norms + mlp) + embedding + head == total


def test_bias_is_optional() -> None:
    mixer = build(num_groups=2, bias=False)
    assert [name for name, _ in mixer.named_parameters()] == ["qkv.weight", "proj.weight"]


@pytest.mark.parametrize("num_groups", [0, 3, 8, -1])
def test_bad_groups_are_refused(num_groups: int) -> None:
    with pytest.raises(rm.InputError, match=r"num_groups: .*num_heads = 4"):
        build(num_groups=num_groups)
