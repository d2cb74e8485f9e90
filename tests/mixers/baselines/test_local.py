"""Local attention against a dense block-diagonal mask."""

from __future__ import annotations

import pattern_reference as reference
import pytest
import torch

import rifflemix as rm


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "trailing", "leading", "scattered"])
@pytest.mark.parametrize(("length", "block"), [(12, 4), (13, 4), (3, 4), (10, 1), (20, 50)])
def test_equals_a_block_diagonal_mask(length: int, block: int, padding: str, causal: bool) -> None:
    mixer = rm.create_mixer("local", 8, num_heads=2, block_size=block, causal=causal).double()
    x = torch.randn(3, length, 8, dtype=torch.float64)
    mask = reference.masks(3, length)[padding]

    def mask_of(n: int) -> torch.Tensor:
        return reference.pattern(
            n, lambda i, j: i // block == j // block and not (causal and j > i)
        )

    expected = reference.masked_attention_layer(mixer, x, mask_of, mask)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "leading", "scattered"])
def test_kept_positions_determine_the_blocks(padding: str, causal: bool) -> None:
    """Check that blocks count all positions but attend to valid tokens only."""
    mixer = rm.create_mixer(
        "local", 8, num_heads=2, block_size=4, causal=causal, keep_positions=True
    ).double()
    x = torch.randn(3, 13, 8, dtype=torch.float64)
    mask = reference.masks(3, 13)[padding]
    sees = reference.pattern(13, lambda i, j: i // 4 == j // 4 and not (causal and j > i))
    expected = reference.masked_in_position(mixer, x, sees, mask)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(
    ("max_length", "block"), [(None, 64), (64, 8), (5, 1), (512, 64), (16384, 64)]
)
def test_default_block(max_length: int | None, block: int) -> None:
    assert rm.create_mixer("local", 8, max_length=max_length).block_size == block


def test_equals_the_golden_file(golden) -> None:
    """Check that the butterfly authors' attention in contiguous blocks is equal."""
    g = golden("block_attention")
    mixer = rm.create_mixer("local", 8, num_heads=2, block_size=4)
    parts = ("queries", "keys", "values")
    for kind in ("weight", "bias"):
        joined = torch.cat([torch.from_numpy(g[f"p.{part}.{kind}"]) for part in parts])
        getattr(mixer.qkv, kind).data.copy_(joined)
        getattr(mixer.proj, kind).data.copy_(torch.from_numpy(g[f"p.fc_out.{kind}"]))
    y = mixer(torch.from_numpy(g["x"]))
    torch.testing.assert_close(y, torch.from_numpy(g["y"]), atol=1e-5, rtol=1e-4)


def test_stream_state_keeps_its_size() -> None:
    mixer = rm.create_mixer("local", 8, num_heads=2, block_size=3, causal=True)
    state = mixer.init_state(2)
    shapes = {name: t.shape for name, t in state.items()}
    before = {name: t.clone() for name, t in state.items()}
    for _ in range(7):
        _, after = mixer.step(torch.randn(2, 8), state)
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert {name: t.shape for name, t in after.items()} == shapes


@pytest.mark.parametrize("block", [0, -1, 2.5, "8"])
def test_bad_block_size_is_refused(block) -> None:
    with pytest.raises(ValueError, match=r"block_size: .*\b1\b"):
        rm.create_mixer("local", 8, block_size=block)
