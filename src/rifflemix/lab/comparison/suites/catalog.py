"""Suites: named lists of tasks with sizes and budgets for any mixer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.mixers import HEADLINE


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


_MIXERS = ("softmax", "csp", "sliceformer", "tssa", "linear", "mega", "s5")
_HYBRIDS = ("csp+softmax", "sliceformer+softmax", "tssa+softmax", "linear+softmax")


def _task(
    task: str, options: Mapping[str, Any], max_steps: int, *, short_conv: int | None = None
) -> SuiteTask:
    chosen = {"num_validation": 500, "num_test": 1_000, **options}
    settings: dict[str, Any] = {"max_steps": max_steps, "batch_size": 64}
    if short_conv is not None:
        settings["model_options"] = {"short_conv": short_conv}
    return SuiteTask(task, chosen, settings)


_SMALL = {
    "mqar": _task(
        "mqar",
        {
            "vocab_size": 32,
            "length": 16,
            "pairs": 2,
            "random_non_queries": False,
            "test_lengths": [32, 64, 128],
        },
        500,
        short_conv=3,
    ),
    "in_context_recall": _task("in_context_recall", {"length": 64}, 2000, short_conv=3),
    "noisy_recall": _task("noisy_recall", {"length": 64}, 2000, short_conv=3),
    "fuzzy_recall": _task("fuzzy_recall", {"length": 64}, 2000, short_conv=3),
    "selective_copying": _task("selective_copying", {"length": 64, "tokens": 8}, 1000),
    "compression": _task("compression", {"length": 16, "causal": True}, 1000),
    "memorization": _task("memorization", {"vocab_size": 128, "num_train": 2_000}, 1000),
    "copying": _task(
        "copying", {"vocab_size": 16, "length": 32, "test_lengths": [64, 128, 256]}, 500
    ),
    "induction": _task("induction", {"length": 16, "test_lengths": [32, 64, 128]}, 1000),
    "needle": _task("needle", {"length": 32, "test_lengths": [64, 128, 256]}, 1000),
    "state_tracking": _task("state_tracking", {"length": 16, "test_lengths": [32, 64, 128]}, 1000),
}
"""Sizes and steps of a few minutes on one core.

Softmax attention solved `mqar` after 160 steps, `induction` after 160 and `copying` after 80 (rate
3e-3, 3e-3 and 1e-2, one seed). The recall tasks have a short convolution before every mixer, as in
Zoology. Without it, softmax attention did not learn `mqar` in 600 steps.
It did not learn `in_context_recall` in 500 steps at length 32. The other tasks were not tried.
"""

_MAD_TASKS = (
    "in_context_recall",
    "noisy_recall",
    "fuzzy_recall",
    "selective_copying",
    "compression",
    "memorization",
)


def _mad(epochs: int) -> dict[str, SuiteTask]:
    """Baseline settings of MAD: 12,800 sequences, batches of 128, width 128."""
    tasks = {}
    for name in _MAD_TASKS:
        train = 256 if name == "memorization" else 12_800
        sizes = {"num_train": train, "num_validation": 1_280, "num_test": 1_280}
        options = {**sizes, "causal": True} if name == "compression" else sizes
        tasks[name] = SuiteTask(
            name,
            options,
            {
                "max_steps": epochs * train // 128,
                "batch_size": 128,
                "dim": 128,
                "num_layers": 2,
                "num_heads": 16,
            },
        )
    return tasks


def _published(length: int, pairs: int, batch_size: int) -> SuiteTask:
    """MQAR at a size of Figure 2 of Zoology: 100,000 sequences, 64 epochs."""
    return SuiteTask(
        "mqar",
        {
            "vocab_size": 8_192,
            "length": length,
            "pairs": pairs,
            "random_non_queries": False,
            "num_train": 100_000,
            "num_validation": 3_000,
            "num_test": 3_000,
        },
        {
            "max_steps": 64 * 100_000 // batch_size,
            "batch_size": batch_size,
            "dim": 64,
            "num_layers": 2,
            "num_heads": 1,
            "train_options": {"weight_decay": 0.1},
        },
    )


_RECALL = {
    "mqar-64": _published(64, 4, 512),
    "mqar-128": _published(128, 8, 512),
    "mqar-256": _published(256, 16, 256),
    "mqar-512": _published(512, 64, 128),
    "selective_copying": SuiteTask(
        "selective_copying",
        {"length": 4_096, "num_train": 100_000},
        {"max_steps": 400_000, "batch_size": 64},
    ),
    "induction": SuiteTask(
        "induction",
        {"length": 256, "num_train": 100_000, "test_lengths": [512, 1_024, 2_048, 4_096]},
        {"max_steps": 204_800, "batch_size": 8},
    ),
    "state_tracking": SuiteTask(
        "state_tracking",
        {"length": 20, "num_train": 1_000_000, "test_lengths": [40, 80, 160]},
        {"max_steps": 100_000, "batch_size": 512, "dim": 512, "num_heads": 8},
    ),
}

RECALL_SUITES = (
    Suite(
        "recall-small",
        "Recall, copying and state tracking, small",
        _SMALL,
        ("softmax", "csp", "tssa"),
        seeds=3,
        lr=(1e-3, 3e-3),
    ),
    Suite(
        "mad-small",
        "MAD, baseline settings with 20 epochs",
        _mad(20),
        _MIXERS,
        seeds=3,
        lr=(1e-3, 3e-3),
    ),
    Suite(
        "recall",
        "Recall, copying and state tracking, published sizes",
        _RECALL,
        _MIXERS + _HYBRIDS,
        seeds=3,
        lr=(1e-4, 4.6e-4, 2.2e-3, 1e-2),
    ),
    Suite(
        "mad",
        "MAD, baseline settings with 200 epochs",
        _mad(200),
        _MIXERS + _HYBRIDS,
        seeds=3,
        lr=(1e-4, 5e-4, 1e-3),
    ),
)


PEERS = ("s5", "mlp_mixer", "s4", "linformer", "nystromformer", "long_conv", "mega", "spade")
"""The eight baselines of highest validation accuracy on the digits, with one untuned seed each.

compare-digits-all-2026-11-20 in benchmarks/results/accuracy.csv chose them.
"""


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
"""Sizes and budgets; docs/results.md has the scores of softmax attention."""


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
        *RECALL_SUITES,
    )
}


def get_suite(name: str) -> Suite:
    """Return a suite by name.

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
