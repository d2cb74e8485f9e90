"""Replace the attention of a trained model, and distil and fine-tune the new model.

A small torch.nn encoder learns the digits. Its attention is then replaced, and the same number of
steps goes into fine-tuning alone, or first half into `rm.distil`. Steps and learning rates are not
tuned, and the test images choose nothing.

    python benchmarks/distil.py
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from harness import Rows, run
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.lab.tasks import load_task

MIXERS = ("tssa", "linear", "csp")
STEPS, MORE, BATCH, LR, SLOWER, SEEDS = 300, 150, 64, 3e-3, 1e-3, 3
Data = dict[str, Tensor]


class Reader(nn.Module):
    """Map sixteen patches of a digit (B, 16, 4) to ten logits."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(16, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 10)

    def forward(self, patches: Tensor) -> Tensor:
        """Return logits (B, 10)."""
        logits: Tensor = self.head(self.encoder(self.embed(patches) + self.positions).mean(1))
        return logits


def batches(data: Data, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels of random batches."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(data["labels"]), (BATCH,), generator=generator)
        yield data["inputs"][rows], data["labels"][rows]


def train(model: nn.Module, data: Data, steps: int, lr: float, seed: int) -> nn.Module:
    """Train a model with AdamW and return it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for inputs, labels in batches(data, steps, seed):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """Return the accuracy in percent."""
    found = model.eval()(data["inputs"]).argmax(-1)
    return 100.0 * float((found == data["labels"]).float().mean())


def rows_of(seed: int, training: Data, test: Data) -> Rows:
    """Return one row per mixer, with its accuracies on the test images."""
    torch.manual_seed(seed)
    original = train(Reader(), training, STEPS, LR, seed)
    rows = []
    for mixer in MIXERS:
        model = copy.deepcopy(original)
        rm.replace_attention(model, mixer)
        tuned = train(copy.deepcopy(model), training, 2 * MORE, SLOWER, seed + 100)
        row = {"mixer": mixer, "seed": seed, "original": accuracy(original, test)}
        row["swapped"] = accuracy(model, test)
        rm.distil(model, original, (x for x, _ in batches(training, MORE, seed + 100)))
        row["distilled"] = accuracy(model, test)
        train(model, training, MORE, SLOWER, seed + 200)
        row["distilled, fine-tuned"] = accuracy(model, test)
        row["fine-tuned"] = accuracy(tuned, test)
        rows.append(row)
    return rows


def measure() -> Iterator[dict[str, Any]]:
    """Run all seeds."""
    task = load_task("digits", patch_size=2)
    splits = [task.split(name) for name in ("train", "test")]
    data = [task.collate([split[i] for i in range(len(split))]) for split in splits]
    yield {
        "steps": STEPS,
        "more_steps": MORE,
        "batch_size": BATCH,
        "lr": LR,
        "lr_after": SLOWER,
        "rows": [row for seed in range(SEEDS) for row in rows_of(seed, *data)],
    }


if __name__ == "__main__":
    run("distil", __doc__, measure)
