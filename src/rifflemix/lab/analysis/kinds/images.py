"""Samples in readable form: images of image tasks, characters of byte tasks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.analysis.finding import Subject
from rifflemix.lab.tasks import card_of
from rifflemix.lab.tasks.text.next_token import NextTokenTask


def inputs_of(batch: Any) -> Tensor:
    """Return the first tensor of a batch.

    The batch has any form that `trace` accepts.
    """
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, tuple | list):
        return inputs_of(batch[0])
    return inputs_of(batch["inputs"] if "inputs" in batch else next(iter(batch.values())))


def has_images(subject: Subject) -> bool:
    """Check whether the samples of a subject are images.

    The inputs are whole images or tokens.
    """
    inputs = inputs_of(subject.batches[0])
    if inputs.dim() == 4:
        return True
    return subject.task is not None and bool(card_of(subject.task).is_image)


def check_images(subject: Subject, what: str) -> None:
    """Raise InputError if the samples are not images."""
    if not has_images(subject):
        got = "other data" if subject.task is None else f"task {subject.task.name}"
        raise InputError(f"{subject.label}: expected images for {what}, got {got}")


def image_of(subject: Subject, sample: int) -> NDArray[np.float64]:
    """Return a sample of the first batch, scaled from 0 to 1.

    The shape is (height, width) or (height, width, 3).
    """
    x = inputs_of(subject.batches[0])[sample].detach().cpu().double()
    if x.dim() == 3:  # a whole image, channels first
        shown = x.permute(1, 2, 0) if x.shape[0] == 3 else x.mean(0)
    else:
        tokens = x if x.dim() == 1 else x.mean(-1)
        side = math.isqrt(len(tokens))
        shown = tokens[: side * side].view(side, side)
    low, high = shown.min(), shown.max()
    scaled: NDArray[np.float64] = ((shown - low) / (high - low).clamp_min(1e-12)).numpy()
    return scaled


def as_grid(values: Tensor) -> Tensor:
    """Reshape (..., N) values of tokens to (..., S, S).

    A leading class token is dropped.

    Raises:
        InputError: N is neither S^2 nor S^2 + 1.
    """
    count = values.shape[-1]
    for spare in (0, 1):
        side = math.isqrt(count - spare)
        if side * side == count - spare and side:
            grid: Tensor = values[..., spare:].unflatten(-1, (side, side))
            return grid
    raise InputError(f"expected the tokens of a square image, got {count} of them")


def text_of(subject: Subject, sample: int, most: int) -> list[str] | None:
    """Return the first characters or ids of a sample of ids.

    Returns None for other inputs.
    """
    x = inputs_of(subject.batches[0])[sample]
    if x.is_floating_point() or x.dim() != 1:
        return None
    ids = x[:most].tolist()
    if subject.task is None or subject.task.options.get("level") != "byte":
        return [str(i) for i in ids]
    zero = 0 if isinstance(subject.task, NextTokenTask) else 1  # other byte tasks use 0 for padding
    return [chr(i - zero) if 32 <= i - zero < 127 else " " for i in ids]
