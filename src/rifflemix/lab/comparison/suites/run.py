"""Run a suite: several comparisons with the same mixers, and one page for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import check_same_settings, read_json, user_path, write_bytes, write_json
from rifflemix.json_values import decode, encode
from rifflemix.lab.comparison.api import Comparison, compare_plan
from rifflemix.lab.comparison.choices import check_settings, chosen_mixers, chosen_seeds, resolve
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.comparison.pages.files import write_comparison_files
from rifflemix.lab.comparison.plan import RESULTS_FILE, RUNS_ARE_KEPT, ComparePlan, plan_comparison
from rifflemix.lab.comparison.records import Results
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.comparison.suites.catalog import Suite, get_suite
from rifflemix.lab.comparison.suites.report import SuiteReport, SuiteResults, TaskStatus
from rifflemix.lab.experiments import held_folder
from rifflemix.lab.runs.environment import this_environment
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.options import is_main_process
from rifflemix.lab.runs.status import OnStatus, ShouldStop, never
from rifflemix.lab.tasks import Progress, Task, load_task, task_card, task_status

FORMAT = "rifflemix.suite/1"
OF_THE_SUITE = ("model", "task_options")
"""Settings of `rifflemix.compare` that a suite sets for each of its tasks."""


@dataclass(frozen=True)
class SuitePlan:
    """A suite that has passed all checks and can start.

    Attributes:
        suite: the suite.
        plans: task -> comparison.
        out: folder of the suite; it does not exist before the first start.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import get_suite, plan_suite, resolve
        >>> suite = get_suite("mad-small")
        >>> task = suite.tasks["memorization"]
        >>> card = rm.tasks.task_card(task.task)
        >>> config = resolve(card, {"csp": "csp"}, [0], **suite.settings(task))
        >>> plan = plan_suite(suite, {"memorization": config}, Path("runs/mad"))
        >>> plan.suite.title, plan.out.exists()
        ('MAD, baseline settings with 20 epochs', False)
    """

    suite: Suite
    plans: Mapping[str, ComparePlan]
    out: Path


@dataclass(frozen=True)
class SuiteComparison:
    """The results of a suite.

    Attributes:
        record: the results.
        comparisons: task -> the comparison.
        folder: the results folder.

    Example:
        >>> import rifflemix as rm
        >>> result = rm.compare_suite(
        ...     "mad-small", ["csp"], tasks=["memorization"], out="runs/mad",
        ...     seeds=1, max_steps=2, lr=1e-3,
        ... )
        >>> [mixer.name for mixer in result.record.mixers], result.folder.as_posix()
        (['csp'], 'runs/mad')
    """

    record: SuiteResults
    comparisons: Mapping[str, Comparison]
    folder: Path

    @cached_property
    def results(self) -> dict[str, Any]:
        """The content of results.json as JSON values."""
        return encode(self.record)

    def __str__(self) -> str:
        """Write the page in Markdown."""
        return SuiteReport(self.tables).markdown(self.record.title)

    def __repr__(self) -> str:
        return f"SuiteComparison({self.record.suite}: {', '.join(self.comparisons)})"

    @property
    def tables(self) -> dict[str, Table]:
        """Task -> the table of its comparison."""
        return {name: comparison.table for name, comparison in self.comparisons.items()}


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
        suite: "lra-small", "lra-small-smoke", "recall-small", "mad-small", "recall" or "mad".
        mixers: mixers as in `rifflemix.compare`. None selects the mixers of the suite.
        out: folder, new or to be continued, with a folder for each task, and results.json, table.md
            and report.html over all.
        tasks: names of tasks of the suite. None selects all tasks.
        seeds: number of seeds 0, 1, ..., or the seeds; the suite's if None.
        data_dir: folder of the data files.
        on_status: as in `rifflemix.compare`.
        settings: settings of `rifflemix.compare` for every task. They replace settings of the
            suite.

    Returns:
        The comparison of each task, and the report over all tasks.

    Raises:
        InputError: an unknown name or setting, a value out of range, tasks without data, a mixer
            that a task cannot take, or a folder of another run; before anything is trained.
        RunFailed: every run of a task diverged.

    Example:
        >>> import rifflemix as rm
        >>> result = rm.compare_suite(
        ...     "mad-small", ["csp"], tasks=["memorization"], out="runs/mad",
        ...     seeds=1, max_steps=2, lr=1e-3,
        ... )
        >>> result.record.status, list(result.comparisons)
        ('complete', ['memorization'])
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
    results, _ = run_suite(plan, lambda one: compare_plan(one, on_status))
    comparisons = {name: Comparison.load(one.out) for name, one in plan.plans.items()}
    for comparison in comparisons.values():
        comparison.record.check_any_finished()
    return SuiteComparison(results, comparisons, plan.out)


def plan_suite(
    suite: Suite,
    configs: Mapping[str, CompareConfig],
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> SuitePlan:
    """Check everything without writing.

    Args:
        suite: the suite.
        configs: task -> the comparison.
        out: folder of the suite.
        data_dir: folder of the tasks' data files.
        progress: called with the progress of loading data.

    Returns:
        The plan of all comparisons.

    Raises:
        InputError: as `compare_suite`.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import get_suite, plan_suite, resolve
        >>> suite = get_suite("mad-small")
        >>> task = suite.tasks["memorization"]
        >>> card = rm.tasks.task_card(task.task)
        >>> config = resolve(card, {"csp": "csp"}, [0], **suite.settings(task))
        >>> list(plan_suite(suite, {"memorization": config}, Path("runs/mad")).plans)
        ['memorization']
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
    """Load the data of every task; report missing data before slow preparations start."""
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


def _without_data(suite: Suite, configs: Iterable[str], missing: Mapping[str, str]) -> str:
    found = ",".join(name for name in configs if name not in missing)
    others = f", or leave them out with --tasks {found}" if found else ""
    told = "; ".join(f"{name} ({detail})" for name, detail in missing.items())
    return f"suite {suite.name} finds no data for {told}: choose a --data-dir that has it{others}"


def open_suite(plan: SuitePlan) -> None:
    """Write config.json of the suite before the first training.

    Args:
        plan: plan of the suite.

    Raises:
        InputError: the folder contains something else or cannot be written.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import get_suite, open_suite, plan_suite, resolve
        >>> suite = get_suite("mad-small")
        >>> task = suite.tasks["memorization"]
        >>> card = rm.tasks.task_card(task.task)
        >>> config = resolve(card, {"csp": "csp"}, [0], **suite.settings(task))
        >>> open_suite(plan_suite(suite, {"memorization": config}, Path("runs/mad")))
        >>> Path("runs/mad/config.json").exists()
        True
    """
    if is_main_process():
        with held_folder(plan.out, _settings(plan.suite)):
            pass


def run_suite(
    plan: SuitePlan,
    run: Callable[[ComparePlan], Results],
    *,
    should_stop: ShouldStop = never,
) -> tuple[SuiteResults, SuiteReport]:
    """Run the comparisons one after the other. Write the page again after each.

    Args:
        plan: a checked suite.
        run: makes or continues a comparison.
        should_stop: polled after each comparison.

    Returns:
        The content of results.json, and the tables of the comparisons that were begun.

    Raises:
        InputError: a folder cannot be written or is in use.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import get_suite, plan_suite, resolve
        >>> from rifflemix.lab.comparison import run_comparison, run_suite
        >>> suite = get_suite("mad-small")
        >>> card = rm.tasks.task_card(suite.tasks["memorization"].task)
        >>> config = resolve(card, {"csp": "csp"}, [0], max_steps=2)
        >>> plan = plan_suite(suite, {"memorization": config}, Path("runs/mad"))
        >>> results, report = run_suite(plan, run_comparison)
        >>> results.status
        'complete'
    """
    open_suite(plan)
    tables: dict[str, Table] = {}
    for name, one in plan.plans.items():
        results = run(one)
        tables[name] = Table(results)
        report = SuiteReport(tables)
        summary = suite_results(plan.suite, list(plan.plans), report)
        if is_main_process():
            write_comparison_files(one.out, tables[name])
            with held_folder(plan.out, _settings(plan.suite)):
                write_suite_files(plan.out, summary, report)
        if should_stop():
            break
    return summary, report


def _settings(suite: Suite) -> dict[str, Any]:
    return {"format": FORMAT, "suite": suite.name}


def suite_results(suite: Suite, planned: Sequence[str], report: SuiteReport) -> SuiteResults:
    """Derive the results of a suite.

    Args:
        suite: the suite.
        planned: all tasks of the run.
        report: the comparisons that were begun.
    """
    here = this_environment()
    done = {name: table.results for name, table in report.tables.items()}
    is_whole = len(done) == len(planned) and all(one.is_complete for one in done.values())
    return SuiteResults(
        **_settings(suite),
        title=suite.title,
        status="complete" if is_whole else "partial",
        command=here.command,
        environment=here,
        tasks_planned=list(planned),
        tasks={
            name: TaskStatus(
                results=f"{name}/{RESULTS_FILE}",
                status=one.status,
                runs_done=one.runs_done,
                runs_planned=one.runs_planned,
                wall_seconds=one.wall_seconds,
            )
            for name, one in done.items()
        },
        answers=report.answers,
        mixers=report.mixers,
    )


def write_suite_files(out: Path, results: SuiteResults, report: SuiteReport) -> None:
    """Write results.json, table.md and report.html of a suite into its folder."""
    write_json(out / RESULTS_FILE, encode(results))
    write_bytes(out / "table.md", report.markdown(results.title).encode())
    page = report.html(f"rifflemix compare: {results.title}", results.command)
    write_bytes(out / "report.html", page.encode())


def read_suite(folder: Path) -> SuiteResults | None:
    """Read results.json of a suite; None if the folder has none.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / RESULTS_FILE
    value = read_json(path, RUNS_ARE_KEPT) if path.is_file() else None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    try:
        return decode(SuiteResults, value)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {RUNS_ARE_KEPT}") from error
