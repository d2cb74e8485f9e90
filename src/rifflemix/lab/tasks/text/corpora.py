"""One Billion Word Benchmark, and word segmentation of the Penn Treebank."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.errors import InputError, InputWarning, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.core.kinds import TOKENS
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, damaged, stat_key
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes, read_text_lines
from rifflemix.lab.tasks.text.language import Language, PennTreebank, pack_vocabulary, window_shapes
from rifflemix.lab.tasks.text.vocabulary import Vocabulary, build_vocabulary
from rifflemix.lab.tasks.user_data.arrays import from_arrays_once

_RELEASE = "1-billion-word-language-modeling-benchmark-r13output"
_TRAINING = "training-monolingual.tokenized.shuffled"
_HELD_OUT = "heldout-monolingual.tokenized.shuffled"
_SHARD = re.compile(r"news\.en-(\d{5})-of-00100(\.xz)?")
_TRAINING_SHARDS = 99
_KNOWN_WORDS = "vocab-2016-09-10.txt"
_UNKNOWN = "UNK"
# Number of sentences that train a subword vocabulary, equal to Tensor2Tensor.
_VOCABULARY_SENTENCES = 63_000


@dataclass(frozen=True)
class _Files:
    """Files of the benchmark: training shards, held-out shards, word list."""

    train: tuple[Path, ...]
    validation: Path
    test: Path
    known_words: Path | None

    @property
    def all(self) -> list[Path]:
        """All files."""
        known = [] if self.known_words is None else [self.known_words]
        return [*self.train, self.validation, self.test, *known]


class LM1B(Language):
    """One billion words of news: shuffled sentences, one per line."""

    card = TaskCard(
        name="lm1b",
        title="One Billion Word Benchmark",
        source="Chelba et al., One Billion Word Benchmark for Measuring Progress in Statistical "
        "Language Modeling (2013)",
        licence="none stated",
        description=(
            "Shuffled sentences of news, 99 training shards of 8 million words each, or the first "
            "num_shards. level: bpe, of bpe_size tokens built from 63,000 sentences (or of a "
            "tokenizer file), or byte. If vocab-2016-09-10.txt is next to the shards, other words "
            "become UNK, as in published results. Evaluation is in windows, as in task ptb."
        ),
        needs_data=True,
        options={
            "level": "bpe",
            "max_length": 256,
            "stride": None,
            "bpe_size": 32768,
            "tokenizer": "",
            "num_shards": None,
        },
        output="next_token",
        backbone="gpt",
        shapes=window_shapes,
    )
    get_it = f"{_RELEASE}.tar.gz from https://www.statmt.org/lm-benchmark"
    split_note = (
        "validation is held-out shard 1; test is held-out shard 0, which published results are of"
    )

    def check(self, options: Options) -> None:
        check_choice("level", options["level"], ("bpe", "byte"))
        if options["num_shards"] is not None:
            check_integer(options, "num_shards", 1, _TRAINING_SHARDS)
        super().check(options)

    def remote_source(self, options: Options) -> None:
        """Return None: the archive is too large for an automatic download."""

    def looked_for(self, options: Options) -> Sequence[str]:
        return (f"{_RELEASE}/", f"{_TRAINING}/ and {_HELD_OUT}/", "their shards")

    def find(self, data_dir: Path, options: Options) -> Source | None:
        """Find the shards in their published layout or in one folder."""
        files = _find(data_dir)
        if files is None:
            return None
        train = files.train[: options["num_shards"]]
        if options["num_shards"] is not None and len(train) < options["num_shards"]:
            raise InputError(
                f"num_shards: expected at most the {len(train)} training shards in "
                f"{train[0].parent}, got {options['num_shards']}"
            )
        chosen = _Files(train, files.validation, files.test, files.known_words)

        def read(progress: Progress) -> Arrays:
            return _encode(chosen, options, progress)

        known = "" if files.known_words is None else f", words outside {_KNOWN_WORDS} as {_UNKNOWN}"
        name = f"{len(train)} of {_TRAINING_SHARDS} training shards in {train[0].parent}{known}"
        return Source(name, stat_key(chosen.all, *self.key(options)), read)


def _find(data_dir: Path) -> _Files | None:
    """Find the shards in their published layout or in one folder.

    Return None without shards.

    Raises:
        InputError: The folder contains training shards but no held-out shards.
    """
    for root in (data_dir, data_dir / _RELEASE):
        folders = [folder for folder in (root / _TRAINING, root) if folder.is_dir()]
        train = next((found for folder in folders if (found := _training_shards(folder))), None)
        if train is None:
            continue
        held_out = root / _HELD_OUT if (root / _HELD_OUT).is_dir() else root
        validation, test = (_held_out_shard(held_out, number) for number in (1, 0))
        known = [folder / _KNOWN_WORDS for folder in (root, data_dir)]
        return _Files(train, validation, test, next((p for p in known if p.is_file()), None))
    return None


def _held_out_shard(folder: Path, number: int) -> Path:
    path = _there(folder / f"news.en.heldout-{number:05d}-of-00050")
    if not path.is_file():
        raise damaged(path, "the file is missing next to the training shards")
    return path


def _training_shards(folder: Path) -> tuple[Path, ...]:
    """Return shards 1 to 99 in order.

    Shard 0 is the source of the held-out text.
    """
    numbered = {
        int(match[1]): path
        for path in sorted(folder.iterdir())
        if (match := _SHARD.fullmatch(path.name))
    }
    return tuple(path for number, path in sorted(numbered.items()) if number > 0)


def _there(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.xz")
    return packed if packed.is_file() and not path.is_file() else path


def _encode(files: _Files, options: Mapping[str, Any], progress: Progress) -> Arrays:
    """Encode every split and return its tokens and the vocabulary."""
    known = None
    if files.known_words is not None:
        known = frozenset(line.strip() for _, line in read_text_lines(files.known_words))
    sample = islice(
        (line for path in files.train for line in _sentences(path, known)), _VOCABULARY_SENTENCES
    )
    vocabulary = build_vocabulary(
        options["level"],
        "".join(sample),
        bpe_size=options["bpe_size"],
        tokenizer=options["tokenizer"],
    )
    parts: dict[str, Sequence[Path]] = dict(
        zip(SPLITS, (files.train, [files.validation], [files.test]), strict=True)
    )
    total, done = sum(map(len, parts.values())), 0
    arrays = pack_vocabulary(vocabulary)
    for split, paths in parts.items():
        shards = []
        for path in paths:
            progress("encoding the One Billion Word Benchmark", done, total)
            shards.append(_tokens(path, known, vocabulary))
            done += 1
        arrays[split] = np.concatenate(shards)
    return arrays


def _tokens(path: Path, known: frozenset[str] | None, vocabulary: Vocabulary) -> Any:
    """Encode a shard with the smallest integer type that fits the ids."""
    text = "".join(_sentences(path, known))
    if not text:
        raise damaged(path, "no sentences")
    return vocabulary.encode(text).astype(np.min_scalar_type(len(vocabulary) - 1))


def _sentences(path: Path, known: frozenset[str] | None) -> Iterator[str]:
    """Read the sentences of a shard, each with its line end."""
    for _, line in read_text_lines(path):
        if known is None:
            yield f"{line}\n"
        else:
            words = (word if word in known else _UNKNOWN for word in line.split())
            yield f"{' '.join(words)}\n"


_RARE_WORD = "<unk>"
_ONE_CHARACTER = "?"  # the text itself has no question marks


class Segmentation(FileTask):
    """Sentences without spaces. The class of a character marks the start of a word."""

    card = TaskCard(
        name="ptb_segmentation",
        title="PTB word segmentation",
        source=PennTreebank.card.source,
        licence=PennTreebank.card.licence,
        description="Sentences of task ptb without spaces, one token per character. The class of a "
        "character is start or inside, for its place in a word. Rare words of the corpus are one "
        "character. Sentences are cut to max_length characters.",
        needs_data=True,
        options={"max_length": 128, "num_train": 10_000},
        output=TOKENS.output,
        backbone=TOKENS.backbone,
        budget=Budget(max_steps=500, lr=3e-3),
    )
    get_it = PennTreebank.get_it

    def check(self, options: Options) -> None:
        check_integer(options, "max_length", 8)
        check_integer(options, "num_train", 100)

    def forms(self, options: Options) -> Sequence[Form]:
        files = PennTreebank.files
        name = ", ".join(f"{{{part}}}" for part in files)
        return (
            Form(name, files, lambda paths, _: _read(paths), (".", PennTreebank.folder),
                 ("", ".xz")),
        )  # fmt: skip

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Create the task from the first training sentences, and all other sentences."""
        options = request.options
        characters: list[list[str]] = []
        classes: list[list[str]] = []
        names: list[str] = []
        for split in SPLITS:
            lines = arrays[split].values.tobytes().decode().splitlines()
            kept = [line for line in lines if line.strip()]
            kept = kept[: options["num_train"]] if split == "train" else kept
            for line in kept:
                words = line.replace(_RARE_WORD, _ONE_CHARACTER).split()
                starts = [c for word in words for c in ("start", *["inside"] * (len(word) - 1))]
                characters.append(list("".join(words))[: options["max_length"]])
                classes.append(starts[: options["max_length"]])
            names += [split] * len(kept)
        with warnings.catch_warnings():
            # Short sentences occur in several splits of the corpus.
            warnings.simplefilter("ignore", InputWarning)
            task = from_arrays_once(characters, classes, kind=TOKENS.name, split=names)
        return replace(
            task,
            name=self.card.name,
            options=dict(options),
            data_source=source.description,
            split_note="the splits of the corpus" + "".join(task.split_note.partition(";")[1:]),
            card=None,
        )


def _read(paths: Paths) -> Arrays:
    return {
        name: np.frombuffer(read_bytes(path), dtype=np.uint8).copy() for name, path in paths.items()
    }
