"""Measure what the papers' claims need: analyses, checks and trainings.

    python docs/build/run_claims.py                   list all evidence and its state
    python docs/build/run_claims.py NAME [NAME ...]   measure, or continue a stopped training
    python docs/build/build.py claims blocks          then write the page

Run it in the root of the repository. Data files are in the folder `data`, models and finished runs
in `runs`. Trainings show their progress. Ctrl-C stops them, and the same command continues.
Measurements are stored in docs/data/claims.csv. Each finished training is stored at once, so that
the same command in another checkout trains the rest.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claims.base import ACCURACY, NOT_RUN, Analysis, Evidence, Runs, keep, stored
from claims.claims import DIGITS, EVIDENCE, MNIST
from claims.runs import train

from rifflemix.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, InputError, unknown_name
from rifflemix.files import read_json
from rifflemix.lab.runs.environment import environment

RUNS, DATA = Path("runs"), Path("data")


def main(names: Sequence[str]) -> int:
    """Measure the named evidence; list everything if there is no name."""
    if not names:
        for one in EVIDENCE.values():
            found = stored(one.name)
            state = NOT_RUN if found is None else f"measured {found['environment']['time'][:10]}"
            print(f"{state:<20} {one.name:<36} {one.command}")
        return 0
    try:
        for name in names:
            if name not in EVIDENCE:
                raise unknown_name("evidence", name, EVIDENCE)
        for name in names:
            if not measure(EVIDENCE[name]):
                print(f"stopped; continue with: {EVIDENCE[name].command}", file=sys.stderr)
                return EXIT_INTERRUPTED
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


def measure(evidence: Evidence) -> bool:
    """Measure some evidence and store the measurement; False after Ctrl-C."""
    if isinstance(evidence, Runs):
        found = train(evidence, RUNS / evidence.name, DATA)
    elif not _commands(*evidence.trained):
        found = None
    elif isinstance(evidence, Analysis):
        found = _analyzed(evidence) if _commands(evidence.command) else None
    else:
        found = {"data": evidence.measure()}
    if found is not None:
        keep(evidence.name, {"environment": environment(), **found})
    return found is not None


def _commands(*commands: str) -> bool:
    """Run commands of rifflemix, one after the other; finished ones do nothing."""
    for command in commands:
        print(f"$ {command}", file=sys.stderr)
        words = [sys.executable, "-m", *shlex.split(command)]
        code = subprocess.run(words, check=False).returncode
        if code == EXIT_INTERRUPTED:
            return False
        if code:
            raise InputError(f"command: expected exit code 0, got {code} from: {command}")
    return True


def _analyzed(evidence: Analysis) -> dict[str, Any]:
    """Read the numbers of an analysis."""
    out = Path(evidence.out)
    found: dict[str, Any] = read_json(out / f"{evidence.kind}.json")
    for layers in found["data"].get("models", {}).values():
        for layer in layers if isinstance(layers, list) else ():
            layer.pop("displacements", None)  # only the picture of the analysis needs them
    for command, name in ((DIGITS, "digits"), (MNIST, "mnist")):
        if command in evidence.trained:
            runs = read_json(RUNS / name / "results.json")["runs"]
            scores = {one["mixer"]: one["validation"]["accuracy"] for one in runs}
            keep(ACCURACY, {**(stored(ACCURACY) or {}), name: scores})
    return {key: value for key, value in found.items() if key not in ("rows", "headers")}


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(sys.argv[1:]))
