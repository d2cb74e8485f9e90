"""Write the tables of docs/performance.md from the result files; no number there is typed.

In the page, a pair of comments says what stands between them:

    <!-- results: scaling, cpu, float32 -->
    <!-- /results -->

The newest complete result of that benchmark, device and type in benchmarks/results is taken, and
its plot, where it has one; with `16384/scaling` in place of `scaling`, in benchmarks/results/16384.
Run it after a benchmark: python benchmarks/write_page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rifflemix.report.bench import bench_markdown

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
PAGE = FOLDER.parent / "docs" / "performance.md"
_BLOCK = re.compile(
    r"(<!-- results: ([\w/-]+), (\w+), (\w+) -->\n).*?(<!-- /results -->)", flags=re.DOTALL
)


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with every block written anew."""

    def block(match: re.Match[str]) -> str:
        start, benchmark, device, dtype, end = match.groups()
        return f"{start}\n{_tables(results, benchmark, device, dtype)}\n{end}"

    return _BLOCK.sub(block, page)


def newest(results: Path, benchmark: str, device: str, dtype: str) -> Path | None:
    """The newest complete result, by the time it was measured."""
    found: list[tuple[str, Path]] = []
    *folder, name = benchmark.split("/")
    for path in results.joinpath(*folder).glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        if _matches(result, name, device, dtype):
            found.append((result["environment"]["time"], path))
    return max(found)[1] if found else None


def _matches(result: dict[str, Any], benchmark: str, device: str, dtype: str) -> bool:
    if result.get("benchmark") != benchmark:  # another benchmark, or a comparison
        return False
    settings = result["settings"]
    return (
        result["status"] == "complete"
        and settings["device"].partition(":")[0] == device
        and settings["dtype"] == dtype
    )


def _tables(results: Path, benchmark: str, device: str, dtype: str) -> str:
    path = newest(results, benchmark, device, dtype)
    if path is None:
        *folder, name = benchmark.split("/")
        out = "/".join(["benchmarks/results", *folder])
        options = f"--device {device} --dtype {dtype} --out {out}"
        return f"Not measured yet: `rifflemix bench {name} {options}`\n"
    place, plot = path.relative_to(results), path.with_suffix(".png")
    link = f"../benchmarks/results/{place.with_suffix('.png')}"
    image = f"![{benchmark}]({link})\n\n" if plot.exists() else ""
    tables = bench_markdown(json.loads(path.read_text(encoding="utf-8")))
    return f"{image}{tables}\nFrom `benchmarks/results/{place}`.\n"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
