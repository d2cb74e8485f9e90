"""Tasks from data sets of the Hugging Face library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rifflemix.checks import shown
from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.own.arrays import Origin
from rifflemix.lab.tasks.own.parts import Part, from_parts, split_name

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HIDDEN = -1  # label of test samples that a competition keeps secret


def from_datasets(
    data: Any,
    *,
    input: str,
    label: str,
    group: str | None = None,
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
        read = _part(part, input, label, group)
        if name == "train" or not _is_hidden(read.y):
            parts[split_name(name)] = read
    name = options.pop("name", "datasets")
    origin = origin or Origin(name, data_source="a data set in memory")
    return from_parts(parts, origin, options)


def from_hf(
    name: str, *, revision: str, input: str, label: str, config: str | None = None, **options: Any
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


def _part(part: Any, input: str, label: str, group: str | None) -> Part:
    names = part.column_names
    for name in (input, label, *([] if group is None else [group])):
        if name not in names:
            raise unknown_name("column", name, names)
    if label == input:
        raise bad_argument("input", f"a column beside the label {label!r}", repr(input))
    if len(part) == 0:
        raise bad_argument("data", "samples in every split", "none")
    x, y = list(part[input]), list(part[label])
    if hasattr(x[0], "getbands"):  # Pillow images
        x = _pixels(x)
    is_class = hasattr(getattr(part, "features", {}).get(label), "int2str")
    if is_class and _HIDDEN in y and not _is_hidden(y):
        raise bad_argument(
            "label", "a class for each sample", f"-1 (none) for sample {y.index(_HIDDEN)}",
            "filter these out first",
        )  # fmt: skip
    return Part(x, y, groups=None if group is None else list(part[group]))


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


def _is_hidden(labels: list[Any]) -> bool:
    return all(isinstance(label, int) and label == _HIDDEN for label in labels)
