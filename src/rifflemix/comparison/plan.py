"""All checks of a comparison, made before anything is written, and its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rifflemix.comparison.config import FORMAT, CompareConfig
from rifflemix.comparison.models import check_model
from rifflemix.errors import InputError, bad_argument
from rifflemix.files import (
    locked,
    make_folder,
    read_json,
    remove_leftovers,
    write_json,
)
from rifflemix.runs.folder import check_folder
from rifflemix.tasks import Task, load_task, task_card

CONFIG_FILE, RESULTS_FILE = "config.json", "results.json"
_JUDGED = ("validation", "test")


@dataclass(frozen=True)
class ComparePlan:
    """A comparison that has passed all checks and can start.

    Attributes:
        config: the settings.
        task: the loaded data.
        parameters: trainable parameters of each mixer's model.
        out: the results folder; not made yet where this is the first start.
        settings: what config.json holds.
        majority_share: split -> accuracy there of always giving its commonest label; None where
            a task has no classes.
    """

    config: CompareConfig
    task: Task
    parameters: Mapping[str, int]
    out: Path
    settings: Mapping[str, Any]
    majority_share: Mapping[str, float] | None = None

    @property
    def runs(self) -> list[tuple[int, str]]:
        """(seed, mixer), seed by seed, so that an early stop leaves a fair table."""
        return [(seed, mixer) for seed in self.config.seeds for mixer in self.config.mixers]


def plan_comparison(
    config: CompareConfig,
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> ComparePlan:
    """Check everything; write nothing.

    Args:
        config: the settings.
        out: results folder, new, empty or of an earlier run with the same settings.
        data_dir: folder of the task's data files.
        progress: called with the progress of loading data.

    Raises:
        InputError: data is missing or damaged, a mixer cannot be built at
            this shape, `out` cannot be written or belongs to something else.
    """
    check_folder(out)
    task = load_task(config.task, data_dir=data_dir, progress=progress, **config.task_options)
    parameters = {mixer: check_model(config, task, mixer) for mixer in config.mixers}
    settings = config.to_dict() | {
        "task_options": dict(task.options),
        "data": task.fingerprint(),
    }
    _check_same_settings(out, settings)
    has_classes = task_card(config.task).output == "classes"
    shares = {name: majority_share(task, name) for name in _JUDGED} if has_classes else None
    return ComparePlan(config, task, parameters, out, settings, shares)


def majority_share(task: Task, split: str) -> float:
    """The accuracy on a split of always giving its commonest label."""
    samples = task.split(split)
    counts = Counter(int(samples[i][1]) for i in range(len(samples)))
    return counts.most_common(1)[0][1] / len(samples)


@contextmanager
def claimed_folder(plan: ComparePlan) -> Iterator[None]:
    """Make the results folder, or open it again, and hold it against other processes.

    Raises:
        InputError: it cannot be written, or is in use.
    """
    is_new = not plan.out.exists()
    make_folder(plan.out)
    with locked(plan.out):
        remove_leftovers(plan.out)
        _check_same_settings(plan.out, plan.settings)
        try:
            write_json(plan.out / CONFIG_FILE, plan.settings)
        except InputError:
            if is_new:
                _remove_folder(plan.out)
            raise
        yield


def _check_same_settings(out: Path, settings: Mapping[str, Any]) -> None:
    """Raise if the folder holds something else than an earlier start of this very comparison."""
    if not out.exists():
        return
    if not (out / CONFIG_FILE).exists():
        entries = sorted(entry.name for entry in out.iterdir() if not entry.name.startswith("."))
        if entries:
            raise bad_argument("out", "a new or empty folder", f"{out}, which holds {entries[0]}")
        return
    earlier = read_json(out / CONFIG_FILE)
    if not isinstance(earlier, dict) or earlier.get("format") != FORMAT:
        raise bad_argument("out", "a folder of `rifflemix compare`", f"another run's, {out}")
    difference = first_difference(earlier, settings)
    if difference is not None:
        name, before, now = difference
        raise InputError(
            f"out: {out} was started with {name} = {before!r}, got {now!r}; choose another "
            "folder or the same settings"
        )


def first_difference(
    earlier: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> tuple[str, Any, Any] | None:
    """The first setting that two configurations disagree on: its dotted name and both values."""
    for name in [*now, *(name for name in earlier if name not in now)]:
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            return first_difference(before, after, f"{prefix}{name}.")
        return f"{prefix}{name}", before, after
    return None


def _remove_folder(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink()
    folder.rmdir()
