"""Tests of the training loop: learning, metrics, events, files and refusals."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from toy_training import (
    SETTINGS,
    ToyCountingTask,
    ToyModel,
    ToySplit,
    ToyTask,
    make_config,
    make_model,
)

from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.lab.train import TrainEvent, TrainResult, train
from rifflemix.lab.train.optim import build_optimizer, learning_rate


def run(out_dir: Path, *, model: Any = None, task: Any = None, **settings: Any) -> TrainResult:
    return train(
        model or make_model(),
        task or ToyTask(),
        make_config(**settings),
        out_dir,
        device="cpu",
        model_settings=SETTINGS,
    )


def read_log(out_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out_dir / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
def test_training_learns(tmp_path: Path, precision: str, padded: bool) -> None:
    result = run(
        tmp_path,
        task=ToyTask(samples=400, padded=padded),
        max_steps=120,
        batch_size=32,
        lr=0.05,
        precision=precision,
        eval_every=40,
        checkpoint_every=None,
    )
    assert result.finished
    assert result.test is not None
    assert result.test["accuracy"] >= 0.85
    losses = [entry["loss"] for entry in read_log(tmp_path) if entry.get("split") == "train"]
    assert losses[-1] < 0.6 * losses[0]
    assert result.precision == precision


def test_bf16_computes_in_bf16_and_does_not_change_the_model(tmp_path: Path) -> None:
    seen = set()

    class Spy(ToyModel):
        def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
            outputs = super().forward(x, key_padding_mask=key_padding_mask)
            seen.add(outputs.dtype)
            return outputs

    model = Spy()
    run(tmp_path, model=model, precision="bf16", max_steps=2)
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert set(model.__dict__) == set(Spy().__dict__)
    twin = copy.deepcopy(model).eval()
    torch.nn.init.zeros_(twin.head.weight)
    torch.nn.init.zeros_(twin.head.bias)
    assert twin(torch.ones(1, 2, 4)).abs().sum() == 0


def test_precision_may_change_between_runs_of_a_process(tmp_path: Path) -> None:
    for turn, precision in enumerate(["no", "bf16", "no"]):
        assert run(tmp_path / str(turn), precision=precision, max_steps=2).precision == precision


def test_result_and_files(tmp_path: Path) -> None:
    result = run(tmp_path)
    stored = json.loads((tmp_path / "training.json").read_text())
    assert len(stored.pop("sha256")) == 64
    assert TrainResult.from_dict(stored) == result
    assert [entry["step"] for entry in result.validation] == [5, 10, 15, 20, 23]
    best = max(result.validation, key=lambda entry: (entry["accuracy"], -entry["step"]))
    assert (result.best_step, result.best_value) == (best["step"], best["accuracy"])
    assert result.protocol == {
        "selected_by": "validation",
        "metric": "accuracy",
        "higher_is_better": True,
        "split_note": "made with its own seed",
        "test_evaluations": 1,
    }
    assert (result.step, result.samples, result.tokens) == (23, 23 * 8, 23 * 8 * 6)
    assert (result.parameters, result.decayed_parameters) == (150, 36)
    assert result.steps_per_second is not None
    assert result.tokens_per_second == pytest.approx(48 * result.steps_per_second)
    parts = {name: value for name, value in result.seconds.items() if name != "total"}
    assert set(parts) == {"train", "data", "evaluation", "checkpoint"}
    assert all(value > 0 for value in parts.values())
    assert result.seconds["total"] == pytest.approx(sum(parts.values()))
    assert result.train_loss == read_log(tmp_path)[-3]["loss"]


def test_log_has_all_entries(tmp_path: Path) -> None:
    config = make_config()
    run(tmp_path)
    start, *lines = read_log(tmp_path)
    assert start == {"step": 0, "parameters": 150, "decayed_parameters": 36}
    trained = [line for line in lines if line["split"] == "train"]
    assert [line["step"] for line in trained] == [3, 6, 9, 12, 15, 18, 21, 23]
    assert [line["lr"] for line in trained] == [
        learning_rate(config, line["step"] - 1) for line in trained
    ]
    assert [line["split"] for line in lines].count("test") == 1
    assert lines[-1]["split"] == "test"


def test_padded_tokens_are_not_counted(tmp_path: Path) -> None:
    task = ToyTask(samples=8, padded=True)
    result = run(tmp_path, task=task, max_steps=3)
    assert result.tokens == 3 * int(ToySplit(8, 1, True, None).sizes.sum())


def test_adamw_and_sgd_are_fused_and_adafactor_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def build(*args: Any, fused: bool) -> Any:
        asked.append(fused)
        return build_optimizer(*args, fused=fused)

    monkeypatch.setattr("rifflemix.lab.train.loop.build_optimizer", build)
    for optimizer in ("adamw", "sgd", "adafactor"):
        run(tmp_path / optimizer, optimizer=optimizer, max_steps=1, warmup_steps=0)
    assert asked == [True, True, False]


def test_every_sample_once_per_epoch(tmp_path: Path) -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Counting(ToyTask):
        def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
            rows = (batch["inputs"][:, None] == self.all_inputs).flatten(2).all(2)
            seen.extend(int(row.nonzero()[0]) for row in rows)
            return super().loss(outputs, batch)

        @property
        def all_inputs(self) -> Tensor:
            return torch.from_numpy(self.split("train").inputs)

    run(tmp_path, task=Counting(samples=12), max_steps=6, batch_size=4)
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12))
    assert seen[:12] != seen[12:]


def test_model_ends_with_the_chosen_weights(tmp_path: Path) -> None:
    model = make_model()
    result = run(tmp_path, model=model)
    best, meta = read_tensors(tmp_path / "best.safetensors")
    assert meta == {"step": result.best_step, "accuracy": result.best_value}
    assert result.best_step is not None
    assert result.best_step < result.step
    assert all(torch.equal(tensor, best[name]) for name, tensor in model.state_dict().items())


class Watched(ToySplit):
    """Records when its first sample is read."""

    reads: list[str]
    name: str

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self.reads.append(self.name)
        return super().__getitem__(index)


class Scripted(ToyTask):
    """Task with given validation values, one per evaluation; the test split gives 0.5."""

    def __init__(self, values: list[float], higher_is_better: bool) -> None:
        super().__init__(higher_is_better=higher_is_better, metric="score")
        object.__setattr__(self, "values", iter(values))
        object.__setattr__(self, "reads", [])

    def split(self, name: str) -> ToySplit:
        split = super().split(name)
        if name == "train":
            return split
        split.__class__ = Watched
        split.reads, split.name = self.reads, name  # type: ignore[attr-defined]
        return split

    def metrics(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        value = 0.5 if self.reads[-1] == "test" else next(self.values)  # type: ignore[attr-defined]
        return {"score": (value, 1), "loss": (1.0, 1)}


@pytest.mark.parametrize(
    ("values", "higher_is_better", "best_step"),
    [
        ([0.1, 0.3, 0.2], True, 4),
        ([0.1, 0.3, 0.2], False, 2),
        ([0.3, 0.3, 0.3], True, 2),
        ([0.3, 0.3, 0.3], False, 2),
        ([0.1, 0.2, 0.3], True, 6),
    ],
)
def test_best_is_chosen_on_validation_only(
    tmp_path: Path, values: list[float], higher_is_better: bool, best_step: int
) -> None:
    task = Scripted(values, higher_is_better)
    result = run(tmp_path, task=task, max_steps=6, eval_every=2, batch_size=24)
    assert result.best_step == best_step
    assert task.reads == ["validation"] * 3 + ["test"]  # type: ignore[attr-defined]
    assert result.test == {"score": 0.5, "loss": 1.0}


def test_evaluation_is_the_mean_over_the_whole_split(tmp_path: Path) -> None:
    """Use 21 samples in batches of 8: the short last batch must not weigh more."""
    model = make_model()
    result = run(tmp_path, model=model, max_steps=4, eval_every=None)
    split = ToyTask().split("test")
    outputs = model.eval()(torch.from_numpy(split.inputs))
    right = (outputs.argmax(-1) == torch.from_numpy(split.labels)).double().mean()
    assert result.test is not None
    assert result.test["accuracy"] == pytest.approx(float(right))


class FurtherTask(ToyTask):
    """Task with two more test splits: the test split itself, and another split."""

    further_tests: ClassVar[dict[str, ToySplit]] = {
        "same": ToySplit(21, 3, False, None),
        "other": ToySplit(13, 4, False, None),
    }

    def split(self, name: str) -> ToySplit:
        return self.further_tests[name] if name in self.further_tests else super().split(name)


def test_further_tests_use_the_chosen_weights(tmp_path: Path) -> None:
    model = make_model()
    result = run(tmp_path, model=model, task=FurtherTask(), max_steps=4, eval_every=2)
    assert result.test is not None
    for metric in ("accuracy", "loss"):
        assert result.test[f"same_{metric}"] == result.test[metric]
    split = FurtherTask.further_tests["other"]
    outputs = model.eval()(torch.from_numpy(split.inputs))
    right = (outputs.argmax(-1) == torch.from_numpy(split.labels)).double().mean()
    assert result.test["other_accuracy"] == pytest.approx(float(right))
    validated = [entry for entry in read_log(tmp_path) if entry.get("split") == "validation"]
    assert validated
    assert not any("other_accuracy" in entry for entry in validated)


def test_a_further_test_without_samples(tmp_path: Path) -> None:
    class Empty(FurtherTask):
        further_tests: ClassVar[dict[str, ToySplit]] = {"none": ToySplit(0, 3, False, None)}

    with pytest.raises(InputError, match=r"split 'none'.*task 'toy': "):
        run(tmp_path, task=Empty())


def test_evaluation_does_not_change_the_random_state(tmp_path: Path) -> None:
    losses = {}
    for every in (1, None):
        run(tmp_path / str(every), eval_every=every, log_every=1)
        log = read_log(tmp_path / str(every))
        losses[every] = [entry["loss"] for entry in log if entry.get("split") == "train"]
    assert losses[1] == losses[None]


@pytest.mark.parametrize(
    "accumulation",
    [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("task", [ToyTask(), ToyCountingTask()], ids=["samples", "labels"])
def test_accumulation_computes_the_same(tmp_path: Path, task: ToyTask, accumulation: int) -> None:
    quiet = {"dropout": 0.0, "noise": 0.0}
    losses, weights = [], []
    for parts in (1, accumulation):
        model = make_model(**quiet)
        out_dir = tmp_path / str(parts)
        run(out_dir, model=model, task=task, accumulation=parts, log_every=1)
        log = read_log(out_dir)
        losses.append([entry["loss"] for entry in log if entry.get("split") == "train"])
        weights.append(read_tensors(out_dir / "checkpoint.safetensors")[0]["model/head.weight"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "is_bounded"),
    [
        ({"clip_norm": 1e-3}, lambda grads: torch.cat(grads).norm() <= 1e-3 * 1.0001),
        ({"clip_norm": None, "clip_value": 1e-4}, lambda g: torch.cat(g).abs().max() <= 1e-4),
        ({"clip_norm": None}, lambda grads: torch.cat(grads).norm() > 1e-2),
    ],
    ids=["norm", "value", "none"],
)
def test_clipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], is_bounded: Any
) -> None:
    seen: list[bool] = []
    step = torch.optim.AdamW.step

    def spying_step(self: torch.optim.AdamW, closure: Any = None) -> Any:
        params = [p for group in self.param_groups for p in group["params"]]
        if all(p.grad is None or p.grad.abs().sum() > 0 for p in params):
            grads = [p.grad.flatten() for p in params if p.grad is not None]
            seen.append(bool(is_bounded(grads)))
        return step(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", spying_step)
    run(tmp_path, max_steps=3, **settings)
    assert seen == [True, True, True]


def test_events_are_sent_in_order(tmp_path: Path) -> None:
    events: list[TrainEvent] = []
    train(make_model(), ToyTask(), make_config(), tmp_path, device="cpu", on_event=events.append)
    kinds = [event.kind for event in events]
    assert [e.step for e in events if e.kind == "step"] == list(range(1, 24))
    assert [e.step for e in events if e.kind == "eval"] == [5, 10, 15, 20, 23]
    assert [e.step for e in events if e.kind == "checkpoint"] == [4, 8, 12, 16, 20, 23]
    assert kinds[-1] == "done"
    assert kinds.count("done") == 1
    steps = [event for event in events if event.kind == "step"]
    assert steps[0].loss is None
    assert steps[2].loss is not None
    assert steps[0].steps_per_second is None
    assert all(e.steps_per_second is not None and e.steps_per_second > 0 for e in steps[2:])
    assert steps[4].lr == learning_rate(make_config(), 4)
    assert {event.max_steps for event in events} == {23}
    assert set(events[-1].metrics) == {"accuracy", "loss"}


def test_speed_between_log_lines_counts_every_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(
        "rifflemix.lab.train.checkpoint.time.perf_counter", lambda: float(next(seconds))
    )
    events: list[TrainEvent] = []
    config = make_config(
        log_every=10, eval_every=None, checkpoint_every=None, checkpoint_seconds=None, max_steps=12
    )
    train(make_model(), ToyTask(), config, tmp_path, device="cpu", on_event=events.append)
    speeds = [event.steps_per_second for event in events if event.kind == "step"]
    assert speeds[1:9] == [1.0] * 8
    assert speeds[9] == 0.9


def test_checkpoints_at_time_intervals(tmp_path: Path) -> None:
    events: list[TrainEvent] = []
    config = make_config(checkpoint_every=None, checkpoint_seconds=1e-9, max_steps=4)
    train(make_model(), ToyTask(), config, tmp_path, device="cpu", on_event=events.append)
    assert [event.step for event in events if event.kind == "checkpoint"] == [1, 2, 3, 4]
