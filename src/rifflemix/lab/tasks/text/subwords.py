"""Cased text as subwords, each text with an end token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.text.vocabulary import build_vocabulary

RESERVED = 2
"""Reserved ids: 0 is padding, 1 is an unknown word, or the end of a text of subwords."""

LEAST_SUBWORDS = RESERVED + 257
"""Fewest ids of a subword vocabulary: every byte and one pair."""

_END = 1


class Subwords:
    """Subwords by byte pair encoding, learned from training texts.

    Args:
        texts: training texts.
        vocab_size: most ids, padding and the end token included.

    Raises:
        InputError: the tokenizers library is missing.
    """

    def __init__(self, texts: Iterable[str], vocab_size: int) -> None:
        size = vocab_size - RESERVED
        self._vocabulary = build_vocabulary("bpe", "\n".join(texts), bpe_size=size)

    def __len__(self) -> int:
        return len(self._vocabulary) + RESERVED

    def encode(self, text: str) -> NDArray[np.int32]:
        """Ids (N,) of a text, its end token included."""
        ids = self._vocabulary.encode_whole(text) + RESERVED
        return np.append(ids, _END).astype(np.int32)
