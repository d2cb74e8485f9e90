"""Can a small convolutional network learn our Pathfinder images? It must, or the set is wrong.

One network is trained on the easy set and goes on to harder ones and to larger images, each for so
many minutes of one CPU core (processor time, so that a busy machine does not matter). The test
images of a set are looked at once, at the end of its training; nothing is chosen by them.

    python benchmarks/pathfinder_cnn.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.lab.runs.environment import environment
from rifflemix.lab.tasks import Task, load_task

FORMAT = "rifflemix.pathfinder-cnn/2"
_SIDE = 32

SETS = (
    "pathfinder32/curv_baseline",
    "pathfinder32/curv_contour_length_9",
    "pathfinder32/curv_contour_length_14",
    "pathfinder64/curv_contour_length_9",
)


class ContourNet(nn.Module):
    """A stem that halves the image, then the same residual convolution over and over.

    What belongs together spreads along contours, one position at each repetition. Larger images are
    averaged down to 32 pixels a side first, where dashes are as wide as those of 32x32.

    Args:
        channels: of the repeated convolution.
        repeats: how often it is applied.
    """

    def __init__(self, channels: int, repeats: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(repeats + 1))
        self.head = nn.Linear(2 * channels, 2)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 1, height, width) -> (B, 2)."""
        x = self.stem(functional.avg_pool2d(images, images.shape[-1] // _SIDE))
        for norm in self.norms[:-1]:
            x = x + self.convolution(functional.relu(norm(x)))
        x = functional.relu(self.norms[-1](x))
        logits: Tensor = self.head(torch.cat([x.amax((2, 3)), x.mean((2, 3))], dim=1))
        return logits


def main() -> None:
    """Train, test, and write one JSON file."""
    args = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = ContourNet(args.channels, args.repeats).to(memory_format=torch.channels_last)
    results = []
    for name, minutes in zip(args.sets.split(","), args.minutes.split(","), strict=True):
        task_name, preset = name.split("/")
        task = load_task(
            task_name,
            preset=preset,
            num_train=args.num_train,
            num_validation=1,
            num_test=args.num_test,
        )
        results.append(train_and_test(model, task, name, 60 * float(minutes), args))
        print(json.dumps(results[-1]), flush=True)
    now = datetime.datetime.now(datetime.UTC)
    content = {
        "format": FORMAT,
        "settings": vars(args),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "results": results,
        "environment": environment(),
    }
    path = Path(args.out) / f"pathfinder-cnn-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(path)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS), help="task/preset, easy ones first")
    parser.add_argument("--minutes", default="25,4,4,8", help="processor minutes on each set")
    parser.add_argument("--num-train", type=int, default=30_000)
    parser.add_argument("--num-test", type=int, default=4_000)
    # bf16 is fast where the processor has instructions for it, and very slow elsewhere.
    parser.add_argument("--precision", default="no", choices=("no", "bf16"))
    parser.add_argument("--channels", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="benchmarks/results")
    return parser.parse_args()


def train_and_test(
    model: ContourNet, task: Task, name: str, seconds: float, args: argparse.Namespace
) -> dict[str, Any]:
    """One set: train for so much processor time, then look at its test images once."""
    images, labels = tensors(task, "train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    start = time.process_time()
    losses: list[float] = []
    steps_an_epoch = len(images) // args.batch_size
    model.train()
    while (share := (time.process_time() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, share / 0.05) * (1 - share)
        step = len(losses) % steps_an_epoch
        if step == 0:
            order = torch.randperm(len(images))
        rows = order[step * args.batch_size : (step + 1) * args.batch_size]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(floats(turned(images[rows])))
        loss = functional.cross_entropy(logits.float(), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 500 == 0:
            print(f"{name}: {100 * share:.0f} %, loss {np.mean(losses[-500:]):.3f}", flush=True)
    return {
        "set": name,
        "accuracy": accuracy(model, *tensors(task, "test")),
        "test_images": len(task.split("test")),
        "train_images": len(images),
        "images_seen": len(losses) * args.batch_size,
        "cpu_seconds": time.process_time() - start,
        "final_loss": float(np.mean(losses[-500:])),
        "options": dict(task.options),
        "data": task.fingerprint(),
    }


def tensors(task: Task, name: str) -> tuple[Tensor, Tensor]:
    """All images (M, height, width) uint8 and labels (M,) of a split."""
    split = task.split(name)
    side = round(task.max_length**0.5)
    samples = [split[index] for index in range(len(split))]
    images = torch.stack([pixels.to(torch.uint8) for pixels, _ in samples])
    return images.view(-1, side, side), torch.tensor([label for _, label in samples])


def turned(images: Tensor) -> Tensor:
    """All images of a batch turned and mirrored alike, at random: the label does not change."""
    kind = int(torch.randint(8, ()))
    images = torch.rot90(images, kind % 4, (1, 2))
    return images.flip(2) if kind >= 4 else images


def floats(images: Tensor) -> Tensor:
    """(B, height, width) uint8 -> (B, 1, height, width) from 0 to 1."""
    return (images[:, None].float() / 255).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def accuracy(model: ContourNet, images: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    model.eval()
    right = [
        int(
            (
                model(floats(images[start : start + 500])).argmax(1) == labels[start : start + 500]
            ).sum()
        )
        for start in range(0, len(images), 500)
    ]
    return sum(right) / len(images)


if __name__ == "__main__":
    main()
