"""Compare mixers with the same layers of third-party packages, from a scaling result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rifflemix.lab.bench.peers import PEERS
from rifflemix.lab.bench.rows import FORWARD_BACKWARD, LAYER, PEER


@dataclass(frozen=True)
class Beside:
    """Cost of a mixer relative to the same layer of a package, forward and backward.

    Ratios below 1 mean that the rifflemix mixer is cheaper.

    Attributes:
        mixer, package: names of the mixer and of the package.
        shape: batch, tokens, channels and heads.
        time: ratio of the median times.
        low, high: range of the time ratio: p20 / p80, and p80 / p20.
        memory: ratio of the peak memory.
    """

    mixer: str
    package: str
    shape: Mapping[str, int]
    time: float
    low: float
    high: float
    memory: float


def beside_packages(result: Mapping[str, Any]) -> Iterator[Beside]:
    """Yield a comparison for each package and each shape measured for both.

    Args:
        result: result of `rifflemix bench scaling --peers`.
    """
    timed = {
        (row["kind"], row["name"], *row["shape"].values()): row
        for row in result["rows"]
        if FORWARD_BACKWARD in row["passes"]
    }
    for peer in PEERS:
        for (*named, batch, tokens, channels, heads), row in timed.items():
            ours = timed.get((LAYER, peer.mixer, batch, tokens, channels, heads))
            if named == [PEER, peer.name] and ours is not None:
                yield _beside(ours, row)


def _beside(ours: Mapping[str, Any], package: Mapping[str, Any]) -> Beside:
    mine, theirs = (row["passes"][FORWARD_BACKWARD] for row in (ours, package))
    return Beside(
        mixer=ours["name"],
        package=package["name"],
        shape=package["shape"],
        time=mine["p50"] / theirs["p50"],
        low=mine["p20"] / theirs["p80"],
        high=mine["p80"] / theirs["p20"],
        memory=mine["peak_memory_bytes"] / theirs["peak_memory_bytes"],
    )
