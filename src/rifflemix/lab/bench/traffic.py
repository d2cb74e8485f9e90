"""Bytes that a process sends for a sharded mixer: formulas and a counter.

docs/scale.md explains the formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rifflemix.compat import OperatorWatch
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.permutation_mixer import PermutationMixer
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.parallel.compat import sent_bytes
from rifflemix.parallel.permutations import plan_local_groups
from rifflemix.parallel.shards import Shards


@dataclass(frozen=True)
class Sizes:
    """Sizes that the formulas depend on.

    Attributes:
        processes: number of processes P.
        here: tokens per process, N / P.
        dim: channels C.
        heads: number of heads H.
        batch: batch size B.
        number: bytes of an activation.
        summed: bytes of a number in a sum over processes.
    """

    processes: int
    here: int
    dim: int
    heads: int
    batch: int = 1
    number: int = 2
    summed: int = 4

    @property
    def share(self) -> float:
        """Sent share of the data in an all-reduce: 2 (P-1)/P.

        An all-to-all followed by another one sends the same share.
        """
        return 2 * (self.processes - 1) / self.processes


# Bytes that a process sends in a forward pass.


def tssa(s: Sizes) -> float:
    """Count the bytes of an all-reduce over energies, memberships and weighted energies."""
    return s.share * s.batch * (2 * s.dim + s.heads) * s.summed


def linear(s: Sizes) -> float:
    """Count the bytes of an all-reduce over sums of key features and of their value products."""
    return s.share * s.batch * s.dim * (s.dim // s.heads + 1) * s.summed


def average(s: Sizes) -> float:
    """Count the bytes of an all-reduce over the sum and the number of the tokens."""
    return s.share * s.batch * (s.dim + 1) * s.summed


def permuted(s: Sizes, references: int = 0) -> float:
    """Count the bytes to send channels with all their tokens to one process, and back.

    Reference channels are also sent to `references` processes.
    """
    return s.batch * s.here * (s.share * s.dim + references) * s.number


def reached(s: Sizes, reach: int = 32) -> float:
    """Count the bytes to send the last `reach` tokens before a shard.

    The processes that store these tokens send them.
    """
    return s.batch * min(reach, (s.processes - 1) * s.here) * s.dim * s.number


def grouped(s: Sizes) -> float:
    """Count the bytes to send all tokens to the processes of their groups, and back.

    This is an upper bound.
    """
    return 2 * s.batch * s.here * s.dim * s.number


def sinkhorn(s: Sizes, block: int = 1024, sums: int = 1) -> float:
    """Count the bytes to add block sums, and to send Q/K/V by head and the outputs back."""
    blocks = sums * s.dim * -(-s.here * s.processes // block) * s.summed
    return s.share * s.batch * (blocks + 2 * s.here * s.dim * s.number)


def softmax(s: Sizes) -> float:
    """Count the bytes to send keys and values to all other processes."""
    return (s.processes - 1) * s.batch * s.here * 2 * s.dim * s.number


_SUMS: Mapping[str, Callable[[Sizes], float]] = {"average": average, "linear": linear, "tssa": tssa}


def expected_bytes(mixer: TokenMixer, s: Sizes) -> float:
    """Return the forward traffic of the process that sends most.

    The sequence has no padding. The number is exact if P divides the heads and the channels. For
    `butterfly` and `grouped` it is an upper bound.
    """
    name = mixer.card.name
    if name in _SUMS:
        if name == "tssa" and mixer.causal:
            s = replace(s, summed=8)  # its streaming state is float64
        # In a causal mixer, the first process sends its sums to every later process.
        return _SUMS[name](s) * (s.processes / 2 if mixer.causal else 1)
    if isinstance(mixer, PermutationMixer):
        if mixer.windows is not None:
            return reached(s, mixer.windows.depth)
        return csp(mixer, s) if isinstance(mixer, CSP) else permuted(s)
    if name in ("butterfly", "grouped"):
        return grouped(s)
    if isinstance(mixer, Sinkhorn):
        return sinkhorn(s, mixer.block_size, 2 if mixer.causal else 1)
    return {"identity": lambda _: 0.0, "softmax": softmax}[name](s)


def csp(mixer: CSP, s: Sizes) -> float:
    """Count the bytes for tokens to channels, and back.

    If groups and shifts are short, processes exchange only boundary tokens.
    """
    shards = Shards(None, 0, (s.here,) * s.processes)
    local = plan_local_groups(mixer, shards)
    if local is None:
        return permuted(s, _references(mixer, s))
    holders = Counter(
        token % shards.length // s.here
        for rank, reach in enumerate(local.reach)
        for token in reach
        if token % shards.length // s.here != rank
    )
    return s.batch * max(holders.values(), default=0) * s.dim * s.number


def _references(mixer: CSP, s: Sizes) -> int:
    """Count processes with channels that start inside a head.

    These processes need the first channel of the head.
    """
    if mixer.order != "reference":
        return 0
    each, width = mixer.inner_dim // s.processes, mixer.inner_dim // mixer.heads
    return sum(rank * each % width > 0 for rank in range(s.processes))


class Traffic(OperatorWatch):
    """Context manager that counts the floating-point bytes that this process sends.

    Args:
        rank: rank of this process in the group.
        size: number of processes in the group.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's own is not annotated
        self.rank, self.size = rank, size
        self.sent = 0.0

    def saw(self, operator: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
        self.sent += sent_bytes(operator, args, self.rank, self.size)
