"""A tiny CIFAR-10 in the formats of its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from damaged_files import pack

PER_BATCH = 6
Planes = dict[str, tuple[np.ndarray, np.ndarray]]


def batches(planes: Planes) -> dict[str, bytes]:
    """Build the binary files: label byte and planes, image by image."""
    rows = {
        part: np.concatenate([labels[:, None], images.reshape(len(labels), -1)], axis=1)
        for part, (images, labels) in planes.items()
    }
    files = {
        f"data_batch_{number + 1}.bin": rows["train"][
            number * PER_BATCH : (number + 1) * PER_BATCH
        ].tobytes()
        for number in range(5)
    }
    return {**files, "test_batch.bin": rows["test"].tobytes()}


def write_folder(data: Path, planes: Planes) -> None:
    (data / "cifar-10-batches-bin").mkdir()
    for name, content in batches(planes).items():
        (data / "cifar-10-batches-bin" / name).write_bytes(content)


def write_tar(data: Path, planes: Planes) -> None:
    content = {**batches(planes), "readme.html": b"x"}
    files = {f"cifar-10-batches-bin/{name}": values for name, values in content.items()}
    pack(data / "cifar-10-binary.tar.gz", files)


def differences(planes: Planes) -> dict[str, np.ndarray]:
    """Build arrays of cifar10_rgb.npz.xz: differences mod 256 along plane, row and column."""
    arrays = {}
    for part, (images, labels) in planes.items():
        values = images.astype(np.int64)
        for axis in (3, 2, 1):
            values = np.diff(values, axis=axis, prepend=0)
        arrays[f"{part}_x_diff"] = (values % 256).astype(np.uint8)
        arrays[f"{part}_y"] = labels
        arrays[f"{part}_src"] = np.ones(len(labels), np.uint8)
    return arrays


def gray_by_hand(planes: np.ndarray) -> np.ndarray:
    red, green, blue = (planes[:, channel].astype(np.float64) for channel in range(3))
    exact = (19595 * red + 38470 * green + 7471 * blue) / 65536
    return np.floor(exact + 0.5).astype(np.uint8)


def expected_splits(planes: Planes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    images, labels = planes["train"]
    return {
        "train": (images[:27], labels[:27]),
        "validation": (images[27:], labels[27:]),
        "test": planes["test"],
    }
