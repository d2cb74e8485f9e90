"""Suites put together, task by task: parts of one that were made on several machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import claimed_folder, read_json, user_path
from rifflemix.lab.comparison.api import Comparison
from rifflemix.lab.comparison.merging import Merged, different_folders, merge_settings
from rifflemix.lab.comparison.plan import RESULTS_FILE, RUNS_ARE_KEPT
from rifflemix.lab.comparison.suite import FORMAT, SuiteComparison, suite_summary, write_suite_files
from rifflemix.lab.comparison.suites import Suite, get_suite
from rifflemix.lab.runs.folder import check_folder

# What all tasks of a suite have in common, beside the mixers; the rest is the task's own.
_ALIKE = (
    "seeds",
    "dim",
    "num_layers",
    "num_heads",
    "tuned",
    "mixer_options",
    "train_options",
    "variants",
)


def is_suite(folder: str | Path) -> bool:
    """Whether a folder holds the results of a suite."""
    path = user_path("merge", folder) / RESULTS_FILE
    if not path.is_file():
        return False
    results = read_json(path, RUNS_ARE_KEPT)
    return isinstance(results, dict) and results.get("format") == FORMAT


def merge_suites(folders: Sequence[str | Path], out: str | Path) -> SuiteComparison:
    """Put parts of one suite together: their tasks, and the mixers or seeds of each task.

    Args:
        folders: results folders of `compare --suite`, or of earlier merges of such.
        out: folder for the page over all and a folder for each task: new, or of an earlier merge
            of the same results. The runs stay where they are.

    Raises:
        InputError: fewer than two folders, one that holds no suite or a damaged one, another suite,
            tasks with different mixers, seeds or sizes of the model, or as `merge_comparisons`;
            before anything is written.
    """
    paths, target = different_folders(folders), user_path("out", out)
    check_folder(target)
    suite, tasks = _suite(paths)
    made: dict[str, Merged] = {}
    order: Sequence[str] = suite.mixers
    for name in suite.tasks:
        parts = [path / name for path in paths if name in tasks[path]]
        if parts:
            made[name] = Merged.of(parts, target / name, order)
            order = made[name].results["config"]["mixers"]
    done = {name: merged.results for name, merged in made.items()}
    _check_alike(done)
    summary = suite_summary(suite, list(done), done)
    merged_parts = {name: merged.parts for name, merged in made.items()}
    with claimed_folder(target, merge_settings(merged_parts)):
        for merged in made.values():
            merged.write()
        write_suite_files(target, summary, done)
    comparisons = {name: Comparison(of, target / name) for name, of in done.items()}
    return SuiteComparison(summary, comparisons, target)


def _suite(paths: Sequence[Path]) -> tuple[Suite, dict[Path, Sequence[str]]]:
    """The suite of all folders, and the tasks that each has."""
    names: dict[Path, str] = {}
    tasks: dict[Path, Sequence[str]] = {}
    for path in paths:
        if not is_suite(path):
            what = "results of a suite in every folder, or in none"
            raise bad_argument("merge", what, f"none in {path}")
        results = read_json(path / RESULTS_FILE, RUNS_ARE_KEPT)
        try:
            names[path], tasks[path] = str(results["suite"]), list(results["tasks"])
            missing = set(results["tasks_planned"]) - set(tasks[path])
        except (LookupError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            file = path / RESULTS_FILE
            raise InputError(f"{file} is damaged: {reason}; {RUNS_ARE_KEPT}") from error
        if missing:  # of a task that was begun, its own results tell
            got = f"{path} without {', '.join(sorted(missing))}"
            raise bad_argument("merge", "suites with all tasks that they were to have", got)
    (first, name), *others = names.items()
    suite = get_suite(name)
    for path, other in others:
        if other != name:
            raise bad_argument("merge", "one suite", f"{name} in {first} and {other} in {path}")
    for path, own in tasks.items():
        for task in own:
            if task not in suite.tasks:
                raise InputError(
                    f"merge: {path} has a task {task}, which suite {name} of this version has not"
                )
        both = [t for t in suite.tasks if t in own or (path / t / RESULTS_FILE).is_file()]
        if len(both) > len(own):  # made one by one, of which the last alone is on the page
            raise InputError(
                f"merge: expected all tasks of {path} in its {RESULTS_FILE}, got "
                f"{', '.join(own)} alone; compare --suite with --tasks {','.join(both)} finds them "
                "done, and writes it anew"
            )
    return suite, tasks


def _check_alike(done: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise unless all tasks have the same mixers, seeds and sizes: ranks are means over tasks."""
    (first, reference), *others = ((name, results["config"]) for name, results in done.items())
    for name, config in others:
        for what in ("mixers", *_ALIKE):
            one, other = reference.get(what) or None, config.get(what) or None
            if one != other:
                raise InputError(
                    f"merge: {first} and {name} do not make one suite: {what} is {one!r} in the "
                    f"one, {other!r} in the other"
                )
