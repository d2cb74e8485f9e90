"""Synthesizer against explicit scores and softmax."""

from __future__ import annotations

import pytest
import torch
from attention_checks import assert_acts_on_valid_tokens, assert_streams
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.synthesizer import Synthesizer


def build(dim: int = 6, num_heads: int = 2, max_length: int = 16, **options) -> Synthesizer:
    mixer = rm.create_mixer(
        "synthesizer", dim, num_heads=num_heads, max_length=max_length, **options
    )
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer.double().eval()


def literal_scores(mixer: Synthesizer, x: Tensor, head: int) -> Tensor:
    n = len(x)
    if mixer.mode == "random":
        return mixer.scores[head, :n, :n]
    if mixer.mode == "factorized":
        return mixer.row_factors[head, :n] @ mixer.column_factors[head][:, :n]
    width = mixer.dim // mixer.num_heads
    rows = []
    for token in x:
        hidden = mixer.hidden(token).clamp_min(0)[head * width : (head + 1) * width]
        rows.append((hidden @ mixer.score_weight[head] + mixer.score_bias[head, 0])[:n])
    return torch.stack(rows)


def literal(mixer: Synthesizer, x: Tensor) -> Tensor:
    """Compute one sequence (N, C), head by head."""
    y = []
    parts = [t.chunk(mixer.num_heads, -1) for t in mixer.qkv(x).split(mixer.dim, -1)]
    for h in range(mixer.num_heads):
        scores = literal_scores(mixer, x, h)
        if mixer.dot_product:
            q, k = parts[0][h], parts[1][h]
            scores = scores + q @ k.T / q.shape[1] ** 0.5
        if mixer.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        y.append(scores.softmax(-1) @ parts[-1][h])
    return mixer.proj(torch.cat(y, -1))


MODES = [{"mode": "random"}, {"mode": "factorized", "rank": 3}, {"mode": "dense"}]
forms = pytest.mark.parametrize(
    "options",
    [
        {**mode, "dot_product": dot_product, "causal": causal}
        for mode in MODES
        for dot_product in (True, False)
        for causal in (False, True)
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)


@forms
def test_equals_explicit_scores(options: dict[str, object]) -> None:
    mixer = build(**options)
    for length in (1, 9, 16):
        x = torch.randn(2, length, 6, dtype=torch.float64)
        expected = torch.stack([literal(mixer, sample) for sample in x])
        torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-10)


@forms
def test_padding_does_not_change_valid_tokens(options: dict[str, object]) -> None:
    mixer = build(**options)
    assert_acts_on_valid_tokens(mixer)
    x = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False] * 7, [True] * 7])
    y = mixer(x, key_padding_mask=mask)
    y.square().sum().backward()
    assert (y[1] == 0).all()
    assert all(t.grad.isfinite().all() for t in (x, *mixer.parameters()))


@forms
def test_streams_equal_the_whole_sequence(options: dict[str, object]) -> None:
    if options["causal"]:
        assert_streams(build(**options), 16)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_gradients_are_correct(options: dict[str, object]) -> None:
    mixer = build(4, 2, 5, **options)
    names = [name for name, _ in mixer.named_parameters()]
    x = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(mixer, state, (x,))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()))


def test_parameter_shapes_follow_the_mode() -> None:
    def shapes(**options) -> dict[str, tuple[int, ...]]:
        mixer = build(bias=False, out_bias=False, **options)
        return {name: tuple(p.shape) for name, p in mixer.named_parameters()}

    proj = {"proj.weight": (6, 6)}
    assert shapes() == {"scores": (2, 16, 16), "qkv.weight": (18, 6), **proj}
    assert shapes(mode="factorized", dot_product=False) == {
        "row_factors": (2, 16, 32),
        "column_factors": (2, 32, 16),
        "qkv.weight": (6, 6),
        **proj,
    }
    assert shapes(mode="dense", dot_product=False) == {
        "hidden.weight": (6, 6),
        "hidden.bias": (6,),
        "score_weight": (2, 3, 16),
        "score_bias": (2, 1, 16),
        "qkv.weight": (6, 6),
        **proj,
    }


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_kept_positions_have_the_same_scores(mode: dict[str, object]) -> None:
    mixer = build(**mode, keep_positions=True)
    x, mask = torch.randn(2, 9, 6, dtype=torch.float64), torch.rand(2, 9) < 0.4
    mask[:, 4] = False
    y = mixer(x, key_padding_mask=mask)
    for sample, padded, out in zip(x, mask, y, strict=True):
        heads, parts = [], [t.chunk(2, -1) for t in mixer.qkv(sample).split(6, -1)]
        for h in range(2):
            q, k, v = (part[h] for part in parts)
            scores = literal_scores(mixer, sample, h) + q @ k.T / q.shape[1] ** 0.5
            heads.append(scores.masked_fill(padded, -torch.inf).softmax(-1) @ v)
        expected = mixer.proj(torch.cat(heads, -1))
        torch.testing.assert_close(out[~padded], expected[~padded], atol=1e-10, rtol=1e-10)
    with pytest.raises(rm.InputError, match=r"keep_positions: .*False.*causal=True.*got True"):
        build(keep_positions=True, causal=True)


def test_streams_end_at_max_length() -> None:
    mixer = build(max_length=1, causal=True)
    x = torch.randn(1, 6, dtype=torch.float64)
    _, state = mixer.step(x, mixer.init_state(1))
    with pytest.raises(rm.InputError, match="max_length = 1"):
        mixer.step(x, state)


@pytest.mark.parametrize("dot_product", [True, False])
def test_dropout_acts_in_training_only(dot_product: bool) -> None:
    mixer = build(dropout=0.5, dot_product=dot_product).train()
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    assert not torch.equal(mixer(x), mixer(x))
    mixer.eval()
    assert torch.equal(mixer(x), mixer(x))


@pytest.mark.parametrize(
    ("name", "options"),
    {
        "mode": {"mode": "vanilla"},
        "rank": {"mode": "factorized", "rank": 0},
        "dot_product": {"dot_product": 1},
    }.items(),
)
def test_options_out_of_range(name: str, options: dict[str, object]) -> None:
    with pytest.raises(rm.InputError, match=f"^{name}: expected"):
        build(**options)


def test_rank_needs_factorized_scores() -> None:
    with pytest.raises(rm.InputError, match=r"rank: .*None.*mode='random'"):
        build(rank=4)
