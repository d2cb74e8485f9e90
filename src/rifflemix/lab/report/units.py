"""Formatting of numbers, sizes, durations and metrics."""

from __future__ import annotations

MISSING = "-"
"""Text of an empty table cell."""

COUNTED = ("accuracy", "top5_accuracy", "exact_match")
"""Shares of samples. The number of samples determines their standard error."""

SHARES = (*COUNTED, "balanced_accuracy")
"""Metrics between 0 and 1, displayed in percent."""

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: float) -> str:
    """Format bytes with three significant digits: 1536 -> "1.50 KiB"."""
    value = float(count)
    for unit in _BYTE_UNITS[:-1]:
        if value < 999.5:
            return f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} {_BYTE_UNITS[-1]}"


def format_count(count: int) -> str:
    """Format an integer with thousands separators: 1234567 -> "1,234,567"."""
    return f"{count:,}"


def format_rate(per_second: float) -> str:
    """Format a rate, such as 0.0123, 1.23, 12.3 or 1234."""
    return _three_digits(per_second)


def format_duration(seconds: float) -> str:
    """Format a duration: 75 -> "1 min 15 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_percent(fraction: float) -> str:
    """Format a fraction in percent: 0.98765 -> "98.77"."""
    return f"{100 * fraction:.2f}"


def is_share(name: str) -> bool:
    """Return whether a metric, with or without split prefix, is in `SHARES`."""
    return f"_{name}".endswith(tuple(f"_{share}" for share in SHARES))


def metric_title(name: str) -> str:
    """Return a metric's title, such as "accuracy, %" or "bits per byte"."""
    return name.replace("_", " ") + (", %" if is_share(name) else "")


def metric_value(name: str, value: float) -> float:
    """Convert a value to the unit of the metric's title."""
    return 100 * value if is_share(name) else value


def format_metric(name: str, value: float) -> str:
    """Format a share as "98.77 %", other metrics with four significant digits."""
    return f"{format_percent(value)} %" if is_share(name) else f"{value:.4g}"


def _three_digits(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"
