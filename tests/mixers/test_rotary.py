"""Rotary positions: values, distances, padding, streaming, and mixers that cannot use them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.mixers._attention.softmax_parts import rotate

TINY: dict[str, Any] = {"dim": 8, "num_heads": 2, "vocab_size": 11, "max_length": 16}


def test_pairs_are_rotated_by_the_angles_of_the_paper() -> None:
    x = torch.randn(1, 1, 5, 6, dtype=torch.float64)
    y = rotate(x, torch.arange(5))
    for n in range(5):
        for i in range(3):
            angle = n * 10_000 ** (-2 * i / 6)
            pair = complex(x[0, 0, n, i], x[0, 0, n, i + 3])
            turned = pair * complex(math.cos(angle), math.sin(angle))
            assert complex(y[0, 0, n, i], y[0, 0, n, i + 3]) == pytest.approx(turned, abs=1e-6)


def test_scores_depend_on_distances_only() -> None:
    q, k = torch.randn(2, 1, 2, 6, 8, dtype=torch.float64)
    near, far = torch.arange(6), torch.arange(6) + 7
    scores = [rotate(q, at) @ rotate(k, at).mT for at in (near, far)]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=1e-5)


def test_padding_and_streaming_count_valid_tokens() -> None:
    torch.manual_seed(0)
    model = rm.create_model("gpt", positions="rope", **TINY).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.qkv.weight.mul_(50)  # so that scores differ
    plain = rm.create_model("gpt", positions="none", **TINY).eval()
    plain.load_state_dict(model.state_dict())
    tokens = torch.randint(11, (2, 9))
    expected = model(tokens)
    assert not torch.allclose(expected, plain(tokens), atol=1e-4)
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[1, [0, 3]] = True
    logits, state = model.prefill(tokens, key_padding_mask=mask)
    alone = tokens[1:][:, ~mask[1]]
    torch.testing.assert_close(logits[1], model(alone)[0, -1], atol=1e-5, rtol=1e-5)
    logits, state = model.step(tokens[:, 0], state)
    longer = torch.cat((alone, tokens[1:, :1]), 1)
    torch.testing.assert_close(logits[1], model(longer)[0, -1], atol=1e-5, rtol=1e-5)
    packed = model(tokens.reshape(1, 18), cu_seqlens=torch.tensor([0, 9, 18]))
    torch.testing.assert_close(packed.reshape(2, 9, 11), expected, atol=1e-5, rtol=1e-5)


def test_a_stack_rotates_its_softmax_layers() -> None:
    model = rm.create_model("gpt", mixer="csp+softmax", positions="rope", **TINY)
    assert model.blocks[1].mixer.rotary
    assert not hasattr(model.blocks[0].mixer, "rotary")
    encoder = rm.create_model("encoder", positions="rope", **TINY)
    assert all(block.mixer.rotary for block in encoder.blocks)


@pytest.mark.parametrize("model", ["encoder", "gpt"])
@pytest.mark.parametrize("mixer", ["csp", "tssa+csp"])
def test_rope_is_refused_without_queries_and_keys(model: str, mixer: str) -> None:
    with pytest.raises(InputError, match="positions"):
        rm.create_model(model, mixer=mixer, positions="rope", **TINY)


def test_heads_of_odd_size_are_refused() -> None:
    with pytest.raises(InputError, match="rotary"):
        rm.create_mixer("softmax", 9, num_heads=3, rotary=True)


@pytest.mark.parametrize("model", ["encoder", "gpt"])
def test_models_without_positions_check_the_length(model: str) -> None:
    built = rm.create_model(model, positions="none", **TINY)
    if model == "gpt":
        with pytest.raises(InputError, match="max_length"):
            built(torch.zeros(1, 17, dtype=torch.int64))
    assert built(torch.zeros(1, 16, dtype=torch.int64)).isfinite().all()
