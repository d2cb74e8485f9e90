"""Causal token statistics on longer texts than they were trained on, between (33) and (34).

Language models of bytes of Tiny Shakespeare, alike but for their mixer, are trained on windows of
256 bytes and read the test text in windows of 2,048. They have no positions, which would say
nothing past the 256th byte, and token statistics no bias per position, but for one row. What was
trained with one rule for the memberships is also read with equation (33), which takes all of them
anew at every token. Steps and learning rate were set before the first run.

    python benchmarks/tssa_lengths.py --data-dir data --out benchmarks/results

writes a new file there and the table of docs/mixers/tssa.md.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.files import write_json
from rifflemix.lab.report.markdown import write_marked_text
from rifflemix.lab.runs.environment import describe_hardware, environment
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.train import TrainConfig, seed_everything, train
from rifflemix.mixers.tssa import TSSA
from rifflemix.text import table_lines

PAGE = Path(__file__).resolve().parents[1] / "docs" / "mixers" / "tssa.md"
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
    """In place of a model's position embeddings."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """(B, N, C), as it is."""
        return x


def build(form: str, seed: int, vocabulary: int) -> nn.Module:
    """The language model with the mixer of this form, at its start."""
    mixer, options = FORMS[form]
    seed_everything(seed)
    model = rm.create_model(
        "gpt",
        mixer=mixer,
        mixer_options=options,
        dim=64,
        num_layers=4,
        num_heads=4,
        vocab_size=vocabulary,
        max_length=READ,
    )
    model.positions = NoPositions()
    return model


def fit(model: nn.Module, task: Task, seed: int) -> float:
    """Train, and say how many steps a second."""
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
    """Bits per byte of the test text, of the bytes in each stretch of the windows."""
    sums = torch.zeros(READ, dtype=torch.float64)
    split = task.split("test")
    windows = len(split) - 1  # the last one starts anywhere
    model.eval()
    for index in range(windows):
        batch = task.collate([split[index]])
        logits = model(batch["inputs"])[0]
        sums += functional.cross_entropy(logits, batch["labels"][0], reduction="none")
    bits = sums / windows / math.log(2)
    return [float(bits[start:end].mean()) for start, end in zip((0, *ENDS), ENDS, strict=False)]


def rows_of(seed: int, short: Task, long: Task) -> Iterator[dict[str, Any]]:
    """A row for each form, as trained and, of token statistics, read with (33)."""
    for form in FORMS:
        model = build(form, seed, short.num_classes)
        speed = fit(model, short, seed)
        found = bits_by_position(model, long)
        row = {"form": form, "seed": seed, "steps_per_second": speed, "bits": found}
        renewed = [layer for layer in model.modules() if isinstance(layer, TSSA)]
        if renewed:
            for layer in renewed:
                layer.renormalize_every = 1
            row["bits_by_33"] = bits_by_position(model, long)
        print(row, flush=True)
        yield row


def table(result: dict[str, Any]) -> str:
    """Mean and deviation over the seeds, and how it was made."""
    lines = []
    for form in FORMS:
        mine = [row for row in result["rows"] if row["form"] == form]
        for key, read in (("bits", "as trained"), ("bits_by_33", "(33)")):
            if key not in mine[0] or (form, key) == ("(33)", "bits_by_33"):
                continue
            cells = zip(*(row[key] for row in mine), strict=True)
            spread = (f"{statistics.mean(c):.3f} ± {statistics.stdev(c):.3f}" for c in cells)
            lines.append([form, read, *spread])
    starts = (0, *ENDS)
    headers = [f"bytes {a + 1:,} to {b:,}" for a, b in zip(starts, ENDS, strict=False)]
    rows = table_lines(["trained with", "read with", *headers], lines, range(2, 2 + len(ENDS)))
    note = (
        f"Bits per byte of Tiny Shakespeare's test text by place in the window, mean ± standard "
        f"deviation of {SEEDS} seeds; GPT of 4 layers and 64 channels without positions, {STEPS} "
        f"steps of {BATCH} windows of {TRAINED} bytes, learning rate {LR}, not tuned. "
        f"`python benchmarks/tssa_lengths.py --data-dir data --out benchmarks/results` made it: "
        f"[{result['file']}](../../benchmarks/results/{result['file']})."
    )
    return "\n".join([*rows, "", note])


def main() -> None:
    """Run all seeds, write the file and the page."""
    parser = argparse.ArgumentParser(description="causal token statistics on longer texts")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    short, long = (
        load_task("shakespeare", data_dir=args.data_dir, max_length=length)
        for length in (TRAINED, READ)
    )
    here = environment()
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    result = {
        "format": "rifflemix.tssa-lengths/1",
        "file": f"tssa-lengths-{stamp}.json",
        "ends": ENDS,
        "steps": STEPS,
        "batch_size": BATCH,
        "lr": LR,
        "rows": [row for seed in range(SEEDS) for row in rows_of(seed, short, long)],
        "hardware": describe_hardware(here),
        "environment": here,
    }
    write_json(args.out / result["file"], result)
    write_marked_text(PAGE, "lengths", table(result))
    print(table(result))


if __name__ == "__main__":
    main()
