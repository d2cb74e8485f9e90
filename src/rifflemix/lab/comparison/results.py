"""results.json: raw numbers of every run, and their summary for every mixer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rifflemix.json_values import sealed
from rifflemix.lab.comparison.config import FORMAT, CompareConfig
from rifflemix.lab.comparison.models import training_memory
from rifflemix.lab.comparison.plan import ComparePlan
from rifflemix.lab.comparison.progress import Progress, Run
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.grid import Point
from rifflemix.lab.runs.results import protocol, summarise
from rifflemix.lab.tasks import Task, card_of
from rifflemix.lab.tasks.core.base import SPLITS, AnswersBlindly
from rifflemix.lab.train import TrainResult
from rifflemix.lab.train.run_folder import read_log
from rifflemix.mixers import mixer_card

RUN_FORMAT = "rifflemix.train/1"


def finished_run(mixer: str, seed: int, folder: str, result: TrainResult, path: Path) -> Run:
    """One run's entry in results.json.

    Args:
        mixer: registry name.
        seed: the run's.
        folder: where the run's files lie, relative to the results.
        result: what training returned.
        path: the same folder, to read the log from.
    """
    return {
        "mixer": mixer,
        "seed": seed,
        "folder": folder,
        "steps": result.step,
        "best_step": result.best_step,
        "parameters": result.parameters,
        "processes": result.processes,
        "steps_per_second": result.steps_per_second,
        "tokens_per_second": result.tokens_per_second,
        "wall_seconds": result.seconds["total"],
        "seconds": result.seconds,
        "validation": _chosen(result),
        "test": result.test,
        "validation_curve": result.validation,
        "train_curve": read_log(path / "log.jsonl"),
        "environment": environment(),
    }


def single_run(
    config: CompareConfig, task: Task, mixer: str, seed: int, result: TrainResult
) -> dict[str, Any]:
    """results.json of a run that is part of no comparison; memory only once it is finished."""
    here = environment()
    results = {
        "format": RUN_FORMAT,
        "command": here["command"],
        "config": config.to_dict() | {"task_options": dict(task.options)},
        "seed": seed,
        "protocol": protocol(task),
        "environment": here,
        "wall_seconds": result.seconds["total"],
        "peak_memory_bytes": training_memory(config, task, mixer) if result.finished else None,
        "result": result.to_dict(),
    }
    return sealed(results)


def failed_run(mixer: str, seed: int, folder: str, error: str) -> Run:
    """The entry of a run whose training diverged."""
    return {"mixer": mixer, "seed": seed, "folder": folder, "error": error}


def assemble(
    plan: ComparePlan, progress: Progress, made_in: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The whole of results.json from the runs so far; `made_in`: the environment, if not this."""
    runs, failed, memory = progress.runs, progress.failed, progress.peak_memory
    done, planned = len(runs) + len(failed), len(plan.runs)
    here = environment() if made_in is None else dict(made_in)
    results = {
        "format": FORMAT,
        "status": "complete" if done == planned else "partial",
        "runs_done": done,
        "runs_planned": planned,
        "command": here["command"],
        "config": dict(plan.settings),
        "seeds": list(plan.config.seeds),
        "task": _task(plan),
        "protocol": protocol(plan.task),
        "environment": here,
        "wall_seconds": cost_of(runs, [*progress.trials, *progress.failed_trials]),
        "peak_memory_bytes": max(memory.values(), default=None),
        "mixers": [_mixer(plan, name, progress) for name in plan.config.mixers],
        "runs": list(runs),
        "failed_runs": list(failed),
        **({"tuning": _tuning(plan, progress)} if plan.config.tuned else {}),
    }
    return sealed(results)


def _tuning(plan: ComparePlan, progress: Progress) -> dict[str, Any]:
    return {
        "grid": {name: list(values) for name, values in plan.config.tuned.items()},
        "trials_planned": len(plan.trials),
        "trials": list(progress.trials),
        "failed_trials": list(progress.failed_trials),
    }


def cost_of(runs: Sequence[Run], trials: Sequence[Run]) -> float:
    """Seconds of all trials and runs; those of a trial that was chosen are part of its run's."""
    within = {run["folder"] for run in runs}
    others = [run for run in trials if run["folder"] not in within]
    return math.fsum(run["wall_seconds"] for run in (*runs, *others))


def title_of(config: CompareConfig, mixer: str) -> str:
    """What tables call a mixer: its card's title, or the label of a variant."""
    return mixer if mixer in config.variants else mixer_card(mixer).title


def _mixer(plan: ComparePlan, name: str, progress: Progress) -> dict[str, Any]:
    card = mixer_card(plan.config.mixer_name(name))
    task, runs = plan.task, _of(progress.runs, name)
    return {
        "name": name,
        "title": title_of(plan.config, name),
        "paper": card.paper,
        "complexity": card.complexity,
        "parameters": plan.parameters[name],
        **scores_of(runs, task.metric, higher_is_better=task.higher_is_better),
        "peak_memory_bytes": progress.peak_memory.get(name),
        **({"tuning": _tuning_of(plan, name, progress)} if plan.config.tuned else {}),
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


def _tuning_of(plan: ComparePlan, name: str, progress: Progress) -> dict[str, Any]:
    """What a mixer tried, what that cost, and what validation chose once all trials had ended.

    It chose nothing where all diverged.
    """
    trials, failed = _of(progress.trials, name), _of(progress.failed_trials, name)
    is_chosen = bool(trials) and progress.is_tuned(plan)
    return {
        "tried": tried_of(plan.config.points, trials, failed, plan.task.metric),
        "chosen": progress.chosen(plan, name) if is_chosen else None,
        "wall_seconds": cost_of(_of(progress.runs, name), [*trials, *failed]),
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


def _chosen(result: TrainResult) -> dict[str, float]:
    """The validation metrics of the evaluation that chose the weights."""
    return next(entry for entry in result.validation if entry["step"] == result.best_step)


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
