"""Word segmentation of the Penn Treebank: a class for each character."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rifflemix.errors import InputWarning
from rifflemix.lab.tasks.core.base import SPLITS, Request, Task, check_integer
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.core.kinds import TOKENS
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes
from rifflemix.lab.tasks.text.language import PennTreebank
from rifflemix.lab.tasks.user_data.arrays import from_arrays_once

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
