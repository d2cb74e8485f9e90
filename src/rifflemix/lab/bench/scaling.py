"""`rifflemix bench scaling`: every mixer as a layer over a range of N or C, next to softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rifflemix.errors import bad_argument
from rifflemix.lab.bench.layers import BASELINE, FLOOR, layer_candidates
from rifflemix.lab.bench.peers import PEERS, peer_status
from rifflemix.lab.bench.rows import FORWARD, FORWARD_BACKWARD, LAYER, Key, Row, Shape
from rifflemix.lab.bench.runner import Group, Hooks, Settings, run_benchmark
from rifflemix.mixers import mixer_card, usable_mixers

# A measured exponent contradicts the claim only if it is larger by more than this. A logarithmic
# factor adds 1 / ln N (about 0.1). Tokens that no longer fit into a cache add a little.
_SLACK = 0.15
_STANDARD_ERRORS = 2.0
_FEWEST_POINTS = 3


@dataclass(frozen=True)
class Fit:
    """Power law cost ~ N ** exponent, fitted to the upper half of the range of log N.

    Attributes:
        exponent: slope of log cost against log N, by least squares.
        standard_error: standard error of the slope.
        points: number of fitted points.
        first_tokens, last_tokens: fitted range of N.
    """

    exponent: float
    standard_error: float
    points: int
    first_tokens: int
    last_tokens: int

    def contradicts(self, claimed: float) -> bool:
        """Check whether cost grows faster than claimed, beyond error and slack.

        Slower growth is no contradiction: at moderate N, linear projections dominate the cost.
        """
        return self.exponent - _STANDARD_ERRORS * self.standard_error > claimed + _SLACK


@dataclass(frozen=True)
class Crossover:
    """Number of tokens N from which one cost stays below another.

    Attributes:
        tokens: interpolated N of equal cost. If the cost is lower at every N, the first N; if it
            is not lower at the last N, None.
        always: whether the cost is lower at every N.
        first_tokens, last_tokens: range of N measured for both costs.
    """

    tokens: float | None
    always: bool
    first_tokens: int
    last_tokens: int


def fit_exponent(costs: Mapping[int, float]) -> Fit | None:
    """Fit the upper half of the range of N.

    Returns None for fewer than three points.

    Args:
        costs: N -> seconds, all positive.
    """
    if not costs:
        return None
    middle = math.sqrt(min(costs) * max(costs))
    tokens = sorted(n for n in costs if n >= middle * (1 - 1e-9))
    if len(tokens) < _FEWEST_POINTS:
        return None
    slope, error = _least_squares(
        [math.log(n) for n in tokens], [math.log(costs[n]) for n in tokens]
    )
    return Fit(slope, error, len(tokens), tokens[0], tokens[-1])


def find_crossover(costs: Mapping[int, float], others: Mapping[int, float]) -> Crossover | None:
    """Find the N from which `costs` stay below `others`.

    Returns None if no N was measured for both.

    Args:
        costs: N -> seconds.
        others: N -> seconds of the comparison.
    """
    tokens = sorted(set(costs) & set(others))
    if not tokens:
        return None
    gaps = [math.log(costs[n] / others[n]) for n in tokens]
    last_loss = max((i for i, gap in enumerate(gaps) if gap >= 0), default=-1)
    if last_loss == len(tokens) - 1:
        return Crossover(None, False, tokens[0], tokens[-1])
    if last_loss < 0:
        return Crossover(float(tokens[0]), True, tokens[0], tokens[-1])
    crossing = _crossing(tokens, gaps, last_loss)
    return Crossover(crossing, False, tokens[0], tokens[-1])


def _crossing(tokens: Sequence[int], gaps: Sequence[float], i: int) -> float:
    """Interpolate the N of equal cost on logarithmic scales.

    It is between tokens[i] and tokens[i + 1].
    """
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return float(tokens[i] * (tokens[i + 1] / tokens[i]) ** share)


def _least_squares(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the slope and its standard error."""
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    residuals = (b - mean_y - slope * (a - mean_x) for a, b in zip(x, y, strict=True))
    variance = math.fsum(r * r for r in residuals) / (len(x) - 2)
    return slope, math.sqrt(variance / spread)


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
