"""rifflemix report: all reproductions in one page, table by table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rifflemix.cli.output import print_json, show
from rifflemix.lab.runs.options import Json, Option

EPILOG = """Examples:

  rifflemix report runs --out report

  rifflemix report benchmarks/results runs/csp-image/results.json --out report
"""


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="Folders, searched to any depth, or results files.")
    ],
    out: Annotated[Path, Option("Folder for report.md and report.html.", metavar="PATH")],
    json: Json = False,
) -> None:
    """Show all results of `rifflemix reproduce`: the papers' tables, their numbers and ours."""
    from rifflemix.files import make_folder, write_bytes
    from rifflemix.lab.reproduction import load_results
    from rifflemix.lab.reproduction.page import report_files
    from rifflemix.lab.reproduction.tables import report_entries
    from rifflemix.lab.runs.folder import check_folder

    check_folder(out)
    found = load_results(paths)
    make_folder(out)
    for name, content in report_files(found, out).items():
        write_bytes(out / name, content)
    if json:
        print_json(report_entries(found))
    else:
        show(f"{len(found)} results; written to {out}: report.md, report.html")
        if not found:
            show("only those of reproduce count; compare and sweep write pages into their folders")
