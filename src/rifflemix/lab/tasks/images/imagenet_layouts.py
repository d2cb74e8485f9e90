"""Folder layouts of ImageNet, Tiny-ImageNet and Dogs vs. Cats, and the ReaL labels.

Source: Beyer et al. 2020, Are we done with ImageNet?
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from rifflemix.errors import InputError
from rifflemix.json_values import check_json, parse_json
from rifflemix.lab.tasks.core.base import Sample, Split
from rifflemix.lab.tasks.data_io.files import damaged, reading
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes, read_text_lines
from rifflemix.lab.tasks.images.image_listing import (
    Entry,
    Listing,
    class_folders,
    entry_of,
    image_files,
    labelled,
)

_IMAGENET_FOLDERS = (".", "imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
_TINY_FOLDERS = (".", "tiny-imagenet-200")
_DOGS_FOLDERS = (".", "train", "dogs-vs-cats", "dogs-vs-cats/train")

SOLUTION = "LOC_val_solution.csv"
ANNOTATIONS = "Annotations/CLS-LOC/val"
TINY_LABELS = "val_annotations.txt"

IMAGENET_CLASSES, TINY_CLASSES = 1000, 200

_SYNSET = re.compile(r"n\d{8}")
_BOX_SYNSET = re.compile(rb"<name>\s*(n\d{8})\s*</name>")
_PET = re.compile(r"(cat|dog)\.\d+\.jpg")
_PETS = ("cat", "dog")


class _Base(NamedTuple):
    """The folder that contains "train" and "val", and the classes of "train"."""

    folder: Path
    classes: tuple[str, ...]


def has_imagenet(data_dir: Path) -> bool:
    """Check for the 1,000 classes of ImageNet in a folder."""
    base = _base(data_dir, _IMAGENET_FOLDERS)
    return base is not None and len(base.classes) == IMAGENET_CLASSES


def imagenet_listing(data_dir: Path) -> Listing | None:
    """List ImageNet: train/nXXXXXXXX/*, and val/nXXXXXXXX/* or a flat val.

    The labels of a flat val come from `SOLUTION` or `ANNOTATIONS`, next to val or above it.

    Returns:
        The listing, or None if there are no class folders.

    Raises:
        InputError: there are not 1,000 classes, or the labels are missing, damaged or do not fit
            the images.
    """
    base = _base(data_dir, _IMAGENET_FOLDERS)
    if base is None:
        return None
    _check_classes("ImageNet", base, IMAGENET_CLASSES)
    val = base.folder / "val"
    if class_folders(val):
        return _listing(base, labelled(base.folder, val, base.classes).entries)
    return _listing(base, _by_name(base, val, _flat_labels(data_dir, base.folder)))


def has_tiny(data_dir: Path) -> bool:
    """Check for the 200 classes of Tiny-ImageNet in a folder."""
    base = _base(data_dir, _TINY_FOLDERS)
    return base is not None and len(base.classes) == TINY_CLASSES


def tiny_listing(data_dir: Path) -> Listing | None:
    """List Tiny-ImageNet.

    The training images are in train/nXXXXXXXX/images/*. The validation images are in val/images/*
    with labels in `TINY_LABELS`, or in a folder for each class.

    Returns:
        The listing, or None if there are no class folders.

    Raises:
        InputError: there are not 200 classes, or the labels are missing, damaged or do not fit
            the images.
    """
    base = _base(data_dir, _TINY_FOLDERS)
    if base is None:
        return None
    _check_classes("Tiny-ImageNet", base, TINY_CLASSES)
    val = base.folder / "val"
    if (val / TINY_LABELS).is_file():
        return _listing(base, _by_name(base, val / "images", _tiny_labels(val / TINY_LABELS)))
    if not class_folders(val) or class_folders(val) == ["images"]:
        raise InputError(f"{val / TINY_LABELS}: the file is missing next to its images")
    return _listing(base, labelled(base.folder, val, base.classes).entries)


def has_dogs(data_dir: Path) -> bool:
    """Check for the training images of Dogs vs. Cats in a folder."""
    return _dogs_folder(data_dir) is not None


def dogs_listing(data_dir: Path) -> Listing | None:
    """List Dogs vs. Cats: train/cat.0.jpg, train/dog.0.jpg and so on."""
    folder = _dogs_folder(data_dir)
    if folder is None:
        return None
    found = [
        entry_of(folder, entry.path, _PETS.index(match[1]), entry.stat())
        for entry in image_files(folder)
        if (match := _PET.fullmatch(entry.name))
    ]
    return Listing(folder, _PETS, {"train": tuple(found)})


def _dogs_folder(data_dir: Path) -> Path | None:
    for part in _DOGS_FOLDERS:
        folder = data_dir / part
        if all((folder / f"{pet}.0.jpg").is_file() for pet in _PETS):
            return folder
    return None


def _base(data_dir: Path, parts: Sequence[str]) -> _Base | None:
    """Find the first folder with synset folders in its "train" folder."""
    for part in parts:
        folder = data_dir / part
        names = class_folders(folder / "train")
        synsets = tuple(name for name in names if _SYNSET.fullmatch(name))
        if synsets:
            return _Base(folder, synsets)
    return None


def _check_classes(title: str, base: _Base, count: int) -> None:
    if len(base.classes) != count:
        raise InputError(
            f"{base.folder / 'train'}: expected the {count:,} synsets of {title}, got "
            f"{len(base.classes):,}; other sets of classes are read by task image_folder"
        )


def _listing(base: _Base, held_out: tuple[Entry, ...]) -> Listing:
    train = labelled(base.folder, base.folder / "train", base.classes).entries
    return Listing(base.folder, base.classes, {"train": train, "validation": held_out})


def _flat_labels(data_dir: Path, base: Path) -> dict[str, str]:
    """Read the synset by image name, without suffix, for a flat val folder."""
    above = dict.fromkeys((base, data_dir, data_dir / "ILSVRC", *base.parents[:3]))
    for folder in above:
        if (folder / SOLUTION).is_file():
            return _solution_labels(folder / SOLUTION)
        if (folder / ANNOTATIONS).is_dir():
            return _annotated_labels(folder / ANNOTATIONS)
    raise InputError(
        f"{base / 'val'}: expected a folder for each synset, or the labels of its images in "
        f"{SOLUTION} or {ANNOTATIONS} above it, found neither"
    )


def _solution_labels(path: Path) -> dict[str, str]:
    labels = {}
    for number, line in read_text_lines(path):
        name, _, boxes = line.partition(",")
        synset = boxes.partition(" ")[0]
        if number == 1 and name == "ImageId":
            continue
        if not _SYNSET.fullmatch(synset):
            raise damaged(path, f"line {number} is not an image and its synset")
        labels[name] = synset
    return labels


def _annotated_labels(folder: Path) -> dict[str, str]:
    labels = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not entry.name.endswith(".xml"):
            continue
        path = Path(entry.path)
        found = set(_BOX_SYNSET.findall(read_bytes(path)))
        if len(found) != 1:
            raise damaged(path, f"it names {len(found)} synsets, expected one")
        labels[path.stem] = found.pop().decode()
    return labels


def _tiny_labels(path: Path) -> dict[str, str]:
    labels = {}
    for number, line in read_text_lines(path):
        fields = line.split("\t")
        if len(fields) < 2 or not _SYNSET.fullmatch(fields[1]):
            raise damaged(path, f"line {number} is not an image and its synset")
        labels[Path(fields[0]).stem] = fields[1]
    return labels


def _by_name(base: _Base, folder: Path, names: Mapping[str, str]) -> tuple[Entry, ...]:
    """List the images in a folder, labeled by their names without suffix."""
    labels = {name: label for label, name in enumerate(base.classes)}
    entries = []
    for found in image_files(folder):
        synset = names.get(Path(found.name).stem)
        if synset is None:
            raise InputError(f"{found.path}: no label is given for this image")
        if synset not in labels:
            raise InputError(f"{found.path}: its class {synset} has no training images")
        entries.append(entry_of(base.folder, found.path, labels[synset], found.stat()))
    if len(entries) < len(names):
        raise InputError(
            f"{folder}: expected the {len(names):,} images that have labels, found "
            f"{len(entries):,}; get a fresh copy"
        )
    return tuple(entries)


REAL_FILE = "real.json"
_SOURCE = "https://github.com/google-research/reassessed-imagenet"
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True, eq=False)
class SeveralLabels:
    """Images of a split, each labeled with all classes that fit.

    Attributes:
        split: split with the images. Its labels are not used.
        rows: indices of the images in `split`.
        labels: classes of each image, at least one.
        num_classes: number of classes K.
    """

    split: Split
    rows: Sequence[int]
    labels: Sequence[Sequence[int]]
    num_classes: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return an image and (K,) float32 probabilities, equal for all classes that fit."""
        image, _ = self.split[self.rows[index]]
        labels = torch.zeros(self.num_classes)
        labels[list(self.labels[index])] = 1 / len(self.labels[index])
        return image, labels

    def digest(self) -> bytes:
        """Return a hash of the whole split, the chosen images and their labels."""
        chosen = repr((list(self.rows), [list(classes) for classes in self.labels]))
        return hashlib.blake2b(self.split.digest() + chosen.encode(), digest_size=16).digest()


def real_test(
    split: Split, names: Sequence[str], folders: Sequence[Path], num_classes: int
) -> SeveralLabels:
    """Select the images of a split that have ReaL labels.

    Args:
        split: validation images of ImageNet.
        names: path of each image.
        folders: folders to search for the labels.
        num_classes: number of classes K.

    Raises:
        InputError: the labels are missing or damaged, or an image is not named as in ImageNet.
    """
    path = next((f / REAL_FILE for f in folders if (f / REAL_FILE).is_file()), None)
    if path is None:
        raise InputError(
            f"further_tests: {folders[0] / REAL_FILE} is missing; get {REAL_FILE} of {_SOURCE}"
        )
    by_number = _read(path, num_classes)
    numbers = [_number(name, len(by_number), path) for name in names]
    rows = [row for row, number in enumerate(numbers) if by_number[number - 1]]
    return SeveralLabels(split, rows, [by_number[numbers[row] - 1] for row in rows], num_classes)


def _read(path: Path, num_classes: int) -> list[list[int]]:
    """Read the classes of each image, in the order of the image numbers."""
    content = read_bytes(path)
    with reading(path):
        labels = parse_json(content.decode())
        check_json(labels, list[list[int]], "labels")
    if any(not 0 <= label < num_classes for classes in labels for label in classes):
        raise damaged(path, f"a label is not 0 to {num_classes - 1}")
    return [sorted({*classes}) for classes in labels]


def _number(name: str, count: int, path: Path) -> int:
    match = _NUMBER.match(Path(name).name)
    if match is None or not 0 < int(match[1]) <= count:
        raise InputError(
            f"{name}: expected an image named ILSVRC2012_val_ and a number from 1 to {count:,}, of "
            f"which {path} has labels"
        )
    return int(match[1])
