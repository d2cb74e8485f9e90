"""Train a small convolutional network on the Pathfinder images that rifflemix draws.

The network must learn them, or the images are wrong. It is trained on the easy set, then on harder
sets and larger images, each for some minutes of CPU time of one core. The test images of a set are
evaluated once, at the end of its training.

    python benchmarks/pathfinder_cnn.py
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness import Content, comma_separated, run
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.lab.tasks import Task, load_task

_SIDE = 32
SETS = (
    "pathfinder32/curv_baseline,pathfinder32/curv_contour_length_9,"
    "pathfinder32/curv_contour_length_14,pathfinder64/curv_contour_length_9"
)


class ContourNet(nn.Module):
    """Apply one residual convolution many times, after a stem that halves the image.

    Information spreads along contours by one position per repetition. Larger images are averaged
    to 32 x 32 pixels first.

    Args:
        channels: channels of the repeated convolution.
        repeats: number of repetitions.
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
        """Map images (B, 1, height, width) to logits (B, 2)."""
        x = self.stem(functional.avg_pool2d(images, images.shape[-1] // _SIDE))
        for norm in self.norms[:-1]:
            x = x + self.convolution(functional.relu(norm(x)))
        x = functional.relu(self.norms[-1](x))
        logits: Tensor = self.head(torch.cat([x.amax((2, 3)), x.mean((2, 3))], dim=1))
        return logits


def train_and_test(
    model: ContourNet, task: Task, name: str, seconds: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Train on one set for some CPU time, then evaluate its test images once."""
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
    """Return all images (M, height, width) uint8 and labels (M,) of a split."""
    split = task.split(name)
    side = round(task.max_length**0.5)
    samples = [split[index] for index in range(len(split))]
    images = torch.stack([pixels.to(torch.uint8) for pixels, _ in samples])
    return images.view(-1, side, side), torch.tensor([label for _, label in samples])


def turned(images: Tensor) -> Tensor:
    """Rotate and mirror all images of a batch in the same random way."""
    kind = int(torch.randint(8, ()))
    images = torch.rot90(images, kind % 4, (1, 2))
    return images.flip(2) if kind >= 4 else images


def floats(images: Tensor) -> Tensor:
    """Scale images (B, height, width) uint8 to (B, 1, height, width) in [0, 1]."""
    return (images[:, None].float() / 255).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def accuracy(model: ContourNet, images: Tensor, labels: Tensor) -> float:
    """Return the share of correct predictions."""
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


def measure(arguments: argparse.Namespace) -> Iterator[Content]:
    """Train on all sets, and evaluate each."""
    torch.manual_seed(arguments.seed)
    model = ContourNet(arguments.channels, arguments.repeats).to(memory_format=torch.channels_last)
    results = []
    for name, minutes in zip(arguments.sets, arguments.minutes, strict=True):
        task_name, preset = name.split("/")
        task = load_task(
            task_name,
            preset=preset,
            num_train=arguments.num_train,
            num_validation=1,
            num_test=arguments.num_test,
        )
        results.append(train_and_test(model, task, name, 60 * minutes, arguments))
        print(json.dumps(results[-1]), flush=True)
    yield {
        "settings": {**vars(arguments), "out": str(arguments.out)},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "results": results,
    }


if __name__ == "__main__":
    OPTIONS: dict[str, dict[str, Any]] = {
        "--sets": {"type": comma_separated(), "default": SETS, "help": "TASK/PRESET, easy first"},
        "--minutes": {
            "type": comma_separated(float),
            "default": "25,4,4,8",
            "help": "CPU minutes on each set",
        },
        "--num-train": {"type": int, "default": 30_000},
        "--num-test": {"type": int, "default": 4_000},
        # bf16 is fast on processors with instructions for it, and very slow on others.
        "--precision": {"default": "no", "choices": ("no", "bf16")},
        "--channels": {"type": int, "default": 24},
        "--repeats": {"type": int, "default": 12},
        "--batch-size": {"type": int, "default": 32},
        "--lr": {"type": float, "default": 3e-3},
        "--seed": {"type": int, "default": 0},
    }
    run("pathfinder-cnn", __doc__, measure, OPTIONS, version=2)
