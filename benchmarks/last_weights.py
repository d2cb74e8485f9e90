"""Test values of the last weights of rows run in full, beside those that validation chose.

A row's number is that of the weights that its validation split chose among dozens. A paper that
prints the value after the last step has another number from the same run; this shows by how much:

    python benchmarks/last_weights.py RUN ... --data-dir data --out benchmarks/results

RUN is a folder of `rifflemix reproduce`, with its checkpoint. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from rifflemix.bench.rows import write_dated
from rifflemix.files import make_folder, read_json, read_tensors
from rifflemix.recipes import get_recipe
from rifflemix.reproduction import ReproduceOptions, plan_reproduction
from rifflemix.reproduction.run import build_model
from rifflemix.runs.environment import environment
from rifflemix.train.engine import Engine
from rifflemix.train.evaluate import evaluate

CHECKPOINT = "checkpoint.safetensors"
FORMAT = "rifflemix.last-weights/1"


def row(run: Path, data_dir: Path) -> dict[str, Any]:
    """The values of one run, as fractions."""
    results = read_json(run / "results.json")
    recipe = get_recipe(results["recipe"]["name"])
    options = ReproduceOptions(seed=results["seed"], data_dir=data_dir, threads=1)
    plan = plan_reproduction(recipe, run, options)
    tensors, progress = read_tensors(run / CHECKPOINT)
    model = build_model(plan.recipe, plan.task, plan.seed)
    prefix = "model/"
    weights = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    model.load_state_dict(weights)
    engine = Engine(plan.recipe.train, plan.device)
    values = {}
    for split in ("validation", "test"):
        found = evaluate(engine, model, plan.task, split, plan.recipe.train, lambda: False)
        assert found is not None
        values[split] = found[plan.task.metric]
    return {
        "recipe": recipe.name,
        "seed": plan.seed,
        "printed": results["printed"],
        "metric": plan.task.metric,
        "test_samples": len(plan.task.split("test")),
        "chosen": {
            "step": progress["best_step"],
            "validation": progress["best_value"],
            "test": results["ours"] / 100,
        },
        "last": {"step": progress["step"], **values},
    }


def main() -> None:
    """Evaluate and write."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data-dir", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    make_folder(arguments.out)
    torch.set_num_threads(1)
    rows = []
    for run in arguments.runs:
        rows.append(row(run, arguments.data_dir))
        chosen, last = rows[-1]["chosen"], rows[-1]["last"]
        print(f"{rows[-1]['recipe']}: chosen {chosen['test']:.4f}, last {last['test']:.4f}")
    path = write_dated(
        arguments.out,
        "last-weights",
        {"format": FORMAT, "environment": environment(), "rows": rows},
    )
    print(f"Written to {path}")


if __name__ == "__main__":
    main()
