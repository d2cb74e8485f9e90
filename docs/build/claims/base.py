"""Claims of papers: evidence, verdicts, and measurements in docs/data/claims.csv.

A judge turns the data of some evidence into a judgement. claims.csv has one line per number or
list of numbers of a measurement.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import DATA
from store import csv_lines, csv_text

HOLDS, PART, FAILS = "holds", "holds in part", "does not hold here"
DEPENDS = "depends on the measure"
UNDECIDED = "within the noise"
NOT_RUN = "not run yet"
VERDICTS = (HOLDS, FAILS, PART, DEPENDS, UNDECIDED, NOT_RUN)

NUMBERS = DATA / "claims.csv"
ACCURACY = "accuracy"
UNFINISHED = "-unfinished"
"""Suffix of the finished runs of evidence that has further runs to train."""
_STEP = "/"

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the numbers that it follows from in words."""

    verdict: str
    shows: str


Judge = Callable[[Data], Judgement]


def judgement(shows: str, holds: bool, part: bool = False) -> Judgement:
    """Return a judgement: the claim holds, or holds in part, or does not hold here."""
    return Judgement(HOLDS if holds else PART if part else FAILS, shows)


def with_settings(judge: Callable[..., Judgement]) -> Callable[..., Judge]:
    """Return a function from settings to a judge; `judge` accepts the data, then the settings."""
    return lambda *settings, **options: lambda data: judge(data, *settings, **options)


def listed(values: Sequence[float], form: str = "", by: float = 1, unit: str = "") -> str:
    """Format numbers as a list, after multiplication by a factor."""
    return ", ".join(f"{by * value:{form}}{unit}" for value in values)


@dataclass(frozen=True)
class Evidence:
    """A measurement by a script of this folder."""

    name: str

    @property
    def command(self) -> str:
        """The command that measures, or continues to train."""
        return f"python docs/build/run_claims.py {self.name}"


@dataclass(frozen=True)
class Analysis(Evidence):
    """A run of `rifflemix analyze`, named "FOLDER-KIND".

    Attributes:
        options: target and options of the command.
        trained: commands that train the target first.
    """

    options: str
    trained: Sequence[str] = ()

    @property
    def parts(self) -> tuple[str, str]:
        """Folder that the command writes to, and kind of analysis."""
        folder, _, kind = self.name.partition("-")
        return f"runs/looks/{folder}", kind

    @property
    def command(self) -> str:
        """The command that measures."""
        out, kind = self.parts
        return f"rifflemix analyze {kind} {self.options} --threads 1 --out {out}"


@dataclass(frozen=True)
class Check(Evidence):
    """A function that measures within seconds, and the commands that train its models first."""

    measure: Callable[[], Data]
    trained: Sequence[str] = ()


@dataclass(frozen=True)
class Runs(Evidence):
    """Rows of a table or figure, trained at a reduced size with several seeds.

    Attributes:
        rows: short name of each row -> recipe; all recipes have the same task.
        steps: updates of each run.
        batch_size: samples per update.
        scale: factor of the model's widths.
        seeds: every row runs with each seed.
    """

    rows: Mapping[str, str]
    steps: int
    batch_size: int
    scale: float = 1.0
    seeds: Sequence[int] = (0, 1, 2)


def judged(evidence: Evidence, judge: Judge) -> Judgement:
    """Judge a claim by the measurement of its evidence, if it was run."""
    found = stored(evidence.name)
    return Judgement(NOT_RUN, "nothing yet") if found is None else judge(found["data"])


def stored(name: str) -> dict[str, Any] | None:
    """Read the measurement of some evidence; None if it has not been run."""
    return measurements(NUMBERS).get(name)


@functools.cache
def measurements(path: Path) -> dict[str, dict[str, Any]]:
    """Read all measurements by name."""
    found: dict[str, dict[str, Any]] = {}
    for line in csv_lines(path):
        content = found.setdefault(line["evidence"], {})
        *steps, last = line["key"].split(_STEP)
        for step in steps:
            content = content.setdefault(step, {})
        content[last] = json.loads(line["value"])
    return {name: _with_lists(content) for name, content in found.items()}


def keep(name: str, content: Mapping[str, Any]) -> None:
    """Store the measurement of some evidence, in place of an earlier or unfinished one."""
    contents = {**measurements(NUMBERS), name: dict(content)}
    contents.pop(name + UNFINISHED, None)
    lines = [
        {"evidence": evidence, "key": key, "value": json.dumps(value, ensure_ascii=False)}
        for evidence in sorted(contents)
        for key, value in _leaves(contents[evidence])
    ]
    NUMBERS.parent.mkdir(exist_ok=True)
    NUMBERS.write_text(csv_text(lines), encoding="utf-8")
    measurements.cache_clear()


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield paths and leaves. A step [N] of a path is an entry of a list of objects."""
    steps: Mapping[str, Any] = {}
    if isinstance(value, dict) and not any(_STEP in key for key in value):
        steps = value
    elif isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        steps = {f"[{number}]": entry for number, entry in enumerate(value)}
    if not steps:
        yield path, value
    for step, inner in steps.items():
        yield from _leaves(inner, f"{path}{_STEP}{step}" if path else step)


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {key: _with_lists(inner) for key, inner in value.items()}
    return list(found.values()) if "[0]" in found else found
