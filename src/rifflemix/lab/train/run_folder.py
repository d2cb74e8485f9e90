"""Folder of one run: its files, its log, its events and its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn

from rifflemix.errors import InputError, RunFailed, bad_argument
from rifflemix.files import (
    CONFIG_FILE,
    check_regular,
    claimed_folder,
    damaged_run,
    flush,
    read_json,
    read_json_lines,
    reported,
    user_path,
)
from rifflemix.json_values import check_json, decode, parse_json
from rifflemix.lab.train.config import TrainConfig, free_settings
from rifflemix.lab.train.protocols import TrainableTask

Weights = Literal["best", "last"]
"""Weights that a run selects: from the best evaluation, or from the last update."""

WEIGHTS: tuple[Weights, ...] = ("best", "last")

_HASH = "model.hash"
_OLD_SIGNATURE = "model.signature"


class RunFolder:
    """Files of a run in `path`.

    - config.json, log.jsonl, training.json
    - task.json: record of the task, for predictions without its data
    - checkpoint.safetensors
    - best.safetensors: weights of the best evaluation
    - last.safetensors: weights of the last update, if the run selects them
    - weights/STEP.safetensors: weights of every evaluation, if the run keeps them
    """

    def __init__(self, path: Path) -> None:
        self.path = path = user_path("out_dir", path)
        self.config = path / CONFIG_FILE
        self.task = path / "task.json"
        self.log = path / "log.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"
        self.result = path / "training.json"
        self.weights = path / "weights"

    def chosen(self, weights: Weights) -> Path:
        """Return the path of the best or last weights."""
        return self.best if weights == "best" else self.last

    def weights_at(self, step: int) -> Path:
        """Return the path of the weights of an evaluation."""
        return self.weights / f"{step}.safetensors"

    def kept_weights(self) -> dict[int, Path]:
        """Return step -> file of all kept weights, sorted by step."""
        found = (path.stem for path in self.weights.glob("*.safetensors"))
        return {
            step: self.weights_at(step) for step in sorted(int(s) for s in found if _is_step(s))
        }

    def opened(self, identity: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Lock the folder for a new or resumed run described by `identity`.

        Raises:
            InputError: the folder cannot be written, is in use, or contains something else.
        """
        # Runs of rifflemix up to 0.1.0.dev store a hash that depends on class names. Their
        # checkpoints are compared by tensors when they are read.
        free = [*free_settings("config"), _OLD_SIGNATURE]
        if self._has_old_signature():
            free.append(_HASH)
        return claimed_folder(self.path, identity, name="out_dir", free=free)

    def _has_old_signature(self) -> bool:
        if not self.config.is_file():
            return False
        stored = read_json(self.config)
        model = stored.get("model") if isinstance(stored, dict) else None
        return isinstance(model, dict) and "signature" in model

    def cut_log(self, size: int, sha256: str = "") -> None:
        """Truncate the log to `size` bytes and compare its checksum with `sha256`.

        Raises:
            InputError: the log is shorter than `size`, is not a log, or has another checksum.
        """
        with reported("write", self.log):
            if self.log.exists():
                check_regular(self.log)
            with open(self.log, "ab") as file:
                if file.tell() < size:
                    raise InputError(
                        f"{self.log} is damaged: expected at least {size} bytes, got "
                        f"{file.tell()}; remove the folder to start over"
                    )
                file.truncate(size)
        read_log(self.log)
        with reported("read", self.log):
            digest = self._log_digest()
        if sha256 not in ("", digest):
            raise damaged_run(self.log, "its checksum does not match")

    def append_log(self, entry: Mapping[str, Any]) -> None:
        """Append one line of JSON to the log."""
        line = json.dumps(entry, allow_nan=False) + "\n"
        with reported("write", self.log), open(self.log, "a", encoding="utf-8") as file:
            file.write(line)

    def settle_log(self) -> tuple[int, str]:
        """Flush the log; return its size in bytes and its checksum."""
        with reported("write", self.log):
            flush(self.log)
            return self.log.stat().st_size, self._log_digest()

    def _log_digest(self) -> str:
        return hashlib.sha256(self.log.read_bytes()).hexdigest()


def read_log(path: Path) -> list[dict[str, float]]:
    """Read the steps and training losses of a log.

    Raises:
        InputError: the log cannot be read, or a line has another format than `append_log` writes.
    """
    curve = []
    for number, entry in enumerate(read_json_lines(path), start=1):
        try:
            check_json(entry, dict[str, Any], "the line")
            if entry.get("split") == "train":
                check_json(entry, _LoggedLoss, "the line")
                curve.append({"step": entry["step"], "loss": entry["loss"]})
        except ValueError as error:
            raise damaged_run(path, f"line {number}: {error}") from error
    return curve


class _LoggedLoss(TypedDict):
    step: int
    loss: float


def describe_run(
    model: nn.Module,
    task: TrainableTask,
    config: TrainConfig,
    settings: Mapping[str, Any],
    processes: int,
    device_type: str,
    context_parallel: int = 1,
    weights: Weights = "best",
) -> dict[str, Any]:
    """Describe a run: two runs with equal descriptions compute the same result.

    `settings` are the settings that the caller built the model from.
    """
    description = {
        "config": config.to_dict(),
        "task": {
            "name": task.name,
            "options": dict(task.options),
            "fingerprint": task.fingerprint(),
        },
        "model": {"settings": dict(settings), "hash": _model_hash(model)},
        "processes": processes,
        "device": device_type,
        **({"context_parallel": context_parallel} if context_parallel > 1 else {}),
        **({"weights": weights} if weights != "best" else {}),
    }
    try:
        plain: dict[str, Any] = parse_json(json.dumps(description, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise bad_argument("model_settings and task options", "JSON values", error) from error
    return plain


def _model_hash(model: nn.Module) -> str:
    """Hash the model's tensors and the settings of its torch.nn modules.

    The hash uses names, shapes and dtypes of tensors. Class names and modules without tensors are
    ignored, because they may change between versions.
    """
    tensors = [f"{k} {tuple(t.shape)} {t.dtype}" for k, t in model.state_dict().items()]
    modules = [m for m in model.modules() if type(m).__module__.startswith("torch.nn.")]
    settings = sorted(f"{type(m).__name__}({m.extra_repr()})" for m in modules)
    return hashlib.sha256("\n".join([*tensors, *settings]).encode()).hexdigest()[:16]


def _is_step(text: str) -> bool:
    """Check for ASCII digits only: `isdecimal` also accepts digits of other scripts."""
    return text.isascii() and text.isdecimal()


Metrics = dict[str, int | float]
"""Values of an evaluation by name; "step" is the number of updates before the evaluation."""


class TrainingDiverged(RunFailed):
    """The loss, a metric or a weight became infinite or NaN.

    Attributes:
        reason: description of the failure, independent of the folder and of earlier interruptions.

    Example:
        >>> import rifflemix as rm
        >>> task = rm.tasks.load_task("digits")
        >>> model = rm.create_model("encoder", vocab_size=task.vocab_size, mixer="csp")
        >>> config = rm.train.TrainConfig(max_steps=5, lr=1e30)
        >>> try:
        ...     result = rm.train.train(model, task, config, "runs/csp")
        ... except rm.train.TrainingDiverged as error:
        ...     print("diverged")
        diverged
    """

    def __init__(self, reason: str, kept: str = "") -> None:
        super().__init__(f"{reason}; {kept}" if kept else reason)
        self.reason = reason


@dataclass(frozen=True)
class TrainEvent:
    """Event of a training run, passed to `on_event` in the main process.

    Attributes:
        kind: "step" after every update, "eval" after an evaluation, "checkpoint" after writing a
            checkpoint, "done" at the end.
        step: completed updates.
        max_steps: total updates.
        loss: mean training loss of the newest log line; None before the first log line.
        lr: learning rate of the newest update; None for other events than "step".
        steps_per_second: current speed, as in TrainResult; None before the speed is known.
        split: name of the evaluated split, for "eval" and "done".
        metrics: metrics of the evaluation, for "eval" and "done".

    Example:
        >>> import rifflemix as rm
        >>> event = rm.train.TrainEvent(kind="step", step=10, max_steps=100, loss=0.5)
        >>> event.step / event.max_steps
        0.1
    """

    kind: Literal["step", "eval", "checkpoint", "done"]
    step: int
    max_steps: int
    loss: float | None = None
    lr: float | None = None
    steps_per_second: float | None = None
    split: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def protocol(task: TrainableTask, weights: Weights, test_evaluations: int) -> dict[str, Any]:
    """Describe the selection of the weights and count the tested weights."""
    return {
        "selected_by": "validation" if weights == "best" else "last step",
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "split_note": task.split_note,
        "test_evaluations": test_evaluations,
    }


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Result of a finished or stopped run.

    Attributes:
        finished: False if the run was stopped; the same call with the same arguments continues it.
        step: completed updates.
        max_steps: total updates.
        metric: name of the metric that selects the best weights.
        best_step: step of the best evaluation on the validation split.
        best_value: value of this evaluation.
        validation: every evaluation: {"step", "loss", metric ...}.
        test: metrics of the chosen weights on the test split; None if the run is not finished or
            the call skipped the test.
        tests: test metrics by name of the tested weights: "best" (best evaluation) and "last"
            (last update).
        protocol: {"selected_by", "metric", "higher_is_better", "split_note",
            "test_evaluations"}. `selected_by` is "validation" or "last step";
            `test_evaluations` is the number of tested weights.
        train_loss: mean training loss of the newest log line.
        parameters: number of trainable parameters.
        decayed_parameters: number of parameters with weight decay.
        samples: training samples over all processes.
        tokens: valid tokens (not padding) over all processes.
        steps_per_second: speed of updates alone (forward, backward, optimizer). Loading,
            evaluation, checkpoints and the first update of each process (warm-up) are not
            counted. None before the second update.
        tokens_per_second: valid tokens in these updates per second.
        seconds: wall time of "train", "data" (waiting for batches), "evaluation" and
            "checkpoint", and their "total". It includes earlier calls that the run was resumed
            from.
        confusion: number of test samples by true class (rows) and predicted class, of the chosen
            weights. None if the task has no such table.
        processes: number of processes.
        device: device of the run.
        precision: precision of the run.

    Example:
        >>> import rifflemix as rm
        >>> task = rm.tasks.load_task("digits")
        >>> model = rm.create_model("encoder", vocab_size=task.vocab_size, mixer="csp")
        >>> config = rm.train.TrainConfig(max_steps=5, batch_size=16)
        >>> result = rm.train.train(model, task, config, "runs/csp")
        >>> result.step, result.metric, result.samples
        (5, 'accuracy', 80)
    """

    finished: bool
    step: int
    max_steps: int
    metric: str
    best_step: int | None
    best_value: float | None
    validation: list[Metrics]
    test: Metrics | None
    protocol: dict[str, Any]
    train_loss: float | None
    parameters: int
    decayed_parameters: int
    samples: int
    tokens: int
    steps_per_second: float | None
    tokens_per_second: float | None
    seconds: dict[str, float]
    processes: int
    device: str
    precision: str
    tests: dict[str, Metrics] = field(default_factory=dict)
    confusion: list[list[int]] | None = None

    def chosen(self) -> Metrics:
        """Return the validation metrics of the chosen weights; empty without an evaluation."""
        is_last = self.protocol.get("selected_by") == "last step"
        step = self.step if is_last else self.best_step
        return next((dict(at) for at in self.validation if at["step"] == step), {})

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values for `from_dict`.

        Returns:
            Name -> JSON value.
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainResult:
        """Read a result from JSON values and ignore unknown entries.

        Args:
            values: result of `to_dict`.

        Returns:
            The result.

        Raises:
            InputError: an entry is missing or has a wrong type, or `best_step` has no evaluation.
        """
        if isinstance(values, dict):
            values = {"tests": {}, **values}  # missing in older results
        try:
            result = decode(cls, values)
            result.check()
        except ValueError as error:
            raise InputError(f"training result: {error}") from error
        return result

    def check(self) -> None:
        """Check that the evaluations belong to the result.

        Raises:
            ValueError: an evaluation has no step, or the best step has no evaluation.
        """
        if not all("step" in at for at in self.validation):
            raise ValueError("expected the step of each evaluation, got none")
        is_last = self.protocol.get("selected_by") == "last step"
        chosen = [at for at in self.validation if at["step"] == self.best_step]
        if self.finished and not is_last and not (chosen and self.metric in chosen[0]):
            raise ValueError(
                f"expected an evaluation of {self.metric} at best_step {self.best_step}, got none"
            )
