"""Checks of a results.json that `Comparison.load` reads."""

from __future__ import annotations

from typing import Any, TypedDict

from rifflemix.json_values import check_json, check_seal
from rifflemix.lab.runs.environment import Environment


def check_results(results: Any) -> None:
    """Raise ValueError unless a JSON value has the entries of every comparison's results."""
    check_json(results, _Results, "results")
    if "tuning" in results:
        check_json(results, _TunedResults, "results")


def check_seals(results: dict[str, Any]) -> None:
    """Raise ValueError where results, or a run of theirs, are not as they were written."""
    trials = results.get("tuning", {}).get("trials", [])
    for entry in (*results["runs"], *trials, results):
        check_seal(entry)


class _Loss(TypedDict):
    step: int
    loss: float


class _Trained(TypedDict):
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
    validation_curve: list[dict[str, float]]
    train_curve: list[_Loss]


class _Run(_Trained):
    test: dict[str, float]


class _Trial(_Trained):
    settings: dict[str, Any]


class _FailedRun(TypedDict):
    mixer: str
    seed: int
    folder: str
    error: str


class _FailedTrial(_FailedRun):
    settings: dict[str, Any]
    wall_seconds: float


class _Tuning(TypedDict):
    trials: list[_Trial]
    failed_trials: list[_FailedTrial]


class _Mixer(TypedDict):
    name: str
    peak_memory_bytes: int | None


class _Results(TypedDict):
    runs: list[_Run]
    failed_runs: list[_FailedRun]
    mixers: list[_Mixer]
    environment: Environment


class _TunedResults(TypedDict):
    tuning: _Tuning
