"""Trainings of a conversion study: the arms, the controls, and the folder of finished trainings."""

from __future__ import annotations

import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.files import read_json, write_json
from rifflemix.lab.conversion.stages import StageModel, StageTask
from rifflemix.lab.train import TrainConfig, train
from rifflemix.models.base import call_model

RATE = 5e-4
# Training -> share of the steps in each stage, whether labels are used, softmax layers kept.
# "tuned" trains the original on the labels before it is converted.
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
    "tuned, layers, outputs": ({"tuned": 0.5, "layers": 0.25, "outputs": 0.25}, True, 0),
    "tuned, hybrid": ({"tuned": 0.5, "layers": 0.25, "outputs": 0.25}, True, 3),
}  # fmt: skip
FROM_SCRATCH = "from scratch"
ORIGINAL, TRAINED_ON = "original", "original trained on"

Batch = tuple[Any, Tensor]
"""Inputs of the model, and labels."""


class Whole(StageModel):
    """Training of all weights at one rate, for the controls."""

    def rate_factors(self) -> dict[str, float]:
        """Return no factors."""
        return {}


class Study(ABC):
    """One trained model, its data, and the folder of finished trainings.

    Args:
        work: folder of finished trainings.
        steps: optimizer steps of each training.
    """

    host: ClassVar[str]
    lengths: ClassVar[tuple[int, ...]]
    batch_size: ClassVar[int]
    rate: ClassVar[float] = RATE
    """Learning rate of random weights; the original trains at a tenth of it."""
    original: nn.Module

    def __init__(self, work: Path, steps: int) -> None:
        self.work, self.steps = work, steps

    @abstractmethod
    def fresh(self) -> nn.Module:
        """Return a model like the original, with random weights."""

    @abstractmethod
    def batches(self, count: int, seed: int) -> Sequence[Batch]:
        """Return at most `count` random training batches."""

    @abstractmethod
    def validation_batches(self) -> Sequence[Batch]:
        """Return batches for the errors of layers."""

    @abstractmethod
    def loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the task loss."""

    @abstractmethod
    def make_inputs(self, length: int) -> Any:
        """Return inputs with a number of tokens, to measure time."""

    @abstractmethod
    def score(self, model: nn.Module) -> float:
        """Return the score on validation data, for the result of each stage."""

    @abstractmethod
    def judge(self, model: nn.Module) -> tuple[np.ndarray, dict[str, float]]:
        """Return the outputs on the test split, and the scores."""

    @abstractmethod
    def compare(self, found: np.ndarray, arm: str, seed: int) -> dict[str, float]:
        """Compare the outputs on the test split with the baseline of the study."""

    def path(self, arm: str, mixer: str, seed: int) -> Path:
        """Return the file of a training."""
        steps = 0 if arm == ORIGINAL else self.steps
        name = arm.replace(", ", "+").replace(" ", "-")
        return self.work / f"{name}-{mixer}-{seed}-{steps}.json"

    def run(self, arm: str, mixer: str, seed: int) -> None:
        """Make one training, if it is not in the work folder."""
        path = self.path(arm, mixer, seed)
        if path.exists():
            return
        start = time.perf_counter()
        model, more = self._make(arm, mixer, seed, path.with_suffix(""))
        seconds = time.perf_counter() - start
        found, scores = self.judge(model)
        np.save(path.with_suffix(".npy"), found)
        steps = 0 if arm == ORIGINAL else self.steps
        row: dict[str, Any] = {"host": self.host, "arm": arm, "mixer": mixer, "seed": seed}
        row |= {"steps": steps, "seconds": seconds} | scores | more | self.compare(found, arm, seed)
        write_json(path, row)
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        print(row, file=sys.stderr)

    def _make(
        self, arm: str, mixer: str, seed: int, folder: Path
    ) -> tuple[nn.Module, dict[str, Any]]:
        if arm == ORIGINAL:
            return self.original, {}
        pairs = self.batches(self.steps, seed)
        if arm not in ARMS:
            return self.control(arm, mixer, seed, pairs, self.steps, folder), {}
        shares, has_labels, kept = ARMS[arm]
        steps = {name: round(self.steps * share) for name, share in shares.items()}
        original = self.original
        if "tuned" in steps:
            tuned = steps.pop("tuned")
            original = self.control("tuned", mixer, seed, pairs[:tuned], tuned, folder / "tuned")
            pairs = pairs[tuned:]
        validation = self.validation_batches()
        report = rm.convert(
            original,
            mixer,
            pairs if has_labels else [inputs for inputs, _ in pairs],
            validation=validation if has_labels else [inputs for inputs, _ in validation],
            loss=self.loss if has_labels else None,
            score=self.score,
            steps=steps,
            keep=kept or None,
            make_inputs=self.make_inputs,
            lengths=self.lengths,
            seed=seed,
            out=folder / "conversion",
        )
        return report.model, {
            "training_seconds": sum(stage.seconds for stage in report.stages),
            "error": report.stages[-1].error,
            **{f"speedup_{n}": value for n, value in report.speedups.items()},
            **{f"after_{stage.stage.replace(' ', '_')}": stage.score for stage in report.stages},
            "kept_layers": " ".join(str(of.index) for of in report.layers if not of.is_converted),
        }

    def control(
        self,
        arm: str,
        mixer: str,
        seed: int,
        pairs: Sequence[Batch],
        steps: int,
        folder: Path,
        rate: float | None = None,
    ) -> nn.Module:
        """Train the original at a tenth of the rate, or a model of random weights, on labels."""
        torch.manual_seed(seed)
        rate = rate or self.rate
        is_new = arm == FROM_SCRATCH
        model = self.fresh()
        if not is_new:
            model.load_state_dict(self.original.state_dict())
        elif mixer != "softmax":
            rm.replace_attention(model, mixer, init="fresh")

        def loss(index: int) -> Tensor:
            inputs, wanted = pairs[index]
            return self.loss(call_model(model, inputs), wanted)

        config = TrainConfig(
            max_steps=steps,
            batch_size=1,
            lr=rate if is_new else rate / 10,
            warmup_steps=steps // 10,
            clip_norm=1.0,
            seed=seed,
        )
        task = StageTask("fine_tune", len(pairs), f"{arm} {mixer} {seed}")
        whole = Whole(model, "fine_tune", loss)
        train(whole, task, config, folder, device="cpu", tests=False, weights="last")
        return model.eval()

    def results(
        self, seeds: int, mixers: Sequence[str], arms: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Make the trainings; each result contains every finished training of the work folder.

        The folder may contain trainings of several numbers of steps.
        """
        trainings = [(ORIGINAL, "softmax", 0)]
        for seed in range(seeds):  # a whole grid of one seed, then the next seed
            trainings.append((TRAINED_ON, "softmax", seed))
            trainings += product(arms, mixers, (seed,))
        for training in trainings:
            self.run(*training)
            rows = [read_json(path) for path in sorted(self.work.glob("*.json"))]
            yield {"batch_size": self.batch_size, "rows": rows}
