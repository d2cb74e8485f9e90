"""The strides of a butterfly, in integers: no rounding, no logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import check_divides, check_integer
from rifflemix.errors import bad_argument

_Reached = NDArray[np.bool_]

_CELLS = 2**24  # positions times sources looked at together: 16 MiB


def butterfly_strides(length: int, block: int) -> list[int]:
    """The strides of the sublayers of one complete butterfly.

    They are 1, block, block^2, ... as long as the blocks divide, then length / block. Where these
    do not yet bring every position to every other (24 positions in blocks of 4: 1, 6 reach 16),
    valid strides are appended, each time the one that reaches most, the smallest on ties.

    Args:
        length: n, positions to mix.
        block: a, positions that one group holds; a divisor of `length`, at least 2 unless
            `length` is 1.

    Returns:
        Strides s, each valid (a * s divides n); applied one after the other, each output position
        depends on every input position. `[1]` where one group holds everything.

    Raises:
        InputError: no strides can do it: `block` does not divide `length`, or groups of one
            position would have to mix several.

    Source: Dimension Mixer, Algorithm 1, with integer divisibility instead of its rule, which
    for some lengths is not valid (24 and 4: stride 4) or, made valid, not complete.
    """
    length, block = _check_lengths(length, block)
    if length == block:
        return [1]
    strides = [1]
    while length % (strides[-1] * block * block) == 0:
        strides.append(strides[-1] * block)
    mixed = strides[-1] * block
    if mixed == length:
        return strides
    strides.append(length // block)
    # So far each source fills its aligned run of `mixed` positions; the last stride copies the run
    # to every position that agrees modulo length / block. All positions, then, if the run covers
    # these.
    if mixed >= length // block:
        return strides
    return _completed(strides, mixed, length, block)


def butterfly_layout(
    num_tokens: int, block: int, *, serve_fewer: bool = False
) -> tuple[int, list[int]]:
    """The length to pad to, and strides that bring every token to every other.

    Where `block` divides the tokens nothing is padded and the strides are those of
    `butterfly_strides`. Else padding fills up a length that powers of the block and one last
    stride serve; as nothing travels over a padded position, a second way through some of the
    strides is added where tokens would be cut off.

    Args:
        num_tokens: N, at least 1.
        block: a, tokens per group, at least 2 unless N is 1; N itself where it is larger.
        serve_fewer: the layout is for every number of tokens up to N. Fewer than N may need a
            second pass through the strides. Where the strides of N itself had to be searched,
            which some smaller number can never pass, those of a padded length take their place.

    Returns:
        Padded length, a multiple of the group size min(a, N), and the strides in order.

    Raises:
        InputError: a number out of range.
    """
    block = min(block, num_tokens)
    # Runs at least as long as the last stride serve fewer tokens too: by strides 1, a, ... a token
    # reaches the first one of its run, by the last stride one of the first run, and the second
    # pass goes from there through the first run, and by the last stride everywhere.
    if num_tokens % block == 0 and not (serve_fewer and _is_searched(num_tokens, block)):
        return num_tokens, butterfly_strides(num_tokens, block)
    span = block
    while span * block < num_tokens:
        span *= block
    length = -(-num_tokens // span) * span
    strides = butterfly_strides(length, block)
    last = length // block
    if len(strides) == 2 and num_tokens - (last - 1) * block >= last:
        return length, strides  # the last, shorter block still meets every group of the last stride
    # Each token reaches the lowest position of its group, which is never padding, and so by the
    # last stride a position at or below any other; what is missing then are the strides inside a
    # run.
    is_power = strides[-1] == strides[-2] * block
    way_back = strides[:-1] if is_power or len(strides) == 2 else strides
    return length, strides + way_back


def _is_searched(length: int, block: int) -> bool:
    """Whether the powers of the block and one last stride do not serve a length."""
    run = block
    while run < length // block and length % (run * block) == 0:
        run *= block
    return run < length // block


def _check_lengths(length: int, block: int) -> tuple[int, int]:
    length = check_integer("length", length, 1)
    block = check_divides(
        "block", block, length, "length", "pad the tokens to a multiple of the block"
    )
    if block == 1 and length > 1:
        raise bad_argument(
            "block",
            f"at least 2 to mix {length} positions",
            block,
            "groups of one position mix nothing",
        )
    return length, block


def _completed(strides: list[int], run: int, length: int, block: int) -> list[int]:
    """`strides` with valid ones appended until every position reaches every other.

    It ends: strides 1 and length / block, with the powers between, connect all positions, so from
    an incomplete set some valid stride always reaches further.

    Args:
        strides: the chain so far; its first strides fill aligned runs of `run` positions.
        run: positions that one source fills before the last stride of the chain.
        length: n.
        block: a.
    """
    last = length // block
    valid = [stride for stride in range(1, last + 1) if last % stride == 0]
    chain = list(strides)
    source: int | None = 0
    while source is not None:
        reached = _reached_from([source], chain, length, block)
        while not bool(reached.all()):
            spread = {stride: _spread(reached, stride, block) for stride in valid}
            best = max(valid, key=lambda stride: int(spread[stride].sum()))
            chain.append(best)
            reached = spread[best]
        source = _unserved_source(chain, run, length, block)
    return chain


def _unserved_source(chain: list[int], run: int, length: int, block: int) -> int | None:
    """A position that does not reach all others, or None.

    One source per aligned run is enough, as a run is filled first; and only up to the period of
    the groups, as moving all positions by it (around the end) moves groups onto groups.
    """
    spans = [block * stride for stride in chain if block * stride < length]
    sources = range(0, min(math.lcm(run, *spans), length), run)
    at_once = max(1, _CELLS // length)
    for start in range(0, len(sources), at_once):
        some = sources[start : start + at_once]
        served = np.asarray(_reached_from(some, chain, length, block).all(axis=0))
        if not served.all():
            return some[int(served.argmin())]
    return None


def _reached_from(sources: Sequence[int], chain: list[int], length: int, block: int) -> _Reached:
    """(length, sources) bool: the positions that each source reaches through the chain."""
    # Of NumPy: neither a default device nor a graph that is being exported may catch this search.
    reached = np.zeros((length, len(sources)), dtype=np.bool_)
    for column, source in enumerate(sources):
        reached[source, column] = True
    for stride in chain:
        reached = _spread(reached, stride, block)
    return reached


def _spread(reached: _Reached, stride: int, block: int) -> _Reached:
    """Every position whose group of this stride holds a reached position, column by column."""
    groups = reached.reshape(-1, block, stride, reached.shape[1])
    met = groups.any(axis=1, keepdims=True)
    return np.broadcast_to(met, groups.shape).reshape(reached.shape)
