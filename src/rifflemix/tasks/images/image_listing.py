"""Labelled image files in folders: what is there, and which split each belongs to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rifflemix.errors import InputError
from rifflemix.tasks.core.base import SPLITS
from rifflemix.tasks.images.image_files import SUFFIXES

_PARTS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}

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
    """

    root: Path
    classes: tuple[str, ...]
    parts: Mapping[str, tuple[Entry, ...]]

    def key(self) -> str:
        """Changes when an image is added, removed, renamed, relabelled or written again.

        Copies from before images of 16 bits were refused may hold them cut to 8: of formats that
        know 16 bits they are made again.
        """
        total = hashlib.blake2b("|".join(self.classes).encode(), digest_size=12)
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
            return parts, "validation and test are the folders of the data set"
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


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, in order; hidden ones do not count."""
    try:
        with os.scandir(folder) as found:
            return sorted(e.name for e in found if e.is_dir() and not _is_hidden(e.name))
    except OSError:
        return []


def image_files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Image files in a folder and in the folders in it, not deeper; hidden ones do not count."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error})") from error
    for entry in entries:
        if _is_hidden(entry.name):
            continue
        if entry.is_dir():
            with os.scandir(entry.path) as inside:
                below = sorted(inside, key=lambda entry: entry.name)
            yield from (e for e in below if _is_image(e))
        elif _is_image(entry):
            yield entry


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__"))


def _is_image(entry: os.DirEntry[str]) -> bool:
    is_named_so = entry.name.lower().endswith(SUFFIXES) and not _is_hidden(entry.name)
    return is_named_so and entry.is_file()


def entry_of(root: Path, path: str, label: int, stat: os.stat_result) -> Entry:
    """An image at `path`, somewhere below `root`."""
    name = os.path.relpath(path, root).replace(os.sep, "/")
    return Entry(name, label, stat.st_size, stat.st_mtime_ns)


def labelled(root: Path, folder: Path, classes: tuple[str, ...]) -> tuple[Entry, ...]:
    """The images in the folders of a part, labelled by the names of the folders.

    Raises:
        InputError: a folder of no class, or one without images.
    """
    entries: list[Entry] = []
    labels = {name: label for label, name in enumerate(classes)}
    for name in class_folders(folder):
        if name not in labels:
            raise InputError(f"{folder / name}: the training part has no class of that name")
        found = [entry_of(root, e.path, labels[name], e.stat()) for e in image_files(folder / name)]
        if not found:
            raise InputError(
                f"{folder / name}: expected images of class {name} ({', '.join(SUFFIXES)}), found "
                "none"
            )
        entries += found
    return tuple(entries)


def find_parts(root: Path) -> dict[str, Path]:
    """The folders train, val and test of a root, under any of their usual names."""
    return {
        part: next(root / name for name in names if (root / name).is_dir())
        for part, names in _PARTS.items()
        if any((root / name).is_dir() for name in names)
    }


def looks_classified(folder: Path) -> bool:
    """Whether a folder holds two folders or more, and all of them hold images."""
    names = class_folders(folder)
    return len(names) > 1 and all(any(image_files(folder / name)) for name in names)


def folder_is_there(root: Path) -> bool:
    """Whether a folder, or the train folder in it, looks classified."""
    return looks_classified(find_parts(root).get("train", root))


def folder_listing(root: Path) -> Listing | None:
    """A classification folder: train/CLASS/*, val/CLASS/*, test/CLASS/*, or CLASS/* alone.

    A test part without folders of classes has no labels, and is left out.

    Raises:
        InputError: a part has a folder without images, or of no class; val has no folders.
    """
    parts = find_parts(root)
    if "train" not in parts:
        if not looks_classified(root):
            return None
        parts = {"train": root}
    elif not class_folders(parts["train"]):
        return None
    if "test" in parts and not class_folders(parts["test"]):
        del parts["test"]
    for folder in parts.values():
        if not class_folders(folder):
            raise InputError(f"{folder}: expected a folder for each class, found none")
    classes = tuple(class_folders(parts["train"]))
    if len(classes) < 2:
        raise InputError(f"{parts['train']}: expected folders of two classes or more, found one")
    return Listing(
        root, classes, {part: labelled(root, folder, classes) for part, folder in parts.items()}
    )
