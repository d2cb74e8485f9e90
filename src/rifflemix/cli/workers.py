"""Worker processes and live tables of a command, with Ctrl-C."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rifflemix.cli.interrupt import EXIT_INTERRUPTED, StopRequest
from rifflemix.cli.options import parse_names, parse_shard
from rifflemix.cli.output import progress_console, tell
from rifflemix.errors import bad_argument
from rifflemix.lab.runs.options import RunOptions, WorkerOptions, check_options

if TYPE_CHECKING:
    from rifflemix.lab.comparison import ComparePlan, Results
    from rifflemix.lab.experiments import Cluster, Experiment, PlannedRun, Shard, Workers


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
    from rifflemix.lab.runs.processes import is_main_process

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
    from rifflemix.lab.runs.processes import is_one_of_many

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
    from rifflemix.lab.runs.processes import is_main_process

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
