"""Blocks on speed: tables of `rifflemix bench`, times on a GPU, and the sentences of README."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charts import Curve, panels
from common import ASSETS, cite, link, newest_benchmark, passes_by_tokens, training
from store import newest

from rifflemix.lab.bench.rows import PEER, BenchTable
from rifflemix.lab.bench.tables import PASS_TITLES, bench_notes, bench_tables
from rifflemix.lab.report.units import format_bytes
from rifflemix.mixers import HEADLINE, list_mixers
from rifflemix.text import bold, code, table_lines

TOKENS = 4096
_LEFT_OUT = ("p20 to p80", "Samples/s", "Tokens/s", "In kernels, %")
_SHOWN = ("softmax", "csp", "tssa", "butterfly")
_ON_GPU = ("scaling", "cuda", "bfloat16")
_Times = Mapping[str, Mapping[int, float]]


# Training time of one layer on a CPU and a GPU.


@functools.cache
def all_times() -> tuple[_Times, ...]:
    """Return the seconds on a CPU, on a GPU from Python, and on a GPU in a CUDA graph."""
    graph: dict[str, dict[int, float]] = {}
    for row in newest("layer-times-*").content["rows"]:
        graph.setdefault(row["name"], {})[row["tokens"]] = row["forward_backward"]["median"]
    contents = (newest_benchmark("scaling").content, newest_benchmark(*_ON_GPU).content)
    from_python = (training(of, "p50", of["settings"]["mixers"]) for of in contents)
    return *from_python, graph


def speed_up(times: _Times, name: str, tokens: int = TOKENS) -> float:
    """Return how many times faster than softmax attention a mixer trains."""
    return times["softmax"][tokens] / times[name][tokens]


def factor(value: float) -> str:
    """Format a speed-up."""
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x"


def picture() -> str:
    """Draw training time over tokens, with the speed-ups at 4,096 tokens."""
    cpu, gpu, graph = all_times()

    def curve(times: _Times, name: str, factors: str, *, is_dashed: bool = False) -> Curve:
        points = tuple((float(n), 1e3 * seconds) for n, seconds in times[name].items())
        label = name if name == "softmax" else f"{name}\n{factors}"
        return Curve(name, points, label, is_dashed)

    left = [curve(cpu, name, factor(speed_up(cpu, name))) for name in _SHOWN]
    right = []
    for name in _SHOWN:
        both = f"{factor(speed_up(gpu, name))}, {factor(speed_up(graph, name))}"
        right += [curve(gpu, name, both), curve(graph, name, both, is_dashed=True)]
    return panels(
        "Milliseconds to train one layer for one step; factors: times faster than softmax at "
        f"{TOKENS:,} tokens",
        {"CPU, 2 cores": left, "H200 from Python;\ndashed: CUDA graph": right}, "tokens", TOKENS,
    )  # fmt: skip


def summary(page: Path, _: list[str]) -> str:
    """Write the picture, the speed-ups of training on a CPU and a GPU, and the limit on a GPU."""
    gpu = all_times()[1]
    least, most = min(gpu["csp"]), max(gpu["csp"])
    others = [speed_up(gpu, name, least) for name in _SHOWN if name != "softmax"]
    on_cpu, on_gpu, in_graph = (factor(speed_up(times, "csp")) for times in all_times())
    timed, captured = newest_benchmark("scaling"), newest("layer-times-*")
    links = f"[CPU and H200]({link(page, timed.path)}), [CUDA graphs]({link(page, captured.path)})"
    return (
        "![Training time over tokens: softmax attention grows with the square of the length. At "
        f"{TOKENS:,} tokens csp is {on_cpu} faster on a CPU, {on_gpu} on an H200, and {in_graph} "
        f"in a CUDA graph.]({link(page, ASSETS / 'speed.svg')})\n\n"
        f"At {TOKENS:,} tokens one `csp` layer trains **{on_cpu} faster** than PyTorch's fused "
        f"softmax attention on two CPU cores. On an H200 it trains **{on_gpu}** faster from Python "
        f"and **{in_graph}** faster in a CUDA graph; at {most:,} tokens it is "
        f"{factor(speed_up(gpu, 'csp', most))} faster from Python. **Below about {least:,} tokens "
        f"on a GPU there is nothing to gain**: from Python, the mixers in the picture reach "
        f"{min(others):.2f}x to {max(others):.2f}x there. Data: {links}."
    )


# Short tables of `rifflemix bench`.


def results(page: Path, options: list[str]) -> str:
    """Write a short table of the newest result: BENCHMARK, DEVICE, TYPE."""
    result = newest_benchmark(*options)
    table = short_table(result.content)
    shown = [i for i, header in enumerate(table.headers) if header not in _LEFT_OUT]
    headers, *rows = ([cells[i] for i in shown] for cells in (table.headers, *table.rows))
    lines = table_lines(headers, rows, range(1, len(headers)))
    note = f"{bench_notes(result.content)[0]}. From {cite(page, result)}."
    return "\n".join([bold(table.title), "", *lines, "", note])


def short_table(content: Mapping[str, Any]) -> BenchTable:
    """Make a table of the headline mixers, for layers or models.

    The table shows training; of models at several lengths it shows inference. Layers of packages
    are left out. Models of packages stay: each is next to a model of rifflemix of the same size.
    """
    are_models = content["benchmark"] == "models"
    others = set(list_mixers()) - set(HEADLINE)
    shown = {
        key: [
            entry
            for entry in content.get(key, ())
            if (are_models or entry["kind"] != PEER) and entry["name"] not in others
        ]
        for key in ("rows", "growth")
    }
    tables = bench_tables({**content, **shown})
    if are_models and tables[0].headers[1].startswith("N="):
        return tables[0]
    layers = f"{PASS_TITLES['forward_backward']}, ms (x softmax)"
    ending = f": {PASS_TITLES['training_step']}" if are_models else layers
    (table,) = (table for table in tables if table.title.endswith(ending))
    return table


def streaming(page: Path, _: list[str]) -> str:
    """Write training time, decoding time and state of causal layers."""
    timed, decoded = newest_benchmark("causal/scaling"), newest("decode-*")
    steps = {row["name"]: row for row in decoded.content["rows"]}  # the longest context is the last
    lengths, context = timed.content["settings"]["tokens"], decoded.content["settings"]["contexts"]
    lines = []
    for name in timed.content["settings"]["mixers"]:
        passes, step = passes_by_tokens(timed.content, name), steps[name]
        lines.append([
            code(name),
            *(_milliseconds(passes[tokens]["forward_backward"]) for tokens in lengths),
            _milliseconds(step["passes"]["step"]),
            format_bytes(step["extra"]["state_bytes"]),
        ])  # fmt: skip
    training = [f"Training, N={tokens:,}, ms" for tokens in lengths]
    headers = ["", *training, f"Decoding, N={context[-1]:,}, ms", "State"]
    note = (
        f"Layers of {timed.content['settings']['dim']} channels on one CPU core. Decoding is the "
        f"time of one more token. {bench_notes(timed.content)[0]}. From {cite(page, timed)} and "
        f"{cite(page, decoded)}."
    )
    return "\n".join([*table_lines(headers, lines, range(1, len(headers))), "", note])


def _milliseconds(passes: Mapping[str, float]) -> str:
    value = 1e3 * passes["p50"]
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# Times of layers on a GPU.


def gpu_layers(page: Path, options: list[str]) -> str:
    """Write the times of layers from Python and in CUDA graphs, next to each other: PASS."""
    (kind,) = options
    timed, captured = newest_benchmark(*_ON_GPU), newest("layer-times-*")
    seconds = {
        ("Python", row["shape"]["tokens"], row["name"]): row["passes"][kind]["p50"]
        for row in timed.content["rows"]
        if row["kind"] != PEER
    } | {
        ("graph", row["tokens"], row["name"]): row[kind]["median"]
        for row in captured.content["rows"]
        if kind in row
    }
    columns = sorted({key[:2] for key in seconds}, key=lambda key: (key[1], key[0] == "graph"))
    rows = [
        [name, *(_relative(seconds.get((*of, name)), seconds[*of, "softmax"]) for of in columns)]
        for name in dict.fromkeys(row["name"] for row in captured.content["rows"])
    ]
    headers = ["ms (x softmax)", *(f"N={tokens:,}, {way}" for way, tokens in columns)]
    sizes, environment = captured.content, timed.content["environment"]
    note = (
        f"{sizes['batch']} sequences, {sizes['channels']} channels, {sizes['heads']} heads, "
        f"{sizes['dtype']}; {environment['hardware']['gpu']}, torch "
        f"{environment['libraries']['torch']}, {environment['time'][:10]}. From "
        f"{cite(page, timed)} and {cite(page, captured)}. An empty cell was not measured."
    )
    title = bold("Forward" if kind == "forward" else "Forward and backward")
    return "\n".join([title, "", *table_lines(headers, rows, range(1, len(headers))), "", note])


def _relative(seconds: float | None, softmax: float) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3g} ({seconds / softmax:.2f})"


WRITERS = {
    "speed-up": summary,
    "results": results,
    "streaming": streaming,
    "gpu-layers": gpu_layers,
}
