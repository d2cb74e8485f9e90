from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from rifflemix.lab.experiments import Overview, WorkerStatus
from rifflemix.lab.report.live import (
    LiveTable,
    NotebookTable,
    NotebookWorkers,
    PlainLines,
    live_progress,
    remaining,
    status_line,
    workers_display,
)
from rifflemix.lab.runs import status as runs_status
from rifflemix.lab.runs.status import RunStatus, StatusFeed
from rifflemix.lab.train import TrainEvent

TITLES = {"softmax": "Softmax attention", "csp": "[bold]CSP"}


def status(**changes: Any) -> RunStatus:
    values: dict[str, Any] = {
        "mixer": "csp", "seed": 1, "state": "training", "step": 10, "max_steps": 100,
        "loss": 1.25, "score": 0.5, "steps_per_second": 3.0,
        "seconds_left": 90.0,
    }  # fmt: skip
    return RunStatus(**{**values, **changes})


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=120, color_system=None), text


def test_a_terminal_gets_a_table_and_a_pipe_gets_lines() -> None:
    assert isinstance(live_progress(console(terminal=True)[0], TITLES, [0]), LiveTable)
    assert isinstance(live_progress(console(terminal=False)[0], TITLES, [0]), PlainLines)


def test_table_has_a_row_for_every_mixer() -> None:
    screen, text = console(terminal=True)
    with LiveTable(screen, TITLES, [0, 1]) as live:
        live.update(status())
        live.note("[a note]")
    shown = text.getvalue()
    assert "[a note]" in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    headers = ["Mixer", "Seed", "Status", "Step", "Loss", "Validation", "Steps/s", "ETA"]
    assert rows["Mixer"].split() == headers
    assert rows["Softmax"].split() == ["Softmax", "attention", "-", "waiting", *["-"] * 5]
    for word in ("[bold]CSP", "2/2", "training", "10/100", "1.250", "50.00", "3.00", "1 min 30 s"):
        assert word in rows["[bold]CSP"]


def test_a_notebook_gets_a_table_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Output:
        def update(self, table: NotebookTable) -> None:
            shown.append(table._repr_html_())

    monkeypatch.setattr("IPython.display.display", lambda table, display_id: Output())
    screen = Console(file=io.StringIO(), force_jupyter=True)
    live = live_progress(screen, {**TITLES, "csp": "<b>CSP"}, [0, 1])
    assert isinstance(live, NotebookTable)
    with live:
        live.update(status(seconds_left_in_all=60.0))
        live.update(status(step=11))
        live.note("a <note>")
    assert "&lt;b&gt;CSP</td><td>2/2</td><td>training</td><td>10/100</td>" in shown[0]
    assert len(shown) == 3  # the second update came too soon
    assert "<td>11/100</td>" in shown[-1]
    assert "<p>a &lt;note&gt;</p>" in shown[-1]


def test_a_notebook_gets_a_table_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Output:
        def update(self, table: NotebookWorkers) -> None:
            shown.append(table._repr_html_())

    def display(table: NotebookWorkers, display_id: bool) -> Output:
        shown.append(table._repr_html_())
        return Output()

    monkeypatch.setattr("IPython.display.display", display)
    with workers_display(Console(file=io.StringIO(), force_jupyter=True)) as screen:
        for step in (10, 11):
            worker = WorkerStatus("node<1>", 7, status(step=step))
            screen.update(Overview(1, 4, [worker], 60.0, []))
    assert len(shown) == 3  # the start, the first update, and the end
    assert "<td>node&lt;1&gt; 7</td><td>csp seed 1</td><td>training</td><td>10/100</td>" in shown[1]
    assert "<td>11/100</td>" in shown[2]
    assert "<p>1 of 4 runs, 1 worker, about 1 min 00 s left in all</p>" in shown[2]


def test_lines_are_limited_but_all_state_changes_are_printed() -> None:
    screen, text = console(terminal=False)
    with PlainLines(screen) as lines:
        for step in range(50):
            lines.update(status(step=step))
        lines.update(status(step=50, state="done"))
    first, last = text.getvalue().splitlines()
    shown = r"loss 1\.250, .*accuracy 50\.00 %, 3\.00 steps/s"
    assert re.fullmatch(rf"csp seed 1: training, .*0/100, {shown}, 1 min 30 s\b.*", first)
    assert re.fullmatch(rf"csp seed 1: done, .*50/100, {shown}", last)


def test_line_contains_the_known_values() -> None:
    unknown = status(
        loss=None, score=None, steps_per_second=None, seconds_left=None, trial="lr=0.1"
    )
    assert re.fullmatch(r"csp seed 1 lr=0\.1: training, .*10/100", status_line(unknown))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "1 min 30 s"),
        ({"state": "done"}, "-"),
        ({"seconds_left": None}, "-"),
        ({"seconds_left": 0.0}, "0 s"),
    ],
)
def test_remaining_time_is_formatted(changes: dict[str, Any], text: str) -> None:
    assert remaining(status(**changes)) == text


def test_resumed_run_is_timed_from_its_resumption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the time estimate, because the 1,000 steps of an earlier process do not count."""
    times, seen = iter([50.0, 52.0, 60.0]), list[RunStatus]()
    monkeypatch.setattr(runs_status.time, "monotonic", lambda: next(times))
    feed = StatusFeed("csp", 0, 2000, seen.append, "accuracy")
    for step in (1000, 1004, 1005):
        feed.on_event(TrainEvent("step", step, 2000, steps_per_second=0.1))
    assert [status.seconds_left for status in seen] == [None, 996 * 2 / 4, 995 * 10 / 5]
