"""Helpers that write and read image folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.lab.tasks import Task, load_task

Write = Callable[..., np.ndarray]


def load(data: Path, name: str = "image_folder", **options: Any) -> Task:
    return load_task(name, data_dir=data, **{"size": 8, "layout": "image", **options})


def pixels_of(task: Task, split: str) -> set[tuple[bytes, int]]:
    """Return pixels and label of each image of a split."""
    found = set()
    for index in range(len(task.split(split))):
        image = task.split(split).images[index]
        found.add((image.tobytes(), task.split(split)[index][1]))
    return found
