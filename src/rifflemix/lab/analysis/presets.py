"""Models with random weights and random inputs for analyses."""

from __future__ import annotations

from typing import Any

import torch

from rifflemix.errors import InputError, unknown_name
from rifflemix.lab.analysis.finding import Subject, View
from rifflemix.lab.train.seeds import seed_everything
from rifflemix.models import Model, create_model, model_card, model_settings


def preset_subjects(name: str, view: View) -> list[Subject]:
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
