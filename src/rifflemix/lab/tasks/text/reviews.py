"""Film reviews as ids of words or subwords."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.data_io.files import Array, Arrays
from rifflemix.lab.tasks.data_io.packed import PackedRows
from rifflemix.lab.tasks.text.subwords import RESERVED, Subwords
from rifflemix.lab.tasks.text.words import Ids, word_ids, words_to_ids

_BREAK = re.compile(r"<br\s*/?>")
# Letters and digits with apostrophes between them, or any other visible character.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[^\w\s]|_")


def split_words(review: bytes) -> list[str]:
    """Split a review into lower-case words and punctuation, without line breaks."""
    return _WORD.findall(_BREAK.sub(" ", _text(review).lower()))


def encode_reviews(
    train: PackedRows,
    test: PackedRows,
    kept: NDArray[np.int64],
    vocab_size: int,
    level: str = "word",
) -> Arrays:
    """Encode reviews as ids of words or subwords.

    Args:
        train: Reviews for training and validation, as bytes.
        test: Test reviews, as bytes.
        kept: Rows of `train` for training. The vocabulary is built from these rows.
        vocab_size: Maximum number of ids, including reserved ids.
        level: "word" or "subword".

    Returns:
        "tokens", "ends" and "labels" in the format of `PackedRows`, with prefixes "train_" and
        "test_". For level "word" also "words": UTF-8, one line per word, from id 2 on. For level
        "subword" also "num_ids".
    """
    trained = (train.row(row).tobytes() for row in kept)
    arrays: Arrays = {}
    encode: Callable[[bytes], Ids]
    if level == "subword":
        subwords = Subwords(map(_text, trained), vocab_size)
        arrays["num_ids"] = np.array([len(subwords)])
        encode = lambda review: subwords.encode(_text(review))  # noqa: E731
    else:
        table = word_ids(map(split_words, trained), vocab_size)
        arrays["words"] = np.frombuffer("\n".join(table).encode(), dtype=np.uint8)
        encode = lambda review: words_to_ids(split_words(review), table)  # noqa: E731
    for name, rows in (("train", train), ("test", test)):
        ids = list(map(encode, rows))
        arrays[f"{name}_tokens"] = np.concatenate(ids)
        arrays[f"{name}_ends"] = np.cumsum([len(review) for review in ids], dtype=np.int64)
        arrays[f"{name}_labels"] = rows.labels.values
    return arrays


def count_ids(arrays: Mapping[str, Array]) -> int:
    """Count the ids in use in the arrays of `encode_reviews`."""
    if "num_ids" in arrays:
        return int(arrays["num_ids"].values[0])
    return RESERVED + int(np.count_nonzero(arrays["words"].values == ord("\n"))) + 1


def _text(review: bytes) -> str:
    return review.decode("utf-8", errors="replace")
