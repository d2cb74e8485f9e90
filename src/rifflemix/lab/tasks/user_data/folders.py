"""Tasks from user folders: one file per split, or images or recordings by class."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.errors import InputError, InputWarning, bad_argument, unknown_name
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.core.builder import Request
from rifflemix.lab.tasks.core.kinds import CLASSIFICATION, FORECAST
from rifflemix.lab.tasks.data_io.columns import RECORDINGS, is_recording
from rifflemix.lab.tasks.data_io.files import Arrays
from rifflemix.lab.tasks.data_io.safe_readers import read_npz
from rifflemix.lab.tasks.images.image_folder import IMAGE_FOLDER
from rifflemix.lab.tasks.images.image_listing import class_folders, find_parts, visible
from rifflemix.lab.tasks.user_data.choose_kind import AUTO, UNLABELLED, Origin
from rifflemix.lab.tasks.user_data.parts import NAMES, Part, from_parts
from rifflemix.lab.tasks.user_data.rows import ENDINGS, ending
from rifflemix.lab.tasks.user_data.samples import is_images
from rifflemix.lab.tasks.user_data.tables import (
    columns_with_gaps,
    input_columns,
    read_table,
    table_parts,
    wanted_columns,
)


def recording_parts(root: Path) -> tuple[Mapping[str, Part], str]:
    """Find recordings below a folder.

    The layout is CLASS/*, or train/CLASS/*, val/CLASS/* and test/CLASS/*. A test folder without
    folders of classes has no labels, so it is left out.

    Returns:
        Paths and class names of each split, and a note on recordings that are left out. No split
        if the folder contains no recordings.

    Raises:
        InputError: A folder of a class has no recordings, or only the test folder has no classes.
    """
    parts = find_parts(root)
    parts = parts if "train" in parts else {"train": root}
    found = {name: _recordings_of(folder) for name, folder in parts.items()}
    if not any(files for classes in found.values() for files in classes.values()):
        return {}, ""
    note = ""
    for name, classes in list(found.items()):
        if not classes:
            count = sum(map(is_recording, parts[name].iterdir()))
            if name != "test" or not count:
                raise InputError(f"{parts[name]}: expected a folder for each class, got none.")
            del found[name]
            note = f"the {count:,} recordings of {parts[name].name} have no labels and are left out"
        for of, files in classes.items():
            if not files:
                where, names = parts[name] / of, ", ".join(RECORDINGS)
                raise InputError(f"{where}: expected files {names}, got none. Remove the folder.")
    return {
        name: Part(
            [path for files in classes.values() for path in files],
            [of for of, files in classes.items() for _ in files],
            source=parts[name].name,
        )
        for name, classes in found.items()
    }, note


def _recordings_of(folder: Path) -> dict[str, list[Path]]:
    return {
        name: [Path(e) for e in visible(folder / name) if e.is_file() and is_recording(e.name)]
        for name in class_folders(folder)
    }


_ARRAYS = ".npz"
_LENGTHS = "lengths"
_KINDS = (_ARRAYS, *ENDINGS)


def from_folder(path: str | PathLike[str], *, origin: Origin | None = None, **options: Any) -> Task:
    """Implement `Task.from_folder`."""
    folder = user_path("path", path)
    if not folder.is_dir():
        raise bad_argument("path", "an existing folder", repr(str(path)))
    try:
        series = tables_of(folder) if options.get("kind") == FORECAST.name else []
        is_split = any(_stem(path) in NAMES for path in series)
        files = {} if series and not is_split else _files(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error
    if series and not is_split:
        return _series(series, origin or _origin(folder), options)
    recordings, note = ({}, "") if files else recording_parts(folder)
    if not files and not recordings:
        if origin is not None:
            raise InputError(
                f"{folder}: expected train as .npz, .csv, .tsv or .jsonl, or recordings in folders "
                "of their classes, found none; images in such folders are task image_folder"
            )
        return _images(folder, options)
    origin = origin or _origin(folder)
    if recordings:
        task = _recordings(recordings, origin, options)
        return replace(task, split_note=f"{task.split_note}; {note}") if note else task
    input, label = options.pop("input", None), options.pop("label", None)
    group, lengths = options.pop("group", None), options.pop("lengths", None)
    time = options.pop("time", None)
    if ending(next(iter(files.values()))) == _ARRAYS:
        parts = {
            n: npz_part(
                f, input or "x", npz_label(label, options.get("kind")), group, lengths, time
            )
            for n, f in files.items()
        }
    elif lengths is not None:
        raise bad_argument("lengths", "None for tables", repr(lengths))
    else:
        input = input or "text"
        label = label or (None if options.get("kind") in UNLABELLED else "label")
        wanted = wanted_columns(input, label, group, time)
        empty = columns_with_gaps(input, options)
        tables = [read_table(file, wanted, empty=empty) for file in files.values()]
        read = table_parts(tables, input, label, group, time, options)
        origin = replace(origin, columns=input_columns(input), group=group or "")
        parts = dict(zip(files, read, strict=True))
    return from_parts(parts, origin, options)


def _origin(folder: Path) -> Origin:
    return Origin("folder", title=folder.name, data_source=f"{folder.name}/")


def tables_of(folder: Path) -> list[Path]:
    """List the tables in a folder by name."""
    return [Path(e) for e in visible(folder) if e.is_file() and ending(Path(e)) in ENDINGS]


def _series(files: Sequence[Path], origin: Origin, options: dict[str, Any]) -> Task:
    """Create a forecast task from one table per series. The names of the files name the series."""
    input = options.pop("input", None)
    for name in ("label", "group", "lengths", "time"):
        if options.pop(name, None) is not None:
            raise bad_argument(name, "None with one file per series", "a name")
    if input is None:
        raise bad_argument("input", "the columns of the series", None)
    wanted = wanted_columns(input, None, None)
    tables = [read_table(file, wanted) for file in files]
    parts = table_parts(tables, input, None, None, None, options)
    if any(isinstance(part.x, list) for part in parts):
        raise bad_argument("input", "numbers with one file per series", "a column of lists")
    names = np.repeat([file.name for file in files], [len(part.x) for part in parts])
    whole = Part(np.concatenate([part.x for part in parts]), None, groups=names)
    origin = replace(origin, columns=input_columns(input))
    return from_parts({"train": whole}, origin, options)


def _recordings(parts: Mapping[str, Part], origin: Origin, options: dict[str, Any]) -> Task:
    names = ("input", "label", "group", "lengths", "time")
    unused = {name: options.pop(name, None) for name in names}
    for name, value in unused.items():
        if value is not None:
            raise bad_argument(name, "None with folders of recordings", repr(value))
    if options.get("kind", AUTO) not in (AUTO, CLASSIFICATION.name):
        expected = "'classification' with folders of recordings"
        hint = "a table with a column of file names can have other labels"
        raise bad_argument("kind", expected, repr(options["kind"]), hint)
    return from_parts(parts, origin, options)


def npz_label(label: str | None, kind: Any) -> str | None:
    """Return the array of labels: "y" by default, unless the kind needs no labels."""
    return label or (None if kind in UNLABELLED else "y")


def npz_part(
    file: Path,
    x: str,
    y: str | None,
    group: str | None,
    lengths: str | None,
    time: str | None = None,
) -> Part:
    """Read the named arrays of an .npz file.

    By default, this function reads array "lengths" unless the samples are images. It warns about
    unused arrays.
    """
    arrays = read_npz(file)
    if lengths is None and _LENGTHS in arrays and _LENGTHS not in (x, y, group, time):
        lengths = None if is_images(_array(file, arrays, x)) else _LENGTHS
    names = (x, y, lengths, group, time)
    samples, labels, counts, groups, times = (
        None if name is None else _array(file, arrays, name) for name in names
    )
    unused = [name for name in arrays if name not in names]
    if unused:
        warnings.warn(
            f"{file.name}: not used: {', '.join(unused)}; used: x = {x}, y = {y}, "
            f"lengths = {lengths or 'none'}, group = {group or 'none'}",
            InputWarning,
            stacklevel=4,
        )
    return Part(samples, labels, counts, groups, file.name, times)


def _array(file: Path, arrays: Arrays, name: str) -> Any:
    if not isinstance(name, str) or name not in arrays:
        raise unknown_name(f"array of {file.name}", name, arrays)
    return arrays[name]


def _files(folder: Path) -> dict[str, Path]:
    """Find the file of each split, all of the same format.

    Return an empty mapping if the folder contains images by class.
    """
    found: dict[str, Path] = {}
    others = []
    for path in sorted(folder.iterdir()):
        name = NAMES.get(_stem(path))
        if name is None or not path.is_file() or ending(path) not in _KINDS:
            others.append(path)
        elif name in found:
            both = f"{found[name].name} and {path.name}"
            raise InputError(f"{folder}: expected one file for {name}, got {both}")
        else:
            found[name] = path
    if found or not any(path.is_dir() for path in others):
        _check_others(folder, others)
    if len({ending(file) for file in found.values()}) > 1:
        names = ", ".join(file.name for file in found.values())
        raise InputError(f"{folder}: expected files of one kind, got {names}")
    return found


def _stem(path: Path) -> str:
    return path.name.split(".")[0].lower()


def _check_others(folder: Path, others: Sequence[Path]) -> None:
    """Raise if the folder contains data files that would be ignored."""
    for path in others:
        is_data = path.is_file() and any(suffix.lower() in _KINDS for suffix in path.suffixes)
        if (is_data and _stem(path)) or _stem(path) in NAMES:
            raise InputError(
                f"{folder}: expected only train, validation and test as .npz, .csv, .tsv or "
                f".jsonl, got {path.name}; rename it, or move it to another folder"
            )


def _images(folder: Path, options: dict[str, Any]) -> Task:
    known = IMAGE_FOLDER.card.options
    for name in options:
        if name not in known:
            raise unknown_name(f"option of task {IMAGE_FOLDER.card.name}", name, known)
    request = Request(
        data_dir=folder,
        seed=0,
        options={**known, **options},
        given=frozenset(options),
        progress=lambda what, done, total: None,
    )
    return IMAGE_FOLDER.load(request)
