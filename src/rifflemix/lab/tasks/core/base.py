"""Base classes of tasks: samples and splits, batch layout, loss and metrics."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.own_data import OwnData

SPLITS = ("train", "validation", "test")

Sample = tuple[Any, Any]
"""Inputs and label of a sample.

- Inputs: (N,) int64 tokens or (N, F) float32 vectors, or two of these if the task has pairs.
- Label: an int, or (N,) int64.
"""

Batch = dict[str, Tensor]
"""Batch of tensors by name.

- "inputs": (B, N) or (B, N, F). Pairs: (B, 2, N) or (B, 2, N, F).
- "labels": (B,).
- "key_padding_mask", if the task pads: (B, N), or (B, 2, N) for pairs. True marks padding.
"""

Progress = Callable[[str, int, int | None], object]
"""Callback that receives the kind of work, the amount done and the total (None if unknown).

If it returns True, preparation stops after the current part. See `PreparationStopped`.
"""


class PreparationStopped(Exception):
    """Raised when the caller stops the preparation of data.

    The same call continues after the stored parts. Only data that is stored in parts can stop,
    after at least one part. Other data is prepared to the end, because a stop would lose the work.
    """

    def __init__(self, what: str, done: int, total: int) -> None:
        super().__init__(f"{what}: {done:,} of {total:,}")


Output = Literal["classes", "next_token", "sequence", "number"]
"""Kind of model output.

- "classes": (B, K).
- "next_token": logits (B, N, V) of the token after each position.
- "sequence": logits (B, M, V) of another sequence.
- "number": (B, 1).
"""


@dataclass(frozen=True)
class Budget:
    """Default model size and training budget, equal for every mixer.

    Attributes:
        dim: Number of channels C.
        num_layers: Number of blocks.
        num_heads: Number of heads H.
        max_steps: Number of optimizer updates.
        batch_size: Sequences per update.
        lr: Peak learning rate.
        evaluations: Number of evaluations on the validation split. The best one selects the
            weights.
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_steps: int = 1000
    batch_size: int = 32
    lr: float = 1e-3
    evaluations: int = 5


@dataclass(frozen=True)
class TaskCard:
    """Description of a task and its data, for lists, tables and commands.

    Attributes:
        name: Registry name.
        title: Common name.
        source: Author and origin of the data.
        licence: License of the data.
        description: One or two sentences on inputs, labels and splits.
        needs_data: True if the task needs files or a network, False if its data is built in or
            generated.
        options: Options of the task and their defaults.
        output: Kind of model output, see `Output`.
        backbone: Registry name of a model that accepts the samples and returns this output.
        image_backbone: Registry name of a model for whole images, for option layout="image".
        is_image: True if positions are pixels or patches of a square image, row by row. Learned
            positions can then be enlarged for a larger image.
        budget: Model size and training budget, not tuned for any mixer. A few mixers finish in
            minutes (digits) or in an hour or two (other tasks) on two cores.
    """

    name: str
    title: str
    source: str
    licence: str
    description: str
    needs_data: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    output: Output = "classes"
    backbone: str = "encoder"
    image_backbone: str = "vit_cifar10"
    is_image: bool = False
    budget: Budget = Budget()

    @property
    def is_generative(self) -> bool:
        """True if models predict tokens from previous tokens and must be causal."""
        return self.output in ("next_token", "sequence")

    def backbone_for(self, options: Mapping[str, Any]) -> str:
        """Return the backbone that fits the samples. Missing options use their defaults."""
        layout = {**self.options, **options}.get("layout")
        return self.image_backbone if layout == "image" else self.backbone


@dataclass(frozen=True)
class TaskStatus:
    """Availability of a task, and details on its data."""

    name: str
    available: bool
    detail: str


class Split(Protocol):
    """Map-style data set that can be pickled for data loader workers."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """Return one sample."""
        ...

    def digest(self) -> bytes:
        """Hash every input and label, in order."""
        ...


@dataclass(frozen=True, eq=False)
class FirstSamples:
    """First `most` samples of a split, or a complete shorter split."""

    split: Split
    most: int

    def __len__(self) -> int:
        return min(len(self.split), self.most)

    def __getitem__(self, index: int) -> Sample:
        return self.split[range(len(self))[index]]

    def digest(self) -> bytes:
        """Hash the whole split and the number of samples in use."""
        return hashlib.blake2b(self.split.digest() + b"%d" % len(self), digest_size=16).digest()


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


@dataclass(frozen=True, eq=False)
class Task(OwnData):
    """Loaded classification task.

    Attributes:
        name: Registry name.
        options: Every option that affects the data, including defaults.
        input_kind: "tokens" (ids below `vocab_size`), "vectors" (`num_features` floats each),
            "images", or "graphs" of nodes with `num_features` ids each.
        vocab_size: Number of token ids, including the padding id. None for vectors.
        num_features: Floats per vector. None for tokens.
        num_classes: Number of classes. Labels are 0 to num_classes - 1.
        max_length: Maximum number of tokens per sample.
        padding: True if lengths differ. Batches then contain a `key_padding_mask`.
        split_note: Origin of the validation split.
        data_source: Files, download or generator of the data.
        splits: Splits by name.
        metric: Metric that selects a model.
        higher_is_better: True if a higher value of `metric` is better.
        pad_id: Token id at padded positions.
        num_sequences: 1, or 2 if a sample is a pair.
        further_tests: Additional test splits by name, each with a column in result tables.
        card: Card of a task that is not registered. None if the registry has a card for `name`.
    """

    name: str
    options: Mapping[str, Any]
    input_kind: Literal["tokens", "vectors", "images", "graphs"]
    vocab_size: int | None
    num_features: int | None
    num_classes: int
    max_length: int
    padding: bool
    split_note: str
    data_source: str
    splits: Mapping[str, Split]
    metric: str = "accuracy"
    higher_is_better: bool = True
    pad_id: int = 0
    num_sequences: int = 1
    card: TaskCard | None = None
    further_tests: Mapping[str, Split] = field(default_factory=dict)

    def split(self, name: str) -> Split:
        """Return the split "train", "validation" or "test", or a split of `further_tests`."""
        check_choice("split", name, (*SPLITS, *self.further_tests))
        return self.splits[name] if name in SPLITS else self.further_tests[name]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples into a batch.

        If the task pads, pad to the longest sample.
        """
        labels = _labels([label for _, label in samples], self.num_classes)
        # Split pairs into sequences, so that both members are padded to one length.
        inputs = [
            part
            for sample, _ in samples
            for part in (sample if self.num_sequences > 1 else (sample,))
        ]
        batch = self._stack(inputs)
        if self.num_sequences > 1:
            batch = {k: v.unflatten(0, (-1, self.num_sequences)) for k, v in batch.items()}
        return {**batch, "labels": labels}

    def _stack(self, inputs: Sequence[Tensor]) -> Batch:
        """Stack sequences.

        If the task pads, pad to the longest and add a mask.
        """
        if not self.padding:
            return {"inputs": torch.stack(list(inputs))}
        lengths = torch.tensor([len(tokens) for tokens in inputs])
        padded = torch.nn.utils.rnn.pad_sequence(
            list(inputs), batch_first=True, padding_value=float(self.pad_id)
        )
        mask = torch.arange(padded.shape[1]) >= lengths[:, None]
        return {"inputs": padded, "key_padding_mask": mask}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute the mean cross-entropy in float32 of logits (B, num_classes)."""
        self._check_outputs(outputs, batch)
        return functional.cross_entropy(outputs.float(), batch["labels"])

    def uniform_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute `loss` for uniform targets, the extra term of label smoothing."""
        self._check_outputs(outputs, batch)
        return -functional.log_softmax(outputs.float(), dim=1).mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of "accuracy" and "loss" of logits (B, num_classes).

        If the labels are probabilities (B, num_classes), every class above 0 counts as correct.
        """
        self._check_outputs(outputs, batch)
        labels = batch["labels"]
        loss = functional.cross_entropy(outputs.float(), labels, reduction="sum")
        correct = is_hit(outputs.argmax(dim=1, keepdim=True), labels).sum()
        return {
            "accuracy": (float(correct.item()), len(labels)),
            "loss": (float(loss.item()), len(labels)),
        }

    def fingerprint(self) -> str:
        """Hash the options and all samples. Equal hashes mean equal data.

        The name of a user's file is excluded, so the file can be renamed.
        """
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        options = {name: value for name, value in self.options.items() if name != "data"}
        head = [self.name, options, self.input_kind, self.max_length]
        total = hashlib.blake2b(json.dumps(head, sort_keys=True).encode(), digest_size=16)
        for name in (*SPLITS, *self.further_tests):
            total.update(self.split(name).digest())
        return total.hexdigest()

    def _check_outputs(self, outputs: Tensor, batch: Batch) -> None:
        expected = (len(batch["labels"]), self.num_classes)
        if tuple(outputs.shape) != expected:
            raise bad_argument(
                "outputs", f"logits of shape (B, num_classes) = {expected}", tuple(outputs.shape)
            )


def is_hit(classes: Tensor, labels: Tensor) -> Tensor:
    """Return (B,) bools: whether `classes` (B, k) contain a correct class.

    See `Task.metrics` for the two formats of `labels`.
    """
    if labels.ndim == 2:
        return (labels.gather(1, classes) > 0).any(dim=1)
    return (classes == labels.unsqueeze(1)).any(dim=1)


def _labels(labels: Sequence[Any], num_classes: int) -> Tensor:
    """Convert labels to int64 classes, or stack class probabilities unchanged.

    Raises for fractions, because int64 would silently round them to another class.
    """
    first = labels[0]
    if isinstance(first, Tensor) and first.is_floating_point() and first.shape == (num_classes,):
        return torch.stack(list(labels))
    found = torch.tensor(labels)
    if found.is_floating_point():
        raise bad_argument(
            "labels", "whole numbers, the classes", f"{found[0]:g}", "numbers are a NumberTask"
        )
    return found.to(torch.int64)


@dataclass(frozen=True)
class Request:
    """Request for the data of a task, with checked and complete options.

    Attributes:
        data_dir: Folder of the data files, never written to. None if the caller gave no folder.
        seed: Seed of generated data.
        options: Every option of the card.
        given: Names of the options that the caller set, including "seed" if set.
        progress: Callback that reports progress.
        max_samples: Maximum number of samples per split. None for all samples.
        must_keep: True if the prepared data must be stored in the cache.
    """

    data_dir: Path | None
    seed: int
    options: Mapping[str, Any]
    given: frozenset[str]
    progress: Progress
    max_samples: int | None = None
    must_keep: bool = False

    def count(self, split: str) -> int:
        """Return the requested size of a split, from num_train and similar options."""
        count = check_integer(self.options, f"num_{split}", 1)
        return count if self.max_samples is None else min(count, self.max_samples)


class TaskBuilder(Protocol):
    """Interface of a task: card, loading and data status."""

    @property
    def card(self) -> TaskCard:
        """Card of the task."""
        ...

    def load(self, request: Request) -> Task:
        """Load the task.

        Decode or generate its data unless the cache contains the result.
        """
        ...

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Report whether the data is available, without decoding it."""
        ...

    def prepared(self, request: Request) -> Path | None:
        """Return the cache folder of the data, or None without a cache."""
        ...


def check_integer(options: Mapping[str, Any], name: str, low: int, high: int | None = None) -> int:
    """Return option `name`.

    Raise unless it is an integer from `low` to `high`.
    """
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_argument(name, "an integer", repr(value))
    if value < low or (high is not None and value > high):
        expected = f"at least {low}" if high is None else f"{low} to {high}"
        raise bad_argument(name, expected, value)
    return value


def check_number(options: Mapping[str, Any], name: str) -> float:
    """Return option `name`. Raise unless it is a finite number above 0."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_argument(name, "a number", repr(value))
    if not 0 < value < math.inf:
        raise bad_argument(name, "a number above 0", value)
    return float(value)


def check_one_of(options: Mapping[str, Any], name: str, choices: Sequence[int]) -> int:
    """Return option `name`. Raise unless it is an integer from `choices`."""
    value = check_integer(options, name, 0)
    if value not in choices:
        raise bad_argument(name, f"one of {', '.join(map(str, choices))}", value)
    return value


def content_order(rows: Sequence[bytes], salt: str) -> NDArray[np.int64]:
    """Return a fixed shuffle that depends only on row contents.

    The original order, the file and the library do not matter. Equal rows stay adjacent.
    """
    key = salt.encode()
    digests = [hashlib.blake2b(row, digest_size=16, key=key).digest() for row in rows]
    return np.array(sorted(range(len(rows)), key=digests.__getitem__), dtype=np.int64)
