"""Base class of tasks that read files. A subclass describes the files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Progress, Request, Task
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus
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
"""Path of the file of each part."""


@dataclass(frozen=True)
class Form:
    """Format of a task's files, with one file per part.

    Attributes:
        name: Common name of the files. "{part}" is replaced by the file name of that part.
        files: Part -> path of its file below the data folder, or several alternative paths.
        read: Function that decodes the files, given the path of each part.
        folders: Folders to search, relative to the data folder. One folder contains all files.
        endings: Possible suffixes of every file name.
        looked_for: Description of the files for errors. If empty, the file names.
        note: Note on this format for readers of results.
    """

    name: str
    files: Mapping[str, str | Sequence[str]]
    read: Callable[[Paths, Progress], Arrays]
    folders: Sequence[str] = (".",)
    endings: Sequence[str] = ("",)
    looked_for: str = ""
    note: str = ""

    def choices(self, data_dir: Path) -> Iterator[dict[str, list[Path]]]:
        """List possible paths of each part per folder, the most likely first."""
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
        """Describe the files to look for."""
        first, *others = self.endings
        ending = first or "".join(f"[{other}]" for other in others)
        files = (" or ".join(f"{n}{ending}" for n in _names(ns)) for ns in self.files.values())
        return self.looked_for or " with ".join(files)


class FileTask(ABC):
    """Task that reads or downloads files and caches the decoded arrays.

    A subclass defines its card, `get_it`, `forms` and `build`. The base class finds, checks,
    decodes and caches the files.

    Attributes:
        card: Card of the task.
        get_it: Files to get and where to get them. Continues an error message after "get".
    """

    card: TaskCard
    get_it: str

    @abstractmethod
    def forms(self, options: Options) -> Sequence[Form]:
        """Return the supported formats in order of preference."""

    @abstractmethod
    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Create the task from the decoded arrays of a source."""

    def check(self, options: Options) -> None:  # noqa: B027
        """Raise InputError for invalid options, before reading any file."""

    def key(self, options: Options) -> tuple[object, ...]:
        """Return the options that affect the decoded arrays."""
        return ()

    def remote_source(self, options: Options) -> Source | None:
        """Return the download for use without a data folder, or None."""
        return None

    def why_not(self, data_dir: Path, options: Options) -> str:
        """Explain why the files in a data folder are insufficient.

        Return an empty text if the reason is unknown.
        """
        return ""

    def load(self, request: Request) -> Task:
        """Create the task.

        Decode the files to the cache on the first call.
        """
        source = self.source(request)
        return self.build(request, source, load_source(self.card, source, request))

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Report whether `data_dir` contains the data, or the cache contains a download."""
        options = self.card.options
        found = self.remote_source(options) if data_dir is None else self.find(data_dir, options)
        return source_status(self.card, found, data_dir)

    def prepared(self, request: Request) -> Path:
        """Return the folder of the decoded data."""
        return source_folder(self.card, self.source(request))

    def source(self, request: Request) -> Source:
        """Return the source of the requested data.

        Raises:
            InputError: An option is invalid, or the data was not found.
        """
        options, data_dir = request.options, request.data_dir
        self.check(options)
        found = self.remote_source(options) if data_dir is None else self.find(data_dir, options)
        if found is None:
            why = "" if data_dir is None else self.why_not(data_dir, options)
            raise self.missing(options, why, data_dir)
        return found

    def find(self, data_dir: Path, options: Options) -> Source | None:
        """Return the first complete format in `data_dir`, see `find_source`."""
        return find_source(self.forms(options), data_dir, self.key(options), self.get_it)

    def looked_for(self, options: Options) -> Sequence[str]:
        """Describe the files that the data folder may contain."""
        return [form.described() for form in self.forms(options)]

    def missing(self, options: Options, why: str = "", data_dir: Path | None = None) -> InputError:
        """Return the error for missing data, with the reason `why`."""
        return missing_data(self.card, data_dir, self.looked_for(options), self.get_it, why)


def find_source(
    forms: Sequence[Form],
    data_dir: Path,
    key: tuple[object, ...] = (),
    get_it: str = "a fresh copy",
) -> Source | None:
    """Return the first complete format in a folder, or None without files.

    Args:
        forms: Supported formats.
        data_dir: Data folder.
        key: Options that affect the decoded arrays.
        get_it: Files to get and where to get them, for the error of an incomplete format.

    Raises:
        InputError: The folder contains some files of a format, but no complete format.
    """
    errors = []
    for form in forms:
        for choices in form.choices(data_dir):
            there = {part: [p for p in paths if p.is_file()] for part, paths in choices.items()}
            paths = {part: found[0] for part, found in there.items() if found}
            if len(paths) == len(choices):
                name = form.name.format(**{part: path.name for part, path in paths.items()})
                read = partial(form.read, paths)
                return Source(name, stat_key(paths.values(), *key), read, form.note, paths)
            if paths:
                part = next(part for part in choices if part not in paths)
                there_too = ", ".join(path.name for path in paths.values())
                errors.append(
                    InputError(
                        f"{choices[part][0]}: expected a file next to {there_too}, got none. "
                        f"Get {get_it}."
                    )
                )
    if errors:
        raise errors[0]
    return None


def _names(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names
