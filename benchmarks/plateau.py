"""When do mixers leave the commonest answer on ListOps?

In the host of Dimension Mixer's Table 5 every mixer first gives the commonest answer, for hundreds
of steps or for all of them, while the learning rate falls from step 1,000 on. The host's ListOps of
2,048 positions takes hours of a CPU; this takes shorter ones, alike otherwise, and stops a training
as soon as its validation accuracy is above a quarter:

    python benchmarks/plateau.py --length 256 --work runs/plateau --out benchmarks/results

Stopped, the same command continues. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from rifflemix.files import make_folder, read_json, write_json
from rifflemix.lab.bench.rows import write_dated
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.fit import fit_model
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.train import TrainEvent, train

FORMAT = "rifflemix.plateau/1"
LEFT_ABOVE = 0.25
FORMS = (
    "softmax,butterfly,linformer,sinkhorn,nystromformer/4,nystromformer/16,nystromformer/64,"
    "performer,tssa,csp,sliceformer"
)
# As many for each token as in the row: of the landmarks where a form names no number.
_OF_TOKENS = ("num_landmarks", "projected_length")


def row_of(form: str, length: int) -> Recipe:
    """The row of Table 5's ListOps with fewer positions; nystromformer/4 has four landmarks."""
    mixer, _, landmarks = form.partition("/")
    recipe = get_recipe(f"dimension_mixer/table5-listops-{mixer}")
    settings = dict(recipe.model_settings)
    options = dict(settings.pop("mixer_options", {}))
    for name in _OF_TOKENS:
        if name in options:
            options[name] = options[name] * length // settings["max_length"]
    if landmarks:
        options["num_landmarks"] = int(landmarks)
    settings |= {"max_length": length, **({"mixer_options": options} if options else {})}
    config = replace(recipe.train, eval_every=100)
    return replace(recipe, model_settings=settings, train=config)


def expressions(length: int) -> Task:
    """ListOps whose lengths are to `length` as those of the Long Range Arena are to 2,048."""
    return load_task(
        "listops",
        min_length=500 * length // 2048,
        max_length=2000 * length // 2048,
        num_train=64_000,
        num_test=1,
    )


def leave(form: str, task: Task, args: argparse.Namespace) -> dict[str, Any]:
    """Train one form until it has left, or to the end."""
    recipe = row_of(form, args.length)
    config = replace(recipe.train, seed=args.seed)
    model = fit_model(recipe.model, task, recipe.model_settings, args.seed)
    best = [0.0]

    def hear(event: TrainEvent) -> None:
        if event.kind == "eval":
            best[0] = max(best[0], event.metrics["accuracy"])
            print(f"{form}: {event.metrics['accuracy']:.4f} at step {event.step:,}", flush=True)

    result = train(
        model,
        task,
        config,
        args.work / f"{args.length}-{form.replace('/', '-')}-{args.seed}",
        device=args.device,
        on_event=hear,
        should_stop=lambda: best[0] > LEFT_ABOVE,
        model_settings=recipe.model_settings,
        tests=False,
    )
    return {
        "form": form,
        "mixer_options": recipe.model_settings.get("mixer_options", {}),
        "seed": args.seed,
        "left": left(result.validation),
        "steps": result.step,
        "steps_per_second": result.steps_per_second,
        "validation": result.validation,
    }


def left(validation: Sequence[Mapping[str, float]]) -> int | None:
    """The step of the first evaluation above a quarter."""
    steps = (int(point["step"]) for point in validation if point["accuracy"] > LEFT_ABOVE)
    return next(steps, None)


def main() -> None:
    """Train all forms, and write one file."""
    parser = argparse.ArgumentParser(description="when mixers leave ListOps' commonest answer")
    parser.add_argument("--length", type=int, default=256, help="positions; the row has 2,048")
    parser.add_argument("--forms", default=FORMS, help="mixers, or nystromformer/LANDMARKS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    make_folder(args.out)
    make_folder(args.work)
    torch.set_num_threads(1)
    task = expressions(args.length)
    rows = []
    for form in args.forms.split(","):
        kept = args.work / f"{args.length}-{form.replace('/', '-')}-{args.seed}.json"
        if not kept.exists():
            write_json(kept, leave(form, task, args))
        rows.append(read_json(kept))
        print(json.dumps({key: rows[-1][key] for key in ("form", "left", "steps")}), flush=True)
    settings = {"length": args.length, "seed": args.seed, "left_above": LEFT_ABOVE}
    path = write_dated(
        args.out,
        "plateau",
        {"format": FORMAT, **settings, "rows": rows, "environment": environment()},
    )
    print(f"Written to {path}")


if __name__ == "__main__":
    main()
