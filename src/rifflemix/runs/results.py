"""The protocol that the results of every training run state."""

from __future__ import annotations

from rifflemix.tasks import Task


def protocol(task: Task) -> dict[str, str]:
    """The split and metric that chose the weights, and the use of the test split."""
    return {
        "model_chosen_on": "validation",
        "metric": task.metric,
        "test_used_for": "reporting only, once, with the chosen weights",
        "split_note": task.split_note,
    }
