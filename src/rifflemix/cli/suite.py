"""rifflemix compare --suite: a comparison for each task of a named list, and one page over all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import EXIT_INTERRUPTED
from rifflemix.cli.options import parse_mixers, parse_names, parse_seeds
from rifflemix.cli.output import print_json, progress_console, show, tell
from rifflemix.cli.settings import compare_config
from rifflemix.cli.shown import run_shown
from rifflemix.errors import bad_argument
from rifflemix.lab.report.terminal import plain, text_table
from rifflemix.lab.runs.options import RunOptions

if TYPE_CHECKING:
    from rifflemix.lab.comparison import ComparePlan, SuitePlan
    from rifflemix.lab.runs.status import RunStatus

_OWN = ("model", "task_option", "data", "input", "label")
"""Options of `compare` that a suite sets for each of its tasks, or has no use for."""


def compare_suite(
    suite: str,
    tasks: str | None,
    out: Path,
    mixers: str | None,
    seeds: str | None,
    run: RunOptions,
    others: Mapping[str, Any],
    json: bool,
) -> None:
    """Make all comparisons of a suite, or go on with them.

    Args:
        suite: its name.
        tasks: as typed.
        out: results folder.
        mixers: as typed.
        seeds: as typed.
        run: further options, which win over the suite's settings.
        others: options that do not go with a suite, by name, as given.
        json: print JSON.

    Raises:
        InputError: an unknown name, an option that does not go with a suite, or as plan_suite.
    """
    from rifflemix.lab.comparison import check_any_finished, get_suite, plan_suite, run_suite
    from rifflemix.lab.comparison.choices import chosen_mixers, chosen_seeds
    from rifflemix.lab.runs.processes import is_main_process

    chosen = get_suite(suite)
    _check_others({**others, **{name: getattr(run, name) for name in _OWN}}, suite)
    typed = chosen.mixers if mixers is None else parse_mixers(mixers)
    numbers = chosen_seeds(chosen.seeds) if seeds is None else parse_seeds(seeds)
    configs = {
        name: compare_config(
            task.task, chosen_mixers(typed, task.task)[0], numbers, run, chosen.settings(task)
        )
        for name, task in chosen.chosen(tasks and parse_names(tasks, "--tasks")).items()
    }
    with DataProgress(progress_console()) as progress:
        plan = plan_suite(chosen, configs, out, data_dir=run.data_dir, progress=progress)
    _print_estimate(plan)
    finished: dict[str, Any] = {}

    stops: list[bool] = []

    def run_one(one: ComparePlan) -> dict[str, Any]:
        place = f"{list(plan.plans).index(one.out.name) + 1} of {len(plan.plans)}"
        tell(progress_console(), f"{one.out.name}, task {place}")
        results, is_stopped = run_shown(one, run)
        finished[one.out.name] = results
        stops.append(is_stopped)
        return results

    summary = run_suite(plan, run_one, should_stop=lambda: any(stops))
    if is_main_process():
        _tell(plan, summary, finished, json)
    for results in finished.values():
        check_any_finished(results)
    if summary["status"] != "complete":
        raise typer.Exit(EXIT_INTERRUPTED)


def _print_estimate(plan: SuitePlan) -> None:
    from rifflemix.lab.comparison.estimate import suite_seconds
    from rifflemix.lab.report.units import format_duration
    from rifflemix.lab.runs.processes import is_one_of_many

    if is_one_of_many():
        return
    console = progress_console()
    with DataProgress(console) as progress:

        def on_status(status: RunStatus) -> None:
            progress(f"estimating {status.mixer}", 0, None)

        seconds = suite_seconds(plan.plans.values(), on_status)
    console.print(
        f"{len(plan.plans)} tasks, runs and trials to make: {len(seconds):,}, about "
        f"{format_duration(sum(seconds))} in all (within a factor of 2 as a rule)",
        soft_wrap=True,
    )


def _check_others(given: Mapping[str, Any], suite: str) -> None:
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise bad_argument(option, f"none beside --suite {suite}", str(value))


def _tell(
    plan: SuitePlan, summary: Mapping[str, Any], finished: Mapping[str, Any], as_json: bool
) -> None:
    show_suite(summary, finished, plan.out, as_json)
    if summary["status"] != "complete":
        done = sum(task["status"] == "complete" for task in summary["tasks"].values())
        tell(
            progress_console(),
            f"Partial results: {done} of {len(plan.plans)} tasks are done; run the same command "
            "to continue.",
        )


def show_suite(
    summary: Mapping[str, Any], finished: Mapping[str, Any], out: Path, as_json: bool
) -> None:
    """Print a suite: its ranks, its accuracies, its answers; or results.json."""
    from rifflemix.lab.comparison.suite_report import parts

    if as_json:
        print_json(dict(summary))
        return
    for part in parts(finished)[:2]:
        cells = ((plain(c.text, is_bold=c.best) for c in row) for row in part.rows)
        show(text_table(part.headers, cells, title=part.heading))
    for sentence in summary["answers"]:
        show(sentence)
    show(f"Written to {out}: results.json, table.md, report.html, a folder for each task")
