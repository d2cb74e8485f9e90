"""Output of the commands while they prepare data."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from rifflemix.cli import output
from rifflemix.cli.output import DataProgress


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_SECONDS_TO_FIRST_LINE", 0.1)
    monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0.1)


def console(*, is_terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=is_terminal, width=100, color_system=None), text


def wait_for(words: str, text: io.StringIO) -> None:
    end = time.monotonic() + 20
    while words not in text.getvalue():
        assert time.monotonic() < end, text.getvalue()
        time.sleep(0.01)


def test_slow_preparation_prints_lines_without_a_terminal() -> None:
    screen, text = console(is_terminal=False)
    with DataProgress(screen) as progress:
        wait_for("loading data, 0 s", text)  # for tasks that report no progress
        progress("drawing [images]", 1_000, 160_000)
        wait_for("drawing [images], 1,000 of 160,000, ", text)
        progress("decoding", 0, None)
        wait_for("decoding, ", text)
    printed = text.getvalue()
    time.sleep(0.3)
    assert text.getvalue() == printed


def test_quick_preparation_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_SECONDS_TO_FIRST_LINE", 60.0)
    screen, text = console(is_terminal=False)
    start = time.monotonic()
    with DataProgress(screen) as progress:
        progress("decoding", 1, 2)
    assert text.getvalue() == ""
    assert time.monotonic() - start < 30


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    screen, text = console(is_terminal=True)
    with DataProgress(screen) as progress:
        progress("decoding", 1, 2)
        time.sleep(0.3)
    assert " s\n" not in text.getvalue()
    assert "decoding" in text.getvalue()


def test_progress_returns_whether_the_time_is_up() -> None:
    assert DataProgress(console(is_terminal=False)[0])("x", 0, None) is False
    assert DataProgress(console(is_terminal=False)[0], lambda: True)("x", 0, None) is True
