"""Convert a small language model that recalls values by their keys: does it still recall?

The host is a GPT with 2 layers of softmax attention and short convolutions. It learns multi-query
recall (MQAR) at 16 tokens, in 500 steps of 64 sequences. 2,000 test sequences judge.

    python benchmarks/conversion_recall.py --work runs/conversion-recall

The same command continues after a stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversion_study import FROM_SCRATCH, Batch, Study
from harness import run
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.lab.tasks import load_task

TOKENS, SEQUENCES, HOST_STEPS = 16, 64, 500
GRID = ("layers, outputs", "layers, outputs with labels", "fine-tune", FROM_SCRATCH)


class RecallStudy(Study):
    """Language model for multi-query recall."""

    host = "GPT on mqar"
    lengths = (1024,)
    batch_size = SEQUENCES
    rate = 3e-3

    def __init__(self, work: Path, steps: int) -> None:
        super().__init__(work, steps)
        task = load_task(
            "mqar", vocab_size=32, length=TOKENS, pairs=2, random_non_queries=False,
            num_train=32_000, num_validation=1000, num_test=2000,
        )  # fmt: skip
        self.train, self.validation, self.test = (
            torch.utils.data.default_collate([split[i] for i in range(len(split))])
            for split in map(task.split, ("train", "validation", "test"))
        )
        self.original = self.fresh()
        batches = self.batches(HOST_STEPS, -1)
        self.original = self.control(
            FROM_SCRATCH, "softmax", 0, batches, HOST_STEPS, work / "host", self.rate
        )

    def fresh(self) -> nn.Module:
        return rm.create_model("gpt", mixer="softmax", vocab_size=32, max_length=4096, short_conv=3)

    def batches(self, count: int, seed: int) -> Sequence[Batch]:
        order = torch.randperm(
            len(self.train[0]), generator=torch.Generator().manual_seed(seed + 1)
        )
        rows = order[: count * SEQUENCES].split(SEQUENCES)
        return [(self.train[0][of], self.train[1][of]) for of in rows]

    def validation_batches(self) -> Sequence[Batch]:
        return [(self.validation[0][:256], self.validation[1][:256])]

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())

    def make_inputs(self, length: int) -> Tensor:
        return torch.randint(32, (1, length), generator=torch.Generator().manual_seed(0))

    def score(self, model: nn.Module) -> float:
        return float(hits(model, self.validation).mean())

    def judge(self, model: nn.Module) -> tuple[np.ndarray, dict[str, float]]:
        found = hits(model, self.test)
        return found, {"test_accuracy": float(found.mean())}

    def compare(self, found: np.ndarray, arm: str, seed: int) -> dict[str, float]:
        return {"standard_error": float(found.std() / len(found) ** 0.5)}


@torch.no_grad()
def hits(model: nn.Module, split: tuple[Tensor, Tensor]) -> np.ndarray:
    """Return the share of the queries of each sequence with the right value."""
    inputs, labels = split
    scored = labels != -100
    right = (model.eval()(inputs).argmax(-1) == labels) & scored
    return (right.sum(1) / scored.sum(1)).double().numpy()


def measure(
    work: Path = Path("runs/conversion-recall"),
    steps: int = 500,
    seeds: int = 3,
    mixers: tuple[str, ...] = ("linear", "tssa", "csp", "gated_deltanet"),
    arms: tuple[str, ...] = GRID,
) -> Iterator[dict[str, Any]]:
    """Make the trainings; each result contains every finished training of the work folder."""
    yield from RecallStudy(work, steps).results(seeds, mixers, arms)


if __name__ == "__main__":
    run("conversion-recall", __doc__, measure)
