"""Import the scripts in docs that measure and judge the papers' claims."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[3] / "docs"


def claims_module(name: str) -> ModuleType:
    """Import a script from docs that imports its neighbors by name."""
    if str(DOCS) not in sys.path:
        sys.path.append(str(DOCS))
    return importlib.import_module(name)
