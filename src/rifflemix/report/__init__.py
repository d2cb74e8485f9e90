"""Show results: tables, plots, pages, live progress."""

from rifflemix.comparison.files import REPORT_FILES, comparison_files

__all__ = ["REPORT_FILES", "comparison_files"]
