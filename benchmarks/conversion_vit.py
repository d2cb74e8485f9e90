"""Convert a vision transformer that this script trains on CIFAR-10, with controls.

The host is timm's VisionTransformer with 6 layers, 64 channels and patches of 4 pixels. It trains
for 7,000 steps of 32 images. The last 10 % of the training images are for validation, and all
10,000 test images judge. The control of each training is the original, trained on for the same
number of steps with the same seed. The standard errors are of paired differences from this control.

    python benchmarks/conversion_vit.py --data data --work runs/conversion-vit

The same command continues after a stop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversion_study import FROM_SCRATCH, ORIGINAL, TRAINED_ON, Batch, Study
from harness import run
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.files import make_folder
from rifflemix.lab.tasks import load_task

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "surgery"))
from torchvision_shim import declare_operators

IMAGES, PATCH, HOST_STEPS, HOST_RATE = 32, 4, 7000, 1.5e-3
VALIDATION, PIECE = 1000, 250  # images for validation, and in one forward pass
# The grid: conversions of all and of half of the layers, and the controls.
GRID = ("layers, outputs with labels", "hybrid with labels", "fine-tune", FROM_SCRATCH)


class Images(Sequence[Batch]):
    """Random batches of a split; every image once, then every image again."""

    def __init__(self, split: tuple[Tensor, Tensor], count: int, seed: int) -> None:
        generator, needed = torch.Generator().manual_seed(seed), count * IMAGES
        size = len(split[1])
        orders = [torch.randperm(size, generator=generator) for _ in range(-(-needed // size))]
        self._split, self._rows = split, torch.cat(orders)[:needed].view(count, IMAGES)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        images, labels = self._split
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        rows = self._rows[index]
        return images[rows], labels[rows]


class VitStudy(Study):
    """Vision transformer for CIFAR-10."""

    host = "ViT"
    lengths = (64, 256, 1024)
    batch_size = IMAGES

    def __init__(self, data: Path, work: Path, steps: int) -> None:
        super().__init__(work, steps)
        declare_operators()
        task = load_task("image", data_dir=data, color="rgb", layout="image")
        self.train, self.validation, self.test = (
            self._read(task, name) for name in ("train", "validation", "test")
        )
        make_folder(work / "host")
        self.original = self._host(work / "host")

    def _read(self, task: Any, name: str) -> tuple[Tensor, Tensor]:
        split = task.split(name)
        count = VALIDATION if name == "validation" else len(split)
        batch = task.collate(split.__getitems__(range(count)))
        return batch["inputs"], batch["labels"]

    def _host(self, folder: Path) -> nn.Module:
        """Train the original, or load it from the work folder."""
        path = folder / "model.safetensors"
        if not path.exists():
            batches = Images(self.train, HOST_STEPS, 0)
            model = self.control(
                FROM_SCRATCH, "softmax", 0, batches, HOST_STEPS, folder / "training", HOST_RATE
            )
            save_model(model, str(path))
        original = self.fresh()
        load_model(original, path)
        return original.eval()

    def fresh(self) -> nn.Module:
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=32,
            patch_size=PATCH,
            embed_dim=64,
            depth=6,
            num_heads=4,
            mlp_ratio=2,
            num_classes=10,
            global_pool="avg",
            class_token=False,
            dynamic_img_size=True,
        )

    def batches(self, count: int, seed: int) -> Sequence[Batch]:
        return Images(self.train, count, seed + 1)

    def validation_batches(self) -> Sequence[Batch]:
        return Images(self.validation, 4, 0)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels)

    def make_inputs(self, length: int) -> Tensor:
        side = PATCH * round(length**0.5)
        return torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))

    def score(self, model: nn.Module) -> float:
        return float(hits(model, self.validation).mean())

    def judge(self, model: nn.Module) -> tuple[np.ndarray, dict[str, float]]:
        found = hits(model, self.test)
        accuracy = float(found.mean())
        return found, {"validation_accuracy": self.score(model), "test_accuracy": accuracy}

    def compare(self, found: np.ndarray, arm: str, seed: int) -> dict[str, float]:
        if arm in (ORIGINAL, TRAINED_ON):
            return {"standard_error": float(found.std() / len(found) ** 0.5)}
        lost = np.load(self.path(TRAINED_ON, "softmax", seed).with_suffix(".npy")) - found
        return {"lost": float(lost.mean()), "standard_error": float(lost.std() / len(lost) ** 0.5)}


@torch.no_grad()
def hits(model: nn.Module, split: tuple[Tensor, Tensor]) -> np.ndarray:
    """Return 1.0 for each image with the right class, else 0.0."""
    model.eval()
    pieces = zip(*(part.split(PIECE) for part in split), strict=True)
    found = [model(images).argmax(-1) == labels for images, labels in pieces]
    return torch.cat(found).double().numpy()


def measure(
    data: Path = Path("data"),
    work: Path = Path("runs/conversion-vit"),
    steps: int = 320,
    seeds: int = 3,
    mixers: tuple[str, ...] = ("linear", "tssa", "csp"),
    arms: tuple[str, ...] = GRID,
) -> Iterator[dict[str, Any]]:
    """Make the trainings; each result contains every finished training of the work folder."""
    yield from VitStudy(data, work, steps).results(seeds, mixers, arms)


if __name__ == "__main__":
    run("conversion-vit", __doc__, measure)
