"""Raw inputs of models that write sequences: integers, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.lab.tasks.core.arrays import Truncate, texts
from rifflemix.lab.tasks.core.sequences import SequenceInputs
from rifflemix.lab.tasks.text.vocabulary import StoredVocabulary

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
