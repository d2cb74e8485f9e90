"""Base class of tasks that read files, and downloads with a size limit or at a fixed commit."""

from __future__ import annotations

import hashlib
import http.client
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Progress, Task
from rifflemix.lab.tasks.core.builder import Request
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


_SECONDS = 30.0
_BLOCK = 1 << 20
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Remote:
    """File to download and its expected sha256, size, or both.

    Attributes:
        url: URL of the file.
        sha256: Expected sha256 of the content, or None.
        size: Expected size in bytes, or None.
    """

    url: str
    sha256: str | None
    size: int | None = None


def download(remote: Remote, progress: Progress, explain: Callable[[str], InputError]) -> bytes:
    """Download a file of at most 256 MiB.

    Args:
        remote: URL, expected sha256 and expected size of the file.
        progress: Callback that receives a description and the number of bytes.
        explain: Function that creates the error for a given reason.

    Raises:
        InputError: The download fails or is incomplete, the file is too large, or its content
            differs from the expected sha256 or size.
    """
    url = remote.url
    what = f"fetching {url.rsplit('/', 1)[-1]}"
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            total = getattr(answer, "length", None)  # None for file: URLs
            progress(what, 0, total)
            while block := answer.read(_BLOCK):
                content += block
                progress(what, len(content), total)
                if len(content) > _MOST_BYTES:
                    raise explain(f"fetching {url} failed: more than {_MOST_BYTES:,} bytes came")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error) or type(error).__name__
        raise explain(f"fetching {url} failed: {reason}") from error
    if total is not None and len(content) < total:
        raise explain(f"fetching {url} failed: it broke off at {len(content):,} of {total:,} bytes")
    if remote.size is not None and len(content) != remote.size:
        raise explain(f"{url} has {len(content):,} bytes, expected {remote.size:,}")
    got = hashlib.sha256(content).hexdigest()
    if remote.sha256 is not None and got != remote.sha256:
        raise explain(f"{url} has sha256 {got}, expected {remote.sha256}")
    return bytes(content)


_HUB = "https://huggingface.co/datasets"


@dataclass(frozen=True)
class HubData:
    """Data set of the hub at one commit.

    Attributes:
        repository: Repository as owner/name.
        revision: Commit.
        folder: Folder of the Parquet files.
        sha256: Expected sha256 of the file of each split. Each split has one file.
        sizes: Expected size in bytes of files without a known sha256. `decode` then checks the
            content.
    """

    repository: str
    revision: str
    folder: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def remotes(self) -> dict[str, Remote]:
        """Return the file of each split."""
        location = f"{_HUB}/{self.repository}/resolve/{self.revision}/{self.folder}"
        return {
            split: Remote(
                f"{location}/{split}-00000-of-00001.parquet",
                self.sha256.get(split),
                self.sizes.get(split),
            )
            for split in {**self.sha256, **self.sizes}
        }


def hub_source(
    data: HubData,
    decode: Callable[[Any, Progress], Arrays],
    explain: Callable[[str], InputError],
    variant: str = "",
) -> Source:
    """Define a hub data set that is downloaded on first use.

    The download needs the `datasets` library.

    Args:
        data: Data set to download.
        decode: Function that converts the splits to arrays.
        explain: Function that creates the error for a failed download from its reason.
        variant: Name that separates decoded copies of one data set.
    """

    def read(progress: Progress) -> Arrays:
        try:
            import datasets
        except ImportError:
            raise explain(
                "to fetch it, install the datasets library: pip install 'rifflemix[data]'"
            ) from None
        with tempfile.TemporaryDirectory(prefix="rifflemix-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            files = _fetch(data, folder, progress, explain)
            try:
                splits = datasets.load_dataset(
                    "parquet", data_files=files, cache_dir=str(folder / "cache")
                )
            # The library passes on errors of other libraries (Arrow, files).
            except Exception as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise explain(f"reading {data.repository} failed: {reason}") from error
            return decode(splits, progress)

    key = f"hub-{data.repository.replace('/', '-')}-{data.revision[:8]}"
    key += f"-{variant}" if variant else ""
    return Source(f"{data.repository} from the Hugging Face hub", key, read)


def _fetch(
    data: HubData, folder: Path, progress: Progress, explain: Callable[[str], InputError]
) -> dict[str, str]:
    """Download the file of each split and return the paths."""
    paths = {}
    for split, remote in data.remotes().items():
        path = folder / f"{split}.parquet"
        content = download(remote, progress, explain)
        try:
            path.write_bytes(content)
        except OSError as error:
            raise explain(f"cannot write {path}: {error.strerror}") from error
        paths[split] = str(path)
    return paths
