"""results.json: raw numbers of every run, and their summary for every mixer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rifflemix.comparison.config import FORMAT, CompareConfig
from rifflemix.comparison.models import training_memory
from rifflemix.comparison.plan import ComparePlan
from rifflemix.mixers import mixer_card
from rifflemix.runs.environment import environment
from rifflemix.runs.results import protocol
from rifflemix.tasks import Task, card_of
from rifflemix.train import TrainResult
from rifflemix.train.run_folder import read_log

RUN_FORMAT = "rifflemix.train/1"

Run = dict[str, Any]


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
    return {
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


def failed_run(mixer: str, seed: int, folder: str, error: str) -> Run:
    """The entry of a run whose training diverged."""
    return {"mixer": mixer, "seed": seed, "folder": folder, "error": error}


def assemble(
    plan: ComparePlan,
    runs: Sequence[Run],
    failed: Sequence[Run],
    peak_memory: Mapping[str, int],
    made_in: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole of results.json from the runs so far; `made_in`: the environment, if not this."""
    done, planned = len(runs) + len(failed), len(plan.runs)
    here = environment() if made_in is None else dict(made_in)
    return {
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
        "wall_seconds": sum(run["wall_seconds"] for run in runs),
        "peak_memory_bytes": max(peak_memory.values(), default=None),
        "mixers": [
            _mixer(plan, name, [run for run in runs if run["mixer"] == name], peak_memory)
            for name in plan.config.mixers
        ],
        "runs": list(runs),
        "failed_runs": list(failed),
    }


def title_of(config: CompareConfig, mixer: str) -> str:
    """What tables call a mixer: its card's title, or the label of a variant."""
    return mixer if mixer in config.variants else mixer_card(mixer).title


def _mixer(
    plan: ComparePlan, name: str, runs: Sequence[Run], peak_memory: Mapping[str, int]
) -> dict[str, Any]:
    card = mixer_card(plan.config.mixer_name(name))
    speeds = [run["steps_per_second"] for run in runs if run["steps_per_second"] is not None]
    return {
        "name": name,
        "title": title_of(plan.config, name),
        "paper": card.paper,
        "complexity": card.complexity,
        "parameters": plan.parameters[name],
        "validation": _accuracy(runs, "validation"),
        "test": _accuracy(runs, "test"),
        "metric": _metric(plan.task, runs),
        "steps_per_second": statistics.median(speeds) if speeds else None,
        "peak_memory_bytes": peak_memory.get(name),
    }


def _accuracy(runs: Sequence[Run], split: str) -> dict[str, Any] | None:
    """None where a task has no accuracy."""
    return summarise([run[split]["accuracy"] for run in runs if "accuracy" in run[split]])


def _metric(task: Task, runs: Sequence[Run]) -> dict[str, Any] | None:
    """The metric that chose the weights, where that is not accuracy."""
    if task.metric == "accuracy":
        return None
    return {
        "name": task.metric,
        "higher_is_better": task.higher_is_better,
        "validation": summarise([run["validation"][task.metric] for run in runs]),
        "test": summarise([run["test"][task.metric] for run in runs]),
    }


def summarise(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean, sample standard deviation (None for one value), count and the values; None for none."""
    if not values:
        return None
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
        "values": list(values),
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
        "sizes": {name: len(task.split(name)) for name in ("train", "validation", "test")},
        "majority_share": plan.majority_share,
    }
