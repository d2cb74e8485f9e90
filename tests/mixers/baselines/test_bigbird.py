"""BigBird against a dense mask built from its random draws, and checks of the draws."""

from __future__ import annotations

from collections import Counter

import pattern_reference as reference
import pytest
import torch

import rifflemix as rm
from rifflemix.mixers.baselines.bigbird import BigBird, random_blocks


def seen_blocks(mixer: BigBird, blocks: int) -> list[list[set[int]]]:
    """Return [head][query block] -> key blocks, for `blocks` blocks of valid tokens."""
    draws = random_blocks(
        torch.tensor([blocks]), blocks, mixer.num_heads, mixer.num_random,
        seed=mixer.random_seed, layer=mixer.layer_index,
    )  # fmt: skip
    everything = set(range(blocks))
    heads = []
    for h in range(mixer.num_heads):
        rows = []
        for i in range(blocks):
            drawn = set(draws.chosen[0, h, i][draws.exists[0, h, i]].tolist())
            row = ({i - 1, i, i + 1, 0, blocks - 1} & everything) | drawn
            rows.append(everything if i in (0, blocks - 1) else row)
        heads.append(rows)
    return heads


@pytest.mark.parametrize("padding", ["none", "trailing", "leading", "scattered"])
@pytest.mark.parametrize("num_random", [0, 1, 3])
@pytest.mark.parametrize(("length", "block"), [(1, 4), (7, 4), (9, 4), (26, 2), (40, 3), (20, 64)])
def test_equals_a_dense_mask(length, block, num_random, padding) -> None:
    mixer = rm.create_mixer(
        "bigbird", 8, num_heads=2, block_size=block, num_random=num_random, num_layers=3,
        layer_index=1, random_seed=9,
    ).double()  # fmt: skip
    x = torch.randn(3, length, 8, dtype=torch.float64)
    mask = reference.masks(3, length)[padding]

    def mask_of(n: int) -> torch.Tensor:
        heads = seen_blocks(mixer, -(-n // block))
        rows = [reference.pattern(n, lambda i, j, h=h: j // block in h[i // block]) for h in heads]
        return torch.stack(rows)

    expected = reference.masked_attention_layer(mixer, x, mask_of, mask)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected, atol=1e-12, rtol=1e-9)


def test_kept_positions_determine_the_blocks() -> None:
    """Check that blocks count all positions.

    The last block is the last one that contains a valid token.
    """
    mixer = rm.create_mixer(
        "bigbird", 8, num_heads=2, block_size=4, num_random=1, keep_positions=True
    ).double()
    x, mask = torch.randn(3, 37, 8, dtype=torch.float64), torch.rand(3, 37) < 0.4
    mask[1, 12:20] = True  # whole padded blocks between valid blocks
    mask[2, 24:] = True
    mask[:2, 36] = mask[2, 23] = False
    for row, blocks in enumerate((10, 10, 6)):
        heads = seen_blocks(mixer, blocks)
        sees = torch.stack(
            [
                reference.pattern(37, lambda i, j, h=h: i >= 24 or j // 4 in h[i // 4])
                if blocks == 6
                else reference.pattern(37, lambda i, j, h=h: j // 4 in h[i // 4])
                for h in heads
            ]
        )
        one = slice(row, row + 1)
        expected = reference.masked_in_position(mixer, x[one], sees, mask[one])
        found = mixer(x[one], key_padding_mask=mask[one])
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("num_random", [1, 3, 5])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 6, 9, 40])
def test_random_blocks_are_distinct_and_not_in_the_window(blocks: int, num_random: int) -> None:
    draws = random_blocks(torch.tensor([blocks, 1]), blocks + 2, 3, num_random, seed=0, layer=0)
    for h in range(3):
        for i in range(1, blocks - 1):
            allowed = set(range(blocks)) - {0, blocks - 1, i - 1, i, i + 1}
            drawn = draws.chosen[0, h, i][draws.exists[0, h, i]].tolist()
            assert len(set(drawn)) == len(drawn) == min(num_random, len(allowed))
            assert set(drawn) <= allowed
    assert not draws.exists[1].any()


def test_random_blocks_are_uniform_and_differ() -> None:
    def draw(seed: int, layer: int) -> torch.Tensor:
        return random_blocks(torch.tensor([400]), 400, 8, 3, seed=seed, layer=layer).chosen

    first = draw(0, 0)
    assert torch.equal(first, draw(0, 0))
    for other in (draw(1, 0), draw(0, 1), first.roll(1, 1)):
        assert (first == other).float().mean() < 0.05
    counts = Counter((first[0, :, 1:399] // 40).flatten().tolist())
    expected = 8 * 398 * 3 / 10
    assert all(abs(counts[tenth] - expected) < 6 * expected**0.5 for tenth in range(10))


def test_random_blocks_of_a_sample_depend_only_on_its_length() -> None:
    together = random_blocks(torch.tensor([7, 12]), 12, 2, 3, seed=0, layer=0)
    alone = random_blocks(torch.tensor([7]), 7, 2, 3, seed=0, layer=0)
    exists = alone.exists[0]
    assert torch.equal(together.exists[0, :, :7], exists)
    assert torch.equal(together.chosen[0, :, :7][exists], alone.chosen[0][exists])


@pytest.mark.parametrize(
    ("options", "named"),
    [({"block_size": 0}, "block_size"), ({"num_random": -1}, "num_random"),
     ({"random_seed": -1}, "random_seed")],
    ids=str,
)  # fmt: skip
def test_bad_options_are_refused(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}: expected"):
        rm.create_mixer("bigbird", 8, **options)
