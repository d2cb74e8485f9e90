"""Raw inputs that are sequences of token ids or vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.checks import shown
from rifflemix.lab.tasks.core.arrays import (
    Truncate,
    bad_input,
    check_length,
    cut,
    listed,
    plain_array,
)


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
            values = _floats(values, row, number)
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


def _floats(values: NDArray[Any], row: Any, number: int) -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        raise bad_input("numbers", shown(row), number) from None


def _described(values: NDArray[Any]) -> str:
    return f"{values.dtype} of shape {values.shape}"
