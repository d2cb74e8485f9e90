"""Estimated costs: --dry-run, and rifflemix list recipes --cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rifflemix.cli.data import DataProgress
from rifflemix.cli.options import parse_threads
from rifflemix.cli.output import plain_table, print_json, progress_console, show
from rifflemix.cli.workers import shard_of
from rifflemix.errors import check_choice
from rifflemix.lab.runs.options import WorkerOptions

if TYPE_CHECKING:
    from rifflemix.lab.comparison import ComparePlan
    from rifflemix.lab.recipes import Recipe
    from rifflemix.lab.runs.status import RunStatus


@dataclass(frozen=True)
class Forecast:
    """Estimated cost of a run that is not finished.

    Attributes:
        run: folder of the run.
        seconds: estimated time.
        memory_bytes: estimated peak memory of a training step.
    """

    run: str
    seconds: float
    memory_bytes: int


def compare_forecasts(plans: Iterable[ComparePlan], options: WorkerOptions) -> list[Forecast]:
    """Measure a few updates of every mixer of the comparisons."""
    from rifflemix.lab.comparison import training_memory
    from rifflemix.lab.comparison.estimate import estimate_comparison
    from rifflemix.lab.experiments import PlannedRun, RunStore
    from rifflemix.lab.runs.environment import using_threads
    from rifflemix.lab.runs.status import never

    found, shard = [], shard_of(options)
    with DataProgress(progress_console()) as progress:

        def on_status(status: RunStatus) -> None:
            progress(f"estimating {status.mixer}", 0, None)

        for plan in plans:
            config = plan.config
            with using_threads(config.threads):
                records = RunStore(plan).records()
                estimate = estimate_comparison(plan, records, on_status, never)
                memory = {name: training_memory(config, plan.task, name) for name in config.mixers}
            seconds = {} if estimate is None else estimate.seconds
            for (mixer, seed, trial), each in seconds.items():
                name = "/".join(filter(None, (mixer, trial, f"seed{seed}")))
                if shard.contains(plan, PlannedRun(name, mixer, seed)):
                    found.append(Forecast(str(plan.out / name), each, memory[mixer]))
    return found


def recipe_forecasts(
    recipes: Sequence[Recipe], runs: Sequence[str], device: str, threads: int
) -> list[Forecast]:
    """Count the work of recipes, and measure the speed of this machine for a second."""
    from rifflemix.lab.reproduction.cost import calibrate, recipe_costs
    from rifflemix.lab.runs.environment import using_threads

    with using_threads(threads), DataProgress(progress_console()) as progress:
        speed = calibrate(device)
        costs = recipe_costs(recipes, speed, lambda *done: progress("counting runs", *done))
        return [
            Forecast(run, cost["seconds"], cost["peak_bytes"])
            for run, cost in zip(runs, costs, strict=True)
        ]


def show_forecasts(forecasts: Sequence[Forecast], workers: int, *, as_json: bool) -> None:
    """Print every run, and the total for a number of workers."""
    from rifflemix.lab.report.units import format_bytes, format_duration

    seconds, workers = [each.seconds for each in forecasts], max(workers, 1)
    alone, shared = math.fsum(seconds), share_seconds(seconds, workers)
    if as_json:
        runs = [asdict(each) for each in forecasts]
        print_json({"runs": runs, "seconds": alone, "workers": workers, "wall_seconds": shared})
        return
    rows = [
        (each.run, format_duration(each.seconds), format_bytes(each.memory_bytes))
        for each in forecasts
    ]
    show(plain_table(("Run", "Time", "Memory"), rows))
    count = "1 run" if len(forecasts) == 1 else f"{len(forecasts)} runs"
    total = f"{count}: about {format_duration(alone)} with one worker"
    if workers > 1:
        total += f", about {format_duration(shared)} with {workers} workers"
    show(f"{total} (usually within a factor of 2). Nothing was trained.")


def share_seconds(seconds: Sequence[float], workers: int) -> float:
    """Return the time until the last of several workers ends; each takes the next run."""
    ends = [0.0] * workers
    for each in seconds:
        ends[ends.index(min(ends))] += each
    return max(ends)


SORTS = {
    "tokens": "tokens_in_all",
    "flops": "flops_in_all",
    "memory": "peak_bytes",
    "time": "seconds",
}
"""Value of `--sort` -> field to sort by."""


def show_costs(
    recipes: Sequence[Recipe], sort: str | None, device: str, threads: int | None, json: bool
) -> None:
    """Count the work of recipes, calibrate the machine, and print both as a table or JSON."""
    from rifflemix.lab.reproduction.cost import calibrate, recipe_costs
    from rifflemix.lab.runs.environment import check_device, resolve_device, using_threads

    if sort is not None:
        check_choice("--sort", sort, tuple(SORTS))
    device = resolve_device(device)
    check_device(device)
    with using_threads(parse_threads(threads)):
        speed = calibrate(device)
    with DataProgress(progress_console()) as progress:
        entries = list(
            recipe_costs(recipes, speed, lambda *done: progress("counting recipes", *done))
        )
    if sort is not None:
        entries.sort(key=lambda entry: entry[SORTS[sort]])
    if json:
        print_json(entries)
        return
    headers = ("Name", "Steps", "Tokens a step", "Tokens", "FLOPs", "Memory", "Step", "Time")
    show(plain_table(headers, map(_row, entries)))
    show(
        "The estimates cover training on an otherwise idle machine, without evaluations and "
        "data loading. FLOPs count matrix products, convolutions and attention, but no Fourier "
        "transforms (s4, s5, mega ...) and no sorts. Tokens of whole images are pixels."
    )


def _row(entry: dict[str, float]) -> tuple[str, ...]:
    from rifflemix.lab.report.units import format_bytes, format_count, format_duration, format_rate

    return (
        str(entry["name"]),
        format_count(int(entry["steps"])),
        format_count(int(entry["tokens"])),
        f"{entry['tokens_in_all']:.2g}",
        f"{entry['flops_in_all']:.2g}",
        format_bytes(entry["peak_bytes"]),
        f"{format_rate(entry['seconds_per_step'])} s",
        format_duration(entry["seconds"]),
    )
