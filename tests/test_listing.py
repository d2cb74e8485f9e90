"""`rifflemix --version` and `rifflemix list`, also in a terminal of 80 columns."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
from rich.console import Console

import rifflemix as rm
import rifflemix.cli
from command_line import Cli
from rifflemix.cli import listing, output
from rifflemix.lab.recipes import list_recipes


def test_version_is_printed(cli: Cli) -> None:
    assert cli("--version") == (0, f"rifflemix {rm.__version__}\n", "")


def test_list_without_arguments_lists_mixers_and_tasks(cli: Cli) -> None:
    code, out, _ = cli("list")
    assert code == 0
    assert all(name in out for name in [*rm.list_mixers(), *rm.tasks.list_tasks()])
    assert str(len(list_recipes())) in out
    assert list_recipes()[-1] not in out
    code, out, _ = cli("list", "--json")
    assert json.loads(out) == {
        "mixers": rm.list_mixers(),
        "models": rm.list_models(),
        "tasks": rm.tasks.list_tasks(),
        "recipes": list_recipes(),
    }


def test_json_option_must_follow_the_name_of_the_list(cli: Cli) -> None:
    code, out, err = cli("list", "--json", "mixers")
    assert (code, out) == (2, "")
    assert "list mixers --json" in err


def test_mixers_at_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that names and parameters fit in one line.

    Paper titles are left out.
    """
    monkeypatch.setattr(output, "output_width", lambda: 80)
    monkeypatch.setattr(listing, "output_width", lambda: 80)
    entries = {entry["name"]: entry for entry in json.loads(cli("list", "mixers", "--json")[1])}
    code, out, _ = cli("list", "mixers")
    assert code == 0
    table = [line for line in out.splitlines() if line.startswith(" ")]
    limits = " ".join(line.strip() for line in out.splitlines() if not line.startswith(" "))
    lines = [line.split() for line in table if line.split()]
    assert max(map(len, out.splitlines())) <= 80
    assert len(lines) < 1.5 * len(entries)
    for name, entry in entries.items():
        (line,) = [line for line in lines if line[0] == name]
        assert line[-1] == f"{entry['parameters']:,}"
        assert ("causal" in " ".join(line[1:])) == entry["causal"]
        assert ("streaming" in line) == entry["streaming"]
    assert "120" in limits
    for limit in ("one_length", "no_onnx", "by_position"):
        expected = [name for name, entry in entries.items() if entry[limit]]
        assert expected
        assert re.search(rf": {', '.join(expected)}\. [^.]*--json, {limit}\.", limits)


def test_papers_are_listed_on_wide_terminals(cli: Cli) -> None:
    code, out, _ = cli("list", "mixers")
    assert code == 0
    assert "Token Statistics Transformer" in out
    assert "120" not in out


def test_tables_use_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    assert Console().is_terminal
    assert output.output_width() == 80
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert output.output_width() == 200
