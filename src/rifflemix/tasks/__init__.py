"""Data: generate, fetch, verify, cache, collate. Knows nothing of models."""

from rifflemix.tasks.core.base import (
    Batch,
    Budget,
    PreparationStopped,
    Progress,
    Sample,
    Split,
    Task,
    TaskCard,
    TaskStatus,
)
from rifflemix.tasks.registry import (
    card_of,
    list_tasks,
    load_task,
    prepare_task,
    register_task,
    task_card,
    task_status,
    usable_tasks,
)

__all__ = [
    "Batch",
    "Budget",
    "PreparationStopped",
    "Progress",
    "Sample",
    "Split",
    "Task",
    "TaskCard",
    "TaskStatus",
    "card_of",
    "list_tasks",
    "load_task",
    "prepare_task",
    "register_task",
    "task_card",
    "task_status",
    "usable_tasks",
]
