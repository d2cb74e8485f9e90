"""Find the models and data of a target: a run's folder, a preset or a module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.files import user_path
from rifflemix.lab.analysis.finding import Subject
from rifflemix.lab.analysis.runs import run_subjects
from rifflemix.lab.analysis.view import View
from rifflemix.lab.tasks import Task
from rifflemix.lab.train.seeds import seed_everything
from rifflemix.models import Model, create_model, list_models, model_card, model_settings


def find_subjects(target: Any, view: View | None = None) -> list[Subject]:
    """Load or create the models of a target.

    Args:
        target: folder of a finished run of `train`, `compare` (each mixer with its first seed),
            `reproduce` or `sweep` (each point). Or name of a preset; it gets new weights.
        view: samples and settings for the analysis.

    Raises:
        InputError: an unknown target, a run without weights, or missing or different data.
    """
    view = view or View()
    path = user_path("target", target) if isinstance(target, str | Path) else None
    if path is not None and path.is_dir():
        for name, value in _of_presets_alone(view).items():
            raise bad_argument(name, "none with a run, which has its own", value)
        return run_subjects(path, view)
    if view.task is not None or view.data is not None:
        raise bad_argument("target", "a run's folder beside data of your own", str(target))
    if isinstance(target, str) and target in list_models():
        return _of_preset(target, view)
    if isinstance(target, str) and not ("/" in target or "\\" in target):
        raise unknown_name("model or folder", target, list_models())
    raise bad_argument("target", "a run's folder or the name of a model", f"{target}, no folder")


def _of_presets_alone(view: View) -> dict[str, Any]:
    """Return options of a view that apply only to presets.

    Options with default values are left out.
    """
    own = {"mixers": view.mixers, "settings": view.settings or {}, "tokens": view.tokens}
    unset = {"mixers": (), "settings": {}, "tokens": View.tokens}
    return {name: value for name, value in own.items() if value != unset[name]}


def own_subject(
    model: nn.Module, batches: Sequence[Any], *, label: str = "", task: Task | None = None
) -> Subject:
    """Create a subject from a module and batches for `trace`."""
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    if not isinstance(batches, Sequence) or isinstance(batches, str):
        raise bad_argument(
            "batches",
            "a list of batches, which analyses go through more than once",
            type(batches).__name__,
        )
    if not batches:
        raise bad_argument("batches", "at least one", "none")
    return Subject(label or type(model).__name__, model, batches, task)


def _of_preset(name: str, view: View) -> list[Subject]:
    """Create a preset with new weights and random inputs.

    There is one subject per requested mixer.
    """
    known = model_settings(name)
    own = dict(view.settings or {})
    for setting in own:
        if setting not in known:
            raise unknown_name(f"setting of model {name}", setting, known)
    if model_card(name).inputs.startswith(("graphs", "pairs", "tokens and")):
        raise _no_inputs(name)
    if view.mixers and "mixer" not in known:
        raise InputError(f"model {name} has no setting mixer; leave --mixers out")
    sequence = {"max_length": view.tokens, "in_channels": 16, "num_classes": 10}
    if own.get("vocab_size"):
        del sequence["in_channels"]  # ids replace vectors
    if model_card(name).inputs.startswith("tokens or"):
        own = sequence | own
    elif not known.get("vocab_size"):
        own = {k: v for k, v in sequence.items() if known.get(k, 0) is None} | own
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
        "a run, or call rifflemix.lab.analysis with batches of your own"
    )


def _random_batches(model: Model, name: str, view: View) -> list[Any]:
    """Make random inputs for a model.

    Images and vectors are normal, token ids are uniform. Sizes fit the model.
    """
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
        elif inputs.startswith("tokens") and settings.get("vocab_size"):
            shape = (count, length)
            batches.append(torch.randint(int(settings["vocab_size"]), shape, generator=draws))
        else:
            raise _no_inputs(name)
    return batches
