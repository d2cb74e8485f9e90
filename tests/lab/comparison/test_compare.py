"""Comparisons: results, resuming, models, memory and bad settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_comparison import results_of_plan
from short_comparison import settings, start

from rifflemix.errors import InputError
from rifflemix.lab.comparison import (
    build_model,
    default_budget,
    plan_comparison,
    train_config,
    train_mixer,
    training_memory,
)
from rifflemix.lab.runs.status import RunStatus, summarise
from rifflemix.lab.tasks import list_tasks, load_task
from rifflemix.mixers import TokenMixer


def stop_after(polls: int) -> Callable[[], bool]:
    left = iter(range(polls))
    return lambda: next(left, None) is None


def measured(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values that do not depend on clock and stops."""
    keys = ("mixer", "seed", "validation", "test", "validation_curve", "train_curve", "best_step")
    return [{key: run[key] for key in keys} for run in results["runs"]]


def test_results_have_all_required_fields(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    assert results == json.loads((out / "results.json").read_text())
    assert results["status"] == "complete"
    assert results["runs_done"] == results["runs_planned"] == 4
    assert results["config"]["train"]["max_steps"] == 6
    assert results["protocol"]["model_chosen_on"] == "validation"
    assert results["environment"]["libraries"]["torch"] == str(torch.__version__)
    assert results["environment"]["hardware"]["threads"] == 1
    assert "git_commit" in results["environment"]
    assert results["command"]
    assert results["peak_memory_bytes"] > 0
    assert results["wall_seconds"] > 0
    shares = results["task"]["majority_share"]
    assert shares.keys() == {"validation", "test"}
    labels = [label for _, label in load_task("digits", patch_size=4).split("test")]
    assert shares["test"] == max(labels.count(k) for k in range(10)) / len(labels)


def test_runs_are_ordered_by_seed(finished: tuple[Path, dict[str, Any]]) -> None:
    order = [(run["seed"], run["mixer"]) for run in finished[1]["runs"]]
    assert order == [(0, "softmax"), (0, "tssa"), (1, "softmax"), (1, "tssa")]


def test_summary_is_computed_from_raw_numbers(finished: tuple[Path, dict[str, Any]]) -> None:
    _, results = finished
    for mixer in results["mixers"]:
        runs = [run for run in results["runs"] if run["mixer"] == mixer["name"]]
        for split in ("validation", "test"):
            values = [run[split]["accuracy"] for run in runs]
            assert mixer[split]["values"] == values
            assert mixer[split]["mean"] == pytest.approx(sum(values) / 2)
            assert mixer[split]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        speeds = [run["steps_per_second"] for run in runs]
        assert mixer["steps_per_second"] == pytest.approx(sum(speeds) / 2)


def test_validation_selects_the_weights(finished: tuple[Path, dict[str, Any]]) -> None:
    for run in finished[1]["runs"]:
        best = max(run["validation_curve"], key=lambda entry: entry["accuracy"])
        assert run["validation"] == best
        assert run["best_step"] == best["step"]


def test_curves_cover_the_run(finished: tuple[Path, dict[str, Any]]) -> None:
    for run in finished[1]["runs"]:
        assert [entry["step"] for entry in run["validation_curve"]] == [3, 6]
        assert [entry["step"] for entry in run["train_curve"]] == [1, 2, 3, 4, 5, 6]


def test_finished_folder_is_read_without_training(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    before = (out / "results.json").read_bytes()
    statuses: list[RunStatus] = []
    plan = plan_comparison(settings(seeds=(0, 1)), out)
    again = results_of_plan(plan, on_status=statuses.append)
    assert again == results
    assert not statuses
    assert (out / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    "polls",
    [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(9, marks=pytest.mark.slow)],
    ids="stop at poll {}".format,
)
def test_stopped_comparison_resumes_bit_for_bit(
    polls: int, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    plan = plan_comparison(settings(seeds=(0, 1)), tmp_path / "out")
    stopped = results_of_plan(plan, should_stop=stop_after(polls))
    assert stopped["status"] == "partial"
    assert stopped["runs_done"] < stopped["runs_planned"] == 4
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == stopped
    train = replace(settings().train, num_workers=polls % 2)  # which does not change any number
    complete = start(tmp_path / "out", seeds=(0, 1), train=train)
    assert complete["status"] == "complete"
    assert measured(complete) == measured(finished[1])


def test_results_are_kept_after_every_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[int] = []

    def watch(status: RunStatus) -> None:
        if status.state == "measuring" and (out / "results.json").exists():
            seen.append(json.loads((out / "results.json").read_text())["runs_done"])

    results_of_plan(plan_comparison(settings(), out), on_status=watch)
    assert seen == [1]


@pytest.mark.slow
def test_a_run_without_its_entry_is_found_again(
    tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    """Kill the process between the end of a run and the write of results.json."""
    start(tmp_path / "out")
    (tmp_path / "out" / "results.json").unlink()
    statuses: list[RunStatus] = []
    plan = plan_comparison(settings(), tmp_path / "out")
    results = results_of_plan(plan, on_status=statuses.append)
    assert measured(results) == measured(finished[1])[:2]
    assert not [status for status in statuses if status.state == "training"]


def test_statuses_follow_the_run(tmp_path: Path) -> None:
    statuses: list[RunStatus] = []
    plan = plan_comparison(settings(mixers=("tssa",)), tmp_path)
    results_of_plan(plan, on_status=statuses.append)
    assert [statuses[0].state, statuses[-1].state] == ["measuring", "done"]
    training = [status for status in statuses if status.state == "training"]
    assert [s.step for s in training if s.step] == sorted(s.step for s in training if s.step)
    last = statuses[-1]
    assert last.step == last.max_steps == 6
    assert last.loss is not None
    assert last.score is not None
    assert last.steps_per_second is not None


def test_finished_run_is_reported_at_its_last_step(tmp_path: Path) -> None:
    config, task = settings(mixers=("tssa",)), load_task("digits", patch_size=4)
    train_mixer(config, task, "tssa", 0, tmp_path)
    statuses: list[RunStatus] = []
    train_mixer(config, task, "tssa", 0, tmp_path, on_status=statuses.append)
    assert [(status.state, status.step) for status in statuses] == [("done", 6)]


def test_diverged_run_is_reported_and_other_runs_continue(tmp_path: Path) -> None:
    train = replace(settings().train, lr=1e30, warmup_steps=0, clip_norm=None)
    results = start(tmp_path / "out", train=train)
    assert results["status"] == "complete"
    assert {run["mixer"] for run in results["failed_runs"]} == {"softmax", "tssa"}
    assert all("diverged" in run["error"] for run in results["failed_runs"])
    assert results["mixers"][0]["test"] is None
    again = start(tmp_path / "out", train=train)
    assert again == results


def test_models_of_a_seed_differ_only_in_the_mixer() -> None:
    config = settings(mixers=("softmax", "tssa", "csp"))
    task = load_task("digits", patch_size=4)
    models = {mixer: build_model(config, task, mixer, 0) for mixer in config.mixers}
    inside = "blocks.0.mixer."
    outside = {
        name: {k: v for k, v in model.state_dict().items() if not k.startswith(inside)}
        for name, model in models.items()
    }
    assert isinstance(models["tssa"].get_submodule("blocks.0.mixer"), TokenMixer)
    for name in ("tssa", "csp"):
        assert outside[name].keys() == outside["softmax"].keys()
        for key, value in outside["softmax"].items():
            torch.testing.assert_close(outside[name][key], value, rtol=0, atol=0)
    other = build_model(config, task, "tssa", 1).state_dict()
    assert not torch.equal(other["head.weight"], outside["tssa"]["head.weight"])


def test_weights_do_not_depend_on_the_other_mixers() -> None:
    task = load_task("digits", patch_size=4)
    alone = build_model(settings(mixers=("tssa",)), task, "tssa", 0).state_dict()
    together = build_model(settings(), task, "tssa", 0).state_dict()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=0, atol=0)


def test_memory_counts_weights_and_grows_with_the_batch() -> None:
    task = load_task("digits", patch_size=4)
    small = settings()
    large = settings(train=replace(small.train, batch_size=256))
    parameters = sum(p.numel() for p in build_model(small, task, "tssa", 0).parameters())
    of_small = training_memory(small, task, "tssa")
    assert of_small >= 4 * 4 * parameters  # weights, gradients and Adam's two moments
    assert training_memory(large, task, "tssa") > of_small


def test_memory_is_measured_on_the_parts_of_a_batch() -> None:
    """With accumulation, only one part of the batch is in memory next to the gradients."""
    task, base = load_task("digits", patch_size=4), settings()

    def memory(**changes: int) -> int:
        return training_memory(replace(base, train=replace(base.train, **changes)), task, "tssa")

    in_parts = memory(batch_size=256, accumulation=8)
    assert memory(batch_size=32) < in_parts < memory(batch_size=256) / 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "digit"}, "'digit'.*digits"),
        ({"mixers": ("sofmax",)}, "'sofmax'.*softmax"),
        ({"model": "encodr"}, "'encodr'.*encoder"),
        ({"mixers": ()}, "mixers:"),
        ({"mixers": ("csp", "csp")}, "'csp' twice"),
        ({"seeds": ()}, "seeds:"),
        ({"seeds": (3, 3)}, "3 twice"),
        ({"mixer_options": {"csp": {}}}, "mixer_options: .*softmax.*tssa"),
        ({"dim": 0}, r"dim: .*\b1\b.*\b65,536\b.*got 0\b"),
        ({"num_layers": 0}, r"num_layers: .*\b1\b"),
        ({"threads": 0}, r"threads: .*\b1\b"),
        ({"device": "nonsense"}, "device:"),
        ({"device": "meta"}, "device:"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings(**changes)


def test_a_single_training_sample_is_enough(tmp_path: Path) -> None:
    from rifflemix.lab.comparison import train_config

    budget = default_budget("digits")
    train = train_config(budget, max_steps=1, batch_size=1, lr=1e-3, precision="no")
    options = {"patch_size": 4, "max_samples": 1}
    plan = plan_comparison(settings(task_options=options, train=train), tmp_path / "out")
    assert len(plan.task.split("train")) == 1


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [([0.5], 0.5, None), ([0.4, 0.6], 0.5, 0.1 * 2**0.5), ([0.1] * 3, 0.1, 0.0)],
)
def test_summarise_of_runs(values: list[float], mean: float, std: float | None) -> None:
    summary = summarise(values)
    assert summary is not None
    assert summary.mean == pytest.approx(mean)
    assert summary.std == (None if std is None else pytest.approx(std))
    assert summary.n == len(values)
    assert summarise([]) is None


@pytest.mark.parametrize("task", list_tasks())
def test_every_task_has_a_workable_budget(task: str) -> None:
    budget = default_budget(task)
    assert budget.dim % budget.num_heads == 0
    config = train_config(
        budget, max_steps=budget.max_steps, batch_size=8, lr=budget.lr, precision="no"
    )
    assert config.eval_every is not None
    assert -(-budget.max_steps // config.eval_every) == budget.evaluations
    tiny = train_config(budget, max_steps=1, batch_size=8, lr=budget.lr, precision="bf16")
    assert tiny.eval_every == tiny.log_every == 1
