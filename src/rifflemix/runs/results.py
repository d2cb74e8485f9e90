"""What the results of every training run say, whatever trained it."""

from __future__ import annotations

from rifflemix.tasks import Task


def protocol(task: Task) -> dict[str, str]:
    """Which split chose the weights, by what, and what the test split was used for."""
    return {
        "model_chosen_on": "validation",
        "metric": task.metric,
        "test_used_for": "reporting only, once, with the chosen weights",
        "split_note": task.split_note,
    }
