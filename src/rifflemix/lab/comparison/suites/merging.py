"""Merge parts of a suite, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import claimed_folder, user_path
from rifflemix.lab.comparison.api import Comparison
from rifflemix.lab.comparison.merging import Merged, different_folders, merge_settings
from rifflemix.lab.comparison.plan import RESULTS_FILE
from rifflemix.lab.comparison.suites.catalog import Suite, get_suite
from rifflemix.lab.comparison.suites.report import SuiteReport, SuiteResults
from rifflemix.lab.comparison.suites.run import (
    SuiteComparison,
    read_suite,
    suite_results,
    write_suite_files,
)
from rifflemix.lab.runs.folder import check_folder

# Settings, other than the mixers, that are equal for all tasks of a suite.
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
    """Check whether a folder has the results of a suite."""
    return read_suite(user_path("merge", folder)) is not None


def merge_suites(folders: Sequence[str | Path], out: str | Path) -> SuiteComparison:
    """Merge parts of one suite: their tasks, and the mixers or seeds of each task.

    Args:
        folders: results folders of `compare --suite`, or of earlier merges of such.
        out: folder for the page over all and a folder for each task: new, or of an earlier merge
            of the same results. The runs are not moved.

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
            made[name] = Merged.from_folders(parts, target / name, order)
            order = made[name].results.setup.mixers
    comparisons = {name: Comparison(merged.results, target / name) for name, merged in made.items()}
    _check_alike(comparisons)
    report = SuiteReport({name: found.table for name, found in comparisons.items()})
    results = suite_results(suite, list(made), report)
    merged_parts = {name: merged.parts for name, merged in made.items()}
    with claimed_folder(target, merge_settings(merged_parts)):
        for merged in made.values():
            merged.write()
        write_suite_files(target, results, report)
    return SuiteComparison(results, comparisons, target)


def _suite(paths: Sequence[Path]) -> tuple[Suite, dict[Path, list[str]]]:
    """Return the suite of all folders, and the tasks of each."""
    found = {path: _read(path) for path in paths}
    (first, reference), *others = found.items()
    suite = get_suite(reference.suite)
    for path, results in others:
        if results.suite != suite.name:
            got = f"{suite.name} in {first} and {results.suite} in {path}"
            raise bad_argument("merge", "one suite", got)
    for path, results in found.items():
        _check_tasks(path, suite, list(results.tasks))
    return suite, {path: list(results.tasks) for path, results in found.items()}


def _read(path: Path) -> SuiteResults:
    results = read_suite(path)
    if results is None:
        expected = "results of a suite in every folder, or in none"
        raise bad_argument("merge", expected, f"none in {path}")
    missing = set(results.tasks_planned) - set(results.tasks)
    if missing:  # the results of a task record whether it is complete
        got = f"{path} without {', '.join(sorted(missing))}"
        raise bad_argument("merge", "suites with all planned tasks", got)
    return results


def _check_tasks(path: Path, suite: Suite, tasks: Sequence[str]) -> None:
    """Raise InputError unless results.json names the known tasks of a folder."""
    for task in tasks:
        if task not in suite.tasks:
            raise InputError(
                f"merge: {path} has a task {task}, which suite {suite.name} of this version has not"
            )
    both = [t for t in suite.tasks if t in tasks or (path / t / RESULTS_FILE).is_file()]
    if len(both) > len(tasks):  # separate calls: the page shows only the tasks of the last call
        raise InputError(
            f"merge: expected all tasks of {path} in its {RESULTS_FILE}, got "
            f"{', '.join(tasks)} alone; compare --suite with --tasks {','.join(both)} finds them "
            "done, and writes it anew"
        )


def _check_alike(comparisons: Mapping[str, Comparison]) -> None:
    """Raise InputError unless all tasks have the same mixers, seeds and sizes.

    Ranks are averaged over tasks.
    """
    (first, reference), *others = ((n, found.record.config) for n, found in comparisons.items())
    for name, config in others:
        for setting in ("mixers", *_ALIKE):
            one, other = reference.get(setting) or None, config.get(setting) or None
            if one != other:
                raise InputError(
                    f"merge: {first} and {name} do not make one suite: {setting} is {one!r} in the "
                    f"one, {other!r} in the other"
                )
