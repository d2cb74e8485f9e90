"""Samples in user data: detection by shape and type, and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import is_number, shown
from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.arrays import Truncate, as_numpy, cut, plain_array
from rifflemix.lab.tasks.text.encoder import TextEncoder

MOST_TOKENS = 1 << 16
"""Maximum length without `max_length`. Longer samples are probably a mistake."""

MOST_IDS = 1 << 24
"""Maximum number of token ids."""

_CHANNELS = (1, 2, 3, 4)

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Samples:
    """M samples, concatenated.

    Attributes:
        kind: Kind of the samples.
        values: Tokens (T,), vectors (T, F) float32, or images (M, H, W, C).
        ends: (M,) end of each sample in `values`. For images: 1 to M.
        vocab_size: Number of token ids. None unless the samples are tokens.
        cut: Number of samples that were cut to the maximum length.
        encoder: Encoder of the texts. None if the samples are not texts.
        hashes: (M,) stored hash of each sample. None to compute them.
    """

    kind: Literal["tokens", "vectors", "images"]
    values: NDArray[Any]
    ends: NDArray[np.int64]
    vocab_size: int | None = None
    cut: int = 0
    encoder: TextEncoder | None = None
    hashes: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> NDArray[Any]:
        """Return tokens (N,), vectors (N, F) or pixels (1, H, W, C)."""
        start = int(self.ends[row - 1]) if row else 0
        return self.values[start : int(self.ends[row])]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(M,) number of tokens of each sample."""
        return np.diff(self.ends, prepend=0)


TextsOf = Callable[[NDArray[np.int64]], Iterable[str]]
"""Function from row numbers to texts."""


@dataclass(frozen=True)
class Reading:
    """How to read samples.

    Attributes:
        max_length: Maximum length; longer samples are cut. None keeps all tokens.
        truncate: Part of a longer sample that remains.
        is_series: True if samples become frames later, so that they are not cut here.
        has_gaps: True if NaN is allowed.
        encoder: Function that creates the encoder of texts. It receives a function from row
            numbers to texts.
        learned: Level and rule of a learned encoder, and a hash of its size and rows. None if the
            encoder is not learned.
    """

    max_length: int | None = None
    truncate: Truncate = "head"
    is_series: bool = False
    has_gaps: bool = False
    encoder: Callable[[TextsOf], TextEncoder] = lambda texts: TextEncoder("byte")
    learned: tuple[str, str, str] | None = None


AS_GIVEN = Reading()
"""All tokens of each sample, and texts as bytes."""


def count_samples(x: Any) -> int:
    """Count the samples in `x`, with the errors of `Task.from_arrays`."""
    return len(_collection(x))


def read_samples(x: Any, lengths: Any = None, how: Reading = AS_GIVEN) -> Samples:
    """Read the samples `x`, with the arguments and errors of `Task.from_arrays`."""
    array, max_length = _as_array(x), how.max_length
    if array is None:
        if lengths is not None:
            raise bad_argument("lengths", "None with a list of sequences", shown(lengths))
        samples = _ragged(list(as_numpy(x)), how)
    elif array.ndim >= 3 and is_images(array):
        if lengths is not None or max_length is not None:
            raise bad_argument("lengths and max_length", "None for images", "one of them")
        return _images(array)
    else:
        samples = _rectangular(array, check_lengths(lengths, array), how)
    longest = int(samples.lengths.max())
    if longest > MOST_TOKENS and max_length is None and not how.is_series:
        row = int(samples.lengths.argmax())
        raise bad_argument(
            "x", f"at most {MOST_TOKENS:,} tokens a sample", f"{longest:,} in sample {row}",
            "give max_length: longer ones are cut, or kept if it is large enough",
        )  # fmt: skip
    return samples


def _collection(x: Any) -> Any:
    """Convert `x` to a collection with at least one sample."""
    x = as_numpy(x)
    is_number = isinstance(x, np.ndarray) and x.ndim == 0
    if hasattr(x, "toarray"):  # SciPy sparse matrix
        hint = "a sparse matrix becomes an array by x.toarray()"
        raise bad_argument("x", "an array, a tensor or a list of samples", type(x).__name__, hint)
    if isinstance(x, str | bytes | dict | set) or is_number or not hasattr(x, "__len__"):
        raise bad_argument("x", "an array, a tensor or a list of samples", shown(x))
    if len(x) == 0:
        raise bad_argument("x", "at least one sample", "none")
    return x


def _as_array(x: Any) -> NDArray[Any] | None:
    """Convert `x` to one array of numbers.

    Return None if the samples are texts or differ in length.
    """
    x = _collection(x)
    if not isinstance(x, np.ndarray):
        x = [as_numpy(sample) for sample in x]
        try:
            found = np.asarray(x)
        except ValueError:  # different lengths
            return None
        _check_ids(x, found)
        x = found
    if x.dtype.kind == "O" and x.ndim > 1:  # pandas columns of different types
        x = _numbers(x)
    if x.dtype.kind in "OUS":
        return None
    if x.dtype.kind not in "biuf":
        raise bad_argument("x", "integers, floats or texts", x.dtype)
    if x.ndim < 2 or x.size == 0:
        hint = "one number a sample is a sequence of one: x[:, None]" if x.ndim == 1 else ""
        raise bad_argument("x", "shape (M, N), (M, N, F) or (M, H, W, C)", x.shape, hint)
    return np.ascontiguousarray(x)


def _check_ids(rows: Sequence[Any], joined: NDArray[Any]) -> None:
    """Raise if NumPy converted integers to floats.

    NumPy does so if no 64-bit type fits all integers.
    """
    if joined.dtype.kind == "f" and all(map(_are_whole, rows)):
        raise bad_argument(
            "x", f"tokens from 0 to {MOST_IDS - 1:,}", f"{joined.max():.3g} among the numbers",
            "numbers that are no tokens are floats",
        )  # fmt: skip


def _are_whole(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return all(map(_are_whole, values))
    return np.asarray(values).dtype.kind in "biu"


def _numbers(cells: NDArray[Any]) -> NDArray[Any]:
    """Convert an object array to numbers.

    Raise at the first cell that is not a number.
    """
    for index, value in np.ndenumerate(cells):
        if not is_number(value) and not isinstance(value, bool | np.bool_):
            raise bad_argument(
                "x", "numbers in all columns, or texts (M,)", f"{shown(value)} in sample {index[0]}"
            )
    return np.array(cells.tolist())


def check_lengths(lengths: Any, array: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of valid tokens of each row of an array (M, N, ...), or raise."""
    count, tokens = array.shape[:2]
    if lengths is None:
        return np.full(count, tokens, dtype=np.int64)
    found = plain_array(lengths)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise bad_argument(
            "lengths", f"{count} integers, one for each sample", f"{found.dtype} {found.shape}"
        )
    wrong = np.flatnonzero((found < 1) | (found > tokens))
    if len(wrong):
        row = int(wrong[0])
        hint = "" if found[row] else "drop_empty=True leaves out such samples"
        raise bad_argument("lengths", f"1 to {tokens}", f"{found[row]} for sample {row}", hint)
    return found.astype(np.int64)


def _rectangular(array: NDArray[Any], lengths: NDArray[np.int64], how: Reading) -> Samples:
    if array.ndim == 3 and array.dtype.kind != "f":
        raise bad_argument(
            "x", "pixels 0 to 255 in an integer array (M, H, W)",
            f"{array.min()} to {array.max()}", "sequences of vectors are floats",
        )  # fmt: skip
    if array.ndim > 3:
        raise bad_argument("x", "shape (M, N), (M, N, F) or (M, H, W, C)", array.shape)
    most = None if how.is_series else how.max_length
    if most is None or int(lengths.max()) <= most:
        valid = np.arange(array.shape[1]) < lengths[:, None]
        return _packed(array[valid], lengths, 0, has_gaps=how.has_gaps)
    rows = [row[:length] for row, length in zip(array, lengths.tolist(), strict=True)]
    return _joined(rows, how)


def _ragged(items: Sequence[Any], how: Reading) -> Samples:
    """Read texts, or sequences of unequal length."""
    encoder = None
    if isinstance(items[0], str):
        _check_texts(items)
        encoder = how.encoder(lambda rows: (items[row] for row in rows.tolist()))
        rows: list[NDArray[Any]] = [encoder.ids(text) for text in items]
    else:
        rows = [check_sequence(item, number) for number, item in enumerate(items)]
    shapes = {row.shape[1:] for row in rows}
    if len(shapes) > 1:
        raise bad_argument("x", "the same number of features in every vector", sorted(shapes))
    for number, row in enumerate(rows):
        if len(row) == 0:
            hint = "drop_empty=True leaves out such samples"
            raise bad_argument("x", "at least one token a sample", f"none in sample {number}", hint)
    samples = _joined(rows, how, encoder)
    _check_ids(items, samples.values)
    return samples


def _joined(
    rows: Sequence[NDArray[Any]], how: Reading, encoder: TextEncoder | None = None
) -> Samples:
    """Cut and join sequences."""
    most = None if how.is_series else how.max_length
    kept = [cut(row, most or len(row), how.truncate) for row in rows]
    lengths = np.array([len(row) for row in kept], dtype=np.int64)
    values = np.concatenate(kept)
    shortened = sum(len(row) > len(part) for row, part in zip(rows, kept, strict=True))
    if encoder is None:
        return _packed(values, lengths, shortened, has_gaps=how.has_gaps)
    ends = np.cumsum(lengths)
    return Samples("tokens", values.astype(np.int64), ends, len(encoder), shortened, encoder)


def _check_texts(items: Sequence[Any]) -> None:
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise bad_argument("x", "texts alone", f"{shown(item)} as sample {number}")


def check_sequence(item: Any, number: int) -> NDArray[Any]:
    """Convert a sequence of numbers (N,) or vectors (N, F) to an array, or raise."""
    try:
        row = np.asarray(as_numpy(item))
    except ValueError:
        row = np.empty(0, dtype=object)
    is_sequence = row.ndim == 1 or (row.ndim == 2 and row.dtype.kind == "f")
    if row.dtype.kind in "biuf" and is_sequence:
        return row
    raise bad_argument(
        "x", "texts, or sequences (N,) of numbers or (N, F) of floats",
        f"{shown(item)} as sample {number}",
    )  # fmt: skip


def _packed(
    values: NDArray[Any], lengths: NDArray[np.int64], cut: int, *, has_gaps: bool
) -> Samples:
    ends = np.cumsum(lengths)
    if values.dtype.kind == "f":
        vectors = _finite(values, ends, has_gaps=has_gaps)
        return Samples("vectors", vectors.reshape(len(vectors), -1), ends, cut=cut)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= MOST_IDS:
        index = int(values.argmin() if low < 0 else values.argmax())
        raise bad_argument(
            "x", f"tokens from 0 to {MOST_IDS - 1:,}",
            f"{values[index]} in sample {int(np.searchsorted(ends, index, side='right'))}",
            "numbers that are no tokens are floats",
        )  # fmt: skip
    return Samples("tokens", values.astype(np.int64), ends, high + 1, cut)


def _finite(
    values: NDArray[Any], ends: NDArray[np.int64], *, has_gaps: bool = False
) -> NDArray[np.float32]:
    """Convert to float32. Raise at NaN unless gaps are allowed, infinity or float32 overflow."""
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    wrong = np.isinf(floats) if has_gaps else ~np.isfinite(floats)
    finite = ~wrong.reshape(len(floats), -1).any(axis=1)
    if not finite.all():
        index = int(np.flatnonzero(~finite)[0])
        row = int(np.searchsorted(ends, index, side="right"))
        bad = values[index].ravel()[wrong[index].ravel()][0]
        is_series = floats.ndim < 3
        hint = "missing='mask' marks missing values" if np.isnan(bad) and is_series else ""
        raise bad_argument("x", "finite numbers", f"{bad} in sample {row}", hint)
    return floats


def is_images(array: NDArray[Any]) -> bool:
    """Return whether an array contains images.

    Images have shape (M, H, W, C), or shape (M, H, W) with integers from 0 to 255.
    """
    if array.ndim == 4:
        return True
    is_integer = array.ndim == 3 and array.dtype.kind in "iu" and array.size > 0
    return is_integer and bool(array.min() >= 0) and bool(array.max() <= 255)


def _images(array: NDArray[Any]) -> Samples:
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] not in _CHANNELS:
        first = array.shape[1] in _CHANNELS
        raise bad_argument(
            "x", "images (M, H, W, C) of 1 to 4 channels", array.shape,
            "the channels are the last axis: x.transpose(0, 2, 3, 1)" if first else "",
        )  # fmt: skip
    ends = np.arange(1, len(array) + 1, dtype=np.int64)
    if array.dtype.kind == "f":
        return Samples("images", _finite(array, ends), ends)
    if array.dtype.kind != "b" and not 0 <= int(array.min()) <= int(array.max()) <= 255:
        raise bad_argument(
            "x", "pixels from 0 to 255, or floats", f"{array.min()} to {array.max()}"
        )
    return Samples("images", array.astype(np.uint8), ends)


def sample_hashes(samples: Samples) -> NDArray[np.int64]:
    """Return a hash of the content of each sample, (M,), to find duplicates."""
    if samples.hashes is not None:
        return samples.hashes
    contents = (samples[row].tobytes() for row in range(len(samples)))
    return np.fromiter(map(hash, contents), np.int64, len(samples))
