"""`rm.compare`: a comparison from Python, and what it gives back."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rifflemix.errors import InputError, RunFailed, bad_argument, check_choice, require_packages
from rifflemix.files import read_json, user_path
from rifflemix.lab.comparison.choices import (
    check_settings,
    chosen_mixers,
    chosen_seeds,
    resolve,
)
from rifflemix.lab.comparison.config import FORMAT
from rifflemix.lab.comparison.files import write_comparison_files
from rifflemix.lab.comparison.notes import comparison_notes, done_so_far
from rifflemix.lab.comparison.page import html_fragment
from rifflemix.lab.comparison.plan import RESULTS_FILE, RUNS_ARE_KEPT, ComparePlan, plan_comparison
from rifflemix.lab.comparison.results import title_of
from rifflemix.lab.comparison.run import run_comparison
from rifflemix.lab.comparison.stored import check_results, check_seals
from rifflemix.lab.comparison.table import comparison_rows, markdown_body
from rifflemix.lab.runs.processes import is_main_process, is_one_of_many
from rifflemix.lab.runs.trackers import check_tracker
from rifflemix.lab.tasks import Task, card_of, load_task, task_card

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rifflemix.lab.runs.status import OnStatus

_KINDS = ("run", "mixer", "trial")


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison; a notebook shows it as table, notes and plot.

    Attributes:
        results: what results.json holds.
        folder: where it is; None where it was made in a folder that is gone.
    """

    results: Mapping[str, Any]
    folder: Path | None = None

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """The comparison that `rm.compare(..., out=folder)` or the command left in a folder.

        Raises:
            InputError: no results of a comparison there, or damaged ones.
        """
        path = user_path("folder", folder) / RESULTS_FILE
        if not path.is_file():
            raise bad_argument("folder", f"one with {RESULTS_FILE} of a comparison", str(folder))
        results = read_json(path, RUNS_ARE_KEPT)
        if not isinstance(results, dict) or results.get("format") != FORMAT:
            raise bad_argument("folder", "results of a comparison", f"those of {path}")
        try:
            check_results(results)
            check_seals(results)
            comparison_rows(results)
            comparison_notes(results)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{path} is damaged: {reason}; {RUNS_ARE_KEPT}") from error
        return cls(results, path.parent)

    def to_frame(self, per: str = "mixer") -> Any:
        """The numbers as a pandas.DataFrame.

        Args:
            per: "mixer" for a row a mixer, with the mean and standard deviation over seeds of the
                metric that chose the weights; "run" for a row a run, with all its metrics;
                "trial" for a row a trial of tuning, with those of the validation split.

        Raises:
            InputError: pandas is not installed, or another `per`.
        """
        check_choice("per", per, _KINDS)
        try:
            import pandas
        except ImportError:
            raise InputError(
                "to_frame needs pandas, which is not installed; pip install pandas"
            ) from None
        rows = {"mixer": self._mixers, "run": self._runs, "trial": self._trials}
        return pandas.DataFrame(rows[per]())

    def plot(self) -> Figure:
        """Score against training speed, disk area is memory: a figure of matplotlib."""
        require_packages("a plot", "compare", "matplotlib")
        from rifflemix.lab.comparison.plot import comparison_figure

        return comparison_figure(self.results)

    def __str__(self) -> str:
        """The table with its notes, in Markdown."""
        return markdown_body(self.results, comparison_notes(self.results))

    def __repr__(self) -> str:
        names = ", ".join(mixer["name"] for mixer in self.results["mixers"])
        return f"Comparison({self.results['task']['name']}: {names}; {done_so_far(self.results)})"

    def _repr_html_(self) -> str:
        return html_fragment(self.results, comparison_notes(self.results))

    def _mixers(self) -> list[dict[str, Any]]:
        rows = []
        for row in comparison_rows(self.results):
            entry: dict[str, Any] = {"mixer": row.name, "title": row.title}
            for split in ("test", "validation"):
                score = getattr(row, split)
                entry[f"{split}_{row.metric}"] = None if score is None else score.mean
                entry[f"{split}_{row.metric}_std"] = None if score is None else score.std
            entry |= {
                "seeds": 0 if row.test is None else row.test.n,
                "steps_per_second": row.steps_per_second,
                "peak_memory_bytes": row.peak_memory_bytes,
                "parameters": row.parameters,
                "complexity": row.complexity,
            }
            if row.tuned is not None:
                entry |= {"tuned": row.tuned, "tuning_seconds": row.tuning_seconds}
            rows.append(entry)
        return rows

    def _runs(self) -> list[dict[str, Any]]:
        return [_run_row(run, ("validation", "test")) for run in self.results["runs"]]

    def _trials(self) -> list[dict[str, Any]]:
        trials = self.results.get("tuning", {"trials": []})["trials"]
        return [run["settings"] | _run_row(run, ("validation",)) for run in trials]


def _run_row(run: Mapping[str, Any], splits: Iterable[str]) -> dict[str, Any]:
    kept = ("mixer", "seed", "steps", "best_step", "parameters", "steps_per_second",
            "wall_seconds")  # fmt: skip
    return {name: run[name] for name in kept} | {
        f"{split}_{metric}": value
        for split in splits
        for metric, value in run[split].items()
        if metric != "step"
    }


def compare(
    task: str | Task,
    mixers: str | Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    on_status: OnStatus | None = None,
    tracker: str | None = None,
    keep_weights: bool = False,
    **settings: Any,
) -> Comparison:
    """Train every mixer on the same backbone, data, budget and seeds; the command `compare`.

    Args:
        task: registry name, or a loaded `Task`, such as `Task.from_arrays` makes.
        mixers: names and classes of mixers; or a mapping from labels to names, classes, or pairs
            of one and its options, `{"csp-4": ("csp", {"num_groups": 4}), "softmax": "softmax"}`.
            rifflemix registers a class that is not registered. None takes softmax and the mixers of
            the five papers, "all" every registered mixer; both leave out mixers that do not fit
            the task.
        seeds: number of seeds 0, 1, ..., or the seeds.
        out: results folder, new or to be continued, with results.json, table.md, plot.png and
            report.html; None keeps the results in memory only.
        data_dir: folder of data files of a task that is given by name.
        on_status: called with a `RunStatus` at every step. Without it a terminal shows a live
            table on stderr; elsewhere nothing is shown.
        tracker: "tensorboard" or "wandb": shows losses and evaluations of every run as it goes;
            needs `out`.
        keep_weights: also keep the weights of every evaluation, which `rifflemix.lab.analysis`
            shows over training; needs `out`.
        settings: max_steps, batch_size, lr, dim, num_layers, num_heads, model, device, precision,
            threads, task_options, mixer_options and train_options (further settings of
            `rifflemix.lab.train.TrainConfig`); by task where they are left out. Of several learning
            rates, `lr=[1e-3, 3e-3]`, every mixer tries each with every seed, and the validation
            split chooses.

    Raises:
        InputError: an unknown name or setting, a value out of range, missing or damaged data, or
            a folder of another run.
        RunFailed: every run diverged.
    """
    check_settings(settings)
    check_tracker(tracker)
    if tracker is not None and out is None:
        raise bad_argument("out", f"a results folder with tracker {tracker!r}", "None")
    if keep_weights and out is None:
        raise bad_argument("out", "a results folder with keep_weights", "None")
    if out is None and is_one_of_many():
        raise bad_argument("out", "a results folder, which all processes see", "None")
    loaded, card, is_own = _task(task, data_dir, settings)
    labels, options = chosen_mixers(mixers, card)
    options |= dict(settings.pop("mixer_options", {}))
    config = resolve(
        card, labels, chosen_seeds(seeds), is_own=is_own, mixer_options=options, **settings
    )
    if out is not None:
        return _compared(
            plan_comparison(config, user_path("out", out), task=loaded),
            on_status,
            tracker=tracker,
            keep_weights=keep_weights,
        )
    with tempfile.TemporaryDirectory(prefix="rifflemix-", ignore_cleanup_errors=True) as folder:
        plan = plan_comparison(config, Path(folder) / "compare", task=loaded)
        return _compared(plan, on_status, keep=False)


def check_any_finished(results: Mapping[str, Any]) -> None:
    """Raise RunFailed where every run failed."""
    if results["failed_runs"] and not results["runs"]:
        raise RunFailed(f"every run failed; the first: {results['failed_runs'][0]['error']}")


def _compared(
    plan: ComparePlan, on_status: OnStatus | None, *, keep: bool = True, **kept: Any
) -> Comparison:
    results = compare_plan(plan, on_status, **kept)
    if keep and is_main_process():
        write_comparison_files(plan.out, results)
    check_any_finished(results)
    return Comparison(results, plan.out if keep else None)


def compare_plan(
    plan: ComparePlan,
    on_status: OnStatus | None,
    *,
    tracker: str | None = None,
    keep_weights: bool = False,
) -> dict[str, Any]:
    """`run_comparison`, with a live table on a terminal where nobody else is told."""
    titles = {name: title_of(plan.config, name) for name in plan.config.mixers}
    live: Any = nullcontext()
    on_estimate = None
    if on_status is None and is_main_process() and sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console

        from rifflemix.lab.report.live import live_progress

        live = live_progress(Console(stderr=True, highlight=False), titles, plan.config.seeds)
        on_status, on_estimate = live.update, lambda estimate: live.note(str(estimate))
    with live:
        return run_comparison(
            plan,
            on_status=on_status,
            on_estimate=on_estimate,
            tracker=tracker,
            keep_weights=keep_weights,
        )


def _task(
    task: Any, data_dir: str | Path | None, settings: dict[str, Any]
) -> tuple[Task, Any, bool]:
    """The data, its card, and whether no registry has it."""
    if isinstance(task, str):
        options = dict(settings.get("task_options") or {})
        return load_task(task, data_dir=data_dir, **options), task_card(task), False
    if not isinstance(task, Task):
        raise bad_argument("task", "the name of a task, or a Task", repr(task))
    if data_dir is not None or "task_options" in settings:
        raise bad_argument("data_dir and task_options", "none beside a Task", "one of them")
    settings["task_options"] = dict(task.options)
    return task, card_of(task), task.card is not None
