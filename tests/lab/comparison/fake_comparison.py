"""Made-up results of a comparison in the format of rifflemix.lab.comparison."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rifflemix.json_values import decode, encode
from rifflemix.lab.comparison import ComparePlan, run_comparison
from rifflemix.lab.comparison.records import Results
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.runs.status import summarise

NAMES = ("softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn")
ENVIRONMENT = {
    "command": "rifflemix compare --task digits",
    "time": "2026-01-01T00:00:00+00:00",
    "git_commit": "0" * 40,
    "git_dirty": False,
    "python": "3.11",
    "platform": "Linux x86_64",
    "libraries": {"torch": "2.13.0"},
    "hardware": {"cpu": "a processor", "cores": 2, "threads": 1, "memory_bytes": None, "gpu": None},
}


def table_of(results: dict[str, Any]) -> Table:
    """Decode the results of a comparison."""
    return Table(decode(Results, results))


def results_of_plan(plan: ComparePlan, **options: Any) -> dict[str, Any]:
    """Run a comparison and return its results as JSON values."""
    return encode(run_comparison(plan, **options))


def summary(values: Sequence[float]) -> dict[str, Any] | None:
    """Summarize values over seeds as JSON values."""
    return encode(summarise(values))


def comparison(mixers: int = 6, seeds: int = 3) -> dict[str, Any]:
    noise = random.Random(mixers)
    names = [*NAMES, *(f"other_{index}" for index in range(mixers))][:mixers]
    runs = [
        run(name, seed, accuracy=0.9 + 0.09 * noise.random(), speed=2 + 28 * noise.random())
        for seed in range(seeds)
        for name in names
    ]
    return {
        "format": "rifflemix.compare/1",
        "status": "complete",
        "runs_done": len(runs),
        "runs_planned": len(runs),
        "command": ENVIRONMENT["command"],
        "config": {
            "task": "digits",
            "model": "encoder",
            "dim": 64,
            "num_layers": 2,
            "num_heads": 4,
            "mixers": names,
            "device": "cpu",
            "train": {"max_steps": 100, "batch_size": 8, "lr": 1e-3, "precision": "no"},
        },
        "seeds": list(range(seeds)),
        "task": {
            "name": "digits",
            "title": "Handwritten digits",
            "source": "a paper",
            "licence": "any",
            "fingerprint": "0" * 32,
            "options": {"patch_size": 1},
            "num_classes": 10,
            "max_length": 64,
            "data_source": "a file",
            "sizes": {"train": 1000, "validation": 300, "test": 300},
        },
        "protocol": {"model_chosen_on": "validation", "split_note": "a fixed fifth"},
        "environment": ENVIRONMENT,
        "wall_seconds": 90.0,
        "mixers": [mixer(name, runs, int(2e6 + 5e7 * noise.random())) for name in names],
        "runs": runs,
        "failed_runs": [],
    }


def run(name: str, seed: int, *, accuracy: float, speed: float | None) -> dict[str, Any]:
    steps = (25, 50, 75, 100)
    return {
        "mixer": name,
        "seed": seed,
        "folder": f"{name}/seed{seed}",
        "steps": 100,
        "best_step": 100,
        "parameters": 100_000,
        "steps_per_second": speed,
        "tokens_per_second": None,
        "wall_seconds": 15.0,
        "seconds": {"total": 15.0},
        "validation": {"accuracy": accuracy, "loss": 0.2},
        "test": {"accuracy": accuracy - 0.01, "loss": 0.25},
        "validation_curve": [
            {"step": s, "accuracy": accuracy * s / 100, "loss": 2 - s / 60} for s in steps
        ],
        "train_curve": [{"step": s, "loss": 2.3 - s / 50} for s in steps],
        "environment": ENVIRONMENT,
    }


def mixer(name: str, runs: list[dict[str, Any]], memory: int | None) -> dict[str, Any]:
    own = [run for run in runs if run["mixer"] == name]
    return {
        "name": name,
        "title": name.capitalize(),
        "paper": "Somebody 2020, A paper",
        "complexity": "O(N C)",
        "parameters": 100_000 + len(name),
        "validation": summary([run["validation"]["accuracy"] for run in own]),
        "test": summary([run["test"]["accuracy"] for run in own]),
        "steps_per_second": own[0]["steps_per_second"] if own else None,
        "peak_memory_bytes": memory,
    }


def unfinished() -> dict[str, Any]:
    """Return a plan without any finished run."""
    results = comparison(mixers=2, seeds=1)
    results |= {"status": "partial", "runs_done": 0, "runs": []}
    results["mixers"] = [mixer(entry["name"], [], None) for entry in results["mixers"]]
    return results


def with_perplexity(results: dict[str, Any], *, accuracy: bool = True) -> dict[str, Any]:
    """Choose weights by perplexity, with or without token accuracy."""
    for run in results["runs"]:
        for at in (run["validation"], run["test"], *run["validation_curve"]):
            at["perplexity"] = 10 / (0.1 + at["accuracy"])
            if not accuracy:
                del at["accuracy"]
    results["protocol"]["metric"] = "perplexity"
    for entry in results["mixers"]:
        own = [run for run in results["runs"] if run["mixer"] == entry["name"]]
        entry["metric"] = {
            "name": "perplexity",
            "higher_is_better": False,
            "validation": summary([run["validation"]["perplexity"] for run in own]),
            "test": summary([run["test"]["perplexity"] for run in own]),
        }
        if not accuracy:
            entry |= {"validation": None, "test": None}
    return results
