"""Softmax attention: biases and inner width of its projections, also in streaming."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rifflemix as rm


@pytest.mark.parametrize(
    ("options", "biases"),
    [
        ({}, (True, True)),
        ({"bias": False}, (False, False)),
        ({"bias": False, "out_bias": True}, (False, True)),
        ({"out_bias": False}, (True, False)),
    ],
)
def test_biases_follow_the_options(options: dict[str, Any], biases: tuple[bool, bool]) -> None:
    mixer = rm.create_mixer("softmax", 8, num_heads=2, **options)
    assert (mixer.qkv.bias is not None, mixer.proj.bias is not None) == biases


def test_inner_width_sets_the_projections() -> None:
    mixer = rm.create_mixer("softmax", 8, num_heads=2, inner_dim=12).double()
    assert mixer.qkv.weight.shape == (36, 8)
    assert mixer.proj.weight.shape == (8, 12)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    heads = mixer.qkv(x).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
    weights = (heads[0] @ heads[1].mT / 6**0.5).softmax(dim=-1)
    expected = mixer.proj((weights @ heads[2]).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x), expected)


def test_padded_queries_return_the_mean_of_all_values() -> None:
    """Check padded queries: equal scores average all values, padded values included."""
    mixer = rm.create_mixer("softmax", 8, num_heads=2, inner_dim=4, padded_queries="mean")
    plain = rm.create_mixer("softmax", 8, num_heads=2, inner_dim=4)
    plain.load_state_dict(mixer.state_dict())
    x, mask = torch.randn(2, 7, 8), torch.rand(2, 7) < 0.5
    values = mixer.qkv(x)[..., 8:].mean(1, keepdim=True)
    expected = torch.where(mask[..., None], mixer.proj(values), plain(x, key_padding_mask=mask))
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected)
    torch.testing.assert_close(mixer(x), plain(x))
    with pytest.raises(rm.InputError, match=r"padded_queries: .*got 'all'"):
        rm.create_mixer("softmax", 8, padded_queries="all")
    with pytest.raises(rm.InputError, match=r"padded_queries: .*'zero'.*causal=True"):
        rm.create_mixer("softmax", 8, padded_queries="mean", causal=True)


def test_streaming_with_an_inner_width() -> None:
    mixer = rm.create_mixer("softmax", 8, num_heads=2, inner_dim=12, causal=True).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    state = mixer.init_state(2, dtype=torch.float64)
    steps = []
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, dim=1), mixer(x))


def test_empty_cache_has_the_dtype_of_the_parameters() -> None:
    mixer = rm.create_mixer("softmax", 8, num_heads=2, causal=True).bfloat16()
    y, state = mixer.step(torch.randn(2, 8, dtype=torch.bfloat16), mixer.init_state(2))
    assert y.dtype == state["keys"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner_dim": 9}, r"num_heads: .*inner_dim = 9.*got 2\b"),
        ({"inner_dim": 0}, r"inner_dim: .*\b1\b"),
        ({"out_bias": 1}, "out_bias: .*True.*False.*got 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.create_mixer("softmax", 8, num_heads=2, **options)
