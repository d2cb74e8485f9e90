"""Folders of runs: checks before writing, and the settings, model and weights on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import damaged_run, read_json, read_tensors
from rifflemix.json_values import check_json
from rifflemix.lab.runs.build_for_task import (
    code_by_name,
    fit_model,
    output_settings,
    outside_code,
    pair_settings,
)
from rifflemix.lab.tasks import Progress, Shapes, Task, list_tasks, load_task, task_card
from rifflemix.lab.train.run_folder import RunFolder
from rifflemix.mixers import list_mixers
from rifflemix.models import Model, list_models

_LONGEST_NAME = 100  # longest path that a run creates inside its folder


def check_folder(out: Path) -> None:
    """Raise InputError unless `out` is a writable folder or can be created.

    The check creates no files.
    """
    try:
        str(out).encode()
        check_new_path(out)
        if out.exists() and not out.is_dir():
            raise bad_argument("out", "a folder", f"the file {out}")
        if out.is_dir():
            next(out.iterdir(), None)  # the command needs to list the folder
        nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except UnicodeEncodeError:
        raise bad_argument("out", "a folder with a name in UTF-8", ascii(str(out))) from None
    except OSError as error:
        raise bad_argument(
            "out", "a folder that can be written", f"{str(out)[:200]} ({error.strerror})"
        ) from None


def check_new_path(path: Path) -> None:
    """Raise OSError if the file system does not support the path."""
    nearest = Path(path.absolute().anchor)
    for part in path.absolute().parts[1:]:
        if _exists(nearest / part):
            nearest /= part
    _exists(path / ("x" * _LONGEST_NAME))


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class _ModelConfig(TypedDict):
    settings: dict[str, Any]


class _TaskConfig(TypedDict):
    name: str
    options: dict[str, Any]
    fingerprint: str


class _RunConfig(TypedDict):
    task: _TaskConfig
    model: _ModelConfig


@dataclass(frozen=True)
class StoredRun:
    """Settings of a run.

    Attributes:
        files: files of the run.
        task: name of the task.
        task_options: resolved options of the task.
        fingerprint: hash of the data.
        settings: settings of the model.
        selects_last: True if the run selects the weights of the last update.
    """

    files: RunFolder
    task: str
    task_options: Mapping[str, Any]
    fingerprint: str
    settings: Mapping[str, Any]
    selects_last: bool

    @property
    def label(self) -> str:
        """Name of the mixer, the recipe or the model."""
        names = (self.settings.get(key) for key in ("mixer", "recipe", "model"))
        return str(next(filter(None, names), "model"))


def read_run(path: Path) -> StoredRun:
    """Read the settings of a run.

    Raises:
        InputError: the settings are missing or damaged.
    """
    files = RunFolder(path)
    stored = read_json(files.config)
    try:
        check_json(stored, _RunConfig, "settings")
    except ValueError as error:
        raise damaged_run(files.config, str(error)) from error
    task = stored["task"]
    return StoredRun(
        files,
        task["name"],
        task["options"],
        task["fingerprint"],
        stored["model"]["settings"],
        stored.get("weights") == "last",
    )


def is_run(path: Path) -> bool:
    """Check whether a folder has the settings of one run."""
    config = RunFolder(path).config
    stored = read_json(config) if config.is_file() else None
    # A comparison has the names of its task and model instead.
    return isinstance(stored, dict) and all(
        isinstance(stored.get(key), dict) for key in ("task", "model")
    )


def build_stored(run: StoredRun, task: Task | Shapes, output: str, name: str) -> Model:
    """Build the model of a run, without its weights.

    Args:
        run: settings of the run.
        task: the task, or the shapes of its samples.
        output: format of the model output, see `Kind`.
        name: name of the argument that chose the run, for messages.

    Raises:
        InputError: the run names no model, the model is not registered, or the code of a plugin
            has changed.
    """
    settings, model = run.settings, run.settings.get("model")
    if not isinstance(model, str):
        raise bad_argument(
            name, "a run of train, compare or reproduce", f"{run.files.path} without a model"
        )
    if "model_settings" in settings:  # from `reproduce`
        own = dict(settings["model_settings"])
    else:
        known = ("mixer", "mixer_options", "dim", "num_layers", "num_heads")
        own = {key: settings[key] for key in known if key in settings}
        own |= settings.get("model_options", {})
        if task.num_sequences > 1:
            own |= pair_settings(model, run.task, task.num_sequences)
        if model in list_models():
            own |= output_settings(model, output)
    if model not in list_models():
        raise InputError(
            f"the run's model {model} is not registered; name the file that registers it with "
            "--plugin"
        )
    _check_code(settings, name)
    return fit_model(model, task, own, 0)


def _check_code(settings: Mapping[str, Any], name: str) -> None:
    """Raise InputError if code of plugins, mixer or model has changed."""
    mixer = settings.get("mixer")
    mixers = [mixer] if mixer in list_mixers() else []
    now = code_by_name(outside_code(mixers, [settings["model"]]))
    for part, code in code_by_name(settings.get("plugins") or {}).items():
        if now.get(part, code) != code:
            raise InputError(
                f"{name}: the run was trained with another {part}; give that one, as it was"
            )


def load_weights(model: nn.Module, path: Path) -> Any:
    """Load a file's weights into a model and return its metadata.

    Raises:
        InputError: the file is damaged, or the weights do not fit.
    """
    weights, about = read_tensors(path)
    fit_weights(model, path, weights)
    return about


def fit_weights(model: nn.Module, path: Path, weights: Mapping[str, Tensor]) -> None:
    """Copy the weights of a file into a model, or raise if they do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise InputError(
            f"{path}: its weights do not fit the model ({reason.removesuffix('.')})"
        ) from error


def load_stored_task(
    run: StoredRun,
    *,
    data_dir: Path | None = None,
    data: Path | None = None,
    progress: Progress | None = None,
) -> Task:
    """Load the task of a run from the current location of its data.

    Args:
        run: settings of the run.
        data_dir: folder of data files.
        data: file or folder of user data, if it was moved.
        progress: called with the progress of loading data.

    Raises:
        InputError: the data is missing, or the task is not registered.
    """
    name = run.task
    options = {k: v for k, v in run.task_options.items() if v is not None}
    is_known = name in list_tasks()
    if not is_known or ("data" in task_card(name).options and "data" not in options):
        raise InputError(
            f"task {name}: the run was trained on data in memory, which no file names; call "
            "rifflemix.lab.analysis with View(task=...), or load the --plugin that registers it"
        )
    if data is not None:
        if "data" not in options:
            raise bad_argument("data", f"none with task {name}", str(data))
        options["data"] = str(data.absolute())
    elif "data" in options and not Path(data_dir or ".", str(options["data"])).exists():
        raise InputError(
            f"task {name}: the run keeps the name of its data alone, {options['data']}, and there "
            f"is none in {data_dir or 'the working directory'}; name it with --data"
        )
    return load_task(name, data_dir=data_dir, progress=progress, **options)


NAME_DATA = "name its folder with --data-dir, or its file with --data"


def check_same_data(run: StoredRun, task: Task, advice: str = NAME_DATA) -> None:
    """Raise InputError unless a task has the data that a run was trained on."""
    if task.fingerprint() != run.fingerprint:
        raise InputError(
            f"task {run.task}: expected the data that the run was trained on, got other data; "
            f"{advice}"
        )
