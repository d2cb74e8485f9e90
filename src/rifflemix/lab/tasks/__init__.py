"""Tasks: generate, download, verify, cache and collate data. Independent of models."""

from rifflemix.lab.tasks.core.base import (
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
from rifflemix.lab.tasks.registry import (
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
