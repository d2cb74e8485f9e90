"""Inspect mixers and models: `trace`, and the analyses behind the papers' figures."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rifflemix.errors import require_packages
from rifflemix.lab.analysis.finding import Analysis, Column, Finding, Subject, View, layer_finding
from rifflemix.lab.analysis.maps import matrix_of, permutation_of
from rifflemix.lab.analysis.registry import (
    get_analysis,
    list_analyses,
    register_analysis,
    usable_analyses,
)
from rifflemix.lab.analysis.subjects import find_subjects, over_training, own_subject
from rifflemix.lab.analysis.trace import Call, trace

if TYPE_CHECKING:
    from rifflemix.lab.analysis.runner import analyze, analyze_into

__all__ = [
    "Analysis",
    "Call",
    "Column",
    "Finding",
    "Subject",
    "View",
    "analyze",
    "analyze_into",
    "find_subjects",
    "get_analysis",
    "layer_finding",
    "list_analyses",
    "matrix_of",
    "over_training",
    "own_subject",
    "permutation_of",
    "register_analysis",
    "trace",
    "usable_analyses",
]
_DRAWN = {"analyze", "analyze_into"}


# Hidden from type checkers, as in `rifflemix`: drawing needs packages that `trace` does not need.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _DRAWN:
            raise AttributeError(f"module 'rifflemix.lab.analysis' has no attribute {name!r}")
        require_packages("a picture", "compare", "matplotlib", "jinja2")
        return getattr(importlib.import_module("rifflemix.lab.analysis.runner"), name)
