"""Packed sequences against padding: time of one layer on the same sequences.

Every mixer whose card says `packed`, forward alone (evaluation, no gradients) and forward with
backward, on a CPU:

    packed    all sequences in one row, with `cu_seqlens`
    padded    a batch as long as the longest, with `key_padding_mask`
    equal     as many tokens in sequences of equal length, without either: what packing could be

    python benchmarks/packed.py --out benchmarks/results

writes a new file there and the tables of docs/packed.md; some minutes of one core.
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.files import write_json
from rifflemix.lab.report.markdown import write_marked_text
from rifflemix.lab.runs.environment import describe_hardware, environment
from rifflemix.lab.runs.measure import median, median_seconds
from rifflemix.text import Markdown, code, table_lines

PAGE = Path(__file__).resolve().parents[1] / "docs" / "packed.md"
DIM, HEADS, SEED = 128, 4, 0
ROWS = {
    "8 sequences of 256 to 4,096 tokens": (8, 256, 4096),
    "512 sequences of 8 to 64 tokens": (512, 8, 64),
}
FORMS = tuple(
    (name, causal)
    for name in ("tssa", "csp", "sliceformer", "linear", "softmax")
    for causal in (False, True)
)
PHASES, WAYS = ("forward", "training"), ("packed", "padded", "equal")


def draw_lengths(count: int, shortest: int, longest: int) -> list[int]:
    """Lengths of which most are short, as those of texts: uniform in their logarithm.

    The first is the longest, so that padding does not depend on the draw.
    """
    share = torch.rand(count, generator=torch.Generator().manual_seed(SEED))
    drawn = [int(shortest * (longest / shortest) ** u) for u in share.tolist()]
    return [longest, *drawn[1:]]


def ways(mixer: rm.TokenMixer, lengths: list[int]) -> dict[str, tuple[Tensor, Callable[[], Any]]]:
    """Way -> its input, and the call."""
    total, longest = sum(lengths), max(lengths)
    bounds = torch.tensor((0, *accumulate(lengths)))
    mask = torch.arange(longest) >= torch.tensor(lengths).unsqueeze(1)
    row, padded, equal = (
        torch.randn(*size, DIM).requires_grad_()
        for size in ((1, total), (len(lengths), longest), (len(lengths), total // len(lengths)))
    )
    return {
        "packed": (row, lambda: mixer(row, cu_seqlens=bounds)),
        "padded": (padded, lambda: mixer(padded, key_padding_mask=mask)),
        "equal": (equal, lambda: mixer(equal)),
    }


def evaluation(call: Callable[[], Any]) -> Callable[[], None]:
    """The call without gradients."""

    def run() -> None:
        with torch.no_grad():
            call()

    return run


def training(x: Tensor, mixer: rm.TokenMixer, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call and all its gradients."""
    leaves = (x, *mixer.parameters())
    return lambda: torch.autograd.grad(call().sum(), leaves)


def measure(name: str, causal: bool, kind: str, repeats: int) -> list[dict[str, Any]]:
    """A row for each phase: seconds of every way."""
    lengths = draw_lengths(*ROWS[kind])
    torch.manual_seed(SEED)
    mixer = rm.create_mixer(name, DIM, num_heads=HEADS, max_length=max(lengths), causal=causal)
    calls = ways(mixer, lengths)
    rows = []
    for phase in PHASES:
        mixer.train(phase == "training")
        timed = {
            way: evaluation(call) if phase == "forward" else training(x, mixer, call)
            for way, (x, call) in calls.items()
        }
        taken = median_seconds(timed, torch.device("cpu"), repeats=repeats, max_seconds=5.0)
        seconds = {way: median(times) for way, times in taken.items()}
        row = {"mixer": name, "causal": causal, "lengths": kind, "phase": phase, "times": taken}
        rows.append({**row, "seconds": seconds})
        print(name, causal, kind, phase, {way: f"{1e3 * t:.1f}" for way, t in seconds.items()})
    return rows


def table(result: dict[str, Any], kind: str) -> str:
    """Of one set of lengths: packed in milliseconds, and how many times that the others take."""
    lengths = result["lengths"][kind]
    filled = sum(lengths) / (len(lengths) * max(lengths))
    lines = []
    for name, causal in FORMS:
        cells = []
        for phase in PHASES:
            (seconds,) = (
                row["seconds"]
                for row in result["rows"]
                if (row["mixer"], row["causal"], row["lengths"], row["phase"])
                == (name, causal, kind, phase)
            )
            packed = seconds["packed"]
            others = (f"{seconds[way] / packed:.2g}x" for way in WAYS[1:])
            cells += [f"{1e3 * packed:,.0f}", *others]
        lines.append([Markdown(f"{code(name)}{', causal' if causal else ''}"), *cells])
    headers = [
        head
        for phase in PHASES
        for head in (f"{phase}, packed, ms", "padded takes", "equal lengths take")
    ]
    caption = (
        f"{kind}, {sum(lengths):,} in all, {len(set(lengths))} different lengths; "
        f"padding would leave {100 * filled:.0f} % of a batch filled:"
    )
    return "\n".join(
        [caption, "", *table_lines(["mixer", *headers], lines, range(1, len(headers) + 1))]
    )


def write_page(result: dict[str, Any], path: Path) -> None:
    """The tables, and where they are from."""
    tables = "\n\n".join(table(result, kind) for kind in ROWS)
    source = (
        f"One layer of {DIM} channels and {HEADS} heads on {result['hardware']}; "
        f"from [{path.name}](../benchmarks/results/{path.name})."
    )
    write_marked_text(PAGE, "packed", f"{tables}\n\n{source}")


def main() -> None:
    """Measure everything, write the file and the page."""
    parser = argparse.ArgumentParser(description="packed sequences against padding")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    here = environment()
    result = {
        "format": "rifflemix.packed/1",
        "dim": DIM,
        "heads": HEADS,
        "lengths": {kind: draw_lengths(*bounds) for kind, bounds in ROWS.items()},
        "rows": [
            row
            for kind in ROWS
            for name, causal in FORMS
            for row in measure(name, causal, kind, given.repeats)
        ],
        "hardware": describe_hardware(here),
        "environment": here,
    }
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    path = given.out / f"packed-{stamp}.json"
    write_json(path, result)
    write_page(result, path)


if __name__ == "__main__":
    main()
