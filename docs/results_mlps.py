"""The question of docs/results.md about butterfly MLPs beside dense ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from results_common import Answer, by_time, read
from results_pictures import Curve, curves

TITLES = {
    "dense": "dense",
    "butterfly_linear": "butterfly-linear",
    "butterfly_mlp": "butterfly",
}


def butterfly_mlps() -> Answer:
    """Layers by width, and the models of Dimension Mixer's Table 3."""
    path = by_time("butterfly-mlps-*.json")[-1]
    result = read(path)
    layers = {(row["width"], row["mlp"]): row for row in result["layers"]}
    widths = sorted({width for width, _ in layers})
    drawn = []
    for mlp in list(TITLES)[1:]:
        ratios = [_ratio(layers, width, mlp, "training_seconds") for width in widths]
        drawn.append(Curve(TITLES[mlp], tuple(zip(map(float, widths), ratios, strict=True))))
    held = [_ratio(layers, width, "butterfly_mlp", "training_memory_bytes") for width in widths]
    times = dict(drawn[-1].points)
    slower = [f"{width:,}" for width in widths if times[width] >= 1]
    says = (
        f"In training a butterfly MLP takes {times[widths[-1]]:.2f} of the dense one's time at "
        f"{widths[-1]:,} features, {times[1024]:.2f} at 1,024 and {times[121]:.2f} at 121; "
        + (f"at {', '.join(slower)} it is no faster. " if slower else "it is faster at all. ")
        + f"It holds {held[0]:.2f} of the memory at {widths[0]:,} and {held[-1]:.2f} at "
        f"{widths[-1]:,}, because its backward pass recomputes what lies between its maps. Below, "
        "a training step of the MLP-Mixers of Table 3 on 64 images of CIFAR-10's size, one thread."
    )
    table = [
        {"of": of, **{key: row.get(key, "") for key in ("width", "expansion")}, **row}
        for of, rows in (("layer", result["layers"]), ("model", result["models"]))
        for row in rows
    ]
    picture = curves("Training time of an MLP over its width, x the dense one's", drawn, rule=1.0)
    return Answer("From which width is a butterfly MLP faster than a dense one?", says,
                  "butterfly-mlps", picture, table, [path],
                  ["python benchmarks/butterfly_mlps.py --out benchmarks/results"],
                  _models(result["models"]))  # fmt: skip


def _ratio(layers: Mapping[Any, Mapping[str, Any]], width: int, mlp: str, key: str) -> float:
    """A value of an MLP in multiples of the dense one's."""
    ratio: float = layers[width, mlp][key] / layers[width, "dense"][key]
    return ratio


def _models(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [
        "| MLPs | Expansion | Parameters | Step, ms | Inference, ms | Memory of a step, MiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = (
            TITLES[row["mlp"]],
            row["expansion"],
            f"{row['parameters']:,}",
            f"{1e3 * row['training_seconds']:.0f}",
            f"{1e3 * row['forward_seconds']:.0f}",
            f"{row['training_memory_bytes'] / 2**20:.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
