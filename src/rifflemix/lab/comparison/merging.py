"""Comparisons of one task, budget and data put together: their mixers, or their seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import claimed_folder, first_difference, user_path, write_bytes, write_json
from rifflemix.json_values import content_hash, sealed
from rifflemix.lab.comparison.api import Comparison
from rifflemix.lab.comparison.files import comparison_files
from rifflemix.lab.comparison.notes import done_so_far
from rifflemix.lab.comparison.plan import RESULTS_FILE
from rifflemix.lab.comparison.progress import Run
from rifflemix.lab.comparison.results import cost_of, scores_of, tried_of
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.outside import code_by_name
from rifflemix.lab.train.config import TrainConfig, free_settings

FORMAT = "rifflemix.merge/1"

# What parts may differ in: who takes part, and where it ran, which the notes tell.
_FREE = (
    *("mixers", "mixer_options", "variants", "seeds", "device", "threads", "plugins"),
    *free_settings("train"),
)
_CLOCK = ("wall_seconds", "seconds", "steps_per_second", "tokens_per_second", "environment")

Results = Mapping[str, Any]


def merge_comparisons(folders: Sequence[str | Path], out: str | Path) -> Comparison:
    """Put finished comparisons into one table; their runs stay where they are.

    Args:
        folders: results folders of `compare` that differ in mixers or in seeds alone; a run that
            stands in several counts once.
        out: folder for results.json, table.md, plot.png and report.html: new, or of an earlier
            merge of the same results.

    Raises:
        InputError: fewer than two folders, one that is not finished, another task, data, model or
            budget, one label for two settings, two results of one run, or mixers with different
            seeds or, where they were tuned, different choices.
    """
    paths, target = different_folders(folders), user_path("out", out)
    check_folder(target)
    merged = Merged.of(paths, target)
    merged.write()
    return Comparison(merged.results, target)


def different_folders(folders: Sequence[str | Path]) -> list[Path]:
    """The folders to merge as paths.

    Raises:
        InputError: fewer than two, or one of them twice.
    """
    paths = [user_path("merge", folder) for folder in folders]
    if len({os.path.realpath(path) for path in paths}) < max(2, len(paths)):
        raise bad_argument("merge", "two or more different folders", ", ".join(map(str, paths)))
    return paths


@dataclass(frozen=True)
class Merged:
    """Comparisons put together, nothing of it written yet.

    Attributes:
        results: what results.json is to hold.
        files: the files that show it, by name.
        parts: checksums of the results put together, wherever their folders are.
        out: where all of it goes.
    """

    results: dict[str, Any]
    files: Mapping[str, bytes]
    parts: Sequence[str]
    out: Path

    @classmethod
    def of(cls, paths: Sequence[Path], out: Path, order: Sequence[str] = ()) -> Merged:
        """The comparisons of these folders as one.

        Args:
            paths: folders of one or more comparisons.
            out: where it is to be written.
            order: mixers to name first, in this order.

        Raises:
            InputError: as `merge_comparisons`.
        """
        parts = {path: Comparison.load(path).results for path in paths}
        with _damage_is_told():
            results = merged_results(parts, out, order)
            hashes = [content_hash(of) for of in parts.values()]
            return cls(results, comparison_files(results), hashes, out)

    def write(self) -> None:
        """Write the folder.

        Raises:
            InputError: it holds something else, is in use, or cannot be written.
        """
        with claimed_folder(self.out, merge_settings(self.parts)):
            write_json(self.out / RESULTS_FILE, self.results)
            for name, content in self.files.items():
                write_bytes(self.out / name, content)


def merged_results(
    parts: Mapping[Path, Results], out: Path, order: Sequence[str] = ()
) -> dict[str, Any]:
    """The content of results.json of a merge.

    Args:
        parts: folder -> its comparison.
        out: folder of the merge.
        order: mixers to name first, in this order.

    Raises:
        InputError: as `merge_comparisons`.
    """
    with _damage_is_told():
        _check(parts)
        return _merged(parts, out, order)


@contextmanager
def _damage_is_told() -> Iterator[None]:
    """Files without a checksum, of an earlier version or another hand, may lack anything."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"merge: the results of a folder are damaged: {reason}") from error


def merge_settings(parts: Any) -> dict[str, Any]:
    """The content of config.json of a merge.

    Args:
        parts: checksums of what was put together, as JSON values.
    """
    return {"format": FORMAT, "parts": parts}


def _check(parts: Mapping[Path, Results]) -> None:
    (first, reference), *others = parts.items()
    for path, results in parts.items():
        if results["status"] != "complete":
            got = f"{path} with {done_so_far(results)}"
            raise bad_argument("merge", "finished comparisons", got)
    for path, results in others:
        difference = first_difference(_settings(reference), _settings(results), _FREE)
        if difference is not None:
            setting, before, now = difference
            raise InputError(
                f"merge: {first} and {path} do not compare: {setting} is {before!r} in the one, "
                f"{now!r} in the other"
            )
    for what in ("mixer_options", "variants"):
        _check_same(parts, what)
    _check_code(parts)


def _settings(results: Results) -> dict[str, Any]:
    """What a comparison was made with; earlier versions left out settings that were off."""
    config = results["config"]
    return {**config, "train": TrainConfig.from_dict(config["train"]).to_dict()}


def _check_same(parts: Mapping[Path, Results], what: str) -> None:
    """Raise unless a label is the same wherever it is."""
    seen: dict[str, tuple[Path, Any]] = {}
    for path, results in parts.items():
        of = results["config"].get(what, {})
        for name in results["config"]["mixers"]:
            value = of.get(name) or None
            other, known = seen.setdefault(name, (path, value))
            if known != value:
                raise InputError(
                    f"merge: {name} is not the same in {other} and {path}: {what} {known!r} and "
                    f"{value!r}"
                )


def _check_code(parts: Mapping[Path, Results]) -> None:
    """Raise unless a plugin, and a mixer in whichever file, has the same code wherever it is."""
    seen: dict[str, tuple[Path, str]] = {}
    for path, results in parts.items():
        for name, code in code_by_name(results["config"].get("plugins", {})).items():
            other, known = seen.setdefault(name, (path, code))
            if known != code:
                raise InputError(f"merge: {name} is not the same code in {other} and {path}")


def _merged(parts: Mapping[Path, Results], out: Path, order: Sequence[str] = ()) -> dict[str, Any]:
    first = next(iter(parts.values()))
    runs, failed = _gathered(parts, out, "runs"), _gathered(parts, out, "failed_runs")
    tuning = _tuning(parts, out)
    seeds = _seeds([*runs, *failed])
    config = dict(first["config"]) | {"seeds": seeds}
    for name in ("mixers", "mixer_options", "variants", "plugins"):
        _join(config, name, [results["config"].get(name) for results in parts.values()])
    first_ones = [name for name in order if name in config["mixers"]]
    config["mixers"] = list(dict.fromkeys([*first_ones, *config["mixers"]]))
    mixers = [_mixer(name, parts, runs, tuning) for name in config["mixers"]]
    trials = [*tuning.get("trials", ()), *tuning.get("failed_trials", ())]
    memory = [mixer["peak_memory_bytes"] for mixer in mixers if mixer["peak_memory_bytes"]]
    results = {
        **first,
        "command": environment()["command"],
        "config": config,
        "seeds": seeds,
        "runs_done": len(runs) + len(failed),
        "runs_planned": len(runs) + len(failed),
        "wall_seconds": cost_of(runs, trials),
        "peak_memory_bytes": max(memory, default=None),
        "mixers": mixers,
        "runs": runs,
        "failed_runs": failed,
        **({"tuning": tuning} if tuning else {}),
        "merged": [
            {"folder": _relative(path, out), "command": of["command"]} for path, of in parts.items()
        ],
    }
    return sealed(results)


def _join(config: dict[str, Any], name: str, values: Sequence[Any]) -> None:
    """Lists and tables of all parts in one, where a part has them."""
    given = [value for value in values if value]
    if not given:
        return
    if name == "mixers":
        config[name] = list(dict.fromkeys(mixer for mixers in given for mixer in mixers))
    else:
        config[name] = {key: value for table in given for key, value in table.items()}


def _gathered(parts: Mapping[Path, Results], out: Path, kind: str) -> list[Run]:
    """Every run once, its folder as seen from `out`.

    Raises:
        InputError: two parts have the same run with different numbers.
    """
    found: dict[tuple[Any, ...], tuple[Path, Run]] = {}
    for path, results in parts.items():
        for run in results.get(kind, ()):
            key = run["mixer"], run["seed"], str(run.get("settings"))
            if key not in found:
                places = {
                    name: _relative(path / run[name], out)
                    for name in ("folder", "started_from")
                    if run.get(name)
                }
                moved = sealed(run | places)
                found[key] = (path, moved)
            elif _numbers(run) != _numbers(found[key][1]):
                raise _different(run, found[key][0], path)
    return [run for _, run in found.values()]


def _different(run: Run, one: object, other: object) -> InputError:
    return InputError(
        f"merge: {run['mixer']}, seed {run['seed']}, has different numbers in {one} and {other}; "
        "leave one of the folders out"
    )


def _numbers(run: Run) -> dict[str, Any]:
    """A run without its folder and what the clock says."""
    return {
        name: value
        for name, value in run.items()
        if name not in ("folder", "started_from", "sha256", *_CLOCK)
    }


def _seeds(runs: Sequence[Run]) -> list[int]:
    """The seeds, which every mixer must have once: differences are paired over them."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        own = seeds.setdefault(run["mixer"], [])
        if run["seed"] in own:  # finished in one part, diverged in another
            raise _different(run, "one folder", "another, where it diverged")
        own.append(run["seed"])
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


def _tuning(parts: Mapping[Path, Results], out: Path) -> dict[str, Any]:
    """The trials of all parts; empty where nothing was tuned."""
    first = next(iter(parts.values())).get("tuning")
    if first is None:
        return {}
    unpacked = {path: results["tuning"] for path, results in parts.items()}
    trials = _gathered(unpacked, out, "trials")
    failed = _gathered(unpacked, out, "failed_trials")
    return {
        "grid": first["grid"],
        "trials_planned": len(trials) + len(failed),
        "trials": trials,
        "failed_trials": failed,
    }


def _mixer(
    name: str, parts: Mapping[Path, Results], runs: Sequence[Run], tuning: Mapping[str, Any]
) -> dict[str, Any]:
    """The summary of one mixer over the runs of all parts."""
    entries = {
        path: entry
        for path, results in parts.items()
        for entry in results["mixers"]
        if entry["name"] == name
    }
    first, *others = entries.values()
    if not others:
        return dict(first)
    own = [run for run in runs if run["mixer"] == name]
    metric = next(iter(parts.values()))["protocol"]["metric"]
    higher = first["metric"]["higher_is_better"] if first["metric"] else True
    memory = [entry["peak_memory_bytes"] for entry in entries.values()]
    joined = {
        **first,
        **scores_of(own, metric, higher_is_better=higher),
        "peak_memory_bytes": max((bytes_ for bytes_ in memory if bytes_), default=None),
    }
    if tuning:
        joined["tuning"] = _tuning_of(name, entries, own, tuning, metric)
    return joined


def _tuning_of(
    name: str,
    entries: Mapping[Path, Mapping[str, Any]],
    runs: Sequence[Run],
    tuning: Mapping[str, Any],
    metric: str,
) -> dict[str, Any]:
    (path, first), *others = entries.items()
    chosen = first["tuning"]["chosen"]
    for other, entry in others:
        if entry["tuning"]["chosen"] != chosen:
            raise InputError(
                f"merge: {name} chose {chosen} in {path} and {entry['tuning']['chosen']} in "
                f"{other}; tune it with all seeds at once"
            )
    points = [tried["settings"] for tried in first["tuning"]["tried"]]
    trials = [run for run in tuning["trials"] if run["mixer"] == name]
    failed = [run for run in tuning["failed_trials"] if run["mixer"] == name]
    return {
        "tried": tried_of(points, trials, failed, metric),
        "chosen": chosen,
        "wall_seconds": cost_of(runs, [*trials, *failed]),
    }


def _relative(path: Path, out: Path) -> str:
    return Path(os.path.relpath(path, out)).as_posix()
