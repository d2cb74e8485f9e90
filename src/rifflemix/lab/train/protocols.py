"""Interfaces of tasks and models that the training loop needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Batch = dict[str, Tensor]


class Split(Protocol):
    """Map-style dataset that returns equal samples in every process and at every read."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return sample `index`."""


class TrainableTask(Protocol):
    """Data, loss and metrics of a task.

    A batch is a dict with "inputs" (B, N) int64 or (B, N, F) float32, and with the entries that
    `loss` and `metrics` need. Optional entries are keyword arguments of the model:

    - "key_padding_mask" (B, N) bool, True = padding, if the task pads.
    - "decoder_inputs" (B, M) int64, the inputs of a decoder.
    - "distances" (B, N, N) and "path_edges" (B, N, N, L, E), for graphs.

    The model is called as `model(batch["inputs"], key_padding_mask=mask, ...)`, without the
    arguments that the batch does not contain.
    """

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Resolved options, only JSON values."""

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best weights."""

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of `metric` are better."""

    @property
    def split_note(self) -> str:
        """Origin of the validation split."""

    def split(self, name: str, /) -> Split:
        """Return the split "train", "validation" or "test", or one of `further_tests`."""

    def collate(self, samples: Sequence[Any], /) -> Batch:
        """Collate samples to a batch."""

    def loss(self, outputs: Tensor, batch: Batch, /) -> Tensor:
        """Return the mean loss of the batch, a float32 scalar.

        The mean is over samples. For `CountsLabels` it is over labels.
        """

    def metrics(self, outputs: Tensor, batch: Batch, /) -> Mapping[str, tuple[float, int]]:
        """Return metric name -> (sum, count) of a batch.

        "loss" is required, and `metric` unless `summarise` computes it. The names must be equal
        for every batch. Metrics with count 0 on a whole split are dropped. Names with a leading
        underscore are only inputs of `summarise`.
        """

    def fingerprint(self) -> str:
        """Return a hash of the data and the options."""


@runtime_checkable
class HasLengths(Protocol):
    """Split with sample lengths."""

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each sample, (S,).

        For a pair, count the tokens of the longer sequence.
        """


@runtime_checkable
class CountsLabels(Protocol):
    """Task whose loss is a mean over labels; samples may have different numbers of labels.

    Parts of a batch (accumulation, several processes) are weighted by their number of labels. The
    sum of their gradients is then the gradient of the whole batch.
    """

    def count_labels(self, batch: Batch, /) -> int:
        """Return the divisor of `loss` on this batch, at least 1."""


@runtime_checkable
class Augments(Protocol):
    """Task with random augmentation of training batches."""

    def augment(self, batch: Batch, seeds: Sequence[int], /) -> Batch:
        """Augment each sample of the batch with its own seed."""


@runtime_checkable
class MixesSamples(Protocol):
    """Task that supports mixing of training samples and their labels."""

    def mix(self, batch: Batch, seed: int, /, *, mixup: float, cutmix: float) -> Batch:
        """Mix each sample of the batch with another sample; see `TrainConfig`."""


@runtime_checkable
class SmoothsLabels(Protocol):
    """Classification task that supports label smoothing."""

    def uniform_loss(self, outputs: Tensor, batch: Batch, /) -> Tensor:
        """Return the loss for a uniform target distribution over all classes."""


@runtime_checkable
class WeighsClasses(Protocol):
    """Classification task that supports class weights."""

    def class_counts(self, split: str, /) -> list[int] | None:
        """Count the samples of each class; return None if a sample has several classes."""

    def weighted_loss(
        self, outputs: Tensor, batch: Batch, weights: Tensor, label_smoothing: float, /
    ) -> Tensor:
        """Return the loss with one weight per class, divided by the number of samples."""


@runtime_checkable
class SelectsMetric(Protocol):
    """Task that can select weights by another of its metrics."""

    def with_metric(self, name: str, /) -> Self:
        """Return the same task with another metric.

        Raises:
            InputError: the task has no metric with this name.
        """


@runtime_checkable
class Summarises(Protocol):
    """Task that computes further metrics from the means over a split."""

    def summarise(self, means: Mapping[str, float], /) -> Mapping[str, float]:
        """Compute further metrics from the means over a whole split."""


@runtime_checkable
class ScoresSplits(Protocol):
    """Task with metrics that are no means over samples, such as AUROC.

    They are computed on the test split, and on the validation split if one of them selects the
    weights.
    """

    def observe(self, outputs: Tensor, batch: Batch, /) -> Tensor:
        """Return what the metrics need of a batch, (rows, columns)."""

    def score_split(self, observed: NDArray[Any], /) -> Mapping[str, float]:
        """Compute the metrics from the rows of all batches of a split."""

    def confusion(self, observed: NDArray[Any], /) -> list[list[int]] | None:
        """Count samples by true class (rows) and predicted class; None without such a table."""


class Record(Protocol):
    """Description of a task for predictions without its data."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""


@runtime_checkable
class HasRecord(Protocol):
    """Task with a record, which `train` writes to task.json."""

    def record(self) -> Record:
        """Return the record."""


@runtime_checkable
class HasFurtherTests(Protocol):
    """Task with additional test splits."""

    @property
    def further_tests(self) -> Mapping[str, Split]:
        """Additional test splits by name.

        The name of a split prefixes the names of its metrics.
        """


@runtime_checkable
class MeasuresWriting(Protocol):
    """Task with metrics of sequences that the model generates.

    They are computed only on the test split, because generation needs one step per token. Models
    sharded over processes are not supported: their processes would need equally many steps.
    """

    def writing_metrics(
        self, model: Any, batch: Batch, /, should_stop: Callable[[], bool]
    ) -> Mapping[str, tuple[float, int]]:
        """Return metric name -> (sum, count), as `TrainableTask.metrics`.

        Call `should_stop` between tokens. If it returns True, the result is not used.
        """


@runtime_checkable
class ExcludesDecay(Protocol):
    """Module with parameters that are excluded from weight decay."""

    def no_weight_decay(self) -> set[str]:
        """Return the names of these parameters, relative to the module."""


@runtime_checkable
class ScalesRates(Protocol):
    """Model with parameters that train at a fraction of the learning rate."""

    def rate_factors(self) -> Mapping[str, float]:
        """Return parameter name -> factor of the learning rate; other parameters have 1."""
