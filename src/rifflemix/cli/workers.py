"""Workers of a command, and estimated costs: --dry-run, and rifflemix list recipes --cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rifflemix.cli.options import parse_names, parse_shard, parse_threads
from rifflemix.cli.output import (
    DataProgress,
    StopRequest,
    plain_table,
    print_json,
    progress_console,
    show,
    tell,
)
from rifflemix.errors import EXIT_INTERRUPTED, bad_argument, check_choice
from rifflemix.lab.runs.options import RunOptions, WorkerOptions, check_options

if TYPE_CHECKING:
    from rifflemix.lab.comparison import ComparePlan, Results
    from rifflemix.lab.experiments import Cluster, Experiment, PlannedRun, Shard, Workers
    from rifflemix.lab.recipes import Recipe
    from rifflemix.lab.runs.status import RunStatus


def run_with_live_table(
    plan: ComparePlan, options: RunOptions, pool: WorkerOptions
) -> tuple[Results, bool]:
    """Run a comparison with a live table.

    Args:
        plan: the comparison.
        options: options of the command.
        pool: options of the command for several processes.

    Returns:
        The results, and whether Ctrl-C was pressed, also after the last run.
    """
    from rifflemix.lab.comparison import run_comparison, title_of
    from rifflemix.lab.experiments import Role
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.runs.options import is_main_process

    titles = {name: title_of(plan.config, name) for name in plan.config.mixers}
    live = live_progress(progress_console(), titles, plan.config.seeds)

    with live, StopRequest(live.note) as stop:
        results = run_comparison(
            plan,
            on_status=live.update if is_main_process() else None,
            on_estimate=lambda estimate: live.note(str(estimate)),
            should_stop=stop,
            tracker=options.tracker,
            keep_weights=options.keep_weights,
            role=Role(shard=shard_of(pool)),
        )
        return results, stop()


def check_workers(options: WorkerOptions) -> None:
    """Raise InputError unless the options fit together and to this process."""
    from rifflemix.lab.runs.options import is_one_of_many

    check_options(options)
    if options.slurm is not None and (options.workers or options.devices):
        raise bad_argument("--slurm", "none next to --workers and --devices", options.slurm)
    shard_of(options)
    worker_devices(options)
    if is_one_of_many() and worker_count(options):
        raise bad_argument("--workers", "none under torchrun", options.workers)


def shard_of(options: WorkerOptions) -> Shard:
    """Return the part of the runs that this command makes."""
    from rifflemix.lab.experiments import Shard

    return Shard() if options.shard is None else Shard(*parse_shard(options.shard))


def tell_rest(options: WorkerOptions, status: str, *, is_stopped: bool) -> None:
    """Say that other shards have runs left, or end the command if it was stopped.

    Raises:
        Exit: the command was stopped.
    """
    if status == "complete":
        return
    if is_stopped or options.shard is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    tell(progress_console(), f"shard {options.shard} is finished; other runs are left")


def thread_default(options: WorkerOptions, threads: int | None, out: Path) -> int | None:
    """Return the number of threads, by default one for each of several workers in a new folder."""
    from rifflemix.lab.runs.environment import stored_threads

    if threads is not None or not worker_count(options):
        return threads
    return stored_threads(out) or 1


def kept_options(run: RunOptions) -> dict[str, Any]:
    """Return the options that change neither numbers nor settings, for the workers."""
    return {"tracker": run.tracker, "keep_weights": run.keep_weights}


def train_with_workers(
    out: Path,
    experiments: Sequence[Experiment],
    options: WorkerOptions,
    threads: int,
    data_dir: Path | None,
    kept: Mapping[str, Any],
    *,
    expected: Callable[[PlannedRun], float | None] = lambda run: None,
    time_is_up: Callable[[], bool] = lambda: False,
) -> bool | None:
    """Run experiments with the requested workers, if any.

    Args:
        out: folder of the command.
        experiments: the experiments in it, each with a folder of its own.
        options: the options.
        threads: CPU threads of each worker.
        data_dir: folder of the data files.
        kept: further options that workers need.
        expected: estimates the seconds of a run.
        time_is_up: polled several times per second; True stops the workers.

    Returns:
        Whether Ctrl-C stopped the workers; None if no workers were requested.
    """
    from rifflemix.lab.experiments import Payload, share_runs, write_launch
    from rifflemix.lab.report.live import workers_display
    from rifflemix.lab.runs.options import is_main_process

    if is_main_process():
        folders = [e.out.relative_to(out).as_posix() for e in experiments if e.out != out]
        write_launch(out, data_dir, kept, folders)
    workers = _workers(options, threads)
    if workers is None:
        return None
    with workers_display(progress_console()) as display, StopRequest(display.note) as stop:
        share_runs(
            out,
            experiments,
            workers,
            display,
            payload=Payload(shard=shard_of(options)),
            expected=expected,
            should_stop=lambda: stop() or time_is_up(),
        )
        return stop()


def _workers(options: WorkerOptions, threads: int) -> Workers | Cluster | None:
    from rifflemix.lab.experiments import Workers, read_cluster

    if options.slurm is not None:
        return replace(read_cluster(options.slurm), threads=threads)
    count = worker_count(options)
    return Workers(count, threads, worker_devices(options)) if count else None


def has_gpus(options: WorkerOptions) -> bool:
    """Check whether the runs use GPUs of other machines."""
    from rifflemix.lab.experiments import read_cluster

    return options.slurm is not None and read_cluster(options.slurm).has_gpus


def worker_count(options: WorkerOptions) -> int:
    """Return the number of workers; 0 trains in this process."""
    from rifflemix.lab.experiments import read_cluster

    if options.slurm is not None:
        return read_cluster(options.slurm).count
    if options.workers is not None:
        return options.workers
    return 0 if options.devices is None else len(parse_names(options.devices, "--devices"))


def worker_devices(options: WorkerOptions) -> tuple[str, ...]:
    """Return the GPUs as names for CUDA_VISIBLE_DEVICES, which numbers them from 0."""
    if options.devices is None:
        return ()
    import torch

    count = torch.cuda.device_count()
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    here = (visible or [str(index) for index in range(count)])[:count]
    numbers = parse_names(options.devices, "--devices")
    if not here:
        raise bad_argument("--devices", "a GPU on this machine", "none", "leave the option out")
    for number in numbers:
        if not number.isdecimal() or int(number) >= len(here):
            raise bad_argument("--devices", f"GPUs from 0 to {len(here) - 1}", number)
    return tuple(here[int(number)] for number in numbers)


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
