"""Sampling: streaming equals recomputing, seeds, top-k and top-p limits, invalid arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.models.language.generation import _inverse_cdf, _keep_likeliest

SMALL = {"vocab_size": 13, "max_length": 24, "dim": 12, "num_layers": 2, "num_heads": 3}
CAUSAL = [name for name in rm.list_mixers() if rm.mixer_card(name).causal]


def model_with(mixer: str) -> rm.models.GPT:
    torch.manual_seed(0)
    model = rm.create_model("gpt", mixer=mixer, **SMALL)
    return perturb(model, 0.3).double()


def by_hand(model: rm.models.GPT, tokens: Tensor, count: int) -> Tensor:
    model.eval()
    for _ in range(count):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), 1)
    return tokens


@pytest.mark.parametrize("mixer", CAUSAL)
@pytest.mark.parametrize(("prompt", "length"), [(1, 7), (20, 24)])
def test_greedy_generation_equals_the_argmax_of_the_model(
    mixer: str, prompt: int, length: int
) -> None:
    """Prompts from one token up to the maximum length of the model."""
    model = model_with(mixer)
    tokens = torch.randint(13, (3, prompt))
    found = model.generate(tokens, length - prompt, temperature=0)
    assert torch.equal(found, by_hand(model, tokens, length - prompt))


@pytest.mark.parametrize("mixer", ["softmax", "tssa"])
def test_streaming_equals_recomputing(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with(mixer)
    tokens = torch.randint(13, (4, 3))

    def sample() -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return model.generate(tokens, 20, temperature=1.3, top_k=9, generator=generator)

    streamed = sample()
    monkeypatch.setattr(type(model), "streams", False)
    assert torch.equal(sample(), streamed)


def test_streaming_reads_every_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with("tssa")
    prompts: list[Tensor] = []
    seen: list[Tensor] = []
    prefill, step = model.prefill, model.step
    monkeypatch.setattr(model, "prefill", lambda t: (prompts.append(t), prefill(t))[1])
    monkeypatch.setattr(model, "step", lambda t, s: (seen.append(t), step(t, s))[1])
    found = model.generate(torch.randint(13, (2, 4)), 6)
    assert [tuple(prompt.shape) for prompt in prompts] == [(2, 4)]
    # The last token is sampled but never an input.
    assert torch.equal(torch.cat((prompts[0], torch.stack(seen, 1)), 1), found[:, :-1])


@pytest.mark.parametrize("mixer", ["tssa", "sinkhorn"])
def test_equal_seeds_give_equal_tokens(mixer: str) -> None:
    model = model_with(mixer).train()
    tokens = torch.randint(13, (2, 2))

    def sample(seed: int) -> Tensor:
        return model.generate(tokens, 15, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    assert model.training


def test_prompt_is_kept_and_zero_new_tokens_are_allowed() -> None:
    model = model_with("tssa")
    tokens = torch.randint(13, (2, 5))
    assert torch.equal(model.generate(tokens, 7)[:, :5], tokens)
    assert torch.equal(model.generate(tokens, 0), tokens)


def test_temperature_zero_and_top_1_agree() -> None:
    model = model_with("tssa")
    tokens = torch.randint(13, (2, 5))
    greedy = model.generate(tokens, 12, temperature=0)
    assert torch.equal(model.generate(tokens, 12, top_k=1), greedy)
    assert torch.equal(model.generate(tokens, 12, top_p=1e-6), greedy)


LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]))
KEPT: dict[str, tuple[int | None, float | None, list[list[int]]]] = {
    "all": (None, None, [[0, 1, 2, 3], [0, 1, 2, 3]]),
    "2 likeliest, ties the earlier": (2, None, [[1, 3], [0, 1]]),
    "more than there are": (9, None, [[0, 1, 2, 3], [0, 1, 2, 3]]),
    "half the mass": (None, 0.5, [[1, 3], [0, 1]]),
    "a little over": (None, 0.71, [[1, 2, 3], [0, 1, 2]]),
    "all the mass": (None, 1.0, [[0, 1, 2, 3], [0, 1, 2, 3]]),
    "both": (3, 0.5, [[1, 3], [0, 1]]),
}


@pytest.mark.parametrize(("top_k", "top_p", "kept"), KEPT.values(), ids=KEPT)
def test_top_k_and_top_p_limit_the_tokens(
    top_k: int | None, top_p: float | None, kept: list[list[int]]
) -> None:
    found = _keep_likeliest(LOGITS, top_k, top_p).isfinite()
    assert [row.nonzero().flatten().tolist() for row in found] == kept


def test_sampling_follows_the_probabilities() -> None:
    """Token frequencies over many equal prompts match the softmax."""
    model = model_with("softmax")
    prompt = torch.full((4000, 1), 3)
    chosen = model.generate(prompt, 1, temperature=2.0, generator=torch.Generator().manual_seed(0))
    frequency = torch.bincount(chosen[:, 1], minlength=13) / 4000
    expected = (model.eval()(prompt[:1])[0, -1] / 2).softmax(0)
    assert (frequency - expected).abs().max() < 0.03


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too long": ({"max_new_tokens": 23}, r"max_length = 24.*got 2\b"),
    "negative": ({"max_new_tokens": -1}, "max_new_tokens"),
    "no prompt": ({"tokens": torch.zeros(2, 0, dtype=torch.int64)}, r"tokens: .*N.*\b1\b"),
    "no batch": ({"tokens": torch.zeros(3, dtype=torch.int64)}, r"shape \(B, N\)"),
    "id under 0": (
        {"tokens": torch.tensor([[3, -1]])},
        r"tokens: .*\b0\b.*\b12\b.*got -1\b",
    ),
    "id too large": ({"tokens": torch.tensor([[13, 0]])}, r"\b0\b.*\b12\b.*got 13\b"),
    "no ids": ({"tokens": torch.zeros(1, 2)}, r"tokens: .*int64\b"),
    "a list": ({"tokens": [1, 2]}, "tokens:"),
    "temperature": ({"temperature": -1.0}, r"temperature: .*\b0\b"),
    "top_k": ({"top_k": 0}, "top_k"),
    "top_p": ({"top_p": 1.5}, r"top_p: .*\b0\b.*\b1\b"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"tokens": torch.zeros(1, 2, dtype=torch.int64), "max_new_tokens": 3}
    with pytest.raises(rm.InputError, match=message) as caught:
        model_with("tssa").generate(**{**arguments, **change})
    assert "\n" not in str(caught.value)


def test_other_models_do_not_generate() -> None:
    other: Any = rm.create_model("encoder", vocab_size=5)
    with pytest.raises(rm.InputError, match=r"model: .*got Encoder"):
        rm.models.generate(other, torch.zeros(1, 2, dtype=torch.int64), 3)


PROMPTS = [torch.tensor(ids) for ids in ([1, 2, 3, 4, 5], [7], [1, 2, 3], [7], [12, 0])]


@pytest.mark.parametrize("mixer", CAUSAL)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_prompt_has_the_same_continuation_alone_and_in_a_batch(
    mixer: str, temperature: float
) -> None:
    model = model_with(mixer)
    options: dict[str, Any] = {"temperature": temperature, "top_k": 7, "seed": 3}
    together = rm.models.continue_prompts(model, PROMPTS, 12, **options)
    for index in (0, 1, 4):
        (alone,) = rm.models.continue_prompts(model, [PROMPTS[index]], 12, **options)
        assert torch.equal(alone, together[index])
        assert torch.equal(alone[: len(PROMPTS[index])], PROMPTS[index])
    is_equal = torch.equal(together[1], together[3])
    assert is_equal is (temperature == 0)  # equal prompts have different noise


@pytest.mark.parametrize("mixer", CAUSAL)
def test_prompts_of_any_length_are_continued_by_the_likeliest_tokens(mixer: str) -> None:
    model = model_with(mixer)
    found = rm.models.continue_prompts(model, PROMPTS, 9, temperature=0)
    for index in (0, 1, 2, 4):
        assert torch.equal(found[index], by_hand(model, PROMPTS[index].unsqueeze(0), 9)[0])


def test_continuations_follow_the_probabilities() -> None:
    model = model_with("softmax")
    prompts = [torch.tensor([3])] * 4000
    found = torch.stack(rm.models.continue_prompts(model, prompts, 1, top_k=5))
    frequency = torch.bincount(found[:, 1], minlength=13) / 4000
    logits = model.eval()(prompts[0].unsqueeze(0))[0, -1]
    expected = torch.where(logits >= logits.topk(5).values[-1], logits, -torch.inf).softmax(0)
    assert (frequency - expected).abs().max() < 0.03
    assert (frequency[expected == 0] == 0).all()


def test_a_uniform_number_chooses_by_the_cumulative_probability() -> None:
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]] * 5)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.9999, 1.0], dtype=torch.float64)
    assert _inverse_cdf(probabilities, uniform).tolist() == [1, 1, 3, 3, 3]


def test_a_stop_keeps_the_tokens_so_far() -> None:
    model, calls = model_with("tssa"), iter([False, False, True])
    found = rm.models.continue_prompts(
        model, [torch.tensor([3])], 9, should_stop=lambda: next(calls)
    )
    assert len(found[0]) == 3


@pytest.mark.parametrize(
    ("prompts", "name"),
    [
        ([torch.zeros(0, dtype=torch.int64)], r"prompts\[0\]"),
        ([torch.tensor([1]), [1, 2]], r"prompts\[1\]"),
        ([torch.tensor([13])], "tokens"),
        ([torch.zeros(20, dtype=torch.int64)], "max_length"),
    ],
)
def test_bad_prompts_are_refused(prompts: Any, name: str) -> None:
    with pytest.raises(rm.InputError, match=name):
        rm.models.continue_prompts(model_with("tssa"), prompts, 9)
