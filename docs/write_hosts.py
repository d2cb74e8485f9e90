"""Writes the table of docs/hosts.md: runs the matrix of tests/surgery/matrix.py, minutes long.

python docs/write_hosts.py [PROPERTY or HOST ...]    (only these anew, the others as they stand)
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "hosts.md"
sys.path.insert(0, str(FOLDER.parent / "tests" / "surgery"))

import torch  # noqa: E402
from matrix import PROPERTIES, TRACED, applies  # noqa: E402
from matrix_hosts import Host, all_hosts  # noqa: E402

import rifflemix as rm  # noqa: E402
from rifflemix.lab.report.markdown import marked_text, write_marked_text  # noqa: E402

COLOUR = re.compile(r"\x1b\[\d+m")  # of a terminal, in messages of torch's exporter
LIBRARIES = ("torch", "timm", "transformers", "onnxruntime")


def cell(host: Host, name: str, failures: list[str]) -> str:
    """How many of the mixers that a property is asked of have it."""
    asked = [mixer for mixer in rm.list_mixers() if applies(name, host, mixer)]
    passed = 0
    for mixer in asked:
        try:
            PROPERTIES[name](host, mixer)
            passed += 1
        except Exception as error:  # whatever a host or a compiler raises is a finding
            reason = COLOUR.sub("", str(error).strip() or type(error).__name__).splitlines()[0]
            failures.append(f"- {host.name}, {mixer}, {name}: {reason}")
            print(failures[-1], file=sys.stderr)
    return f"{passed}/{len(asked)}" if asked else ""


def table(before: str, names: list[str]) -> str:
    """The matrix as Markdown, what it was run with, and what failed; other cells as before.

    Args:
        before: the matrix as it stands.
        names: properties and hosts to run anew; without a property all properties of the named
            hosts, without a host the named properties of all hosts.
    """
    hosts = all_hosts()
    columns = [name for name in PROPERTIES if name in names] or list(PROPERTIES)
    anew = [host.name for host in hosts if host.name in names] or [host.name for host in hosts]
    rows = {line.split(" | ")[0]: line.strip("|").split("|") for line in before.splitlines()}
    failures = [
        line
        for line in before.splitlines()
        if line.startswith("- ") and not _is_anew(line, anew, columns)
    ]
    lines = [f"| host | {' | '.join(PROPERTIES)} |", f"| --- |{' ---: |' * len(PROPERTIES)}"]
    for host in hosts:
        torch.manual_seed(0)
        old = rows.get(f"| {host.name}", [""] * (len(PROPERTIES) + 1))[1:]
        cells = [
            cell(host, name, failures) if host.name in anew and name in columns else kept.strip()
            for name, kept in zip(PROPERTIES, old, strict=True)
        ]
        lines.append(f"| {host.name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr)
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    made = (
        f"Run with {versions}. Compiled and exported: {', '.join(TRACED)}; everything else: all "
        f"{len(rm.list_mixers())} mixers, as far as they apply."
    )
    found = ["What fails:", "", *failures] if failures else ["Nothing fails."]
    return "\n".join([*lines, "", made, "", *found])


def _is_anew(line: str, hosts: list[str], properties: list[str]) -> bool:
    """Whether a line of a failure, "- host, mixer, property: reason", is of what is run again."""
    host, _, name = line.removeprefix("- ").partition(": ")[0].rsplit(", ", 2)
    return host in hosts and name in properties


def main() -> None:
    """Rewrite the table."""
    unknown = {*sys.argv[1:]} - {*PROPERTIES} - {host.name for host in all_hosts()}
    if unknown:
        sys.exit(f"expected properties and hosts of {PAGE.name}, got {', '.join(sorted(unknown))}")
    write_marked_text(PAGE, "matrix", table(marked_text(PAGE, "matrix"), sys.argv[1:]))


if __name__ == "__main__":
    main()
