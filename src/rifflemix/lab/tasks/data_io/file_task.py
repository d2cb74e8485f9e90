"""Tasks that read files: a subclass says what they look like, the base finds them and speaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Progress, Request, Task, TaskCard, TaskStatus
from rifflemix.lab.tasks.data_io.files import (
    Array,
    Arrays,
    Source,
    load_source,
    missing_data,
    source_folder,
    source_status,
    stat_key,
)

Options = Mapping[str, Any]
Paths = dict[str, Path]
"""The file of each part."""


@dataclass(frozen=True)
class Form:
    """Files that together hold the data of a task, in one of the forms in which people have it.

    Attributes:
        name: what people call them; "{part}" stands for the name of that part's file.
        files: part -> path of its file below the data folder, or several it may have.
        read: decodes the files, given the path of each part.
        folders: folders of the data folder, one of which holds all of them.
        endings: what may follow the name of every file.
        looked_for: what an error says to look for; if empty, the files.
        note: what a reader of results should know about data in this form.
    """

    name: str
    files: Mapping[str, str | Sequence[str]]
    read: Callable[[Paths, Progress], Arrays]
    folders: Sequence[str] = (".",)
    endings: Sequence[str] = ("",)
    looked_for: str = ""
    note: str = ""

    def choices(self, data_dir: Path) -> Iterator[dict[str, list[Path]]]:
        """For each folder, the paths that each part may have, the likeliest first."""
        for folder in self.folders:
            yield {
                part: [
                    data_dir / folder / f"{name}{ending}"
                    for name in _names(names)
                    for ending in self.endings
                ]
                for part, names in self.files.items()
            }

    def described(self) -> str:
        """The files to look for, in words."""
        first, *others = self.endings
        ending = first or "".join(f"[{other}]" for other in others)
        files = (" or ".join(f"{n}{ending}" for n in _names(ns)) for ns in self.files.values())
        return self.looked_for or " with ".join(files)


class FileTask(ABC):
    """A task whose data lies in files, or is fetched; its decoded form is kept in the cache.

    A subclass gives its card, `get_it`, `forms` and `build`; it finds, decodes, keeps and refuses
    the files like every other task.

    Attributes:
        card: what the task is.
        get_it: which files to get, and where; the end of "get ...".
    """

    card: TaskCard
    get_it: str

    @abstractmethod
    def forms(self, options: Options) -> Sequence[Form]:
        """The forms that are read, the preferred one first."""

    @abstractmethod
    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """The task over the decoded arrays of a source."""

    def check(self, options: Options) -> None:  # noqa: B027
        """Raise InputError for options out of range, before anything is read."""

    def key(self, options: Options) -> tuple[object, ...]:
        """The options that shape the decoded arrays."""
        return ()

    def remote_source(self, options: Options) -> Source | None:
        """Where the data is fetched from without a data folder; None where it cannot be."""
        return None

    def why_not(self, data_dir: Path, options: Options) -> str:
        """Why what lies in a data folder is not enough; empty where nothing is known."""
        return ""

    def load(self, request: Request) -> Task:
        """The task, decoded to the cache when first read."""
        source = self.source(request)
        return self.build(request, source, load_source(self.card, source, request))

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Whether data is in `data_dir` or was downloaded before."""
        options = self.card.options
        found = self.remote_source(options) if data_dir is None else self.find(data_dir, options)
        return source_status(self.card, found, data_dir)

    def prepared(self, request: Request) -> Path:
        """The folder of decoded data."""
        return source_folder(self.card, self.source(request))

    def source(self, request: Request) -> Source:
        """Where the data that is asked for comes from.

        Raises:
            InputError: an option is out of range, or the data was not found.
        """
        options, data_dir = request.options, request.data_dir
        self.check(options)
        found = self.remote_source(options) if data_dir is None else self.find(data_dir, options)
        if found is None:
            why = "" if data_dir is None else self.why_not(data_dir, options)
            raise self.missing(options, why, data_dir)
        return found

    def find(self, data_dir: Path, options: Options) -> Source | None:
        """The first form of which all files are in `data_dir`; see `find_source`."""
        return find_source(self.forms(options), data_dir, self.key(options), self.incomplete)

    def looked_for(self, options: Options) -> Sequence[str]:
        """The files that the data folder may hold, in words."""
        return [form.described() for form in self.forms(options)]

    def missing(self, options: Options, why: str = "", data_dir: Path | None = None) -> InputError:
        """The error for data that was not found, for the reason `why`."""
        return missing_data(self.card, data_dir, self.looked_for(options), self.get_it, why)

    def incomplete(self, absent: Path, part: str, present: Paths) -> InputError:
        """The error for a part of a form that is absent while others are present."""
        return incomplete_data(absent, part, present)


def incomplete_data(absent: Path, part: str, present: Paths) -> InputError:
    """The error for a file that is absent while others that belong to it are present."""
    return InputError(f"{absent}: the file is missing, its companions are there")


def find_source(
    forms: Sequence[Form],
    data_dir: Path,
    key: tuple[object, ...] = (),
    incomplete: Callable[[Path, str, Paths], InputError] = incomplete_data,
) -> Source | None:
    """The first form of which all files are in a folder; None where there is no file of any.

    Args:
        forms: what may be there.
        data_dir: the folder.
        key: what shapes the decoded arrays beside the files.
        incomplete: makes the error.

    Raises:
        InputError: some files of a form are there, but no form is whole.
    """
    errors = []
    for form in forms:
        for choices in form.choices(data_dir):
            there = {part: [p for p in paths if p.is_file()] for part, paths in choices.items()}
            paths = {part: found[0] for part, found in there.items() if found}
            if len(paths) == len(choices):
                name = form.name.format(**{part: path.name for part, path in paths.items()})
                read = partial(form.read, paths)
                return Source(name, stat_key(paths.values(), *key), read, form.note)
            if paths:
                part = next(part for part in choices if part not in paths)
                errors.append(incomplete(choices[part][0], part, paths))
    if errors:
        raise errors[0]
    return None


def _names(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names
