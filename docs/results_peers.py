"""What docs/results.md says of our baselines beside the packages that people use."""

from __future__ import annotations

from itertools import groupby

from results_common import RESULTS, Answer, listed, pages
from results_pictures import Mark, Row, dots

from rifflemix.lab.bench.beside import Beside, beside_packages
from rifflemix.lab.bench.read import read_result


def packages() -> Answer:
    """Time and memory of layers of ours over those of the packages' layers."""
    path = pages.newest(RESULTS, "peers/scaling", "cpu", "float32")
    result = read_result(path)
    pairs = list(beside_packages(result))
    drawn: list[Row] = []
    for (mixer, package), sizes in groupby(pairs, lambda pair: (pair.mixer, pair.package)):
        drawn.append(Row(f"{mixer} / {package}"))
        drawn += [
            Row(
                f"N = {pair.shape['tokens']:,}",
                (Mark(pair.time, "main", pair.low, pair.high), Mark(pair.memory, "other")),
                f"{pair.time:.2f}; {pair.memory:.2f} memory",
            )
            for pair in sizes
        ]
    slower = [_where(pair, pair.time) for pair in pairs if pair.low > 1]
    larger = [_where(pair, pair.memory) for pair in pairs if pair.memory > 1.005]
    says = (
        f"A layer of {result['settings']['dim']} channels, forward and backward, ours over the "
        f"package's: below 1 ours takes less. Ours is slower by more than the spread of the "
        f"timings in {listed(slower) or 'none'}; it takes more memory in "
        f"{listed(larger) or 'none'}. Disks are times, bars go from p20 / p80 to p80 / p20, rings "
        "are peak memory. Our queries, keys and values come from one linear map, whose three "
        "gradients exist at once: N x C numbers more than with three maps, which shows at small N."
    )
    table = [
        {
            "mixer": pair.mixer,
            "package": pair.package,
            **pair.shape,
            **{key: getattr(pair, key) for key in ("time", "low", "high", "memory")},
        }
        for pair in pairs
    ]
    return Answer("Are the baselines as fast as the packages people use?", says, "packages",
                  dots("Ours over the package's", drawn, rule=1.0), table, [path],
                  [result["environment"]["command"]])  # fmt: skip


def _where(pair: Beside, ratio: float) -> str:
    return f"{pair.mixer} at N = {pair.shape['tokens']:,} ({ratio:.2f})"
