"""`rm.compare`: a comparison from Python, and its results."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, check_choice, require_packages
from rifflemix.files import user_path
from rifflemix.json_values import encode
from rifflemix.lab.comparison.choices import check_settings, chosen_mixers, chosen_seeds, resolve
from rifflemix.lab.comparison.pages.files import html_fragment, write_comparison_files
from rifflemix.lab.comparison.pages.notes import comparison_notes, done_so_far
from rifflemix.lab.comparison.pages.table import markdown_body
from rifflemix.lab.comparison.pages.tuning import settings_text
from rifflemix.lab.comparison.plan import RESULTS_FILE, RUNS_ARE_KEPT, ComparePlan, plan_comparison
from rifflemix.lab.comparison.records import Results, RunEntry, read_results
from rifflemix.lab.comparison.results import title_of
from rifflemix.lab.comparison.rows import SPLITS, Table
from rifflemix.lab.comparison.run import run_comparison
from rifflemix.lab.comparison.sharing import live_console, share_comparison
from rifflemix.lab.runs.environment import stored_threads
from rifflemix.lab.runs.options import MOST_WORKERS, is_main_process, is_one_of_many
from rifflemix.lab.runs.status import check_tracker
from rifflemix.lab.tasks import Task, card_of, load_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rifflemix.lab.runs.status import OnStatus, RunStatus


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison; a notebook shows the table, the notes and the plot.

    Attributes:
        record: the results.
        folder: the results folder; None if the comparison was made in a temporary folder.

    Example:
        >>> import rifflemix as rm
        >>> done = rm.compare("digits", ["csp", "tssa"], max_steps=5, dim=16, out="runs/digits")
        >>> result = rm.Comparison.load("runs/digits")
        >>> result.to_frame()["mixer"].tolist()
        ['csp', 'tssa']
    """

    record: Results
    folder: Path | None = None

    @cached_property
    def table(self) -> Table:
        """Rows of the table, and the decisions between them."""
        return Table(self.record)

    @cached_property
    def results(self) -> dict[str, Any]:
        """The content of results.json as JSON values."""
        return encode(self.record)

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """Read the comparison in the folder of `rm.compare(..., out=folder)` or the command.

        Args:
            folder: results folder.

        Returns:
            The comparison.

        Raises:
            InputError: the folder has no results of a comparison, or they are damaged.
        """
        path = user_path("folder", folder) / RESULTS_FILE
        if not path.is_file():
            raise bad_argument("folder", f"one with {RESULTS_FILE} of a comparison", str(folder))
        record = read_results(path)
        try:
            found = cls(record, path.parent)
            comparison_notes(found.table)
        except LookupError as error:
            reason = f"it has no entry {error}"
            raise InputError(f"{path} is damaged: {reason}; {RUNS_ARE_KEPT}") from error
        return found

    def to_frame(self, per: str = "mixer") -> Any:
        """Return the numbers as a pandas.DataFrame.

        Args:
            per: "mixer" for a line per mixer, with the mean and standard deviation over seeds of
                the metric that chose the weights; "run" for a line per run, with all metrics;
                "trial" for a line per trial of tuning, with metrics of the validation split.

        Returns:
            A pandas.DataFrame.

        Raises:
            InputError: pandas is not installed, or `per` has another value.
        """
        lines = {"mixer": self._mixers, "run": self._runs, "trial": self._trials}
        check_choice("per", per, lines)
        try:
            import pandas
        except ImportError:
            raise InputError(
                "to_frame needs pandas, which is not installed; pip install pandas"
            ) from None
        return pandas.DataFrame(lines[per]())

    def plot(self, against: str = "speed") -> Figure:
        """Draw the test score.

        Args:
            against: "speed" (training speed; the disk area is the memory), "state" (numbers that a
                stream keeps per sequence) or "length" (test splits of other lengths).

        Returns:
            The figure of matplotlib.

        Raises:
            InputError: `against` is unknown, or the task has test sequences of one length only.
        """
        require_packages("a plot", "compare", "matplotlib", "scipy")
        from rifflemix.lab.comparison.pages.ability_plots import length_figure, state_figure
        from rifflemix.lab.comparison.pages.plot import comparison_figure
        from rifflemix.lab.comparison.pages.table import all_lengths

        draw = {"speed": comparison_figure, "state": state_figure, "length": length_figure}
        check_choice("against", against, draw)
        if against == "length" and not all_lengths(self.record):
            raise bad_argument("against", "speed or state for sequences of one length", "'length'")
        return draw[against](self.table)

    def __str__(self) -> str:
        """Write the table with its notes in Markdown."""
        return markdown_body(self.table, comparison_notes(self.table))

    def __repr__(self) -> str:
        names = ", ".join(row.name for row in self.table.rows)
        return f"Comparison({self.record.task.name}: {names}; {done_so_far(self.record)})"

    def _repr_html_(self) -> str:
        return html_fragment(self.table, comparison_notes(self.table))

    def _mixers(self) -> list[dict[str, Any]]:
        lines = []
        for row in self.table.rows:
            line: dict[str, Any] = {"mixer": row.name, "title": row.title}
            for split, score in zip(SPLITS, (row.test, row.validation), strict=True):
                line[f"{split}_{row.metric}"] = None if score is None else score.mean
                line[f"{split}_{row.metric}_std"] = None if score is None else score.std
            line |= {
                "solved": row.solved,
                "seeds": 0 if row.test is None else row.test.n,
                "steps_per_second": row.steps_per_second,
                "peak_memory_bytes": row.peak_memory_bytes,
                "parameters": row.parameters,
                "state_size": row.state_size,
                "complexity": row.complexity,
            }
            if row.is_tuned:
                tuned = settings_text(row.chosen or {})
                line |= {"tuned": tuned, "tuning_seconds": row.tuning_seconds}
            lines.append(line)
        return lines

    def _runs(self) -> list[dict[str, Any]]:
        return [_line(run, ("validation", "test")) for run in self.record.runs]

    def _trials(self) -> list[dict[str, Any]]:
        trials = () if self.record.tuning is None else self.record.tuning.trials
        return [(run.settings or {}) | _line(run, ("validation",)) for run in trials]


def _line(run: RunEntry, splits: Iterable[str]) -> dict[str, Any]:
    """Return a line of a frame."""
    kept = ("mixer", "seed", "steps", "best_step", "parameters", "steps_per_second",
            "wall_seconds")  # fmt: skip
    return {name: getattr(run, name) for name in kept} | {
        f"{split}_{metric}": value
        for split in splits
        for metric, value in run.metrics(split).items()
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
    workers: int = 1,
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
        on_status: called with a `RunStatus` at every step. If None, rifflemix shows a live table in
            a notebook and on a terminal.
        tracker: "tensorboard" or "wandb": shows losses and evaluations of every run as it goes;
            needs `out`.
        keep_weights: also keep the weights of every evaluation, which `rifflemix.lab.analysis`
            shows over training; needs `out`.
        workers: processes that share the runs, with one thread each if `threads` is left out. The
            scores are the same bits as with one process and as many threads.
        settings: max_steps, batch_size, lr, dim, num_layers, num_heads, model, device, precision,
            threads, task_options, mixer_options and train_options (further settings of
            `rifflemix.lab.train.TrainConfig`); by task where they are left out. Of several learning
            rates, `lr=[1e-3, 3e-3]`, every mixer tries each with every seed, and the validation
            split chooses. `stop_early=True` stops the worse half of the rates early, several times.

    Returns:
        The comparison: results, tables and plots.

    Raises:
        InputError: an unknown name or setting, a value out of range, missing or damaged data, or
            a folder of another run.
        RunFailed: every run diverged.

    Example:
        >>> import rifflemix as rm
        >>> result = rm.compare("digits", ["csp", "tssa"], max_steps=5, dim=16, out="runs/digits")
        >>> [mixer.name for mixer in result.record.mixers]
        ['csp', 'tssa']
    """
    check_settings(settings)
    check_tracker(tracker)
    if tracker is not None and out is None:
        raise bad_argument("out", f"a results folder with tracker {tracker!r}", "None")
    if keep_weights and out is None:
        raise bad_argument("out", "a results folder with keep_weights", "None")
    if out is None and is_one_of_many():
        raise bad_argument("out", "a results folder, which all processes see", "None")
    check_integer("workers", workers, 1, 1 if is_one_of_many() else MOST_WORKERS)
    if workers > 1:
        stored = None if out is None else stored_threads(user_path("out", out))
        settings.setdefault("threads", stored or 1)
    own = task if isinstance(task, Task) else None
    loaded, card, is_own = _task(task, data_dir, settings)
    labels, options = chosen_mixers(mixers, card)
    options |= dict(settings.pop("mixer_options", {}))
    config = resolve(
        card, labels, chosen_seeds(seeds), is_own=is_own, mixer_options=options, **settings
    )
    if out is not None:
        plan = plan_comparison(config, user_path("out", out), task=loaded)
        kept = {"tracker": tracker, "keep_weights": keep_weights}
        share_comparison(plan, workers, on_status, own, data_dir, kept)
        shown = on_status if workers == 1 else on_status or _show_nothing
        return _compared(plan, shown, tracker=tracker, keep_weights=keep_weights)
    with tempfile.TemporaryDirectory(prefix="rifflemix-", ignore_cleanup_errors=True) as folder:
        plan = plan_comparison(config, Path(folder) / "compare", task=loaded)
        share_comparison(plan, workers, on_status, own, data_dir, {})
        shown = on_status if workers == 1 else on_status or _show_nothing
        return _compared(plan, shown, keep=False)


def _show_nothing(status: RunStatus) -> None:
    """Show no table of mixers after the table of workers."""


def _compared(
    plan: ComparePlan, on_status: OnStatus | None, *, keep: bool = True, **kept: Any
) -> Comparison:
    results = compare_plan(plan, on_status, **kept)
    found = Comparison(results, plan.out if keep else None)
    if keep and is_main_process():
        write_comparison_files(plan.out, found.table)
    results.check_any_finished()
    return found


def compare_plan(
    plan: ComparePlan,
    on_status: OnStatus | None,
    *,
    tracker: str | None = None,
    keep_weights: bool = False,
) -> Results:
    """Run a comparison; show a live table on a terminal or in a notebook without `on_status`."""
    titles = {name: title_of(plan.config, name) for name in plan.config.mixers}
    live: Any = nullcontext()
    on_estimate = None
    if (console := live_console(on_status)) is not None:
        from rifflemix.lab.report.live import live_progress

        live = live_progress(console, titles, plan.config.seeds)
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
    """Return the data, its card, and whether the task is in no registry."""
    if isinstance(task, str):
        options = dict(settings.get("task_options") or {})
        loaded = load_task(task, data_dir=data_dir, **options)
        return loaded, card_of(loaded), False
    if not isinstance(task, Task):
        raise bad_argument("task", "the name of a task, or a Task", repr(task))
    if data_dir is not None or "task_options" in settings:
        raise bad_argument("data_dir and task_options", "none beside a Task", "one of them")
    settings["task_options"] = dict(task.options)
    return task, card_of(task), task.card is not None
