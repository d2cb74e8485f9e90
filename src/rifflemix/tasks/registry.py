"""The one list of tasks. A new task is one file and one line here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.files import make_folder, user_path
from rifflemix.tasks.core.base import (
    FirstSamples,
    Progress,
    Request,
    Task,
    TaskBuilder,
    TaskCard,
    TaskStatus,
    check_integer,
)
from rifflemix.tasks.graphs.molecules import ESOL, FREESOLV, PCQM4M
from rifflemix.tasks.images.cifar100 import Cifar100
from rifflemix.tasks.images.digits import Digits
from rifflemix.tasks.images.image import Image
from rifflemix.tasks.images.image_bytes import ImageBytes
from rifflemix.tasks.images.image_folder import DOGS_VS_CATS, IMAGE_FOLDER, IMAGENET, TINY_IMAGENET
from rifflemix.tasks.images.mnist import Mnist
from rifflemix.tasks.listops.listops import ListOps
from rifflemix.tasks.pathfinder.pathfinder import Pathfinder
from rifflemix.tasks.synthetic.point_clouds import PointClouds
from rifflemix.tasks.synthetic.sorting import Sorting
from rifflemix.tasks.text.language import PennTreebank, Shakespeare, WikiText
from rifflemix.tasks.text.lm1b import LM1B
from rifflemix.tasks.text.nli import SNLI, MultiNLI
from rifflemix.tasks.text.retrieval import Retrieval
from rifflemix.tasks.text.sick import Sick
from rifflemix.tasks.text.sst import SST
from rifflemix.tasks.text.text import Text

_TASKS: dict[str, TaskBuilder] = {
    task.card.name: task
    for task in (
        Digits(),
        ListOps(),
        Image(),
        Cifar100(),
        Text(),
        Retrieval(),
        Pathfinder("pathfinder32", "Pathfinder-32", 32),
        Pathfinder("pathfinder64", "Pathfinder-64", 64),
        Pathfinder("pathfinder128", "Pathfinder-128", 128),
        Pathfinder("pathfinder256", "Pathfinder-256", 256),
        Pathfinder("pathx", "Path-X", 128),
        Mnist(),
        IMAGENET,
        TINY_IMAGENET,
        DOGS_VS_CATS,
        IMAGE_FOLDER,
        PennTreebank(),
        Shakespeare(),
        WikiText(),
        LM1B(),
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
    )
}

_SHARED_OPTIONS: dict[str, Any] = {"max_samples": None}


def list_tasks() -> list[str]:
    """Names of all registered tasks."""
    return list(_TASKS)


def task_card(name: str) -> TaskCard:
    """The card of a registered task; an unknown name suggests the nearest."""
    card = _builder(name).card
    return replace(card, options={**card.options, **_SHARED_OPTIONS})


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
        seed: seed of generated data (ListOps, Pathfinder ...). Splits of existing data do not
            depend on it: it is not the training seed.
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
    seed: int = 0,
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
    folder = builder.prepared(request)
    if folder is not None:
        make_folder(folder.parent)
    _load(builder, request)
    if folder is not None and not folder.is_dir():
        raise InputError(
            f"{folder} could not be written; is its disk full? RIFFLEMIX_CACHE can name another"
        )
    return folder


def task_status(name: str, data_dir: Path | str | None = None) -> TaskStatus:
    """What of a task's data is at hand: in `data_dir`, built in, or to be fetched.

    Raises:
        InputError: unknown name, or no such folder.
    """
    builder, folder = _builder(name), _folder(data_dir)
    try:
        return builder.status(folder)
    except InputError as error:
        return TaskStatus(name, False, str(error))


def _load(builder: TaskBuilder, request: Request) -> Task:
    task = builder.load(request)
    if request.max_samples is None:
        return task
    return replace(
        task,
        options={**task.options, "max_samples": request.max_samples},
        splits={
            name: FirstSamples(split, request.max_samples) for name, split in task.splits.items()
        },
    )


def _builder(name: str) -> TaskBuilder:
    if not isinstance(name, str) or name not in _TASKS:
        raise unknown_name("task", name, _TASKS)
    return _TASKS[name]


def _request(
    card: TaskCard,
    data_dir: Path | str | None,
    seed: int,
    progress: Progress | None,
    options: dict[str, Any],
) -> Request:
    known = {**card.options, **_SHARED_OPTIONS}
    for option in options:
        if option not in known:
            raise unknown_name(f"option of task {card.name}", option, known)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise bad_argument("seed", "an integer from 0 to 2**64 - 1", repr(seed))
    own = {name: value for name, value in options.items() if name in card.options}
    shared = {**_SHARED_OPTIONS, **options}
    return Request(
        data_dir=_folder(data_dir),
        seed=seed,
        options={**card.options, **own},
        given=frozenset(own),
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


def _silent(what: str, done: int, total: int | None) -> None:
    pass
