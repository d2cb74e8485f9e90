"""Tests of parameter groups and optimizers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from toy_training import make_config, make_model

from rifflemix import create_mixer, create_model
from rifflemix.errors import InputError
from rifflemix.lab.train.optim import allocate_state, build_optimizer, decay_groups, set_rates


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(4, 1))
        self.weight = nn.Parameter(torch.ones(4, 4))

    def no_weight_decay(self) -> set[str]:
        return {"temperature", "absent"}


def test_decay_groups() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), Tempered(), nn.Embedding(5, 4))
    model[0].weight.requires_grad_(False)
    groups = decay_groups(model)
    assert groups.decayed == ["2.weight", "3.weight"]
    assert groups.not_decayed == ["0.bias", "1.weight", "1.bias", "2.temperature"]


@pytest.mark.parametrize(
    ("mixer", "options"),
    [
        ("sinkhorn", {"sort_net": "relu_mlp"}),
        ("synthesizer", {"mode": "dense"}),
        ("token_parallel", {"use_wout": True}),
    ],
)
def test_biases_of_stacked_linear_layers_are_not_decayed(
    mixer: str, options: dict[str, Any]
) -> None:
    model = create_mixer(mixer, 8, num_heads=2, max_length=16, **options)
    groups = decay_groups(model)
    assert any(dict(model.named_parameters())[name].dim() > 1 for name in groups.not_decayed)
    assert not [name for name in groups.decayed if "bias" in name]


def test_a_class_token_is_not_decayed() -> None:
    for pool in ("cls", "mean"):
        model = create_model("encoder", vocab_size=5, pool=pool)
        assert ("cls" in decay_groups(model).not_decayed) == (pool == "cls")
        assert ("cls" in model.no_weight_decay()) == (pool == "cls")
        assert "cls" not in decay_groups(model).decayed


def test_decay_exclusion_of_the_root_module() -> None:
    assert decay_groups(Tempered()).decayed == ["weight"]


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)]
)
def test_optimizer(name: str, kind: type) -> None:
    config = make_config(optimizer=name, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.3)
    optimizer = build_optimizer(make_model(), config)
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.95)}
    assert {group["eps"] for group in optimizer.param_groups} == {1e-5}


@pytest.mark.parametrize(
    ("name", "option"),
    [("adamw", "fused"), ("adam", "fused"), ("sgd", "foreach"), ("adafactor", "foreach")],
)
def test_fused_optimizer_on_request(name: str, option: str) -> None:
    config = make_config(optimizer=name)
    for fused in (False, True):
        optimizer = build_optimizer(make_model(), config, fused=fused)
        assert {bool(group[option]) for group in optimizer.param_groups} == {fused}


def test_no_group_is_empty() -> None:
    optimizer = build_optimizer(nn.Linear(2, 2, bias=False), make_config())
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


def test_sgd() -> None:
    config = make_config(optimizer="sgd", betas=(0.9, 0.999), weight_decay=5e-4)
    optimizer = build_optimizer(make_model(), config)
    assert type(optimizer) is torch.optim.SGD
    assert [group["weight_decay"] for group in optimizer.param_groups] == [5e-4, 0.0]
    set_rates(optimizer, 0.25, 0.5)
    assert {(group["lr"], group["momentum"]) for group in optimizer.param_groups} == {(0.25, 0.5)}


def test_only_adamw_decouples_its_decay() -> None:
    """With zero gradients, decoupled decay shrinks a weight by lr * decay; Adam moves it by lr."""
    moved = {}
    for name in ("adamw", "adam"):
        layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(layer.weight, 2.0)
        config = make_config(optimizer=name, weight_decay=0.5, lr=0.1)
        optimizer = build_optimizer(layer, config)
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
        moved[name] = 2.0 - layer.weight.item()
    assert moved == pytest.approx({"adamw": 2.0 * 0.1 * 0.5, "adam": 0.1}, rel=1e-5)


def test_no_trainable_parameter() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(InputError, match=r"^model: "):
        build_optimizer(model, make_config())


def test_set_rates() -> None:
    optimizer = build_optimizer(make_model(), make_config())
    set_rates(optimizer, 0.25, 0.5)
    assert {(group["lr"], group["betas"]) for group in optimizer.param_groups} == {
        (0.25, (0.5, 0.999))
    }


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "adafactor"])
def test_allocated_state_changes_no_update(name: str, fused: bool) -> None:
    """Include a parameter that gets its first gradient late."""
    weights = []
    for allocates in (True, False):
        model = make_model(dropout=0.0, noise=0.0)
        before = [p.clone() for p in model.parameters()]
        optimizer = build_optimizer(model, make_config(optimizer=name), fused=fused)
        if allocates:
            allocate_state(optimizer)
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert len(optimizer.state) == len(before)
            assert all(p.grad is None for p in model.parameters())
            assert optimizer.param_groups[0]["lr"] == 0.01
        for step in range(4):
            loss = model(torch.ones(2, 3, 4)).square().sum() + (step > 1) * model.unused.sum()
            optimizer.zero_grad()
            loss.backward()
            if step <= 1:
                model.unused.grad = None
            optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_decay_all_decays_every_parameter() -> None:
    groups = decay_groups(make_model(), decay_all=True)
    assert not groups.not_decayed
    assert len(groups.decayed) == len(list(make_model().parameters()))


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "adafactor"])
def test_fused_optimizer_makes_the_same_updates(name: str) -> None:
    """Also continue from the state of the other implementation."""
    updated, state = [], {}
    for fused in (False, True):
        torch.manual_seed(0)
        model = make_model()
        optimizer = build_optimizer(model, make_config(optimizer=name), fused=fused)
        for step in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.linspace(-1, step, parameter.numel()).view_as(parameter)
            optimizer.step()
            if step == 1 and not fused:
                state = copy.deepcopy(optimizer.state_dict())
            elif step == 1:
                optimizer.load_state_dict(state)
        updated.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(updated[1], updated[0])


def test_complex_parameters_are_updated_too() -> None:
    model = nn.ParameterList([torch.ones(2, dtype=torch.complex64), torch.ones(3)])
    optimizer = build_optimizer(model, make_config(), fused=True)
    sum(p.abs().sum() for p in model).backward()
    optimizer.step()
    assert all((p != 1).all() for p in model)
