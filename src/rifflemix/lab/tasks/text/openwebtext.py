"""OpenWebText as GPT-2 tokens, and further zero-shot test texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import check_regular
from rifflemix.json_values import parse_json
from rifflemix.lab.tasks.core.base import Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, damaged, reading
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes, read_text_lines
from rifflemix.lab.tasks.text.language import (
    PennTreebank,
    WikiText,
    check_tokens,
    next_token_task,
    pack_vocabulary,
    resolve_windows,
    unpack_vocabulary,
    window_shapes,
)
from rifflemix.lab.tasks.text.next_token import WindowSplit
from rifflemix.lab.tasks.text.vocabulary import Ids, Vocabulary, build_vocabulary

_LAMBADA = ("lambada_test.jsonl", "lambada_test_plain_text.txt")
_END = "<|endoftext|>"
# The vocabulary is padded to a multiple of this for faster matrix products, as in nanoGPT.
_MULTIPLE = 64
# Validation gets at most 1 in 10 training tokens.
_MOST_HELD_OUT = 10
_LEAST = {"train": 2 * _MOST_HELD_OUT, "test": 2}


def _places(folder: str, *names: str) -> tuple[str, ...]:
    """List possible paths of a file, in the subfolder or data folder."""
    return tuple(f"{place}{name}" for place in (f"{folder}/", "") for name in names)


def _packed(names: Sequence[str]) -> list[str]:
    return [f"{name}{ending}" for name in names for ending in ("", ".xz")]


_TOKENS = {
    "train": _places("openwebtext", "train.bin"),
    "test": _places("openwebtext", "val.bin"),
    "tokenizer": _places("openwebtext", "tokenizer.json"),
}
_TEXTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "lambada": (
        _places("lambada", *_packed(_LAMBADA)),
        f"{' or '.join(_LAMBADA)} of the LAMBADA data set (https://zenodo.org/records/2630551)",
    ),
    **{
        corpus.card.name: (_places(corpus.folder, *_packed(corpus.files["test"])), corpus.get_it)
        for corpus in (WikiText, PennTreebank)
    },
}
"""Further test text -> possible files, and where to get them."""


class OpenWebText(FileTask):
    """Nine billion tokens of web pages that Reddit posts link to."""

    card = TaskCard(
        name="openwebtext",
        title="OpenWebText",
        source="Gokaslan and Cohen, OpenWebText Corpus (2019), as tokens of GPT-2 in the form of "
        "Karpathy, nanoGPT (2022)",
        licence="none stated for the pages",
        description=(
            "9,035,582,198 training tokens in train.bin. The test has the 4,434,897 tokens of "
            "val.bin. further_tests names other texts to test on, such as lambada,wikitext,ptb. "
            "Evaluation is in windows, as in task ptb."
        ),
        needs_data=True,
        options={"max_length": 1024, "stride": None, "further_tests": ""},
        output="next_token",
        backbone="gpt",
        shapes=partial(window_shapes, words=50_304),
    )
    get_it = (
        "train.bin and val.bin, which data/openwebtext/prepare.py of "
        "https://github.com/karpathy/nanoGPT writes, and tokenizer.json of "
        "https://huggingface.co/openai-community/gpt2; for further_tests "
        + ", ".join(get_it for _, get_it in _TEXTS.values())
    )
    split_note = "the end of the training tokens, as many as the test has, is for validation"

    def check(self, options: Options) -> None:
        """Check the window and the names of further texts."""
        length = check_integer(options, "max_length", 1)
        if options["stride"] is not None:
            check_integer(options, "stride", 1, length)
        _further(options)

    def forms(self, options: Options) -> Sequence[Form]:
        """List the files: tokens, tokenizer and further texts."""
        files = {**_TOKENS, **{text: _TEXTS[text][0] for text in _further(options)}}
        return [Form(", ".join(f"{{{part}}}" for part in files), files, _encode)]

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Create the task from windows of the token files, read in place."""
        options = resolve_windows(request.options)
        length, stride = options["max_length"], options["stride"]
        vocabulary = unpack_vocabulary("bpe", arrays)
        further = {text: arrays[text] for text in _further(options)}
        check_tokens(self.card, source, further, vocabulary)
        size, tested = (int(arrays[f"{part}_size"][0]) for part in ("train", "test"))
        held_out = min(tested, size // _MOST_HELD_OUT)
        cuts = {
            "train": ("train", 0, size - held_out, length),
            "validation": ("train", size - held_out, size, stride),
            "test": ("test", 0, tested, stride),
        }
        splits = {
            split: _FileWindows(
                tokens=_TokenFile(source.paths[part], start, stop),
                length=length,
                stride=step,
                content=arrays[f"{part}_sha256"].values.tobytes() + b"%d:%d" % (start, stop),
            )
            for split, (part, start, stop, step) in cuts.items()
        }
        further_tests = {
            text: WindowSplit(tokens, length, stride) for text, tokens in further.items()
        }
        return next_token_task(
            self.card, options, source, vocabulary, splits, self.split_note, further_tests
        )


class _TokenFile(Array):
    """Slice of a file of little-endian 16-bit token ids.

    It is pickled as its path.
    """

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self.path, self.start, self.stop = path, start, stop
        self.values = _ids(path)[start:stop]

    def __reduce__(self) -> tuple[type[Array], tuple[Any, ...]]:
        return _TokenFile, (self.path, self.start, self.stop)


@dataclass(frozen=True, eq=False, kw_only=True)
class _FileWindows(WindowSplit):
    """Windows of a file with a known hash.

    Attributes:
        content: Hash of the file, and the range of the slice.
    """

    content: bytes

    def digest(self) -> bytes:
        head = f"{self.length},{self.stride};".encode()
        return hashlib.blake2b(head + self.content, digest_size=16).digest()


def _further(options: Options) -> list[str]:
    """Split the option with further texts at commas."""
    value = options["further_tests"]
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else [""]
    if value != "" and (len({*names}) < len(names) or {*names} - {*_TEXTS}):
        expected = f"names out of {', '.join(_TEXTS)}, separated by commas"
        raise bad_argument("further_tests", expected, repr(value))
    return names if value else []


def _encode(paths: Mapping[str, Path], progress: Progress) -> Arrays:
    """Return vocabulary, tokens of further texts, and token file sizes and hashes."""
    vocabulary = _vocabulary(paths["tokenizer"])
    arrays: Arrays = {}
    for part in ("train", "test"):
        progress(f"reading {paths[part].name}", 0, None)
        arrays |= _measured(part, paths[part], len(vocabulary))
    for name in paths.keys() - _TOKENS.keys():
        read = _passages if name == "lambada" else _whole
        parts = [vocabulary.encode_whole(text) for text in read(paths[name])]
        arrays[name] = np.concatenate(parts).astype(np.uint16)
    missing = -len(vocabulary) % _MULTIPLE
    filled = Vocabulary("bpe", vocabulary.pieces + (b"",) * missing, vocabulary.merges)
    return arrays | pack_vocabulary(filled)


def _measured(part: str, path: Path, num_tokens: int) -> Arrays:
    """Return size and hash of a token file."""
    ids = _ids(path)
    if len(ids) < _LEAST[part]:
        raise damaged(path, f"only {len(ids)} tokens")
    if (largest := int(ids.max())) >= num_tokens:
        raise damaged(path, f"token {largest:,}, but the tokenizer has {num_tokens:,}")
    with reading(path), path.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").digest()
    return {
        f"{part}_size": np.array([len(ids)]),
        f"{part}_sha256": np.frombuffer(content, dtype=np.uint8),
    }


def _vocabulary(path: Path) -> Vocabulary:
    vocabulary = build_vocabulary("bpe", "", tokenizer=str(path))
    if len(vocabulary) > 1 << 16 or len(vocabulary.encode_whole(_END)) != 1:
        raise InputError(
            f"{path}: expected GPT-2's tokeniser, with {_END} as one of at most 65,536 tokens, got "
            f"another one of {len(vocabulary):,}; get tokenizer.json of "
            "https://huggingface.co/openai-community/gpt2"
        )
    return vocabulary


def _ids(path: Path) -> Ids:
    """Map a file of little-endian 16-bit token ids into memory."""
    with reading(path):
        check_regular(path)
        return np.asarray(np.memmap(path, np.dtype("<u2"), "r"))


def _whole(path: Path) -> Iterator[str]:
    content = read_bytes(path)
    with reading(path):
        yield content.decode()


def _passages(path: Path) -> Iterator[str]:
    """Read the passages of LAMBADA, each followed by the end-of-document token."""
    is_json = ".jsonl" in path.suffixes
    for number, line in read_text_lines(path):
        if not is_json:
            yield line + _END
            continue
        with reading(path):
            row = parse_json(line)
        text = row.get("text") if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise damaged(path, f"line {number} has no text")
        yield text + _END
