"""Images made by several processes in shards. Each shard is stored atomically for later runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from rifflemix.errors import InputError
from rifflemix.files import make_folder
from rifflemix.lab.tasks.core.base import PreparationStopped, Progress, Sample
from rifflemix.lab.tasks.data_io.files import Array, cannot_keep, load_arrays, store_arrays
from rifflemix.locks import FolderInUse, delete_leftovers, locked

_SHARD = 1000
_WAIT_SECONDS = 0.5


class ImageMaker(Protocol):
    """Callable that makes images by number and can be pickled."""

    def __call__(
        self, first: int, count: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8 | np.uint16]]:
        """Make images (count, height, width[, channels]) and labels (count,) from `first` on."""
        ...


@dataclass(frozen=True, eq=False)
class ShardedImages:
    """Gray images as tokens, from several arrays with consecutive image numbers.

    Attributes:
        images: Arrays (M, height, width) uint8. All arrays except the last have the same length.
        labels: Arrays (M,) uint8.
        rows: Numbers of the images in the split, in order.
    """

    images: tuple[Array, ...]
    labels: tuple[Array, ...]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return the pixels (N,) int64, row by row, and the label."""
        shard, position = divmod(int(self.rows[index]), len(self.images[0].values))
        pixels = self.images[shard].values[position].reshape(-1).astype(np.int64)
        return torch.from_numpy(pixels), int(self.labels[shard].values[position])

    def digest(self) -> bytes:
        """Hash the pixels and labels of the split, in order."""
        total = hashlib.blake2b(digest_size=16)
        length = len(self.images[0].values)
        for row in self.rows.tolist():
            shard, position = divmod(row, length)
            total.update(self.images[shard].values[position].tobytes())
            total.update(bytes([self.labels[shard].values[position]]))
        return total.digest()


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Images of several shards with consecutive numbers, see `ImageStack`.

    Shards are opened on access, and a process keeps only a few open. A large data set has more
    shards than a process can open.

    Attributes:
        shards: Folders of the shards.
        length: Images per shard. The last shard may have fewer.
    """

    shards: tuple[Path, ...]
    length: int

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return _opened(self.shards[0])["images"].row_shape

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        shard, position = divmod(row, self.length)
        arrays = _opened(self.shards[shard])
        image = arrays["images"][position]
        if arrays["digests"][position].tobytes() != _digest(image):
            raise InputError(
                f"{self.shards[shard]}: image {position} is not what was stored; remove the "
                "folder, it is made again"
            )
        return image

    def content(self, rows: NDArray[np.int64]) -> Iterator[bytes]:
        """Iterate over the stored hashes of the images."""
        for row in rows.tolist():
            shard, position = divmod(row, self.length)
            yield _opened(self.shards[shard])["digests"][position].tobytes()


@functools.lru_cache(maxsize=32)
def _opened(shard: Path) -> dict[str, Array]:
    arrays = load_arrays(shard, is_trusted=True)  # every image has its own hash
    if arrays is None:
        raise _lost(shard)
    return arrays


def _lost(folder: Path) -> InputError:
    return InputError(f"{folder} lost what was just written to it; is something deleting there?")


def prepare_shards(
    folder: Path, make: ImageMaker, count: int, progress: Progress, what: str
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Map images 0 to `count` - 1 from `folder`. Make missing images.

    If another process makes the same images, wait for it. An interrupted run keeps complete shards.

    Args:
        folder: Folder that contains only shards of this maker.
        make: Maker of the images.
        count: Number of images. Other calls may request more or fewer.
        progress: Callback that receives the number of images.
        what: Description of the work for `progress`.

    Raises:
        InputError: The folder cannot be written, the disk is full, or `make` raises it.
    """
    shards = _whole_shards(folder, make, count, progress, what, _SHARD, by_image=False)
    pairs = [shard.load() for shard in shards]
    found = [pair for pair in pairs if pair is not None]
    if len(found) < len(pairs):
        raise _lost(folder)
    images, labels = zip(*found, strict=True)
    return images, labels


def prepare_stack(
    folder: Path, make: ImageMaker, count: int, progress: Progress, what: str, length: int
) -> StoredImages:
    """Prepare images as `prepare_shards` does, for large images or many shards.

    Args:
        folder: Folder that contains only shards of this maker.
        make: Maker of the images.
        count: Number of images. Other calls may request more or fewer.
        progress: Callback that receives the number of images.
        what: Description of the work for `progress`.
        length: Images per shard, fixed for this folder. A process needs memory for one shard.

    Raises:
        InputError: Same cases as `prepare_shards`.
    """
    shards = _whole_shards(folder, make, count, progress, what, length, by_image=True)
    paths = tuple(path for shard in shards if (path := shard.stored()) is not None)
    if len(paths) < len(shards):
        raise _lost(folder)
    return StoredImages(paths, length)


def _whole_shards(
    folder: Path,
    make: ImageMaker,
    count: int,
    progress: Progress,
    what: str,
    length: int,
    *,
    by_image: bool,
) -> list[_Shard]:
    """Return the shards of images 0 to `count` - 1.

    Make missing shards.
    """
    delete_leftovers(folder)
    shards = [
        _Shard(folder, start, min(length, count - start), length, by_image)
        for start in range(0, count, length)
    ]
    if not all(shard.is_whole() for shard in shards):
        with waiting_for(folder, progress, what):
            _make_missing(shards, make, progress, what)
        if not all(shard.is_whole() for shard in shards):
            raise _lost(folder)
    return shards


def _make_missing(shards: list[_Shard], make: ImageMaker, progress: Progress, what: str) -> None:
    count = sum(shard.count for shard in shards)
    missing = [shard for shard in shards if not shard.is_whole()]
    done = count - sum(shard.count for shard in missing)
    progress(what, done, count)
    for error, shard in zip(_run(missing, make), missing, strict=True):
        if error:
            raise InputError(error)
        done += shard.count
        if progress(what, done, count) is True and done < count:
            raise PreparationStopped(what, done, count)


@dataclass(frozen=True)
class _Shard:
    """Images `start` to `start + count - 1` of a folder with `length` images per shard.

    If `by_image` is True, the hash of an image is checked on access. Otherwise the checksum of the
    shard is checked at the start.
    """

    folder: Path
    start: int
    count: int
    length: int
    by_image: bool

    def stored(self) -> Path | None:
        """Return the path of the shard, or None.

        A stored shard may be longer than `count`.
        """
        for path in self.folder.glob(f"{self._number}-*"):
            if int(path.name.rpartition("-")[2]) >= self.count:
                return path
        return None

    def is_whole(self) -> bool:
        """Return whether the shard exists and is complete.

        This includes checksums unless images are checked on access.
        """
        path = self.stored()
        return path is not None and load_arrays(path, is_trusted=self.by_image) is not None

    def load(self) -> tuple[Array, Array] | None:
        """Return images and labels of a shard that `is_whole` accepted."""
        path = self.stored()
        arrays = load_arrays(path, is_trusted=True) if path else None
        return (arrays["images"], arrays["labels"]) if arrays else None

    def make(self, make: ImageMaker) -> str:
        """Make and store the shard.

        Return an error message, or an empty text.
        """
        try:
            images, labels = make(self.start, self.count)
            arrays = {"images": images, "labels": labels, "digests": _digests(images)}
            while (damaged := self.stored()) is not None:  # `stored` must not find it
                shutil.rmtree(damaged)
            store_arrays(self.folder / f"{self._number}-{self.count:04d}", arrays)
        except InputError as error:
            return str(error)
        except OSError as error:
            return str(cannot_keep(self.folder, error))
        return ""

    @property
    def _number(self) -> str:
        return f"{self.start // self.length:05d}"


def _digests(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Hash each image: (M, 16)."""
    hashes = [_digest(image) for image in images]
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 16)


def _digest(image: NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()


class _Work(Dataset[str]):
    """Data set of shards to make.

    Item access makes a shard and returns its error message.
    """

    def __init__(self, shards: list[_Shard], make: ImageMaker) -> None:
        self._shards, self._make = shards, make

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> str:
        return self._shards[index].make(self._make)


def _run(shards: list[_Shard], make: ImageMaker) -> Iterator[str]:
    """Make all shards, with one worker process per core.

    A single shard or core uses this process.
    """
    processes = min(len(shards), _cores())
    workers = processes if processes > 1 else 0
    # The workers of a DataLoader always end with this process.
    loader = DataLoader(
        _Work(shards, make),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=1 if workers else None,
        worker_init_fn=_leave_interrupts_to_parent if workers else None,
    )
    try:
        yield from loader
    except RuntimeError as error:
        raise InputError(
            f"making images was broken off ({str(error).splitlines()[0]}); is memory short? "
            "The same command continues from there"
        ) from error


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _leave_interrupts_to_parent(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def waiting_for(folder: Path, progress: Progress, what: str) -> Iterator[None]:
    """Create and lock a folder. Wait while another process holds the lock."""
    make_folder(folder)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except FolderInUse:
                progress(f"{what}, waiting for another process that does so", 0, None)
                time.sleep(_WAIT_SECONDS)
        yield


def check_room(folder: Path, size: int) -> None:
    """Raise unless the disk has room for the missing images.

    All images together need `size` bytes. Stored images are subtracted.
    """
    needed = size
    for path in folder.glob("*/*/*.npy"):  # shards from `store_arrays`
        with contextlib.suppress(OSError):
            needed -= path.stat().st_size
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if needed > free:
        raise InputError(
            f"{folder} needs {needed / 1e9:.1f} GB, but its disk has only {free / 1e9:.1f} GB "
            "free; ask for fewer samples, or set RIFFLEMIX_CACHE to a folder on a larger disk"
        )
