"""Encoder-decoders: causality, padding, greedy decoding, and cross-attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.mixers import SoftmaxCrossAttention
from rifflemix.models import Seq2Seq

SMALL = {"vocab_size": 13, "max_length": 16, "dim": 12, "num_layers": 2, "num_heads": 3}
SINKHORN = {
    "mixer": "sinkhorn",
    "mixer_options": {"block_size": 4},
    "cross": "sinkhorn",
    "cross_options": {"block_size": 4},
}
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "tssa": {"mixer": "tssa"},
    "sinkhorn": SINKHORN,
    "csp and tssa": {"mixer": "csp", "decoder_mixer": "tssa"},
}


def small(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    model = rm.create_model("seq2seq", **{**SMALL, **changes})
    assert isinstance(model, Seq2Seq)
    return perturb(model, 0.3).double().eval()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_decoder_does_not_depend_on_later_tokens(kind: dict[str, Any]) -> None:
    model = small(**kind)
    inputs, written = torch.randint(13, (2, 9)), torch.randint(13, (2, 11))
    before = model(inputs, written)
    for position in range(1, 11):
        other = written.clone()
        other[:, position:] = torch.randint(13, (2, 11 - position))
        torch.testing.assert_close(model(inputs, other)[:, :position], before[:, :position])
        torch.testing.assert_close(model(inputs, written[:, :position]), before[:, :position])


@pytest.mark.parametrize("kind", ["softmax", "tssa", "sinkhorn"])
def test_padding_does_not_change_outputs(kind: str) -> None:
    model = small(**KINDS[kind])
    inputs, written = torch.randint(13, (3, 7)), torch.randint(13, (3, 5))
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[0, 5:] = mask[1, :7] = mask[2, ::2] = mask[2, 1] = False
    padded = torch.full((3, 12), 5)
    padded[~mask] = inputs.flatten()
    found = model(padded, written, key_padding_mask=mask)
    torch.testing.assert_close(found, model(inputs, written))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_greedy_decoding_writes_the_likeliest(kind: dict[str, Any]) -> None:
    model = small(**kind).train()
    inputs = torch.randint(13, (4, 9))
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 4:] = True
    found = model.decode(inputs, 12, key_padding_mask=mask)
    assert model.training
    model.eval()
    for row in range(4):
        written: list[int] = []
        while len(written) < 12 and 1 not in written:
            read = torch.tensor([[0, *written]])
            one = slice(row, row + 1)
            logits = model(inputs[one], read, key_padding_mask=mask[one])
            written.append(int(logits[0, -1].argmax()))
        padding = [0] * (found.shape[1] - len(written))
        assert found[row].tolist() == written + padding


def test_decoding_ends_when_all_have_ended() -> None:
    model = small()
    with torch.no_grad():  # the end token becomes the most likely token
        model.decoder_norm.weight.zero_()
        model.decoder_norm.bias.copy_(100 * model.embed.weight[1])
    assert model.decode(torch.randint(13, (3, 5)), 12).tolist() == [[1]] * 3


def test_decoding_can_be_stopped() -> None:
    model = small()
    inputs = torch.randint(13, (3, 5))
    whole = model.decode(inputs, 12, end_token=None)
    answers = iter([False, False, True])
    assert torch.equal(
        model.decode(inputs, 12, end_token=None, should_stop=answers.__next__), whole[:, :2]
    )


def test_exact_match_counts_decoded_sequences() -> None:
    """Teacher forcing and decoding agree, so a sequence is an exact match in both or in neither."""
    model = small(mixer="tssa")
    inputs = torch.randint(2, 13, (6, 8))
    written = model.decode(inputs, 6, end_token=12)
    read = torch.cat((torch.zeros(6, 1, dtype=torch.int64), written[:, :-1]), 1)
    ended = (written == 12).cumsum(1) - (written == 12).long() > 0
    likeliest = model(inputs, read).argmax(-1)
    assert torch.equal(likeliest[~ended], written[~ended])


def cross_by_hand(layer: SoftmaxCrossAttention, x: Tensor, memory: Tensor) -> Tensor:
    heads = layer.num_heads
    q = layer.query(x).unflatten(-1, (heads, -1))
    k, v = (part.unflatten(-1, (heads, -1)) for part in layer.key_value(memory).chunk(2, -1))
    scores = torch.einsum("bmhd,bnhd->bhmn", q, k) / math.sqrt(q.shape[-1])
    y = torch.einsum("bhmn,bnhd->bmhd", scores.softmax(-1), v)
    return layer.proj(y.flatten(2))


def test_decoder_attends_to_the_encoder() -> None:
    layer = SoftmaxCrossAttention(12, num_heads=3).double()
    x, memory = torch.randn(2, 5, 12).double(), torch.randn(2, 7, 12).double()
    torch.testing.assert_close(layer(x, memory), cross_by_hand(layer, x, memory))
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[0, 4:] = mask[1] = True
    spoiled = memory.masked_fill(mask.unsqueeze(-1), math.nan)
    found = layer(x, spoiled, key_padding_mask=mask)
    torch.testing.assert_close(found[:1], cross_by_hand(layer, x[:1], memory[:1, :4]))
    torch.testing.assert_close(found[1], layer.proj.bias.expand(5, 12))
    found.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_sizes_of_transformer_base() -> None:
    """One embedding; 6 + 6 layers of 512 / 2048 with 8 heads."""
    with torch.device("meta"):
        plain = rm.create_model(
            "sinkhorn_seq2seq_sort",
            mixer="softmax",
            mixer_options={"bias": False},
            cross="softmax",
            cross_options={"bias": False},
        )
    attention, mlp, norm = 4 * 512**2, 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder = 6 * (attention + mlp + 2 * norm) + norm
    decoder = 6 * (2 * attention + mlp + 3 * norm) + norm
    assert plain.num_parameters() == 514 * 512 + encoder + decoder


@pytest.mark.slow
def test_it_learns_to_copy() -> None:
    torch.manual_seed(0)
    model = rm.create_model("seq2seq", mixer="tssa", **{**SMALL, "dim": 24})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        tokens = torch.randint(2, 6, (32, 4))
        read = torch.nn.functional.pad(tokens[:, :-1], (1, 0))
        loss = torch.nn.functional.cross_entropy(
            model(tokens, read).flatten(0, 1), tokens.flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.7 * math.log(4)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "decoder": ({"mixer": "fnet"}, "causal: .*False.*FNet.*got True"),
    "cross": ({"cross": "linear"}, "cross: .*softmax.*sinkhorn.*got 'linear'"),
    "cross options": ({"cross_options": {"wings": 2}}, "cross_options: .*wings"),
    "heads": ({"num_heads": 5}, "num_heads"),
    "vocabulary": ({"vocab_size": 0}, "vocab_size"),
    "setting": ({"num_classes": 3}, "seq2seq"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.create_model("seq2seq", **{**SMALL, **change})
    assert "\n" not in str(caught.value)


def test_bad_inputs_are_refused() -> None:
    model = small()
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(rm.InputError, match=r"max_length = 16.*got 17\b"):
        model(torch.zeros(1, 17, dtype=torch.int64), tokens)
    with pytest.raises(rm.InputError, match=r"decoder_inputs: .*got \(1, 0\)"):
        model(tokens, tokens[:, :0])
    with pytest.raises(rm.InputError, match=r"inputs: .*int64\b.*got torch.float32\b"):
        model(tokens.float(), tokens)
    with pytest.raises(rm.InputError, match=r"key_padding_mask: .*got \(1, 2\)"):
        model(tokens, tokens, key_padding_mask=torch.zeros(1, 2, dtype=torch.bool))
    with pytest.raises(rm.InputError, match="max_new_tokens"):
        model.decode(tokens, 17)


@pytest.mark.parametrize("name", ["start_token", "end_token"])
@pytest.mark.parametrize("token", [13, -1, 1.0])
def test_invalid_start_and_end_tokens_are_refused(name: str, token: Any) -> None:
    with pytest.raises(rm.InputError, match=f"{name}:"):
        small().decode(torch.randint(13, (2, 9)), 4, **{name: token})
