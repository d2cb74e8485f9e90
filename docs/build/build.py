"""Write the generated pages, tables and pictures of the documentation.

    python docs/build/build.py                      all targets that take seconds
    python docs/build/build.py TARGET [TARGET ...]  some targets
    python docs/build/build.py SLOW [NAME ...]      a target that measures or runs again

Numbers come from the CSV files in benchmarks/results and docs/data.

Targets:
    blocks        blocks between comments in all pages
    claims        docs/claims.md
    cli           docs/cli.md
    drawings      drawings of the mixer families
    pathfinder    pictures of docs/pathfinder.md
    plots         plots of speed, and of accuracy against speed
    recall        plot of docs/recall.md
    results       docs/results.md and docs/result-files.md, their pictures and tables
    try           docs/try.html

Slow targets:
    costs         costs of training steps; NAME: parts of recipe names to count again
    notebooks     outputs of docs/notebooks; NAME: notebooks
    recall-data   docs/data/recall.csv; NAME: results folder of a suite of recall tasks
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from common import ASSETS, DATA, DOCS

# Target -> module with a function `files` that returns {path: content}.
TARGETS = {
    "blocks": "blocks",
    "claims": "claims.page",
    "cli": "cli_page",
    "drawings": "drawings",
    "pathfinder": "blocks.pathfinder",
    "plots": "blocks.findings",
    "recall": "recall",
    "results": "sections.page",
    "try": "try_page",
}
SLOW = ("costs", "notebooks", "recall-data")


def files_of(target: str) -> dict[Path, bytes]:
    """Return the content of every file of a target."""
    found = import_module(TARGETS[target]).files()
    return {
        path: text if isinstance(text, bytes) else text.encode() for path, text in found.items()
    }


def write(targets: Iterable[str]) -> None:
    """Write the files of targets that changed."""
    for folder in (ASSETS, DATA):
        folder.mkdir(exist_ok=True)
    for target in targets:
        for path, content in files_of(target).items():
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)
                print(path.relative_to(DOCS.parent))


def main(words: Sequence[str]) -> int:
    """Write targets; return 0, or 2 for an unknown target."""
    if words and words[0] in SLOW:
        module = words[0].removesuffix("-data")
        return int(import_module(module).main(words[1:]) or 0)
    if unknown := [word for word in words if word not in TARGETS]:
        print(__doc__, file=sys.stderr)
        if unknown[0] in ("-h", "--help"):
            return 0
        known = ", ".join((*TARGETS, *SLOW))
        print(f"target: expected one of {known}, got {unknown[0]}", file=sys.stderr)
        return 2
    write(words or TARGETS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
