"""ReaL: all the labels that people gave ImageNet's validation images, of which none or several fit.

Source: Beyer et al. 2020, Are we done with ImageNet?
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rifflemix.errors import InputError
from rifflemix.json_values import check_json, parse_json
from rifflemix.lab.tasks.core.base import Sample, Split
from rifflemix.lab.tasks.data_io.bounded import read_bytes
from rifflemix.lab.tasks.data_io.files import damaged, reading

REAL_FILE = "real.json"
_SOURCE = "https://github.com/google-research/reassessed-imagenet"
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True, eq=False)
class SeveralLabels:
    """Some images of a split, each with all classes that fit it.

    Attributes:
        split: the images, and labels that are not used.
        rows: which of them.
        labels: of each the classes, at least one.
        num_classes: K.
    """

    split: Split
    rows: Sequence[int]
    labels: Sequence[Sequence[int]]
    num_classes: int

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """An image and (K,) float32 probabilities, equal for all classes that fit."""
        image, _ = self.split[self.rows[index]]
        labels = torch.zeros(self.num_classes)
        labels[list(self.labels[index])] = 1 / len(self.labels[index])
        return image, labels

    def digest(self) -> bytes:
        """Hash of the whole split and of which images have which labels."""
        chosen = repr((list(self.rows), [list(classes) for classes in self.labels]))
        return hashlib.blake2b(self.split.digest() + chosen.encode(), digest_size=16).digest()


def real_test(
    split: Split, names: Sequence[str], folders: Sequence[Path], num_classes: int
) -> SeveralLabels:
    """The images of a split that have ReaL labels.

    Args:
        split: ImageNet's validation images.
        names: of each the path.
        folders: folders that may hold the labels.
        num_classes: K.

    Raises:
        InputError: the labels are missing or damaged, or the images have other names than
            ImageNet's.
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
    """The classes of each image, in the order of their numbers."""
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
