"""`rm.load_run`: find a finished run, and load its model from the folder of its training."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, require_packages, unknown_name
from rifflemix.files import damaged_run, read_json, user_path
from rifflemix.json_values import check_seal, parse_json
from rifflemix.lab.decode import decode
from rifflemix.lab.experiments import only_run
from rifflemix.lab.runs.folder import (
    StoredRun,
    build_stored,
    is_run,
    load_stored_task,
    load_weights,
    read_run,
)
from rifflemix.lab.tasks.core.forecasts import SeriesInputs
from rifflemix.lab.tasks.core.sequences import SequenceInputs
from rifflemix.lab.tasks.core.shapes import RECORD_FORMAT, InputSpec, TaskRecord
from rifflemix.lab.tasks.graphs.graphs import MoleculeInputs
from rifflemix.lab.tasks.images.pixel_inputs import PixelInputs
from rifflemix.lab.tasks.listops.grammar import ExpressionInputs
from rifflemix.lab.tasks.synthetic.symbols import SymbolInputs
from rifflemix.lab.tasks.text.encoder import TextInputs
from rifflemix.lab.tasks.text.prompts import ByteInputs, MaskedInputs, PromptInputs
from rifflemix.lab.tasks.user_data.splits import FrameInputs
from rifflemix.lab.tasks.user_data.tokenizing import WordInputs
from rifflemix.lab.train.run_folder import RunFolder
from rifflemix.lab.train.state import read_result
from rifflemix.lab.trained.run import TrainedRun

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
        raise InputError(
            f"task {record.name}: expected inputs of kind {', '.join(_BY_KIND)}, got {kind!r}; "
            "use the version of rifflemix that trained the run, or a newer one"
        )
    try:
        return decode(_BY_KIND[kind], record.inputs)
    except ValueError as error:
        raise InputError(f"task {record.name}: its inputs are damaged: {error}") from error


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
    record = _read_record(run)
    model = build_stored(run, record.shapes, record.output, "folder")
    weights = run.files.chosen("last" if run.selects_last else "best")
    if not weights.is_file():
        raise InputError(f"{weights} is missing; {_RESTORE}")
    load_weights(model, weights)
    return TrainedRun(
        folder=path,
        model=model.eval(),
        task=record,
        metrics={"validation": result.chosen(), "test": dict(result.test or {})},
        inputs=read_spec(record),
    )


def _read_record(run: StoredRun) -> TaskRecord:
    """Read the record of a run's task, or derive it from the data for older runs."""
    path = run.files.task
    if not path.is_file():
        return _derived_record(run)
    value = read_json(path, _RESTORE)
    try:
        check_seal(value)
        if not isinstance(value, dict) or value.get("format") != RECORD_FORMAT:
            raise ValueError(f"expected format {RECORD_FORMAT}")
        return decode(TaskRecord, value)
    except ValueError as error:
        raise damaged_run(path, str(error), _RESTORE) from error


def _derived_record(run: StoredRun) -> TaskRecord:
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
