"""Plots of speed, of accuracy against speed, and of the demo."""

from __future__ import annotations

from pathlib import Path

from common import ASSETS

from blocks import comparisons, findings, speed


def files() -> dict[Path, str | bytes]:
    """Draw the plots."""
    return {
        ASSETS / "speed.svg": speed.picture(),
        ASSETS / "accuracy-speed.svg": findings.picture(),
        ASSETS / "demo.png": comparisons.demo_plot(),
    }
