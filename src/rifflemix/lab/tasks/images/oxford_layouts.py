"""Folder layouts of Oxford Flowers-102 and Oxford-IIIT Pet."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, require_packages
from rifflemix.lab.tasks.data_io.files import damaged
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes, read_text_lines
from rifflemix.lab.tasks.images.image_listing import Entry, Listing, entry_of

FLOWER_CLASSES, PET_CLASSES = 102, 37
FLOWER_LABELS, FLOWER_SPLITS = "imagelabels.mat", "setid.mat"
PET_LISTS = {"train": "annotations/trainval.txt", "test": "annotations/test.txt"}

_FLOWER_FOLDERS = (".", "flowers-102")
_PET_FOLDERS = (".", "oxford-iiit-pet")
_FLOWER_PARTS = {"train": "trnid", "validation": "valid", "test": "tstid"}
_PET = re.compile(r"([^\s/\\]+)_\d+ (\d+) [12] \d+")


def has_flowers(data_dir: Path) -> bool:
    """Check for the images and splits of Flowers-102 in a folder."""
    return _base(data_dir, _FLOWER_FOLDERS, ("jpg", FLOWER_SPLITS)) is not None


def flowers_listing(data_dir: Path) -> Listing | None:
    """List Flowers-102: jpg/image_00001.jpg and so on.

    The labels come from `FLOWER_LABELS`, the splits from `FLOWER_SPLITS`.

    Raises:
        InputError: SciPy is not installed, a file is damaged, an image is missing, or the labels
            do not fit the splits.
    """
    base = _base(data_dir, _FLOWER_FOLDERS, ("jpg", FLOWER_SPLITS))
    if base is None:
        return None
    require_packages("Flowers-102", "images", "scipy")
    labels = _numbers(base / FLOWER_LABELS, ("labels",))["labels"]
    if set(labels.tolist()) != set(range(1, FLOWER_CLASSES + 1)):
        reason = f"its labels are not 1 to {FLOWER_CLASSES}, each for some image"
        raise damaged(base / FLOWER_LABELS, reason)
    path = base / FLOWER_SPLITS
    splits = _numbers(path, tuple(_FLOWER_PARTS.values()))
    every = np.concatenate(list(splits.values()))
    if not np.array_equal(np.sort(every), np.arange(1, len(labels) + 1)):
        raise damaged(path, f"its parts are not a split of the {len(labels):,} images with labels")
    parts = {
        part: [(f"jpg/image_{number:05}.jpg", int(labels[number - 1]) - 1) for number in numbers]
        for part, numbers in zip(_FLOWER_PARTS, splits.values(), strict=True)
    }
    classes = tuple(str(number) for number in range(1, FLOWER_CLASSES + 1))
    return Listing(base, classes, {part: _entries(base, found) for part, found in parts.items()})


def has_pets(data_dir: Path) -> bool:
    """Check for the images and lists of Oxford-IIIT Pet in a folder."""
    return _base(data_dir, _PET_FOLDERS, ("images", *PET_LISTS.values())) is not None


def pets_listing(data_dir: Path) -> Listing | None:
    """List Oxford-IIIT Pet: images/NAME.jpg, with the lists in `PET_LISTS`.

    Raises:
        InputError: a list is damaged or lacks one of the 37 breeds, or an image is missing.
    """
    base = _base(data_dir, _PET_FOLDERS, ("images", *PET_LISTS.values()))
    if base is None:
        return None
    breeds: dict[int, str] = {}
    parts = {part: _listed_pets(base / name, breeds) for part, name in PET_LISTS.items()}
    for part, found in parts.items():
        labels = {label for _, label in found}
        if labels != set(range(PET_CLASSES)):
            reason = f"expected breeds 1 to {PET_CLASSES}, got {len(labels)} of them"
            raise damaged(base / PET_LISTS[part], reason)
    twice = set(parts["train"]) & set(parts["test"])
    if twice:
        raise damaged(base / PET_LISTS["test"], f"{min(twice)[0]} is a training image too")
    classes = tuple(breeds[label] for label in range(PET_CLASSES))
    return Listing(base, classes, {part: _entries(base, found) for part, found in parts.items()})


def _base(data_dir: Path, folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """Find the first folder that contains all names."""
    for folder in (data_dir / part for part in folders):
        if all((folder / name).exists() for name in names):
            return folder
    return None


def _entries(base: Path, images: Sequence[tuple[str, int]]) -> tuple[Entry, ...]:
    found = []
    for name, label in images:
        path = base / name
        try:
            stat = os.stat(path)
        except OSError as error:
            raise InputError(
                f"{path}: expected an image that the data set lists, got an unreadable file "
                f"({error.strerror}). Get a fresh copy."
            ) from error
        found.append(entry_of(base, str(path), label, stat))
    return tuple(found)


def _listed_pets(path: Path, breeds: dict[int, str]) -> list[tuple[str, int]]:
    """Read the image and label of each line.

    The function also stores the name of each label in `breeds`.
    """
    found: dict[str, int] = {}
    for number, line in read_text_lines(path):
        if line.startswith("#"):
            continue
        match = _PET.fullmatch(line.strip())
        if match is None:
            raise damaged(path, f"line {number} is not an image, its breed, species and number")
        name, label = match[0].split(" ")[0], int(match[2]) - 1
        if name in found or breeds.setdefault(label, match[1]) != match[1]:
            raise damaged(path, f"line {number} has an image twice, or a breed with two names")
        found[name] = label
    return [(f"images/{name}.jpg", label) for name, label in found.items()]


def _numbers(path: Path, names: Sequence[str]) -> Mapping[str, NDArray[np.int64]]:
    """Read integer variables of a MATLAB file as flat arrays.

    Raises:
        InputError: the file is missing or damaged, or lacks one of the variables.
    """
    read_bytes(path)  # reports missing and unreadable files
    found = _matrices(path, names)
    rows = {}
    for name in names:
        values = np.asarray(found.get(name, np.zeros(0)))
        is_finite = values.dtype.kind in "iuf" and bool(np.isfinite(values).all())
        whole = values.astype(np.int64) if values.size and is_finite else None
        if whole is None or not np.array_equal(values, whole):
            raise damaged(path, f"expected whole numbers as {name!r}, found none")
        rows[name] = whole.ravel()
    return rows


def _matrices(path: Path, names: Sequence[str]) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        found: dict[str, Any] = loadmat(path, variable_names=list(names))
    except Exception as error:  # the parser of SciPy raises any exception
        raise damaged(path, "it is no file of MATLAB") from error
    return found
