"""Learning curves of a comparison: a panel for each mixer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rifflemix.lab.comparison.table import comparison_rows
from rifflemix.lab.report.curves import Curve, Panels, panels
from rifflemix.lab.report.units import metric_value


def score_curves(results: Mapping[str, Any], metric: str) -> Panels:
    """The panels of a metric on the validation split, shares in percent, by step."""

    def curve(run: Mapping[str, Any]) -> Curve:
        return [(at["step"], metric_value(metric, at[metric])) for at in run["validation_curve"]]

    return _panels(results, curve)


def loss_curves(results: Mapping[str, Any]) -> Panels:
    """The panels of training loss against the step."""
    return _panels(results, lambda run: [(at["step"], at["loss"]) for at in run["train_curve"]])


def _panels(results: Mapping[str, Any], curve: Callable[[Mapping[str, Any]], Curve]) -> Panels:
    curves: dict[str, list[Curve]] = {}
    for run in results["runs"]:
        curves.setdefault(run["mixer"], []).append(curve(run))
    titles = {row.name: row.title for row in comparison_rows(results) if row.name in curves}
    return panels(titles, curves)
