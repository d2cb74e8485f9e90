"""Predicting the next token of a text, in windows, and what is measured."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import Batch, Sample, Task
from rifflemix.lab.tasks.core.shares import share_deviation, share_moments
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.text.vocabulary import Vocabulary

UNCOUNTED = -100
"""The label of a token that is not predicted."""

_HASHED_AT_ONCE = 2**20
_PROPORTIONAL = ("loss", "bits_per_byte", "bits_per_character", "nats_per_word")


@dataclass(frozen=True, eq=False)
class WindowSplit:
    """A text cut into windows of one length; every token but the first is predicted once.

    A window holds `length` tokens and the one after each. Windows start `stride` tokens apart,
    and a token that an earlier window has predicted is not counted again. With `stride` = `length`
    the windows are chunks of the text; with a smaller stride every window after the first has at
    least `length` - `stride` tokens of context. The last window starts early enough to be full.

    Attributes:
        tokens: (T,) integers, T at least 2.
        length: tokens in a window, N; fewer where the text is shorter.
        stride: 1 to `length`.
    """

    tokens: Array
    length: int
    stride: int

    def __len__(self) -> int:
        """Number of windows."""
        return 1 + max(0, -(-(self._predicted - self.length) // self.stride))

    def __getitem__(self, index: int) -> Sample:
        """Inputs (N,) and labels (N,) int64; -100 at what is not counted."""
        if not 0 <= index < len(self):
            raise IndexError("window out of range")
        length = min(self.length, self._predicted)
        start = min(index * self.stride, self._predicted - length)
        window = torch.from_numpy(self.tokens.values[start : start + length + 1].astype("int64"))
        labels = window[1:].clone()
        counted_before = 0 if index == 0 else (index - 1) * self.stride + self.length
        labels[: max(0, counted_before - start)] = UNCOUNTED
        return window[:-1], labels

    def digest(self) -> bytes:
        """Hash of the text and of how it is cut."""
        total = hashlib.blake2b(f"{self.length},{self.stride};".encode(), digest_size=16)
        for start in range(0, len(self.tokens.values), _HASHED_AT_ONCE):
            part = self.tokens.values[start : start + _HASHED_AT_ONCE]
            total.update(part.astype("<i8").tobytes())
        return total.digest()

    @property
    def _predicted(self) -> int:
        return len(self.tokens.values) - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class NextTokenTask(Task):
    """Predict each token of a text from those before it.

    Outputs are logits (B, N, V) for labels (B, N). Everything measured is a sum of nats over the
    tokens of the whole split, divided once: "loss" (nats a token), "accuracy" (of the likeliest
    token), "bits_per_byte", and of text "bits_per_character" and "nats_per_word"; and what follows:
    "perplexity", exp(loss), and "word_perplexity", exp(loss * tokens / words), which compares
    models whatever their tokens are. Words stand between white space; an end of a line is one
    more, as tables of LM1B count them.

    Attributes:
        vocabulary: tokens and their text.
        is_text: whether the bytes that tokens stand for are text.
    """

    vocabulary: Vocabulary
    is_text: bool = True

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Inputs and labels (B, N); all windows of a split have one length."""
        return {
            "inputs": torch.stack([inputs for inputs, _ in samples]),
            "labels": torch.stack([torch.as_tensor(labels) for _, labels in samples]),
        }

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Mean nats of the counted tokens, float32."""
        self._check_outputs(outputs, batch)
        return functional.cross_entropy(
            outputs.float().flatten(0, 1), batch["labels"].flatten(), ignore_index=UNCOUNTED
        )

    def uniform_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """What `loss` would be if all tokens were equally right; smoothed labels add it."""
        self._check_outputs(outputs, batch)
        counted = outputs[batch["labels"] != UNCOUNTED].float()
        return -functional.log_softmax(counted, dim=1).mean()

    def count_labels(self, batch: Batch) -> int:
        """Tokens that count."""
        return int((batch["labels"] != UNCOUNTED).sum().item())

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Sum and count of every metric that is a mean, over the counted tokens of a batch."""
        self._check_outputs(outputs, batch)
        counted = batch["labels"] != UNCOUNTED
        labels, logits = batch["labels"][counted], outputs[counted].float()
        each = functional.cross_entropy(logits, labels, reduction="none")
        nats = each.sum().item()
        right = (outputs.argmax(dim=2) == batch["labels"]) & counted
        positions, words = labels.cpu().numpy(), self.vocabulary
        measured = {
            "loss": (nats, len(labels)),
            "accuracy": (float(right.sum().item()), len(labels)),
            "bits_per_byte": (nats / math.log(2), int(words.num_bytes[positions].sum())),
        }
        if self.is_text:
            bits, before = nats / math.log(2), batch["inputs"][counted].cpu().numpy()
            measured["bits_per_character"] = bits, int(words.num_characters[positions].sum())
            measured["nats_per_word"] = nats, words.count_words(before, positions)
        measured |= share_moments(right.sum(dim=1), counted.sum(dim=1))
        return measured | _moments(each, counted)

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Metrics computed from means over a split: perplexity per token and per word.

        And the deviations of the task's metric and of accuracy: their standard errors, from windows
        that are drawn, times the root of their number.
        """
        found = {"perplexity": _exp(means["loss"])}
        deviation = share_deviation(means["accuracy"], means) if "accuracy" in means else None
        if deviation is not None:
            found["accuracy_deviation"] = deviation
        if "nats_per_word" in means:
            found["word_perplexity"] = _exp(means["nats_per_word"])
        slope = _slope(self.metric, {**means, **found})
        if slope is not None and "_window" in means:
            variance = max(means["_window_square"] - means["_window"] ** 2, 0.0)
            found[f"{self.metric}_deviation"] = slope * math.sqrt(variance)
        return found

    def _check_outputs(self, outputs: Tensor, batch: Batch) -> None:
        expected = (*batch["labels"].shape, self.num_classes)
        if tuple(outputs.shape) != expected:
            raise bad_argument(
                "outputs",
                f"logits of the next token, (B, N, V) = {expected}",
                tuple(outputs.shape),
                "a language task needs a causal language model, such as gpt",
            )


def _moments(nats: Tensor, counted: Tensor) -> dict[str, tuple[float, int]]:
    """Sum, and sum of squares, of the mean nats of each window, from those of counted tokens."""
    tokens = counted.sum(dim=1)
    window = torch.arange(len(counted), device=nats.device).repeat_interleave(tokens)
    sums = torch.zeros(len(counted), dtype=torch.float64, device=nats.device)
    means = sums.index_add(0, window, nats.double())[tokens > 0] / tokens[tokens > 0]
    return {
        "_window": (float(means.sum().item()), len(means)),
        "_window_square": (float(means.square().sum().item()), len(means)),
    }


def _slope(metric: str, means: Mapping[str, float]) -> float | None:
    """How much a metric grows with a nat of loss; None where it does not follow from the loss."""
    if metric == "perplexity":
        return means[metric]
    if metric in _PROPORTIONAL and means["loss"]:
        return means[metric] / means["loss"]
    return None


def _exp(nats: float) -> float:
    # The perplexity of a diverged model may exceed the largest float: it is infinite then.
    return math.exp(nats) if nats < 700 else math.inf
