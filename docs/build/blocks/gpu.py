"""Blocks of docs/performance.md: times of kernels and layers on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import Result, newest

from blocks.common import cite, newest_benchmark
from rifflemix.text import table_lines

_PASSES = {"forward": "forward", "forward_backward": "forward and backward"}


def device_times(page: Path, _: list[str]) -> str:
    """Write the times of all kernels, by shape and type."""
    result = newest("device-times-*")
    rows, parts = result.content["rows"], []
    for shape, dtype in dict.fromkeys((tuple(row["shape"]), row["dtype"]) for row in rows):
        cells = [
            [
                row["name"],
                f"{1e6 * row['median']:.1f}",
                f"{row['x_copy']:.2f}",
                "" if row["bandwidth"] is None else f"{100 * row['bandwidth']:.0f} %",
            ]
            for row in rows
            if (tuple(row["shape"]), row["dtype"]) == (shape, dtype) and "median" in row
        ]
        headers = ("", "Microseconds", "x copy", "Share of a copy's bandwidth")
        title = f"**{' x '.join(f'{size:,}' for size in shape)}, {dtype}**"
        parts += [title, "", *table_lines(headers, cells, range(1, 4)), ""]
    machine = _machine(result.content["environment"])
    return "\n".join([*parts, f"{machine}. From {cite(page, result)}."])


def layer_times(page: Path, _: list[str]) -> str:
    """Write the times of all layers, in microseconds and relative to softmax attention."""
    result = newest("layer-times-*")
    times = {
        (row["name"], row["tokens"], kind): f"{1e6 * of['median']:.0f} ({of['x_softmax']:.2f})"
        for row in result.content["rows"]
        for kind in _PASSES
        if (of := row.get(kind))
    }
    return _layers(page, result, result.content, times, "us")


def from_python(page: Path, _: list[str]) -> str:
    """Write the times of layers called from Python, in milliseconds and relative to softmax."""
    result = newest_benchmark("scaling", "cuda", "bfloat16")
    seconds = {
        (row["name"], row["shape"]["tokens"], kind): row["passes"][kind]["p50"]
        for row in result.content["rows"]
        for kind in _PASSES
        if row["kind"] != "peer"
    }
    times = {
        (name, *of): f"{1e3 * p50:.3g} ({p50 / seconds['softmax', *of]:.2f})"
        for (name, *of), p50 in seconds.items()
    }
    settings = result.content["settings"]
    return _layers(page, result, {**settings, "channels": settings["dim"]}, times, "ms")


def _layers(
    page: Path,
    result: Result,
    sizes: Mapping[str, Any],
    times: Mapping[tuple[str, int, str], str],
    unit: str,
) -> str:
    """Write a table of times by layer, tokens and pass."""
    names, lengths, _ = (list(dict.fromkeys(keys)) for keys in zip(*times, strict=True))
    columns = [(length, kind) for length in lengths for kind in _PASSES]
    cells = [[name, *(times.get((name, *of), "") for of in columns)] for name in names]
    headers = [f"{unit} (x softmax)", *(f"N={n:,}, {_PASSES[kind]}" for n, kind in columns)]
    source = (
        f"{sizes['batch']} sequences, {sizes['channels']} channels, {sizes['heads']} heads, "
        f"{sizes['dtype']}; {_machine(result.content['environment'])}. From {cite(page, result)}."
    )
    return "\n".join([*table_lines(headers, cells, range(1, len(headers))), "", source])


def _machine(environment: Mapping[str, Any]) -> str:
    libraries = environment["libraries"]
    return (
        f"{environment['hardware']['gpu']}, torch {libraries['torch']}, Triton "
        f"{libraries['triton']}, {environment['time'][:10]}"
    )


WRITERS = {"device-times": device_times, "layer-times": layer_times, "from-python": from_python}
