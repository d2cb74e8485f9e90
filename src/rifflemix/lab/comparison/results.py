"""results.json: raw numbers of every run, and their summary for every mixer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rifflemix.json_values import sealed
from rifflemix.lab.comparison.config import FORMAT, CompareConfig
from rifflemix.lab.comparison.plan import ComparePlan
from rifflemix.lab.comparison.progress import (
    FinishedRuns,
    Run,
    failed_entry,
    run_entry,
)
from rifflemix.lab.experiments import Records, newest_environment
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.grid import Point
from rifflemix.lab.runs.results import protocol, summarise
from rifflemix.lab.tasks import card_of
from rifflemix.lab.tasks.core.base import SPLITS, AnswersBlindly
from rifflemix.mixers import mixer_card


def assemble(plan: ComparePlan, records: Records) -> dict[str, Any]:
    """Derive results.json from the records so far."""
    done = plan.finished_runs(records)
    runs, failed = _entries(done)
    tuning = _tuning(plan, done) if plan.config.tuned else None
    trials = [] if tuning is None else [*tuning["trials"], *tuning["failed_trials"]]
    memory = [done.peak_memory(mixer) for mixer in plan.config.mixers]
    here = newest_environment(records) or environment()
    count, planned = len(runs) + len(failed), len(plan.runs)
    results = {
        "format": FORMAT,
        "status": "complete" if count == planned else "partial",
        "runs_done": count,
        "runs_planned": planned,
        "command": here["command"],
        "config": dict(plan.settings),
        "seeds": list(plan.config.seeds),
        "task": _task(plan),
        "protocol": protocol(plan.task),
        "environment": here,
        "wall_seconds": cost_of(runs, trials),
        "peak_memory_bytes": max((bytes_ for bytes_ in memory if bytes_), default=None),
        "mixers": [_mixer(plan, name, done, runs, tuning) for name in plan.config.mixers],
        "runs": runs,
        "failed_runs": failed,
        **({} if tuning is None else {"tuning": tuning}),
    }
    return sealed(results)


def _entries(done: FinishedRuns) -> tuple[list[Run], list[Run]]:
    """Return the entries of finished and of diverged runs."""
    return (
        [sealed(run_entry(record)) for record in done.runs],
        [failed_entry(record) for record in done.failed],
    )


def _tuning(plan: ComparePlan, done: FinishedRuns) -> dict[str, Any]:
    return {
        "grid": {name: list(values) for name, values in plan.config.tuned.items()},
        "trials_planned": len(plan.trials),
        "trials": [
            sealed(run_entry(record) | {"settings": record.settings, "test": None})
            for record in done.trials
        ],
        "failed_trials": [
            failed_entry(record)
            | {"settings": record.settings, "wall_seconds": record.wall_seconds}
            for record in done.failed_trials
        ],
    }


def cost_of(runs: Sequence[Run], trials: Sequence[Run]) -> float:
    """Add the seconds of all trials and runs; a run's time includes the trial it continued."""
    within = {run["folder"] for run in runs} | {run.get("started_from") for run in runs}
    others = [run for run in trials if run["folder"] not in within]
    return math.fsum(run["wall_seconds"] for run in (*runs, *others))


def title_of(config: CompareConfig, mixer: str) -> str:
    """What tables call a mixer: its card's title, or the label of a variant."""
    return mixer if mixer in config.variants else mixer_card(mixer).title


def _mixer(
    plan: ComparePlan,
    name: str,
    done: FinishedRuns,
    runs: Sequence[Run],
    tuning: Mapping[str, Any] | None,
) -> dict[str, Any]:
    card, task, own = mixer_card(plan.config.mixer_name(name)), plan.task, _of(runs, name)
    return {
        "name": name,
        "title": title_of(plan.config, name),
        "paper": card.paper,
        "complexity": card.complexity,
        "parameters": plan.parameters[name],
        **scores_of(own, task.metric, higher_is_better=task.higher_is_better),
        "peak_memory_bytes": done.peak_memory(name),
        **({} if tuning is None else {"tuning": _tuning_of(plan, name, done, own, tuning)}),
    }


def _of(runs: Sequence[Run], mixer: str) -> list[Run]:
    return [run for run in runs if run["mixer"] == mixer]


def scores_of(runs: Sequence[Run], metric: str, *, higher_is_better: bool) -> dict[str, Any]:
    """Scores and speed of one mixer over its runs."""
    speeds = [run["steps_per_second"] for run in runs if run["steps_per_second"] is not None]
    return {
        "validation": _accuracy(runs, "validation"),
        "test": _accuracy(runs, "test"),
        "metric": _metric(metric, higher_is_better, runs),
        "steps_per_second": statistics.median(speeds) if speeds else None,
    }


def _tuning_of(
    plan: ComparePlan,
    name: str,
    done: FinishedRuns,
    runs: Sequence[Run],
    tuning: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what a mixer tried, the cost, and the choice of validation once all trials ended."""
    trials, failed = _of(tuning["trials"], name), _of(tuning["failed_trials"], name)
    ended = len(tuning["trials"]) + len(tuning["failed_trials"]) == len(plan.trials)
    return {
        "tried": tried_of(plan.config.points, trials, failed, plan.task.metric),
        "chosen": plan.chosen(done.records, name) if trials and ended else None,
        "wall_seconds": cost_of(runs, [*trials, *failed]),
    }


def tried_of(
    points: Sequence[Point], trials: Sequence[Run], failed: Sequence[Run], metric: str
) -> list[dict[str, Any]]:
    """The validation metric of one mixer's trials, and how many diverged, by settings."""
    return [
        {
            "settings": point,
            "validation": summarise(
                [run["validation"][metric] for run in trials if run["settings"] == point]
            ),
            "diverged": sum(run["settings"] == point for run in failed),
        }
        for point in points
    ]


def _accuracy(runs: Sequence[Run], split: str) -> dict[str, Any] | None:
    """None where a task has no accuracy."""
    return summarise([run[split]["accuracy"] for run in runs if "accuracy" in run[split]])


def _metric(name: str, higher_is_better: bool, runs: Sequence[Run]) -> dict[str, Any] | None:
    """The metric that chose the weights, where that is not accuracy."""
    if name == "accuracy":
        return None
    return {
        "name": name,
        "higher_is_better": higher_is_better,
        "validation": summarise([run["validation"][name] for run in runs]),
        "test": summarise([run["test"][name] for run in runs]),
    }


def _task(plan: ComparePlan) -> dict[str, Any]:
    card, task = card_of(plan.task), plan.task
    return {
        "name": card.name,
        "title": card.title,
        "source": card.source,
        "licence": card.licence,
        "options": dict(task.options),
        "data_source": task.data_source,
        "fingerprint": plan.settings["data"],
        "num_classes": task.num_classes,
        "max_length": task.max_length,
        "sizes": {name: len(task.split(name)) for name in (*SPLITS, *task.further_tests)},
        "majority_share": plan.blind_accuracy,
        **({"blind_answer": task.blind_answer} if isinstance(task, AnswersBlindly) else {}),
    }
