"""rifflemix data: list the data of tasks, and prepare it in advance."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeRemainingColumn,
)

from rifflemix.cli.commands import Commands
from rifflemix.cli.options import parse_task_options
from rifflemix.cli.output import DescriptionColumn, plain_table, print_json, progress_console, show
from rifflemix.lab.runs.options import DataDir, Json, Option, TaskOptions

_SECONDS_TO_FIRST_LINE = 5.0
_SECONDS_BETWEEN_LINES = 10.0

app = Commands(help="Find and prepare data.")


@app.command("list", epilog="Examples:  rifflemix data list --data-dir data")
def list_data(data_dir: DataDir | None = None, json: Json = False) -> None:
    """List for every task whether its data is available, with path, source and license."""
    from rifflemix.lab.tasks import task_card, task_status, usable_tasks

    entries = [
        {
            "name": name,
            "available": (status := task_status(name, data_dir)).available,
            "detail": status.detail,
            "source": task_card(name).source,
            "licence": task_card(name).licence,
        }
        for name in usable_tasks()
    ]
    if json:
        print_json(entries)
        return
    rows = [
        (e["name"], "yes" if e["available"] else "no", e["detail"], e["source"], e["licence"])
        for e in entries
    ]
    show(plain_table(("Task", "Available", "Found", "Source", "Licence"), rows))


@app.command(
    epilog="Examples:  rifflemix data prepare image --data-dir data   |   "
    "rifflemix data prepare pathfinder32 --max-samples 20000"
)
def prepare(
    task: Annotated[str, typer.Argument(help="Task; see `rifflemix list tasks`.")],
    data_dir: DataDir | None = None,
    task_option: TaskOptions | None = None,
    max_samples: Annotated[
        int | None, Option("Largest number of samples per split; all if unset.")
    ] = None,
    json: Json = False,
) -> None:
    """Read, verify, decode or generate the data of a task. Later commands then start at once."""
    from rifflemix.lab.tasks import prepare_task

    options = parse_task_options(task_option, task)
    if max_samples is not None:
        options["max_samples"] = max_samples
    with DataProgress(progress_console()) as progress:
        folder = prepare_task(task, data_dir=data_dir, progress=progress, **options)
    if json:
        print_json({"task": task, "folder": None if folder is None else str(folder)})
        return
    show(f"{task}: ready" + ("" if folder is None else f" in {folder}"))


class DataProgress:
    """A progress bar on a terminal. Other outputs get a line every ten seconds.

    Args:
        console: where to write.
        time_is_up: called at each update; True stops the preparation.
    """

    def __init__(self, console: Console, time_is_up: Callable[[], bool] = lambda: False) -> None:
        self._console = console
        self._time_is_up = time_is_up
        self._progress = Progress(
            DescriptionColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("loading data", total=None)
        self._ended = Event()
        self._lines = Thread(target=self._print_lines, daemon=True)

    def __enter__(self) -> DataProgress:
        """Start to show."""
        self._progress.start()
        if not self._console.is_terminal:
            self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to show."""
        self._progress.stop()
        self._ended.set()
        if self._lines.is_alive():
            self._lines.join()

    def __call__(self, what: str, done: int, total: int | None) -> bool:
        """Show the progress of the work, and return whether it shall stop."""
        if what != self._progress.tasks[0].description:
            self._progress.reset(self._task, description=what, total=total)
        self._progress.update(self._task, completed=done, total=total)
        return self._time_is_up()

    def _print_lines(self) -> None:
        start, wait = time.monotonic(), _SECONDS_TO_FIRST_LINE
        while not self._ended.wait(wait):
            task, wait = self._progress.tasks[0], _SECONDS_BETWEEN_LINES
            parts = [task.description]
            if task.total is not None:
                parts.append(f"{task.completed:,.0f} of {task.total:,.0f}")
            parts.append(f"{time.monotonic() - start:.0f} s")
            self._console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)
