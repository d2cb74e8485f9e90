"""Labelled image files in folders: what is there, and which split each belongs to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images.image_files import SUFFIXES, begins_as_image

_LITTER = ("__macosx", "thumbs.db", "desktop.ini")

_MOST_SHOWN = 60
_DEEP = (".png", ".ppm", ".pgm", ".tif", ".tiff")


class Entry(NamedTuple):
    """One image: its path below the root, its label, the size of its file and when it changed."""

    path: str
    label: int
    bytes: int
    changed: int


@dataclass(frozen=True)
class Listing:
    """The images of a data set.

    Attributes:
        root: folder of all paths.
        classes: names of the classes; label k is classes[k].
        parts: images of "train" and, where the data set has them, "validation" and "test".
        left_out: a clause on what lies among the images and is not read; empty without any.
    """

    root: Path
    classes: tuple[str, ...]
    parts: Mapping[str, tuple[Entry, ...]]
    left_out: str = ""

    def key(self) -> str:
        """Changes when an image is added, removed, renamed, relabelled or written again.

        Copies from before images of 16 bits were refused may hold them cut to 8: of formats that
        know 16 bits they are made again.
        """
        names = "|".join(self.classes).encode(errors="surrogateescape")
        total = hashlib.blake2b(names, digest_size=12)
        for part, entries in sorted(self.parts.items()):
            total.update(f"{part}\n".encode())
            for entry in sorted(entries):
                total.update(f"{entry}\n".encode(errors="surrogateescape"))
        if any(e.path.lower().endswith(_DEEP) for part in self.parts.values() for e in part):
            total.update(b"no more than 8 bits")
        return total.hexdigest()

    def splits(self) -> tuple[dict[str, list[Entry]], str]:
        """The images of each split, in a fixed shuffled order, and where the splits come from.

        All depends on the names of the images alone. Where the data set has one part beside its
        training images, that is the test split, and validation takes as many images of each
        class as the test split has from the training ones, but at most a tenth; without any such
        part, a tenth of each class is for validation and a tenth for test.
        """
        parts = {part: sorted(entries, key=_position) for part, entries in self.parts.items()}
        held_out = [part for part in ("validation", "test") if part in parts]
        if len(held_out) == 2:
            return parts, "validation and test are parts of the data set"
        tenth = {label: count // 10 for label, count in _counts(parts["train"]).items()}
        if not held_out:
            test, rest = _carved(parts["train"], tenth)
            note = "80 / 10 / 10 % train / validation / test of each class, by a hash of the names"
        else:
            test, rest = parts[held_out[0]], parts["train"]
            counts = _counts(test)
            tenth = {label: min(count, counts.get(label, 0)) for label, count in tenth.items()}
            note = (
                f"test is the {held_out[0]} part of the data set; validation is carved from its "
                "training images, of each class as many as test has but at most a tenth, by a "
                "hash of the names"
            )
        validation, train = _carved(rest, tenth)
        return dict(zip(SPLITS, (train, validation, test), strict=True)), note


def _position(entry: Entry) -> tuple[bytes, str]:
    content = entry.path.encode(errors="surrogateescape")
    return hashlib.blake2b(content, digest_size=16).digest(), entry.path


def _counts(entries: Iterable[Entry]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for entry in entries:
        counts[entry.label] = counts.get(entry.label, 0) + 1
    return counts


def _carved(entries: list[Entry], counts: Mapping[int, int]) -> tuple[list[Entry], list[Entry]]:
    """So many of each class, the first ones, and the others."""
    left = dict(counts)
    taken, others = [], []
    for entry in entries:
        if left[entry.label] > 0:
            left[entry.label] -= 1
            taken.append(entry)
        else:
            others.append(entry)
    return taken, others


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name; hidden files and what systems leave behind do not count.

    Raises:
        InputError: the folder cannot be read, or a link in it leads nowhere.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted((e for e in found if not _is_hidden(e.name)), key=lambda e: e.name)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error})") from error
    for entry in entries:
        if entry.is_symlink() and not os.path.exists(entry.path):
            raise InputError(
                f"{entry.path}: expected a file or a folder, got a link that leads nowhere; mend "
                "it, or take it away"
            )
    return entries


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LITTER


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, in order; none where it is no folder."""
    return [e.name for e in visible(folder) if e.is_dir()] if folder.is_dir() else []


def image_files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Image files in a folder and in the folders in it, not deeper."""
    return (entry for entry in _within(folder) if is_image(entry))


def _within(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder and in the folders in it."""
    for entry in visible(folder):
        if entry.is_dir():
            yield from visible(Path(entry.path))
        else:
            yield entry


def is_image(entry: os.DirEntry[str]) -> bool:
    """Whether it is an image file by the ending of its name, or by how it begins."""
    if not entry.is_file():
        return False
    return entry.name.lower().endswith(SUFFIXES) or begins_as_image(Path(entry.path))


def holds_images(folder: Path) -> bool:
    """Whether a file in a folder, however deep, is named as an image."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        if any(name.lower().endswith(SUFFIXES) and not _is_hidden(name) for name in names):
            return True
    return False


def entry_of(root: Path, path: str, label: int, stat: os.stat_result) -> Entry:
    """An image at `path`, somewhere below `root`."""
    name = os.path.relpath(path, root).replace(os.sep, "/")
    return Entry(name, label, stat.st_size, stat.st_mtime_ns)


def in_a_note(name: str) -> str:
    """A file's name as results can hold it: printable, and not too long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


class Labelled(NamedTuple):
    """The images of a part, and paths of what else lies among them."""

    entries: tuple[Entry, ...]
    others: tuple[str, ...]


def labelled(root: Path, folder: Path, classes: tuple[str, ...]) -> Labelled:
    """The images in the folders of a part, labelled by the names of the folders.

    Raises:
        InputError: a folder of no class, one without images, or with images deeper than they are
            looked for.
    """
    entries: list[Entry] = []
    others: list[str] = []
    labels = {name: label for label, name in enumerate(classes)}
    for name in class_folders(folder):
        if name not in labels:
            raise InputError(f"{folder / name}: the training part has no class of that name")
        found = []
        for entry in _within(folder / name):
            if is_image(entry):
                found.append(entry_of(root, entry.path, labels[name], entry.stat()))
            else:
                _check_not_deeper(entry)
                others.append(entry.path)
        if not found:
            raise InputError(
                f"{folder / name}: expected images of class {name} ({', '.join(SUFFIXES)}), found "
                "none"
            )
        entries += found
    return Labelled(tuple(entries), tuple(others))


def _check_not_deeper(entry: os.DirEntry[str]) -> None:
    if entry.is_dir() and holds_images(Path(entry.path)):
        raise InputError(
            f"{entry.path}: expected images in the folder of their class or one folder deeper, "
            "found some here; move them up, or away"
        )
