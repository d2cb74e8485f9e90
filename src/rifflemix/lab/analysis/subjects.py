"""Find the models and data of a target: a run's folder, a preset or a module."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.files import damaged_run, read_json, user_path
from rifflemix.json_values import decode
from rifflemix.lab.analysis.finding import Subject, SweepPoint, View
from rifflemix.lab.analysis.presets import preset_subjects
from rifflemix.lab.experiments import only_run
from rifflemix.lab.runs.folder import (
    NAME_DATA,
    StoredRun,
    build_stored,
    check_same_data,
    load_stored_task,
    load_weights,
    read_run,
)
from rifflemix.lab.runs.status import Summary
from rifflemix.lab.tasks import Task
from rifflemix.lab.train.run_folder import RunFolder
from rifflemix.models import list_models

T = TypeVar("T")
_FROM_ITS_RUNS = "remove it and give the command that wrote it again, its runs are kept"


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
        return [_of_run(folder, view, None)]
    if isinstance(stored.get("mixers"), list):
        return _of_comparison(path, stored, view)
    if isinstance(stored.get("grid"), dict):
        return _of_sweep(path, view)
    return [_of_run(path, view, None)]


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
        subject = _of_run(ready[0], view, task)
        task = subject.task
        subjects.append(replace(subject, label=str(mixer)))
    if not subjects:
        raise bad_argument("target", "a comparison with a run that has weights", f"{path}")
    return subjects


@dataclass(frozen=True)
class _Run:
    mixer: str
    folder: str


@dataclass(frozen=True)
class _Results:
    runs: list[_Run]


def _chosen_folders(path: Path) -> dict[str, list[str]]:
    """Return mixer -> folders of its finished runs.

    After tuning, these are the runs with the chosen settings.
    """
    file = path / "results.json"
    if not file.is_file():
        return {}
    results = _read(file, _Results)
    found: dict[str, list[str]] = {}
    for run in results.runs:
        found.setdefault(run.mixer, []).append(run.folder)
    return found


def _read(file: Path, kind: type[T]) -> T:
    """Read the entries of results.json that an analysis needs."""
    try:
        return decode(kind, read_json(file, _FROM_ITS_RUNS))
    except ValueError as error:
        raise damaged_run(file, str(error), _FROM_ITS_RUNS) from error


@dataclass(frozen=True)
class _Point:
    settings: dict[str, Any]
    validation: Summary | None
    test: Summary | None


@dataclass(frozen=True)
class _PointRun:
    settings: dict[str, Any]
    folder: str


@dataclass(frozen=True)
class _Swept:
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
    results = _read(file, _Swept)
    words = results.metric.replace("_", " ")
    metric = f"{words}, %" if results.unit == "%" else words
    # Some metrics exist only on the test split, for example for generated text.
    reached = [p for p in results.points if p.validation or p.test]
    split = "validation" if all(point.validation for point in reached) else "test"
    subjects: list[Subject] = []
    task: Task | None = None
    for point in reached:
        folders = [path / r.folder for r in results.runs if r.settings == point.settings]
        ready = [folder for folder in folders if RunFolder(folder).best.is_file()]
        score = point.validation if split == "validation" else point.test
        if not ready or score is None:
            continue
        subject = _of_run(ready[0], view, task)
        task = subject.task
        found = SweepPoint(point.settings, metric, split, score.mean, score.std, score.n)
        label = ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in point.settings.items())
        subjects.append(replace(subject, label=label, sweep_point=found))
    if not subjects:
        raise bad_argument("target", "a sweep with a run that has weights", f"{path}")
    return subjects


def _of_run(path: Path, view: View, task: Task | None) -> Subject:
    """Load one run; `task` is its data if already loaded."""
    run = read_run(path)
    best = run.files.best
    if not best.is_file():
        raise bad_argument(
            "target",
            "a run with weights",
            f"{path}, which has none yet; let it reach an evaluation",
        )
    if task is None:
        task = _task_of(run, view)
    model = build_stored(run, task, task.output, "target")
    about = load_weights(model, best)
    return Subject(
        run.label,
        model.eval(),
        _TaskBatches(task, view),
        task,
        {
            "folder": path.name,
            "model": run.settings["model"],
            "label": run.label,
            "step": about.get("step") if isinstance(about, dict) else None,
            "weights": hashlib.blake2b(best.read_bytes(), digest_size=16).hexdigest(),
            "task": task.name,
            "split": "validation",
        },
        run.files.kept_weights(),
    )


def _task_of(run: StoredRun, view: View) -> Task:
    task = view.task or load_stored_task(
        run, data_dir=view.data_dir, data=view.data, progress=view.progress
    )
    check_same_data(run, task, "pass that task" if view.task else NAME_DATA)
    return task


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

    Args:
        subject: model of a run with `keep_weights`.

    Yields:
        The step, and a subject with the weights of this step. All subjects share one copy of the
        model, so use each subject before you continue.

    Raises:
        InputError: weights are damaged, or belong to another model.

    Example:
        >>> import rifflemix as rm
        >>> run = rm.compare("digits", ["csp"], max_steps=4, out="runs/digits", keep_weights=True)
        >>> (subject,) = rm.analysis.find_subjects("runs/digits")
        >>> [step for step, _ in rm.analysis.over_training(subject)]
        [0, 1, 2, 3, 4]
    """
    model = copy.deepcopy(subject.model) if subject.moments else subject.model
    for step, path in subject.moments.items():
        load_weights(model, path)
        yield step, replace(subject, model=model)


def find_subjects(target: Any, view: View | None = None) -> list[Subject]:
    """Load or create the models of a target.

    Args:
        target: folder of a finished run of `train`, `compare` (each mixer with its first seed),
            `reproduce` or `sweep` (each point). Or name of a preset; it gets new weights.
        view: samples and settings for the analysis.

    Returns:
        The models with their batches, one per run or preset.

    Raises:
        InputError: an unknown target, a run without weights, or missing or different data.

    Example:
        >>> import rifflemix as rm
        >>> subjects = rm.analysis.find_subjects("encoder", rm.analysis.View(samples=1))
        >>> [subject.label for subject in subjects]
        ['encoder']
    """
    view = view or View()
    path = user_path("target", target) if isinstance(target, str | Path) else None
    if path is not None and path.is_dir():
        for name in ("mixers", "settings", "tokens"):  # options of presets
            value = getattr(view, name)
            if value not in (getattr(View, name), {}):
                raise bad_argument(name, "none with a run, because the run has its own", value)
        return run_subjects(path, view)
    if view.task is not None or view.data is not None:
        raise bad_argument("target", "a run's folder with user data", str(target))
    if isinstance(target, str) and target in list_models():
        return preset_subjects(target, view)
    if isinstance(target, str) and not ("/" in target or "\\" in target):
        raise unknown_name("model or folder", target, list_models())
    raise bad_argument("target", "a run's folder or the name of a model", f"{target}, no folder")


def own_subject(
    model: nn.Module, batches: Sequence[Any], *, label: str = "", task: Task | None = None
) -> Subject:
    """Create a subject from a module and batches for `trace`.

    Args:
        model: module with mixers.
        batches: inputs of the module, at least one.
        label: name in tables and figures.
        task: task of the batches, for analyses that need one.

    Returns:
        The subject.

    Raises:
        InputError: `model` is no module, or `batches` is no list or is empty.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("csp", 64)
        >>> subject = rm.analysis.own_subject(mixer, [torch.randn(2, 16, 64)], label="my mixer")
        >>> subject.label
        'my mixer'
    """
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    if not isinstance(batches, Sequence) or isinstance(batches, str):
        raise bad_argument(
            "batches",
            "a list of batches (analyses iterate over them more than once)",
            type(batches).__name__,
        )
    if not batches:
        raise bad_argument("batches", "at least one", "none")
    return Subject(label or type(model).__name__, model, batches, task)
