"""Registry of tasks: `built_in`, `register_task` and the entry points `rifflemix.tasks`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from rifflemix.errors import InputError, bad_argument, unknown_name, unregistered_name
from rifflemix.files import make_folder, user_path
from rifflemix.lab.tasks.built_in import BUILT_IN
from rifflemix.lab.tasks.core.base import Progress, Task
from rifflemix.lab.tasks.core.builder import Request, TaskBuilder, check_integer
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus, check_card
from rifflemix.lab.tasks.core.generated import FunctionTask
from rifflemix.lab.tasks.data_io.splits import first_samples
from rifflemix.plugins import EntryPoints, check_new_name

_TASKS = dict(BUILT_IN)
_SHARED_OPTIONS: dict[str, Any] = {"max_samples": None}


_Given = TypeVar("_Given")


def register_task(task: _Given) -> _Given:
    """Register a task under its name. Usable as a decorator.

    The task then appears in every list, comparison and run.

    Args:
        task: A class, an instance of it, or a function. The class has `card`, `load`, `status`
            and `prepared`, and a constructor without arguments (see `GeneratedTask`, `FileTask`).
            A function returns a `Task`, for example from `Task.from_arrays(...)`. Its name is the
            task name and its docstring is the description. Its keyword arguments are the options.

    Returns:
        The argument, unchanged.

    Raises:
        InputError: The argument is not a task, its card is incomplete, or its name is taken.

    Example:
        >>> import numpy as np, rifflemix as rm
        >>> @rm.register_task
        ... def parity(seed=0):
        ...     '''Parity of 16 random bits.'''
        ...     x = np.random.default_rng(seed).integers(2, size=(1000, 16))
        ...     return rm.Task.from_arrays(x, x.sum(axis=1) % 2)
        >>> "parity" in rm.tasks.list_tasks()
        True
    """
    builder = _builder_of(task)
    card = builder.card
    check_card(card, _SHARED_OPTIONS)
    check_new_name("task", card.name, builder, _TASKS)
    _TASKS[card.name] = builder
    _ENTRY_POINTS.registered()
    return task


_ENTRY_POINTS = EntryPoints("task", lambda: _TASKS, register_task)


def list_tasks() -> list[str]:
    """List the names of all registered tasks, without importing third-party packages.

    Returns:
        Names for `load_task`.

    Example:
        >>> import rifflemix as rm
        >>> "listops" in rm.tasks.list_tasks()
        True
    """
    return _ENTRY_POINTS.names()


def usable_tasks() -> list[str]:
    """List tasks whose packages can be imported. Warn about the others.

    Returns:
        Names for `load_task`.

    Example:
        >>> import rifflemix as rm
        >>> "digits" in rm.tasks.usable_tasks()
        True
    """
    return _ENTRY_POINTS.usable()


def task_card(name: str) -> TaskCard:
    """Return the card of a registered task.

    For an unknown name, the error suggests the nearest name.

    Args:
        name: Name from `list_tasks()`.

    Returns:
        The card.

    Raises:
        InputError: Unknown name.

    Example:
        >>> import rifflemix as rm
        >>> rm.tasks.task_card("digits").licence
        'CC BY 4.0'
    """
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
    """Load a task from files, a download or a generator.

    Decoded and generated data is cached for later calls.

    Args:
        name: Name from `list_tasks()`.
        data_dir: Folder of the data files. It is never written to.
        seed: Seed of generated data (ListOps, Pathfinder and others). None means 0. It is not the
            training seed, and splits of existing data do not depend on it.
        progress: Callback that receives the kind of work, the amount done and the total amount.
        options: Options from the task's card, and `max_samples`. `max_samples` limits each split
            to its first samples. None keeps all samples.

    Returns:
        The task with its splits.

    Raises:
        InputError: Unknown name or option, value out of range, missing or damaged data.

    Example:
        >>> import rifflemix as rm
        >>> task = rm.tasks.load_task("sort", max_samples=100)
        >>> len(task.split("train"))
        100
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
    """Prepare and cache the data of a task before `load_task` needs it.

    Accepts the arguments of `load_task`.

    Args:
        name: Name from `list_tasks()`.
        data_dir: Folder of the data files.
        seed: Seed of generated data.
        progress: Callback for the progress.
        options: Options of the task.

    Returns:
        The cache folder that later calls of `load_task` read, or None if the task has no cache.

    Raises:
        InputError: Same cases as `load_task`, or the prepared data cannot be stored.

    Example:
        >>> import rifflemix as rm
        >>> rm.tasks.prepare_task("digits") is None
        True
    """
    builder = _builder(name)
    request = _request(builder.card, data_dir, seed, progress, options)
    request = replace(request, must_keep=True)
    with _looking():
        folder = builder.prepared(request)
    if folder is not None and not folder.is_dir():  # otherwise loading reports the missing data
        make_folder(folder.parent)
    _load(builder, request)
    if folder is not None and not folder.is_dir():
        raise InputError(
            f"{folder} could not be written; is its disk full? RIFFLEMIX_CACHE can name another"
        )
    return folder


def card_of(task: Task) -> TaskCard:
    """Return the card of a loaded task.

    Args:
        task: a loaded task.

    Returns:
        The card.

    Example:
        >>> import rifflemix as rm
        >>> rm.tasks.card_of(rm.tasks.load_task("digits")).name
        'digits'
    """
    return (task.card or task_card(task.name)).for_options(task.options)


def _known_card(task: Task) -> TaskCard | None:
    """Same as `card_of`, but return None if the task is not registered."""
    return task.card or (_TASKS[task.name].card if task.name in _TASKS else None)


def task_status(name: str, data_dir: Path | str | None = None) -> TaskStatus:
    """Report whether the data of a task is available.

    The data can be in `data_dir`, built in, or cached. Otherwise it needs a download.

    Args:
        name: Name from `list_tasks()`.
        data_dir: Folder of the data files.

    Returns:
        Whether the data is available, and its place.

    Raises:
        InputError: Unknown name, or the folder does not exist.

    Example:
        >>> import rifflemix as rm
        >>> rm.tasks.task_status("digits").available
        True
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
    return task if request.max_samples is None else first_samples(task, request.max_samples)


def _builder(name: str) -> TaskBuilder:
    _ENTRY_POINTS.look_up(name)
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
    """Raise a one-sentence InputError if a folder is not readable."""
    try:
        yield
    except PermissionError as error:
        if error.filename is None:
            raise
        raise InputError(f"cannot look at {error.filename}: permission denied") from error


def _silent(what: str, done: int, total: int | None) -> None:
    pass
