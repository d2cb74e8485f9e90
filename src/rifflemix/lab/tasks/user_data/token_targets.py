"""Tasks that predict tokens: the next token, masked tokens, or another sequence."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.checks import shown
from rifflemix.errors import InputWarning, bad_argument
from rifflemix.lab.tasks.core.arrays import SequenceInputs, as_numpy, cut, plain_array
from rifflemix.lab.tasks.core.base import SPLITS, Sample, Task
from rifflemix.lab.tasks.core.kinds import NEXT_TOKEN, SEQ2SEQ, Kind
from rifflemix.lab.tasks.core.token_labels import (
    UNCOUNTED,
    MaskedTokenTask,
    SequenceTask,
    mask_tokens,
)
from rifflemix.lab.tasks.text.next_token import (
    FIRST_SYMBOL,
    PAD,
    MaskedInputs,
    NextTokenTask,
    PromptInputs,
    SymbolInputs,
    add_end,
)
from rifflemix.lab.tasks.text.vocabulary import StoredVocabulary, Vocabulary
from rifflemix.lab.tasks.user_data.choose_kind import Origin
from rifflemix.lab.tasks.user_data.labels import without_labels
from rifflemix.lab.tasks.user_data.samples import (
    MOST_IDS,
    MOST_TOKENS,
    Reading,
    check_lengths,
    read_samples,
)
from rifflemix.lab.tasks.user_data.splitting import Division, Given, check_shares, divide
from rifflemix.lab.tasks.user_data.tokenizing import TextOptions

WINDOW = 256
"""Tokens per window, unless `max_length` is given."""

_NO_LIMIT = 1 << 32  # windows have a limit, sequences have none


@dataclass(frozen=True, eq=False)
class Pieces:
    """Windows of token sequences.

    Attributes:
        tokens: (T,) tokens of all sequences.
        bounds: (M, 2) start and end of each window.
        mask_id: Id of masked tokens. None to predict the next token.
    """

    tokens: NDArray[np.int64]
    bounds: NDArray[np.int64]
    mask_id: int | None

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, index: int) -> Sample:
        """Return inputs (N,) and labels (N,), -100 at tokens that are not predicted."""
        start, end = self.bounds[index].tolist()
        tokens = torch.from_numpy(self.tokens[start:end])
        if self.mask_id is None:
            return tokens[:-1], tokens[1:]
        return mask_tokens(tokens, index, self.mask_id)

    def digest(self) -> bytes:
        total = hashlib.blake2b(f"{self.mask_id};".encode(), digest_size=16)
        for start, end in self.bounds.tolist():
            total.update(f"{end - start};".encode())
            total.update(self.tokens[start:end].astype("<i8").tobytes())
        return total.digest()


def unlabelled_task(
    given: Given, kind: Kind, options: TextOptions, seed: int, origin: Origin
) -> Task:
    """Create a task from texts or sequences of integers.

    Sequences that are longer than `max_length` are divided into windows. With a single sequence,
    the splits are consecutive parts of it.
    """
    x, are_texts = _collection(given.x)
    parts, note = _parts(given, x, kind, seed, origin)
    vocabulary = None
    if are_texts:
        vocabulary = options.vocabulary(parts["train"], [*parts["validation"], *parts["test"]])
        tokens = {n: [vocabulary.encode(text) for text in part] for n, part in parts.items()}
        size = len(vocabulary)
    else:
        options.check_no_texts()
        tokens = {name: list(part) for name, part in parts.items()}
        size = 1 + max(int(row.max()) for part in tokens.values() for row in part)
    is_next = kind is NEXT_TOKEN
    longest = max(len(row) for part in tokens.values() for row in part)
    most = options.max_length or min(WINDOW, longest)
    overlap, mask_id = (1, None) if is_next else (0, size)
    splits = {name: _pieces(name, part, most + overlap, mask_id) for name, part in tokens.items()}
    sizes = {int(n) for s in splits.values() for n in np.diff(s.bounds, axis=1).ravel()}
    what = "texts" if are_texts else "sequences of integers"
    data = f"{len(x):,} {what} in windows of up to {most} tokens"
    fields: dict[str, Any] = {
        "name": origin.name,
        "options": {**origin.options, "kind": kind.name, **options.recorded(), "max_length": most},
        "input_kind": "tokens",
        "vocab_size": size if is_next else size + 1,
        "num_features": None,
        "num_classes": size,
        "max_length": max(sizes) - overlap,
        "padding": len(sizes) > 1,
        "split_note": note,
        "data_source": origin.data_source,
        "splits": splits,
        "metric": kind.metric,
        "higher_is_better": kind.metrics[kind.metric],
        "card": origin.card(kind, data, len(splits["train"])),
    }
    length = fields["max_length"]
    if not is_next:
        stored = None if vocabulary is None else StoredVocabulary.of(vocabulary)
        inputs = MaskedInputs(size, length, stored, origin.columns)
        return MaskedTokenTask(**fields, mask_id=size, inputs=inputs)
    if vocabulary is not None:
        prompts = PromptInputs.of(vocabulary, max_length=length)
        return NextTokenTask(**fields, vocabulary=vocabulary, inputs=prompts)
    plain = SequenceInputs("tokens", size, length, fixed=False, columns=origin.columns)
    return NextTokenTask(**fields, vocabulary=None, inputs=plain)


def _collection(x: Any) -> tuple[Any, bool]:
    """Return a collection of texts or of sequences, and whether they are texts."""
    found: Any = as_numpy(x)
    if isinstance(found, str):
        return [found], True
    if isinstance(found, dict) or not hasattr(found, "__len__") or len(found) == 0:
        raise bad_argument("x", "texts, or sequences of integers", shown(x))
    if isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in "iu":
        return found.reshape(1, -1), False  # one sequence
    if all(isinstance(value, int) for value in found):
        return [list(found)], False
    return found, isinstance(found[0], str)


def _parts(
    given: Given, x: Any, kind: Kind, seed: int, origin: Origin
) -> tuple[dict[str, list[Any]], str]:
    """Return the texts or token sequences of each split, and a note on the split."""
    rows = _rows(x, given.lengths, kind)
    if len(rows) > 1:
        labels = without_labels(kind, len(rows))
        division = divide(given.split, labels, given.groups, seed)
        parts = {name: [rows[row] for row in division.rows[name].tolist()] for name in SPLITS}
        hashes = np.array([hash(row if isinstance(row, str) else row.tobytes()) for row in rows])
        doubles = division.duplicates(hashes, origin.name)
        return parts, "; ".join([origin.split_note or division.note, *doubles])
    shares, total = check_shares(given.split), len(rows[0])
    ends = [round(total * share) for share in (0, shares[0], shares[0] + shares[1], 1)]
    percent = " / ".join(f"{100 * share:g}" for share in shares)
    note = f"{percent} % of the sequence for train / validation / test, in its order"
    return {name: [rows[0][ends[i] : ends[i + 1]]] for i, name in enumerate(SPLITS)}, note


def _rows(x: Any, lengths: Any, kind: Kind) -> list[Any]:
    """Check the samples and return a list of texts or of token arrays."""
    samples = read_samples(x, lengths, Reading(_NO_LIMIT))
    if samples.encoder is not None:
        return list(x)
    if samples.kind != "tokens":
        raise bad_argument(
            "x", f"texts or integers with kind {kind.name!r}", samples.kind,
            "series of numbers are kind 'forecast'",
        )  # fmt: skip
    return [samples[row] for row in range(len(samples))]


def _pieces(name: str, rows: Sequence[Any], size: int, mask_id: int | None) -> Pieces:
    """Divide sequences into windows of `size` tokens. Windows of next tokens share one token."""
    overlap = 1 if mask_id is None else 0
    bounds, start = [], 0
    for row in rows:
        starts = range(start, start + len(row) - overlap, size - overlap)
        bounds += [(at, min(at + size, start + len(row))) for at in starts]
        start += len(row)
    if not bounds:
        raise bad_argument("x", f"at least {1 + overlap} tokens for {name}", "fewer")
    tokens = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return Pieces(tokens, np.array(bounds, dtype=np.int64), mask_id)


Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairSplit:
    """Selected pairs of sequences.

    Attributes:
        sources, targets: Symbols of all pairs.
        rows: Indices of the pairs in this split.
    """

    sources: Sequence[Ints]
    targets: Sequence[Ints]
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the token ids of both sequences, with an end token."""
        row = int(self.rows[index])
        pair = (torch.from_numpy(self.sources[row]), torch.from_numpy(self.targets[row]))
        return add_end(pair[0]), add_end(pair[1])

    def digest(self) -> bytes:
        total = hashlib.blake2b(digest_size=16)
        for row in self.rows.tolist():
            for values in (self.sources[row], self.targets[row]):
                total.update(f"{len(values)};".encode() + values.astype("<i8").tobytes())
        return total.digest()


def pairs_task(given: Given, options: TextOptions, seed: int, origin: Origin) -> Task:
    """Create a task from sources `x` and targets `y`: texts, or sequences of integers from 0.

    Sources and targets of texts have one vocabulary. Targets of integers can end in -100 as
    padding. Sequences over `max_length` are cut.
    """
    (xs, are_texts), (ys, other) = (
        _checked_sequences("x", given.x),
        _checked_sequences("y", given.y),
    )
    if are_texts != other:
        kinds = ("texts", "integers") if are_texts else ("integers", "texts")
        raise bad_argument("y", f"{kinds[0]}, as x", kinds[1])
    if len(xs) != len(ys):
        raise bad_argument("y", f"{len(xs)} sequences, one for each of x", len(ys))
    division = divide(given.split, without_labels(SEQ2SEQ, len(xs)), given.groups, seed)
    vocabulary = _vocabulary(xs, ys, division, options) if are_texts else None
    if given.lengths is not None:
        xs = _cut_rows(xs, given.lengths)
    sources = [_symbols("x", row, number, vocabulary) for number, row in enumerate(xs)]
    targets = [_symbols("y", row, number, vocabulary) for number, row in enumerate(ys)]
    doubles = division.duplicates(np.array([hash(row.tobytes()) for row in sources]), origin.name)
    sources, targets, cuts = _cut_pairs(sources, targets, options, origin)
    longest = max(max(map(len, sources)), max(map(len, targets)))
    if vocabulary is None:
        options.check_no_texts()
        symbols = 1 + int(max(row.max() for row in (*sources, *targets)))
    else:
        symbols = len(vocabulary)
    data = f"{len(sources):,} pairs of {'texts' if are_texts else 'sequences of integers'}"
    return SequenceTask(
        name=origin.name,
        options={**origin.options, "kind": SEQ2SEQ.name, **options.recorded()},
        input_kind="tokens",
        vocab_size=FIRST_SYMBOL + symbols,
        num_features=None,
        num_classes=FIRST_SYMBOL + symbols,
        max_length=longest + 1,
        padding=True,
        split_note="; ".join([origin.split_note or division.note, *doubles, *cuts]),
        data_source=origin.data_source,
        splits={name: PairSplit(sources, targets, division.rows[name]) for name in SPLITS},
        metric=SEQ2SEQ.metric,
        pad_id=PAD,
        card=origin.card(SEQ2SEQ, data, len(division.rows["train"])),
        inputs=SymbolInputs(
            symbols,
            longest,
            None if vocabulary is None else StoredVocabulary.of(vocabulary),
            longest_output=max(map(len, targets)) + 1,
            columns=origin.columns,
            cuts=options.max_length is not None,
            truncate=options.truncate,
        ),
    )


def _cut_pairs(
    sources: list[Ints], targets: list[Ints], options: TextOptions, origin: Origin
) -> tuple[list[Ints], list[Ints], list[str]]:
    """Cut sequences over the maximum length. Return a note and warn if there are such sequences.

    Raises:
        InputError: A sequence is too long, and the user gave no maximum length.
    """
    most = options.max_length or MOST_TOKENS
    too_long = {
        what: sum(len(row) > most for row in rows)
        for what, rows in (("sources", sources), ("targets", targets))
    }
    if not any(too_long.values()):
        return sources, targets, []
    found = " and ".join(f"{n:,} of {len(sources):,} {what}" for what, n in too_long.items() if n)
    if options.max_length is None:
        raise bad_argument(
            "x and y", f"at most {MOST_TOKENS:,} tokens a sequence", f"more in {found}",
            "give max_length: longer ones are cut",
        )  # fmt: skip
    note = f"{found} are longer than max_length ({most:,}) and are cut"
    warnings.warn(f"task {origin.name}: {note}", InputWarning, stacklevel=6)
    kept = [[cut(row, most, options.truncate) for row in rows] for rows in (sources, targets)]
    return kept[0], kept[1], [note]


def _checked_sequences(name: str, values: Any) -> tuple[Any, bool]:
    """Return the sequences, and whether they are texts."""
    given = as_numpy(values)
    if isinstance(given, str | dict) or not hasattr(given, "__len__") or len(given) == 0:
        raise bad_argument(name, "texts, or sequences of integers", shown(values))
    are_texts = isinstance(given[0], str)
    for number, row in enumerate(given):
        if isinstance(row, str) != are_texts:
            expected = "texts alone" if are_texts else "sequences of integers"
            raise bad_argument(name, expected, f"{shown(row)} as sample {number}")
    return given, are_texts


def _cut_rows(xs: Any, lengths: Any) -> list[Any]:
    if not isinstance(xs, np.ndarray) or xs.ndim != 2:
        raise bad_argument("lengths", "None unless x is an array (M, N)", "lengths")
    counts = check_lengths(lengths, xs)
    return [row[:count] for row, count in zip(xs, counts.tolist(), strict=True)]


def _vocabulary(xs: Any, ys: Any, division: Division, options: TextOptions) -> Vocabulary:
    train = [text[row] for row in division.rows["train"].tolist() for text in (xs, ys)]
    return options.vocabulary(train, [*xs, *ys])


def _symbols(name: str, row: Any, number: int, vocabulary: Vocabulary | None) -> Ints:
    if vocabulary is not None:
        found = vocabulary.encode(row).astype(np.int64)
    else:
        values = plain_array(row)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise bad_argument(name, "sequences of integers", f"{shown(row)} as sample {number}")
        found = _without_padding(values) if name == "y" else values.astype(np.int64)
        if len(found) and not 0 <= int(found.min()) <= int(found.max()) < MOST_IDS:
            got = f"{found.min()} to {found.max()} in sample {number}"
            raise bad_argument(name, f"integers from 0 to {MOST_IDS - 1:,}", got)
    if not len(found):
        hint = "drop_empty=True leaves out such samples"
        raise bad_argument(name, "at least one token a sequence", f"none in sample {number}", hint)
    return found


def _without_padding(values: NDArray[Any]) -> Ints:
    valid = np.flatnonzero(values != UNCOUNTED)
    return values[: valid[-1] + 1 if len(valid) else 0].astype(np.int64)
