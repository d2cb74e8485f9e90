"""Gate for CI=true: fail if a test is skipped for a reason that allowed_skips.txt lacks.

A line of that file is a pattern for whole reasons, ` # `, and why the test cannot run there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ALLOWED = Path(__file__).with_name("allowed_skips.txt")


def patterns(lines: list[str]) -> list[str]:
    """Return the patterns of an allow-list; each needs an explanation."""
    found = []
    for line in lines:
        pattern, separator, why = line.partition(" # ")
        if not separator or not why.strip():
            raise pytest.UsageError(f"{ALLOWED.name}: expected 'pattern # why', got {line!r}")
        found.append(pattern.strip())
    return found


def unlisted(config: pytest.Config) -> list[str]:
    """Return skipped tests with reasons that are not on the list."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    # With several test processes, only the reporting process has all skips.
    if os.environ.get("CI") != "true" or reporter is None or hasattr(config, "workerinput"):
        return []
    allowed = patterns(ALLOWED.read_text(encoding="utf-8").splitlines())
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not any(re.fullmatch(pattern, reason) for pattern in allowed):
            found.append(f"{report.nodeid}: {reason}")
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if unlisted(session.config) and session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found = unlisted(config)
    if found:
        terminalreporter.section(f"skipped for reasons that {ALLOWED.name} lacks", red=True)
        for line in found:
            terminalreporter.write_line(line)
