"""What the samples of a recipe's task look like, without its data: sizes, and a batch of zeros.

Counting what a training step costs needs no values, and most rows' data is not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rifflemix.errors import unknown_name
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.tasks import Task, task_card
from rifflemix.lab.tasks.core.base import Batch
from rifflemix.lab.tasks.images.pixels import WholeImages

_BYTES = 257  # ids of bytes, and of padding
# Classes, channels, and the side of the images where the task has no option `size`.
_IMAGES = {
    "digits": (10, 1, 8),
    "mnist": (10, 1, 28),
    "image": (10, 3, 32),
    "cifar100": (100, 3, 32),
    "tiny_imagenet": (200, 3, 64),
    "dogs_vs_cats": (2, 3, 224),
    "imagenet": (1000, 3, 224),
    "flowers102": (102, 3, 224),
    "oxford_pets": (37, 3, 224),
    "pathfinder32": (2, 1, 32),
    "pathfinder64": (2, 1, 64),
    "pathfinder128": (2, 1, 128),
    "pathx": (2, 1, 128),
}
_LEVELS = {"digits": 17}  # of gray, else 256
# Words of the corpora whose vocabulary no option sets.
_WORDS = {"ptb": 10_000, "sst": 14_830, "sick": 2_177, "openwebtext": 50_304}
# Subwords of the corpora whose vocabulary no option sets.
_SUBWORDS = {"sst": 2**14, "sick": 4_346, "snli": 2**15, "mnli": 2**15}
# Tokens of the longest sample of a batch, where that is far below the most the task allows: the
# mean over batches of the data, rounded; of SNLI and MNLI, which are not at hand, guesses. Of level
# subword and GLUE's phrases, batches are of similar lengths.
_LONGEST: dict[Any, int] = {
    "listops": 1_850,
    ("sst", "word"): 47,
    ("sst", "byte"): 225,
    ("sst", "subword"): 18,
    ("sst", "byte", "glue"): 92,
    ("sick", "subword"): 25,
    "sick": 43,
    "snli": 55,
    "mnli": 55,
}
# Root mean square of the tokens of a sample, rounded, of the training data: what attention between
# valid tokens has to do. Of what is not named all tokens count.
_VALID = {
    "listops": 1_100,
    ("sst", "word"): 21,
    ("sst", "byte"): 116,
    "sick": 21,
    ("text", "word", 512): 279,
    ("text", "byte", 1_000): 864,
    ("text", "byte", 2_048): 1_265,
    ("text", "byte", 4_000): 1_557,
    ("text", "byte", 4_096): 1_564,
}
_JOINED = ("snli", "mnli", "sick")
# Atoms of the largest molecule of a batch, features of an atom and of a bond, ids.
_ATOMS, _ATOM_FEATURES, _BOND_FEATURES, _ATOM_IDS = 20, 9, 3, 1 + 9 * 512


@dataclass(frozen=True)
class Outline:
    """A task without its samples.

    Attributes:
        task: its sizes; it has no splits.
        tokens: N of a batch, padding included; of images the pixels.
        valid: root mean square of the tokens of a sample, without padding.
    """

    task: Task
    tokens: int
    valid: int

    def batch(self, size: int) -> Batch:
        """A batch of zeros, labels included; to be made where tensors have no values."""
        task, tokens = self.task, self.tokens
        if isinstance(task, WholeImages):
            inputs = torch.zeros(size, *task.image_shape)
            return {"inputs": inputs, "labels": torch.zeros(size, dtype=torch.int64)}
        if task.num_features is not None and task.input_kind == "vectors":
            inputs = torch.zeros(size, tokens, task.num_features)
            return {"inputs": inputs, "labels": torch.zeros(size, dtype=torch.int64)}
        if task.input_kind == "graphs":
            return _graphs(size, tokens)
        pair = (task.num_sequences,) if task.num_sequences > 1 else ()
        batch = {"inputs": torch.zeros(size, *pair, tokens, dtype=torch.int64)}
        if task.padding:
            batch["key_padding_mask"] = torch.zeros(size, *pair, tokens, dtype=torch.bool)
        output = task_card(task.name).output
        if output == "sequence":
            batch["decoder_inputs"] = torch.zeros(size, tokens, dtype=torch.int64)
        each = (tokens,) if output in ("sequence", "next_token") else ()
        return {**batch, "labels": torch.zeros(size, *each, dtype=torch.int64)}


def outline(recipe: Recipe) -> Outline:
    """The outline of a recipe's task.

    Raises:
        InputError: a task that none of the papers' rows has.
    """
    name = recipe.task
    options = {**task_card(name).options, **recipe.task_options}
    if name in _IMAGES:
        return _images(name, options)
    if name == "image_bytes":
        return _tokens(name, _BYTES, _BYTES, 3 * 32 * 32)
    if name == "listops":
        sizes = (options["max_length"], _LONGEST[name])
        return _tokens(name, 16, 10, *sizes, valid=_VALID[name], padding=True)
    if name == "retrieval":
        return _tokens(name, _BYTES, 2, options["max_length"], padding=True, num_sequences=2)
    if name == "sort":
        symbols = max(options["max_length"], options["test_max_length"])
        tokens, ids = options["max_length"] + 1, symbols + 2
        return _tokens(name, ids, ids, symbols + 1, tokens, padding=True)
    if name == "pcqm4m":
        return _tokens(name, _ATOM_IDS, 1, 51, _ATOMS, "graphs", padding=True)
    if name in ("text", "sst", *_JOINED):
        return _sentences(name, options)
    if task_card(name).output == "next_token":
        # Texts are cut into whole pieces: no padding among their bytes.
        ids = 256 if options.get("level") == "byte" else _text_ids(name, options)
        return _tokens(name, ids, ids, options["max_length"])
    known = [*_IMAGES, *_WORDS]
    raise unknown_name("task with an outline", name, known)


def _tokens(
    name: str,
    ids: int,
    classes: int,
    max_length: int,
    tokens: int | None = None,
    kind: str = "tokens",
    valid: int | None = None,
    **more: Any,
) -> Outline:
    task = _task(name, kind, classes, max_length, vocab_size=ids, **more)
    tokens = max_length if tokens is None else min(tokens, max_length)
    return Outline(task, tokens, min(tokens, valid or tokens))


def _task(name: str, kind: Any, classes: int, max_length: int, **more: Any) -> Task:
    make = WholeImages if kind == "images" else Task
    sizes = {"vocab_size": None, "num_features": None, "padding": False}
    return make(
        **{**sizes, **more},
        name=name,
        options={},
        input_kind=kind,
        num_classes=classes,
        max_length=max_length,
        split_note="",
        data_source="",
        splits={},
    )


def _images(name: str, options: Mapping[str, Any]) -> Outline:
    classes, channels, side = _IMAGES[name]
    side = options.get("size", side)
    if options.get("color") == "gray":
        channels = 1
    if options.get("layout", "sequence") == "image":
        task = _task(name, "images", classes, side**2, image_shape=(channels, side, side))
        return Outline(task, side**2, side**2)
    patch = options["patch_size"] or 1
    tokens = (side // patch) ** 2
    if channels == patch == 1:
        return _tokens(name, _LEVELS.get(name, 256), classes, tokens)
    features = channels * patch**2
    task = _task(name, "vectors", classes, tokens, num_features=features)
    return Outline(task, tokens, tokens)


def _sentences(name: str, options: Mapping[str, Any]) -> Outline:
    ids = _text_ids(name, options) + (name in _JOINED)
    most = options["max_length"]
    of_level = (name, options["level"])
    of_labels = (*of_level, options.get("labels"))
    longest = _LONGEST.get(of_labels) or _LONGEST.get(of_level) or _LONGEST.get(name)
    valid = _VALID.get(name) or _VALID.get(of_level) or _VALID.get((*of_level, most))
    classes = 3 if name in _JOINED else 2
    return _tokens(name, ids, classes, most, longest, valid=valid, padding=True)


def _text_ids(name: str, options: Mapping[str, Any]) -> int:
    level = options.get("level")
    if level == "byte":
        return _BYTES
    if level == "bpe":
        return int(options["bpe_size"])
    if level == "subword":
        return int(options.get("vocab_size") or _SUBWORDS[name])
    return int(options.get("vocab_size") or _WORDS[name])


def _graphs(size: int, nodes: int) -> Batch:
    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(size, *shape, dtype=dtype)

    return {
        "inputs": zeros(nodes, _ATOM_FEATURES),
        "key_padding_mask": zeros(nodes, dtype=torch.bool),
        "distances": zeros(nodes, nodes),
        "path_edges": zeros(nodes, nodes, 5, _BOND_FEATURES, dtype=torch.int32),
        "labels": torch.zeros(size, dtype=torch.int64),
    }
