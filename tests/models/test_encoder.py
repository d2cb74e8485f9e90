"""The shared backbone with every mixer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rifflemix as rm

TOKENS = {"vocab_size": 11, "max_length": 24, "dim": 16, "num_heads": 2, "num_classes": 3}


# The contract tests of the mixers check all gradients. Here one mixer of each kind is trained, and
# all in the slow tests.
TRAINED = {"softmax", "csp", "tssa", "sinkhorn", "s4"}


@pytest.mark.parametrize(
    "mixer",
    [
        pytest.param(name, marks=[] if name in TRAINED else [pytest.mark.slow])
        for name in rm.list_mixers()
    ],
)
def test_every_mixer_trains_in_the_encoder(mixer: str) -> None:
    model = rm.create_model("encoder", mixer=mixer, **TOKENS)
    inputs, labels = torch.randint(0, 11, (8, 20)), torch.randint(0, 3, (8,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_padding_does_not_change_outputs(mixer: str) -> None:
    model = rm.create_model("encoder", mixer=mixer, num_layers=2, **TOKENS).double().eval()
    inputs = torch.randint(0, 11, (3, 20))
    mask = torch.zeros(3, 20, dtype=torch.bool)
    mask[0, 13:] = mask[1, 1:] = True
    other = torch.where(mask, torch.randint(0, 11, (3, 20)), inputs)
    torch.testing.assert_close(
        model(other, key_padding_mask=mask), model(inputs, key_padding_mask=mask)
    )


def test_encoder_accepts_vectors() -> None:
    model = rm.create_model("encoder", in_channels=5, max_length=9)
    assert model(torch.randn(2, 9, 5)).shape == (2, 10)


def test_parameter_count() -> None:
    """Embedding, positions, blocks (4 softmax projections, 2 MLP layers, 2 norms), norm, head."""
    dim, hidden, layers = 16, 32, 2
    model = rm.create_model("encoder", mlp_ratio=2, num_layers=layers, **TOKENS)
    block = 4 * (dim * dim + dim) + 2 * dim * hidden + hidden + dim + 4 * dim
    expected = 11 * dim + 24 * dim + layers * block + 2 * dim + 3 * dim + 3
    assert sum(p.numel() for p in model.parameters()) == expected


def test_layers_know_their_position() -> None:
    model = rm.create_model("encoder", num_layers=3, **TOKENS)
    positions = [(b.mixer.layer_index, b.mixer.num_layers) for b in model.blocks]
    assert positions == [(0, 3), (1, 3), (2, 3)]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "both inputs": ({"in_channels": 3}, "exactly one"),
    "no input": ({"vocab_size": None}, "exactly one"),
    "heads": ({"num_heads": 3}, r"num_heads: .*dim = 16.*got 3\b"),
    "layers": ({"num_layers": 0}, "num_layers"),
    "classes": ({"num_classes": 0}, "num_classes"),
    "length": ({"max_length": 0}, "max_length"),
    "mixer": ({"mixer": "sofmax"}, "'sofmax'.*softmax"),
    "head": ({"head_activation": "rely"}, "head_activation: .*relu.*got 'rely'"),
    "levels": ({"level_scale": 2}, r"level_scale: .*got 2\b"),
    "setting": ({"depth": 3}, "encoder.*got 'depth'"),
    "option": ({"mixer_options": {"wings": 2}}, "wings"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rm.create_model("encoder", **{**TOKENS, **change})


def test_too_long_input() -> None:
    model = rm.create_model("encoder", **TOKENS)
    with pytest.raises(ValueError, match=r"max_length = 24.*got 25\b"):
        model(torch.zeros(1, 25, dtype=torch.int64))


INPUTS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "list": ({}, [1, 2], r"\(B, N\)"),
    "numbers": ({}, torch.zeros(1, 4), r"int64\b.*\(B, N\).*got torch.float32\b"),
    "one sequence": ({}, torch.zeros(4, dtype=torch.int64), r"\(B, N\).*got \(4,\)"),
    "features": ({"in_channels": 3}, torch.zeros(1, 4, 2), r"\(B, N, 3\), got \(1, 4, 2\)"),
    "ids": (
        {"in_channels": 3},
        torch.zeros(1, 4, 3, dtype=torch.int64),
        r"got torch\.int64",
    ),
    "a pair": ({"num_sequences": 2}, [1, 2], r"\(B, 2, N\)"),
}


@pytest.mark.parametrize(("change", "inputs", "message"), INPUTS.values(), ids=INPUTS)
def test_bad_inputs_are_refused(change: dict[str, Any], inputs: Any, message: str) -> None:
    vectors = {"vocab_size": None} if "in_channels" in change else {}
    model = rm.create_model("encoder", **{**TOKENS, **vectors, **change})
    with pytest.raises(rm.InputError, match=f"^inputs: .*{message}"):
        model(inputs)


@pytest.mark.parametrize(
    "mask", [torch.zeros(2, 3, 8) > 0, torch.zeros(6, 8) > 0, torch.zeros(3, 8) > 0, [True]]
)
def test_a_mask_of_pairs_has_their_shape(mask: Any) -> None:
    model = rm.create_model("encoder", **{**TOKENS, "num_sequences": 2})
    pairs = torch.ones(3, 2, 8, dtype=torch.int64)
    assert model(pairs, key_padding_mask=torch.zeros(3, 2, 8) > 0).shape == (3, 3)
    with pytest.raises(rm.InputError, match=r"key_padding_mask: .*\(B, 2, N\).*\(3, 2, 8\)"):
        model(pairs, key_padding_mask=mask)


def test_unknown_model_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'encodr'.*encoder"):
        rm.create_model("encodr")
