"""The suites: named lists of tasks with their sizes and budgets, which any mixer can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.mixers import HEADLINE

PEERS = ("s5", "mlp_mixer", "s4", "linformer", "nystromformer", "long_conv", "mega", "spade")
"""The eight baselines of highest validation accuracy on the digits, with one untuned seed each.

They were chosen by benchmarks/results/compare-digits-all-2026-11-20.json.
"""


@dataclass(frozen=True)
class SuiteTask:
    """One comparison of a suite.

    Attributes:
        task: registry name.
        options: of the task.
        settings: further settings of `rifflemix.compare`.
    """

    task: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Suite:
    """A named list of comparisons.

    Attributes:
        name, title: for commands and for people.
        tasks: folder name -> the comparison.
        mixers: those that take part where the caller names none.
        seeds: how many, where the caller does not say.
        lr: learning rates that every mixer tries on every task.
    """

    name: str
    title: str
    tasks: Mapping[str, SuiteTask] = field(repr=False)
    mixers: tuple[str, ...]
    seeds: int
    lr: tuple[float, ...]

    def chosen(self, tasks: Sequence[str] | None) -> dict[str, SuiteTask]:
        """The tasks of these names, in the suite's order; all for None.

        Raises:
            InputError: an unknown name, a name twice, or none.
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
        """The settings of a comparison, as `rifflemix.compare` takes them."""
        lr = list(self.lr) if len(self.lr) > 1 else self.lr[0]
        return {**task.settings, "lr": lr, "task_options": dict(task.options)}


_LRA_SMALL = {
    "listops": SuiteTask(
        "listops",
        {"min_length": 10, "max_length": 200, "num_train": 32_000},
        {"max_steps": 1_000, "batch_size": 32},
    ),
    "text": SuiteTask(
        "text",
        {"max_length": 512, "max_samples": 6_000},
        {"max_steps": 400, "batch_size": 16},
    ),
    "pairs": SuiteTask("sick", {}, {"max_steps": 600, "batch_size": 32}),
    "retrieval": SuiteTask("passages", {}, {"max_steps": 500, "batch_size": 16}),
    "image": SuiteTask("image", {"patch_size": 2}, {"max_steps": 500, "batch_size": 32}),
    "pathfinder": SuiteTask(
        "pathfinder32",
        {
            "patch_size": 4,
            "contour_length": 4,
            "num_distractors": 0,
            "gap": 0.5,
            "paddle_length": 4.0,
            "paddle_thickness": 1.5,
            "continuity": 1.0,
            "num_train": 32_000,
            "num_validation": 2_000,
            "num_test": 2_000,
        },
        {"max_steps": 2_500, "batch_size": 32},
    ),
}
"""docs/results.md says what softmax attention reaches at these sizes, and how soon."""


def _shorter(task: SuiteTask, share: int) -> SuiteTask:
    steps = task.settings["max_steps"] // share
    return replace(task, settings={**task.settings, "max_steps": steps})


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "lra-small",
            "Small Long Range Arena",
            _LRA_SMALL,
            HEADLINE + PEERS,
            seeds=3,
            lr=(1e-3, 3e-3, 1e-2),
        ),
        Suite(
            "lra-small-smoke",
            "Small Long Range Arena, a smoke test",
            {name: _shorter(task, 2) for name, task in _LRA_SMALL.items()},
            ("softmax", "csp", "tssa"),
            seeds=1,
            lr=(3e-3,),
        ),
    )
}


def get_suite(name: str) -> Suite:
    """The suite of a name.

    Raises:
        InputError: there is none.
    """
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    return SUITES[name]
