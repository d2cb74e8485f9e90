"""Requests for tasks, their builders, and checks of options."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import Progress, Task
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus


@dataclass(frozen=True)
class Request:
    """Request for the data of a task, with checked and complete options.

    Attributes:
        data_dir: Folder of the data files, never written to. None if the caller gave no folder.
        seed: Seed of generated data.
        options: Every option of the card.
        given: Names of the options that the caller set, including "seed" if set.
        progress: Callback that reports progress.
        max_samples: Maximum number of samples per split. None for all samples.
        must_keep: True if the prepared data must be stored in the cache.
    """

    data_dir: Path | None
    seed: int
    options: Mapping[str, Any]
    given: frozenset[str]
    progress: Progress
    max_samples: int | None = None
    must_keep: bool = False

    def count(self, split: str) -> int:
        """Return the requested size of a split, from num_train and similar options."""
        count = check_integer(self.options, f"num_{split}", 1)
        return count if self.max_samples is None else min(count, self.max_samples)


class TaskBuilder(Protocol):
    """Interface of a task: card, loading and data status."""

    @property
    def card(self) -> TaskCard:
        """Card of the task."""
        ...

    def load(self, request: Request) -> Task:
        """Load the task.

        Decode or generate its data unless the cache contains the result.
        """
        ...

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Report whether the data is available, without decoding it."""
        ...

    def prepared(self, request: Request) -> Path | None:
        """Return the cache folder of the data, or None without a cache."""
        ...


def check_integer(options: Mapping[str, Any], name: str, low: int, high: int | None = None) -> int:
    """Return option `name`.

    Raise unless it is an integer from `low` to `high`.
    """
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_argument(name, "an integer", repr(value))
    if value < low or (high is not None and value > high):
        expected = f"at least {low}" if high is None else f"{low} to {high}"
        raise bad_argument(name, expected, value)
    return value


def check_number(options: Mapping[str, Any], name: str) -> float:
    """Return option `name`. Raise unless it is a finite number above 0."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_argument(name, "a number", repr(value))
    if not 0 < value < math.inf:
        raise bad_argument(name, "a number above 0", value)
    return float(value)


def check_one_of(options: Mapping[str, Any], name: str, choices: Sequence[int]) -> int:
    """Return option `name`. Raise unless it is an integer from `choices`."""
    value = check_integer(options, name, 0)
    if value not in choices:
        raise bad_argument(name, f"one of {', '.join(map(str, choices))}", value)
    return value


def content_order(rows: Sequence[bytes], salt: str) -> NDArray[np.int64]:
    """Return a fixed shuffle that depends only on row contents.

    The original order, the file and the library do not matter. Equal rows stay adjacent.
    """
    key = salt.encode()
    digests = [hashlib.blake2b(row, digest_size=16, key=key).digest() for row in rows]
    return np.array(sorted(range(len(rows)), key=digests.__getitem__), dtype=np.int64)
