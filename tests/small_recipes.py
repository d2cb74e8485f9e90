"""A one-second recipe that no paper has, and results in the format that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction import FORMAT, Reproduction
from rifflemix.lab.reproduction.records import decode_reproduction
from rifflemix.lab.train import TrainConfig

QUICK = TrainConfig(max_steps=8, batch_size=64, warmup_steps=2, eval_every=4, log_every=2)


def small(**changes: Any) -> Recipe:
    """Return a recipe outside of all tables, on the digits data."""
    settings: dict[str, Any] = {
        "name": "test/digits",
        "paper": "Nobody",
        "table": "Table 0",
        "row": "TSSA",
        "column": "Digits",
        "printed": 50.0,
        "task": "digits",
        "task_options": {"patch_size": 4},
        "model": "encoder",
        "model_settings": {"mixer": "tssa", "dim": 16, "num_heads": 2},
        "train": TrainConfig(max_steps=40, batch_size=8, warmup_steps=10, eval_every=20),
    }
    return Recipe(**{**settings, **changes})


def record_of(results: dict[str, Any]) -> Reproduction:
    """Decode the results of a reproduction."""
    return decode_reproduction(results)


def made_up(**changes: Any) -> dict[str, Any]:
    """Return the parts of results.json that a report reads."""
    recipe = changes.pop("recipe", None) or small(train=QUICK)
    history = [{"step": step, "loss": 2.0, "accuracy": 0.1 * step} for step in (4, 8)]
    return {
        "format": FORMAT,
        "status": "complete",
        "recipe": recipe.to_dict(),
        "seed": 0,
        "task": {
            "name": recipe.task,
            "options": dict(recipe.task_options),
            "sizes": {"test": 10_000},
        },
        "printed": recipe.printed,
        "ours": 60.0,
        "difference": 10.0,
        "validation": 80.0,
        "unit": recipe.unit,
        "steps": 8,
        "steps_planned": 8,
        "is_reduced": False,
        "parameters": 12345,
        "steps_per_second": 20.0,
        "utilisation": {
            "flops_per_step": 10**9,
            "flops_per_second": 2e10,
            "matmul_flops_per_second": 8e10,
            "share": 0.25,
        },
        "peak_memory_bytes": 2**28,
        "wall_seconds": 75.0,
        "result": trained(history),
        **changes,
    }


def trained(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the outcome of a training with these evaluations."""
    return {
        "finished": True,
        "step": 8,
        "max_steps": 8,
        "metric": "accuracy",
        "best_step": 8,
        "best_value": 0.8,
        "validation": history,
        "test": None,
        "protocol": {},
        "train_loss": 2.0,
        "parameters": 12345,
        "decayed_parameters": 12000,
        "samples": 512,
        "tokens": 2048,
        "steps_per_second": 20.0,
        "tokens_per_second": 80.0,
        "seconds": {"total": 75.0},
        "processes": 1,
        "device": "cpu",
        "precision": "no",
    }


def write(path: Path, results: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results))
    return path
