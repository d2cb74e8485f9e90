"""Tests of --stop-early: successive halving over the trials of every mixer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import results_of_plan
from test_compare import settings, start, stop_after

from command_line import Cli
from rifflemix.errors import InputError
from rifflemix.lab.comparison import Comparison, plan_comparison
from rifflemix.lab.comparison.merging import merged_results
from rifflemix.lab.comparison.records import read_results
from rifflemix.lab.comparison.trials import Rung, Trial, Trials, plan_rungs
from rifflemix.lab.experiments import Observer, RunStore, StatusFile
from rifflemix.lab.runs.status import RunStatus
from rifflemix.lab.train import run as training_run
from rifflemix.lab.train.config import TrainConfig

RATES = (1e-4, 1e-3, 1e-2)
TRAIN = replace(
    settings().train, max_steps=8, batch_size=64, warmup_steps=1, eval_every=2, log_every=2
)
EARLY: dict[str, Any] = {
    "tuned": {"lr": RATES}, "seeds": (0, 1), "stop_early": True, "train": TRAIN, "dim": 8,
    "mixers": ("softmax", "identity"),
}  # fmt: skip
TINY = (
    *("compare", "--task", "digits", "--task-option", "patch_size=4", "--mixers", "identity"),
    *("--max-steps", "8", "--batch-size", "16", "--dim", "8", "--layers", "1", "--heads", "2"),
    *("--threads", "1", "--train-option", "eval_every=2", "--stop-early"),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)
    monkeypatch.setattr("rifflemix.lab.comparison.training_memory", lambda *_: 1_000)


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("halved") / "out"
    return out, start(out, **EARLY)


def by_trial(results: dict[str, Any]) -> dict[tuple[str, int, float], dict[str, Any]]:
    return {(t["mixer"], t["seed"], t["settings"]["lr"]): t for t in results["tuning"]["trials"]}


def numbers(results: dict[str, Any], mixer: str = "") -> list[Any]:
    """Return the values of all mixers or one mixer that do not depend on clock and stops."""
    keys = ("folder", "steps", "validation_curve", "train_curve", "test", "best_step")
    runs = [*results["tuning"]["trials"], *results["runs"]]
    return [[run[key] for key in keys] for run in runs if mixer in ("", run["mixer"])]


@pytest.mark.parametrize(
    ("count", "steps", "every", "expected"),
    [
        (2, 200, 25, [(100, 1)]),
        (3, 200, 25, [(50, 2), (100, 1)]),
        (5, 200, 25, [(25, 3), (50, 2), (100, 1)]),
        (16, 200, 25, [(25, 4), (50, 2), (100, 1)]),
        (3, 10, 3, [(3, 2), (6, 1)]),
        (4, 10, 9, [(9, 1)]),
        (3, 7, 1, [(2, 2), (4, 1)]),
    ],
)
def test_rungs_halve_settings_at_evaluations(
    count: int, steps: int, every: int, expected: list[tuple[int, int]]
) -> None:
    train = TrainConfig(max_steps=steps, eval_every=every)
    assert plan_rungs(count, train) == tuple(Rung(*pair) for pair in expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tuned": {}}, "learning rates"),
        ({"train": replace(TRAIN, eval_every=None)}, "eval_every"),
        ({"train": replace(TRAIN, eval_every=8)}, "eval_every"),
    ],
)
def test_settings_without_a_rung_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"stop_early.*{words}"):
        settings(**{**EARLY, **changes})


def test_every_mixer_keeps_the_same_number_of_settings(
    halved: tuple[Path, dict[str, Any]],
) -> None:
    _, results = halved
    for mixer in ("softmax", "identity"):
        for seed in (0, 1):
            steps = sorted(
                trial["steps"]
                for (name, of, _), trial in by_trial(results).items()
                if (name, of) == (mixer, seed)
            )
            assert steps == [2, 4, 8]
    assert results["tuning"]["trials_planned"] == 12
    rungs = results["tuning"]["early_stops"]["rungs"]
    assert rungs == [{"step": 2, "kept": 2}, {"step": 4, "kept": 1}]


def test_the_best_scores_at_a_rung_continue(halved: tuple[Path, dict[str, Any]]) -> None:
    _, results = halved
    trials = by_trial(results)
    for mixer in ("softmax", "identity"):

        def score(lr: float, step: int, mixer: str = mixer) -> float:
            curves = [trials[mixer, seed, lr]["validation_curve"] for seed in (0, 1)]
            best = [max(at["accuracy"] for at in curve if at["step"] <= step) for curve in curves]
            return sum(best) / 2

        ended = {lr: trials[mixer, 0, lr]["steps"] for lr in RATES}
        first = next(lr for lr in RATES if ended[lr] == 2)
        second = next(lr for lr in RATES if ended[lr] == 4)
        last = next(lr for lr in RATES if ended[lr] == 8)
        assert score(first, 2) <= min(score(second, 2), score(last, 2))
        assert score(second, 4) <= score(last, 4)
        summary = next(m for m in results["mixers"] if m["name"] == mixer)
        assert summary["tuning"]["chosen"] == {"lr": last}
        stops = [tried.get("stopped_at") for tried in summary["tuning"]["tried"]]
        assert stops == [{2: 2, 4: 4, 8: None}[ended[lr]] for lr in RATES]


def test_trials_equal_the_first_steps_of_whole_trainings(
    halved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, results = halved
    whole = start(tmp_path / "out", **{**EARLY, "stop_early": False, "seeds": (0,)})
    for key, full in by_trial(whole).items():
        trial = by_trial(results)[key]
        for curve in ("validation_curve", "train_curve"):
            begin = [at for at in full[curve] if at["step"] <= trial["steps"]]
            assert trial[curve] == begin
    assert results["tuning"]["early_stops"] is not None
    assert "early_stops" not in whole["tuning"]


def test_the_test_split_is_used_by_chosen_runs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    evaluate = training_run.evaluate

    def watched(engine: Any, model: Any, task: Any, split: str, *rest: Any) -> Any:
        seen.append(split)
        return evaluate(engine, model, task, split, *rest)

    monkeypatch.setattr(training_run, "evaluate", watched)
    start(tmp_path / "out", **{**EARLY, "seeds": (0,), "mixers": ("identity",)})
    assert seen == ["validation"] * (3 + 2 + 2) + ["test"]


def test_stops_at_any_moment_do_not_change_results(
    halved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    plan = plan_comparison(settings(**{**EARLY, "mixers": ("identity",)}), tmp_path / "out")
    for polls in (3, 20, 45):
        results = results_of_plan(plan, should_stop=stop_after(polls))
    assert results["status"] == "partial"
    assert numbers(results_of_plan(plan)) == numbers(halved[1], "identity")


def test_a_diverged_setting_is_not_kept(tmp_path: Path) -> None:
    rates = {"tuned": {"lr": (1e-3, 1e30)}, "seeds": (0,), "mixers": ("softmax",)}
    results = start(tmp_path / "out", **{**EARLY, **rates})
    assert results["status"] == "complete"
    assert [trial["settings"] for trial in results["tuning"]["failed_trials"]] == [{"lr": 1e30}]
    assert results["mixers"][0]["tuning"]["chosen"] == {"lr": 1e-3}


def test_mixer_fails_if_every_setting_diverges(tmp_path: Path) -> None:
    rates = {"tuned": {"lr": (1e30, 2e30)}, "seeds": (0,), "mixers": ("softmax",)}
    results = start(tmp_path / "out", **{**EARLY, **rates})
    assert results["status"] == "complete"
    assert (len(results["runs"]), len(results["failed_runs"])) == (0, 1)
    assert len(results["tuning"]["failed_trials"]) == 2


def test_the_folder_continues_with_the_same_rule_only(
    halved: tuple[Path, dict[str, Any]],
) -> None:
    out, results = halved
    with pytest.raises(InputError, match="stop_early"):
        plan_comparison(settings(**{**EARLY, "stop_early": False}), out)
    assert results_of_plan(plan_comparison(settings(**EARLY), out)) == results


def test_the_table_has_the_rule(halved: tuple[Path, dict[str, Any]]) -> None:
    found = Comparison.load(halved[0])
    text = str(found)
    assert "2 at step 2, 1 at step 4" in text
    assert set(found.to_frame("trial")["steps"]) == {2, 4, 8}


def planned_trials() -> Trials:
    trials = [
        Trial(mixer, {"lr": lr}, seed, [f"{mixer}/{lr}/{stage}/{seed}" for stage in range(3)])
        for seed in (0, 1)
        for lr in RATES
        for mixer in ("a", "b")
    ]
    return Trials(trials, (Rung(2, 2), Rung(4, 1)), 8, "accuracy", higher_is_better=True)


def test_estimate_knows_the_work_after_a_rung() -> None:
    trials = planned_trials()
    assert {run.share for run in trials.planned({})} == {0.25}
    # Two settings from step 2 to 4, and one from 4 to 8, with two seeds.
    assert trials.later_trainings({}) == {"a": 2.0, "b": 2.0}


def test_an_estimate_has_unknown_kept_settings(tmp_path: Path) -> None:
    found: list[Any] = []
    left: list[float] = []

    def watch(status: RunStatus) -> None:
        if status.seconds_left_in_all is not None:
            left.append(status.seconds_left_in_all)

    plan = plan_comparison(settings(**{**EARLY, "mixers": ("identity",)}), tmp_path / "out")
    results_of_plan(plan, on_estimate=found.append, on_status=watch)
    labels = {trial for _, _, trial in found[0].seconds}
    assert labels == {
        *(f"lr={lr}/step2" for lr in RATES), "kept=1of2/step4", "kept=2of2/step4", "kept=1of1", ""
    }  # fmt: skip
    assert found[0].trials == 12
    assert left[-1] == pytest.approx(0.0, abs=1e-6)


def test_remaining_time_includes_later_runs(tmp_path: Path) -> None:
    plan = plan_comparison(settings(**EARLY), tmp_path / "out")
    RunStore(plan).open()
    with StatusFile(plan.out) as file:
        file.update(RunStatus("softmax", 0, "measuring", 0, 8))
        overview = Observer(plan.out, [plan], lambda run: 8.0).look()
    # Of each of 2 mixers: 3 settings x 2 steps, 2 x 2, 1 x 4, with 2 seeds and a second per step.
    assert overview.seconds_left == pytest.approx(2 * (6 + 4 + 4) * 2)


def test_merged_parts_must_have_stopped_a_setting_at_one_rung(
    halved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, _ = halved
    one = read_results(out / "results.json")
    assert one.tuning is not None
    moved = [replace(trial, seed=trial.seed + 2) for trial in one.tuning.trials]
    stops = {2: 4, 4: 2, None: None}
    moved = [replace(trial, stopped_at=stops[trial.stopped_at]) for trial in moved]
    runs = [replace(run, seed=run.seed + 2) for run in one.runs]
    other = replace(one, runs=runs, tuning=replace(one.tuning, trials=moved))
    with pytest.raises(InputError, match=r"^merge: .*stopped"):
        merged_results({out: one, tmp_path: other}, tmp_path / "merged")
    same = merged_results({out: one, tmp_path: one}, tmp_path / "merged")
    assert same.tuning is not None
    assert same.tuning.early_stops == one.tuning.early_stops


def test_the_command_prints_the_stages_of_a_dry_run(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = cli(*TINY, "--lr", "1e-3,1e-2", "--dry-run", "--json", "--out", out)
    found = json.loads(result.out)["runs"]
    runs = [Path(run["run"]).relative_to(out).as_posix() for run in found]
    assert runs == [
        "identity/lr=0.001/step4/seed0", "identity/lr=0.01/step4/seed0",
        "identity/kept=1of1/seed0", "identity/seed0",
    ]  # fmt: skip
    assert not out.exists()


def test_the_command_needs_several_rates(cli: Cli, tmp_path: Path) -> None:
    result = cli(*TINY, "--out", tmp_path / "out")
    assert result.code == 2
    assert "stop_early" in result.err
    assert not (tmp_path / "out").exists()
