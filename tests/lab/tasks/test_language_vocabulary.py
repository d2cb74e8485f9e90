"""Vocabularies of language tasks: bytes, characters, words and byte pairs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from language_files import OTHER, TRAIN

from rifflemix.errors import InputError
from rifflemix.lab.tasks.text.vocabulary import Vocabulary, build_vocabulary


def vocabulary(level: str, others: tuple[str, ...] = (OTHER,)) -> Vocabulary:
    if level == "bpe":
        pytest.importorskip("tokenizers")
    return build_vocabulary(level, TRAIN, others, bpe_size=262)


@pytest.mark.parametrize("level", ["byte", "character", "bpe"])
def test_text_is_decoded_exactly(level: str) -> None:
    words = vocabulary(level)
    text = "the dog sat on\n  the cat\n"
    assert words.decode(words.encode(text)) == text


def test_words_and_line_ends() -> None:
    words = vocabulary("word")
    assert words.pieces[0] == b"the "  # the most frequent
    assert words.pieces[-1] == b"<unk> "  # needed: validation has one unknown word
    assert words.decode(words.encode(" the  cat \n\nsat")) == "the cat \n\nsat "
    assert words.decode(words.encode("the café\n")) == "the <unk> \n"


def test_words_of_one_frequency_are_in_order() -> None:
    words = build_vocabulary("word", "b a c\nb c a\nb\n")
    assert words.pieces == (b"\n", b"b ", b"a ", b"c ")


def test_characters_come_from_the_training_text() -> None:
    words = vocabulary("character")
    assert [piece.decode() for piece in words.pieces[:-1]] == sorted(set(TRAIN))
    assert words.decode(words.encode("thé")) == "th\N{REPLACEMENT CHARACTER}"


def test_vocabulary_without_unknown_characters_has_no_unknown_token() -> None:
    words = build_vocabulary("character", TRAIN, ["the cat\n"])
    assert len(words) == len(set(TRAIN))
    with pytest.raises(InputError, match="got 'x'"):
        words.encode("the x")


@pytest.mark.parametrize("level", ["byte", "character", "bpe"])
def test_lengths_of_tokens_add_up_to_the_length_of_the_text(level: str) -> None:
    words = build_vocabulary(level, TRAIN + OTHER, bpe_size=262)
    ids = words.encode(OTHER)
    assert words.num_bytes[ids].sum() == len(OTHER.encode())
    assert words.num_characters[ids].sum() == len(OTHER)


def test_bpe_is_shorter_and_has_the_requested_size() -> None:
    words = vocabulary("bpe")
    assert len(words) == 262
    assert len(words.encode(TRAIN)) < 0.6 * len(TRAIN)
    assert np.array_equal(words.encode(TRAIN), vocabulary("bpe").encode(TRAIN))


def test_tokeniser_is_read_from_a_file(tmp_path: Path) -> None:
    own = vocabulary("bpe")
    path = tmp_path / "tokenizer.json"
    path.write_text(own.merges)
    read = build_vocabulary("bpe", "nothing of the kind", tokenizer=str(path))
    assert read.pieces == own.pieces
    path.write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer"):
        build_vocabulary("bpe", TRAIN, tokenizer=str(path))
    with pytest.raises(InputError, match=r"tokenizer: .*JSON"):
        build_vocabulary("bpe", TRAIN, tokenizer=str(tmp_path / "none.json"))


def test_missing_tokenizers_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"'rifflemix\[data\]'"):
        build_vocabulary("bpe", TRAIN)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["ab", "c d", " ", "e", "\n", "f"], 5),  # abc, d, e, the end of the line, f
        (["a", "b", "c"], 1),
        ([" a", "\n\n", " b "], 4),
        (["a", "", "b"], 2),  # a token without text separates words
        ([" ", "  "], 0),
    ],
)
def test_words_are_counted_across_tokens(pieces: list[str], words: int) -> None:
    known = tuple(piece.encode() for piece in dict.fromkeys(["\t", *pieces]))
    vocabulary = Vocabulary("bpe", known)
    ids = np.array([known.index(piece.encode()) for piece in pieces])
    before = np.array([0, *ids[:-1]])
    assert vocabulary.count_words(before, ids) == words
    # The counts of two parts add up for every cut.
    for cut in range(1, len(ids)):
        first, second = slice(cut), slice(cut, None)
        parts = [vocabulary.count_words(before[part], ids[part]) for part in (first, second)]
        assert sum(parts) == words
