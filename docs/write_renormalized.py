"""Measures causal TSSA between equations (33) and (34), for docs/mixers/tssa.md: under a minute.

Projected tokens are drawn, not trained: independent normal numbers, or the same whose scale wanders
along the sequence, of each feature by itself. It writes docs/mixers/tssa-renormalized.csv and the
table between the marks of the page.

    python docs/write_renormalized.py
"""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import torch
from torch import Tensor

from rifflemix.files import write_bytes
from rifflemix.lab.report.markdown import write_marked_text
from rifflemix.ops import token_statistics
from rifflemix.ops.statistics.common import ENERGY_FLOOR, renewal_counts
from rifflemix.ops.statistics.unchecked import renormalized_token_statistics
from rifflemix.text import table_lines

FOLDER = Path(__file__).resolve().parent / "mixers"
PAGE, ROWS = FOLDER / "tssa.md", FOLDER / "tssa-renormalized.csv"
LENGTHS = (127, 511, 2047)  # one token before each form's next renewal: its worst case
FORMS: dict[int | str, str] = {10_000: "never (34)", "doubling": "doubling", 128: "128", 16: "16"}
KINDS, TEMPERATURES = ("alike", "wandering"), (1.0, 32.0)
SAMPLES, HEADS, FEATURES = 4, 8, 32


def drawn(length: int, kind: str) -> Tensor:
    """(B, H, N, D) projected tokens."""
    generator = torch.Generator().manual_seed(0)
    shape = (SAMPLES, HEADS, length, FEATURES)
    w = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "alike":
        return w
    steps = torch.randn(shape, generator=generator, dtype=torch.float64)
    return w * (steps.cumsum(2) * (4 / length) ** 0.5).exp()


def memberships(w: Tensor, temperature: Tensor, every: int | str) -> Tensor:
    """(B, H, N) those that the sums of the last token are made of."""
    length = w.shape[2]
    squares = w.square()
    energy = squares.cumsum(2).clamp_min(ENERGY_FLOOR)
    renewed = max((0, *renewal_counts(every, length)))
    of = torch.arange(length).clamp_min(renewed - 1)
    scores = (squares / energy[:, :, of]).sum(-1)
    return torch.softmax(temperature[:, None] * scores, dim=1)


def measured(length: int, kind: str, factor: float, every: int | str) -> tuple[float, float]:
    """Mean total variation to (33)'s memberships, and error of the last tokens' outputs."""
    w, temperature = drawn(length, kind), torch.full((HEADS,), factor, dtype=torch.float64)
    y, pi = token_statistics(w, temperature, return_membership=True)
    found, _ = renormalized_token_statistics(w, temperature, None, every)
    drift = 0.5 * (memberships(w, temperature, every) - pi).abs().sum(1).mean()
    last, truth = found[:, :, -1], y[:, :, -1]
    return float(drift), float((last - truth).norm() / truth.norm())


def main() -> None:
    """Write the rows, and the table between the marks of the page."""
    rows, lines = io.StringIO(), []
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(("tokens", "temperature", "renormalize_every", "N", "drift", "output_error"))
    for kind, factor in itertools.product(KINDS, TEMPERATURES):
        for every, name in FORMS.items():
            found = [measured(length, kind, factor, every) for length in LENGTHS]
            cells = [f"{100 * drift:.2g} %, {100 * error:.2g} %" for drift, error in found]
            lines.append([kind, f"{factor:g}", name, *cells])
            for length, numbers in zip(LENGTHS, found, strict=True):
                exact = (f"{number:.4g}" for number in numbers)
                writer.writerow((kind, factor, name, length, *exact))
    write_bytes(ROWS, rows.getvalue().encode())
    headers = ["tokens", "temperature", "renewed every", *(f"N = {n:,}" for n in LENGTHS)]
    table = "\n".join(table_lines(headers, lines, range(3, 6)))
    note = f"Drift, error of the last output. From [{ROWS.name}]({ROWS.name})."
    write_marked_text(PAGE, "renormalized", f"{table}\n\n{note}")


if __name__ == "__main__":
    main()
