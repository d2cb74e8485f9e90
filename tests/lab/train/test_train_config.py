"""Tests of TrainConfig: refusals and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.train import TrainConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_steps": 0}, ["max_steps", "got 0"]),
        ({"max_steps": 1.5}, ["max_steps", "whole number", "1.5"]),
        ({"max_steps": True}, ["max_steps", "True"]),
        ({"batch_size": "8"}, ["batch_size", "'8'"]),
        ({"accumulation": 0}, ["accumulation"]),
        ({"log_every": None}, ["log_every", "None"]),
        ({"eval_every": 0}, ["eval_every", "or None", "0"]),
        ({"checkpoint_every": -1}, ["checkpoint_every"]),
        ({"checkpoint_seconds": 0}, ["checkpoint_seconds"]),
        ({"warmup_steps": -1}, ["warmup_steps"]),
        ({"seed": -1}, ["seed"]),
        ({"num_workers": -1}, ["num_workers"]),
        ({"num_workers": 5_000}, ["num_workers", "1,024", "5,000"]),
        ({"schedule_steps": 0}, ["schedule_steps"]),
        ({"schedule_interval": 0}, ["schedule_interval"]),
        ({"lr": 0}, ["lr", "got 0"]),
        ({"lr": float("nan")}, ["lr", "nan"]),
        ({"lr": float("inf")}, ["lr", "inf"]),
        ({"eps": 0.0}, ["eps"]),
        ({"weight_decay": -0.1}, ["weight_decay", "-0.1"]),
        ({"mixup": -0.1}, ["mixup", "-0.1"]),
        ({"cutmix": float("nan")}, ["cutmix", "nan"]),
        ({"label_smoothing": 1.0}, ["label_smoothing", "[0, 1)"]),
        ({"label_smoothing": -0.1}, ["label_smoothing"]),
        ({"label_smoothing": True}, ["label_smoothing", "True"]),
        ({"warmup_power": 0}, ["warmup_power"]),
        ({"warmup_init": -1}, ["warmup_init"]),
        ({"min_lr": -1}, ["min_lr"]),
        ({"decay_factor": 0}, ["decay_factor"]),
        ({"clip_norm": 0}, ["clip_norm"]),
        ({"clip_value": -1}, ["clip_value"]),
        ({"clip_norm": 1, "clip_value": 1}, ["clip_value", "clip_norm"]),
        ({"betas": (0.9,)}, ["betas", "(0.9,)"]),
        ({"betas": (0.9, 1.0)}, ["betas", "[0, 1)"]),
        ({"betas": 0.9}, ["betas"]),
        ({"cycle_beta1": (2, 0.1)}, ["cycle_beta1"]),
        ({"milestones": (0,)}, ["milestones"]),
        ({"milestones": 5}, ["milestones"]),
        ({"milestones": (5, 3), "schedule": "multistep"}, ["milestones", "(5, 3)"]),
        ({"optimizer": "adanw"}, ["optimizer", "adamw"]),
        ({"optimizer": 3}, ["optimizer"]),
        ({"precision": "bf61"}, ["precision", "bf16"]),
        ({"schedule": "cosin"}, ["schedule", "cosine"]),
        ({"schedule": "rsqrt"}, ["warmup_steps", "rsqrt"]),
        ({"schedule": "inverse_sqrt"}, ["warmup_steps"]),
        ({"schedule": "one_cycle", "warmup_steps": 1}, ["warmup_steps", "one_cycle", "got 1"]),
        ({"schedule": "one_cycle", "warmup_steps": 1000}, ["warmup_steps", "1000"]),
        (
            {"schedule": "one_cycle", "warmup_steps": 2, "schedule_steps": 10},
            ["schedule_steps", "1000"],
        ),
        ({"warmup_steps": 40, "schedule_steps": 40}, ["schedule_steps", "warmup_steps", "got 40"]),
        ({"optimizer": "sgd", "eps": 1e-6}, ["eps", "1e-08", "'sgd'"]),
        ({"optimizer": "adafactor", "betas": (0.8, 0.9)}, ["betas", "'adafactor'", "(0.8, 0.9)"]),
        (
            {
                "optimizer": "adafactor",
                "schedule": "one_cycle",
                "warmup_steps": 2,
                "cycle_beta1": (0.9, 0.8),
            },
            ["cycle_beta1", "None", "'adafactor'"],
        ),
        ({"schedule": "multistep"}, ["milestones"]),
        ({"schedule": "rsqrt", "warmup_steps": 3, "min_lr": 0.1}, ["min_lr", "linear, cosine"]),
        ({"schedule": "constant", "schedule_steps": 5}, ["schedule_steps", "constant"]),
        ({"milestones": (3,)}, ["milestones", "multistep"]),
        ({"cycle_beta1": (0.9, 0.8)}, ["cycle_beta1", "one_cycle"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_invalid_settings_are_refused_in_one_line(
    settings: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        TrainConfig(**settings)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_round_trip() -> None:
    config = TrainConfig(
        betas=(0.9, 0.98), schedule="multistep", milestones=(3, 9), clip_norm=1.0, eval_every=7
    )
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_defaults_round_trip() -> None:
    assert TrainConfig.from_dict(TrainConfig().to_dict()) == TrainConfig()
    assert TrainConfig.from_dict({}) == TrainConfig()


def test_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'warmup_step'.*warmup_steps"):
        TrainConfig.from_dict({"warmup_step": 3})


def test_settings_that_are_not_a_mapping_are_refused() -> None:
    with pytest.raises(InputError, match=r"^config: .*got \[1\]"):
        TrainConfig.from_dict([1])  # type: ignore[arg-type]
