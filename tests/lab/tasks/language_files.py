"""Small texts in the files of the Penn Treebank task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.text.next_token import NextTokenTask

TRAIN = "the cat sat\nthe dog sat on the cat\n" * 30
OTHER = "the café\nsat\n"


def load(folder: Path, **options: Any) -> NextTokenTask:
    task = load_task("ptb", data_dir=folder, **options)
    assert isinstance(task, NextTokenTask)
    return task
