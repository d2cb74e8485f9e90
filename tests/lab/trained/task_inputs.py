"""Small data for tasks of the registry, with the raw inputs of their samples."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.lab.tasks import Task
from rifflemix.lab.tasks.synthetic.grammar import TOKENS

CHARACTERS = "abcdefgh"
TEXTS = [f"The {c}{d} FILM, isn't {d} <br /> so {c}?" for c in CHARACTERS for d in CHARACTERS[:3]]
SMILES = [f"{'C' * n}{end}" for n in range(1, 8) for end in ("O", "N", "c1ccccc1", "C(=O)O")]


@dataclass(frozen=True)
class Case:
    """A task and its raw inputs.

    Attributes:
        name: registry name.
        write: writes the data files into a folder.
        raw: returns the raw inputs of samples, given the task and the split.
        options: options of the task.
    """

    name: str
    write: Callable[[Path], object]
    raw: Callable[[Task, Any], Sequence[Any]]
    options: dict[str, Any] = field(default_factory=dict)


def compressed(path: Path, text: str) -> None:
    path.write_bytes(lzma.compress(text.encode(), preset=0))


def nothing(folder: Path) -> None:
    pass


def token_rows(task: Task, split: Any) -> Sequence[Any]:
    return [split[index][0].tolist() for index in range(len(split))]


def write_imdb(folder: Path) -> None:
    for part in ("train", "test"):
        rows = sorted([n % 2, f"{part} {text}"] for n, text in enumerate(TEXTS))
        compressed(folder / f"imdb_{part}.jsonl.xz", "".join(json.dumps(r) + "\n" for r in rows))


def write_snli(folder: Path) -> None:
    for part in ("train", "dev", "test"):
        rows = [
            {"gold_label": "neutral", "sentence1": f"{part} {one}", "sentence2": other}
            for one, other in zip(TEXTS, TEXTS[::-1], strict=True)
        ]
        (folder / f"snli_1.0_{part}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def write_sst(folder: Path) -> None:
    for part in ("train", "dev", "test"):
        lines = [f"{n % 2} {part} {text.lower()}\n" for n, text in enumerate(TEXTS)]
        (folder / f"sst_binary.{part}.txt").write_text("".join(lines))


def write_retrieval(folder: Path) -> None:
    for part in ("train", "eval", "test"):
        lines = [f"1.0\ta{n}\tb{n}\t{part} {t}\t{t} and\n" for n, t in enumerate(TEXTS)]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(lines))


def papers() -> list[str]:
    letters = "abcdefghij"
    return [
        " ".join(["common", *(f"p{a}{b}word{c}{d}" for c in letters for d in letters[:3])])
        for a in letters
        for b in letters[:4]
    ]


def write_papers(folder: Path) -> None:
    rows = [[f"P{number}", text] for number, text in enumerate(papers())]
    compressed(folder / "aan_docs.jsonl.xz", "".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"1\t{rows[n - 1][0]}\t{row[0]}\n" for n, row in enumerate(rows)]
    for name in ("train", "valid", "test"):
        (folder / f"aan_pairs.{name}.tsv").write_text("".join(lines))


def write_esol(folder: Path) -> None:
    header = "smiles,measured log solubility in mols per litre"
    rows = [f"{smiles},{n}.5" for n, smiles in enumerate(SMILES)]
    (folder / "esol_delaney.csv").write_text("\n".join([header, *rows, ""]))


def write_shakespeare(folder: Path) -> None:
    (folder / "tinyshakespeare.txt").write_text("\n".join(TEXTS * 4))


def write_pixels(name: str, *shape: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        random = np.random.default_rng(0)
        arrays = {
            f"{part}_{kind}": values
            for part in ("train", "test")
            for kind, values in (
                ("x", random.integers(0, 256, (20, *shape)).astype(np.uint8)),
                ("y", (np.arange(20) % 10).astype(np.uint8)),
            )
        }
        np.savez(folder / "arrays.npz", **arrays)
        (folder / name).write_bytes(lzma.compress((folder / "arrays.npz").read_bytes(), preset=0))
        (folder / "arrays.npz").unlink()

    return write


def pixels(task: Task, split: Any) -> list[Any]:
    return [split.images[int(row)] for row in split.rows]


def gray_pixels(task: Task, split: Any) -> list[Any]:
    """Return the pixels of the sharded images of Pathfinder."""
    images = getattr(split, "images", ())
    shards = images.images if hasattr(images, "images") else images
    return [shards[0].values[row] for row in range(len(split))]


def listops(task: Task, split: Any) -> list[str]:
    return [" ".join(TOKENS[i] for i in split[row][0].tolist()) for row in range(len(split))]


def symbols(task: Task, split: Any) -> list[Any]:
    return [split[row][0][:-1].numpy() - 2 for row in range(len(split))]


def points(task: Task, split: Any) -> Any:
    return split.points.values


def reviews(part: str, text: Callable[[str], str] = str) -> Callable[[Task, Any], list[str]]:
    """Return the reviews in the order of a split, found by their unique ids."""
    rows = [text for _, text in sorted([n % 2, f"{part} {text}"] for n, text in enumerate(TEXTS))]
    return lambda task, split: [rows[int(row)] for row in split.rows]


def snli(task: Task, split: Any) -> list[Any]:
    return [(f"test {one}", other) for one, other in zip(TEXTS, TEXTS[::-1], strict=True)]


def sst(task: Task, split: Any) -> list[str]:
    return [f"test {text.lower()}" for text in TEXTS]


def retrieval(task: Task, split: Any) -> list[Any]:
    """Return the pairs of a split in the order of its documents."""
    texts = [bytes(text).decode() for text in split.documents]
    return [(texts[one], texts[other]) for one, other in split.pairs.values.tolist()]


def passages(task: Task, split: Any) -> list[Any]:
    """Decode ids: every word of these papers is known in training, or unknown as a whole."""
    words = task.inputs.encoder.words  # type: ignore[union-attr]

    def text(ids: Any) -> str:
        known = (words[i - 2] if i > 1 else "new" for i in ids.tolist())
        return " ".join(["common", *known])

    return [tuple(map(text, split[row][0])) for row in range(len(split))]


def smiles(task: Task, split: Any) -> list[str]:
    return [SMILES[int(row)] for row in split.rows]


def windows(task: Task, split: Any) -> list[str]:
    decode = task.vocabulary.decode  # type: ignore[attr-defined]
    return [decode(split[row][0].tolist()) for row in range(len(split))]


def earlier_bytes(task: Task, split: Any) -> list[Any]:
    return [split[row][0][1:].numpy() for row in range(len(split))]


COUNTS = {"num_train": 8, "num_validation": 4, "num_test": 4}
CIFAR = write_pixels("cifar10_gray.npz.xz", 32, 32)


CASES = {
    "digits": Case("digits", nothing, pixels),
    "digits-patches": Case("digits", nothing, pixels, {"patch_size": 2}),
    "mnist": Case("mnist", write_pixels("mnist.npz.xz", 28, 28), pixels),
    "mnist-patches": Case("mnist", write_pixels("mnist.npz.xz", 28, 28), pixels, {"patch_size": 7}),
    "mnist-image": Case("mnist", write_pixels("mnist.npz.xz", 28, 28), pixels, {"layout": "image"}),
    "image": Case("image", CIFAR, pixels),
    "image-patches": Case("image", CIFAR, pixels, {"patch_size": 4}),
    "pathfinder": Case("pathfinder32", nothing, gray_pixels, COUNTS),
    "pathfinder-patches": Case("pathfinder32", nothing, gray_pixels, {**COUNTS, "patch_size": 4}),
    "listops": Case(
        "listops", nothing, listops, {**COUNTS, "min_length": 5, "max_length": 50, "max_depth": 4}
    ),
    "sort": Case("sort", nothing, symbols, {**COUNTS, "max_length": 6, "test_max_length": 9}),
    "mqar": Case("mqar", nothing, token_rows, {**COUNTS, "length": 16, "test_lengths": [32]}),
    "mqar-all": Case("mqar", nothing, token_rows, {**COUNTS, "length": 16, "causal": False}),
    "points": Case("point_clouds", nothing, points, {**COUNTS, "num_points": 8}),
    "text-bytes": Case("text", write_imdb, reviews("test"), {"max_length": 20}),
    "text-words": Case("text", write_imdb, reviews("test"), {"level": "word", "vocab_size": 20}),
    "text-subwords": Case(
        "text", write_imdb, reviews("test"), {"level": "subword", "vocab_size": 300}
    ),
    "snli": Case("snli", write_snli, snli),
    "snli-joined": Case("snli", write_snli, snli, {"joined": True, "max_length": 20}),
    "snli-bytes": Case("snli", write_snli, snli, {"level": "byte", "max_length": 20}),
    "snli-subwords": Case("snli", write_snli, snli, {"level": "subword", "vocab_size": 300}),
    "sst": Case("sst", write_sst, sst),
    "sst-bytes": Case("sst", write_sst, sst, {"level": "byte"}),
    "retrieval": Case("retrieval", write_retrieval, retrieval, {"max_length": 25}),
    "passages": Case(
        "passages", write_papers, passages, {**COUNTS, "max_length": 6, "skip_common": 1}
    ),
    "esol": Case("esol", write_esol, smiles),
    "shakespeare": Case("shakespeare", write_shakespeare, windows, {"max_length": 16}),
    "shakespeare-words": Case(
        "shakespeare", write_shakespeare, windows, {"max_length": 16, "level": "word"}
    ),
    "shakespeare-characters": Case(
        "shakespeare", write_shakespeare, windows, {"max_length": 16, "level": "character"}
    ),
    "shakespeare-bpe": Case(
        "shakespeare",
        write_shakespeare,
        windows,
        {"max_length": 16, "level": "bpe", "bpe_size": 300},
    ),
}

RECALL = (
    "in_context_recall", "noisy_recall", "fuzzy_recall", "selective_copying",
    "compression", "memorization", "copying", "induction", "needle", "state_tracking",
)  # fmt: skip
SAME_CODE = {
    **dict.fromkeys(RECALL, "mqar"),
    "cifar100": "mnist",
    **dict.fromkeys(
        ("imagenet", "tiny_imagenet", "dogs_vs_cats", "flowers102", "oxford_pets"), "image_folder"
    ),
    **dict.fromkeys(("pathfinder64", "pathfinder128", "pathfinder256", "pathx"), "pathfinder32"),
    **dict.fromkeys(("ptb", "wikitext", "lm1b", "openwebtext"), "shakespeare"),
    "mnli": "snli",
    "sick": "snli",
    "freesolv": "esol",
    "pcqm4m": "esol",
}
"""Task -> task that shares the code of its conversion."""
