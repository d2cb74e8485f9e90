"""Test values of the last weights of rows run in full, beside those that validation chose.

A row's number is that of the weights that its validation split chose among dozens. A paper that
prints the value after the last step has another number from the same run; this shows by how much:

    python benchmarks/last_weights.py RUN ... --data-dir data --out benchmarks/results

RUN is a folder of `rifflemix reproduce`, or of a full `rifflemix sweep`, with its checkpoints.
See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rifflemix.files import make_folder, read_json, read_tensors
from rifflemix.lab.bench.rows import write_dated
from rifflemix.lab.experiments import only_run
from rifflemix.lab.recipes import get_recipe
from rifflemix.lab.reproduction import ReproduceOptions, plan_reproduction
from rifflemix.lab.reproduction.plan import ReproducePlan, build_model
from rifflemix.lab.reproduction.sweep import SWEEP_FORMAT, plan_sweep
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.grid import Point
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.evaluate import evaluate

CHECKPOINT = "checkpoint.safetensors"
FORMAT = "rifflemix.last-weights/1"


def rows_of(run: Path, data_dir: Path) -> Iterator[dict[str, Any]]:
    """The values of a run, or of each run of a sweep, as fractions."""
    results = read_json(run / "results.json")
    recipe = get_recipe(results["recipe"]["name"])
    if results["format"] == SWEEP_FORMAT:
        sweep = results["config"]
        options = ReproduceOptions(data_dir=data_dir, threads=sweep["threads"])
        runs = plan_sweep(recipe, sweep["grid"], sweep["seeds"], run, options).runs
        metrics = {results_key(r["settings"], r["seed"]): r["test"] for r in results["runs"]}
        for settings, plan in runs:
            test = metrics[results_key(settings, plan.seed)][plan.task.metric]
            yield row(plan, test, settings)
    else:
        options = ReproduceOptions(seed=results["seed"], data_dir=data_dir, threads=1)
        plan = plan_reproduction(recipe, run, options)
        yield row(plan, results["ours"] / 100, None)


def results_key(settings: Point, seed: int) -> str:
    """Tells one run of a sweep from the others."""
    return json.dumps([dict(settings), seed], sort_keys=True)


def row(plan: ReproducePlan, chosen: float, settings: Point | None) -> dict[str, Any]:
    """The values of one run; `settings` is where it differs from its recipe."""
    tensors, progress = read_tensors(only_run(plan.out) / CHECKPOINT)
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
        "recipe": plan.recipe.name,
        **({} if settings is None else {"settings": dict(settings)}),
        "seed": plan.seed,
        "printed": plan.recipe.printed,
        "metric": plan.task.metric,
        "test_samples": len(plan.task.split("test")),
        "chosen": {
            "step": progress["best_step"],
            "validation": progress["best_value"],
            "test": chosen,
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
    for found in chain.from_iterable(rows_of(run, arguments.data_dir) for run in arguments.runs):
        rows.append(found)
        chosen, last = found["chosen"]["test"], found["last"]["test"]
        print(f"{found['recipe']}: chosen {chosen:.4f}, last {last:.4f}")
    path = write_dated(
        arguments.out,
        "last-weights",
        {"format": FORMAT, "environment": environment(), "rows": rows},
    )
    print(f"Written to {path}")


if __name__ == "__main__":
    main()
