"""All files that show a comparison's results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rifflemix.files import write_bytes
from rifflemix.lab.comparison.differences import markdown_differences
from rifflemix.lab.comparison.notes import comparison_notes
from rifflemix.lab.comparison.page import html_report
from rifflemix.lab.comparison.table import comparison_rows, markdown_table
from rifflemix.lab.comparison.tuning import markdown_tuning


def comparison_files(results: Mapping[str, Any]) -> dict[str, bytes]:
    """table.md, plot.png and report.html, by name."""
    from rifflemix.lab.comparison.plot import comparison_plot

    notes = comparison_notes(results)
    plot = comparison_plot(results)
    table = markdown_table(results, notes) + markdown_differences(comparison_rows(results))
    table += markdown_tuning(results)
    return {
        "table.md": table.encode(),
        "plot.png": plot,
        "report.html": html_report(results, notes, plot).encode(),
    }


def write_comparison_files(out: Path, results: Mapping[str, Any]) -> None:
    """Write them into the folder of a comparison."""
    for name, content in comparison_files(results).items():
        write_bytes(out / name, content)
