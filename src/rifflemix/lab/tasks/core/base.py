"""The parts of every task: splits of labelled samples, a batch layout, a loss and metrics."""

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
"""Inputs and label: (N,) int64 tokens or (N, F) float32 vectors, two of them where the task has
pairs; an int, or (N,) int64."""

Batch = dict[str, Tensor]
"""inputs (B, N) or (B, N, F); labels (B,); key_padding_mask (B, N), True = padding, if it pads.

Pairs: inputs (B, 2, N) or (B, 2, N, F), key_padding_mask (B, 2, N).
"""

Progress = Callable[[str, int, int | None], object]
"""Called with the kind of work, how much is done, and of how much (None: not known).

If it returns True, preparation stops after the current part: see `PreparationStopped`.
"""


class PreparationStopped(Exception):
    """The caller stopped the preparation of data. The same call continues after the stored parts.

    Only data that is stored in parts stops, after at least one part. Other data is prepared to the
    end, since a stop would lose the work.
    """

    def __init__(self, what: str, done: int, total: int) -> None:
        super().__init__(f"{what}: {done:,} of {total:,}")


Output = Literal["classes", "next_token", "sequence", "number"]
"""What a model gives: "classes" (B, K), "next_token" (B, N, V) logits of the token after each,
"sequence" (B, M, V) logits of another sequence, or "number" (B, 1)."""


@dataclass(frozen=True)
class Budget:
    """Model size and training budget where the caller does not say, the same for every mixer.

    Attributes:
        dim: channels C.
        num_layers: blocks.
        num_heads: heads H.
        max_steps: optimiser updates.
        batch_size: sequences per update.
        lr: peak learning rate.
        evaluations: how often to look at the validation split; the best look chooses the weights.
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
    """The description of a task and its data, for lists, tables and commands.

    Attributes:
        name: registry name.
        title: the name people use.
        source: who made the data and where it comes from.
        licence: licence of the data.
        description: one or two sentences on inputs, labels and splits.
        needs_data: needs files or a network; False where the data is built in or generated.
        options: the task's own options and their defaults.
        output: what a model gives, see `Output`.
        backbone: registry name of a model that takes the samples and gives this output.
        image_backbone: of one that takes whole images, where option layout asks for them.
        is_image: positions are the pixels or patches of a square image, row by row; learned ones
            can be enlarged for a larger image.
        budget: model size and training budget. Chosen so that a handful of mixers end in minutes
            (digits) or within an hour or two (the others) on two cores; not tuned for a mixer.
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
        """Whether models must not look ahead: they predict tokens from those before them."""
        return self.output in ("next_token", "sequence")

    def backbone_for(self, options: Mapping[str, Any]) -> str:
        """The backbone that fits the samples with these options; those left out have defaults."""
        layout = {**self.options, **options}.get("layout")
        return self.image_backbone if layout == "image" else self.backbone


@dataclass(frozen=True)
class TaskStatus:
    """Whether a task can be loaded as things stand, and what was found where (or is missing)."""

    name: str
    available: bool
    detail: str


class Split(Protocol):
    """A map-style data set that pickles into data loader workers."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """One sample."""
        ...

    def digest(self) -> bytes:
        """Hash of every input and label, in order."""
        ...


@dataclass(frozen=True, eq=False)
class FirstSamples:
    """The first `most` samples of a split, or all where there are fewer."""

    split: Split
    most: int

    def __len__(self) -> int:
        """Number of samples."""
        return min(len(self.split), self.most)

    def __getitem__(self, index: int) -> Sample:
        """One sample."""
        return self.split[range(len(self))[index]]

    def digest(self) -> bytes:
        """Hash of the whole split and of how much of it this is."""
        return hashlib.blake2b(self.split.digest() + b"%d" % len(self), digest_size=16).digest()


@runtime_checkable
class AnswersBlindly(Protocol):
    """A task that knows how far its accuracy gets without a look at inputs."""

    @property
    def blind_answer(self) -> str:
        """What is answered, as a clause: "repeating the token before"."""
        ...

    def blind_accuracy(self, split: str) -> float:
        """The accuracy on a split."""
        ...


@dataclass(frozen=True, eq=False)
class Task(OwnData):
    """A classification task, loaded.

    Attributes:
        name: registry name.
        options: every option that shaped the data, defaults included.
        input_kind: "tokens" (ids below `vocab_size`), "vectors" (`num_features` floats each), or
            "images", or "graphs" of nodes with `num_features` ids each.
        vocab_size: number of token ids, the padding id included; None for vectors.
        num_features: floats per vector; None for tokens.
        num_classes: labels are 0 to num_classes - 1.
        max_length: most tokens a sample can have.
        padding: batches carry a `key_padding_mask`, because lengths differ.
        split_note: where the validation split comes from.
        data_source: the files, the download or the generator that the data came from.
        splits: the splits by name.
        metric: the metric that chooses a model.
        higher_is_better: whether more of `metric` is better.
        pad_id: token id that fills padded positions.
        num_sequences: 1, or 2 where a sample is a pair.
        further_tests: more splits that the chosen weights are tested on, by name; other data that
            a table has a column for.
        card: of data that is in no registry; None where the registry has it by `name`.
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
        """The split "train", "validation" or "test", or one of `further_tests`."""
        check_choice("split", name, (*SPLITS, *self.further_tests))
        return self.splits[name] if name in SPLITS else self.further_tests[name]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples to a batch, padded to the longest among them where the task pads."""
        labels = _labels([label for _, label in samples], self.num_classes)
        # A pair is two sequences, so that both are padded to one length.
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
        """Sequences as one tensor, padded to the longest, with a mask, where the task pads."""
        if not self.padding:
            return {"inputs": torch.stack(list(inputs))}
        lengths = torch.tensor([len(tokens) for tokens in inputs])
        padded = torch.nn.utils.rnn.pad_sequence(
            list(inputs), batch_first=True, padding_value=float(self.pad_id)
        )
        mask = torch.arange(padded.shape[1]) >= lengths[:, None]
        return {"inputs": padded, "key_padding_mask": mask}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy in float32 of logits (B, num_classes) against the labels."""
        self._check_outputs(outputs, batch)
        return functional.cross_entropy(outputs.float(), batch["labels"])

    def uniform_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """What `loss` would be if all classes were equally right; smoothed labels add it."""
        self._check_outputs(outputs, batch)
        return -functional.log_softmax(outputs.float(), dim=1).mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Sum and count of "accuracy" and "loss" over a batch of logits (B, num_classes).

        Where labels are probabilities (B, num_classes), all classes above 0 are right.
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
        """Hash of the options and of every sample of every split: equal means same data.

        The name of a file of the user's own is left out: it may be renamed.
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
    """(B,) whether a right class is among `classes` (B, k); see `Task.metrics` for `labels`."""
    if labels.ndim == 2:
        return (labels.gather(1, classes) > 0).any(dim=1)
    return (classes == labels.unsqueeze(1)).any(dim=1)


def _labels(labels: Sequence[Any], num_classes: int) -> Tensor:
    """Classes as int64, or probabilities of all classes as they are.

    A number with a fraction would silently become another class.
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
    """A request for a task's data: names are checked, defaults filled in.

    Attributes:
        data_dir: folder that holds the data files, never written to; None where none was given.
        seed: seed of data that is generated.
        options: every option of the card.
        given: names of the options that the caller set, and "seed" where it was.
        progress: called with the progress of the work.
        max_samples: most samples of each split; None for all.
        must_keep: the prepared data has to be stored, not only to be used.
    """

    data_dir: Path | None
    seed: int
    options: Mapping[str, Any]
    given: frozenset[str]
    progress: Progress
    max_samples: int | None = None
    must_keep: bool = False

    def count(self, split: str) -> int:
        """How many samples of a split are asked for, by option num_train and the like."""
        count = check_integer(self.options, f"num_{split}", 1)
        return count if self.max_samples is None else min(count, self.max_samples)


class TaskBuilder(Protocol):
    """The interface of a task file: a card, loading, and what data is there."""

    @property
    def card(self) -> TaskCard:
        """What the task is."""
        ...

    def load(self, request: Request) -> Task:
        """The task, its data decoded or generated where that has not been done before."""
        ...

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Whether the data is at hand, without decoding it."""
        ...

    def prepared(self, request: Request) -> Path | None:
        """The folder that holds the decoded or generated data; None where nothing is kept."""
        ...


def check_integer(options: Mapping[str, Any], name: str, low: int, high: int | None = None) -> int:
    """The option `name`, raising unless it is an integer from `low` to `high`."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_argument(name, "an integer", repr(value))
    if value < low or (high is not None and value > high):
        expected = f"at least {low}" if high is None else f"{low} to {high}"
        raise bad_argument(name, expected, value)
    return value


def check_number(options: Mapping[str, Any], name: str) -> float:
    """The option `name`, raising unless it is a finite number above 0."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_argument(name, "a number", repr(value))
    if not 0 < value < math.inf:
        raise bad_argument(name, "a number above 0", value)
    return float(value)


def check_one_of(options: Mapping[str, Any], name: str, choices: Sequence[int]) -> int:
    """The option `name`, raising unless it is one of the integers `choices`."""
    value = check_integer(options, name, 0)
    if value not in choices:
        raise bad_argument(name, f"one of {', '.join(map(str, choices))}", value)
    return value


def content_order(rows: Sequence[bytes], salt: str) -> NDArray[np.int64]:
    """A fixed shuffle that depends on the content of the rows alone, not on their order.

    The same data gives the same order whichever file or library it came from, and equal rows
    stay together.
    """
    key = salt.encode()
    digests = [hashlib.blake2b(row, digest_size=16, key=key).digest() for row in rows]
    return np.array(sorted(range(len(rows)), key=digests.__getitem__), dtype=np.int64)
