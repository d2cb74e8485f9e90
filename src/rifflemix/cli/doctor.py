"""rifflemix doctor: what this installation can do, and why it cannot do the rest."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.text import Text

from rifflemix.cli.output import plain_table, print_json, show
from rifflemix.lab.runs.options import DataDir, Json
from rifflemix.text import terminal_lines

EPILOG = "Examples:  rifflemix doctor   |   rifflemix doctor --data-dir data --json"


def doctor(data_dir: DataDir | None = None, json: Json = False) -> None:
    """Fast paths, extras, devices, cache folder and data; exit code 1 if something is broken."""
    from rifflemix.lab.runs.doctor import BROKEN, examine

    findings = examine(data_dir)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(finding.name, finding.state, finding.detail) for finding in findings]
        show(plain_table(("What", "State", "Detail"), rows))
        for finding in findings:
            if finding.output:
                show(f"{finding.name}, in the compiler's words:")
                show(Text(terminal_lines(finding.output)))
    if any(finding.state == BROKEN for finding in findings):
        raise typer.Exit(1)
