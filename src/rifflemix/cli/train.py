"""rifflemix train: train one mixer on one task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import EXIT_INTERRUPTED, StopRequest
from rifflemix.cli.options import compare_config
from rifflemix.cli.output import plain_table, print_json, progress_console, show, tell
from rifflemix.cli.workers import kept_options
from rifflemix.errors import bad_argument
from rifflemix.lab.runs.options import Json, Option, Out, RunOptions, Seed, Task
from rifflemix.lab.runs.processes import is_main_process

if TYPE_CHECKING:
    from rifflemix.lab.comparison import CompareConfig
    from rifflemix.lab.comparison.single import SingleResults

EPILOG = """Examples:

  rifflemix train --task digits --mixer tssa --out runs/tssa

  rifflemix train --task digits --task-option patch_size=2 --mixer csp --seed 7 --out runs/csp

Ctrl-C stops after the current step; the same command continues from there.
"""


def train(
    *,
    task: Task,
    mixer: Annotated[str, Option("Mixer; see `rifflemix list mixers`.")],
    out: Out,
    seed: Seed = 0,
    run: RunOptions,
    json: Json = False,
) -> None:
    """Train one mixer on one task. The same command resumes the run in --out."""
    from rifflemix.lab.decode import encode

    config = compare_config(task, {mixer: mixer}, (seed,), run)
    if config.tuned:
        raise bad_argument("--lr", "one number", run.lr, "compare tries several")
    results = _run(config, out, run)
    if is_main_process():
        if json:
            print_json(encode(results))
        else:
            _show(config, out, results)
    if not results.result.finished:
        tell(progress_console(), "stopped; run the same command to continue")
        raise typer.Exit(EXIT_INTERRUPTED)


def _run(config: CompareConfig, out: Path, options: RunOptions) -> SingleResults:
    from rifflemix.lab.comparison import plan_single, train_single
    from rifflemix.lab.experiments import write_launch
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.runs.status import check_tracker
    from rifflemix.mixers import mixer_card

    check_tracker(options.tracker)
    console = progress_console()
    with DataProgress(console) as progress:
        plan = plan_single(config, out, data_dir=options.data_dir, progress=progress)
    if is_main_process():
        write_launch(out, options.data_dir, kept_options(options))
    mixer = config.mixers[0]
    live = live_progress(console, {mixer: mixer_card(mixer).title}, config.seeds)
    with live, StopRequest(live.note) as stop:
        return train_single(
            plan,
            on_status=live.update,
            should_stop=stop,
            tracker=options.tracker,
            keep_weights=options.keep_weights,
        )


def _show(config: CompareConfig, out: Path, results: SingleResults) -> None:
    from rifflemix.lab.report.units import format_bytes, format_duration, format_metric, format_rate

    result, metric = results.result, results.protocol.metric
    rows = [("steps", f"{result.step} of {result.max_steps}")]
    if result.best_value is not None:
        best = format_metric(metric, result.best_value)
        words = metric.replace("_", " ")
        rows.append((f"best validation {words}", f"{best} at step {result.best_step}"))
    rows += [
        (f"test {name.replace('_', ' ')}", format_metric(name, value))
        for name, value in (result.test or {}).items()
        if name != "loss"
    ]
    if result.steps_per_second is not None:
        rows.append(("steps/s", format_rate(result.steps_per_second)))
    if results.peak_memory_bytes is not None:
        rows.append(("peak memory", format_bytes(results.peak_memory_bytes)))
    rows += [
        ("parameters", f"{result.parameters:,}"),
        ("wall time", format_duration(results.wall_seconds)),
        ("written to", str(out)),
    ]
    show(plain_table((config.mixers[0], config.task), rows))
