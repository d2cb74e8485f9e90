"""`rifflemix bench scaling`: every mixer as a layer over a range of N or C, next to softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rifflemix.errors import bad_argument
from rifflemix.lab.bench.fit import find_crossover, fit_exponent
from rifflemix.lab.bench.layers import BASELINE, FLOOR, layer_candidates
from rifflemix.lab.bench.peers import PEERS, peer_status
from rifflemix.lab.bench.rows import FORWARD, FORWARD_BACKWARD, LAYER, Key, Row, Shape
from rifflemix.lab.bench.runner import Group, Hooks, Settings, run_benchmark
from rifflemix.mixers import mixer_card, usable_mixers

TOKENS, CHANNELS = "tokens", "channels"
DEFAULT_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)


def run(
    tokens: Sequence[int] = DEFAULT_TOKENS,
    *,
    batch: int = 1,
    dim: int = 512,
    dims: Sequence[int] | None = None,
    heads: int = 8,
    mixers: Sequence[str] | None = None,
    causal: bool = False,
    peers: bool = False,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure layers over a range of N or C and fit growth.

    Args:
        tokens: values of N, each once.
        batch: batch size.
        dim: channels C.
        dims: values of C, each once. They replace `dim` and require a single N in `tokens`.
        heads: number of heads, for layers with heads.
        mixers: registry names, all by default; softmax is always included.
        causal: build causal mixers; by default only mixers with a causal form are included.
        peers: include layers of installed third-party packages.
        settings: data type, device, number of timings and limits.
        hooks: callbacks for progress, stopping and saving.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "layer" or "peer" and the
        passes "forward" and "forward_backward". Ratios are to "two linear maps" and "softmax".
        "growth" contains exponents and crossovers. "peers" lists the third-party packages and their
        status.

    Raises:
        InputError: an unknown mixer, a mixer without a causal form, or a setting out of range.
    """
    settings = settings or Settings()
    axis = TOKENS if dims is None else CHANNELS
    shapes = _shapes(tokens, batch, (dim,) if dims is None else dims, heads)
    if dims is not None and len(tokens) != 1:
        raise bad_argument("tokens", "one number where dims are given", list(tokens))
    if causal and peers:
        raise bad_argument("peers", "False for causal layers", peers)
    names = _mixers(mixers, causal)
    status = [peer_status(peer, settings.torch_device) for peer in PEERS] if peers else []
    present = [peer["name"] for peer in status if peer["takes_part"]]
    candidates = layer_candidates(
        names, [p for p in PEERS if p.name in present], settings, causal=causal
    )
    # Mixer cards claim an exponent only for N, not for C.
    claimed = usable_mixers() if axis == TOKENS else []
    claims = {name: mixer_card(name).cost_exponent for name in claimed}
    details = {
        "axis": axis, "tokens": sorted(tokens), "batch": batch, "heads": heads,
        "mixers": names, "causal": causal, "peers": peers,
        **({"dim": dim} if dims is None else {"dims": sorted(dims)}),
    }  # fmt: skip
    return run_benchmark(
        "scaling",
        [Group(shape, candidates, (FLOOR, BASELINE)) for shape in shapes],
        settings,
        details,
        hooks=hooks,
        summarise=lambda rows: {"growth": growth(rows, claims, axis), "peers": status},
    )


def _shapes(tokens: Sequence[int], batch: int, dims: Sequence[int], heads: int) -> list[Shape]:
    """Return shapes for all pairs of N and C."""
    for name, numbers in (("tokens", tokens), ("dims", dims)):
        if not numbers or len(set(numbers)) != len(numbers):
            raise bad_argument(name, "at least one number, each only once", list(numbers))
    return [Shape(batch, n, c, heads) for n in sorted(tokens) for c in sorted(dims)]


def _mixers(names: Sequence[str] | None, causal: bool) -> list[str]:
    """Return the requested mixers, or all mixers that support the request."""
    if names is None:
        return [name for name in usable_mixers() if mixer_card(name).causal or not causal]
    cards = [mixer_card(name) for name in names]
    for card in cards:
        if causal and not card.causal:
            raise bad_argument("mixers", "mixers that can be causal", card.name)
    return [card.name for card in cards]


def growth(
    rows: Sequence[Row], claims: Mapping[str, float | None], axis: str = TOKENS
) -> list[dict[str, Any]]:
    """Compute exponents and crossovers with softmax for each layer and pass.

    Args:
        rows: rows over a range of N or of C.
        claims: mixer -> exponent claimed by its card.
        axis: "tokens" or "channels".
    """
    entries = []
    for key in dict.fromkeys(row.key for row in rows):
        claimed = claims.get(key[1]) if key[0] == LAYER else None
        for pass_name in (FORWARD, FORWARD_BACKWARD):
            costs = _costs(rows, key, pass_name, axis)
            fit = fit_exponent(costs)
            has_other = key not in (BASELINE, FLOOR)
            softmax = _costs(rows, BASELINE, pass_name, axis) if has_other else {}
            crossover = find_crossover(costs, softmax)
            entries.append(
                {
                    "kind": key[0],
                    "name": key[1],
                    "pass": pass_name,
                    "fit": None if fit is None else asdict(fit),
                    "claimed_exponent": claimed,
                    "contradicts_claim": fit.contradicts(claimed) if fit and claimed else None,
                    "crossover": None if crossover is None else asdict(crossover),
                }
            )
    return entries


def _costs(rows: Sequence[Row], key: Key, pass_name: str, axis: str) -> dict[int, float]:
    """Return N or C -> median seconds, for the measured rows."""
    return {
        getattr(row.shape, axis): row.passes[pass_name].p50
        for row in rows
        if row.key == key and pass_name in row.passes
    }
