"""Tests of metrics for generated tokens: on the test split, and stopped between tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_training import make_config

from rifflemix.lab.tasks import load_task
from rifflemix.lab.train import TrainEvent, TrainResult, seed_everything, train
from rifflemix.models import create_model

NAME = "free_running_edit_distance"


class Stop:
    """Returns True once, at poll `at` after the validation."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.polls, self.counts = at, 0, False

    def on_event(self, event: TrainEvent) -> None:
        self.counts = self.counts or event.kind == "eval"

    def __call__(self) -> bool:
        self.polls += self.counts
        return self.counts and self.polls == self.at


def run(out: Path, stop: Stop | None = None, **options: Any) -> TrainResult:
    task = load_task(
        "sort", max_length=3, test_max_length=4, num_train=8, num_validation=2, num_test=4,
        **{"free_running": True, **options},
    )  # fmt: skip
    seed_everything(0)
    model = create_model(
        "seq2seq", vocab_size=task.vocab_size, max_length=task.max_length, dim=8, num_heads=2
    )
    stop = stop or Stop()
    config = make_config(max_steps=1, batch_size=2, warmup_steps=0, eval_every=None)
    return train(model, task, config, out, device="cpu", on_event=stop.on_event, should_stop=stop)


def test_generation_metrics_are_measured_on_the_test_split_on_request(tmp_path: Path) -> None:
    result = run(tmp_path / "asked")
    assert result.test is not None
    assert {NAME, "edit_distance"} <= set(result.test)
    assert NAME not in result.validation[-1]
    plain = run(tmp_path / "plain", free_running=False)
    assert plain.test == {name: value for name, value in result.test.items() if name != NAME}


@pytest.mark.slow
def test_stop_during_generation_restarts_the_test(tmp_path: Path) -> None:
    counter = Stop()
    straight = run(tmp_path / "straight", counter)
    assert counter.polls > 4  # more often than for two batches
    for at in (3, counter.polls):
        stopped = run(tmp_path / str(at), Stop(at))
        assert not stopped.finished
        assert stopped.test is None
    last = run(tmp_path / str(counter.polls))
    assert last.finished
    assert last.test == pytest.approx(straight.test, abs=0)
