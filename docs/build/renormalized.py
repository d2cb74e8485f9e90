"""Measure causal TSSA between equations (33) and (34), for docs/tssa-memberships.md, in a minute.

The tokens are random, not trained: independent normal numbers, or normal numbers with a scale that
changes along the sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from common import DATA, DOCS, link
from store import csv_text
from torch import Tensor

from rifflemix.lab.report.page import write_marked_text
from rifflemix.ops import token_statistics
from rifflemix.ops.statistics.backends import renormalized_token_statistics
from rifflemix.ops.statistics.common import ENERGY_FLOOR, renewal_counts
from rifflemix.text import table_lines

PAGE, ROWS = DOCS / "tssa-memberships.md", DATA / "tssa-renormalized.csv"
LENGTHS = (127, 511, 2047)  # the last token before a renewal has the largest error
FORMS: dict[int | str, str] = {10_000: "never (34)", "doubling": "doubling", 128: "128", 16: "16"}
KINDS, TEMPERATURES = ("alike", "wandering"), (1.0, 32.0)
SAMPLES, HEADS, FEATURES = 4, 8, 32


def drawn(length: int, kind: str) -> Tensor:
    """Draw projected tokens (B, H, N, D)."""
    generator = torch.Generator().manual_seed(0)
    shape = (SAMPLES, HEADS, length, FEATURES)
    w = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "alike":
        return w
    steps = torch.randn(shape, generator=generator, dtype=torch.float64)
    return w * (steps.cumsum(2) * (4 / length) ** 0.5).exp()


def memberships(w: Tensor, temperature: Tensor, every: int | str) -> Tensor:
    """Compute the memberships (B, H, N) in the sums of the last token."""
    length = w.shape[2]
    squares = w.square()
    energy = squares.cumsum(2).clamp_min(ENERGY_FLOOR)
    renewed = max((0, *renewal_counts(every, length)))
    of = torch.arange(length).clamp_min(renewed - 1)
    scores = (squares / energy[:, :, of]).sum(-1)
    return torch.softmax(temperature[:, None] * scores, dim=1)


def measured(length: int, kind: str, factor: float, every: int | str) -> tuple[float, float]:
    """Return the total variation from memberships of (33), and the error of the last output."""
    w, temperature = drawn(length, kind), torch.full((HEADS,), factor, dtype=torch.float64)
    y, pi = token_statistics(w, temperature, return_membership=True)
    found, _ = renormalized_token_statistics(w, temperature, None, every)
    drift = 0.5 * (memberships(w, temperature, every) - pi).abs().sum(1).mean()
    last, truth = found[:, :, -1], y[:, :, -1]
    return float(drift), float((last - truth).norm() / truth.norm())


def main(_: Sequence[str] = ()) -> None:
    """Write the numbers as CSV, and the table of the page."""
    rows, lines = [], []
    for kind, factor, (every, name) in itertools.product(KINDS, TEMPERATURES, FORMS.items()):
        cells = []
        for length in LENGTHS:
            drift, error = measured(length, kind, factor, every)
            cells.append(f"{100 * drift:.2g} %, {100 * error:.2g} %")
            columns = {"tokens": kind, "temperature": factor, "renormalize_every": name}
            exact = {"N": length, "drift": f"{drift:.4g}", "output_error": f"{error:.4g}"}
            rows.append(columns | exact)
        lines.append([kind, f"{factor:g}", name, *cells])
    ROWS.write_text(csv_text(rows), encoding="utf-8")
    headers = ["tokens", "temperature", "renewed every", *(f"N = {n:,}" for n in LENGTHS)]
    table = "\n".join(table_lines(headers, lines, range(3, 6)))
    note = f"Drift, error of the last output. From [{ROWS.name}]({link(PAGE, ROWS)})."
    write_marked_text(PAGE, "renormalized", f"{table}\n\n{note}")
