from __future__ import annotations

import pytest

from rifflemix.lab.report.units import (
    format_bytes,
    format_duration,
    format_metric,
    format_percent,
    format_rate,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.50 KiB"),
        (28 * 2**20, "28.0 MiB"),
        (139 * 2**30, "139 GiB"),
        (5 * 2**50, "5120 TiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234")],
)
def test_format_rate(value: float, text: str) -> None:
    assert format_rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (75, "1 min 15 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (3725, "1 h 02 min"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_format_percent() -> None:
    assert format_percent(0.98765) == "98.77"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("accuracy", "50.00 %"),
        ("top5_accuracy", "50.00 %"),
        ("lambada_accuracy", "50.00 %"),
        ("accuracy_deviation", "0.5"),
        ("inaccuracy", "0.5"),
        ("perplexity", "0.5"),
    ],
)
def test_format_metric(name: str, text: str) -> None:
    assert format_metric(name, 0.5) == text
