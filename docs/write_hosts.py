"""Writes the table of docs/hosts.md: runs the matrix of tests/surgery/matrix.py, minutes long.

python docs/write_hosts.py
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "hosts.md"
START, END = "<!-- matrix -->\n", "<!-- /matrix -->"
sys.path.insert(0, str(FOLDER.parent / "tests" / "surgery"))

from matrix import PROPERTIES, Host, all_hosts, applies  # noqa: E402

import rifflemix as rm  # noqa: E402


def cell(host: Host, name: str, failures: list[str]) -> str:
    """How many of the mixers that a property is asked of have it."""
    asked = [mixer for mixer in rm.list_mixers() if applies(name, host, mixer)]
    passed = 0
    for mixer in asked:
        try:
            PROPERTIES[name](host, mixer)
            passed += 1
        except Exception as error:  # whatever a host or a compiler raises is a finding
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            failures.append(f"- {host.name}, {mixer}, {name}: {reason}")
    return f"{passed}/{len(asked)}" if asked else ""


def table() -> str:
    """The matrix as Markdown, and what failed in it."""
    failures: list[str] = []
    lines = [f"| host | {' | '.join(PROPERTIES)} |", f"| --- |{' ---: |' * len(PROPERTIES)}"]
    for host in all_hosts():
        cells = [cell(host, name, failures) for name in PROPERTIES]
        lines.append(f"| {host.name} | {' | '.join(cells)} |")
    found = ["", "What fails:", "", *failures] if failures else ["", "Nothing fails."]
    return "\n".join([*lines, *found, ""])


def main() -> None:
    """Rewrite the part of the page between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
