"""Cased text as subwords, with an end token per text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.text.vocabulary import build_vocabulary

RESERVED = 2
"""Number of reserved ids: 0 for padding, 1 for unknown words or the end of a subword text."""

LEAST_SUBWORDS = RESERVED + 257
"""Minimum size of a subword vocabulary: reserved ids, all bytes and one pair."""

_END = 1


class Subwords:
    """Byte pair encoding learned from training texts.

    Args:
        texts: Training texts.
        vocab_size: Maximum number of ids, including padding and the end token.

    Raises:
        InputError: The tokenizers library is missing.
    """

    def __init__(self, texts: Iterable[str], vocab_size: int) -> None:
        size = vocab_size - RESERVED
        self._vocabulary = build_vocabulary("bpe", "\n".join(texts), bpe_size=size)

    def __len__(self) -> int:
        return len(self._vocabulary) + RESERVED

    def encode(self, text: str) -> NDArray[np.int32]:
        """Encode a text as ids (N,), including the end token."""
        ids = self._vocabulary.encode_whole(text) + RESERVED
        return np.append(ids, _END).astype(np.int32)
