"""Measure time and memory, and compare mixers."""

from rifflemix.models.macs import multiply_accumulates
from rifflemix.runs.environment import describe_hardware, environment
from rifflemix.runs.measure import median, median_seconds, peak_memory

__all__ = [
    "describe_hardware",
    "environment",
    "median",
    "median_seconds",
    "multiply_accumulates",
    "peak_memory",
]
