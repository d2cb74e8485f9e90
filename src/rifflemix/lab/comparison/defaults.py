"""Defaults of a comparison for a task: budget, mixers and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rifflemix.lab.tasks import Budget, TaskCard, task_card
from rifflemix.mixers import HEADLINE, mixer_card, usable_mixers
from rifflemix.models import model_card
from rifflemix.models.graphormer import MIXERS as GRAPH_MIXERS


def default_budget(task: str | TaskCard) -> Budget:
    """Return the budget of a task's card.

    Args:
        task: name or card of a task.

    Returns:
        Steps, batch size, learning rate and size of the model.

    Example:
        >>> from rifflemix.lab.comparison import default_budget
        >>> default_budget("digits").max_steps
        400
    """
    return (task_card(task) if isinstance(task, str) else task).budget


def default_mixers(task: str | TaskCard) -> tuple[str, ...]:
    """Return the default mixers: softmax and the papers' mixers that fit the task.

    Args:
        task: name or card of a task.

    Returns:
        Registry names of mixers.

    Example:
        >>> from rifflemix.lab.comparison import default_mixers
        >>> default_mixers("digits")
        ('softmax', 'csp', 'sliceformer', 'tssa', 'butterfly', 'token_parallel', 'sinkhorn')
    """
    names = all_mixers(task)
    return tuple(name for name in HEADLINE if name in names)


def all_mixers(task: str | TaskCard) -> tuple[str, ...]:
    """Return all registered mixers that can be compared on a task."""
    card = task_card(task) if isinstance(task, str) else task
    if takes_graphs(card):
        return tuple(GRAPH_MIXERS)
    can_all = not card.is_generative
    return tuple(name for name in usable_mixers() if can_all or mixer_card(name).causal)


def takes_graphs(card: TaskCard) -> bool:
    """Check whether the samples of a task are graphs. Few mixers support graphs."""
    return model_card(card.backbone).inputs == "graphs"


def default_model(task: str | TaskCard, options: Mapping[str, Any] | None = None) -> str:
    """Return the backbone of a task with these options.

    Args:
        task: name or card of a task.
        options: options of the task.

    Returns:
        Registry name of the backbone.

    Example:
        >>> from rifflemix.lab.comparison import default_model
        >>> default_model("digits")
        'encoder'
    """
    card = task_card(task) if isinstance(task, str) else task
    return card.for_options(options or {}).backbone
