"""Estimates of `rifflemix list recipes --cost` beside steps that are made: benchmarks/README.md.

Everything is timed in seconds of one CPU thread's work, so that other processes disturb neither.
Rows that were run in full on one thread of such a machine stand beside what is estimated for all of
their steps.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rifflemix.files import make_folder
from rifflemix.lab.bench.rows import write_dated
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.reproduction.cost import (
    Speed,
    calibrate,
    count_step,
    recipe_costs,
    step_samples,
)
from rifflemix.lab.reproduction.outlines import Outline, outline
from rifflemix.lab.reproduction.utilisation import matmul_flops_per_second
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.fit import fit_model
from rifflemix.lab.tasks.core.base import Batch
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.optim import build_optimizer

ROWS = (
    "dimension_mixer/table5-listops-butterfly",
    "dimension_mixer/table5-listops-linformer",
    "dimension_mixer/table5-listops-flash",
    "dimension_mixer/table3-butterfly_mlp-e1",
    "dimension_mixer/table4-cifar10-p4-l4-butterfly",
    "csp/table3-cifar10-csp",
    "sinkhorn/table6-sst-word-b8",
    "sinkhorn/table7-sick-b8",
)
AS_FAST = 1.25
REPRODUCED = Path(__file__).resolve().parent / "results" / "reproduce"


def step_seconds(recipe: Recipe, repeats: int) -> float:
    """The fastest of some training steps on random samples as long as those of the data."""
    plan = outline(recipe)
    model = fit_model(recipe.model, plan.task, recipe.model_settings, 0).train()
    optimizer = build_optimizer(model, recipe.train)
    batch = random_batch(plan, step_samples(recipe))
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        optimizer.zero_grad()
        logits = run_model(model, batch).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        best = min(best, time.process_time() - start)
    return best


def random_batch(plan: Outline, size: int) -> Batch:
    """Random inputs; lengths in even steps to the longest, with the data's root mean square.

    One below the longest / sqrt(3) cannot be met by even steps: they begin at 1 then.
    """
    batch, ids = plan.batch(size), plan.task.vocab_size
    inputs = batch["inputs"]
    if ids is None:
        inputs.normal_()
    else:
        inputs.random_(1, ids)
    mask = batch.get("key_padding_mask")
    if mask is not None:
        tokens = mask.shape[-1]
        shortest = (math.sqrt(max(0, 12 * plan.valid**2 - 3 * tokens**2)) - tokens) / 2
        lengths = torch.linspace(max(1.0, shortest), tokens, len(mask)).round().long()
        mask |= torch.arange(tokens) >= lengths.view(-1, *[1] * (mask.dim() - 1))
        inputs[mask] = 0
    return batch


def row(name: str, speed: Speed, repeats: int) -> dict[str, Any]:
    recipe = get_recipe(name)
    estimate, seconds = speed.seconds(count_step(recipe)), step_seconds(recipe, repeats)
    print(f"{name}: {estimate:.2f} s estimated, {seconds:.2f} s, x {estimate / seconds:.2f}")
    return {"name": name, "estimate": estimate, "seconds": seconds, "ratio": estimate / seconds}


def runs_in_full(speed: Speed) -> Iterator[dict[str, Any]]:
    """Kept trainings on one CPU thread: their seconds, and as estimated.

    Those on a machine that was as fast as this one is now, by a product that both timed.
    """
    now = matmul_flops_per_second(torch.device("cpu"), torch.float32)
    for path in sorted(REPRODUCED.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        hardware = result["environment"]["hardware"]
        if result["is_reduced"] or hardware["threads"] > 1 or hardware["gpu"] is not None:
            continue
        if not 1 / AS_FAST < result["utilisation"]["matmul_flops_per_second"] / now < AS_FAST:
            continue
        name = result["recipe"]["name"]
        (cost,) = recipe_costs([Recipe.from_dict(result["recipe"])], speed)
        estimate, seconds = cost["seconds"], result["seconds"]["train"]
        row = {"name": name, "seed": result["seed"], "estimate": estimate, "seconds": seconds}
        yield {**row, "ratio": estimate / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    make_folder(arguments.out)
    torch.set_num_threads(1)
    speed = calibrate()
    result = {
        "format": "rifflemix.step-estimates/2",
        "environment": environment(),
        "speed": asdict(speed),
        "rows": [row(name, speed, arguments.repeats) for name in arguments.rows],
        "runs": list(runs_in_full(speed)),
    }
    path = write_dated(arguments.out, "step-estimates", result)
    print(path)


if __name__ == "__main__":
    main()
