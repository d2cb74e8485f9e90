"""Common parts of training results: the protocol, and summaries over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rifflemix.lab.tasks import Task
from rifflemix.lab.train.run_folder import Weights


def protocol(task: Task, weights: Weights = "best", *, tests_both: bool = False) -> dict[str, str]:
    """Describe the selection of weights and the use of the test split."""
    both = "the weights of the last step and of the best evaluation"
    tested = both if tests_both else "the chosen weights"
    return {
        "model_chosen_on": "validation" if weights == "best" else "last step",
        "metric": task.metric,
        "test_used_for": f"reporting only, once, with {tested}",
        "split_note": task.split_note,
    }


def summarise(values: Sequence[float]) -> dict[str, Any] | None:
    """Return mean, sample standard deviation, count and values, or None without values.

    The standard deviation of a single value is None.
    """
    if not values:
        return None
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
        "values": list(values),
    }
