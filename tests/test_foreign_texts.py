"""Untrusted names, labels and messages cannot control a terminal or a page."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command_line import Cli
from rifflemix.cli.output import DescriptionColumn, plain_table, show, tell
from rifflemix.lab.report.live import LiveTable, status_line, text_table
from rifflemix.lab.report.page import render
from rifflemix.lab.runs.status import RunStatus
from small_recipes import QUICK, made_up, small

HOSTILE = "[bold]a|b[/bold]\x1b[31m\u202e`c`<i>\n# d"
SHOWN = "[bold]a|b[/bold]\\x1b[31m\\u202e`c`<i>"


def assert_clean(text: str) -> None:
    unsafe = {c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"}
    assert not unsafe


def printed(*renderables: Any) -> str:
    console = Console(file=io.StringIO(), force_terminal=False, width=300)
    for one in renderables:
        console.print(one)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_tables_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show(HOSTILE)
    show(plain_table((HOSTILE, "b"), [(HOSTILE, 1)]))
    tell(Console(file=None, width=300), HOSTILE)
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 4
    assert_clean(out)


def test_titles_of_tables() -> None:
    out = printed(text_table(["a"], [["b" * 200]], title=HOSTILE))
    assert SHOWN in out
    assert_clean(out)


def test_the_live_table() -> None:
    status = RunStatus(HOSTILE, 0, "training", 1, 2, trial=HOSTILE)
    table = LiveTable(Console(file=io.StringIO()), {HOSTILE: HOSTILE}, [0])
    table.update(status)
    out = printed(table._table(), status_line(status).replace(HOSTILE, ""))
    assert out.count(SHOWN) == 2
    assert_clean(out)


def test_progress_bars() -> None:
    from rich.progress import Progress

    progress = Progress(DescriptionColumn(), console=Console(file=io.StringIO(), width=300))
    progress.add_task(HOSTILE, total=1)
    out = printed(progress.get_renderable())
    assert SHOWN in out
    assert_clean(out)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a foreign result of a recipe with hostile names."""
    recipe = small(train=QUICK, name="test/hostile", paper=HOSTILE, table=HOSTILE, row=HOSTILE,
                   column=HOSTILE)  # fmt: skip
    path = tmp_path / "runs" / "[red]\x1b[31m" / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(made_up(recipe=recipe)))
    return path


def test_a_report_of_foreign_results(results: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "[blue]\x1b[31m"
    ended = cli("report", results.parent.parent, "--out", out)
    assert ended.code == 0, ended.err
    assert "[blue]\\x1b[31m" in ended.out.replace("\n", "")
    assert_clean(ended.out)
    page = (out / "report.md").read_text()
    assert_clean(page)
    assert "\\[bold\\]a\\|b" in page
    assert "`c`" not in page.replace("\\`", "")
    assert "<i>" not in page
    assert "\n# d" not in page
    html = (out / "report.html").read_text()
    assert_clean(html)
    assert "<i>" not in html


def test_json_on_stdout(results: Path, tmp_path: Path, cli: Cli) -> None:
    ended = cli("report", results, "--out", tmp_path / "out", "--json")
    assert_clean(ended.out)
    assert any(entry["row"] == HOSTILE for entry in json.loads(ended.out))


def test_errors_and_warnings(tmp_path: Path, cli: Cli) -> None:
    ended = cli("report", tmp_path / HOSTILE, "--out", tmp_path / "out")
    assert ended.code == 2
    assert_clean(ended.err)
    assert "[bold]a|b[/bold]\\x1b[31m" in ended.err
    assert ended.err.count("\n") == 1


def test_values_in_pages_and_drawings_are_escaped() -> None:
    from rifflemix.lab.report.page import panels

    drawn = panels({HOSTILE: HOSTILE}, {HOSTILE: [[(0, 1.0), (1, 2.0)]]})
    page = render(
        "reproductions.html", title=HOSTILE, explained=(), overview_headers=(), overview=(),
        run_headers=(),
        tables=[{"title": HOSTILE, "caption": HOSTILE, "headers": [HOSTILE], "rows": [], "runs": [],
                 "pictures": [{"heading": HOSTILE, "curves": drawn}]}],
    )  # fmt: skip
    assert "<svg" in page
    assert_clean(page)
    assert "<i>" not in page
