"""Commands of reproductions: rifflemix reproduce, rifflemix sweep and rifflemix report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rifflemix.cli.options import one_or_many, parse_grid, parse_names, parse_seeds
from rifflemix.cli.output import (
    DataProgress,
    StopRequest,
    plain_table,
    print_json,
    progress_console,
    show,
    tell,
)
from rifflemix.cli.workers import (
    check_workers,
    has_gpus,
    recipe_forecasts,
    shard_of,
    show_forecasts,
    tell_rest,
    thread_default,
    train_with_workers,
    worker_count,
)
from rifflemix.errors import EXIT_INTERRUPTED, RunFailed, bad_argument
from rifflemix.lab.runs.options import (
    BatchSize,
    DataDir,
    Device,
    Json,
    MaxSteps,
    NumWorkers,
    OneSeed,
    Option,
    Out,
    ReproduceOptions,
    Threads,
    WorkerOptions,
    is_main_process,
)

if TYPE_CHECKING:
    from rifflemix.lab.reproduction import ReproducePlan, Reproduction
    from rifflemix.lab.reproduction.sweep import SweepPlan
    from rifflemix.lab.reproduction.sweep_records import SweepResults

_CONTINUE = "run the same command to continue"

EPILOG = """Examples:

  rifflemix reproduce csp/table4-image --data-dir data --out runs/csp-image

  rifflemix reproduce csp/table4-image --data-dir data --max-steps 200 --scale 0.5 --out runs/small

  rifflemix reproduce sinkhorn/table1-sort-b32 --budget 30 --out runs/sort

  rifflemix reproduce csp/table4-image tost/table3-image --data-dir data --workers 2 --out runs/two

  rifflemix reproduce dimension_mixer/table6-64 --start-from runs/px32 --out runs/px64

--max-steps shortens the run and its schedule. After --budget or Ctrl-C, the same command
continues. The budget includes the preparation of data. Results contain the share of the paper's
run that was trained.
"""


def reproduce(
    recipes: Annotated[
        list[str], typer.Argument(help="PAPER/ROW, one or more; see `rifflemix list recipes`.")
    ],
    *,
    out: Out,
    run: ReproduceOptions,
    budget: Annotated[
        float | None,
        Option(
            "Stop after this time, including data preparation. The same command continues.",
            metavar="MINUTES",
        ),
    ] = None,
    pool: WorkerOptions,
    json: Json = False,
) -> None:
    """Train entries of a paper's table, and print reported and reproduced values.

    Several entries have one folder each in --out.
    """
    time_is_up = _time_limit(budget)
    check_workers(pool)
    from rifflemix.json_values import encode
    from rifflemix.lab.reproduction import collect_reproduction, experiment_of, open_reproductions
    from rifflemix.lab.tasks import PreparationStopped

    run = replace(run, threads=thread_default(pool, run.threads, out))
    names = parse_names(",".join(recipes), "PAPER/ROW")
    try:
        plans = _plans(names, out, run, pool, time_is_up)
    except PreparationStopped as error:
        progress_console().print(f"stopped, {error}; {_CONTINUE}", soft_wrap=True)
        if json and is_main_process():
            print_json({"recipe": ", ".join(names), "status": "partial", "data": str(error)})
        return
    shard = shard_of(pool)
    own = plans[shard.number - 1 :: shard.count]
    if pool.dry_run:
        _forecast(own, pool, json)
        return
    if len(plans) > 1:
        open_reproductions(out, names)
    shared = train_with_workers(
        out,
        [experiment_of(plan) for plan in own],
        pool,
        max(plan.threads for plan in plans),
        run.data_dir,
        asdict(run),
        time_is_up=time_is_up,
    )
    is_stopped, is_shared = bool(shared), shared is not None
    results: list[Reproduction] = []
    failures: list[str] = []
    for plan in own:
        try:
            found = collect_reproduction(plan) if is_shared else None
            if not is_shared:
                found, is_stopped = _run(plan, time_is_up)
        except RunFailed as error:
            failures.append(str(error) if len(plans) == 1 else f"{plan.recipe.name}: {error}")
            continue
        if found is None:
            continue
        results.append(found)
        if is_main_process() and not json:
            _show(plan, found)
        if found.status != "complete":
            break
    if is_main_process() and json and results:
        print_json(encode(results if len(plans) > 1 else results[0]))
    if failures:
        raise RunFailed("; ".join(failures))
    if len(results) < len(own) or results[-1].status != "complete":
        tell(progress_console(), f"stopped; {_CONTINUE}")
        if is_stopped:
            raise typer.Exit(EXIT_INTERRUPTED)


def _forecast(plans: Sequence[ReproducePlan], pool: WorkerOptions, as_json: bool) -> None:
    recipes = [plan.recipe for plan in plans]
    runs = [recipe.name for recipe in recipes]
    costs = recipe_forecasts(recipes, runs, plans[0].device, plans[0].threads) if plans else []
    show_forecasts(costs, worker_count(pool), as_json=as_json)


def _plans(
    names: Sequence[str],
    out: Path,
    run: ReproduceOptions,
    pool: WorkerOptions,
    time_is_up: Callable[[], bool],
) -> list[ReproducePlan]:
    from rifflemix.lab.recipes import get_recipe
    from rifflemix.lab.reproduction import plan_reproduction
    from rifflemix.lab.runs.environment import gpus_elsewhere

    chosen = {name: get_recipe(name) for name in names}
    with (
        DataProgress(progress_console(), time_is_up) as progress,
        gpus_elsewhere(has_gpus(pool)),
    ):
        return [
            plan_reproduction(recipe, out / name if len(names) > 1 else out, run, progress=progress)
            for name, recipe in chosen.items()
        ]


def _time_limit(minutes: float | None) -> Callable[[], bool]:
    """Return a function that is True after some minutes from now."""
    if minutes is None:
        return lambda: False
    if not minutes > 0:
        raise bad_argument("--budget", "more than 0 minutes", minutes)
    end = time.monotonic() + 60.0 * minutes
    return lambda: time.monotonic() >= end


def _run(plan: ReproducePlan, time_is_up: Callable[[], bool]) -> tuple[Reproduction, bool]:
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.reproduction import run_reproduction

    recipe = plan.recipe
    live = live_progress(progress_console(), {recipe.name: recipe.row}, (plan.seed,))
    with live, StopRequest(live.note) as stop:
        results = run_reproduction(
            plan,
            on_status=live.update,
            should_stop=stop,
            time_is_up=time_is_up,
        )
        return results, stop()


def _show(plan: ReproducePlan, results: Reproduction) -> None:
    from rifflemix.lab.reproduction.tables import summary_rows

    show(plain_table((plan.recipe.name, plan.recipe.paper), summary_rows(results)))
    show(f"Written to {plan.out}/results.json")


SWEEP_EPILOG = """Examples:

  rifflemix sweep sinkhorn/table1-sort-b32 --set mixer_options.temperature=.25,.5,.75,1 --seeds 2 --max-steps 500 --out runs/temperature

  rifflemix sweep csp/table4-image --set num_heads=1,2,4 --set lr=1e-3,3e-3 --max-steps 200 --data-dir data --out runs/heads

KEY is a setting of the model, mixer_options.NAME of its mixer, or a setting of the training. Several
--set make every combination. Ctrl-C stops after the current step; the same command continues.
"""  # noqa: E501 (commands on one line)


def sweep(
    recipe: Annotated[str, typer.Argument(help="PAPER/ROW; see `rifflemix list recipes`.")],
    *,
    set_: Annotated[
        list[str],
        Option("Setting and its values; repeatable.", ("--set",), metavar="KEY=A,B,C"),
    ],
    out: Out,
    seeds: Annotated[
        str | None,
        Option("Number of seeds 0, 1, ..., or a list of them; 1 if unset.", metavar="NUMBER"),
    ] = None,
    seed: OneSeed = None,
    data_dir: DataDir | None = None,
    max_steps: MaxSteps | None = None,
    scale: Annotated[float, Option("Factor of the model's widths, above 0 and at most 1.")] = 1.0,
    batch_size: BatchSize | None = None,
    device: Device = "auto",
    precision: Annotated[str | None, Option("float32 or bf16; as in the recipe if unset.")] = None,
    threads: Threads | None = None,
    num_workers: NumWorkers = 0,
    pool: WorkerOptions,
    json: Json = False,
) -> None:
    """Train a recipe once for each value and seed, and write a table and a curve."""
    from rifflemix.json_values import encode
    from rifflemix.lab.recipes import get_recipe
    from rifflemix.lab.reproduction.sweep import collect_sweep, plan_sweep, sweep_defaults
    from rifflemix.lab.runs.environment import gpus_elsewhere

    check_workers(pool)
    chosen = get_recipe(recipe)
    options = ReproduceOptions(
        data_dir=data_dir,
        max_steps=max_steps,
        scale=scale,
        batch_size=batch_size,
        device=device,
        precision=precision,
        threads=thread_default(pool, threads, out),
        num_workers=num_workers,
    )
    numbers = parse_seeds(one_or_many(seeds, seed) or "1")
    grid = parse_grid(set_, sweep_defaults(chosen), recipe)
    with DataProgress(progress_console()) as progress, gpus_elsewhere(has_gpus(pool)):
        plan = plan_sweep(
            chosen,
            grid,
            numbers,
            out,
            options,
            progress=progress,
        )
    threads = plan.runs[0][1].threads
    if pool.dry_run:
        _forecast_sweep(plan, pool, json)
        return
    is_stopped = train_with_workers(out, [plan], pool, threads, data_dir, asdict(options))
    if is_stopped is None:
        results, is_stopped = _run_sweep(plan, pool)
    else:
        results = collect_sweep(plan)
    if json:
        print_json(encode(results))
    else:
        _show_sweep(plan, results)
    if results.failed_runs and not results.runs:
        raise RunFailed(f"every run failed; the first: {results.failed_runs[0].error}")
    if is_stopped and results.status != "complete":
        done = f"{results.runs_done} of {results.runs_planned} runs are done"
        tell(progress_console(), f"stopped: {done}; run the same command to continue")
    tell_rest(pool, results.status, is_stopped=is_stopped)


def _forecast_sweep(plan: SweepPlan, pool: WorkerOptions, as_json: bool) -> None:
    from rifflemix.lab.experiments import RunStore

    records, shard = RunStore(plan).records(), shard_of(pool)
    left = {
        run.name: of
        for run, (_, of) in zip(plan.planned(records), plan.runs, strict=True)
        if run.name not in records and shard.contains(plan, run)
    }
    recipes, first = [of.recipe for of in left.values()], plan.runs[0][1]
    forecasts = recipe_forecasts(recipes, list(left), first.device, first.threads)
    show_forecasts(forecasts, worker_count(pool), as_json=as_json)


def _run_sweep(plan: SweepPlan, pool: WorkerOptions) -> tuple[SweepResults, bool]:
    from rifflemix.lab.experiments import Role
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.reproduction.sweep import run_sweep

    recipe = plan.recipe
    live = live_progress(progress_console(), {recipe.name: recipe.row}, plan.seeds)
    with live, StopRequest(live.note) as stop:
        results = run_sweep(
            plan,
            on_status=live.update,
            should_stop=stop,
            role=Role(shard=shard_of(pool)),
        )
        return results, stop()


def _show_sweep(plan: SweepPlan, results: SweepResults) -> None:
    from rifflemix.lab.reproduction.sweep_records import sweep_cells, sweep_headers, sweep_notes

    show(plain_table(sweep_headers(results), sweep_cells(results)))
    for note in sweep_notes(results):
        show(note)
    show(f"Written to {plan.out}: results.json, table.md, plot.png")


REPORT_EPILOG = """Examples:

  rifflemix report runs --out report

  rifflemix report runs/gpu/rows runs/csp-image/results.json --out report
"""


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="Folders, including subfolders, or results.json files.")
    ],
    out: Annotated[Path, Option("Folder for report.md and report.html.", metavar="PATH")],
    json: Json = False,
) -> None:
    """Write a page of all results of `rifflemix reproduce`: reported and reproduced values."""
    from rifflemix.files import make_folder, write_bytes
    from rifflemix.lab.reproduction import load_results
    from rifflemix.lab.reproduction.page import report_files
    from rifflemix.lab.reproduction.tables import report_entries
    from rifflemix.lab.runs.folder import check_folder

    check_folder(out)
    found = load_results(paths)
    make_folder(out)
    for name, content in report_files(found, out).items():
        write_bytes(out / name, content)
    if json:
        print_json(report_entries(found))
    else:
        show(f"{len(found)} results written to {out}: report.md, report.html")
        if not found:
            show("the report shows results of reproduce; compare and sweep write their own pages")
