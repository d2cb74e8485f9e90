"""Load the model and the validation data of a run."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import damaged_run, read_json, read_tensors
from rifflemix.json_values import check_json
from rifflemix.lab.analysis.finding import Subject, Trial
from rifflemix.lab.analysis.view import View
from rifflemix.lab.experiments import only_run
from rifflemix.lab.runs.fit import fit_model, pair_settings
from rifflemix.lab.runs.outside import code_by_name, outside_code
from rifflemix.lab.tasks import Task, list_tasks, load_task, task_card
from rifflemix.lab.train.run_folder import RunFolder
from rifflemix.mixers import list_mixers
from rifflemix.models import Model, list_models

_FROM_ITS_RUNS = "remove it and give the command that wrote it again, its runs are kept"


class _RunConfig(TypedDict):
    task: dict[str, Any]
    model: dict[str, Any]


class _ModelConfig(TypedDict):
    settings: dict[str, Any]


class _TaskConfig(TypedDict):
    name: str
    options: dict[str, Any]
    fingerprint: str


def run_subjects(path: Path, view: View) -> list[Subject]:
    """Load the models of a run, a comparison or a sweep.

    Raises:
        InputError: the folder does not exist, has no weights yet, or its data is missing or
            differs.
    """
    config = RunFolder(path).config
    if not config.is_file():
        raise bad_argument("target", "the folder of a run", f"{path}, which has no {config.name}")
    stored = read_json(config)
    if not isinstance(stored, dict):
        raise damaged_run(config, "it holds no settings")
    folder = only_run(path)
    if folder != path:
        return [_of_run(folder, read_json(RunFolder(folder).config), view, None)]
    if isinstance(stored.get("mixers"), list):
        return _of_comparison(path, stored, view)
    if isinstance(stored.get("grid"), dict):
        return _of_sweep(path, view)
    return [_of_run(path, stored, view, None)]


def _of_comparison(path: Path, stored: Mapping[str, Any], view: View) -> list[Subject]:
    """Load the mixers of a comparison.

    Each mixer has the weights of the first seed with weights.
    """
    subjects: list[Subject] = []
    task: Task | None = None
    chosen = _chosen_folders(path)
    for mixer in stored["mixers"]:
        plain = [f"{mixer}/seed{seed}" for seed in stored.get("seeds") or ()]
        folders = [path / folder for folder in chosen.get(str(mixer), plain)]
        ready = [folder for folder in folders if RunFolder(folder).best.is_file()]
        if not ready:
            continue
        config = read_json(RunFolder(ready[0]).config)
        subject = _of_run(ready[0], config, view, task)
        task = subject.task
        subjects.append(replace(subject, label=str(mixer)))
    if not subjects:
        raise bad_argument("target", "a comparison with a run that has weights", f"{path}")
    return subjects


class _Run(TypedDict):
    mixer: str
    folder: str


class _Results(TypedDict):
    runs: list[_Run]


def _chosen_folders(path: Path) -> dict[str, list[str]]:
    """Return mixer -> folders of its finished runs.

    After tuning, these are the runs with the chosen settings.
    """
    file = path / "results.json"
    if not file.is_file():
        return {}
    results = read_json(file, _FROM_ITS_RUNS)
    try:
        check_json(results, _Results, "results")
    except ValueError as error:
        raise damaged_run(file, str(error), _FROM_ITS_RUNS) from error
    found: dict[str, list[str]] = {}
    for run in results["runs"]:
        found.setdefault(run["mixer"], []).append(run["folder"])
    return found


class _Summary(TypedDict):
    mean: float
    std: float | None
    n: int


class _Point(TypedDict):
    settings: dict[str, Any]
    validation: _Summary | None
    test: _Summary | None


class _PointRun(TypedDict):
    settings: dict[str, Any]
    folder: str


class _Swept(TypedDict):
    metric: str
    unit: str
    points: list[_Point]
    runs: list[_PointRun]


def _of_sweep(path: Path, view: View) -> list[Subject]:
    """Load the points of a sweep with their results.

    Each point has the weights of the first seed with weights.
    """
    file = path / "results.json"
    if not file.is_file():
        raise bad_argument("target", "a sweep with a finished run", f"{path}, which has none yet")
    results = read_json(file, _FROM_ITS_RUNS)
    try:
        check_json(results, _Swept, "results")
    except ValueError as error:
        raise damaged_run(file, str(error), _FROM_ITS_RUNS) from error
    words = str(results["metric"]).replace("_", " ")
    metric = f"{words}, %" if results["unit"] == "%" else words
    # Some metrics exist only on the test split, for example for generated text.
    reached = [p for p in results["points"] if p["validation"] or p["test"]]
    split = "validation" if all(point["validation"] for point in reached) else "test"
    subjects: list[Subject] = []
    task: Task | None = None
    for point in reached:
        folders = [
            path / r["folder"] for r in results["runs"] if r["settings"] == point["settings"]
        ]
        ready = [folder for folder in folders if RunFolder(folder).best.is_file()]
        if not ready or not point[split]:
            continue
        subject = _of_run(ready[0], read_json(RunFolder(ready[0]).config), view, task)
        task = subject.task
        trial = Trial(
            point["settings"],
            metric,
            split,
            point[split]["mean"],
            point[split]["std"],
            point[split]["n"],
        )
        label = ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in point["settings"].items())
        subjects.append(replace(subject, label=label, trial=trial))
    if not subjects:
        raise bad_argument("target", "a sweep with a run that has weights", f"{path}")
    return subjects


def _of_run(path: Path, stored: Any, view: View, task: Task | None) -> Subject:
    """Load one run; `task` is its data if already loaded."""
    folder = RunFolder(path)
    try:
        check_json(stored, _RunConfig, "settings")
        check_json(stored["task"], _TaskConfig, "settings.task")
        check_json(stored["model"], _ModelConfig, "settings.model")
    except ValueError as error:
        raise damaged_run(folder.config, str(error)) from error
    if not folder.best.is_file():
        raise bad_argument(
            "target",
            "a run with weights",
            f"{path}, which has none yet; let it reach an evaluation",
        )
    if task is None:
        task = _task_of(stored["task"], view)
    settings = stored["model"]["settings"]
    model = _build(folder, settings, task)
    about = _load(model, folder.best)
    label = str(settings.get("mixer") or settings.get("recipe") or settings["model"])
    return Subject(
        label,
        model.eval(),
        _TaskBatches(task, view),
        task,
        {
            "folder": path.name,
            "model": settings["model"],
            "label": label,
            "step": about.get("step") if isinstance(about, dict) else None,
            "weights": hashlib.blake2b(folder.best.read_bytes(), digest_size=16).hexdigest(),
            "task": task.name,
            "split": "validation",
        },
        folder.kept_weights(),
    )


def _load(model: nn.Module, path: Path) -> Any:
    """Load a file's weights into a model and return its metadata."""
    weights, about = read_tensors(path)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise damaged_run(path, f"its weights do not fit the model: {reason}") from error
    return about


def _task_of(described: Mapping[str, Any], view: View) -> Task:
    task = view.task or _loaded(described, view)
    if task.fingerprint() != described["fingerprint"]:
        how = (
            "hand over" if view.task else "name its folder with --data-dir, or its file with --data"
        )
        raise InputError(
            f"task {described['name']}: expected the data that the run was trained on, got other "
            f"data; {how}{' that' if view.task else ''}"
        )
    return task


def _loaded(described: Mapping[str, Any], view: View) -> Task:
    """Load the task of a run from its data's current location."""
    name = described["name"]
    options = {k: v for k, v in described["options"].items() if v is not None}
    is_known = name in list_tasks()
    if not is_known or ("data" in task_card(name).options and "data" not in options):
        raise InputError(
            f"task {name}: the run was trained on data in memory, which no file names; call "
            "rifflemix.lab.analysis with View(task=...), or load the --plugin that registers it"
        )
    if view.data is not None:
        if "data" not in options:
            raise bad_argument("data", f"none with task {name}", str(view.data))
        options["data"] = str(view.data.absolute())
    elif "data" in options and not Path(view.data_dir or ".", str(options["data"])).exists():
        raise InputError(
            f"task {name}: the run keeps the name of its data alone, {options['data']}, and there "
            f"is none in {view.data_dir or 'the working directory'}; name it with --data"
        )
    return load_task(name, data_dir=view.data_dir, progress=view.progress, **options)


def _build(folder: RunFolder, settings: Mapping[str, Any], task: Task) -> Model:
    """Build the model of a run, without its weights."""
    name = settings.get("model")
    if not isinstance(name, str):
        raise bad_argument(
            "target", "a run of train, compare or reproduce", f"{folder.path}, which names no model"
        )
    if "model_settings" in settings:  # from `reproduce`
        own = dict(settings["model_settings"])
    else:
        known = ("mixer", "mixer_options", "dim", "num_layers", "num_heads")
        own = {key: settings[key] for key in known if key in settings}
        if task.num_sequences > 1:
            own |= pair_settings(name, task)
    if name not in list_models():
        raise InputError(
            f"the run's model {name} is not registered; name the file that registers it with "
            "--plugin"
        )
    _check_code(settings)
    return fit_model(name, task, own, 0)


def _check_code(settings: Mapping[str, Any]) -> None:
    """Raise InputError if code of plugins, mixer or model has changed."""
    mixer = settings.get("mixer")
    mixers = [mixer] if mixer in list_mixers() else []
    now = code_by_name(outside_code(mixers, [settings["model"]]))
    for name, code in code_by_name(settings.get("plugins") or {}).items():
        if now.get(name, code) != code:
            raise InputError(
                f"target: the run was trained with another {name}; give that one, as it was"
            )


@dataclass(frozen=True, eq=False)
class _TaskBatches(Sequence[Any]):
    """First samples of a task's validation split, collated one batch at a time.

    The test split is reserved for a single evaluation after training.
    """

    task: Task
    view: View

    def __len__(self) -> int:
        return -(-self._count() // self.view.batch_size)

    def __getitem__(self, number: Any) -> Any:
        first = range(len(self))[number] * self.view.batch_size
        last = min(first + self.view.batch_size, self._count())
        split = self.task.split("validation")
        return self.task.collate([split[index] for index in range(first, last)])

    def _count(self) -> int:
        return min(self.view.samples, len(self.task.split("validation")))


def over_training(subject: Subject) -> Iterator[tuple[int, Subject]]:
    """Yield the model at the start and each evaluation of its run.

    Nothing is yielded if the run did not keep weights.

    Yields:
        The step, and a subject with the weights of this step. All subjects share one copy of the
        model, so use each subject before you continue.

    Raises:
        InputError: weights are damaged, or belong to another model.
    """
    model = copy.deepcopy(subject.model) if subject.moments else subject.model
    for step, path in subject.moments.items():
        _load(model, path)
        yield step, replace(subject, model=model)
