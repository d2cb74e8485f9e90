"""Comparisons as they run: a live table, and Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rifflemix.cli.interrupt import StopRequest
from rifflemix.cli.output import progress_console
from rifflemix.lab.runs.options import RunOptions

if TYPE_CHECKING:
    from rifflemix.lab.comparison import ComparePlan


def run_shown(plan: ComparePlan, options: RunOptions) -> tuple[dict[str, Any], bool]:
    """Run a comparison with a live table.

    Returns:
        Its results, and whether Ctrl-C asked for a stop, which may come when all is done.
    """
    from rifflemix.lab.comparison import run_comparison, title_of
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.runs.processes import is_main_process

    titles = {name: title_of(plan.config, name) for name in plan.config.mixers}
    live = live_progress(progress_console(), titles, plan.config.seeds)

    with live, StopRequest(live.note) as stop:
        results = run_comparison(
            plan,
            on_status=live.update if is_main_process() else None,
            on_estimate=lambda estimate: live.note(str(estimate)),
            should_stop=stop,
            tracker=options.tracker,
            keep_weights=options.keep_weights,
        )
        return results, stop()
