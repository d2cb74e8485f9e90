"""Folders of the repository, and the modules that scripts share with benchmarks/."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

BUILD = Path(__file__).resolve().parent
DOCS, ROOT = BUILD.parent, BUILD.parents[1]
DATA, ASSETS = DOCS / "data", DOCS / "assets"
sys.path += [str(ROOT / "benchmarks")]


def link(page: Path, target: Path) -> str:
    """Return the link from a page to a file."""
    return os.path.relpath(target, page.parent).replace(os.sep, "/")


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
