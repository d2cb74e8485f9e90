"""Fixture that runs the command line in the test process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

import rifflemix.cli


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process."""

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["rifflemix", *map(str, arguments)])
        for name in ("OMP_WAIT_POLICY", "KINETO_LOG_LEVEL"):
            monkeypatch.setenv(name, os.environ.get(name, "99"))
        code = rifflemix.cli.main()
        return Outcome(code, *capfd.readouterr())

    return run
