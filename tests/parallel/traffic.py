"""What a process sends for a mixer: as docs/scale.md says, and as it is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import rifflemix as rm
from rifflemix.compat import OperatorWatch
from rifflemix.parallel import shard_sequence

C, H, EACH = 8, 4, 16


@dataclass(frozen=True)
class Sizes:
    """What the formulas are of: see docs/scale.md."""

    processes: int
    here: int  # N / P
    dim: int
    heads: int
    batch: int = 1
    number: int = 2  # bytes of an activation
    summed: int = 4  # bytes of a number that is added up

    @property
    def share(self) -> float:
        """What a process sends of numbers that all add up, or share out and collect: 2 (P-1)/P."""
        return 2 * (self.processes - 1) / self.processes


def tssa(s: Sizes) -> float:
    return s.share * s.batch * (2 * s.dim + s.heads) * s.summed


def linear(s: Sizes) -> float:
    return s.share * s.batch * s.dim * (s.dim // s.heads + 1) * s.summed


def average(s: Sizes) -> float:
    return s.share * s.batch * (s.dim + 1) * s.summed


def permuted(s: Sizes) -> float:
    return s.share * s.batch * s.here * s.dim * s.number


def reached(s: Sizes, reach: int = 32) -> float:
    return s.batch * reach * s.dim * s.number


def grouped(s: Sizes) -> float:
    return 2 * s.batch * s.here * s.dim * s.number


def sinkhorn(s: Sizes, block: int = 1024) -> float:
    blocks = s.dim * s.here * s.processes / block * s.summed
    return s.share * s.batch * (blocks + 2 * s.here * s.dim * s.number)


def softmax(s: Sizes) -> float:
    return (s.processes - 1) * s.batch * s.here * 2 * s.dim * s.number


class Traffic(OperatorWatch):
    """Inside, counts the bytes that this process sends in floating-point numbers.

    An all-reduce sends what a ring of the processes would: 2 (P - 1) / P times its tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0.0

    def saw(self, operator: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
        """See `OperatorWatch.saw`."""
        names = torch.ops._c10d_functional
        if not str(operator).startswith("_c10d_functional") or not args[0].is_floating_point():
            return
        size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        nbytes = args[0].numel() * args[0].element_size()
        if operator is names.all_reduce.default:
            self.sent += 2 * (size - 1) / size * nbytes
        elif operator is names.all_gather_into_tensor.default:
            self.sent += (size - 1) * nbytes
        elif operator is names.reduce_scatter_tensor.default:
            self.sent += (size - 1) / size * nbytes
        elif operator is names.all_to_all_single.default:
            rows = sum(args[2])
            self.sent += nbytes * (rows - args[2][rank]) / max(rows, 1)
        elif operator is not names.wait_tensor.default:
            raise AssertionError(f"{operator} is not counted")


def sent_by(mesh: Any, name: str, options: dict[str, Any]) -> tuple[float, float]:
    """Bytes that this process sends in the forward and in the backward pass of a mixer."""
    length = mesh.size() * EACH
    mixer = rm.create_mixer(name, C, num_heads=H, max_length=length, **options).double()
    mixer.requires_grad_(False)  # the gradients of parameters are not the sequence's
    sharded = shard_sequence(mixer.eval(), mesh)
    x = torch.randn(1, EACH, C, dtype=torch.float64, requires_grad=True)
    with Traffic() as forward:
        y = sharded(x)
    if not y.requires_grad:
        return forward.sent, 0.0
    with Traffic() as backward:
        y.sum().backward()
    return forward.sent, backward.sent


FORMULAS: dict[str, tuple[str, dict[str, Any], Callable[[Sizes], float]]] = {
    "tssa": ("tssa", {}, tssa),
    "linear": ("linear", {}, linear),
    "average": ("average", {}, average),
    "csp": ("csp", {"order": "ascending"}, permuted),
    "sliceformer": ("sliceformer", {}, permuted),
    "sinkhorn": ("sinkhorn", {"block_size": 8}, lambda s: sinkhorn(s, 8)),
    "softmax": ("softmax", {}, softmax),
}


def formulas_hold(mesh: Any) -> None:
    """What is counted is what the formulas say, forward and backward."""
    size, rank = mesh.size(), mesh.get_local_rank()
    sizes = Sizes(size, EACH, C, H, number=8, summed=8)
    for name, (mixer, options, formula) in FORMULAS.items():
        forward, backward = sent_by(mesh, mixer, options)
        assert forward == formula(sizes), (name, forward, formula(sizes))
        assert backward == forward, (name, backward)
    for mixer in ("butterfly", "grouped"):
        for layer in (0, 1):
            options = {"layer_index": layer, "num_layers": 2}
            forward, _ = sent_by(mesh, mixer, options)
            assert forward <= grouped(sizes), (mixer, layer, forward)
    reach = rm.create_mixer("csp", C, causal=True, max_length=size * EACH).windows.depth
    assert reach > EACH  # the last tokens of more than one process
    forward, _ = sent_by(mesh, "csp", {"causal": True, "shift": [1] * C})
    assert forward == (reached(sizes, 2) if rank + 1 < size else 0), forward
    forward, _ = sent_by(mesh, "tssa", {"causal": True})
    assert forward == (size - 1 - rank) * (2 * C + H) * 8, forward
