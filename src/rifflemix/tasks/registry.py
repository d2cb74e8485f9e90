"""The one list of tasks. A new task is one file and one line here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.tasks.base import Progress, Request, Task, TaskBuilder, TaskCard, TaskStatus
from rifflemix.tasks.digits import Digits
from rifflemix.tasks.image import Image
from rifflemix.tasks.listops import ListOps
from rifflemix.tasks.mnist import Mnist
from rifflemix.tasks.text import Text

_TASKS: dict[str, TaskBuilder] = {
    task.card.name: task
    for task in (
        Digits(),
        ListOps(),
        Image(),
        Text(),
        Mnist(),
    )
}


def list_tasks() -> list[str]:
    """Names of all registered tasks."""
    return list(_TASKS)


def task_card(name: str) -> TaskCard:
    """The card of a registered task; an unknown name suggests the nearest."""
    return _builder(name).card


def load_task(
    name: str,
    *,
    data_dir: Path | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Task:
    """Load a task: read, decode or generate its data (kept in a cache for the next time).

    Args:
        name: one of `list_tasks()`.
        data_dir: folder that holds the data files; it is only read, never written to.
        seed: seed of generated data (ListOps). Splits of existing data do not depend on it: it
            is not the training seed.
        progress: called with what is being done, how much is done, and of how much.
        options: the task's own options (see its card).

    Raises:
        InputError: unknown name or option, a value out of range, missing or damaged data.
    """
    builder = _builder(name)
    return builder.load(_request(builder.card, data_dir, seed, progress, options))


def prepare_task(
    name: str,
    *,
    data_dir: Path | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Path | None:
    """Do the slow part of `load_task` ahead of time.

    Returns:
        The folder of decoded or generated data that later loads read; None where there is none.

    Raises:
        InputError: as `load_task`.
    """
    builder = _builder(name)
    request = _request(builder.card, data_dir, seed, progress, options)
    builder.load(request)
    return builder.prepared(request)


def task_status(name: str, data_dir: Path | str | None = None) -> TaskStatus:
    """What of a task's data is at hand: in `data_dir`, built in, or to be fetched."""
    builder = _builder(name)
    try:
        return builder.status(_folder(data_dir))
    except InputError as error:
        return TaskStatus(name, False, str(error))


def _builder(name: str) -> TaskBuilder:
    try:
        return _TASKS[name]
    except KeyError:
        raise unknown_name("task", name, _TASKS) from None


def _request(
    card: TaskCard,
    data_dir: Path | str | None,
    seed: int,
    progress: Progress | None,
    options: dict[str, Any],
) -> Request:
    for option in options:
        if option not in card.options:
            raise unknown_name(f"option of task {card.name}", option, card.options)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise bad_argument("seed", "an integer from 0 to 2**64 - 1", repr(seed))
    return Request(
        data_dir=_folder(data_dir),
        seed=seed,
        options={**card.options, **options},
        given=frozenset(options),
        progress=progress or _silent,
    )


def _folder(data_dir: Path | str | None) -> Path | None:
    if data_dir is None:
        return None
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise bad_argument("data_dir", "an existing folder", repr(str(data_dir)))
    return folder


def _silent(what: str, done: int, total: int | None) -> None:
    pass
