"""Base of recall tasks: options, splits from separate streams, test splits of other lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.arrays import SequenceInputs
from rifflemix.lab.tasks.core.base import SPLITS, Split, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import Budget, Shapes, TaskCard
from rifflemix.lab.tasks.core.generated import GeneratedTask
from rifflemix.lab.tasks.core.kinds import TOKENS, Kind
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED, TokenLabelTask

_ROWS = 1024  # samples that are drawn together

Ints = NDArray[np.int64]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Drawing:
    """Request for samples.

    Attributes:
        options: Options of the task.
        length: Number of tokens per sample, N.
        seed: Seed of the task, for facts that all samples share.
        trains: True for the training split.
        causal: True if models predict each token from the tokens before it.
    """

    options: Options
    length: int
    seed: int
    trains: bool
    causal: bool


@dataclass(frozen=True, eq=False)
class DrawnSplit:
    """Samples in memory.

    Attributes:
        inputs: (M, N) token ids.
        labels: (M, N) classes; -100 at tokens that are not scored.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return inputs and labels (N,) int64."""
        inputs, labels = self.inputs[index], self.labels[index]
        return torch.from_numpy(inputs.astype(np.int64)), torch.from_numpy(labels.astype(np.int64))

    def digest(self) -> bytes:
        total = hashlib.blake2b(self.inputs.astype("<i4").tobytes(), digest_size=16)
        total.update(self.labels.astype("<i4").tobytes())
        return total.digest()


@dataclass(frozen=True, eq=False)
class CausalTokenLabelTask(TokenLabelTask):
    """`TokenLabelTask` for models that predict each token from the tokens before it."""

    of_kind: ClassVar[Kind] = replace(TOKENS, output="next_token", backbone="gpt")


OPTIONS: Options = {
    "causal": True,
    "test_lengths": [],
    "num_train": 20_000,
    "num_validation": 1_000,
    "num_test": 3_000,
}
"""Options of all recall tasks."""


class RecallTask(GeneratedTask):
    """Task with generated sequences and a known answer at each scored token.

    Subclasses define the card and the method `draw`.
    """

    predicts_next: ClassVar[bool] = True
    """With causal=True, models predict each token from the tokens before it."""

    fewest_ids: ClassVar[int] = 3
    """Smallest value of option "vocab_size"."""

    def __init__(self) -> None:
        self.card = replace(self.card, shapes=self.shapes)

    def vocabulary(self, options: Options) -> int:
        """Return the number of token ids."""
        return check_integer(options, "vocab_size", self.fewest_ids, 1 << 20)

    def check(self, options: Options, length: int) -> None:
        """Raise InputError if an option is out of range for sequences of this length."""

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        """Draw inputs and labels (rows, N)."""
        raise NotImplementedError

    def shapes(self, options: Options) -> Shapes:
        """Return the shapes of samples."""
        return Shapes(
            input_kind="tokens",
            num_classes=self.vocabulary(options),
            max_length=max([options["length"], *options["test_lengths"]]),
            vocab_size=self.vocabulary(options),
        )

    def load(self, request: Request) -> Task:
        """Draw all splits."""
        options = request.options
        length = check_integer(options, "length", 2, 1 << 20)
        lengths = _test_lengths(options)
        if not isinstance(options["causal"], bool):
            raise bad_argument("causal", "true or false", repr(options["causal"]))
        shapes = self.shapes(options)
        for each in (length, *lengths):
            self.check(options, each)
        splits: dict[str, Split] = {
            name: self._split(request, part, request.count(name), length)
            for part, name in enumerate(SPLITS)
        }
        further: dict[str, Split] = {
            f"length_{each}": self._split(request, 3 + part, request.count("test"), each)
            for part, each in enumerate(lengths)
        }
        is_next = options["causal"] and self.predicts_next
        kind = CausalTokenLabelTask if is_next else TokenLabelTask
        return kind(
            name=self.card.name,
            options={**options, "seed": request.seed},
            **shapes.for_task(),
            split_note="all splits are drawn from separate streams of the seed",
            data_source="generated",
            splits=splits,
            further_tests=further,
            inputs=SequenceInputs("tokens", shapes.num_classes, shapes.max_length, fixed=False),
        )

    def _split(self, request: Request, part: int, count: int, length: int) -> DrawnSplit:
        """Draw a split in parts, so that its first samples do not depend on the number."""
        drawing = Drawing(
            request.options, length, request.seed, part == 0, request.options["causal"]
        )
        stream = [request.seed, part, length]
        parts = []
        for start in range(0, count, _ROWS):
            rng = np.random.default_rng([*stream, start])
            inputs, labels = self.draw(rng, _ROWS, drawing)
            parts.append((inputs.astype(np.int32), labels.astype(np.int32)))
            request.progress(f"drawing {SPLITS[min(part, 2)]} sequences", start, count)
        return DrawnSplit(
            np.concatenate([inputs for inputs, _ in parts])[:count],
            np.concatenate([labels for _, labels in parts])[:count],
        )


def unscored(rows: int, length: int) -> Ints:
    """Return labels (rows, length) without a scored token."""
    return np.full((rows, length), UNCOUNTED, dtype=np.int64)


def recall_card(
    name: str,
    title: str,
    source: str,
    description: str,
    options: Options,
) -> TaskCard:
    """Describe a recall task."""
    return TaskCard(
        name=name,
        title=title,
        source=source,
        licence="Apache-2.0, as this package",
        description=description,
        needs_data=False,
        options={**OPTIONS, **options},
        output="next_token",
        backbone="gpt",
        budget=Budget(max_steps=2000, batch_size=64, lr=3e-3),
        solved_at=0.95,
    )


def _test_lengths(options: Options) -> list[int]:
    lengths = options["test_lengths"]
    if not isinstance(lengths, list | tuple):
        raise bad_argument("test_lengths", "a list of lengths such as [128, 256]", repr(lengths))
    for length in lengths:
        check_integer({"test_lengths": length}, "test_lengths", 2, 1 << 20)
    if len(set(lengths)) < len(lengths):
        raise bad_argument("test_lengths", "different lengths", list(lengths))
    return list(lengths)
