"""The one list of tasks. A new task is one file and one line here.

Tasks of other people come from `register_task` and from entry points `rifflemix.tasks`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from rifflemix.errors import InputError, bad_argument, check_choice, unknown_name, unregistered_name
from rifflemix.files import make_folder, user_path
from rifflemix.lab.tasks.core.base import (
    FirstSamples,
    Output,
    Progress,
    Request,
    Task,
    TaskBuilder,
    TaskCard,
    TaskStatus,
    check_integer,
)
from rifflemix.lab.tasks.core.function_task import FunctionTask
from rifflemix.lab.tasks.graphs.molecules import ESOL, FREESOLV, PCQM4M
from rifflemix.lab.tasks.images.cifar100 import Cifar100
from rifflemix.lab.tasks.images.digits import Digits
from rifflemix.lab.tasks.images.image import Image
from rifflemix.lab.tasks.images.image_bytes import ImageBytes
from rifflemix.lab.tasks.images.image_folder import (
    DOGS_VS_CATS,
    FLOWERS,
    IMAGE_FOLDER,
    IMAGENET,
    PETS,
    TINY_IMAGENET,
)
from rifflemix.lab.tasks.images.mnist import Mnist
from rifflemix.lab.tasks.listops.listops import ListOps
from rifflemix.lab.tasks.own.builders import OWN_FILES
from rifflemix.lab.tasks.pathfinder.pathfinder import Pathfinder
from rifflemix.lab.tasks.synthetic.point_clouds import PointClouds
from rifflemix.lab.tasks.synthetic.sorting import Sorting
from rifflemix.lab.tasks.text.language import PennTreebank, Shakespeare, WikiText
from rifflemix.lab.tasks.text.lm1b import LM1B
from rifflemix.lab.tasks.text.nli import SNLI, MultiNLI
from rifflemix.lab.tasks.text.openwebtext import OpenWebText
from rifflemix.lab.tasks.text.passages import Passages
from rifflemix.lab.tasks.text.retrieval import Retrieval
from rifflemix.lab.tasks.text.sick import Sick
from rifflemix.lab.tasks.text.sst import SST
from rifflemix.lab.tasks.text.text import Text
from rifflemix.plugins import Outside, check_new_name

_TASKS: dict[str, TaskBuilder] = {
    task.card.name: task
    for task in (
        Digits(),
        ListOps(),
        Image(),
        Cifar100(),
        Text(),
        Retrieval(),
        Passages(),
        Pathfinder("pathfinder32", "Pathfinder-32", 32),
        Pathfinder("pathfinder64", "Pathfinder-64", 64),
        Pathfinder("pathfinder128", "Pathfinder-128", 128),
        Pathfinder("pathfinder256", "Pathfinder-256", 256),
        Pathfinder("pathx", "Path-X", 128),
        Mnist(),
        IMAGENET,
        TINY_IMAGENET,
        DOGS_VS_CATS,
        FLOWERS,
        PETS,
        IMAGE_FOLDER,
        PennTreebank(),
        Shakespeare(),
        WikiText(),
        LM1B(),
        OpenWebText(),
        ImageBytes(),
        Sorting(),
        SST(),
        Sick(),
        SNLI(),
        MultiNLI(),
        PointClouds(),
        ESOL,
        FREESOLV,
        PCQM4M,
        *OWN_FILES,
    )
}

_SHARED_OPTIONS: dict[str, Any] = {"max_samples": None}


_Given = TypeVar("_Given")


def register_task(task: _Given) -> _Given:
    """Make a task of your own known by a name; a decorator.

    Every list, comparison and run then takes it like the others.

    Args:
        task: a class with a `card`, `load`, `status` and `prepared` that is built without arguments
            (a `GeneratedTask`, a `FileTask`), an instance of one, or a function that returns a
            `Task`, `Task.from_arrays(...)` for example. A function's name names the task, its
            docstring describes it, and its keyword arguments with their defaults are the options.

    Returns:
        What was given.

    Raises:
        InputError: neither of these, a card that is not whole, or a name that is taken.
    """
    builder = _builder_of(task)
    card = builder.card
    _check_card(card)
    check_new_name("task", card.name, builder, _TASKS)
    _TASKS[card.name] = builder
    _OUTSIDE.registered()
    return task


_OUTSIDE = Outside("task", lambda: _TASKS, register_task)


def list_tasks() -> list[str]:
    """Names of all registered tasks; other packages are not imported."""
    return _OUTSIDE.names()


def usable_tasks() -> list[str]:
    """As `list_tasks`, without those whose packages cannot be imported, but warn."""
    return _OUTSIDE.usable()


def task_card(name: str) -> TaskCard:
    """The card of a registered task; an unknown name suggests the nearest."""
    builder = _builder(name)
    seed = {"seed": 0} if getattr(builder, "takes_seed", False) else {}
    card = builder.card
    return replace(card, options={**seed, **card.options, **_SHARED_OPTIONS})


def load_task(
    name: str,
    *,
    data_dir: Path | str | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Task:
    """Load a task: read, decode or generate its data (kept in a cache for the next time).

    Args:
        name: one of `list_tasks()`.
        data_dir: folder that holds the data files; it is only read, never written to.
        seed: seed of generated data (ListOps, Pathfinder ...), 0 if None. Splits of existing data
            do not depend on it: it is not the training seed.
        progress: called with what is being done, how much is done, and of how much.
        options: the task's own options (see its card), and `max_samples`, which every task has:
            most samples of each split, the first ones; None for all.

    Raises:
        InputError: unknown name or option, a value out of range, missing or damaged data.
    """
    builder = _builder(name)
    return _load(builder, _request(builder.card, data_dir, seed, progress, options))


def prepare_task(
    name: str,
    *,
    data_dir: Path | str | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Path | None:
    """Do the slow part of `load_task` ahead of time.

    Returns:
        The folder of decoded or generated data that later loads read; None where there is none.

    Raises:
        InputError: as `load_task`, or the prepared data cannot be kept.
    """
    builder = _builder(name)
    request = _request(builder.card, data_dir, seed, progress, options)
    request = replace(request, must_keep=True)
    with _looking():
        folder = builder.prepared(request)
    if folder is not None and not folder.is_dir():  # else whatever it lacks is told
        make_folder(folder.parent)
    _load(builder, request)
    if folder is not None and not folder.is_dir():
        raise InputError(
            f"{folder} could not be written; is its disk full? RIFFLEMIX_CACHE can name another"
        )
    return folder


def card_of(task: Task) -> TaskCard:
    """The card of a loaded task: its own, or the registry's."""
    return task.card or task_card(task.name)


def _known_card(task: Task) -> TaskCard | None:
    """As `card_of`; None of a task that the registry does not have."""
    return task.card or (_TASKS[task.name].card if task.name in _TASKS else None)


def task_status(name: str, data_dir: Path | str | None = None) -> TaskStatus:
    """What of a task's data is at hand: in `data_dir`, built in, or to be fetched.

    Raises:
        InputError: unknown name, or no such folder.
    """
    builder, folder = _builder(name), _folder(data_dir)
    try:
        with _looking():
            return builder.status(folder)
    except InputError as error:
        return TaskStatus(name, False, str(error))


def _load(builder: TaskBuilder, request: Request) -> Task:
    with _looking():
        task = builder.load(request)
    if request.max_samples is None:
        return task
    first = partial(FirstSamples, most=request.max_samples)
    return replace(
        task,
        options={**task.options, "max_samples": request.max_samples},
        splits={name: first(split) for name, split in task.splits.items()},
        further_tests={name: first(split) for name, split in task.further_tests.items()},
    )


def _builder(name: str) -> TaskBuilder:
    _OUTSIDE.look_up(name)
    if not isinstance(name, str) or name not in _TASKS:
        raise unregistered_name("task", name, list_tasks())
    return _TASKS[name]


def _builder_of(task: Any) -> TaskBuilder:
    if inspect.isfunction(task):
        return FunctionTask(task, _known_card)
    if isinstance(task, type):
        try:
            task = task()
        except TypeError as error:
            raise bad_argument(
                f"task {task.__name__}", "a class built without arguments", error
            ) from None
    for name in ("load", "status", "prepared"):
        if not callable(getattr(task, name, None)):
            what = "a task with a card, load, status and prepared, or a function"
            raise bad_argument("task", what, f"{task!r} without {name}")
    if not isinstance(getattr(task, "card", None), TaskCard):
        raise bad_argument(
            f"card of {type(task).__name__}", "a TaskCard", repr(getattr(task, "card", None))
        )
    return cast(TaskBuilder, task)


def _check_card(card: TaskCard) -> None:
    """Raise unless a card is whole and its options can be written down."""
    for entry in ("title", "source", "licence", "description", "backbone", "image_backbone"):
        value = getattr(card, entry)
        if not isinstance(value, str) or not value:
            raise bad_argument(f"card of task {card.name}, {entry}", "a text", repr(value))
    check_choice(f"card of task {card.name}, output", card.output, get_args(Output))
    try:
        json.dumps(dict(card.options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise bad_argument(
            f"card of task {card.name}, options", "values that JSON has", error
        ) from None
    for name in card.options:
        if name in _SHARED_OPTIONS:
            raise bad_argument(
                f"card of task {card.name}, options", f"none called {name}", "it", "all have it"
            )


def _request(
    card: TaskCard,
    data_dir: Path | str | None,
    seed: int | None,
    progress: Progress | None,
    options: dict[str, Any],
) -> Request:
    known = {**card.options, **_SHARED_OPTIONS}
    for option in options:
        if option not in known:
            raise unknown_name(f"option of task {card.name}", option, known)
    drawn_with = 0 if seed is None else seed
    is_integer = isinstance(drawn_with, int) and not isinstance(drawn_with, bool)
    if not is_integer or not 0 <= drawn_with < 2**64:
        raise bad_argument("seed", "an integer from 0 to 2**64 - 1", repr(seed))
    named = options if seed is None else {**options, "seed": seed}
    own = {name: value for name, value in named.items() if name in card.options}
    shared = {**_SHARED_OPTIONS, **options}
    return Request(
        data_dir=_folder(data_dir),
        seed=drawn_with,
        options={**card.options, **own},
        given=frozenset(own) | (set() if seed is None else {"seed"}),
        progress=progress or _silent,
        max_samples=None
        if shared["max_samples"] is None
        else check_integer(shared, "max_samples", 1),
    )


def _folder(data_dir: Path | str | None) -> Path | None:
    if data_dir is None:
        return None
    folder = user_path("data_dir", data_dir)
    if not folder.is_dir():
        raise bad_argument("data_dir", "an existing folder", repr(str(data_dir)))
    return folder


@contextmanager
def _looking() -> Iterator[None]:
    """Turn a folder that may not be looked into into one sentence."""
    try:
        yield
    except PermissionError as error:
        if error.filename is None:
            raise
        raise InputError(f"cannot look at {error.filename}: permission denied") from error


def _silent(what: str, done: int, total: int | None) -> None:
    pass
