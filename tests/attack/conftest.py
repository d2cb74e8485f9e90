"""Shared settings of all attacks: number of cases, seeds, and the statistics that they write.

RIFFLEMIX_ATTACK multiplies the number of cases (0.2 in continuous integration, more in
`make attack`). RIFFLEMIX_ATTACK_SEED selects different cases. RIFFLEMIX_ATTACK_CASE runs a single
case again. RIFFLEMIX_ATTACK_OUT names a file for the statistics of the run.
"""

from __future__ import annotations

import json
import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_commands import Server
from run_commands import Straight

HERE = Path(__file__).parent
TIMES = float(os.environ.get("RIFFLEMIX_ATTACK", "1"))
SEED = int(os.environ.get("RIFFLEMIX_ATTACK_SEED", "0"))
CASE = os.environ.get("RIFFLEMIX_ATTACK_CASE")
OUT = os.environ.get("RIFFLEMIX_ATTACK_OUT")


class Attack:
    """The cases of one test: their number and random generators."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times = TIMES
        self.seed = SEED
        self.figures: dict[str, int] = {}

    def count(self, what: str, number: int = 1) -> None:
        """Add to a statistic of the report."""
        self.figures[what] = self.figures.get(what, 0) + number

    def refused(self, error: Exception) -> None:
        """Count an error, and check that its message is one line."""
        assert "\n" not in str(error)
        assert 0 < len(str(error)) < 5000
        self.count("refused")

    def scaled(self, number: float) -> int:
        """Scale a number of cases to the size of this run, at least 1."""
        return max(1, round(number * TIMES))

    def each(self, number: float, case: Callable[[random.Random], object]) -> None:
        """Run `case` `number` times with different generators; print the case that failed."""
        for index in range(self.scaled(number)) if CASE is None else (int(CASE),):
            draw = random.Random(f"{SEED}/{self.name}/{index}")
            torch.manual_seed(draw.randrange(2**63))
            try:
                case(draw)
            except BaseException:
                print(f"again: RIFFLEMIX_ATTACK_SEED={SEED} RIFFLEMIX_ATTACK_CASE={index}")
                raise
            self.count("cases")


@pytest.fixture
def attack(request: pytest.FixtureRequest, record_property: Callable[..., None]) -> Any:
    attack = Attack(request.node.name)
    print(f"RIFFLEMIX_ATTACK={TIMES:g} RIFFLEMIX_ATTACK_SEED={SEED}")
    record_property("attack", attack.figures)  # filled before pytest creates the report of the test
    return attack


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start the process from which all commands are forked."""
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="session")
def straight(server: Server) -> Straight:
    """Return the results of each command without a disturbance."""
    return Straight(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    used = cpu_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_seconds", cpu_seconds() - used))


def cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = {path for path in {item.path for item in items} if HERE in path.parents}
    for item in items:
        if item.path in files:
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> str:
    return f"attack: {TIMES:g} times the standard cases, seed {SEED}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the statistics, including failed tests, if RIFFLEMIX_ATTACK_OUT is set."""
    # If tests run in several processes, only the reporting process has all results.
    if OUT is None or hasattr(config, "workerinput"):
        return
    tests = []
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(report.user_properties)
            file, _, name = report.nodeid.removeprefix("tests/attack/").partition("::")
            tests.append({"file": file, "test": name, "outcome": outcome})
            tests[-1] |= {"seconds": report.duration, **properties}
    Path(OUT).parent.mkdir(parents=True, exist_ok=True)
    Path(OUT).write_text(json.dumps(figures(tests), indent=1) + "\n", encoding="utf-8")


def figures(tests: list[dict[str, Any]]) -> dict[str, Any]:
    from rifflemix.lab.runs.environment import environment

    return {
        "format": "rifflemix-attack-1",
        "times": TIMES,
        "seed": SEED,
        "environment": environment(),
        "tests": sorted(tests, key=lambda test: (test["file"], test["test"])),
    }
