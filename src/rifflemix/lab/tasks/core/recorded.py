"""Base classes of tasks for what predictions need, their metric, and references for the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import unknown_name
from rifflemix.lab.tasks.core.arrays import SequenceInputs
from rifflemix.lab.tasks.core.card import InputKind, InputSpec, Shapes, TaskRecord, spec_values
from rifflemix.lab.tasks.core.kinds import (
    CLASSIFICATION,
    MOST_SHOWN,
    OF_CLASS,
    TOKEN_OUTPUTS,
    Kind,
    Output,
    f1_of_class,
)


class Recorded:
    """Class with the fields of `Task` that predictions need. `Task` describes them.

    Attributes:
        of_kind: Target, output and metrics of the task.
    """

    of_kind: ClassVar[Kind] = CLASSIFICATION

    name: str
    options: Mapping[str, Any]
    input_kind: InputKind
    vocab_size: int | None
    num_features: int | None
    num_classes: int
    max_length: int
    padding: bool
    pad_id: int
    num_sequences: int
    inputs: InputSpec | None
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int] | None

    @property
    def kind(self) -> str:
        """Name of the kind, such as "classification"."""
        return self.of_kind.name

    @property
    def output(self) -> Output:
        """Format of the model output."""
        return self.of_kind.output

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class. The default is its number."""
        return self.classes or tuple(map(str, range(self.num_classes)))

    def stack(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        """Stack the inputs of samples into a batch.

        If the task pads, pad to the longest sequence and add a mask.

        Args:
            inputs: inputs of the samples, see `Sample`.

        Returns:
            "inputs" and, if the task pads, "key_padding_mask" (B, N).
        """
        return stack_sequences(
            inputs,
            padding=self.padding,
            pad_id=self.pad_id,
            num_sequences=self.num_sequences,
        )

    def record(self) -> TaskRecord:
        """Return the record that predictions need."""
        return TaskRecord(
            name=self.name,
            options=dict(self.options),
            shapes=Shapes(
                input_kind=self.input_kind,
                num_classes=self.num_classes,
                max_length=self.max_length,
                vocab_size=self.vocab_size,
                num_features=self.num_features,
                padding=self.padding,
                num_sequences=self.num_sequences,
                image_shape=self.image_shape,
            ),
            pad_id=self.pad_id,
            kind=self.kind,
            output=self.output,
            classes=self.class_names if self.output in ("classes", "labels", "tokens") else (),
            inputs=spec_values(self.inputs or self._plain_inputs()),
        )

    def _plain_inputs(self) -> SequenceInputs | None:
        """Return the specification of raw inputs that are token ids or vectors."""
        size = self.vocab_size if self.input_kind == "tokens" else self.num_features
        of = self.input_kind
        if (of != "tokens" and of != "vectors") or size is None or self.num_sequences > 1:
            return None
        has_lengths = self.padding or self.output in TOKEN_OUTPUTS
        return SequenceInputs(of, size, self.max_length, fixed=not has_lengths)


def stack_sequences(
    inputs: Sequence[Any], *, padding: bool, pad_id: int, num_sequences: int
) -> dict[str, Tensor]:
    """Stack sequences or images into "inputs".

    Args:
        inputs: Inputs of samples, see `Sample`.
        padding: Pad to the longest sequence, and add "key_padding_mask" (B, N).
        pad_id: Token id at padded positions.
        num_sequences: Sequences per sample. With more than one, the entries have shape (B, S, N).
    """
    if num_sequences == 1:
        return _stack(inputs, padding=padding, pad_id=pad_id)
    # Split the samples into sequences, so that all of them are padded to one length.
    parts = [part for sample in inputs for part in sample]
    batch = _stack(parts, padding=padding, pad_id=pad_id)
    return {name: value.unflatten(0, (-1, num_sequences)) for name, value in batch.items()}


def _stack(inputs: Sequence[Tensor], *, padding: bool, pad_id: int) -> dict[str, Tensor]:
    if not padding:
        return {"inputs": torch.stack(list(inputs))}
    lengths = torch.tensor([len(tokens) for tokens in inputs])
    padded = torch.nn.utils.rnn.pad_sequence(
        list(inputs), batch_first=True, padding_value=float(pad_id)
    )
    mask = torch.arange(padded.shape[1]) >= lengths[:, None]
    return {"inputs": padded, "key_padding_mask": mask}


class ChoosesMetric(Recorded):
    """Class with the fields of `Task` that name its metric. `Task` describes them."""

    metric: str
    higher_is_better: bool

    @property
    def metric_directions(self) -> dict[str, bool]:
        """Metrics that can select a model: name -> True if higher is better.

        "f1:NAME" is the F1 of class NAME, for up to 50 classes.
        """
        found = dict(self.of_kind.metrics)
        if "f1_macro" in found and self.num_classes <= MOST_SHOWN:
            found |= {f"{OF_CLASS}{name}": True for name in self.class_names}
        return found

    def with_metric(self, name: str) -> Self:
        """Return the task with another metric that selects a model.

        Args:
            name: Metric from `metric_directions`.

        Returns:
            A copy of the task.

        Raises:
            InputError: the task has no metric of this name.

        Example:
            >>> from rifflemix.lab.tasks import load_task
            >>> task = load_task("digits").with_metric("loss")
            >>> task.metric, task.higher_is_better
            ('loss', False)
        """
        directions = self.metric_directions
        if name not in directions:
            raise unknown_name(f"metric of task {self.name}", name, directions)
        task: Any = self  # a dataclass
        return replace(task, metric=name, higher_is_better=directions[name])

    def _chosen_f1(self, labels: NDArray[Any], predicted: NDArray[Any]) -> dict[str, float]:
        """Compute the F1 of a class if it is the task's metric, from classes (M,)."""
        if not self.metric.startswith(OF_CLASS):
            return {}
        of = self.class_names.index(self.metric.removeprefix(OF_CLASS))
        return {self.metric: f1_of_class(labels == of, predicted == of)}


@runtime_checkable
class AnswersBlindly(Protocol):
    """Task with a known accuracy for a predictor that ignores the inputs."""

    @property
    def blind_answer(self) -> str:
        """The prediction, as a clause: "repeating the token before"."""
        ...

    def blind_accuracy(self, split: str) -> float:
        """Return the accuracy of this prediction on a split."""
        ...


@runtime_checkable
class HasReference(Protocol):
    """Task with the scores of a simple prediction, for the table."""

    @property
    def reference_answer(self) -> str:
        """The prediction, as a clause: "repeating the last season"."""
        ...

    def reference_scores(self, split: str) -> Mapping[str, float]:
        """Return the metrics of this prediction on "validation" or "test"."""
        ...
