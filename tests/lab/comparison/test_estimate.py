"""Tests of the estimated time of a comparison."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import short_comparison
from fake_comparison import results_of_plan
from torch import Tensor
from typer.testing import CliRunner

import rifflemix as rm
from rifflemix.cli.app import app
from rifflemix.lab.comparison import CompareConfig, plan_comparison
from rifflemix.lab.comparison import estimate as estimates
from rifflemix.lab.comparison.choices import chosen_mixers, read_config
from rifflemix.lab.comparison.estimate import Estimate, TimeLeft
from rifflemix.lab.runs.status import RunStatus
from rifflemix.mixers import HEADLINE, MixerCard, TokenMixer, register_mixer
from rifflemix.mixers.registry import _MIXERS

TINY = [
    *("--task", "digits", "--task-option", "patch_size=4", "--max-steps", "2"),
    *("--batch-size", "16", "--dim", "8", "--layers", "1", "--heads", "2", "--threads", "1"),
]


def settings(**changes: Any) -> CompareConfig:
    short = short_comparison.settings(mixers=("softmax", "identity"), seeds=(0, 1), dim=8)
    return replace(short, train=replace(short.train, max_steps=4, eval_every=2), **changes)


def run(out: Path, config: CompareConfig, **options: Any) -> tuple[dict[str, Any], list[Estimate]]:
    found: list[Estimate] = []
    plan = plan_comparison(config, out)
    return results_of_plan(plan, on_estimate=found.append, **options), found


def scores(results: dict[str, Any]) -> list[Any]:
    return [(run["mixer"], run["seed"], run["validation"], run["test"]) for run in results["runs"]]


def test_estimate_contains_every_run_and_changes_no_result(tmp_path: Path) -> None:
    results, (estimate,) = run(tmp_path / "a", settings())
    expected = {(mixer, seed, "") for mixer in ("softmax", "identity") for seed in (0, 1)}
    assert estimate.seconds.keys() == expected
    assert all(seconds > 0 for seconds in estimate.seconds.values())
    assert "4 runs of 4 updates: about " in str(estimate)
    assert scores(results) == scores(results_of_plan(plan_comparison(settings(), tmp_path / "b")))


def test_a_tuned_run_costs_its_trials_and_a_test(tmp_path: Path) -> None:
    tuned = settings(tuned={"lr": (1e-3, 1e-2)}, seeds=(0,), mixers=("identity",))
    _, (estimate,) = run(tmp_path / "out", tuned)
    trials = [seconds for (_, _, trial), seconds in estimate.seconds.items() if trial]
    assert (len(trials), estimate.trials, len(estimate.seconds)) == (2, 2, 3)
    assert estimate.seconds["identity", 0, ""] < min(trials)
    assert str(estimate).startswith("2 trials and 1 run of 4 updates: about ")


def test_finished_runs_are_not_in_the_estimate(tmp_path: Path) -> None:
    ended: list[RunStatus] = []

    def on_status(status: RunStatus) -> None:
        if status.state == "done":
            ended.append(status)

    results, _ = run(
        tmp_path / "out", settings(), on_status=on_status, should_stop=lambda: len(ended) >= 1
    )
    assert (results["status"], len(results["runs"])) == ("partial", 1)
    _, (estimate,) = run(tmp_path / "out", settings())
    assert ("softmax", 0, "") not in estimate.seconds
    assert len(estimate.seconds) == 3
    _, none = run(tmp_path / "out", settings())
    assert not none  # all runs have ended


def test_stop_during_the_estimate_trains_nothing(tmp_path: Path) -> None:
    results, found = run(tmp_path / "out", settings(), should_stop=lambda: True)
    assert (results["status"], results["runs"], found) == ("partial", [], [])


class Slow(TokenMixer):
    """Mixer that needs 20 ms per call."""

    card: ClassVar[MixerCard] = MixerCard(
        name="slow", title="Slow", paper="a test", equations="x", complexity="O(N)",
        cost_exponent=1.0,
    )  # fmt: skip

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        time.sleep(0.02)
        return x


@pytest.fixture
def slow() -> Iterator[None]:
    register_mixer(Slow)
    yield
    del _MIXERS["slow"]


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_estimate_is_close_to_the_measured_time(tmp_path: Path) -> None:
    """Use a mixer that mostly sleeps, because other programs do not lengthen its time."""
    config = settings(mixers=("slow",), seeds=(0,))
    config = replace(config, train=replace(config.train, max_steps=60, eval_every=20))
    results, (estimate,) = run(tmp_path / "out", config)
    taken = results["runs"][0]["wall_seconds"]
    assert taken > 1.5
    assert taken / 2 < sum(estimate.seconds.values()) < 2 * taken


def test_remaining_time_uses_the_pace_of_earlier_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(estimates.time, "monotonic", lambda: next(clock))
    estimate = Estimate(10, 0, {("a", 0, ""): 5.0, ("b", 0, ""): 7.0, ("a", 1, ""): 5.0})
    shown: list[float | None] = []
    left = TimeLeft(estimate, lambda status: shown.append(status.seconds_left_in_all))

    def status(mixer: str, seed: int, state: str, step: int, **more: Any) -> RunStatus:
        return RunStatus(mixer, seed, state, step, 10, **more)

    left(status("a", 0, "training", 5))  # half of 5 s, then 7 s and 5 s
    left(status("a", 0, "training", 9, seconds_left=1.0))
    left(status("a", 0, "done", 10))  # 20 s instead of 5 s: pace 4
    left(status("b", 0, "measuring", 0))
    left(status("b", 0, "diverged", 3))
    assert shown == [14.5, 13.0, 48.0, 48.0, 20.0]


def test_the_command_prints_the_estimate_before_it_trains(tmp_path: Path) -> None:
    options = ["--mixers", "identity", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["compare", *TINY, *options])
    assert done.exit_code == 0, done.output
    assert "1 run of 2 updates: about " in done.output
    assert done.output.index("updates: about") < done.output.index("identity seed 0: training")
    assert "left in all" in done.output


@pytest.mark.slow
def test_the_command_names_the_default_mixers(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", *TINY, "--out", str(tmp_path / "out")])
    assert f"mixers: {', '.join(HEADLINE)}; `--mixers all`" in done.output
    assert f"{len(HEADLINE)} runs of 2 updates: about " in done.output


@pytest.mark.slow
def test_rm_compare_without_mixers_trains_the_headline_mixers() -> None:
    size = {"max_steps": 1, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2}
    found = rm.compare("digits", task_options={"patch_size": 4}, **size)
    assert [run["mixer"] for run in found.results["runs"]] == list(HEADLINE)


@pytest.mark.slow
def test_all_trains_every_mixer(tmp_path: Path) -> None:
    options = ["--mixers", "all", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, ["compare", *TINY, *options])
    results = json.loads(done.stdout)
    assert [mixer["name"] for mixer in results["mixers"]] == rm.list_mixers()
    assert all(mixer["test"]["n"] == 1 for mixer in results["mixers"])


def test_all_means_every_mixer_of_the_task(tmp_path: Path) -> None:
    every = {name: name for name in rm.list_mixers()}
    assert chosen_mixers("all", "digits")[0] == every
    assert chosen_mixers({"all": "all", "csp-4": "csp"}, "digits")[0] == every | {"csp-4": "csp"}
    assert "butterfly" not in chosen_mixers(["all"], "ptb")[0]
    with pytest.raises(rm.InputError, match="mixers"):
        chosen_mixers(["all", "csp"], "digits")
    with pytest.raises(rm.InputError, match="mixers"):
        chosen_mixers("csp", "digits")
    file = tmp_path / "c.toml"
    file.write_text('task = "digits"\nmixers = "all"\n')
    assert chosen_mixers(read_config(file)["mixers"], "digits")[0] == every


def test_options_of_a_file_for_mixers_that_are_not_chosen_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[mixer_options.linear]\nfeature_map = 'elu'\n")
    options = ["--config", str(file), "--mixers", "identity", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["compare", *TINY, *options])
    assert done.exit_code == 0, done.output


def test_a_mixer_cannot_be_named_all() -> None:
    card = replace(Slow.card, name="all")
    with pytest.raises(rm.InputError, match="card of All, name"):
        register_mixer(type("All", (Slow,), {"card": card}))
