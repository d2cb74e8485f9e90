"""Checks of the results.json that a resumed comparison finds."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypedDict

from rifflemix.comparison.plan import ComparePlan
from rifflemix.files import check_json
from rifflemix.runs.environment import Environment


def check_stored(results: Any, plan: ComparePlan) -> None:
    """Raise ValueError unless runs, memory and environment are what this comparison writes."""
    check_results(results)
    planned = {(mixer, seed) for seed, mixer in plan.runs}
    entries = [*results["runs"], *results["failed_runs"]]
    counts = Counter((run["mixer"], run["seed"]) for run in entries)
    for (mixer, seed), count in counts.items():
        if (mixer, seed) not in planned or count > 1:
            raise ValueError(f"expected one run of each planned, got {count} of {mixer}, {seed}")
    for run in results["runs"]:
        _check_run(run, plan.task.metric)
    for mixer in results["mixers"]:
        if mixer["name"] not in plan.config.mixers:
            raise ValueError(f"expected the mixers of this comparison, got {mixer['name']!r}")


def check_results(results: Any) -> None:
    """Raise ValueError unless a JSON value has the entries of every comparison's results."""
    check_json(results, _Results, "results")


def _check_run(run: dict[str, Any], metric: str) -> None:
    name = f"run {run['mixer']}, {run['seed']}"
    for entry in (run["validation"], run["test"], *run["validation_curve"]):
        if metric not in entry:
            raise ValueError(f"{name}: expected {metric} of each evaluation, got none")
    if not all("step" in at for at in run["validation_curve"]):
        raise ValueError(f"{name}: expected the step of each evaluation, got none")


class _Loss(TypedDict):
    step: int
    loss: float


class _Run(TypedDict):
    mixer: str
    seed: int
    folder: str
    steps: int
    best_step: int
    parameters: int
    steps_per_second: float | None
    tokens_per_second: float | None
    wall_seconds: float
    seconds: dict[str, float]
    validation: dict[str, float]
    test: dict[str, float]
    validation_curve: list[dict[str, float]]
    train_curve: list[_Loss]


class _FailedRun(TypedDict):
    mixer: str
    seed: int
    folder: str
    error: str


class _Mixer(TypedDict):
    name: str
    peak_memory_bytes: int | None


class _Results(TypedDict):
    runs: list[_Run]
    failed_runs: list[_FailedRun]
    mixers: list[_Mixer]
    environment: Environment
