"""Longformer against dense attention with two sets of projections."""

from __future__ import annotations

import pattern_reference as reference
import pytest
import torch

import rifflemix as rm
from rifflemix.mixers.baselines.longformer import Longformer


def sees(mixer: Longformer, i: int, j: int) -> bool:
    g, w = mixer.num_global, mixer.window
    near = i - w // 2 <= j <= i + (w - 1) // 2
    return (near or i < g or j < g) and not (mixer.causal and j > i)


def literal(mixer: Longformer, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Compute global tokens from `global_qkv` and all others from `qkv`.

    Both use dense masks.
    """

    def one(tokens: torch.Tensor) -> torch.Tensor:
        n, g = len(tokens), mixer.num_global
        allowed = reference.pattern(n, lambda i, j: sees(mixer, i, j))

        def attend(maps: torch.nn.Linear) -> torch.Tensor:
            q, k, v = (reference.split_heads(t, mixer.num_heads) for t in maps(tokens).chunk(3, -1))
            return reference.dense_attention(q, k, v, allowed)

        y = attend(mixer.qkv)
        if g:
            y = torch.cat((attend(mixer.global_qkv)[:, :g], y[:, g:]), 1)
        return mixer.proj(y.transpose(0, 1).flatten(1))

    return reference.on_valid_tokens(one, x, mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_global", [0, 1, 3])
@pytest.mark.parametrize(("length", "window"), [(1, 3), (2, 4), (21, 1), (21, 6), (37, 41)])
def test_equals_dense_attention(length, window, num_global, causal) -> None:
    mixer = rm.create_mixer(
        "longformer", 8, num_heads=2, window=window, num_global=num_global, causal=causal
    ).double()
    for case, x, mask in reference.padded_inputs((length,), 8):
        reference.require_close(mixer(x, key_padding_mask=mask), literal(mixer, x, mask), case)


@pytest.mark.parametrize("padding", ["none", "leading", "scattered"])
def test_kept_positions_determine_the_windows(padding: str) -> None:
    mixer = rm.create_mixer(
        "longformer", 8, num_heads=2, window=5, num_global=0, keep_positions=True
    ).double()
    x = torch.randn(3, 21, 8, dtype=torch.float64)
    mask = reference.masks(3, 21)[padding]
    pattern = reference.pattern(21, lambda i, j: sees(mixer, i, j))
    expected = reference.masked_in_position(mixer, x, pattern, mask)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected, atol=1e-12, rtol=1e-9)


def test_no_global_projections_without_global_tokens() -> None:
    assert rm.create_mixer("longformer", 8, num_global=0).global_qkv is None


@pytest.mark.parametrize(("max_length", "window"), [(None, 129), (64, 17), (4096, 129)])
def test_default_window(max_length, window: int) -> None:
    assert rm.create_mixer("longformer", 8, max_length=max_length).window == window


@pytest.mark.parametrize(
    ("options", "named"), [({"window": 0}, "window"), ({"num_global": -1}, "num_global")], ids=str
)
def test_bad_options_are_refused(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}: expected"):
        rm.create_mixer("longformer", 8, **options)
