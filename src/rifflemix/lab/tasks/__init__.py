"""Tasks: generate, download, verify, cache and collate data. Independent of models."""

from rifflemix.lab.tasks.core.base import Batch, PreparationStopped, Progress, Sample, Split, Task
from rifflemix.lab.tasks.core.card import Budget, Shapes, TaskCard, TaskStatus
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
    "Shapes",
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
