"""Measure what the papers' claims need: analyses, checks and trainings.

    python docs/build/run_claims.py                   list all evidence and its state
    python docs/build/run_claims.py NAME [NAME ...]   measure, or continue a stopped training
    python docs/build/build.py claims blocks          then write the page

Run it in the root of the repository. Data files are in the folder `data`, models and finished runs
in `runs`. Trainings show their progress. Ctrl-C stops them, and the same command continues.
Measurements are stored in docs/data/claims.csv. Each finished training is stored at once, so that
the same command in another checkout trains the rest.
"""

from __future__ import annotations

import copy
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from claims.base import ACCURACY, NOT_RUN, UNFINISHED, Analysis, Evidence, Runs, keep, stored
from claims.claims import DIGITS, EVIDENCE, MNIST

from rifflemix.cli.output import DataProgress, StopRequest, progress_console
from rifflemix.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    InputError,
    RunFailed,
    unknown_name,
)
from rifflemix.files import read_json
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.report.live import live_progress
from rifflemix.lab.reproduction import (
    ReproduceOptions,
    Reproduction,
    plan_reproduction,
    run_reproduction,
)
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.tasks import load_task
from rifflemix.lab.train import TrainingDiverged

RUNS, DATA = Path("runs"), Path("data")


def main(names: Sequence[str]) -> int:
    """Measure the named evidence; list everything if there is no name."""
    if not names:
        for one in EVIDENCE.values():
            found = stored(one.name)
            state = NOT_RUN if found is None else f"measured {found['environment']['time'][:10]}"
            print(f"{state:<20} {one.name:<36} {one.command}")
        return 0
    try:
        for name in names:
            if name not in EVIDENCE:
                raise unknown_name("evidence", name, EVIDENCE)
        for name in names:
            if not measure(EVIDENCE[name]):
                print(f"stopped; continue with: {EVIDENCE[name].command}", file=sys.stderr)
                return EXIT_INTERRUPTED
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


def measure(evidence: Evidence) -> bool:
    """Measure some evidence and store the measurement; False after Ctrl-C."""
    if isinstance(evidence, Runs):
        found = train(evidence, RUNS / evidence.name, DATA)
    elif not _commands(*evidence.trained):
        found = None
    elif isinstance(evidence, Analysis):
        found = _analyzed(evidence) if _commands(evidence.command) else None
    else:
        found = {"data": evidence.measure()}
    if found is not None:
        keep(evidence.name, {"environment": environment(), **found})
    return found is not None


def _commands(*commands: str) -> bool:
    """Run commands of rifflemix, one after the other; finished ones do nothing."""
    for command in commands:
        print(f"$ {command}", file=sys.stderr)
        words = [sys.executable, "-m", *shlex.split(command)]
        code = subprocess.run(words, check=False).returncode
        if code == EXIT_INTERRUPTED:
            return False
        if code:
            raise InputError(f"command: expected exit code 0, got {code} from: {command}")
    return True


def _analyzed(evidence: Analysis) -> dict[str, Any]:
    """Read the numbers of an analysis."""
    out, kind = evidence.parts
    found: dict[str, Any] = read_json(Path(out) / f"{kind}.json")
    for layers in found["data"].get("models", {}).values():
        for layer in layers if isinstance(layers, list) else ():
            layer.pop("displacements", None)  # only the picture of the analysis needs them
    for command, name in ((DIGITS, "digits"), (MNIST, "mnist")):
        if command in evidence.trained:
            runs = read_json(RUNS / name / "results.json")["runs"]
            scores = {one["mixer"]: one["validation"]["accuracy"] for one in runs}
            keep(ACCURACY, {**(stored(ACCURACY) or {}), name: scores})
    return {key: value for key, value in found.items() if key not in ("rows", "headers")}


# Trainings: rows of a table, each with several seeds, at a reduced size. They use the recipes and
# the training of `rifflemix reproduce`.


def train(runs: Runs, out: Path, data_dir: Path) -> dict[str, Any] | None:
    """Train every row with every seed, or continue.

    Each finished run is stored at once, so that another checkout trains only the rest.

    Args:
        runs: the rows.
        out: folder of unfinished runs.
        data_dir: folder of data files.

    Returns:
        The measurement, or None after Ctrl-C.

    Raises:
        RunFailed: all runs diverged.
    """
    recipes = {row: get_recipe(name) for row, name in runs.rows.items()}
    data, first = _begun(runs, recipes), next(iter(recipes.values()))
    with DataProgress(progress_console()) as progress:
        task = load_task(first.task, data_dir=data_dir, progress=progress, **first.task_options)
    shared = ReproduceOptions(
        data_dir=data_dir, max_steps=runs.steps, scale=runs.scale, batch_size=runs.batch_size,
        device="cpu", threads=1,
    )  # fmt: skip
    live = live_progress(progress_console(), {r.name: r.row for r in recipes.values()}, runs.seeds)
    with live, StopRequest(live.note) as stop:
        for seed, row in product(runs.seeds, recipes):
            recipe, found = recipes[row], data["rows"][row]
            if str(seed) in found["test"] or seed in found["diverged"]:
                continue
            folder, options = out / row / f"seed{seed}", replace(shared, seed=seed)
            plan = plan_reproduction(recipe, folder, options, task=task)
            found["parameters"] = plan.parameters
            try:
                result = run_reproduction(plan, on_status=live.update, should_stop=stop)
            except TrainingDiverged as error:
                live.note(f"{row}, seed {seed}: {error.reason}")
                found["diverged"].append(seed)
            else:
                if result.status != "complete":
                    return None
                _add(data, row, recipe, result)
            keep(runs.name + UNFINISHED, {"environment": environment(), "data": data})
    if not any(found["test"] for found in data["rows"].values()):
        raise RunFailed(f"{runs.name}: expected a finished run, got diverged runs only")
    return {"data": data}


def _begun(runs: Runs, recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    """Return the data with the finished runs of the same size, or without runs."""
    size = {"steps": runs.steps, "scale": runs.scale, "batch_size": runs.batch_size}
    kept = stored(runs.name + UNFINISHED)
    if kept is not None and size.items() <= kept["data"]["size"].items():
        return copy.deepcopy(kept["data"])
    rows = {
        row: {
            "recipe": recipe.name, "printed": recipe.printed, "unit": recipe.unit,
            "test": {}, "validation": {}, "curves": {}, "diverged": [], "wall_seconds": 0.0,
        }
        for row, recipe in recipes.items()
    }  # fmt: skip
    return {"size": size | {"seeds": list(runs.seeds)}, "rows": rows}


def _add(data: dict[str, Any], row: str, recipe: Recipe, run: Reproduction) -> None:
    """Add a finished run to its row, and the sizes of the paper's run."""
    assert run.task.sizes is not None
    found, seed = data["rows"][row], str(run.seed)
    found["test"][seed] = run.ours
    found["validation"][seed] = run.validation
    points = run.result.validation
    found["curves"][seed] = [(p["step"], recipe.shown(p[recipe.metric])) for p in points]
    found["wall_seconds"] += run.wall_seconds
    data["size"] |= {
        "steps_of_the_paper": run.steps_planned,
        "batch_size_of_the_paper": run.batch_size_planned,
        "test_samples": run.task.sizes["test"],
    }


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(sys.argv[1:]))
