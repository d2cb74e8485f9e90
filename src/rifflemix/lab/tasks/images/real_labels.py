"""ReaL labels: all classes that fit each validation image of ImageNet (zero, one or more).

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
