"""rifflemix compare --suite: one comparison per task of a suite, and one page for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rifflemix.cli.options import compare_config, parse_mixers, parse_names, parse_seeds
from rifflemix.cli.output import DataProgress, print_json, progress_console, show, tell
from rifflemix.cli.workers import (
    compare_forecasts,
    has_gpus,
    kept_options,
    run_with_live_table,
    show_forecasts,
    tell_rest,
    thread_default,
    train_with_workers,
    worker_count,
)
from rifflemix.errors import bad_argument
from rifflemix.lab.report.live import plain, text_table
from rifflemix.lab.runs.options import RunOptions, WorkerOptions

if TYPE_CHECKING:
    from rifflemix.lab.comparison import ComparePlan, Results, SuitePlan
    from rifflemix.lab.comparison.suites.report import SuiteReport, SuiteResults
    from rifflemix.lab.runs.status import RunStatus

_OWN = ("model", "task_option", "data", "input", "label")
"""Options of `compare` that a suite sets for each task or does not use."""


def compare_suite(
    suite: str,
    tasks: str | None,
    out: Path,
    mixers: str | None,
    seeds: str | None,
    stop_early: bool,
    run: RunOptions,
    pool: WorkerOptions,
    others: Mapping[str, Any],
    json: bool,
) -> None:
    """Run all comparisons of a suite, or continue them.

    Args:
        suite: name of the suite.
        tasks: value of --tasks.
        out: results folder.
        mixers: value of --mixers.
        seeds: value of --seeds.
        stop_early: stop the worse half of several learning rates early.
        run: further options. They win over the settings of the suite.
        pool: workers that share the runs.
        others: name -> value of options that a suite does not support.
        json: print JSON.

    Raises:
        InputError: an unknown name, an unsupported option, or an error of `plan_suite`.
    """
    from rifflemix.lab.comparison import (
        collect_comparison,
        get_suite,
        measure_apart,
        open_suite,
        plan_suite,
        run_suite,
    )
    from rifflemix.lab.comparison.choices import chosen_mixers, chosen_seeds
    from rifflemix.lab.runs.environment import gpus_elsewhere
    from rifflemix.lab.runs.options import is_main_process

    chosen = get_suite(suite)
    run = replace(run, threads=thread_default(pool, run.threads, out))
    _check_others({**others, **{name: getattr(run, name) for name in _OWN}}, suite)
    typed = chosen.mixers if mixers is None else parse_mixers(mixers)
    numbers = chosen_seeds(chosen.seeds) if seeds is None else parse_seeds(seeds)
    early = {"stop_early": True} if stop_early else {}
    with gpus_elsewhere(has_gpus(pool)):
        configs = {
            name: compare_config(
                task.task,
                chosen_mixers(typed, task.task)[0],
                numbers,
                run,
                {**chosen.settings(task), **early},
            )
            for name, task in chosen.chosen(tasks and parse_names(tasks, "--tasks")).items()
        }
    with DataProgress(progress_console()) as progress:
        plan = plan_suite(chosen, configs, out, data_dir=run.data_dir, progress=progress)
    plans = list(plan.plans.values())
    if pool.dry_run:
        show_forecasts(compare_forecasts(plans, pool), worker_count(pool), as_json=json)
        return
    if pool.shard is None:
        _print_estimate(plan)
    stopped: list[bool] = []

    def run_one(one: ComparePlan) -> Results:
        place = f"{list(plan.plans).index(one.out.name) + 1} of {len(plan.plans)}"
        tell(progress_console(), f"{one.out.name}, task {place}")
        if shared is not None:
            if not shared and pool.slurm is None:
                measure_apart(one)
            return collect_comparison(one)
        results, is_stopped = run_with_live_table(one, run, pool)
        stopped.append(is_stopped)
        return results

    threads = max(one.config.threads or 1 for one in plans)
    open_suite(plan)
    kept = kept_options(run)
    shared = train_with_workers(out, plans, pool, threads, run.data_dir, kept)
    stopped.append(bool(shared))
    results, report = run_suite(plan, run_one, should_stop=lambda: any(stopped))
    if is_main_process():
        show_suite(results, report, plan.out, json)
    for table in report.tables.values():
        table.results.check_any_finished()
    tell_rest(pool, results.status, is_stopped=any(stopped))


def _print_estimate(plan: SuitePlan) -> None:
    from rifflemix.lab.comparison.estimate import suite_seconds
    from rifflemix.lab.report.units import format_duration
    from rifflemix.lab.runs.options import is_one_of_many

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


def show_suite(results: SuiteResults, report: SuiteReport, out: Path, as_json: bool) -> None:
    """Print the ranks, scores and answers of a suite, or results.json."""
    from rifflemix.json_values import encode

    if as_json:
        print_json(encode(results))
    else:
        for part in report.parts[:2]:
            cells = ((plain(c.text, is_bold=c.best) for c in row) for row in part.rows)
            show(text_table(part.headers, cells, title=part.heading))
        for sentence in report.answers:
            show(sentence)
        show(f"Written to {out}: results.json, table.md, report.html, a folder for each task")
    if results.status != "complete":
        done = sum(task.status == "complete" for task in results.tasks.values())
        tell(
            progress_console(),
            f"Partial results: {done} of {len(results.tasks_planned)} tasks are done; run the same "
            "command to continue.",
        )
