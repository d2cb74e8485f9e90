"""A suite: several comparisons with the same mixers, one folder each, and one page over all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import check_same_settings, user_path, write_bytes, write_json
from rifflemix.lab.comparison.api import Comparison, check_any_finished, compare_plan
from rifflemix.lab.comparison.choices import check_settings, chosen_mixers, chosen_seeds, resolve
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.comparison.files import write_comparison_files
from rifflemix.lab.comparison.plan import RESULTS_FILE, ComparePlan, plan_comparison
from rifflemix.lab.comparison.suite_report import answers, html, markdown, overall
from rifflemix.lab.comparison.suites import Suite, get_suite
from rifflemix.lab.experiments import held_folder
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.processes import is_main_process
from rifflemix.lab.runs.status import OnStatus, ShouldStop, never
from rifflemix.lab.tasks import Progress, Task, load_task, task_card, task_status

FORMAT = "rifflemix.suite/1"
OF_THE_SUITE = ("model", "task_options")
"""Settings of `rifflemix.compare` that a suite sets for each of its tasks."""

Results = Mapping[str, Any]


@dataclass(frozen=True)
class SuitePlan:
    """A suite that has passed all checks and can start.

    Attributes:
        suite: the suite.
        plans: task -> its comparison.
        out: the folder above theirs; not made yet where this is the first start.
    """

    suite: Suite
    plans: Mapping[str, ComparePlan]
    out: Path


@dataclass(frozen=True)
class SuiteComparison:
    """The results of a suite.

    Attributes:
        results: what its results.json holds.
        comparisons: task -> the comparison.
        folder: where they are.
    """

    results: Results
    comparisons: Mapping[str, Comparison]
    folder: Path

    def __str__(self) -> str:
        """The page in Markdown."""
        return markdown(self.results["title"], _results(self.comparisons))

    def __repr__(self) -> str:
        return f"SuiteComparison({self.results['suite']}: {', '.join(self.comparisons)})"


def compare_suite(
    suite: str,
    mixers: str | Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    tasks: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    data_dir: str | Path | None = None,
    on_status: OnStatus | None = None,
    **settings: Any,
) -> SuiteComparison:
    """Compare mixers on every task of a suite; the command `compare --suite`.

    Args:
        suite: "lra-small" or "lra-small-smoke".
        mixers: as `rifflemix.compare` takes them; None takes the suite's.
        out: folder, new or to be continued, with a folder for each task, and results.json, table.md
            and report.html over all.
        tasks: of the suite, all if None.
        seeds: number of seeds 0, 1, ..., or the seeds; the suite's if None.
        data_dir: folder of the data files.
        on_status: as in `rifflemix.compare`.
        settings: of `rifflemix.compare`, for every task alike, in place of the suite's.

    Raises:
        InputError: an unknown name or setting, a value out of range, tasks without data, a mixer
            that a task cannot take, or a folder of another run; before anything is trained.
        RunFailed: every run of a task diverged.
    """
    chosen = get_suite(suite)
    check_settings(settings)
    for name in OF_THE_SUITE:
        if name in settings:
            raise bad_argument(name, "none beside a suite, which has its own", repr(settings[name]))
    own_options = dict(settings.pop("mixer_options", {}))
    numbers = chosen_seeds(chosen.seeds if seeds is None else seeds)
    configs = {}
    for name, task in chosen.chosen(tasks).items():
        card = task_card(task.task)
        labels, options = chosen_mixers(chosen.mixers if mixers is None else mixers, card)
        every = {**chosen.settings(task), **settings}
        configs[name] = resolve(card, labels, numbers, mixer_options=options | own_options, **every)
    folder = None if data_dir is None else user_path("data_dir", data_dir)
    plan = plan_suite(chosen, configs, user_path("out", out), data_dir=folder)
    results = run_suite(plan, lambda one: compare_plan(one, on_status))
    comparisons = {name: Comparison.load(one.out) for name, one in plan.plans.items()}
    for comparison in comparisons.values():
        check_any_finished(comparison.results)
    return SuiteComparison(results, comparisons, plan.out)


def plan_suite(
    suite: Suite,
    configs: Mapping[str, CompareConfig],
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> SuitePlan:
    """Check everything; write nothing.

    Args:
        suite: the suite.
        configs: task -> the comparison.
        out: folder above all of theirs.
        data_dir: folder of the tasks' data files.
        progress: called with the progress of loading data.

    Raises:
        InputError: as `compare_suite`.
    """
    check_folder(out)
    check_same_settings(out, _settings(suite))
    tasks = _load_tasks(suite, configs, data_dir, progress)
    plans = {}
    for name, config in configs.items():
        try:
            plans[name] = plan_comparison(config, out / name, task=tasks[name])
        except InputError as error:
            raise InputError(f"{suite.name}, {name}: {error}") from error
    return SuitePlan(suite, plans, out)


def _load_tasks(
    suite: Suite,
    configs: Mapping[str, CompareConfig],
    data_dir: Path | None,
    progress: Progress | None,
) -> dict[str, Task]:
    """The data of every task; what is missing is told before images are drawn for minutes."""
    status = {name: task_status(config.task, data_dir) for name, config in configs.items()}
    tasks: dict[str, Task] = {}
    missing: dict[str, str] = {}
    for name in sorted(configs, key=lambda name: status[name].available):
        if missing and status[name].available:
            break
        try:
            tasks[name] = load_task(
                configs[name].task,
                data_dir=data_dir,
                progress=progress,
                **configs[name].task_options,
            )
        except InputError:
            if status[name].available:
                raise
            missing[name] = status[name].detail
    if missing:
        raise InputError(_without_data(suite, configs, missing))
    return tasks


def _without_data(suite: Suite, configs: Mapping[str, Any], missing: Mapping[str, str]) -> str:
    found = ",".join(name for name in configs if name not in missing)
    others = f", or leave them out with --tasks {found}" if found else ""
    told = "; ".join(f"{name} ({detail})" for name, detail in missing.items())
    return f"suite {suite.name} finds no data for {told}: choose a --data-dir that has it{others}"


def run_suite(
    plan: SuitePlan,
    run: Callable[[ComparePlan], Results],
    *,
    should_stop: ShouldStop = never,
) -> dict[str, Any]:
    """Make the comparisons one after the other; the page is written anew after each.

    Args:
        plan: a checked suite.
        run: makes one comparison, from where it was left. Where its results are "partial", because
            it was stopped, the suite stops too.
        should_stop: polled after each comparison.

    Returns:
        What results.json of the suite holds.

    Raises:
        InputError: a folder cannot be written or is in use.
    """
    done: dict[str, Results] = {}
    summary: dict[str, Any] = {}
    if is_main_process():
        with held_folder(plan.out, _settings(plan.suite)):
            pass  # the folder names the suite before the first hour is spent
    for name, one in plan.plans.items():
        done[name] = run(one)
        summary = suite_summary(plan.suite, list(plan.plans), done)
        if is_main_process():
            write_comparison_files(one.out, done[name])
            with held_folder(plan.out, _settings(plan.suite)):
                write_suite_files(plan.out, summary, done)
        if done[name]["status"] != "complete" or should_stop():
            break
    return summary


def _settings(suite: Suite) -> dict[str, Any]:
    return {"format": FORMAT, "suite": suite.name}


def _results(comparisons: Mapping[str, Comparison]) -> dict[str, Results]:
    return {name: comparison.results for name, comparison in comparisons.items()}


def suite_summary(
    suite: Suite, planned: Sequence[str], done: Mapping[str, Results]
) -> dict[str, Any]:
    """What results.json of a suite holds.

    Args:
        suite: the suite.
        planned: the tasks that are to be made.
        done: task -> the results of its comparison, of those that were begun.
    """
    here = environment()
    is_whole = len(done) == len(planned)
    is_whole = is_whole and all(of["status"] == "complete" for of in done.values())
    return {
        **_settings(suite),
        "title": suite.title,
        "status": "complete" if is_whole else "partial",
        "command": here["command"],
        "environment": here,
        "tasks_planned": list(planned),
        "tasks": {
            name: {
                "results": f"{name}/{RESULTS_FILE}",
                **{key: of[key] for key in ("status", "runs_done", "runs_planned", "wall_seconds")},
            }
            for name, of in done.items()
        },
        "answers": answers(done),
        "mixers": [
            asdict(mixer) | {"ahead": list(mixer.ahead), "behind": list(mixer.behind)}
            for mixer in overall(done)
        ],
    }


def write_suite_files(out: Path, summary: Results, done: Mapping[str, Results]) -> None:
    """results.json, table.md and report.html of a suite, into its folder, which is held."""
    title = summary["title"]
    write_json(out / RESULTS_FILE, summary)
    write_bytes(out / "table.md", markdown(title, done).encode())
    page = html(f"rifflemix compare: {title}", summary["command"], done)
    write_bytes(out / "report.html", page.encode())
