"""CI fails on a skip that is not on the list; outside of CI skips are allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skip_gate import ALLOWED, patterns

TESTS = Path(__file__).resolve().parent


def run(folder: Path, reason: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_one.py").write_text(
        f"import pytest\n\ndef test_one():\n    pytest.skip({reason!r})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "skip_gate", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, str(folder)],
        env={**os.environ, "CI": ci, "PYTHONPATH": str(TESTS)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_an_unknown_reason_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "no time today", ci="true")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_one.py: no time today" in done.stdout.replace("::test_one", "")


@pytest.mark.parametrize(
    ("reason", "ci"), [("needs a CUDA GPU", "true"), ("no time today", "false")]
)
@pytest.mark.slow
def test_listed_reasons_and_skips_outside_tests_pass(tmp_path: Path, reason: str, ci: str) -> None:
    assert run(tmp_path, reason, ci=ci).returncode == pytest.ExitCode.OK


def test_every_allowed_skip_has_an_explanation() -> None:
    assert 0 < len(patterns(ALLOWED.read_text(encoding="utf-8").splitlines())) <= 10
    with pytest.raises(pytest.UsageError, match="'pattern # why', got 'later'"):
        patterns(["later"])
