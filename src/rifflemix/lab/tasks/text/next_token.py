"""Next-token prediction on windows of a text, and its metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rifflemix.lab.tasks.core.base import Batch, Sample
from rifflemix.lab.tasks.core.kinds import NEXT_TOKEN, Kind
from rifflemix.lab.tasks.core.split_scores import ratio_moments
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED, TokenLabelTask
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.text.vocabulary import Vocabulary

_HASHED_AT_ONCE = 2**20
_PROPORTIONAL = ("loss", "bits_per_byte", "bits_per_character", "nats_per_word")


@dataclass(frozen=True, eq=False)
class WindowSplit:
    """Text cut into windows of equal length.

    Every token except the first is predicted once. A window contains `length` inputs and the next
    token of each input. Windows start `stride` tokens apart. Tokens that an earlier window
    predicted are not counted again. If `stride` = `length`, the windows are disjoint chunks of the
    text. With a smaller stride, every window after the first has at least `length` - `stride`
    tokens of context. The last window starts early enough to be full.

    Attributes:
        tokens: (T,) integers, T at least 2.
        length: Tokens per window, N. The window is shorter if the text is shorter.
        stride: Distance between window starts, from 1 to `length`.
    """

    tokens: Array
    length: int
    stride: int

    def __len__(self) -> int:
        return 1 + max(0, -(-(self._predicted - self.length) // self.stride))

    def __getitem__(self, index: int) -> Sample:
        """Return inputs (N,) and labels (N,) int64.

        The label of an uncounted token is -100.
        """
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
        """Hash the text, the length and the stride."""
        total = hashlib.blake2b(f"{self.length},{self.stride};".encode(), digest_size=16)
        for start in range(0, len(self.tokens.values), _HASHED_AT_ONCE):
            part = self.tokens.values[start : start + _HASHED_AT_ONCE]
            total.update(part.astype("<i8").tobytes())
        return total.digest()

    @property
    def _predicted(self) -> int:
        return len(self.tokens.values) - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class NextTokenTask(TokenLabelTask):
    """Prediction of each token of a text from the tokens before it.

    Outputs are logits (B, N, V) for labels (B, N). Every metric is a sum over all tokens of the
    split, divided once at the end:

    - "loss": nats per token. "perplexity" is exp(loss).
    - "accuracy": share of positions with a correct most likely token.
    - "bits_per_byte"; for text also "bits_per_character" and "nats_per_word".
    - "word_perplexity": exp(loss * tokens / words). It is comparable between tokenizations.

    Words are separated by white space. Each line end counts as one word, as in LM1B tables.

    Attributes:
        vocabulary: Tokens and their text. None for tokens without bytes; the metrics of
            bytes, characters and words are then left out.
        is_text: True if the bytes of the tokens are text.
    """

    of_kind: ClassVar[Kind] = NEXT_TOKEN

    vocabulary: Vocabulary | None
    is_text: bool = True

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of every mean metric over counted tokens."""
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
        }
        if words is not None:
            bytes_ = int(words.num_bytes[positions].sum())
            measured["bits_per_byte"] = (nats / math.log(2), bytes_)
        if words is not None and self.is_text:
            bits, before = nats / math.log(2), batch["inputs"][counted].cpu().numpy()
            measured["bits_per_character"] = bits, int(words.num_characters[positions].sum())
            measured["nats_per_word"] = nats, words.count_words(before, positions)
        measured |= ratio_moments(right.sum(dim=1), counted.sum(dim=1))
        return measured | _moments(each, counted)

    @property
    def metric_directions(self) -> dict[str, bool]:
        lower = ["loss", "perplexity"]
        if self.vocabulary is not None:
            lower.append("bits_per_byte")
        if self.vocabulary is not None and self.is_text:
            lower += ["bits_per_character", "nats_per_word", "word_perplexity"]
        return {"accuracy": True, **dict.fromkeys(lower, False)}

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Compute perplexities per token and per word from means over a split.

        Also return standard deviations of the task's metric and of the accuracy. A standard
        deviation is the standard error over randomly drawn windows, times the square root of their
        number.
        """
        found = {"perplexity": _exp(means["loss"]), **super().summarise(means)}
        if "nats_per_word" in means:
            found["word_perplexity"] = _exp(means["nats_per_word"])
        slope = _slope(self.metric, {**means, **found})
        if slope is not None and "_window" in means:
            variance = max(means["_window_square"] - means["_window"] ** 2, 0.0)
            found[f"{self.metric}_deviation"] = slope * math.sqrt(variance)
        return found


def _moments(nats: Tensor, counted: Tensor) -> dict[str, tuple[float, int]]:
    """Compute sum and sum of squares of the mean nats per window.

    Args:
        nats: Nats of the counted tokens of all windows.
        counted: (B, N) mask of counted tokens.
    """
    tokens = counted.sum(dim=1)
    window = torch.arange(len(counted), device=nats.device).repeat_interleave(tokens)
    sums = torch.zeros(len(counted), dtype=torch.float64, device=nats.device)
    means = sums.index_add(0, window, nats.double())[tokens > 0] / tokens[tokens > 0]
    return {
        "_window": (float(means.sum().item()), len(means)),
        "_window_square": (float(means.square().sum().item()), len(means)),
    }


def _slope(metric: str, means: Mapping[str, float]) -> float | None:
    """Compute the derivative of a metric by the loss.

    Return None if the metric is not a function of the loss.
    """
    if metric == "perplexity":
        return means[metric]
    if metric in _PROPORTIONAL and means["loss"]:
        return means[metric] / means["loss"]
    return None


def _exp(nats: float) -> float:
    # A diverged model can overflow to infinite perplexity.
    return math.exp(nats) if nats < 700 else math.inf
