"""Tests of tuning: equal trials for all mixers, and the test split only for chosen settings."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import comparison, results_of_plan, summary, table_of
from test_compare import measured, settings, start, stop_after

import rifflemix as rm
from rifflemix.lab.comparison import plan_comparison, run_comparison
from rifflemix.lab.comparison.pages.files import comparison_files
from rifflemix.lab.comparison.pages.notes import comparison_notes
from rifflemix.lab.comparison.pages.tuning import markdown_tuning
from rifflemix.lab.comparison.suites.report import SuiteReport
from rifflemix.lab.runs.status import RunStatus
from rifflemix.lab.train import run as training_run

RATES = (1e-3, 1e-2)
TUNED = {"tuned": {"lr": RATES}, "seeds": (0, 1)}


def trials(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values that do not depend on clock and stops."""
    keys = ("mixer", "seed", "settings", "folder", "validation", "validation_curve", "train_curve")
    return [{key: run[key] for key in keys} for run in results["tuning"]["trials"]]


def without_clock(results: dict[str, Any]) -> tuple[Any, ...]:
    choices = [mixer["tuning"]["chosen"] for mixer in results["mixers"]]
    return trials(results), measured(results), choices


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("tuned") / "out"
    return out, start(out, **TUNED)


def test_every_mixer_has_the_same_trials(tuned: tuple[Path, dict[str, Any]]) -> None:
    _, results = tuned
    assert results["status"] == "complete"
    assert results["tuning"]["trials_planned"] == 8
    tried = [(run["seed"], run["settings"]["lr"], run["mixer"]) for run in trials(results)]
    assert tried == [(s, lr, m) for s in (0, 1) for lr in RATES for m in ("softmax", "tssa")]
    assert results["config"]["tuned"] == {"lr": list(RATES)}
    assert "lr" not in results["config"]["train"]


def test_the_best_mean_on_validation_chooses(tuned: tuple[Path, dict[str, Any]]) -> None:
    _, results = tuned
    for mixer in results["mixers"]:
        means = {
            lr: statistics.fmean(
                run["validation"]["accuracy"]
                for run in results["tuning"]["trials"]
                if run["mixer"] == mixer["name"] and run["settings"]["lr"] == lr
            )
            for lr in RATES
        }
        best = max(RATES, key=means.__getitem__)
        assert mixer["tuning"]["chosen"] == {"lr": best}
        for entry in mixer["tuning"]["tried"]:
            assert entry["validation"]["mean"] == pytest.approx(means[entry["settings"]["lr"]])
        for run in results["runs"]:
            if run["mixer"] == mixer["name"]:
                assert run["folder"] == f"{mixer['name']}/seed{run['seed']}"
                assert run["started_from"] == f"{mixer['name']}/lr={best}/seed{run['seed']}"


def test_chosen_runs_have_the_weights_of_all_evaluations(tmp_path: Path) -> None:
    plan = plan_comparison(replace(settings(), tuned={"lr": RATES}), tmp_path / "out")
    for run in run_comparison(plan, keep_weights=True).runs:
        folder = plan.out / run.mixer / f"seed{run.seed}"
        trial = plan.out / str(run.started_from)
        kept = {path.name: path.read_bytes() for path in (folder / "weights").iterdir()}
        assert kept == {path.name: path.read_bytes() for path in (trial / "weights").iterdir()}
        assert len(kept) > 1


def test_chosen_runs_equal_runs_with_that_rate_only(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, results = tuned
    chosen = results["mixers"][0]["tuning"]["chosen"]
    train = replace(settings().train, **chosen)
    alone = start(tmp_path / "out", train=train, mixers=("softmax",))
    softmax = [run for run in measured(results) if run["mixer"] == "softmax" and run["seed"] == 0]
    assert measured(alone) == softmax


def test_test_split_is_used_by_chosen_runs_only(tuned: tuple[Path, dict[str, Any]]) -> None:
    out, results = tuned
    assert len(results["runs"]) == 4
    for run in (*results["tuning"]["trials"], *results["runs"]):
        is_chosen = run in results["runs"]
        assert (run["test"] is not None) == is_chosen
        folder = out / run["folder"]
        lines = (folder / "log.jsonl").read_text().splitlines()
        splits = [json.loads(line).get("split") for line in lines]
        assert splits.count("test") == is_chosen
        assert (folder / "training.json").exists() == is_chosen


def test_test_split_is_used_once_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    evaluate = training_run.evaluate

    def watched(engine: Any, model: Any, task: Any, split: str, *rest: Any) -> Any:
        seen.append(split)
        return evaluate(engine, model, task, split, *rest)

    monkeypatch.setattr(training_run, "evaluate", watched)
    start(tmp_path / "out", tuned={"lr": RATES}, mixers=("softmax",))
    assert seen == ["validation"] * 4 + ["test"]


def test_the_cost_of_all_trials_counts(tuned: tuple[Path, dict[str, Any]]) -> None:
    _, results = tuned
    runs = {run["started_from"]: run["wall_seconds"] for run in results["runs"]}
    spent = {run["folder"]: run["wall_seconds"] for run in results["tuning"]["trials"]} | runs
    assert len(spent) == 8
    assert results["wall_seconds"] == pytest.approx(sum(spent.values()))
    for mixer in results["mixers"]:
        own = [of for folder, of in spent.items() if folder.startswith(mixer["name"])]
        assert mixer["tuning"]["wall_seconds"] == pytest.approx(sum(own))
        assert mixer["tuning"]["wall_seconds"] > sum(
            run["wall_seconds"] for run in results["runs"] if run["mixer"] == mixer["name"]
        )


@pytest.mark.parametrize(
    "polls",
    [pytest.param(0, marks=pytest.mark.slow), 10, pytest.param(58, marks=pytest.mark.slow)],
    ids="stop at poll {}".format,
)
def test_stopped_tuning_resumes_bit_for_bit(
    polls: int, tmp_path: Path, tuned: tuple[Path, dict[str, Any]]
) -> None:
    plan = plan_comparison(settings(**TUNED), tmp_path / "out")
    stopped = results_of_plan(plan, should_stop=stop_after(polls))
    assert stopped["status"] == "partial"
    if polls == 10:
        assert stopped["runs"] == []
        assert all(mixer["tuning"]["chosen"] is None for mixer in stopped["mixers"])
        counts = r"\b0 of 8 trials.*\b0 of 4 runs"
        assert re.search(counts, comparison_notes(table_of(stopped))[0])
        answers = SuiteReport({"a": table_of(stopped)}).answers
        assert any(re.search(rf"\ba\b.*{counts}", said) for said in answers)
        assert comparison_files(table_of(stopped)).keys() == {"table.md", "plot.png", "report.html"}
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == stopped
    complete = start(tmp_path / "out", **TUNED)
    assert without_clock(complete) == without_clock(tuned[1])


def test_lost_summary_is_computed_from_the_records(tuned: tuple[Path, dict[str, Any]]) -> None:
    out, results = tuned
    (out / "results.json").unlink()
    statuses: list[RunStatus] = []
    plan = plan_comparison(settings(**TUNED), out)
    assert results_of_plan(plan, on_status=statuses.append) == results
    assert not statuses


def unclipped() -> Any:
    return replace(settings().train, warmup_steps=0, clip_norm=None)


def test_a_rate_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    changes = {"tuned": {"lr": (1e30, 1e-3)}, "mixers": ("softmax",), "train": unclipped()}
    results = start(tmp_path, **changes)
    tuning = results["mixers"][0]["tuning"]
    assert tuning["chosen"] == {"lr": 1e-3}
    assert [entry["diverged"] for entry in tuning["tried"]] == [1, 0]
    assert tuning["tried"][0]["validation"] is None
    (failed,) = results["tuning"]["failed_trials"]
    assert "diverged" in failed["error"]
    assert failed["wall_seconds"] > 0
    assert not results["failed_runs"]
    assert start(tmp_path, **changes) == results


def test_mixer_fails_if_all_rates_diverge(tmp_path: Path) -> None:
    changes = {"tuned": {"lr": (1e30, 1e31)}, "mixers": ("softmax",), "train": unclipped()}
    results = start(tmp_path, **changes)
    assert results["status"] == "complete"
    assert len(results["tuning"]["failed_trials"]) == 2
    assert [run["folder"] for run in results["failed_runs"]] == ["softmax/lr=1e+30/seed0"]
    assert results["mixers"][0]["test"] is None
    assert start(tmp_path, **changes) == results


def test_no_rate_is_chosen_if_all_rates_diverge(tmp_path: Path) -> None:
    changes = {"tuned": {"lr": (1e30, 1e31)}, "mixers": ("softmax",), "train": unclipped()}
    results = start(tmp_path, **changes)
    assert results["mixers"][0]["tuning"]["chosen"] is None
    assert "| 1 diverged | 1 diverged |" in markdown_tuning(table_of(results).results)
    assert not any("lr 1e+3" in note for note in comparison_notes(table_of(results)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tuned": {"lr": (1e-3, 1e-2, 0.1)}}, r"tuned.lr.*\[0.001, 0.01\]"),
        ({"tuned": {}}, r"train.lr = None.*got 0\.001\b"),
    ],
)
def test_a_folder_of_another_grid_is_refused(
    changes: dict[str, Any], words: str, tuned: tuple[Path, dict[str, Any]]
) -> None:
    with pytest.raises(rm.InputError, match=words):
        plan_comparison(settings(**{**TUNED, **changes}), tuned[0])


@pytest.mark.parametrize(
    ("lr", "words"),
    [
        ([], r"lr: .*\b0\b"),
        ([1e-3, 1e-3], r"lr: .*got 0.001\b"),
        ([1e-3, -1.0], r"lr: .*\b0\b.*got -1.0\b"),
        ([1e-3, float("nan")], r"lr: .*\b0\b.*got nan"),
        ([1e-3, "x"], r"lr: .*\b0\b.*got 'x'"),
        ([1e-3, True], r"lr: .*\b0\b.*got True"),
        ("1e-3,1e-2", "lr: .*got '1e-3,1e-2'"),
    ],
)
def test_invalid_rates_are_refused(lr: Any, words: str) -> None:
    with pytest.raises(rm.InputError, match=words):
        rm.compare("digits", ["softmax"], lr=lr)


def test_one_rate_in_a_list_is_not_tuning(tmp_path: Path) -> None:
    from rifflemix.lab.comparison import resolve
    from rifflemix.lab.tasks import task_card

    config = resolve(task_card("digits"), {"csp": "csp"}, (0,), lr=[0.5])
    assert not config.tuned
    assert config.train.lr == 0.5


def fake() -> dict[str, Any]:
    """Build results of tuning with three rates.

    CSP chose the last rate, softmax the middle rate.
    """
    results = comparison(mixers=2, seeds=2)
    del results["config"]["train"]["lr"]
    results["tuning"] = {
        "grid": {"lr": [1e-3, 3e-3, 1e-2]},
        "trials_planned": 12,
        "trials": [],
        "failed_trials": [],
    }
    for mixer, best in zip(results["mixers"], (3e-3, 1e-2), strict=True):
        values = {1e-3: None, 3e-3: [0.9, 0.92], 1e-2: [0.8]}
        mixer["tuning"] = {
            "chosen": {"lr": best},
            "wall_seconds": 75.0 if best == 1e-2 else 50.0,
            "tried": [
                {
                    "settings": {"lr": lr},
                    "validation": summary(of or []),
                    "diverged": 2 - len(of or []),
                }
                for lr, of in values.items()
            ],
        }
    return results


def test_tables_show_the_choice_and_its_cost() -> None:
    files = comparison_files(table_of(fake()))
    table = files["table.md"].decode()
    assert "| lr 0.003 | 50 s (1.00x) |" in table
    assert "| lr 0.01 | 1 min 15 s (1.50x) |" in table
    assert re.search("^## .*accuracy, %$", table, re.MULTILINE)
    assert "| Softmax | 2 diverged | **91.00 ± 1.41** | 80.00, 1 diverged | 50 s |" in table
    assert "| Csp | 2 diverged | 91.00 ± 1.41 | **80.00, 1 diverged** | 1 min 15 s |" in table
    page = files["report.html"].decode()
    assert '<td class="best">80.00, 1 diverged</td>' in page


def test_comparison_without_tuning_has_no_table_of_trials() -> None:
    assert markdown_tuning(table_of(comparison()).results) == ""
    assert b"Tuning" not in comparison_files(table_of(comparison(mixers=1)))["table.md"]


def test_notes_describe_tuning_and_rates_at_the_edge_of_the_grid() -> None:
    notes = comparison_notes(table_of(fake()))
    (tuned,) = (note for note in notes if re.search(r"\b12 trials", note))
    assert re.search(r"learning rate.*\b3 values", tuned)
    (at_end,) = (note for note in notes if "lr 0.01" in note)
    assert re.search(r"Csp \(lr 0\.01\)", at_end)
    assert "Softmax" not in at_end


def test_frames_have_trials(tuned: tuple[Path, dict[str, Any]]) -> None:
    pytest.importorskip("pandas")
    comparison = rm.Comparison(table_of(tuned[1]).results)
    frame = comparison.to_frame("trial")
    assert len(frame) == 8
    assert set(frame["lr"]) == set(RATES)
    assert "validation_accuracy" in frame
    assert not [name for name in frame if name.startswith("test")]
    assert set(comparison.to_frame()["tuned"]) <= {"lr 0.001", "lr 0.01"}
