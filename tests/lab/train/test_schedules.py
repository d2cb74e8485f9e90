"""Tests of learning rates at known points and against torch's schedulers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from rifflemix.lab.train import TrainConfig
from rifflemix.lab.train.config import SCHEDULES
from rifflemix.lab.train.optim import learning_rate, momentum


def config(schedule: str, **settings: Any) -> TrainConfig:
    return TrainConfig(schedule=schedule, **({"max_steps": 100, "lr": 0.8} | settings))


HALF_COSINE = 0.5 * (1 + math.cos(math.pi * 0.25))

POINTS = [
    ("constant", {}, {0: 0.8, 99: 0.8}),
    ("constant", {"warmup_steps": 4}, {0: 0.0, 1: 0.2, 3: 0.6, 4: 0.8, 99: 0.8}),
    ("constant", {"warmup_steps": 4, "warmup_init": 0.4}, {0: 0.4, 1: 0.5, 4: 0.8}),
    ("constant", {"warmup_steps": 4, "warmup_power": 2.0}, {0: 0.0, 1: 0.05, 2: 0.2, 4: 0.8}),
    ("linear", {}, {0: 0.8, 50: 0.4, 99: 0.008, 100: 0.0, 150: 0.0}),
    ("linear", {"warmup_steps": 20}, {0: 0.0, 10: 0.4, 20: 0.8, 60: 0.4, 100: 0.0}),
    ("linear", {"min_lr": 0.2}, {0: 0.8, 50: 0.5, 100: 0.2}),
    ("linear", {"schedule_steps": 400}, {0: 0.8, 100: 0.6}),
    ("cosine", {}, {0: 0.8, 25: 0.8 * HALF_COSINE, 50: 0.4, 100: 0.0}),
    ("cosine", {"warmup_steps": 20, "min_lr": 0.2}, {0: 0.0, 20: 0.8, 60: 0.5, 100: 0.2, 120: 0.2}),
    ("cosine", {"schedule_interval": 25}, {0: 0.8, 24: 0.8, 25: 0.8 * HALF_COSINE, 50: 0.4}),
    (
        "cosine_restarts",
        {"warmup_steps": 10, "schedule_steps": 40},
        {0: 0.0, 5: 0.4, 10: 0.8, 20: 0.8 * HALF_COSINE, 30: 0.4, 50: 0.8, 70: 0.4, 90: 0.8},
    ),
    ("cosine_restarts", {"schedule_steps": 40}, {0: 0.8, 20: 0.4, 40: 0.8}),
    ("rsqrt", {"warmup_steps": 25}, {0: 0.0, 5: 0.032, 25: 0.16, 36: 0.8 / 6, 100: 0.08}),
    ("rsqrt", {"warmup_steps": 1}, {0: 0.0, 1: 0.8, 4: 0.4}),
    ("rsqrt_decay", {"warmup_steps": 25}, {0: 0.16, 5: 0.16, 25: 0.16, 36: 0.8 / 6, 100: 0.08}),
    ("inverse_sqrt", {"warmup_steps": 25}, {0: 0.0, 5: 0.16, 25: 0.8, 100: 0.4}),
    ("multistep", {"milestones": (30, 60)}, {0: 0.8, 29: 0.8, 30: 0.08, 60: 0.008, 99: 0.008}),
    ("multistep", {"milestones": (2,), "decay_factor": 0.5}, {1: 0.8, 2: 0.4}),
]


@pytest.mark.parametrize(
    ("schedule", "settings", "points"), POINTS, ids=[f"{p[0]}-{p[1]}" for p in POINTS]
)
def test_schedules_have_known_values(
    schedule: str, settings: dict[str, Any], points: dict[int, float]
) -> None:
    for step, expected in points.items():
        assert learning_rate(config(schedule, **settings), step) == pytest.approx(
            expected, rel=1e-12, abs=1e-15
        ), step


def test_every_schedule_has_points_or_a_torch_twin() -> None:
    assert set(SCHEDULES) == {schedule for schedule, _, _ in POINTS} | {"one_cycle"}


def test_lra_image_cosine_restarts_before_the_end() -> None:
    lra = config(
        "cosine_restarts", max_steps=46800, lr=0.005, warmup_steps=175, schedule_steps=35000
    )
    assert learning_rate(lra, 35174) < 1e-9
    assert learning_rate(lra, 35175) == 0.005


def test_lra_rsqrt_is_the_printed_formula() -> None:
    lra = config("rsqrt", max_steps=5000, lr=0.05, warmup_steps=1000)
    for step in (0, 1, 999, 1000, 1001, 4999):
        assert learning_rate(lra, step) == 0.05 * min(1, step / 1000) / math.sqrt(max(step, 1000))


@pytest.mark.parametrize(("warmup", "total"), [(2, 9), (30, 100), (99, 100), (8, 20)])
def test_one_cycle_equals_torch(warmup: int, total: int) -> None:
    cycle = config(
        "one_cycle", lr=1e-4, max_steps=total, warmup_steps=warmup, cycle_beta1=(0.95, 0.85)
    )
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    twin = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=1e-4,
        pct_start=warmup / total,
        total_steps=total,
        anneal_strategy="linear",
    )
    for step in range(total):
        group = optimizer.param_groups[0]
        assert learning_rate(cycle, step) == pytest.approx(group["lr"], rel=1e-9), step
        assert momentum(cycle, step) == pytest.approx(group["betas"][0], rel=1e-9), step
        if step < total - 1:
            optimizer.step()
            twin.step()


def test_beta1_changes_with_the_rate() -> None:
    cycle = config(
        "one_cycle", max_steps=30, warmup_steps=9, cycle_beta1=(0.95, 0.85), schedule_interval=3
    )
    every_step = dataclasses.replace(cycle, schedule_interval=1)
    for step in range(30):
        held = step - step % 3
        assert learning_rate(cycle, step) == learning_rate(every_step, held)
        assert momentum(cycle, step) == momentum(every_step, held)


def test_per_epoch_cosine_equals_torch() -> None:
    per_epoch = config("cosine", max_steps=70, schedule_interval=7)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
    twin = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for epoch in range(10):
        for step in range(7 * epoch, 7 * epoch + 7):
            rate = learning_rate(per_epoch, step)
            assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        twin.step()


def test_beta1_is_constant_without_a_cycle() -> None:
    assert momentum(config("one_cycle", warmup_steps=5, betas=(0.8, 0.9)), 3) == 0.8
