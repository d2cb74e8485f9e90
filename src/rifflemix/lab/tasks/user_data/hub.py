"""Tasks from data sets of the Hugging Face library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.checks import shown
from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.lab.tasks.core.arrays import plain_array
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.core.kinds import FORECAST
from rifflemix.lab.tasks.data_io.columns import MOST_IN_MEMORY, DatasetColumn, Recording, read_cell
from rifflemix.lab.tasks.user_data.choose_kind import Origin
from rifflemix.lab.tasks.user_data.parts import Part, from_parts, split_name
from rifflemix.lab.tasks.user_data.tables import ON_DISK, LabelTable, input_columns, wanted_columns

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HIDDEN = -1  # label of test samples that a competition keeps secret


def from_datasets(
    data: Any,
    *,
    input: str | Sequence[str],
    label: str | Sequence[str] | None = None,
    group: str | None = None,
    time: str | None = None,
    origin: Origin | None = None,
    **options: Any,
) -> Task:
    """Implement `Task.from_datasets`."""
    sets = data if isinstance(data, Mapping) else {"train": data}
    if not sets:
        raise bad_argument("data", "a Dataset or a DatasetDict", "an empty mapping")
    parts = {}
    for name, part in sets.items():
        if not hasattr(part, "column_names") or not hasattr(part, "__len__"):
            raise bad_argument("data", "a Dataset, or a mapping of them", type(part).__name__)
        read = _part(part, input, label, group, time, options.get("kind", "auto"))
        if name == "train" or read.y is None or not _is_hidden(read.y):
            parts[split_name(name)] = read
    name = options.pop("name", "datasets")
    origin = origin or Origin(name, data_source="a data set in memory")
    origin = replace(origin, columns=input_columns(input), group=group or "")
    return from_parts(parts, origin, options)


def from_hf(
    name: str,
    *,
    revision: str,
    input: str | Sequence[str],
    label: str | Sequence[str] | None = None,
    config: str | None = None,
    **options: Any,
) -> Task:
    """Implement `Task.from_hf`."""
    if not isinstance(name, str) or not name.strip():
        raise bad_argument("name", "owner/name of a data set", shown(name))
    if not isinstance(revision, str) or not _COMMIT.fullmatch(revision):
        raise bad_argument(
            "revision", "a commit, 40 hexadecimal digits", shown(revision),
            "names of branches move; the data set's page lists its commits",
        )  # fmt: skip
    try:
        import datasets
    except ImportError:
        raise InputError(
            "Task.from_hf needs the datasets library, which is not installed; "
            "pip install 'rifflemix[data]'"
        ) from None
    try:
        data = datasets.load_dataset(name, config, revision=revision)
    # The library passes on errors of other libraries (Arrow, files, networks).
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"data set {name} at {revision} cannot be read: {reason}") from error
    origin = Origin(
        options.pop("name", name.rpartition("/")[2]),
        data_source=f"{name} at {revision[:8]} of the Hugging Face hub",
        options={"data": name, "revision": revision} | ({"config": config} if config else {}),
    )
    return from_datasets(data, input=input, label=label, origin=origin, **options)


def _part(
    part: Any,
    input: str | Sequence[str],
    label: str | Sequence[str] | None,
    group: str | None,
    time: str | None,
    kind: str,
) -> Part:
    names = part.column_names
    for name in wanted_columns(input, label, group, time):
        if name not in names:
            raise unknown_name("column", name, names)
    if len(part) == 0:
        raise bad_argument("data", "samples in every split", "none")
    is_plain = isinstance(input, str) and isinstance(label, str)
    is_sound = isinstance(input, str) and _is_sound(part, input)
    is_large = is_plain and not is_sound and kind in ON_DISK and len(part) > MOST_IN_MEMORY
    if is_large and not _is_image(part[0][input]) and not isinstance(part[0][label], list):
        groups, times = (None if n is None else _column(part, n) for n in (group, time))
        inputs = DatasetColumn(part, str(input))
        return Part(inputs, _column(part, str(label)), groups=groups, times=times)
    groups, times = (None if n is None else list(part[n]) for n in (group, time))
    if isinstance(input, str):
        x: Any = _sounds(part, input) if is_sound else list(part[input])
        if kind == FORECAST.name and isinstance(x[0], list):  # a series in each cell
            x = [plain_array(cell) for cell in x]
    else:
        x = _table(part, input)
    if label is None or not isinstance(label, str):
        several = None if label is None else LabelTable(_table(part, label), tuple(label))
        return Part(x, several, groups=groups, times=times)
    y = list(part[label])
    if _is_image(x[0]):  # Pillow images
        x = _pixels(x)
    is_class = hasattr(getattr(part, "features", {}).get(label), "int2str")
    if is_class and _HIDDEN in y and not _is_hidden(y):
        raise bad_argument(
            "label", "a class for each sample", f"-1 (none) for sample {y.index(_HIDDEN)}",
            "filter these out first",
        )  # fmt: skip
    return Part(x, y, groups=groups, times=times)


def _is_sound(part: Any, name: str) -> bool:
    return type(getattr(part, "features", {}).get(name)).__name__ == "Audio"


def _sounds(part: Any, name: str) -> list[Recording]:
    """Read the recordings of an audio column with the soundfile library."""
    audio = part.features[name]
    found = []
    for row, cell in enumerate(part.cast_column(name, type(audio)(decode=False))[name]):
        found.append(read_cell(cell, Path(), f"{name} {row}"))
        if audio.sampling_rate not in (None, found[-1].rate):
            raise InputError(
                f"{cell['path'] or row}: expected {audio.sampling_rate} samples per second, the "
                f"rate of column {name!r}, got {found[-1].rate}. Resample the files, or cast the "
                "column to their rate."
            )
    return found


def _column(part: Any, name: str) -> Any:
    """Return a column as an array (M,)."""
    return np.asarray(part.with_format("numpy")[name][:])


def _is_image(sample: Any) -> bool:
    return hasattr(sample, "getbands")


def _table(part: Any, names: Sequence[str]) -> Any:
    """Return several columns of numbers as one array (M, columns)."""
    return np.array([list(part[name]) for name in names]).T


def _pixels(images: list[Any]) -> Any:
    arrays = [_channels(image) for image in images]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise bad_argument(
            "images", "one size and one number of channels", f"{shapes[0]} and {shapes[1]}",
            "resize and convert them with data.map first",
        )  # fmt: skip
    return np.stack(arrays)


def _channels(image: Any) -> Any:
    """Convert an image to numbers (H, W, C).

    Palette images become RGB or RGBA.
    """
    mode = getattr(image, "mode", None)
    if mode in ("P", "PA"):
        image = image.convert("RGBA" if "transparency" in image.info or mode == "PA" else "RGB")
    elif mode == "1":
        image = image.convert("L")
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _is_hidden(labels: Any) -> bool:
    if isinstance(labels, np.ndarray):
        return bool((labels == _HIDDEN).all()) and labels.dtype.kind in "iu"
    return all(isinstance(label, int) and label == _HIDDEN for label in labels)
