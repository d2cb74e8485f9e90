"""Measure what the papers' claims need: analyses, checks and trainings.

    python docs/run_claims.py                   list all evidence and its state
    python docs/run_claims.py NAME [NAME ...]   measure, or continue a training that was stopped
    python docs/write_claims.py                 then write the page

Run it in the root of the repository. Data files are in the folder `data`, models and finished runs
in `runs`. Trainings show their progress. Ctrl-C stops them, and the same command continues.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from claims_base import FILES, NOT_RUN, Analysis, Check, Evidence, Runs, stored
from claims_evidence import DIGITS, MNIST
from claims_list import CLAIMS
from claims_runs import draw, train

from rifflemix.cli.interrupt import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from rifflemix.errors import InputError, unknown_name
from rifflemix.files import read_json, write_bytes, write_json
from rifflemix.lab.report.figure import figure_png
from rifflemix.lab.runs.environment import environment

RUNS, DATA = Path("runs"), Path("data")
EVIDENCE: Mapping[str, Evidence] = {
    one.name: one for claim in CLAIMS for one in (claim.evidence, claim.picture) if one is not None
}


def main(names: Sequence[str]) -> int:
    """Measure the named evidence; list everything if there is no name."""
    if not names:
        for one in EVIDENCE.values():
            print(f"{_state(one):<20} {one.name:<36} {one.command}")
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


def _state(evidence: Evidence) -> str:
    found = stored(evidence)
    if found is None:
        return NOT_RUN
    time: str = found["environment"]["time"]
    return f"measured {time[:10]}"


def measure(evidence: Evidence) -> bool:
    """Measure some evidence and write its result file; False after Ctrl-C."""
    FILES.mkdir(exist_ok=True)
    match evidence:
        case Analysis():
            done = _commands(*evidence.trained, evidence.command)
            if done:
                _keep(evidence)
            return done
        case Check():
            if not _commands(*evidence.trained):
                return False
            _write(evidence, {"title": evidence.title, "data": evidence.measure()})
            return True
        case Runs():
            found = train(evidence, RUNS / evidence.name, DATA)
            if found is None:
                return False
            _write(evidence, found)
            write_bytes(FILES / f"{evidence.name}.png", figure_png(draw(found)))
            return True


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


def _keep(evidence: Analysis) -> None:
    """Copy the numbers and the picture of an analysis; its table repeats the numbers."""
    out = Path(evidence.out)
    found: dict[str, Any] = read_json(out / f"{evidence.kind}.json")
    for layers in found["data"].get("models", {}).values():
        for layer in layers if isinstance(layers, list) else ():
            layer.pop("displacements", None)  # the picture has them
    kept = {key: value for key, value in found.items() if key not in ("rows", "headers")}
    write_json(FILES / f"{evidence.name}.json", kept)
    shutil.copyfile(out / f"{evidence.kind}.png", FILES / f"{evidence.name}.png")
    _keep_accuracy(evidence.trained)


def _keep_accuracy(trained: Sequence[str]) -> None:
    """Keep the validation accuracy of the models that an analysis looks into."""
    path = FILES / "accuracy.json"
    scores = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for command, name in ((DIGITS, "digits"), (MNIST, "mnist")):
        if command in trained:
            results = read_json(RUNS / name / "results.json")
            scores[name] = {one["mixer"]: one["validation"]["accuracy"] for one in results["runs"]}
    write_json(path, scores)


def _write(evidence: Check | Runs, found: Mapping[str, Any]) -> None:
    write_json(FILES / f"{evidence.name}.json", {"environment": environment(), **found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    sys.exit(main(parser.parse_args().names))
