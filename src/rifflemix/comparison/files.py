"""All files that show a comparison's results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rifflemix.comparison.notes import comparison_notes
from rifflemix.comparison.page import html_report
from rifflemix.comparison.plot import comparison_plot
from rifflemix.comparison.table import markdown_table

REPORT_FILES = ("table.md", "plot.png", "report.html")


def comparison_files(results: Mapping[str, Any]) -> dict[str, bytes]:
    """table.md, plot.png and report.html, by name."""
    notes = comparison_notes(results)
    plot = comparison_plot(results)
    return {
        "table.md": markdown_table(results, notes).encode(),
        "plot.png": plot,
        "report.html": html_report(results, notes, plot).encode(),
    }
