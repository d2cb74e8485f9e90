"""Read files with one sequence each: .wav and .flac recordings, and .npy arrays."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, require_packages
from rifflemix.files import check_regular
from rifflemix.lab.tasks.data_io.files import damaged, reading
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes, read_npy

ENDINGS = (".wav", ".flac", ".npy")


@dataclass(frozen=True, eq=False)
class Recording:
    """Values of a file.

    Attributes:
        values: (T, C) float32.
        rate: Steps per second. None if the file does not contain it.
    """

    values: NDArray[np.float32]
    rate: int | None


def is_recording(path: object) -> bool:
    """Return whether a text or path ends in one of `ENDINGS`."""
    return str(path).lower().endswith(ENDINGS)


def read_recording(path: Path) -> Recording:
    """Read a .wav, .flac or .npy file.

    Raises:
        InputError: The file is missing, damaged or empty, or the soundfile library is missing.
    """
    with reading(path):
        check_regular(path)
        if path.suffix.lower() == ".npy":
            return Recording(_steps(path, read_npy(path, read_bytes(path))), None)
        return _sound(path, path)


def read_sound(content: bytes, path: Path) -> Recording:
    """Read the content of a .wav, .flac or other file of the soundfile library.

    `path` names the content in errors.
    """
    with reading(path):
        return _sound(io.BytesIO(content), path)


def is_sound(cell: object) -> bool:
    """Return whether a cell has the form of audio in `datasets`: the bytes and path of a file."""
    return isinstance(cell, Mapping) and {"bytes", "path"} <= set(cell)


def read_cell(cell: Mapping[str, Any], folder: Path, name: str) -> Recording:
    """Read the recording of a cell.

    Args:
        cell: See `is_sound`.
        folder: Folder of files without bytes.
        name: Name of the cell, for errors.

    Raises:
        InputError: The cell has neither bytes nor a path, or any case of `read_recording`.
    """
    path = cell["path"]
    if cell["bytes"] is not None:
        return read_sound(cell["bytes"], Path(path or name))
    if path is None:
        raise InputError(f"{name}: expected the bytes or the path of a recording, got none.")
    return read_recording(folder / path)


def _sound(source: Path | io.BytesIO, path: Path) -> Recording:
    require_packages(f"{path.name}", "data", "soundfile")
    import soundfile

    try:
        values, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise damaged(path, error.error_string) from error
    return Recording(_steps(path, values), int(rate))


def values_of(
    recordings: Sequence[Recording], names: Sequence[object]
) -> tuple[list[NDArray[np.float32]], int | None]:
    """Return the values (T, C) of each recording, and their rate.

    Raises:
        InputError: The recordings differ in channels or rate. The error has the name of one.
    """
    first = recordings[0]
    for name, one in zip(names, recordings, strict=True):
        check_alike(name, one, first.values.shape[1], first.rate)
    return [one.values for one in recordings], first.rate


def check_alike(path: object, one: Recording, channels: int, rate: int | None) -> None:
    """Raise unless a recording has this number of channels and this rate."""
    if one.values.shape[1] != channels:
        raise InputError(f"{path}: expected {channels} channels, got {one.values.shape[1]}")
    if one.rate != rate:
        advice = "Resample the files to one rate."
        raise InputError(f"{path}: expected {_rate(rate)}, got {_rate(one.rate)}. {advice}")


def _rate(rate: int | None) -> str:
    return "no sample rate" if rate is None else f"{rate:,} samples per second"


def _steps(path: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        got = f"{values.dtype} of shape {values.shape}"
        raise InputError(f"{path}: expected numbers (T,) or (T, C), got {got}")
    if not values.size:
        raise damaged(path, "it has no values")
    with np.errstate(over="ignore"):
        return values.astype(np.float32).reshape(len(values), -1)
