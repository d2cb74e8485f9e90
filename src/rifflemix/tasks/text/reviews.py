"""Film reviews as ids of words."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from rifflemix.tasks.data_io.files import Arrays
from rifflemix.tasks.data_io.packed import PackedRows
from rifflemix.tasks.text.words import RESERVED, word_ids, words_to_ids

_BREAK = re.compile(r"<br\s*/?>")
# Letters and digits with apostrophes between them, or any other visible mark.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[^\w\s]|_")


def split_words(review: bytes) -> list[str]:
    """The words and marks of a review in lower case, its line breaks left out."""
    return _WORD.findall(_BREAK.sub(" ", review.decode("utf-8", errors="replace").lower()))


def encode_reviews(
    train: PackedRows, test: PackedRows, kept: NDArray[np.int64], vocab_size: int
) -> Arrays:
    """Reviews as ids of their words.

    Args:
        train: reviews as bytes, among them those for validation.
        test: reviews as bytes.
        kept: the rows of `train` that are trained on; their words are counted.
        vocab_size: ids, of the padding and of unknown words among them.

    Returns:
        "train_" and "test_" "tokens", "ends" and "labels" as `PackedRows` holds; and "words",
        UTF-8 with a line for each, from id 2 on.
    """
    table = word_ids((split_words(train.row(row).tobytes()) for row in kept), vocab_size)
    arrays: Arrays = {"words": np.frombuffer("\n".join(table).encode(), dtype=np.uint8)}
    for name, rows in (("train", train), ("test", test)):
        ids = [words_to_ids(split_words(review), table) for review in rows]
        arrays[f"{name}_tokens"] = np.concatenate(ids)
        arrays[f"{name}_ends"] = np.cumsum([len(review) for review in ids], dtype=np.int64)
        arrays[f"{name}_labels"] = rows.labels.values
    return arrays


def count_ids(words: NDArray[np.uint8]) -> int:
    """Ids in use when `words` is what `encode_reviews` says."""
    return RESERVED + int(np.count_nonzero(words == ord("\n"))) + 1
