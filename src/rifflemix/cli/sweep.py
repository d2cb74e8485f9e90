"""rifflemix sweep: a recipe at several values of a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import EXIT_INTERRUPTED, StopRequest
from rifflemix.cli.options import parse_grid, parse_seeds
from rifflemix.cli.output import plain_table, print_json, progress_console, show, tell
from rifflemix.errors import RunFailed
from rifflemix.lab.runs.options import (
    BatchSize,
    DataDir,
    Device,
    Json,
    MaxSteps,
    NumWorkers,
    Option,
    Out,
    ReproduceOptions,
    Threads,
)

if TYPE_CHECKING:
    from rifflemix.lab.reproduction.sweep import SweepPlan

EPILOG = """Examples:

  rifflemix sweep sinkhorn/table1-sort-b32 --set mixer_options.temperature=.25,.5,.75,1 --seeds 2 --max-steps 500 --out runs/temperature

  rifflemix sweep csp/table4-image --set num_heads=1,2,4 --set lr=1e-3,3e-3 --max-steps 200 --data-dir data --out runs/heads

KEY is a setting of the model, mixer_options.NAME of its mixer, or a setting of the training. Several
--set make every combination. Ctrl-C stops after the current step; the same command continues.
"""  # noqa: E501 (commands on one line)


def sweep(
    recipe: Annotated[str, typer.Argument(help="PAPER/ROW; see `rifflemix list recipes`.")],
    set_: Annotated[
        list[str],
        Option("Setting and its values; repeatable.", ("--set",), metavar="KEY=A,B,C"),
    ],
    out: Out,
    seeds: Annotated[
        str, Option("Number of seeds 0, 1, ..., or a list of them.", metavar="NUMBER")
    ] = "1",
    data_dir: DataDir | None = None,
    max_steps: MaxSteps | None = None,
    scale: Annotated[float, Option("Factor of the model's widths, above 0 and at most 1.")] = 1.0,
    batch_size: BatchSize | None = None,
    device: Device = "auto",
    precision: Annotated[str | None, Option("float32 or bf16; the recipe's if unset.")] = None,
    threads: Threads | None = None,
    num_workers: NumWorkers = 0,
    json: Json = False,
) -> None:
    """Train a recipe once for each value and seed; write a table and a curve. Nothing is chosen."""
    from rifflemix.lab.recipes import get_recipe
    from rifflemix.lab.reproduction.sweep import plan_sweep, sweep_defaults

    chosen = get_recipe(recipe)
    options = ReproduceOptions(
        data_dir=data_dir,
        max_steps=max_steps,
        scale=scale,
        batch_size=batch_size,
        device=device,
        precision=precision,
        threads=threads,
        num_workers=num_workers,
    )
    grid = parse_grid(set_, sweep_defaults(chosen), recipe)
    with DataProgress(progress_console()) as progress:
        plan = plan_sweep(chosen, grid, parse_seeds(seeds), out, options, progress=progress)
    results = _run(plan)
    if json:
        print_json(results)
    else:
        _show(plan, results)
    if results["failed_runs"] and not results["runs"]:
        raise RunFailed(f"every run failed; the first: {results['failed_runs'][0]['error']}")
    if results["status"] != "complete":
        done = f"{results['runs_done']} of {results['runs_planned']} runs are done"
        tell(progress_console(), f"stopped: {done}; run the same command to continue")
        raise typer.Exit(EXIT_INTERRUPTED)


def _run(plan: SweepPlan) -> dict[str, Any]:
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.reproduction.sweep import run_sweep

    recipe = plan.recipe
    live = live_progress(progress_console(), {recipe.name: recipe.row}, plan.seeds)
    with live, StopRequest(live.note) as stop:
        return run_sweep(plan, on_status=live.update, should_stop=stop)


def _show(plan: SweepPlan, results: dict[str, Any]) -> None:
    from rifflemix.lab.reproduction.sweep_table import sweep_cells, sweep_headers, sweep_notes

    show(plain_table(sweep_headers(results), sweep_cells(results)))
    for note in sweep_notes(results):
        show(note)
    show(f"Written to {plan.out}: results.json, table.md, plot.png")
