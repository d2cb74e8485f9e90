"""Check that `trace` sees every mixer and leaves the model unchanged."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.analysis import trace
from rifflemix.models.vision.tost_layers import ClassAttention
from rifflemix.nn.block import Block


def tokens_model(**settings: Any) -> rm.models.Model:
    return rm.create_model("encoder", **{"vocab_size": 11, "max_length": 9, "dim": 8} | settings)


def token_batch(masked: bool = False) -> dict[str, Tensor]:
    batch = {"inputs": torch.randint(11, (3, 9)), "labels": torch.zeros(3, dtype=torch.int64)}
    if masked:
        batch["key_padding_mask"] = torch.arange(9) >= torch.tensor([[9], [4], [7]])
    return batch


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
def test_inputs_outputs_and_masks_of_every_mixer(masked: bool) -> None:
    model, batch = tokens_model(mixer="tssa", num_layers=3), token_batch(masked)
    (calls,) = trace(model, [batch])
    assert [call.name for call in calls] == [f"blocks.{i}.mixer" for i in range(3)]
    for call in calls:
        mask = batch.get("key_padding_mask")
        assert (call.key_padding_mask is None) == (mask is None)
        model.eval()
        with torch.no_grad():
            again = call.module(call.x, key_padding_mask=mask)
        torch.testing.assert_close(again, call.y, rtol=0, atol=0)


class Noisy(nn.Module):
    """Draws from every generator, counts its calls and writes into its input."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mixer = rm.create_mixer("softmax", 4, dropout=0.5)
        self.frozen = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        noise = float(np.random.rand()) + random.random() + torch.rand(())  # noqa: NPY002
        self.calls = self.calls + 1
        mean = self.frozen.running_mean
        assert mean is not None
        mean += 1
        y: Tensor = self.mixer(x) + noise
        x += 1
        return y


def test_model_is_not_changed() -> None:
    model = Noisy().train()
    model.frozen.eval()
    model.mixer.register_forward_hook(lambda *_: None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    x = torch.ones(2, 5, 4)
    found = list(trace(model, [x.clone(), x.clone()]))
    assert torch.equal(found[0][0].x, x), "the copy is of what came in"
    assert torch.equal(found[0][0].y, found[1][0].y), "noise is the same each time"
    assert not found[0][0].y.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(after, dict)
    assert isinstance(states[2], dict)
    assert np.array_equal(after["state"]["key"], states[2]["state"]["key"])
    assert after["state"]["pos"] == states[2]["state"]["pos"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_hooks_are_removed_after_a_stop_or_an_error() -> None:
    model = tokens_model(mixer="csp").train()
    for _ in trace(model, [token_batch(), token_batch()]):
        assert model.training
        assert not any(module._forward_hooks for module in model.modules())
        break
    with pytest.raises(InputError, match=r"inputs: .*ids.*got 99"):
        next(trace(model, [torch.full((1, 9), 99)]))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_shared_layer_is_traced_at_every_call() -> None:
    model = tokens_model(mixer="sliceformer", num_layers=2, tie_layers=True)
    (calls,) = trace(model, [token_batch()])
    assert [call.name for call in calls] == ["blocks.0.mixer", "blocks.0.mixer (2)"]
    assert not torch.equal(calls[0].x, calls[1].x)


def test_outermost_layers_other_kinds_and_other_batches() -> None:
    butterfly = rm.create_mixer("butterfly", 8, num_heads=2)  # contains attention
    (calls,) = trace(butterfly, [(torch.randn(1, 6, 8),)])
    assert [call.name for call in calls] == [""]
    (calls,) = trace(tokens_model(mixer="csp", num_layers=2), [token_batch()], of=Block)
    assert [type(call.module) for call in calls] == [Block, Block]
    (calls,) = trace(Noisy(), [{"x": torch.ones(2, 5, 4)}])
    assert calls


def test_swapped_models_of_torch_are_traced() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    rm.replace_attention(model, "tssa")
    (calls,) = trace(model, [torch.randn(2, 5, 8)])
    assert len(calls) == 2


def test_invalid_models_and_batches_are_refused() -> None:
    with pytest.raises(InputError, match="model Linear"):
        next(trace(nn.Linear(2, 2), [torch.ones(1, 2)]))
    with pytest.raises(InputError, match=r"model Encoder.*ClassAttention"):
        next(trace(tokens_model(mixer="csp"), [token_batch()], of=ClassAttention))
    with pytest.raises(InputError, match=r"^batches: .*got int"):
        next(trace(tokens_model(mixer="csp"), [3]))

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer = rm.create_mixer("csp", 4)

        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(InputError, match="model Idle"):
        next(trace(Idle(), [torch.ones(1, 2, 4)]))
