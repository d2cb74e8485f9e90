"""Checks of the entries of results.json that a report uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypedDict

from rifflemix.json_values import check_json
from rifflemix.lab.recipes import Recipe


def check_results(value: Any) -> None:
    """Check every entry that a report uses.

    Raises:
        ValueError: one is missing or of another kind.
    """
    check_json(value, _Results, "results")
    for name, kind in _LATER_ENTRIES.items():
        if name in value:
            check_json(value[name], kind, name)
    if "sizes" in value["task"]:
        check_json(value["task"]["sizes"], dict[str, int], "task.sizes")
        if "test" not in value["task"]["sizes"]:
            raise ValueError("expected the size of the test split in task.sizes, got none")
    if value["steps_planned"] < 1:
        raise ValueError(f"expected steps_planned of at least 1, got {value['steps_planned']}")
    if not all("step" in at for at in value["result"]["validation"]):
        raise ValueError("expected the step of each evaluation, got none")
    _check_recipe(value["recipe"])


def _check_recipe(values: Mapping[str, Any]) -> None:
    unknown = sorted(values.keys() - {field.name for field in fields(Recipe)})
    if unknown:
        raise ValueError(
            f"expected a recipe with the fields that this version of rifflemix knows, got one with "
            f"{unknown[0]!r}, as a newer version may write it"
        )
    check_json(values, _Row, "recipe")
    try:
        Recipe.from_dict(values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected a recipe as this version of rifflemix writes it, got one where {error}"
        ) from error


class _Share(TypedDict):
    share: float


class _Result(TypedDict):
    validation: list[dict[str, float]]


class _Task(TypedDict):
    name: str
    options: dict[str, Any]


class _Origin(TypedDict):
    recipe: str
    step: int
    blake2b: str


class _Row(TypedDict):
    name: str
    paper: str
    table: str
    row: str
    column: str
    metric: str
    unit: str
    printed: float | None
    width: float
    notes: list[str]
    train: dict[str, Any]


class _Results(TypedDict):
    recipe: dict[str, Any]
    task: _Task
    seed: int
    ours: float | None
    validation: float | None
    steps: int
    steps_planned: int
    parameters: int
    steps_per_second: float | None
    utilisation: _Share | None
    peak_memory_bytes: int | None
    result: _Result


# Entries that files of earlier versions do not have.
_LATER_ENTRIES = {
    "started_from": _Origin | None,
    "batch_size_planned": int,
    "ours_best": float | None,
    "ours_last": float | None,
}
