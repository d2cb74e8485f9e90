"""Measure time and memory, and compare mixers."""

from rifflemix.lab.runs.environment import describe_hardware, environment
from rifflemix.lab.runs.measure import median, median_seconds, peak_memory
from rifflemix.models.macs import multiply_accumulates

__all__ = [
    "describe_hardware",
    "environment",
    "median",
    "median_seconds",
    "multiply_accumulates",
    "peak_memory",
]
