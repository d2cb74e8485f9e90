"""The binary versions of CIFAR-10 and CIFAR-100: records of labels and planes of color."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.data_io.bounded import read_tar_members
from rifflemix.lab.tasks.data_io.file_task import Form, Paths
from rifflemix.lab.tasks.data_io.files import Arrays, damaged, reading

Finish = Callable[[Mapping[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]], str], Arrays]
"""Arrays from the images (M, 32, 32, 3) and labels (M, L) of each part, and where they are from."""


@dataclass(frozen=True)
class BinaryVersion:
    """The binary version of a data set.

    Attributes:
        title: of the data set.
        folder: in which its files are.
        archive: in which that folder is published.
        files: part -> file -> how many records it has.
        label_bytes: labels L of a record.
    """

    title: str
    folder: str
    archive: str
    files: Mapping[str, Mapping[str, int]]
    label_bytes: int

    def forms(self, finish: Finish, folders: Sequence[str]) -> tuple[Form, Form]:
        """The files in one of `folders`, or the archive."""
        files = {name: name for names in self.files.values() for name in names}
        read = partial(self._read_files, finish)
        return (
            Form(self.folder, files, read, folders, looked_for=f"{self.folder}/"),
            Form(self.archive, {"all": self.archive}, partial(self._read_archive, finish)),
        )

    def _read_files(self, finish: Finish, paths: Paths, progress: Progress) -> Arrays:
        progress(f"decoding {self.title}", 0, None)
        content = {}
        for name, path in paths.items():
            with reading(path):
                content[name] = self._records(path, name, path.read_bytes())
        return self._finish(finish, content, next(iter(paths.values())).parent)

    def _read_archive(self, finish: Finish, paths: Paths, progress: Progress) -> Arrays:
        path = paths["all"]
        progress(f"decoding {path.name}", 0, None)
        wanted = {f"{self.folder}/{name}": name for names in self.files.values() for name in names}
        content = {
            wanted[member]: self._records(path, wanted[member], records)
            for member, records in read_tar_members(path, wanted.__contains__)
        }
        for member, name in wanted.items():
            if name not in content:
                raise damaged(path, f"it holds no {member}")
        return self._finish(finish, content, path)

    def _records(self, path: Path, name: str, content: bytes) -> Arrays:
        """Images and labels of one file: labels first, then planes of red, green and blue."""
        count = next(names[name] for names in self.files.values() if name in names)
        size = self.label_bytes + 3 * 32 * 32
        if len(content) != count * size:
            raise damaged(path, f"it has {len(content)} bytes, expected {count * size}")
        rows = np.frombuffer(content, dtype=np.uint8).reshape(count, size)
        labels, planes = rows[:, : self.label_bytes], rows[:, self.label_bytes :]
        return {"images": channels_last(planes), "labels": labels}

    def _finish(self, finish: Finish, content: Mapping[str, Arrays], path: Path) -> Arrays:
        parts = {}
        for part, names in self.files.items():
            images, labels = (
                np.concatenate([content[name][kind] for name in names])
                for kind in ("images", "labels")
            )
            parts[part] = images, labels
        return finish(parts, str(path))


def channels_last(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Planes of red, green and blue, 3,072 bytes an image in any shape, as (M, 32, 32, 3)."""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def holds_pickles(data_dir: Path, *names: str) -> str:
    """Why a folder is not enough where it has one of these names, or its .tar.gz; else empty."""
    if any((data_dir / f"{name}{ending}").exists() for name in names for ending in ("", ".tar.gz")):
        return "the python version there holds pickles, which can run code and are not read"
    return ""
