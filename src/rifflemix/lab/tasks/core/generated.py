"""Tasks that need no files: built-in or generated data, or a function.

Random numbers are counter-based, with an independent stream per sample.

Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014): SplitMix64.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.core.builder import Request
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus


class GeneratedTask:
    """Task that needs no files, so it is always available.

    Attributes:
        card: Card of the task.
        at_hand: Where the data comes from, such as "generated on demand". The status shows it.
        takes_seed: True if the data depends on a seed. Then `seed` is an option of the task.
    """

    card: TaskCard
    at_hand = "generated on demand"
    takes_seed = True

    def status(self, data_dir: Path | None) -> TaskStatus:
        return TaskStatus(self.card.name, True, self.at_hand)

    def prepared(self, request: Request) -> Path | None:
        return None

    def status_of_kept(self, folder: Path) -> TaskStatus:
        """Report the task as available and list its generated data."""
        kept = sorted(path.name for path in folder.glob("generated-*"))
        detail = f"kept: {', '.join(kept)}" if kept else "none kept yet"
        return TaskStatus(self.card.name, True, f"{self.at_hand}, {detail}")


def refuse_generator_options(request: Request, names: Iterable[str]) -> None:
    """Raise if a request combines files with a seed or generator options."""
    for name in ("seed", *names):
        if name in request.given:
            raise bad_argument(
                name,
                f"to be left out with the files in {request.data_dir}",
                request.options.get(name, request.seed),
                "it is an option of the generator",
            )


class FunctionTask(GeneratedTask):
    """Task that calls a function.

    The name and docstring of the function are the task name and description. Its arguments are the
    options and all need defaults. An argument `seed` is the seed of generated data. An argument
    `data_dir` is not an option: it receives the data folder if the caller gives one.

    Args:
        function: Function that returns a `Task`.
        card_of: Function that returns the card of a task, or None if the task has no card.
    """

    at_hand = "made by a function"
    takes_seed = False  # True if the function has an argument `seed`

    def __init__(
        self, function: Callable[..., Any], card_of: Callable[[Task], TaskCard | None]
    ) -> None:
        self.function, self._card_of = function, card_of
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__
        name = function.__name__
        parameters = inspect.signature(function).parameters.values()
        for parameter in parameters:
            is_named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if not is_named or parameter.default is parameter.empty:
                raise bad_argument(f"function {name}", "arguments with defaults", parameter.name)
        self._takes_folder = any(p.name == "data_dir" for p in parameters)
        text = inspect.getdoc(function) or f"What {name} returns."
        self.card = TaskCard(
            name=name,
            title=name.replace("_", " ").capitalize(),
            source=f"function {name} of {function.__module__}",
            licence="none stated",
            description=" ".join(text.split()),
            needs_data=False,
            options={p.name: p.default for p in parameters if p.name != "data_dir"},
        )

    def load(self, request: Request) -> Task:
        """Call the function. The task gets the function's name and options.

        Raises:
            InputError: The function does not return a task.
        """
        has_folder = self._takes_folder and request.data_dir is not None
        folder = {"data_dir": request.data_dir} if has_folder else {}
        task = self.function(**request.options, **folder)
        if not isinstance(task, Task):
            raise InputError(
                f"function {self.card.name}: expected it to return a Task, got {task!r}"
            )
        card = task.card or self._card_of_kind(task)
        title = self.card.title if card.title == card.name else card.title
        card = replace(card, name=self.card.name, title=title, shapes=None)
        return replace(task, name=self.card.name, options=dict(request.options), card=card)

    def _card_of_kind(self, task: Task) -> TaskCard:
        """Return the card of the function, with model settings of a known task."""
        known = self._card_of(task)
        if known is None:
            return self.card
        backbone = known.for_options(task.options).backbone
        return replace(self.card, output=known.output, backbone=backbone, is_image=known.is_image)


Words = NDArray[np.uint64]
Rows = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Streams:
    """One stream of 64-bit words per sample.

    A stream does not depend on the other samples.

    Args:
        seed: Integer from 0 to 2**64 - 1.
        part: Number of the split. Streams of different parts are unrelated.
        samples: (S,) sample numbers.
    """

    def __init__(self, seed: int, part: int, samples: Rows) -> None:
        root = mix(mix(np.array([seed], dtype=np.uint64)) + np.uint64(part))
        self._keys = mix(root + samples.astype(np.uint64))
        self._drawn = np.zeros(len(samples), dtype=np.uint64)

    def of(self, rows: Rows) -> Streams:
        """Copy the streams at positions `rows`, including their current positions."""
        copies = Streams.__new__(Streams)
        copies._keys, copies._drawn = self._keys[rows], self._drawn[rows]
        return copies

    def draw(self, rows: Rows, count: int) -> Words:
        """Draw the next `count` words at positions `rows`: (len(rows), count)."""
        steps: Words = np.arange(1, count + 1).astype(np.uint64)
        positions = self._drawn[rows, None] + steps
        self._drawn[rows] += np.uint64(count)
        return mix(self._keys[rows, None] + positions * _GOLDEN)

    def uniform(self, rows: Rows, count: int) -> NDArray[np.float32]:
        """Draw floats in [0, 1) on a grid of 2**-24: (len(rows), count)."""
        words = self.draw(rows, count) >> np.uint64(40)
        return words.astype(np.float32) * np.float32(2.0**-24)


def mix(words: Words) -> Words:
    """Mix all 64 bits with the last step of SplitMix64, a bijection."""
    words = (words ^ (words >> np.uint64(30))) * _FACTORS[0]
    words = (words ^ (words >> np.uint64(27))) * _FACTORS[1]
    return words ^ (words >> np.uint64(31))
