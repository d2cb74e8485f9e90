"""results.json of a reproduction, and reading many of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rifflemix.errors import InputError
from rifflemix.files import read_json, user_path
from rifflemix.json_values import check_seal
from rifflemix.lab.experiments import ONLY_RUN, Outcome, files_of
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.checks import check_results
from rifflemix.lab.reproduction.plan import ReproducePlan
from rifflemix.lab.runs.results import protocol
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.train import TrainResult
from rifflemix.lab.train.run_folder import read_log

FORMAT = "rifflemix.reproduce/1"
SETTINGS_FORMAT = "rifflemix.reproduction/1"
RESULTS_FILE = "results.json"
_AGAIN = "remove it, or run its recipe again"


def results_of(plan: ReproducePlan, outcome: Outcome) -> dict[str, Any]:
    """Derive results.json.

    "ours" is the test value of the weights that the recipe chooses, in the unit of the printed
    number, and None until the run is finished. "weights" says "best" or "last". "ours_best" is
    the test value of the best evaluation's weights, None without a validation split. "ours_last"
    is the test value of the last step's weights. "validation" is the best evaluation's value.
    "difference" is ours minus the printed, None for a recipe that is `not_comparable`.
    "batch_size_planned" is the recipe's own.
    "started_from" names the weights that the run started from, None if they were its own.

    Args:
        plan: the reproduction.
        outcome: the record of the run, or the outcome so far of a stopped run.
    """
    run, result = outcome.single, outcome.single.trained
    recipe, task = plan.recipe, plan.task
    ours = _in_unit(recipe, result.test or {})
    tests = result.tests or ({recipe.weights: result.test} if result.test else {})
    is_known = ours is not None and recipe.printed is not None and not recipe.not_comparable
    return {
        "format": FORMAT,
        "status": "complete" if result.finished else "partial",
        "recipe": recipe.to_dict(),
        "seed": plan.seed,
        "printed": recipe.printed,
        "ours": ours,
        "weights": recipe.weights,
        "ours_best": _in_unit(recipe, tests.get("best", {})),
        "ours_last": _in_unit(recipe, tests.get("last", {})),
        "difference": ours - recipe.printed if is_known else None,  # type: ignore[operator] # both are there
        "validation": _of_best(recipe, result),
        "unit": recipe.unit,
        "steps": result.step,
        "steps_planned": recipe.steps_of_the_paper,
        "batch_size_planned": plan.batch_size_planned,
        "is_reduced": _is_reduced(recipe, result, plan.batch_size_planned),
        "started_from": None if plan.start is None else dict(plan.start.origin),
        "command": run.environment["command"],
        "protocol": protocol(task, recipe.weights, tests_both=True),
        "task": {
            "name": task.name,
            "options": dict(task.options),
            "data": task.data_source,
            "sizes": {name: len(task.split(name)) for name in (*SPLITS, *task.further_tests)},
        },
        "parameters": result.parameters,
        "steps_per_second": result.steps_per_second,
        "tokens_per_second": result.tokens_per_second,
        "utilisation": None if run.utilisation is None else asdict(run.utilisation),
        "peak_memory_bytes": run.peak_memory_bytes,
        "wall_seconds": result.seconds["total"],
        "seconds": result.seconds,
        "environment": run.environment,
        "result": result.to_dict(),
        "train_curve": _train_curve(plan),
    }


def _train_curve(plan: ReproducePlan) -> list[dict[str, Any]]:
    log = files_of(plan.out, ONLY_RUN) / "log.jsonl"
    return list(read_log(log)) if log.exists() else []


def load_results(paths: Iterable[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Every reproduction's results in files and, however deep, in folders; sorted by path.

    Of files with the same content, copies of one run, only the first counts.

    Raises:
        InputError: a path does not exist, a file named is not a reproduction's, or a
            reproduction's is not whole.
    """
    found: dict[Path, dict[str, Any]] = {}
    for path in (user_path("results", path) for path in paths):
        if path.is_dir():
            for inside in sorted(path.rglob("*.json")):
                result = _read(inside)
                if result is not None:
                    found[inside] = result
        elif path.is_file():
            result = _read(path)
            if result is None:
                raise InputError(f"{path}: expected results of `rifflemix reproduce` in JSON")
            found[path] = result
        else:
            raise InputError(f"no results at {path}: expected a file or a folder")
    different: list[tuple[Path, dict[str, Any]]] = []
    for path, result in sorted(found.items()):
        if not any(result == other for _, other in different):
            different.append((path, result))
    return different


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = read_json(path, _AGAIN)
    except InputError:
        if path.name == RESULTS_FILE:
            raise
        return None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    try:
        check_seal(value)
        check_results(value)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {_AGAIN}") from error
    return value


def _of_best(recipe: Recipe, result: TrainResult) -> float | None:
    """The recipe's metric, which need not be the one that chooses, at the best evaluation."""
    at_best = [entry for entry in result.validation if entry["step"] == result.best_step]
    return _in_unit(recipe, at_best[0]) if at_best else None


def _in_unit(recipe: Recipe, metrics: Mapping[str, float]) -> float | None:
    """The recipe's metric; some are measured on the test split only, or in one process only."""
    return recipe.shown(metrics[recipe.metric]) if recipe.metric in metrics else None


def _is_reduced(recipe: Recipe, result: TrainResult, batch_size_planned: int) -> bool:
    return (
        recipe.width != 1.0
        or result.step < recipe.steps_of_the_paper
        or recipe.train.batch_size < batch_size_planned
    )


def forget_memory(device: str) -> None:
    """On a GPU, measure `process_memory` from now on: earlier runs of the process do not count."""
    if device.startswith("cuda"):
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)


def process_memory(device: str) -> int:
    """The most memory so far, in bytes: of this process, on a GPU of its tensors there."""
    import resource  # which Windows does not have

    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
