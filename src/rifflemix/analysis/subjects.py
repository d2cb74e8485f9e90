"""From a run's folder, a preset or a module of the caller's own to what analyses look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import nn

from rifflemix.analysis.finding import Subject
from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.files import check_json, damaged_run, read_json, read_tensors
from rifflemix.models import Model, create_model, list_models, model_card, model_settings
from rifflemix.runs.fit import fit_model, pair_settings
from rifflemix.tasks import Task, load_task
from rifflemix.train.run_folder import RunFolder
from rifflemix.train.seeds import seed_everything

_MOST_SAMPLES = 4096


@dataclass(frozen=True)
class View:
    """What to look at a model with.

    Attributes:
        samples: of the validation split, or random ones of a preset.
        batch_size: samples in a batch: what is held at a time.
        seed: of a preset's weights and random inputs.
        mixers: of a preset that takes any; empty for its own.
        settings: of a preset.
        tokens: of a preset's random inputs, where it takes sequences of any length.
        data_dir: folder of the task's data files.
        progress: called with the progress of loading data.
    """

    samples: int = 32
    batch_size: int = 16
    seed: int = 0
    mixers: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    tokens: int = 64
    data_dir: Path | None = None
    progress: Callable[[str, int, int | None], None] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_integer("samples", self.samples, 1, _MOST_SAMPLES)
        check_integer("batch_size", self.batch_size, 1, _MOST_SAMPLES)
        check_integer("tokens", self.tokens, 1, 65_536)


def find_subjects(target: Any, view: View | None = None) -> list[Subject]:
    """The models behind a target.

    Args:
        target: the folder of a finished run of `train`, `compare` (each of its mixers with its
            first seed) or `reproduce`; or the name of a preset, which gets fresh weights.
        view: what to look at them with.

    Raises:
        InputError: neither of these, no weights yet, or data that is not at hand or another.
    """
    view = view or View()
    path = Path(target) if isinstance(target, str | Path) else None
    if path is not None and path.is_dir():
        return _of_folder(path, view)
    if isinstance(target, str) and target in list_models():
        return _of_preset(target, view)
    if isinstance(target, str) and not ("/" in target or "\\" in target):
        raise unknown_name("model or folder", target, list_models())
    raise bad_argument("target", "a run's folder or the name of a model", f"{target}, no folder")


def own_subject(
    model: nn.Module, batches: Sequence[Any], *, label: str = "", task: Task | None = None
) -> Subject:
    """A subject from a module of the caller's own and batches as `trace` takes them."""
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    if not len(batches):
        raise bad_argument("batches", "at least one", "none")
    return Subject(label or type(model).__name__, model, batches, task)


class _RunConfig(TypedDict):
    task: dict[str, Any]
    model: dict[str, Any]


class _ModelConfig(TypedDict):
    settings: dict[str, Any]


class _TaskConfig(TypedDict):
    name: str
    options: dict[str, Any]
    fingerprint: str


def _of_folder(path: Path, view: View) -> list[Subject]:
    config = RunFolder(path).config
    if not config.is_file():
        raise bad_argument("target", "the folder of a run", f"{path}, which has no {config.name}")
    stored = read_json(config)
    if not isinstance(stored, dict):
        raise damaged_run(config, "it holds no settings")
    if isinstance(stored.get("mixers"), list):
        return _of_comparison(path, stored, view)
    return [_of_run(path, stored, view, None)]


def _of_comparison(path: Path, stored: Mapping[str, Any], view: View) -> list[Subject]:
    """The mixers of a comparison, each with the first seed that has weights."""
    subjects: list[Subject] = []
    task: Task | None = None
    for mixer in stored["mixers"]:
        folders = [path / str(mixer) / f"seed{seed}" for seed in stored.get("seeds") or ()]
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


def _of_run(path: Path, stored: Any, view: View, task: Task | None) -> Subject:
    """One run; `task` is its data where it is loaded already."""
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
    weights, about = read_tensors(folder.best)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise damaged_run(folder.best, f"its weights do not fit the model: {reason}") from error
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
            "task": task.name,
            "split": "validation",
        },
    )


def _task_of(described: Mapping[str, Any], view: View) -> Task:
    options = {k: v for k, v in described["options"].items() if v is not None}
    task = load_task(described["name"], data_dir=view.data_dir, progress=view.progress, **options)
    if task.fingerprint() != described["fingerprint"]:
        raise InputError(
            f"task {described['name']}: expected the data that the run was trained on, got other "
            "data; name its folder with --data-dir"
        )
    return task


def _build(folder: RunFolder, settings: Mapping[str, Any], task: Task) -> Model:
    """The model that a run trained, before its weights."""
    name = settings.get("model")
    if not isinstance(name, str):
        raise bad_argument(
            "target", "a run of train, compare or reproduce", f"{folder.path}, which names no model"
        )
    if "model_settings" in settings:  # of `reproduce`
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
    return fit_model(name, task, own, 0)


@dataclass(frozen=True, eq=False)
class _TaskBatches(Sequence[Any]):
    """The first samples of a task's validation split, made to batches one at a time.

    The test split is for the one look after training.
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


def _of_preset(name: str, view: View) -> list[Subject]:
    """A preset with fresh weights and random inputs, once for each mixer that is asked for."""
    known = model_settings(name)
    own = dict(view.settings or {})
    for setting in own:
        if setting not in known:
            raise unknown_name(f"setting of model {name}", setting, known)
    if model_card(name).inputs.startswith(("graphs", "pairs")):
        raise _no_inputs(name)
    if view.mixers and "mixer" not in known:
        raise InputError(f"model {name} has no setting mixer; leave --mixers out")
    sequence = {"max_length": view.tokens, "in_channels": 16, "num_classes": 10}
    if not known.get("vocab_size"):
        own = {k: v for k, v in sequence.items() if known.get(k, 0) is None} | own
    if model_card(name).inputs.startswith("tokens or"):
        own = {"max_length": view.tokens, "in_channels": 16, "num_classes": 10} | own
    subjects = []
    for mixer in view.mixers or (None,):
        settings = own if mixer is None else {**own, "mixer": mixer}
        seed_everything(view.seed)
        model = create_model(name, **settings).eval()
        batches = _random_batches(model, name, view)
        subjects.append(
            Subject(
                mixer or name,
                model,
                batches,
                None,
                {"model": name, "label": mixer or name, "weights": "fresh", "seed": view.seed},
            )
        )
    return subjects


def _no_inputs(name: str) -> InputError:
    return InputError(
        f"model {name} takes {model_card(name).inputs}, for which there are no random inputs; name "
        "a run, or call rifflemix.analysis with batches of your own"
    )


def _random_batches(model: Model, name: str, view: View) -> list[Any]:
    """Normal images or vectors, or uniform token ids, of the sizes that a model was built for."""
    settings = {**model_settings(name), **model.settings}
    draws = torch.Generator().manual_seed(view.seed)
    inputs = model_card(name).inputs
    counts = [
        min(view.batch_size, view.samples - first)
        for first in range(0, view.samples, view.batch_size)
    ]
    length = min(view.tokens, int(settings.get("max_length") or view.tokens))
    batches: list[Any] = []
    shape: tuple[int, ...]
    for count in counts:
        if inputs == "images":
            size = settings["image_size"]
            height, width = (size, size) if isinstance(size, int) else size
            shape = (count, int(settings["in_channels"]), height, width)
            batches.append(torch.randn(shape, generator=draws))
        elif settings.get("in_channels"):
            shape = (count, length, int(settings["in_channels"]))
            batches.append(torch.randn(shape, generator=draws))
        elif inputs == "tokens" and settings.get("vocab_size"):
            shape = (count, length)
            batches.append(torch.randint(int(settings["vocab_size"]), shape, generator=draws))
        else:
            raise _no_inputs(name)
    return batches
