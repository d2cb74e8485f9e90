"""Train a small convolutional network on the Pathfinder images that rifflemix draws.

The network must learn them, or the images are wrong. It is trained on the easy set, then on harder
sets and larger images, each for some minutes of CPU time of one core. The test images of a set are
evaluated once, at the end of its training.

    python benchmarks/pathfinder_cnn.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness import run
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.lab.tasks import Task, load_task

SIDE, CHANNELS, REPEATS, BATCH, LR = 32, 24, 12, 32, 3e-3
# Task and preset, the easy set first.
SETS = (
    "pathfinder32/curv_baseline",
    "pathfinder32/curv_contour_length_9",
    "pathfinder32/curv_contour_length_14",
    "pathfinder64/curv_contour_length_9",
)


class ContourNet(nn.Module):
    """Apply one residual convolution many times, after a stem that halves the image.

    Information spreads along contours by one position per repetition. Larger images are averaged
    to 32 x 32 pixels first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
        )
        self.convolution = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(REPEATS + 1))
        self.head = nn.Linear(2 * CHANNELS, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 1, height, width) to logits (B, 2)."""
        x = self.stem(functional.avg_pool2d(images, images.shape[-1] // SIDE))
        for norm in self.norms[:-1]:
            x = x + self.convolution(functional.relu(norm(x)))
        x = functional.relu(self.norms[-1](x))
        logits: Tensor = self.head(torch.cat([x.amax((2, 3)), x.mean((2, 3))], dim=1))
        return logits


def train_and_test(
    model: ContourNet, task: Task, name: str, seconds: float, precision: str
) -> dict[str, Any]:
    """Train on one set for some CPU time, then evaluate its test images once."""
    images, labels = tensors(task, "train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    start = time.process_time()
    losses: list[float] = []
    model.train()
    while (share := (time.process_time() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1, share / 0.05) * (1 - share)
        step = len(losses) % (len(images) // BATCH)
        if step == 0:
            order = torch.randperm(len(images))
        rows = order[step * BATCH : (step + 1) * BATCH]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
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
        "images_seen": len(losses) * BATCH,
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
    found = torch.cat([model(floats(part)).argmax(1) for part in images.split(500)])
    return float((found == labels).double().mean())


def measure(
    minutes: tuple[float, ...] = (25.0, 4.0, 4.0, 8.0),
    num_train: int = 30_000,
    num_test: int = 4_000,
    seed: int = 0,
    precision: str = "no",
) -> Iterator[dict[str, Any]]:
    """Train on each set for some minutes of CPU time, and evaluate it.

    The precision bf16 is fast on processors with instructions for it, and very slow on others.
    """
    torch.manual_seed(seed)
    model = ContourNet().to(memory_format=torch.channels_last)
    sizes = {"num_train": num_train, "num_validation": 1, "num_test": num_test}
    settings = {"sets": SETS, "minutes": minutes, "precision": precision, "seed": seed}
    settings |= {"channels": CHANNELS, "repeats": REPEATS, "batch_size": BATCH, "lr": LR}
    results = []
    for name, limit in zip(SETS, minutes, strict=True):
        task_name, preset = name.split("/")
        task = load_task(task_name, preset=preset, **sizes)
        results.append(train_and_test(model, task, name, 60 * limit, precision))
        print(results[-1], flush=True)
        yield {
            "settings": settings | sizes,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "results": results,
        }


if __name__ == "__main__":
    run("pathfinder-cnn", __doc__, measure, version=2)
