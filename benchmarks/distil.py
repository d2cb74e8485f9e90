"""What a swap does to a trained model, and what distilling and fine-tuning give back.

A small torch.nn encoder learns the digits. Its attention is then replaced, and the same number of
steps goes into fine-tuning alone, or first half into `rm.distil`. The number of steps and the
learning rates were set before the first run; the test images choose nothing.

    python benchmarks/distil.py --out benchmarks/results

writes a new file there and the table of docs/surgery.md.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import os
import statistics
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
from rifflemix.lab.tasks import load_task
from rifflemix.text import table_lines

PAGE = Path(__file__).resolve().parents[1] / "docs" / "surgery.md"
MIXERS = ("tssa", "linear", "csp")
STEPS, MORE, BATCH, LR, SLOWER, SEEDS = 300, 150, 64, 3e-3, 1e-3, 3
COLUMNS = {
    "original": "before",
    "swapped": "after the swap",
    "distilled": f"{MORE} steps of distil",
    "distilled, fine-tuned": f"{MORE} of distil, {MORE} of fine-tuning",
    "fine-tuned": f"{2 * MORE} of fine-tuning",
}


class Reader(nn.Module):
    """Sixteen patches of a digit (B, 16, 4) to ten logits.

    Args:
        dim: channels.
    """

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(16, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 10)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, 10)."""
        logits: Tensor = self.head(self.encoder(self.embed(patches) + self.positions).mean(1))
        return logits


def batches(data: dict[str, Tensor], steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of so many random batches, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(data["labels"]), (BATCH,), generator=generator)
        yield data["inputs"][rows], data["labels"][rows]


def train(model: nn.Module, data: dict[str, Tensor], steps: int, lr: float, seed: int) -> nn.Module:
    """The model, after so many steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for inputs, labels in batches(data, steps, seed):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, data: dict[str, Tensor]) -> float:
    """In percent."""
    found = model.eval()(data["inputs"]).argmax(-1)
    return 100.0 * float((found == data["labels"]).float().mean())


def one_seed(seed: int, data: dict[str, dict[str, Tensor]]) -> list[dict[str, Any]]:
    """A row for each mixer: its accuracies on the test images."""
    torch.manual_seed(seed)
    original = train(Reader(), data["train"], STEPS, LR, seed)
    rows = []
    for mixer in MIXERS:
        model = copy.deepcopy(original)
        rm.replace_attention(model, mixer)
        tuned = train(copy.deepcopy(model), data["train"], 2 * MORE, SLOWER, seed + 100)
        row = {"mixer": mixer, "seed": seed, "original": accuracy(original, data["test"])}
        row["swapped"] = accuracy(model, data["test"])
        rm.distil(model, original, (x for x, _ in batches(data["train"], MORE, seed + 100)))
        row["distilled"] = accuracy(model, data["test"])
        train(model, data["train"], MORE, SLOWER, seed + 200)
        row["distilled, fine-tuned"] = accuracy(model, data["test"])
        row["fine-tuned"] = accuracy(tuned, data["test"])
        rows.append(row)
    return rows


def table(result: dict[str, Any]) -> str:
    """Mean and spread over the seeds, and how it was made."""
    lines = []
    for mixer in MIXERS:
        mine = [row for row in result["rows"] if row["mixer"] == mixer]
        cells = [[row[key] for row in mine] for key in COLUMNS]
        lines.append(
            [mixer, *(f"{statistics.mean(c):.1f} ± {statistics.stdev(c):.1f}" for c in cells)]
        )
    rows = table_lines(["mixer", *COLUMNS.values()], lines, range(1, len(COLUMNS) + 1))
    note = (
        f"Test accuracy on the digits in %, mean ± standard deviation of {SEEDS} seeds; an encoder "
        f"of torch.nn, 2 layers of 64 channels, 16 tokens, {STEPS} steps of training before. "
        "`python benchmarks/distil.py` made it."
    )
    return "\n".join([*rows, "", note])


def main() -> None:
    """Run all seeds, write the file and the page."""
    parser = argparse.ArgumentParser(description="distilling a swapped model")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    task = load_task("digits", patch_size=2)
    data = {}
    for name in ("train", "test"):
        split = task.split(name)
        data[name] = task.collate([split[i] for i in range(len(split))])
    here = environment()
    result = {
        "format": "rifflemix.distil/1",
        "steps": STEPS,
        "more_steps": MORE,
        "batch_size": BATCH,
        "lr": LR,
        "lr_after": SLOWER,
        "rows": [row for seed in range(SEEDS) for row in one_seed(seed, data)],
        "hardware": describe_hardware(here),
        "environment": here,
    }
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    write_json(out / f"distil-{stamp}.json", result)
    write_marked_text(PAGE, "distil", table(result))
    print(table(result))


if __name__ == "__main__":
    main()
