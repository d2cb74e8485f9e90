"""Text as token ids: bytes, characters, words, or byte-level BPE."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, bad_argument, check_choice, require_packages
from rifflemix.files import read_text, user_path

LEVELS = ("byte", "character", "word", "bpe")

Ids = NDArray[np.integer[Any]]

_UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_UNKNOWN_WORD = "<unk>"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token ids and the bytes of each token.

    Attributes:
        level: "byte", "character", "word" or "bpe" (byte pair encoding). Words are separated by
            white space, and each line end is a word.
        pieces: Bytes of each token. The bytes of a word include the space after it.
        merges: BPE tokenizer in the JSON format of the `tokenizers` library, or an empty text.
    """

    level: str
    pieces: tuple[bytes, ...]
    merges: str = ""

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> Ids:
        """Encode a text as token ids (N,).

        Raises:
            InputError: The vocabulary has no id for a character or word.
        """
        if self.level == "byte":
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        if self.level == "bpe":
            # Encode line by line: a tokenizer stores a record for every byte of its input.
            lines = (self._bpe_ids(line) for line in text.splitlines(keepends=True))
            return np.fromiter((token for line in lines for token in line), dtype=np.int32)
        unknown = self._ids.get(_UNKNOWN_WORD if self.level == "word" else _UNKNOWN_CHARACTER)
        instead = -1 if unknown is None else unknown
        units = _units(self.level, text)
        ids = np.fromiter((self._ids.get(unit, instead) for unit in units), dtype=np.int32)
        if (ids < 0).any():
            unit = next(u for u in _units(self.level, text) if u not in self._ids)
            raise bad_argument("text", f"{self.level}s of the training text", repr(unit))
        return ids

    def encode_whole(self, text: str) -> Ids:
        """Encode a text like `encode`, but let BPE tokens span line ends."""
        if self.level != "bpe":
            return self.encode(text)
        return np.array(self._bpe_ids(text), dtype=np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode token ids. Invalid UTF-8 becomes replacement characters."""
        return b"".join(self.pieces[index] for index in ids).decode(errors="replace")

    def _bpe_ids(self, text: str) -> list[int]:
        # Without the special tokens that some tokenizers add to every text.
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    @functools.cached_property
    def num_bytes(self) -> NDArray[np.int64]:
        """(V,) number of bytes of each token."""
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    @functools.cached_property
    def num_characters(self) -> NDArray[np.int64]:
        """(V,) number of characters that begin in each token."""
        starts = (sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self.pieces)
        return np.fromiter(starts, dtype=np.int64, count=len(self.pieces))

    def count_words(self, before: Ids, ids: Ids) -> int:
        """Count the words that begin in the tokens `ids` (N,).

        Words are separated by white space, and each line end is a word.

        Args:
            before: (N,) the token before each token of `ids`.
            ids: (N,) token ids.
        """
        joined = ~self._ends_in_space[before] & self._begins_in_word[ids]
        return int(self._num_words[ids].sum() - joined.sum())

    @functools.cached_property
    def _num_words(self) -> NDArray[np.int64]:
        """(V,) number of words and line ends in each token alone."""
        return np.array([len(p.split()) + p.count(b"\n") for p in self.pieces], dtype=np.int64)

    @functools.cached_property
    def _begins_in_word(self) -> NDArray[np.bool_]:
        return np.array([bool(p) and not p[:1].isspace() for p in self.pieces], dtype=np.bool_)

    @functools.cached_property
    def _ends_in_space(self) -> NDArray[np.bool_]:
        return np.array([not p or p[-1:].isspace() for p in self.pieces], dtype=np.bool_)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        cut = -1 if self.level == "word" else None
        names = (piece if piece == b"\n" else piece[:cut] for piece in self.pieces)
        return {name.decode(): index for index, name in enumerate(names)}

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return _tokenizers().Tokenizer.from_str(self.merges)


@dataclass(frozen=True)
class StoredVocabulary:
    """Vocabulary as JSON values, for records of tasks.

    Attributes:
        level: Same as in `Vocabulary`.
        pieces: Bytes of each token, as characters of the same numbers (Latin-1).
        merges: Same as in `Vocabulary`.
    """

    level: str
    pieces: tuple[str, ...]
    merges: str

    @classmethod
    def of(cls, vocabulary: Vocabulary, **further: Any) -> Self:
        """Convert a vocabulary. `further` are the fields of a subclass."""
        pieces = tuple(piece.decode("latin-1") for piece in vocabulary.pieces)
        return cls(vocabulary.level, pieces, vocabulary.merges, **further)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""
        pieces = tuple(piece.encode("latin-1") for piece in self.pieces)
        return Vocabulary(self.level, pieces, self.merges)

    def ids(self, text: str, number: int) -> NDArray[np.int64]:
        """Encode input `number` as token ids (N,)."""
        try:
            return self.vocabulary.encode(text).astype(np.int64)
        except InputError as error:
            raise InputError(f"input {number}: {error}") from error

    def text(self, ids: Iterable[int]) -> str:
        """Decode token ids, without the space after the last word."""
        text = self.vocabulary.decode(ids)
        return text.removesuffix(" ") if self.level == "word" else text


def build_vocabulary(
    level: str,
    train: str,
    others: Sequence[str] = (),
    *,
    bpe_size: int = 4096,
    most_words: int | None = None,
    tokenizer: str = "",
) -> Vocabulary:
    """Build the vocabulary of a training text.

    Args:
        level: One of `LEVELS`.
        train: Training text. It determines the characters, the words by frequency, or the BPE
            pairs.
        others: Further texts to encode. If they contain new characters or words, the vocabulary
            gets an unknown token.
        bpe_size: Maximum number of ids of a BPE vocabulary.
        most_words: Maximum number of ids of a word vocabulary. None for no limit.
        tokenizer: Path of an existing byte-level BPE in the JSON format of the `tokenizers`
            library, such as GPT-2's. Empty to train a new one.

    Raises:
        InputError: Unknown level, file without a byte-level BPE, or missing library.
    """
    check_choice("level", level, LEVELS)
    if level == "byte":
        return Vocabulary(level, tuple(bytes([value]) for value in range(256)))
    if level == "bpe":
        return bpe_vocabulary(
            read_tokenizer_file(tokenizer)
            if tokenizer
            else train_merges(train.splitlines(keepends=True), bpe_size)
        )
    counts = Counter(_units(level, train))
    if level == "character":
        units, unknown = sorted(counts), _UNKNOWN_CHARACTER
    else:
        units, unknown = sorted(counts, key=lambda word: (-counts[word], word)), _UNKNOWN_WORD
        units = units[: None if most_words is None else most_words - 1]
    known = set(units)
    if unknown not in known and any(
        unit not in known for text in (train, *others) for unit in _units(level, text)
    ):
        units.append(unknown)
    space = b" " if level == "word" else b""
    return Vocabulary(level, tuple(u.encode() + (space if u != "\n" else b"") for u in units))


def _units(level: str, text: str) -> Iterable[str]:
    return _words(text) if level == "word" else text


def _words(text: str) -> Iterator[str]:
    """Split lines into words, with a line feed at each line end."""
    *lines, rest = text.split("\n")
    for line in lines:
        yield from line.split()
        yield "\n"
    yield from rest.split()


def train_merges(lines: Iterable[str], size: int) -> str:
    """Train a byte-level BPE on lines of text, in constant memory for the text.

    Args:
        lines: Lines with their line ends.
        size: Maximum number of ids, at least 257.

    Returns:
        Tokenizer in the JSON format of the `tokenizers` library.
    """
    library = _tokenizers()
    if size < 257:
        raise bad_argument("bpe_size", "at least 257: all bytes and a pair", size)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return str(tokenizer.to_str())


def read_tokenizer_file(path: str) -> str:
    """Read the text of a tokenizer file."""
    file = user_path("tokenizer", path)
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise bad_argument("tokenizer", "a JSON file", repr(path), str(error)) from error


def bpe_vocabulary(merges: str) -> Vocabulary:
    """Create the vocabulary of a byte pair encoding.

    Args:
        merges: Tokenizer in the JSON format of the `tokenizers` library.

    Raises:
        InputError: The text is not a byte-level BPE, or the library is missing.
    """
    expected = "a byte-level BPE of the tokenizers library"
    tokenizer = read_tokenizer(merges)
    model = type(tokenizer.model).__name__
    if model != "BPE":
        raise bad_argument("tokenizer", expected, f"a {model} tokenizer")
    ids, added = tokenizer.get_vocab(), tokenizer.get_added_tokens_decoder()
    byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
    pieces: list[bytes | None] = [None] * len(ids)
    for token, index in ids.items():
        if index >= len(ids):
            raise bad_argument("tokenizer", expected, f"a gap before id {index}")
        # Special tokens do not represent text.
        is_special = index in added and added[index].special
        known = not is_special and all(character in byte_of for character in token)
        pieces[index] = bytes(byte_of[c] for c in token) if known else b""
    return Vocabulary("bpe", tuple(piece or b"" for piece in pieces), merges)


def read_tokenizer(content: str) -> Any:
    """Create a tokenizer of the `tokenizers` library, without its own truncation and padding.

    Args:
        content: Tokenizer in the JSON format of the library.

    Raises:
        InputError: The text is not a tokenizer, or the library is missing.
    """
    library = _tokenizers()
    try:
        tokenizer = library.Tokenizer.from_str(content)
    except Exception as error:  # the library raises plain Exceptions
        expected = "a tokenizer.json of the tokenizers library"
        raise bad_argument("tokenizer", expected, "another file", str(error)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _byte_characters() -> list[str]:
    """Return the character that represents each byte in byte-level BPE.

    Printable bytes represent themselves. Other bytes become characters from U+0100 on.

    Source: Radford et al. 2019, section 2.2, in the released tokenizer.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(b if b in printable else 0x100 + hidden.index(b)) for b in range(256)]


def _tokenizers() -> Any:
    require_packages("a tokenizer", "data", "tokenizers")
    import tokenizers
    import tokenizers.models
    import tokenizers.pre_tokenizers
    import tokenizers.trainers

    return tokenizers
