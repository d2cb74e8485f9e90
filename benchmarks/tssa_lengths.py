"""Measure causal token statistics on longer texts than in training.

Language models of bytes of Tiny Shakespeare are trained on windows of 256 bytes and read the test
text in windows of 2,048. Only their mixers differ. They have no positions, and token statistics
have a bias per position in one variant only. Models trained with one rule for the memberships
also read with equation (33): it computes all memberships again at every token. Steps and
learning rate are not tuned.

    python benchmarks/tssa_lengths.py --data-dir data
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from harness import run
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.train import TrainConfig, seed_everything, train
from rifflemix.mixers.tssa import TSSA

TRAINED, READ, BATCH, STEPS, LR, SEEDS = 256, 2048, 8, 200, 4e-3, 3
ENDS = (256, 512, 1024, 2048)
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "(34), bias per position": ("tssa", {}),
    "(34)": ("tssa", {"denominator_bias": False}),
    "doubling": ("tssa", {"denominator_bias": False, "renormalize_every": "doubling"}),
    "every 64": ("tssa", {"denominator_bias": False, "renormalize_every": 64}),
    "(33)": ("tssa", {"denominator_bias": False, "renormalize_every": 1}),
    "softmax attention": ("softmax", {}),
}


class NoPositions(nn.Module):
    """Replace position embeddings by nothing."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the tokens (B, N, C) without a change."""
        return x


def build(form: str, seed: int, vocabulary: int) -> nn.Module:
    """Build the language model of a variant with fresh weights."""
    mixer, options = FORMS[form]
    seed_everything(seed)
    sizes = {"dim": 64, "num_layers": 4, "num_heads": 4, "max_length": READ}
    model = rm.create_model(
        "gpt", mixer=mixer, mixer_options=options, vocab_size=vocabulary, **sizes
    )
    model.positions = NoPositions()
    return model


def fit(model: nn.Module, task: Task, seed: int) -> float:
    """Train a model and return the steps per second."""
    config = TrainConfig(
        max_steps=STEPS,
        batch_size=BATCH,
        lr=LR,
        warmup_steps=STEPS // 10,
        clip_norm=1.0,
        checkpoint_seconds=None,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        return train(model, task, config, folder, device="cpu", tests=False).steps_per_second


@torch.no_grad()
def bits_by_position(model: nn.Module, task: Task) -> list[float]:
    """Return the bits per byte of the test text, by part of the window."""
    sums = torch.zeros(READ, dtype=torch.float64)
    split = task.split("test")
    windows = len(split) - 1  # the last window overlaps the one before
    model.eval()
    for index in range(windows):
        batch = task.collate([split[index]])
        logits = model(batch["inputs"])[0]
        sums += functional.cross_entropy(logits, batch["labels"][0], reduction="none")
    bits = sums / windows / math.log(2)
    return [float(bits[start:end].mean()) for start, end in zip((0, *ENDS), ENDS, strict=False)]


def row_of(form: str, seed: int, short: Task, long: Task) -> dict[str, Any]:
    """Train and measure a variant; token statistics also read with equation (33)."""
    model = build(form, seed, short.num_classes)
    speed = fit(model, short, seed)
    bits = bits_by_position(model, long)
    row = {"form": form, "seed": seed, "steps_per_second": speed, "bits": bits}
    renewed = [layer for layer in model.modules() if isinstance(layer, TSSA)]
    for layer in renewed:
        layer.renormalize_every = 1
    if renewed:
        row["bits_by_33"] = bits_by_position(model, long)
    print(row, flush=True)
    return row


def measure(data_dir: Path = Path("data")) -> Iterator[dict[str, Any]]:
    """Run all seeds."""
    tasks = [load_task("shakespeare", data_dir=data_dir, max_length=n) for n in (TRAINED, READ)]
    yield {
        "ends": ENDS,
        "steps": STEPS,
        "batch_size": BATCH,
        "lr": LR,
        "rows": [row_of(form, seed, *tasks) for seed in range(SEEDS) for form in FORMS],
    }


if __name__ == "__main__":
    run("tssa-lengths", __doc__, measure)
