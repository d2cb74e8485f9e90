"""Strides of a butterfly, in exact integer arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import check_divides, check_integer
from rifflemix.errors import bad_argument

_Reached = NDArray[np.bool_]

_CELLS = 2**24  # limit of positions times sources per search step: 16 MiB


def butterfly_strides(length: int, block: int) -> list[int]:
    """Compute the strides of the sublayers of one complete butterfly.

    They are 1, block, block^2, ... while the groups divide the length, then length / block. These
    strides may not connect every pair of positions: for 24 positions in blocks of 4, the strides 1
    and 6 reach only 16. Then further valid strides are appended. Each is the stride that reaches
    the most positions, the smallest one on ties.

    Args:
        length: n, positions to mix.
        block: a, positions per group; a divisor of `length`, at least 2 unless `length` is 1.

    Returns:
        Strides s, each valid (a * s divides n). After all of them, each output position depends on
        every input position. `[1]` if one group contains all positions.

    Raises:
        InputError: no strides exist: `block` does not divide `length`, or `block` is 1 and `length`
            is greater than 1.

    Source: Dimension Mixer, Algorithm 1, with integer divisibility instead of the paper's rule.
    For some lengths that rule is invalid (length 24, block 4: stride 4), or incomplete if made
    valid.

    Example:
        >>> import rifflemix as rm
        >>> rm.ops.butterfly_strides(64, 4)
        [1, 4, 16]
        >>> rm.ops.butterfly_strides(24, 4)
        [1, 6, 1]
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
    # So far each source reaches all of its aligned run of `mixed` positions. The last stride
    # connects positions that are equal modulo length / block. If a run has at least length / block
    # positions, it contains all residues, so each source reaches all positions.
    if mixed >= length // block:
        return strides
    return _completed(strides, mixed, length, block)


def butterfly_layout(
    num_tokens: int, block: int, *, serve_fewer: bool = False
) -> tuple[int, list[int]]:
    """Compute a padded length and strides that connect every pair of tokens.

    If `block` divides N, no padding is needed and `butterfly_strides` gives the strides. Otherwise
    the padded length is one for which powers of the block and one last stride are sufficient.
    Padded positions do not pass on information. If they would disconnect tokens, some of the
    strides are applied a second time.

    Args:
        num_tokens: N, at least 1.
        block: a, tokens per group, at least 2 unless N is 1; values above N mean N.
        serve_fewer: make the layout suitable for every number of tokens up to N. Fewer than N
            tokens may need a second pass through the strides. If the strides for N come from a
            search, some smaller number of tokens would stay disconnected after any number of
            passes. The strides of a padded length replace them.

    Returns:
        Padded length, a multiple of the group size min(a, N), and the strides in order.

    Raises:
        InputError: a number out of range.
    """
    block = min(block, num_tokens)
    # Runs at least as long as the last stride also suit fewer tokens. By strides 1, a, ... a token
    # reaches the first token of its run, then by the last stride a token of the first run. The
    # second pass goes through the first run, and by the last stride to all tokens.
    if num_tokens % block == 0 and not (serve_fewer and _is_searched(num_tokens, block)):
        return num_tokens, butterfly_strides(num_tokens, block)
    span = block
    while span * block < num_tokens:
        span *= block
    length = -(-num_tokens // span) * span
    strides = butterfly_strides(length, block)
    last = length // block
    if len(strides) == 2 and num_tokens - (last - 1) * block >= last:
        return length, strides  # the last block has tokens in every group of the last stride
    # The lowest position of a group is never padding, so each token reaches it. By the last stride
    # it then reaches a position at or below any other. The strides within a run do the rest.
    is_power = strides[-1] == strides[-2] * block
    way_back = strides[:-1] if is_power or len(strides) == 2 else strides
    return length, strides + way_back


def _is_searched(length: int, block: int) -> bool:
    """Return whether the strides for a length come from a search."""
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
    """Append valid strides until every position reaches every other position.

    The search ends: stride 1, the powers and length / block together connect all positions. So from
    an incomplete set, some valid stride always reaches further.

    Args:
        strides: strides so far; before the last one, a source reaches an aligned run of positions.
        run: number of positions in that run.
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
    """Return a position that does not reach all other positions, or None.

    One source per aligned run is enough, because a source first reaches all of its run. Sources up
    to the period of the groups are enough, because a circular shift by the period maps groups to
    groups.
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
    """Compute (length, sources) bool: the positions that each source reaches."""
    # NumPy keeps this search independent of torch's default device and out of exported graphs.
    reached = np.zeros((length, len(sources)), dtype=np.bool_)
    for column, source in enumerate(sources):
        reached[source, column] = True
    for stride in chain:
        reached = _spread(reached, stride, block)
    return reached


def _spread(reached: _Reached, stride: int, block: int) -> _Reached:
    """Mark all positions of each group that contains a reached position."""
    groups = reached.reshape(-1, block, stride, reached.shape[1])
    met = groups.any(axis=1, keepdims=True)
    return np.broadcast_to(met, groups.shape).reshape(reached.shape)
