"""`rm.load_run`: find a finished run, and load its model from the folder of its training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, require_packages, unknown_name
from rifflemix.files import damaged_run, read_json, read_tensors, user_path
from rifflemix.json_values import check_seal, decode, parse_json
from rifflemix.lab.experiments import only_run
from rifflemix.lab.runs.folder import (
    StoredRun,
    build_stored,
    fit_weights,
    is_run,
    load_stored_task,
    read_run,
)
from rifflemix.lab.tasks.core.arrays import SequenceInputs
from rifflemix.lab.tasks.core.card import RECORD_FORMAT, InputSpec, TaskRecord
from rifflemix.lab.tasks.core.forecasts import SeriesInputs
from rifflemix.lab.tasks.graphs.graphs import MoleculeInputs
from rifflemix.lab.tasks.images.image_files import PixelInputs
from rifflemix.lab.tasks.synthetic.grammar import ExpressionInputs
from rifflemix.lab.tasks.text.encoder import TextInputs
from rifflemix.lab.tasks.text.next_token import ByteInputs, MaskedInputs, PromptInputs, SymbolInputs
from rifflemix.lab.tasks.user_data.splits import FrameInputs
from rifflemix.lab.tasks.user_data.tokenizing import WordInputs
from rifflemix.lab.train.run_folder import RunFolder
from rifflemix.lab.train.state import read_result
from rifflemix.lab.trained.run import TrainedRun
from rifflemix.version import VERSION

_CLASSES: tuple[type[InputSpec], ...] = (
    ByteInputs,
    ExpressionInputs,
    FrameInputs,
    MaskedInputs,
    MoleculeInputs,
    PixelInputs,
    PromptInputs,
    SequenceInputs,
    SeriesInputs,
    SymbolInputs,
    TextInputs,
    WordInputs,
)
_BY_KIND = {cls.kind: cls for cls in _CLASSES}


def read_spec(record: TaskRecord) -> InputSpec | None:
    """Decode the input conversion of a task; None if the task has none.

    Raises:
        InputError: the conversion is unknown or damaged.
    """
    if record.inputs is None:
        return None
    kind = record.inputs.get("kind")
    if kind not in _BY_KIND:
        expected = f"inputs of kind {', '.join(_BY_KIND)}"
        raise InputError(f"task {record.name}: expected {expected}, got {kind!r}")
    try:
        _check_fields(_BY_KIND[kind], record.inputs, "kind")
        return decode(_BY_KIND[kind], record.inputs)
    except ValueError as error:
        raise InputError(f"task {record.name}: its inputs cannot be read: {error}") from error


_SEED = "seed"


def find_run(folder: Path, mixer: str | None, seed: int | None) -> Path:
    """Find a finished run in a folder of train, compare, sweep or reproduce, or a run in one.

    Args:
        folder: the folder.
        mixer: label of the mixer in a comparison, or of the point in a sweep. None allows all.
        seed: seed of the run. None allows all.

    Returns:
        The folder of the run. If several runs are possible, the best one by validation.

    Raises:
        InputError: the folder has no finished run, or none with this name.
    """
    if not folder.is_dir():
        raise bad_argument("folder", "the folder of a training", str(folder))
    single = folder if is_run(folder) else only_run(folder)
    if single != folder or is_run(folder):
        return _single(single, mixer, seed)
    runs = {
        (path.parent.name, path.name.removeprefix(_SEED)): path
        for path in sorted(folder.glob(f"*/{_SEED}*"))
        if is_run(path)
    }
    if not runs:
        raise bad_argument(
            "folder",
            "a folder of train, compare, sweep or reproduce with a run",
            str(folder),
            _advice(folder),
        )
    for name, value, known in (
        ("mixer", mixer, {label for label, _ in runs}),
        ("seed", None if seed is None else str(seed), {number for _, number in runs}),
    ):
        if value is not None and value not in known:
            raise unknown_name(f"{name} of {folder}", value, known)
    chosen = [
        path
        for (label, number), path in runs.items()
        if mixer in (None, label) and (seed is None or number == str(seed))
    ]
    finished = [path for path in chosen if RunFolder(path).result.is_file()]
    if not finished:
        raise _unfinished(folder if len(chosen) != 1 else chosen[0])
    return max(finished, key=_validation) if len(finished) > 1 else finished[0]


def _single(run: Path, mixer: str | None, seed: int | None) -> Path:
    for name, value in (("mixer", mixer), ("seed", seed)):
        if value is not None:
            raise bad_argument(name, "None with the folder of one run", repr(value))
    if not RunFolder(run).result.is_file():
        raise _unfinished(run)
    return run


def _validation(run: Path) -> float:
    """Return the validation metric of a run; higher is better."""
    result = read_result(RunFolder(run))
    value = result.chosen().get(result.metric)
    if value is None:
        raise InputError(
            f"{run}: no validation split chooses between the runs; name one by mixer and seed"
        )
    return value if result.protocol.get("higher_is_better", True) else -value


def _unfinished(run: Path) -> InputError:
    return bad_argument(
        "folder",
        "a finished run",
        f"{run} without {RunFolder(run).result.name}",
        "give the command of the run again: it continues",
    )


def _advice(folder: Path) -> str:
    inside = [path.parent.name for path in sorted(folder.glob("*/config.json"))]
    config = RunFolder(folder).config
    if config.is_file() and not inside:
        read_json(config)  # report a damaged file
        return "it has no finished run yet; give its command again: it continues"
    return f"choose one of the folders in it: {', '.join(inside)}" if inside else ""


_RESTORE = "restore the file, or train again"


def load_run(
    folder: str | PathLike[str], *, mixer: str | None = None, seed: int | None = None
) -> TrainedRun:
    """Load a trained model for predictions. The training data is not needed.

    Args:
        folder: folder of `train`, `compare`, `sweep` or `reproduce`, or of one run in it.
        mixer: label of the mixer in a comparison, or of the point in a sweep, such as "lr=0.001".
            None allows all.
        seed: seed of the run. None allows all.

    Returns:
        The finished run. If several runs are possible, the best one by validation.

    Raises:
        InputError: there is no such finished run, a file is missing or damaged, or the weights do
            not fit the model of this version.

    Example:
        >>> import numpy as np, rifflemix as rm
        >>> x = np.random.default_rng(0).normal(size=(200, 8, 2))
        >>> task = rm.Task.from_arrays(x, np.where(x.mean(axis=(1, 2)) > 0, "high", "low"))
        >>> _ = rm.compare(task, ["csp", "tssa"], out="runs/two", max_steps=40, batch_size=20)
        >>> run = rm.load_run("runs/two", mixer="csp")
        >>> run.classes, run.predict(x[:3]).shape
        (('high', 'low'), (3,))
    """
    require_packages("load_run", "compare", "msgspec")
    if mixer is not None and not isinstance(mixer, str):
        raise bad_argument("mixer", "the label of a mixer", repr(mixer))
    if seed is not None:
        seed = check_integer("seed", seed, 0)
    path = find_run(user_path("folder", folder), mixer, seed)
    run = read_run(path)
    result = read_result(run.files)
    weights = run.files.chosen("last" if run.selects_last else "best")
    if not weights.is_file():
        raise InputError(f"{weights} is missing; {_RESTORE}")
    tensors, _ = read_tensors(weights)
    value = _read_values(run.files.task)
    with _naming_versions(path, value):
        record = _derived_record(run) if value is None else _decode_record(run.files.task, value)
        model = build_stored(run, record.shapes, record.output, "folder")
        fit_weights(model, weights, tensors)
        inputs = read_spec(record)
    return TrainedRun(
        folder=path,
        model=model.eval(),
        task=record,
        metrics={"validation": result.chosen(), "test": dict(result.test or {})},
        inputs=inputs,
    )


@contextmanager
def _naming_versions(path: Path, value: Mapping[str, Any] | None) -> Iterator[None]:
    """Add to errors the version that wrote the run, if it is not this version.

    Args:
        path: folder of the run.
        value: stored record of the task, or None.
    """
    try:
        yield
    except InputError as error:
        version = (value or {}).get("version")
        if value is None or version == VERSION:
            raise
        writer = f"rifflemix {version}" if isinstance(version, str) else "an older rifflemix"
        raise InputError(
            f"{path}: {writer} wrote the run, and rifflemix {VERSION} cannot load it "
            f"({str(error).removesuffix('.')}); load it with the version that wrote it"
        ) from error


def _read_values(path: Path) -> dict[str, Any] | None:
    """Read the stored record of a run's task. Older runs have none."""
    if not path.is_file():
        return None
    value = read_json(path, _RESTORE)
    try:
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        check_seal(value)
    except ValueError as error:
        raise damaged_run(path, str(error), _RESTORE) from error
    return value


def _decode_record(path: Path, value: dict[str, Any]) -> TaskRecord:
    """Decode the stored record of a run's task."""
    try:
        if value.get("format") != RECORD_FORMAT:
            raise ValueError(f"expected format {RECORD_FORMAT}, got {value.get('format')!r}")
        _check_fields(TaskRecord, value, "format", "sha256")
        return decode(TaskRecord, value)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _check_fields(cls: type[Any], value: Mapping[str, Any], *others: str) -> None:
    """Raise for fields that this version does not have. They may change the predictions."""
    unknown = set(value) - {entry.name for entry in fields(cls)} - set(others)
    if unknown:
        raise ValueError(f"expected the fields of {cls.__name__}, got also {sorted(unknown)[0]!r}")


def _derived_record(run: StoredRun) -> TaskRecord:
    """Derive the record of a run of an old version from its data."""
    path: Path = run.files.task
    try:
        task = load_stored_task(run)
    except InputError as error:
        raise InputError(
            f"{path} is missing, as in runs of older versions, and the data cannot be read either: "
            f"{error}"
        ) from error
    if task.fingerprint() != run.fingerprint:
        raise InputError(
            f"{path} is missing, as in runs of older versions, and the data is not the data that "
            "the run was trained on"
        )
    return decode(TaskRecord, parse_json(json.dumps(task.record().to_json())))
