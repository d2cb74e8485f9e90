"""Events and result of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.decode import decode
from rifflemix.lab.train.protocols import TrainableTask
from rifflemix.lab.train.run_folder import Weights

Metrics = dict[str, int | float]
"""Values of an evaluation by name; "step" is the number of updates before the evaluation."""


class TrainingDiverged(RunFailed):
    """The loss, a metric or a weight became infinite or NaN.

    Attributes:
        reason: description of the failure, independent of the folder and of earlier interruptions.
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
        step, max_steps: completed updates and total updates.
        loss: mean training loss of the newest log line; None before the first log line.
        lr: learning rate of the newest update; None for other events than "step".
        steps_per_second: current speed, as in TrainResult; None before the speed is known.
        split: name of the evaluated split, for "eval" and "done".
        metrics: metrics of the evaluation, for "eval" and "done".
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
        step, max_steps: completed updates and total updates.
        metric: name of the metric that selects the best weights.
        best_step, best_value: step and value of the best evaluation on the validation split.
        validation: every evaluation: {"step", "loss", metric ...}.
        test: metrics of the chosen weights on the test split; None if the run is not finished or
            the call skipped the test.
        tests: test metrics by name of the tested weights: "best" (best evaluation) and "last"
            (last update).
        protocol: {"selected_by", "metric", "higher_is_better", "split_note",
            "test_evaluations"}. `selected_by` is "validation" or "last step";
            `test_evaluations` is the number of tested weights.
        train_loss: mean training loss of the newest log line.
        parameters, decayed_parameters: number of trainable parameters, in total and with weight
            decay.
        samples, tokens: training samples and valid (not padding) tokens over all processes.
        steps_per_second, tokens_per_second: speed of updates alone (forward, backward,
            optimizer). Loading, evaluation, checkpoints and the first update of each process
            (warm-up) are not counted. None before the second update.
        seconds: wall time of "train", "data" (waiting for batches), "evaluation" and
            "checkpoint", and their "total". It includes earlier calls that the run was resumed
            from.
        processes, device, precision: number of processes, device and precision of the run.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainResult:
        """Read a result from JSON values and ignore unknown entries.

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
        """Raise ValueError if the evaluations do not belong to the result."""
        if not all("step" in at for at in self.validation):
            raise ValueError("expected the step of each evaluation, got none")
        is_last = self.protocol.get("selected_by") == "last step"
        chosen = [at for at in self.validation if at["step"] == self.best_step]
        if self.finished and not is_last and not (chosen and self.metric in chosen[0]):
            raise ValueError(
                f"expected an evaluation of {self.metric} at best_step {self.best_step}, got none"
            )
