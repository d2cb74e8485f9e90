"""Show results: tables, plots, pages, live progress."""

from rifflemix.report.comparison import REPORT_FILES, comparison_files

__all__ = ["REPORT_FILES", "comparison_files"]
