"""Layers of other packages beside the mixers of ours that do the same, in a result of scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rifflemix.lab.bench.peers import PEERS
from rifflemix.lab.bench.rows import FORWARD_BACKWARD, LAYER, PEER


@dataclass(frozen=True)
class Beside:
    """Ours over a package's, forward and backward, at one shape: below 1 ours takes less.

    Attributes:
        mixer, package: their names.
        shape: batch, tokens, channels, heads.
        time: ratio of the median times.
        low, high: what the spread of both allows: p20 over p80, and p80 over p20.
        memory: ratio of the peaks.
    """

    mixer: str
    package: str
    shape: Mapping[str, int]
    time: float
    low: float
    high: float
    memory: float


def beside_packages(result: Mapping[str, Any]) -> Iterator[Beside]:
    """Package after package, at every shape where both were measured.

    Args:
        result: of `rifflemix bench scaling --peers`.
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
