"""Merge comparisons of one task, data and budget that differ in mixers or seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import claimed_folder, first_difference, user_path, write_bytes, write_json
from rifflemix.json_values import content_hash, encode
from rifflemix.lab.comparison.api import Comparison
from rifflemix.lab.comparison.pages.files import comparison_files
from rifflemix.lab.comparison.pages.notes import done_so_far
from rifflemix.lab.comparison.plan import RESULTS_FILE
from rifflemix.lab.comparison.records import (
    FailedRun,
    MergedPart,
    MixerSummary,
    Results,
    Run,
    RunEntry,
    Setup,
    Tuning,
    with_checksum,
)
from rifflemix.lab.comparison.results import cost_of, with_scores, with_tuning
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.runs.build_for_task import code_by_name
from rifflemix.lab.runs.environment import this_environment
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.status import Point
from rifflemix.lab.train.config import TrainConfig, free_settings

FORMAT = "rifflemix.merge/1"

# Parts may differ in their mixers and machines; the notes name the machines.
_FREE = (
    *("mixers", "mixer_options", "variants", "seeds", "device", "threads", "plugins"),
    *free_settings("train"),
)
_CLOCK = (
    "wall_seconds", "seconds", "steps_per_second", "tokens_per_second", "environment", "beside",
    "measured_apart",
)  # fmt: skip
_PLACE = ("folder", "started_from", "sha256")
Parts = Mapping[Path, Results]


def merge_comparisons(folders: Sequence[str | Path], out: str | Path) -> Comparison:
    """Merge finished comparisons into one table; the runs stay in their folders.

    Args:
        folders: results folders of `compare` that differ only in mixers or seeds. A run in several
            folders counts once.
        out: folder for results.json, table.md, plot.png and report.html: new, or of an earlier
            merge of the same results.

    Raises:
        InputError: fewer than two folders, one that is not finished, another task, data, model or
            budget, one label for two settings, two results of one run, or mixers with different
            seeds or, where they were tuned, different choices.
    """
    paths, target = different_folders(folders), user_path("out", out)
    check_folder(target)
    merged = Merged.from_folders(paths, target)
    merged.write()
    return Comparison(merged.results, target)


def different_folders(folders: Sequence[str | Path]) -> list[Path]:
    """Return the folders to merge as paths.

    Raises:
        InputError: fewer than two folders, or a folder twice.
    """
    paths = [user_path("merge", folder) for folder in folders]
    if len({os.path.realpath(path) for path in paths}) < max(2, len(paths)):
        raise bad_argument("merge", "two or more different folders", ", ".join(map(str, paths)))
    return paths


@dataclass(frozen=True)
class Merged:
    """Merged comparisons that have not been written yet.

    Attributes:
        results: content of results.json.
        files: content of the other files by name.
        parts: checksums of the merged results, independent of their folders.
        out: results folder.
    """

    results: Results
    files: Mapping[str, bytes]
    parts: Sequence[str]
    out: Path

    @classmethod
    def from_folders(cls, paths: Sequence[Path], out: Path, order: Sequence[str] = ()) -> Merged:
        """Merge the comparisons in these folders.

        Args:
            paths: folders of one or more comparisons.
            out: results folder.
            order: mixers to name first, in this order.

        Raises:
            InputError: as `merge_comparisons`.
        """
        parts = {path: Comparison.load(path).record for path in paths}
        results = merged_results(parts, out, order)
        hashes = [part.sha256 or content_hash(encode(part)) for part in parts.values()]
        return cls(results, comparison_files(Table(results)), hashes, out)

    def write(self) -> None:
        """Write the folder.

        Raises:
            InputError: the folder contains something else, is in use, or cannot be written.
        """
        with claimed_folder(self.out, merge_settings(self.parts)):
            write_json(self.out / RESULTS_FILE, encode(self.results))
            for name, content in self.files.items():
                write_bytes(self.out / name, content)


def merged_results(parts: Parts, out: Path, order: Sequence[str] = ()) -> Results:
    """Merge the results of several folders.

    Args:
        parts: folder -> its results.
        out: folder of the merge.
        order: mixers to name first, in this order.

    Raises:
        InputError: as `merge_comparisons`.
    """
    _check(parts)
    first = next(iter(parts.values()))
    runs = _gathered({path: part.runs for path, part in parts.items()}, out)
    failed = _gathered({path: part.failed_runs for path, part in parts.items()}, out)
    tuning, seeds = _tuning(parts, out), _seeds([*runs, *failed])
    config = dict(first.config) | {"seeds": seeds}
    for name in ("mixers", "mixer_options", "variants", "plugins"):
        _join(config, name, [part.config.get(name) for part in parts.values()])
    first_ones = [name for name in order if name in config["mixers"]]
    config["mixers"] = list(dict.fromkeys([*first_ones, *config["mixers"]]))
    mixers = [_mixer(name, parts, runs, tuning) for name in config["mixers"]]
    memory = [mixer.peak_memory_bytes for mixer in mixers if mixer.peak_memory_bytes]
    merged = replace(
        first,
        command=this_environment().command,
        config=config,
        seeds=seeds,
        runs_done=len(runs) + len(failed),
        runs_planned=len(runs) + len(failed),
        wall_seconds=cost_of(runs, [] if tuning is None else tuning.all_trials),
        peak_memory_bytes=max(memory, default=None),
        mixers=mixers,
        runs=runs,
        failed_runs=failed,
        tuning=tuning,
        merged=[
            MergedPart(folder=_relative(path, out), command=part.command)
            for path, part in parts.items()
        ],
        sha256=None,
    )
    return with_checksum(merged)


def merge_settings(parts: Any) -> dict[str, Any]:
    """Return the content of config.json of a merge.

    Args:
        parts: checksums of the merged results, as JSON values.
    """
    return {"format": FORMAT, "parts": parts}


def _check(parts: Parts) -> None:
    (first, reference), *others = parts.items()
    for path, part in parts.items():
        if not part.is_complete or not part.runs_done:
            got = f"{path} with {done_so_far(part)}"
            raise bad_argument("merge", "finished comparisons", got)
    for path, part in others:
        difference = first_difference(_settings(reference), _settings(part), _FREE)
        if difference is not None:
            setting, before, now = difference
            raise InputError(
                f"merge: {first} and {path} do not compare: {setting} is {before!r} in the one, "
                f"{now!r} in the other"
            )
    _check_same(
        parts, "mixer_options", lambda s: {name: s.mixer_options.get(name) for name in s.mixers}
    )
    _check_same(parts, "variants", lambda s: {name: s.variants.get(name) for name in s.mixers})
    _check_same(parts, "code", lambda s: code_by_name(s.plugins))


def _settings(results: Results) -> dict[str, Any]:
    """Return the settings; earlier versions left out settings that were off."""
    train = TrainConfig.from_dict(results.config["train"]).to_dict()
    return {**results.config, "train": train}


def _check_same(parts: Parts, setting: str, values: Callable[[Setup], Mapping[str, Any]]) -> None:
    """Raise InputError unless each mixer or plugin has the same setting in all parts."""
    seen: dict[str, tuple[Path, Any]] = {}
    for path, part in parts.items():
        for name, value in values(part.setup).items():
            other, known = seen.setdefault(name, (path, value or None))
            if known != (value or None):
                raise InputError(
                    f"merge: {name} is not the same in {other} and {path}: {setting} {known!r} and "
                    f"{value!r}"
                )


def _join(config: dict[str, Any], name: str, values: Sequence[Any]) -> None:
    """Join the lists and tables of all parts."""
    given = [value for value in values if value]
    if not given:
        return
    if name == "mixers":
        config[name] = list(dict.fromkeys(mixer for mixers in given for mixer in mixers))
    else:
        config[name] = {key: value for table in given for key, value in table.items()}


def _gathered(parts: Mapping[Path, Sequence[Run]], out: Path) -> list[Run]:
    """Collect every run once, with its folder relative to `out`.

    Raises:
        InputError: two parts have the same run with different numbers.
    """
    found: dict[tuple[str, int, str], tuple[Path, Run]] = {}
    for path, runs in parts.items():
        for run in runs:
            key = run.mixer, run.seed, str(run.settings)
            path_of_known, known = found.setdefault(key, (path, run))
            if _numbers(run) != _numbers(known):
                raise _different(run, path_of_known, path)
    return [_moved(run, path, out) for path, run in found.values()]


def _moved(run: Run, path: Path, out: Path) -> Run:
    moved = replace(run, folder=_relative(path / run.folder, out))
    if isinstance(moved, FailedRun):
        return moved
    start = None if moved.started_from is None else _relative(path / moved.started_from, out)
    return with_checksum(replace(moved, started_from=start, sha256=None))


def _different(run: RunEntry | FailedRun, one: object, other: object) -> InputError:
    return InputError(
        f"merge: {run.mixer}, seed {run.seed}, has different numbers in {one} and {other}; "
        "leave one of the folders out"
    )


def _numbers(run: Run) -> list[Any]:
    """Return the values of a run, without its folder and its times."""
    kept = (entry.name for entry in fields(run) if entry.name not in (*_PLACE, *_CLOCK))
    return [getattr(run, name) for name in kept]


def _seeds(runs: Sequence[RunEntry | FailedRun]) -> list[int]:
    """Return the seeds; every mixer needs each seed once, since differences are paired."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        own = seeds.setdefault(run.mixer, [])
        if run.seed in own:  # finished in one part, diverged in another
            raise _different(run, "one folder", "another, where it diverged")
        own.append(run.seed)
    (first, expected), *others = seeds.items()
    for mixer, own in others:
        if set(own) != set(expected):
            raise bad_argument(
                "merge",
                "the same seeds of every mixer",
                f"{first} with {_listed(expected)} and {mixer} with {_listed(own)}",
            )
    return sorted(expected)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def _tuning(parts: Parts, out: Path) -> Tuning | None:
    """Collect the trials of all parts; None if nothing was tuned."""
    tunings = {path: part.tuning for path, part in parts.items() if part.tuning is not None}
    if not tunings:
        return None
    trials = _gathered({path: tuning.trials for path, tuning in tunings.items()}, out)
    failed = _gathered({path: tuning.failed_trials for path, tuning in tunings.items()}, out)
    return Tuning(
        grid=next(iter(tunings.values())).grid,
        trials_planned=len(trials) + len(failed),
        early_stops=next(iter(tunings.values())).early_stops,
        trials=trials,
        failed_trials=failed,
    )


def _mixer(
    name: str, parts: Parts, runs: Sequence[RunEntry], tuning: Tuning | None
) -> MixerSummary:
    """Summarize the runs of a mixer in all parts."""
    entries = {
        path: entry for path, part in parts.items() for entry in part.mixers if entry.name == name
    }
    first, *others = entries.values()
    if not others:
        return first
    metric = next(iter(parts.values())).protocol.metric
    memory = [entry.peak_memory_bytes for entry in entries.values() if entry.peak_memory_bytes]
    joined = with_scores(
        replace(first, peak_memory_bytes=max(memory, default=None)),
        runs,
        metric,
        higher_is_better=first.chosen.higher_is_better,
    )
    if tuning is None or first.tuning is None:
        return joined
    points = [tried.settings for tried in first.tuning.tried]
    return with_tuning(joined, runs, tuning, points, _same_choice(entries), metric)


def _same_choice(entries: Mapping[Path, MixerSummary]) -> Point | None:
    """Return the settings that validation chose for a mixer in all parts."""
    (path, first), *others = entries.items()
    for other, entry in others:
        if entry.choice != first.choice:
            raise InputError(
                f"merge: {first.name} chose {first.choice} in {path} and {entry.choice} in "
                f"{other}; tune it with all seeds at once"
            )
    return first.choice


def _relative(path: Path, out: Path) -> str:
    return Path(os.path.relpath(path, out)).as_posix()
