"""Plots of speed, and of accuracy against speed."""

from __future__ import annotations

from pathlib import Path

from common import ASSETS

from blocks import findings, speed


def files() -> dict[Path, str]:
    """Draw the plots."""
    return {
        ASSETS / "speed.svg": speed.picture(),
        ASSETS / "accuracy-speed.svg": findings.picture(),
    }
