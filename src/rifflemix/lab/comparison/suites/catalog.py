"""Suites: named lists of tasks with sizes and budgets for any mixer."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rifflemix.errors import bad_argument, unknown_name


@dataclass(frozen=True)
class SuiteTask:
    """One comparison of a suite.

    Attributes:
        task: name of the task.
        options: options of the task.
        settings: further settings of `rifflemix.compare`.
    """

    task: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Suite:
    """A named list of comparisons.

    Attributes:
        name: name for commands.
        title: title for pages.
        tasks: folder name -> the comparison.
        mixers: default mixers.
        seeds: default number of seeds.
        lr: learning rates that every mixer tries on every task.
    """

    name: str
    title: str
    tasks: Mapping[str, SuiteTask] = field(repr=False)
    mixers: tuple[str, ...]
    seeds: int
    lr: tuple[float, ...]

    def chosen(self, tasks: Sequence[str] | None) -> dict[str, SuiteTask]:
        """Return the tasks of these names, in the order of the suite. None selects all tasks.

        Raises:
            InputError: a name is unknown or given twice, or there is no name.
        """
        if tasks is None:
            return dict(self.tasks)
        for name in tasks:
            if name not in self.tasks:
                raise unknown_name(f"task of suite {self.name}", name, self.tasks)
        if not tasks or len(set(tasks)) < len(tasks):
            raise bad_argument("tasks", "at least one, each only once", ",".join(tasks) or "none")
        return {name: task for name, task in self.tasks.items() if name in tasks}

    def settings(self, task: SuiteTask) -> dict[str, Any]:
        """Return the settings of a comparison as arguments of `rifflemix.compare`."""
        lr = list(self.lr) if len(self.lr) > 1 else self.lr[0]
        return {**task.settings, "lr": lr, "task_options": dict(task.options)}


def _read() -> dict[str, Suite]:
    """Read the suites of catalog.toml."""
    text = Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8")
    return {name: _suite(name, values) for name, values in tomllib.loads(text).items()}


def _suite(name: str, values: Mapping[str, Any]) -> Suite:
    options, settings = values.get("options", {}), values.get("settings", {})
    tasks = {
        label: SuiteTask(
            of.get("task", label),
            {**options, **of.get("options", {})},
            {**settings, **of.get("settings", {})},
        )
        for label, of in values["tasks"].items()
    }
    mixers, lr = tuple(values["mixers"]), tuple(values["lr"])
    return Suite(name, values["title"], tasks, mixers, values["seeds"], lr)


def _smoke(suite: Suite) -> Suite:
    """Return a suite with half of the steps, three mixers and one seed."""
    return Suite(
        f"{suite.name}-smoke",
        f"{suite.title}, a smoke test",
        {name: _halved(task) for name, task in suite.tasks.items()},
        ("softmax", "csp", "tssa"),
        seeds=1,
        lr=(3e-3,),
    )


def _halved(task: SuiteTask) -> SuiteTask:
    return replace(task, settings={**task.settings, "max_steps": task.settings["max_steps"] // 2})


_FROM_FILE = _read()
_SMALL = _FROM_FILE["lra-small"]
SUITES = {_SMALL.name: _SMALL, f"{_SMALL.name}-smoke": _smoke(_SMALL), **_FROM_FILE}


def get_suite(name: str) -> Suite:
    """Return a suite by name.

    Args:
        name: name of the suite, such as "lra-small".

    Returns:
        Tasks, mixers and budgets of the suite.

    Raises:
        InputError: the suite does not exist.

    Example:
        >>> from rifflemix.lab.comparison import get_suite
        >>> list(get_suite("recall-small").tasks)[:3]
        ['mqar', 'in_context_recall', 'noisy_recall']
    """
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    return SUITES[name]
