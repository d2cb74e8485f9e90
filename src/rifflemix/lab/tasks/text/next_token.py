"""Next-token prediction: windows of a text and metrics; raw inputs of models that write."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rifflemix.checks import shown
from rifflemix.lab.tasks.core.arrays import (
    SequenceInputs,
    Truncate,
    bad_input,
    check_length,
    listed,
    plain_array,
    texts,
)
from rifflemix.lab.tasks.core.base import Batch, Sample
from rifflemix.lab.tasks.core.kinds import NEXT_TOKEN, Kind, ratio_moments
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED, TokenLabelTask
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.text.vocabulary import StoredVocabulary, Vocabulary

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


@dataclass(frozen=True)
class PromptInputs(StoredVocabulary):
    """Texts that a language model continues.

    Attributes:
        max_length: Maximum number of tokens.
    """

    kind: ClassVar[str] = "prompts"
    max_length: int

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert texts to token ids (N,) int64."""
        return [self._ids(text, number) for number, text in enumerate(texts(raw))]

    @property
    def num_outputs(self) -> int:
        """Number of ids that a model may write."""
        return len(self.pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return self.vocabulary.decode(ids)

    def decode_whole(self, ids: Sequence[int]) -> str:
        """Return the text of a prompt and its continuation."""
        return self.decode(ids)

    def _ids(self, text: str, number: int) -> Tensor:
        ids = self.ids(text, number)
        check_length(len(ids), self.max_length, number, "tokens")
        return torch.from_numpy(ids)


@dataclass(frozen=True)
class ByteInputs:
    """Beginnings of sequences of bytes, such as the first rows of an image.

    Attributes:
        start: Id of the token before the first byte.
        max_length: Maximum number of tokens, including the start token.
        image_shape: Height, width and channels of the image of a whole sequence.
    """

    kind: ClassVar[str] = "bytes"
    start: int
    max_length: int
    image_shape: tuple[int, int, int] | None = None

    @property
    def num_outputs(self) -> int:
        """Number of ids that a model may write: the bytes."""
        return self.start

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert bytes (N,) of any shape to ids (1 + N,) int64; N may be 0."""
        rows = listed(raw, "sequences of bytes")
        return [self._ids(row, number) for number, row in enumerate(rows)]

    def decode(self, ids: Sequence[int]) -> int | list[int]:
        """Return the byte of one token id, or the bytes of several."""
        return ids[0] if len(ids) == 1 else list(ids)

    def decode_whole(self, ids: Sequence[int]) -> NDArray[np.uint8]:
        """Return the bytes (N,) of a beginning and its continuation, or a whole image (H, W, C)."""
        values = np.array(ids[1:], dtype=np.uint8)
        is_whole = self.image_shape is not None and len(values) == np.prod(self.image_shape)
        return values.reshape(self.image_shape) if is_whole else values

    def _ids(self, row: Any, number: int) -> Tensor:
        values = plain_array(row)
        if values.size:  # an empty list has no integer type
            low, high = values.min(), values.max()
            if values.dtype.kind not in "iu" or low < 0 or high >= self.start:
                raise bad_input(f"bytes, 0 to {self.start - 1}", shown(row), number)
        ids = np.concatenate(([self.start], values.reshape(-1))).astype(np.int64)
        check_length(len(ids), self.max_length, number, "tokens with the start token")
        return torch.from_numpy(ids)


MASK = "[MASK]"
"""Text of a masked token."""


@dataclass(frozen=True)
class MaskedInputs:
    """Texts with [MASK] for each masked token, or integers with -1.

    The space before a masked byte pair belongs to it, because byte pairs start with spaces.

    Attributes:
        size: Number of token ids. The next id marks a masked token.
        max_length: Maximum number of tokens.
        vocabulary: Tokens of texts. None for integers.
        columns: Columns of the user's table. Empty without a table.
    """

    kind: ClassVar[str] = "masked"
    size: int
    max_length: int
    vocabulary: StoredVocabulary | None = None
    columns: tuple[str, ...] = ()

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert to token ids (N,) int64."""
        words = self.vocabulary
        rows = listed(raw, "sequences of integers") if words is None else texts(raw)
        found = []
        for number, row in enumerate(rows):
            ids = self._text(words, row, number) if words else self._integers(row, number)
            check_length(len(ids), self.max_length, number, "tokens")
            found.append(torch.from_numpy(ids))
        return found

    def fill(self, ids: Sequence[int], predicted: Sequence[int]) -> Any:
        """Replace masked tokens by predicted tokens. Return a text or an array (N,)."""
        pairs = zip(ids, predicted, strict=True)
        found = [new if old == self.size else old for old, new in pairs]
        if self.vocabulary is not None:
            return self.vocabulary.text(found)
        return np.array(found, dtype=np.int64)

    def _text(self, words: StoredVocabulary, text: str, number: int) -> NDArray[np.int64]:
        *starts, end = text.split(MASK)
        ids: list[NDArray[np.int64]] = []
        for start in starts:
            part = start.removesuffix(" ") if words.level == "bpe" else start
            ids += [words.ids(part, number), np.array([self.size])]
        return np.concatenate([*ids, words.ids(end, number)])

    def _integers(self, row: Any, number: int) -> NDArray[np.int64]:
        values = plain_array(row)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise bad_input("integers (N,)", f"{values.dtype} of shape {values.shape}", number)
        if len(values) and not -1 <= int(values.min()) <= int(values.max()) < self.size:
            raise bad_input(
                f"integers from 0 to {self.size - 1:,}, or -1 for a masked token",
                f"{values.min()} to {values.max()}", number,
            )  # fmt: skip
        return np.where(values < 0, self.size, values).astype(np.int64)


PAD, END, FIRST_SYMBOL = 0, 1, 2
"""Token ids. The decoder reads PAD first."""


@dataclass(frozen=True)
class SymbolInputs:
    """Sequences of symbols from 0 to `symbols` - 1, or texts with tokens as symbols.

    Attributes:
        symbols: Number of symbols.
        max_length: Maximum number of symbols of a sequence.
        vocabulary: Tokens of texts. None for integers.
        longest_output: Maximum number of tokens that a model writes. None for the length of the
            input.
        columns: Columns of the user's table. Empty without a table.
        cuts: True if longer sequences are cut, as in training.
        truncate: Part of a longer sequence that remains.
    """

    kind: ClassVar[str] = "symbols"
    symbols: int
    max_length: int
    vocabulary: StoredVocabulary | None = None
    longest_output: int | None = None
    columns: tuple[str, ...] = ()
    cuts: bool = False
    truncate: Truncate = "head"

    start_token: ClassVar[int] = PAD
    end_token: ClassVar[int] = END

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert symbols (N,) or texts to token ids (N + 1,) int64 with an end token."""
        if self.vocabulary is not None:
            raw = [self.vocabulary.ids(text, number) for number, text in enumerate(texts(raw))]
        plain = SequenceInputs(
            "tokens", self.symbols, self.max_length, False, self.cuts, truncate=self.truncate
        )
        return [add_end(symbols) for symbols in plain.encode(raw)]

    def decode(self, ids: Sequence[int]) -> list[int] | str:
        """Return the symbols or the text before the end token. Other tokens are left out."""
        written = list(ids)
        end = written.index(END) if END in written else len(written)
        symbols = [token - FIRST_SYMBOL for token in written[:end] if token >= FIRST_SYMBOL]
        return symbols if self.vocabulary is None else self.vocabulary.text(symbols)


def add_end(symbols: Tensor) -> Tensor:
    """Convert symbols (N,) int64 to token ids (N + 1,) with an end token."""
    return torch.cat((symbols + FIRST_SYMBOL, torch.tensor([END])))
