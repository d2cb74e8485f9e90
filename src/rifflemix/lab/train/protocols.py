"""The interfaces of tasks and models that the training loop relies on, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Batch = dict[str, Tensor]


class Split(Protocol):
    """A map-style dataset of samples that any process may read, the same each time."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Sample `index`."""


class TrainableTask(Protocol):
    """Data, loss and metrics.

    A batch is a dict with "inputs" (B, N) int64 or (B, N, F) float32, whatever `loss` and
    `metrics` need, and, where the task pads, "key_padding_mask" (B, N) bool, True = padding.
    The model is called as `model(batch["inputs"], key_padding_mask=mask or absent)`; where a batch
    holds "decoder_inputs" (B, M) int64, what a decoder reads, with `decoder_inputs=` as well; of
    graphs, with `distances=` (B, N, N) and `path_edges=` (B, N, N, L, E).
    """

    @property
    def name(self) -> str:
        """Registry name."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Resolved options, JSON values only."""

    @property
    def metric(self) -> str:
        """The metric that chooses the best weights."""

    @property
    def higher_is_better(self) -> bool:
        """Which way `metric` improves."""

    @property
    def split_note(self) -> str:
        """Where the validation split comes from."""

    def split(self, name: str, /) -> Split:
        """The split "train", "validation" or "test", or one of `further_tests`."""

    def collate(self, samples: Sequence[Any], /) -> Batch:
        """A batch of samples."""

    def loss(self, outputs: Tensor, batch: Batch, /) -> Tensor:
        """Mean loss over the batch, a float32 scalar; over its samples, unless `CountsLabels`."""

    def metrics(self, outputs: Tensor, batch: Batch, /) -> Mapping[str, tuple[float, int]]:
        """Metric name -> (sum, count); at least "loss" and, if not summarised, `metric`.

        The same names for every batch; what counts nothing on a whole split is left out, and so
        are names with an underscore before them, once they are summarised.
        """

    def fingerprint(self) -> str:
        """Hash of the data and the options."""


@runtime_checkable
class HasLengths(Protocol):
    """A split that knows how long its samples are."""

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, (S,); of a pair, of its longer sequence."""


@runtime_checkable
class CountsLabels(Protocol):
    """A task whose loss is a mean over labels, of which samples have differently many.

    By their number the parts of a batch are weighed, of accumulation and of several processes, so
    that they have the gradient of the whole.
    """

    def count_labels(self, batch: Batch, /) -> int:
        """What `loss` divides by on this batch, at least 1."""


@runtime_checkable
class Augments(Protocol):
    """A task that changes training batches at random."""

    def augment(self, batch: Batch, seeds: Sequence[int], /) -> Batch:
        """The batch with each sample changed as its own seed says."""


@runtime_checkable
class MixesSamples(Protocol):
    """A task whose training samples, and their labels, can be mixed with each other."""

    def mix(self, batch: Batch, seed: int, /, *, mixup: float, cutmix: float) -> Batch:
        """The batch with each sample mixed with another; see `TrainConfig`."""


@runtime_checkable
class SmoothsLabels(Protocol):
    """A task of classes, whose labels can be smoothed."""

    def uniform_loss(self, outputs: Tensor, batch: Batch, /) -> Tensor:
        """What `loss` would be if all classes were equally right."""


@runtime_checkable
class Summarises(Protocol):
    """A task some of whose metrics are no means, but follow from them."""

    def summarise(self, means: Mapping[str, float], /) -> Mapping[str, float]:
        """More metrics, from the mean of each metric over a whole split."""


@runtime_checkable
class HasFurtherTests(Protocol):
    """A task whose chosen weights are tested on more splits than one."""

    @property
    def further_tests(self) -> Mapping[str, Split]:
        """The others by name; a metric on one of them has this name before its own."""


@runtime_checkable
class MeasuresWriting(Protocol):
    """A task that judges sequences which a model writes by itself.

    On the test split only, since writing takes a step a token, and not where the model is sharded
    over processes, which would have to write equally long.
    """

    def writing_metrics(
        self, model: Any, batch: Batch, /, should_stop: Callable[[], bool]
    ) -> Mapping[str, tuple[float, int]]:
        """Metric name -> (sum, count), as `TrainableTask.metrics`.

        `should_stop` is asked between tokens; once it is True the result is not used.
        """


@runtime_checkable
class ExcludesDecay(Protocol):
    """A module some of whose parameters must not be decayed."""

    def no_weight_decay(self) -> set[str]:
        """Parameter names, relative to the module."""
