"""The record of results.json of a reproduction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.files import read_json, user_path
from rifflemix.json_values import ABSENT, check_seal, decode
from rifflemix.lab.experiments import Utilisation
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.runs.environment import Environment
from rifflemix.lab.runs.status import Protocol
from rifflemix.lab.train import TrainConfig, TrainResult
from rifflemix.lab.train.run_folder import Metrics

FORMAT = "rifflemix.reproduce/1"
RESULTS_FILE = "results.json"
_AGAIN = "remove it, or run its recipe again"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Weights that a run started from.

    Attributes:
        recipe: recipe of the other run, or name of the saved model.
        step: updates of the other run; 0 for a saved model.
        blake2b: checksum of the file.
    """

    recipe: str
    step: int
    blake2b: str

    def __str__(self) -> str:
        """Name the run and its step."""
        return f"{self.recipe} at step {self.step:,}" if self.step else self.recipe


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """Data of a run.

    Attributes:
        name, options: name and options of the task.
        data: origin of the data.
        sizes: split -> number of samples; None in files of earlier versions.
    """

    name: str
    options: dict[str, Any]
    data: str = ""
    sizes: dict[str, int] | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Content of results.json of a reproduction.

    Attributes:
        status: "complete", or "partial" after a stop.
        recipe, seed: recipe with the options of the command, and seed of the run.
        printed: reported number.
        ours: test value of the weights that the recipe chooses, in the unit of the reported
            number; None until the run is finished.
        weights: "best" or "last".
        ours_best: test value of the best evaluation's weights; None without a validation split.
        ours_last: test value of the last step's weights; None in files of earlier versions.
        difference: reproduced minus reported; None for a recipe that is `not_comparable`.
        validation: value of the best evaluation.
        unit: unit of the values.
        steps, steps_planned: updates of the run, and of the paper's run.
        batch_size_planned: samples per update of the recipe; None in files of earlier versions.
        is_reduced: whether the run is smaller than the recipe.
        started_from: weights that the run started from; None for new weights.
        command, protocol, task, environment: how, on what data and where the run was made.
        parameters, steps_per_second, tokens_per_second, utilisation, peak_memory_bytes,
            wall_seconds, seconds: measured values.
        result, train_curve: outcome of the training, and its log lines.
        sha256: checksum of the other entries.
    """

    format: str = FORMAT
    status: str = "complete"
    recipe: Recipe
    seed: int
    printed: float | None = None
    ours: float | None
    weights: str = "best"
    ours_best: float | None = None
    ours_last: float | None = None
    difference: float | None = None
    validation: float | None
    unit: str = "%"
    steps: int
    steps_planned: int
    batch_size_planned: int | None = None
    is_reduced: bool = False
    started_from: Origin | None = None
    command: str = ""
    protocol: Protocol | None = None
    task: TaskData
    parameters: int
    steps_per_second: float | None
    tokens_per_second: float | None = None
    utilisation: Utilisation | None
    peak_memory_bytes: int | None
    wall_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    environment: Environment | None = None
    result: TrainResult
    train_curve: list[Metrics] = field(default_factory=list)
    sha256: str | None = field(default=None, metadata=ABSENT)


def load_results(paths: Iterable[Path]) -> list[tuple[Path, Reproduction]]:
    """Read all reproductions in files and, at any depth, in folders; sorted by path.

    Of files with the same content, copies of one run, only the first counts.

    Raises:
        InputError: a path does not exist, a named file belongs to something else, or a file is
            damaged.
    """
    found: dict[Path, Reproduction] = {}
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
    different: list[tuple[Path, Reproduction]] = []
    for path, result in sorted(found.items(), key=lambda one: one[0]):
        if not any(result == other for _, other in different):
            different.append((path, result))
    return different


def _read(path: Path) -> Reproduction | None:
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
        return decode_reproduction(value)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {_AGAIN}") from error


def _check_known(values: Any, kind: type[Recipe] | type[TrainConfig]) -> None:
    """Raise ValueError if values have an entry that this version does not know."""
    names = {entry.name for entry in fields(kind)}
    unknown = sorted(values.keys() - names) if isinstance(values, dict) else ()
    if unknown:
        raise ValueError(
            f"expected a recipe with the fields of this version of rifflemix, got {unknown[0]!r}, "
            "as a newer version may write it"
        )


def decode_reproduction(value: dict[str, Any]) -> Reproduction:
    """Convert the parsed content of results.json to a record.

    Raises:
        ValueError: an entry is missing or has another type.
    """
    recipe = value.get("recipe")
    if isinstance(recipe, dict):
        _check_known(recipe, Recipe)
        _check_known(recipe.get("train"), TrainConfig)
    # Earlier versions tested only the best evaluation's weights.
    found = decode(Reproduction, {"ours_best": value.get("ours"), **value})
    sizes = found.task.sizes
    if sizes is not None and "test" not in sizes:
        raise ValueError("expected the size of the test split in task.sizes, got none")
    if found.steps_planned < 1:
        raise ValueError(f"expected steps_planned of at least 1, got {found.steps_planned}")
    if not all("step" in at for at in found.result.validation):
        raise ValueError("expected the step of each evaluation, got none")
    return found
