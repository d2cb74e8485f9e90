"""Import the scripts in docs/build that measure and judge the papers' claims."""

from __future__ import annotations

import importlib
from types import ModuleType

from document_scripts import REPOSITORY

DOCS = REPOSITORY / "docs"


def claims_module(name: str) -> ModuleType:
    """Import a module of docs/build."""
    return importlib.import_module(name)
