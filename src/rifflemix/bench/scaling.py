"""`rifflemix bench scaling`: every mixer as a layer over a range of N, softmax beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rifflemix.bench.fit import find_crossover, fit_exponent
from rifflemix.bench.layers import PROJECTIONS, SOFTMAX, layer_candidates
from rifflemix.bench.peers import PEERS, peer_status
from rifflemix.bench.rows import FORWARD, FORWARD_BACKWARD, Row, Shape
from rifflemix.bench.runner import Group, Hooks, Settings, run_benchmark
from rifflemix.errors import bad_argument
from rifflemix.mixers import list_mixers, mixer_card

DEFAULT_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)


def run(
    tokens: Sequence[int] = DEFAULT_TOKENS,
    *,
    batch: int = 1,
    dim: int = 512,
    heads: int = 8,
    mixers: Sequence[str] | None = None,
    peers: bool = False,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure layers over a range of N, fit the growth of their cost, compare with softmax.

    Args:
        tokens: the N to measure at, each once.
        batch: sequences.
        dim: channels C.
        heads: heads, for layers that have them.
        mixers: registry names, all by default; softmax always takes part.
        peers: let installed packages take part that are made for the same purpose.
        settings: type, device, number of timings and limits.
        hooks: progress, stopping and saving.

    Returns:
        See benchmarks/README.md. Rows of kind "layer" and "peer", passes "forward" and
        "forward_backward", ratios to "two linear maps" and "softmax"; "growth" has exponents and
        crossovers, "peers" says which took part.

    Raises:
        InputError: an unknown mixer, or a setting out of range.
    """
    settings = settings or Settings()
    if not tokens or len(set(tokens)) != len(tokens):
        raise bad_argument("tokens", "at least one number, each only once", list(tokens))
    shapes = [Shape(batch, n, dim, heads) for n in sorted(tokens)]
    names = list_mixers() if mixers is None else [mixer_card(name).name for name in mixers]
    status = [peer_status(peer, settings.torch_device) for peer in PEERS] if peers else []
    present = [peer["name"] for peer in status if peer["takes_part"]]
    candidates = layer_candidates(names, [p for p in PEERS if p.name in present], settings)
    details = {
        "tokens": sorted(tokens), "batch": batch, "dim": dim, "heads": heads,
        "mixers": names, "peers": peers,
    }  # fmt: skip
    return run_benchmark(
        "scaling",
        [Group(shape, candidates, (PROJECTIONS, SOFTMAX)) for shape in shapes],
        settings,
        details,
        hooks=hooks,
        summarise=lambda rows: {"growth": growth(rows), "peers": status},
    )


def growth(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each layer and pass: the fitted exponent, the claimed one, the crossover with softmax."""
    entries = []
    for kind, name in dict.fromkeys((row.kind, row.name) for row in rows):
        claimed = mixer_card(name).cost_exponent if name in list_mixers() else None
        for pass_name in (FORWARD, FORWARD_BACKWARD):
            costs = _costs(rows, name, pass_name)
            fit = fit_exponent(costs)
            softmax = _costs(rows, SOFTMAX, pass_name) if name not in (SOFTMAX, PROJECTIONS) else {}
            crossover = find_crossover(costs, softmax)
            entries.append(
                {
                    "kind": kind,
                    "name": name,
                    "pass": pass_name,
                    "fit": None if fit is None else asdict(fit),
                    "claimed_exponent": claimed,
                    "contradicts_claim": fit.contradicts(claimed) if fit and claimed else None,
                    "crossover": None if crossover is None else asdict(crossover),
                }
            )
    return entries


def _costs(rows: Sequence[Row], name: str, pass_name: str) -> dict[int, float]:
    """N -> median seconds, as far as measured."""
    return {
        row.shape.tokens: row.passes[pass_name].p50
        for row in rows
        if row.name == name and pass_name in row.passes
    }
