"""Events of a training run, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.decode import decode
from rifflemix.lab.train.protocols import TrainableTask
from rifflemix.lab.train.run_folder import Weights

Metrics = dict[str, int | float]
"""Values of an evaluation by name; "step" is the update after which it was made."""


class TrainingDiverged(RunFailed):
    """The loss, a metric or a weight became infinite or NaN.

    Attributes:
        reason: what happened, the same wherever the run is and however often it was stopped.
    """

    def __init__(self, reason: str, kept: str = "") -> None:
        super().__init__(f"{reason}; {kept}" if kept else reason)
        self.reason = reason


@dataclass(frozen=True)
class TrainEvent:
    """One thing that happened, told to `on_event` in the main process.

    Attributes:
        kind: "step" after every update, "eval" after an evaluation, "checkpoint" after one is
            written, "done" at the end.
        step, max_steps: updates made and to make.
        loss: mean training loss of the newest log line; None before the first.
        lr: learning rate of the newest update.
        steps_per_second: as in TrainResult, so far; None before it is known.
        split: what was evaluated, for "eval".
        metrics: the evaluation's, for "eval"; the test split's, for "done".
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
    """What chose the weights of a run, and how many weights were tested."""
    return {
        "selected_by": "validation" if weights == "best" else "last step",
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "split_note": task.split_note,
        "test_evaluations": test_evaluations,
    }


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a run, finished or stopped.

    Attributes:
        finished: False when `should_stop` ended it; call again with the same arguments to continue.
        step, max_steps: updates made and to make.
        metric: the task's own metric.
        best_step, best_value: where it was best on the validation split, and its value there.
        validation: every evaluation: {"step", "loss", metric ...}.
        test: metrics of the chosen weights on the test split; None until finished, and where the
            caller wanted no test.
        tests: metrics on the test split of the weights "best" (of the best evaluation) and "last"
            (of the last update), as far as they were tested.
        protocol: {"selected_by", "metric", "higher_is_better", "split_note",
            "test_evaluations"}: "validation" or "last step" chose the weights, and how many
            weights were tested.
        train_loss: mean training loss of the newest log line.
        parameters: trainable numbers in the model; decayed_parameters of them feel weight decay.
        samples, tokens: training samples and valid (not padded) tokens seen, all processes.
        steps_per_second, tokens_per_second: speed of updates alone (forward, backward,
            optimiser); loading, evaluation, checkpoints and each process's first update, which
            pays for warm-up, are not counted. None before a second update.
        seconds: wall time: "train", "data" (waiting for batches), "evaluation", "checkpoint" and
            their "total", over all the processes that worked on the run one after the other.
        processes, device, precision: how it ran.
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
        """The result as JSON values; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainResult:
        """Read the result from JSON values; entries of other names are ignored.

        Raises:
            InputError: an entry is missing or has another type, or no evaluation is at `best_step`.
        """
        if isinstance(values, dict):
            values = {"tests": {}, **values}  # older results have none
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
