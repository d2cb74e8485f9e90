"""Readers for the binary versions of CIFAR-10 and CIFAR-100."""

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
"""Function from parts and the name of their source to arrays.

Each part has images (M, 32, 32, 3) and labels (M, L).
"""


@dataclass(frozen=True)
class BinaryVersion:
    """The binary version of a data set.

    Attributes:
        title: name of the data set.
        folder: name of the folder with the files.
        archive: name of the published archive that contains the folder.
        files: number of records by part and file name.
        label_bytes: number of labels L per record, one byte each.
    """

    title: str
    folder: str
    archive: str
    files: Mapping[str, Mapping[str, int]]
    label_bytes: int

    def forms(self, finish: Finish, folders: Sequence[str]) -> tuple[Form, Form]:
        """List both formats: the files in one of `folders`, and the archive."""
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
        """Decode the images and labels of one file.

        A record has its labels first, then a red, a green and a blue plane.
        """
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
    """Convert red, green and blue planes to (M, 32, 32, 3).

    Args:
        planes: 3,072 bytes per image, in any shape.
    """
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def holds_pickles(data_dir: Path, *names: str) -> str:
    """Explain why a folder with pickled data cannot be used.

    Returns:
        The reason, or an empty string if the folder has none of `names` (or NAME.tar.gz).
    """
    if any((data_dir / f"{name}{ending}").exists() for name in names for ending in ("", ".tar.gz")):
        return "the python version there holds pickles, which can run code and are not read"
    return ""
