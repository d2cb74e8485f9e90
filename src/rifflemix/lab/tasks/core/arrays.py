"""Raw inputs: conversion to NumPy arrays, cuts of long sequences, token ids and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.checks import shown
from rifflemix.errors import InputError, bad_argument


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


Truncate = Literal["head", "tail", "both"]

TRUNCATIONS = ("head", "tail", "both")
"""Parts of a longer sequence that can be kept."""


def cut(values: NDArray[Any], most: int, truncate: Truncate = "head") -> NDArray[Any]:
    """Keep at most `most` elements of a sequence (N, ...).

    Args:
        values: Sequence.
        most: Maximum number of elements.
        truncate: Part of a longer sequence to keep. "head": the first `most` elements. "tail": the
            last ones. "both": half of them from each end.

    Source: Sun et al. 2019, How to Fine-Tune BERT for Text Classification?, section 5.3.1.

    Example:
        >>> import numpy as np
        >>> from rifflemix.lab.tasks.core.arrays import cut
        >>> cut(np.arange(6), 3, "both").tolist()
        [0, 1, 5]
    """
    if len(values) <= most:
        return values
    if truncate == "head":
        return values[:most]
    last = most if truncate == "tail" else most // 2
    end = values[len(values) - last :]
    return end if truncate == "tail" else np.concatenate((values[: most - last], end))


NAME = "inputs"
"""Name of the argument in messages."""


def listed(raw: Any, what: str) -> list[Any]:
    """Return the inputs as a list.

    Args:
        raw: Collection of inputs: a list, an array, a tensor or a pandas object.
        what: Plural noun for one kind of input, such as "texts".

    Raises:
        InputError: `raw` is a single input, has no order, or has no inputs.
    """
    values = as_numpy(raw)
    is_single = isinstance(values, str | bytes | dict | set) or not hasattr(values, "__len__")
    if is_single or getattr(values, "ndim", 1) == 0:
        raise bad_argument(NAME, f"a list of {what}", shown(raw))
    if len(values) == 0:
        raise bad_argument(NAME, f"at least one of the {what}", "none")
    return list(values)


def texts(raw: Any) -> list[str]:
    """Return the inputs as a list of texts."""
    found = listed(raw, "texts")
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise bad_input("a text", shown(text), number)
    return found


def pairs(raw: Any) -> list[tuple[str, str]]:
    """Return the inputs as a list of pairs of texts."""
    found = []
    for number, pair in enumerate(listed(raw, "pairs of texts")):
        both = list(pair) if isinstance(pair, Sequence) and not isinstance(pair, str) else pair
        both = both.tolist() if hasattr(both, "tolist") else both
        is_pair = isinstance(both, list) and len(both) == 2
        if not is_pair or not all(isinstance(text, str) for text in both):
            raise bad_input("a pair of texts", shown(pair), number)
        found.append((both[0], both[1]))
    return found


def check_length(length: int, most: int, number: int, unit: str, *, fixed: bool = False) -> None:
    """Raise unless input `number` has 1 to `most` tokens, or exactly `most` if `fixed`."""
    if length > most or length < 1 or (fixed and length != most):
        expected = f"{most:,} {unit}" if fixed else f"1 to {most:,} {unit}"
        raise bad_input(expected, f"{length:,}", number)


def bad_input(expected: str, got: object, number: int) -> InputError:
    """Return the error for input `number`."""
    return bad_argument(NAME, expected, f"{got} in input {number}")


@dataclass(frozen=True)
class SequenceInputs:
    """Sequences of token ids or of vectors, without a conversion other than of the dtype.

    Attributes:
        of: Kind of the elements.
        size: Number of token ids, or of features per vector.
        max_length: Maximum number of elements.
        fixed: True if all sequences have `max_length` elements.
        cuts: True if longer sequences are cut, as in training.
        columns: Columns of the user's table, one element each. Empty without a table.
        truncate: Part of a longer sequence that remains.
    """

    kind: ClassVar[str] = "sequences"
    of: Literal["tokens", "vectors"]
    size: int
    max_length: int
    fixed: bool
    cuts: bool = False
    columns: tuple[str, ...] = ()
    truncate: Truncate = "head"

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert to tokens (N,) int64 or vectors (N, F) float32."""
        rows = listed(raw, f"sequences of {self.of}")
        return [torch.from_numpy(self._row(row, number)) for number, row in enumerate(rows)]

    @property
    def num_outputs(self) -> int:
        """Number of token ids that a language model may write."""
        return self.size

    def decode_whole(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """Return the token ids (N,) of a prompt and its continuation."""
        return np.array(ids, dtype=np.int64)

    def _row(self, row: Any, number: int) -> NDArray[Any]:
        values = plain_array(row)
        values = self._tokens(values, number) if self.of == "tokens" else self._vectors(row, number)
        if self.cuts:
            values = cut(values, self.max_length, self.truncate)
        check_length(len(values), self.max_length, number, self.of, fixed=self.fixed)
        return values

    def _tokens(self, values: NDArray[Any], number: int) -> NDArray[np.int64]:
        if values.ndim != 1 or values.dtype.kind not in "biu":
            raise bad_input("token ids (N,)", _described(values), number)
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < self.size:
            wrong = values.min() if values.min() < 0 else values.max()
            raise bad_input(f"token ids from 0 to {self.size - 1:,}", wrong, number)
        return values.astype(np.int64)

    def _vectors(self, row: Any, number: int) -> NDArray[np.float32]:
        values = plain_array(row)
        if values.dtype.kind == "O":  # rows of a pandas table with columns of several types
            values = as_floats(values, row, number)
        if values.ndim == 1 and self.size == 1:
            values = values[:, None]
        shape = f"(N, {self.size})" + (" or (N,)" if self.size == 1 else "")
        if values.ndim != 2 or values.shape[1] != self.size or values.dtype.kind not in "biuf":
            raise bad_input(f"numbers {shape}", _described(values), number)
        with np.errstate(over="ignore"):
            floats = values.astype(np.float32)
        if not np.isfinite(floats).all():
            wrong = values[~np.isfinite(floats)][0]
            raise bad_input("finite numbers", wrong, number)
        return floats


def as_floats(values: NDArray[Any], row: Any, number: int) -> NDArray[np.float64]:
    """Convert an object array of numbers; `row` and `number` name it in the error."""
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        raise bad_input("numbers", shown(row), number) from None


def _described(values: NDArray[Any]) -> str:
    return f"{values.dtype} of shape {values.shape}"
