"""`prefill` with a whole prompt, in variants that the contract does not build."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.mixers import TokenMixer

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tssa without bias": ("tssa", {"denominator_bias": False}),
    "performer relu": ("performer", {"kernel": "relu", "num_features": 5}),
    "softmax narrow": ("softmax", {"inner_dim": 4}),
    "crate with its own output map": ("crate", {"tied_output": False}),
    "synthesizer dense": ("synthesizer", {"mode": "dense"}),
    "synthesizer factorized": ("synthesizer", {"mode": "factorized", "rank": 3}),
    "synthesizer alone": ("synthesizer", {"dot_product": False}),
    "local in blocks of 1": ("local", {"block_size": 1}),
    "local in blocks of 5": ("local", {"block_size": 5}),
    "local in one block": ("local", {"block_size": 50}),
    "spade narrow": ("spade", {"radius": 1, "state_size": 4}),
    "spade wide": ("spade", {"radius": 40}),
    "spade above the bottom": ("spade", {"radius": 3, "layer_index": 1, "num_layers": 2}),
    "mega laplace": ("mega", {"attention_fn": "laplace"}),
    "mega_chunk of 5": ("mega_chunk", {"chunk_size": 5}),
    "mega_chunk laplace": ("mega_chunk", {"chunk_size": 4, "attention_fn": "laplace"}),
    "s4 small": ("s4", {"state_size": 2}),
    "s5 in blocks": ("s5", {"state_size": 8, "num_blocks": 2}),
    "exp_smoothing without gate": ("exp_smoothing", {"gate": False, "hidden_dim": 5}),
}


def build(name: str, max_length: int = 40, **options: Any) -> TokenMixer:
    torch.manual_seed(3)
    mixer = rm.create_mixer(name, 8, num_heads=2, max_length=max_length, causal=True, **options)
    return perturb(mixer, 0.1).double().eval()


def tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, 8, dtype=torch.float64)


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)
def test_prefill_equals_steps(name: str, options: dict[str, Any]) -> None:
    mixer, x = build(name, **options), tokens(3, 17)
    y, state = mixer.prefill(x)
    assert_close(y, mixer(x))
    assert_close(state, TokenMixer.fill_stream(mixer, x, None)[1])


@pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)
def test_padding_is_ignored(name: str, options: dict[str, Any]) -> None:
    """Check left, right and inner padding; sequences of different lengths continue together."""
    mixer, x, later = build(name, **options), tokens(4, 17), tokens(4, 11)
    index = torch.arange(17)
    mask = torch.stack((index < 6, index > 12, index % 4 == 1, index < 0))
    y, state = mixer.prefill(x.masked_fill(mask[..., None], torch.nan), key_padding_mask=mask)
    assert state["position"].tolist() == (~mask).sum(1).tolist()
    outputs = []
    for x_t in later.unbind(1):
        y_t, state = mixer.step(x_t, state)
        outputs.append(y_t)
    for row, padded in enumerate(mask):
        alone = mixer(torch.cat((x[row, ~padded], later[row])).unsqueeze(0))[0]
        assert_close(y[row, ~padded], alone[:-11])
        assert not y[row, padded].any()
        assert_close(torch.stack(outputs, 1)[row], alone[-11:])


@pytest.mark.parametrize("name", ["mega", "s4", "linear", "tssa", "s5", "exp_smoothing", "local"])
def test_many_chunks(name: str) -> None:
    """Check prompts longer than the blocks of sums, powers and attention."""
    mixer, x = build(name, max_length=200), tokens(1, 200)
    mask = torch.arange(199)[None] < 37
    for prompt, padding in ((x[:, :131], None), (x[:, :199], mask)):
        _, state = mixer.prefill(prompt, key_padding_mask=padding)
        y, _ = mixer.step(x[:, 199], state)
        valid = prompt if padding is None else prompt[:, 37:]
        assert_close(y, mixer(torch.cat((valid, x[:, 199:]), 1))[:, -1])


def test_gradients_flow_to_the_prompt_through_the_state() -> None:
    mixer, x = build("tssa"), tokens(2, 7)
    for read in (
        lambda prompt: mixer.prefill(prompt),
        lambda p: TokenMixer.fill_stream(mixer, p, None),
    ):
        prompt = x[:, :-1].clone().requires_grad_()
        y, _ = mixer.step(x[:, -1], read(prompt)[1])
        (gradient,) = torch.autograd.grad(y.square().sum(), prompt)
        whole = torch.cat((prompt, x[:, -1:]), 1)
        (expected,) = torch.autograd.grad(mixer(whole)[:, -1].square().sum(), prompt)
        assert_close(gradient, expected)


@pytest.mark.parametrize("name", ["softmax", "linear", "local", "s4"])
def test_empty_batch(name: str) -> None:
    y, state = build(name).prefill(tokens(0, 5))
    assert y.shape == (0, 5, 8)
    assert all(len(part) == 0 for part in state.values())


@pytest.mark.parametrize("name", ["local", "cosformer"])
def test_positions_of_padding_cannot_be_kept(name: str) -> None:
    mixer = build(name, keep_positions=True)
    x = tokens(2, 6)
    assert_close(mixer.prefill(x)[0], mixer(x))
    mask = torch.zeros(2, 6, dtype=torch.bool)
    with pytest.raises(rm.InputError, match=r"key_padding_mask: .*None"):
        mixer.prefill(x, key_padding_mask=mask)


def test_mixers_without_streaming_raise_an_error() -> None:
    x = torch.randn(1, 4, 8)
    with pytest.raises(rm.InputError, match="fnet"):
        rm.create_mixer("fnet", 8).prefill(x)
    with pytest.raises(rm.InputError, match=r"causal: .*True.*softmax.*got False"):
        rm.create_mixer("softmax", 8).prefill(x)


class Growing(TokenMixer):
    """Keeps all tokens and inherits `prefill` from the base class."""

    card = rm.MixerCard("growing", "Growing", "none", "none", "O(N)", 1.0, True, streaming=True)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        return {"tokens": torch.zeros(batch_size, 0, self.dim, dtype=dtype, device=device)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        seen = torch.cat((state["tokens"], x_t.unsqueeze(1)), 1)
        return seen.sum(1), {"tokens": seen}


def test_default_prefill_is_a_loop_of_steps() -> None:
    mixer, x = Growing(3, causal=True), torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.tensor([[True, False, True, False, False], [False, True, False, False, True]])
    y, state = mixer.prefill(x, key_padding_mask=mask)
    assert_close(y, x.masked_fill(mask[..., None], 0).cumsum(1).masked_fill(mask[..., None], 0))
    assert state["tokens"].shape == (2, 3, 3)
    mask[0, 0] = False
    with pytest.raises(rm.InputError, match="key_padding_mask:"):
        mixer.prefill(x, key_padding_mask=mask)


FOREIGN = {
    "another mixer": (("softmax", {}), ("linear", {})),
    "a mixer with the same names": (("linear", {}), ("performer", {})),
    "a mixer with more names": (("spade", {}), ("softmax", {})),
    "the same kind of map": (("csp", {}), ("sliceformer", {})),
    "a longer reach": (("csp", {"reach": 32}), ("csp", {"reach": 8})),
    "a shorter reach": (("csp", {"reach": 8}), ("csp", {"reach": 32})),
    "another window": (("sliceformer", {"window_size": 4}), ("sliceformer", {"window_size": 2})),
    "another state size": (("s4", {"state_size": 2}), ("s4", {"state_size": 64})),
    "another recurrence": (("s4", {}), ("s5", {})),
    "other heads": (("softmax", {"num_heads": 4}), ("softmax", {"num_heads": 2})),
    "another chunk": (("mega_chunk", {"chunk_size": 4}), ("mega_chunk", {"chunk_size": 8})),
}


@pytest.mark.parametrize(("source", "target"), FOREIGN.values(), ids=FOREIGN)
def test_a_state_of_another_mixer_is_refused(source: Any, target: Any) -> None:
    made, given = (
        rm.create_mixer(name, 8, causal=True, **{"num_heads": 2, "max_length": 40, **options})
        for name, options in (source, target)
    )
    _, state = made.prefill(torch.randn(1, 3, 8))
    token = torch.randn(1, 8)
    given.step(token, given.init_state(1))
    expected = f"^state: .*init_state.*{target[0]}"
    with pytest.raises(rm.InputError, match=expected):
        given.step(token, state)
