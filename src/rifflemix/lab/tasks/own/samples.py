"""Samples in user data: detection by shape and type, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import is_number, shown
from rifflemix.errors import bad_argument

MOST_TOKENS = 1 << 16
"""Maximum length without `max_length`. Longer samples are probably a mistake."""

_MOST_IDS = 1 << 24
_BYTES = 257  # byte b is token b + 1 and 0 is padding, as in task text
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
    """

    kind: Literal["tokens", "vectors", "images"]
    values: NDArray[Any]
    ends: NDArray[np.int64]
    vocab_size: int | None = None
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> NDArray[Any]:
        """Return tokens (N,), vectors (N, F) or pixels (1, H, W, C)."""
        start = int(self.ends[row - 1]) if row else 0
        values: NDArray[Any] = self.values[start : int(self.ends[row])]
        return values

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(M,) number of tokens of each sample."""
        return np.diff(self.ends, prepend=0)


def read_samples(x: Any, lengths: Any = None, max_length: int | None = None) -> Samples:
    """Read the samples `x`, with the arguments and errors of `Task.from_arrays`."""
    array = _as_array(x)
    if array is None:
        if lengths is not None:
            raise bad_argument("lengths", "None beside a list of sequences", shown(lengths))
        samples = _ragged(list(as_numpy(x)), max_length)
    elif array.ndim >= 3 and is_images(array):
        if lengths is not None or max_length is not None:
            raise bad_argument("lengths and max_length", "None for images", "one of them")
        return _images(array)
    else:
        samples = _rectangular(array, _check_lengths(lengths, array), max_length)
    longest = int(samples.lengths.max())
    if longest > MOST_TOKENS and max_length is None:
        row = int(samples.lengths.argmax())
        raise bad_argument(
            "x", f"at most {MOST_TOKENS:,} tokens a sample", f"{longest:,} in sample {row}",
            "give max_length: longer ones are cut, or kept if it is large enough",
        )  # fmt: skip
    return samples


def as_numpy(values: Any) -> Any:
    """Convert torch tensors and pandas objects to arrays. Return other values unchanged."""
    if hasattr(values, "detach"):
        is_plain = str(values.layout) == "torch.strided" and not values.is_nested
        if values.is_meta or values.is_quantized or not is_plain:
            raise bad_argument("tensors", "dense ones with values", shown(values))
        values = values.detach().cpu().resolve_neg().resolve_conj()
        return (values.float() if values.dtype.is_floating_point else values).numpy()
    if hasattr(values, "to_numpy"):  # pandas
        return values.to_numpy()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise bad_argument("arrays", "values without a mask", "masked ones", "fill or drop them")
    return values


def plain_array(values: Any) -> NDArray[Any]:
    """Convert values to an array.

    Return a 0-d array if their shapes differ.
    """
    try:
        return np.asarray(as_numpy(values))
    except ValueError:
        return np.empty((), dtype=object)


def _as_array(x: Any) -> NDArray[Any] | None:
    """Convert `x` to one array of numbers.

    Return None if the samples are texts or differ in length.
    """
    x = as_numpy(x)
    is_number = isinstance(x, np.ndarray) and x.ndim == 0
    if hasattr(x, "toarray"):  # SciPy sparse matrix
        hint = "a sparse matrix becomes an array by x.toarray()"
        raise bad_argument("x", "an array, a tensor or a list of samples", type(x).__name__, hint)
    if isinstance(x, str | bytes | dict) or is_number or not hasattr(x, "__len__"):
        raise bad_argument("x", "an array, a tensor or a list of samples", shown(x))
    if len(x) == 0:
        raise bad_argument("x", "at least one sample", "none")
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
            "x", f"tokens from 0 to {_MOST_IDS - 1:,}", f"{joined.max():.3g} among the numbers",
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


def _check_lengths(lengths: Any, array: NDArray[Any]) -> NDArray[np.int64]:
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


def _rectangular(
    array: NDArray[Any], lengths: NDArray[np.int64], max_length: int | None
) -> Samples:
    if array.ndim == 3 and array.dtype.kind != "f":
        raise bad_argument(
            "x", "pixels 0 to 255 in an integer array (M, H, W)",
            f"{array.min()} to {array.max()}", "sequences of vectors are floats",
        )  # fmt: skip
    if array.ndim > 3:
        raise bad_argument("x", "shape (M, N), (M, N, F) or (M, H, W, C)", array.shape)
    kept = np.minimum(lengths, max_length) if max_length else lengths
    valid = np.arange(array.shape[1]) < kept[:, None]
    return _packed(array[valid], kept, int((kept < lengths).sum()))


def _ragged(items: Sequence[Any], max_length: int | None) -> Samples:
    """Read texts, or sequences of unequal length."""
    if isinstance(items[0], str):
        _check_texts(items)
        rows = [np.frombuffer(text.encode("utf-8", "replace"), np.uint8) for text in items]
    else:
        rows = [_sequence(item, number) for number, item in enumerate(items)]
    shapes = {row.shape[1:] for row in rows}
    if len(shapes) > 1:
        raise bad_argument("x", "as many features in every vector", sorted(shapes))
    for number, row in enumerate(rows):
        if len(row) == 0:
            hint = "drop_empty=True leaves out such samples"
            raise bad_argument("x", "at least one token a sample", f"none in sample {number}", hint)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    kept = np.minimum(lengths, max_length) if max_length else lengths
    values = np.concatenate([row[:length] for row, length in zip(rows, kept, strict=True)])
    _check_ids(items, values)
    cut = int((kept < lengths).sum())
    if isinstance(items[0], str):
        tokens = values.astype(np.int64) + 1
        return Samples("tokens", tokens, np.cumsum(kept), _BYTES, cut)
    return _packed(values, kept, cut)


def _check_texts(items: Sequence[Any]) -> None:
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise bad_argument("x", "texts alone", f"{shown(item)} as sample {number}")


def _sequence(item: Any, number: int) -> NDArray[Any]:
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


def _packed(values: NDArray[Any], lengths: NDArray[np.int64], cut: int) -> Samples:
    ends = np.cumsum(lengths)
    if values.dtype.kind == "f":
        vectors = _finite(values, ends)
        return Samples("vectors", vectors.reshape(len(vectors), -1), ends, cut=cut)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= _MOST_IDS:
        index = int(values.argmin() if low < 0 else values.argmax())
        raise bad_argument(
            "x", f"tokens from 0 to {_MOST_IDS - 1:,}",
            f"{values[index]} in sample {int(np.searchsorted(ends, index, side='right'))}",
            "numbers that are no tokens are floats",
        )  # fmt: skip
    return Samples("tokens", values.astype(np.int64), ends, high + 1, cut)


def _finite(values: NDArray[Any], ends: NDArray[np.int64]) -> NDArray[np.float32]:
    """Convert to float32. Raise at NaN, infinity or float32 overflow."""
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    finite = np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
    if not finite.all():
        index = int(np.flatnonzero(~finite)[0])
        row = int(np.searchsorted(ends, index, side="right"))
        bad = values[index].ravel()[~np.isfinite(floats[index]).ravel()][0]
        raise bad_argument("x", "finite numbers", f"{bad} in sample {row}")
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
            "the channels stand last: x.transpose(0, 2, 3, 1)" if first else "",
        )  # fmt: skip
    ends = np.arange(1, len(array) + 1, dtype=np.int64)
    if array.dtype.kind == "f":
        return Samples("images", _finite(array, ends), ends)
    if array.dtype.kind != "b" and not 0 <= int(array.min()) <= int(array.max()) <= 255:
        raise bad_argument(
            "x", "pixels from 0 to 255, or floats", f"{array.min()} to {array.max()}"
        )
    return Samples("images", array.astype(np.uint8), ends)


def contents(samples: Samples) -> Iterable[bytes]:
    """Return the content of each sample as bytes, to find duplicates."""
    return (samples[row].tobytes() for row in range(len(samples)))
