"""Raw inputs of language models: a beginning of a text or of bytes, or a text with masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.checks import shown
from rifflemix.lab.tasks.core.arrays import bad_input, check_length, listed, plain_array, texts
from rifflemix.lab.tasks.text.vocabulary import StoredVocabulary


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
