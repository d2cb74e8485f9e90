"""Training time of one layer on a CPU and a GPU: the picture and the sentences of README."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from charts import Curve, panels
from paths import ASSETS, link
from store import newest

from blocks.common import newest_benchmark, passes_by_tokens

TOKENS = 4096
_SHOWN = ("softmax", "csp", "tssa", "butterfly")
_Times = Mapping[str, Mapping[int, float]]


def scaling_times(device: str, dtype: str) -> _Times:
    """Return the seconds of a training pass by mixer and tokens, called from Python."""
    content = newest_benchmark("scaling", device, dtype).content
    return {
        name: {
            tokens: passes["forward_backward"]["p50"]
            for tokens, passes in passes_by_tokens(content, name).items()
        }
        for name in content["settings"]["mixers"]
    }


def graph_times() -> _Times:
    """Return the seconds of a training pass in a CUDA graph, by mixer and tokens."""
    times: dict[str, dict[int, float]] = {}
    for row in newest("layer-times-*").content["rows"]:
        times.setdefault(row["name"], {})[row["tokens"]] = row["forward_backward"]["median"]
    return times


def speed_up(times: _Times, name: str, tokens: int = TOKENS) -> float:
    """Return how many times faster than softmax attention a mixer trains."""
    return times["softmax"][tokens] / times[name][tokens]


def factor(value: float) -> str:
    """Format a speed-up."""
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x"


def picture() -> str:
    """Draw training time over tokens, with the speed-ups at 4,096 tokens."""
    cpu, gpu, graph = (
        scaling_times("cpu", "float32"),
        scaling_times("cuda", "bfloat16"),
        graph_times(),
    )

    def curve(times: _Times, name: str, factors: str, *, is_dashed: bool = False) -> Curve:
        points = tuple((float(n), 1e3 * seconds) for n, seconds in times[name].items())
        label = name if name == "softmax" else f"{name} {factors}"
        return Curve(name, points, label, is_dashed)

    left = [curve(cpu, name, factor(speed_up(cpu, name))) for name in _SHOWN]
    right = []
    for name in _SHOWN:
        both = f"{factor(speed_up(gpu, name))}, {factor(speed_up(graph, name))}"
        right += [curve(gpu, name, both), curve(graph, name, both, is_dashed=True)]
    return panels(
        "Training time of one layer; factors: times faster than softmax at 4,096 tokens",
        {"CPU, 2 cores": left, "H200: from Python; dashed: CUDA graph": right},
        "milliseconds", TOKENS,
    )  # fmt: skip


def summary(page: Path, _: list[str]) -> str:
    """Write the picture, the speed-ups of training on a CPU and a GPU, and the limit on a GPU."""
    cpu, gpu, graph = (
        scaling_times("cpu", "float32"),
        scaling_times("cuda", "bfloat16"),
        graph_times(),
    )
    least, most = min(gpu["csp"]), max(gpu["csp"])
    others = [speed_up(gpu, name, least) for name in _SHOWN if name != "softmax"]
    on_cpu, on_gpu, in_graph = (factor(speed_up(times, "csp")) for times in (cpu, gpu, graph))
    timed, captured = newest_benchmark("scaling"), newest("layer-times-*")
    links = f"[CPU and H200]({link(page, timed.path)}), [CUDA graphs]({link(page, captured.path)})"
    alt = (
        f"Training time over tokens: softmax attention grows with the square of the length. At "
        f"{TOKENS:,} tokens csp is {on_cpu} faster on a CPU, {on_gpu} on an H200, and {in_graph} "
        "in a CUDA graph."
    )
    return (
        f"![{alt}]({link(page, ASSETS / 'speed.svg')})\n\n"
        f"At {TOKENS:,} tokens one `csp` layer trains **{on_cpu} faster** than PyTorch's fused "
        f"softmax attention on two CPU cores. On an H200 it trains **{on_gpu}** faster from Python "
        f"and **{in_graph}** faster in a CUDA graph; at {most:,} tokens it is "
        f"{factor(speed_up(gpu, 'csp', most))} faster from Python. **Below about {least:,} tokens "
        f"on a GPU there is nothing to gain**: called from Python, the mixers in the picture reach "
        f"{min(others):.2f}x to {max(others):.2f}x at {least:,} tokens. Data: {links}."
    )


WRITERS = {"speed-up": summary}
