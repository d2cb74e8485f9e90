"""Bytes sent by four processes, compared with the formulas of `rifflemix.lab.bench.traffic`."""

from __future__ import annotations

from typing import Any

import torch

import rifflemix as rm
from rifflemix.lab.bench.traffic import Sizes, Traffic, expected_bytes
from rifflemix.parallel import SHARDED_MIXERS, shard_sequence

C, H, EACH = 8, 4, 16

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "csp": [
        {},
        {"order": "ascending"},
        {"heads": 2},
        {"heads": 4},
        {"shift": "none"},
        {"shift": "none", "group_size": 3, "pad": True},
        {"shift": [0, 1, 2, -1, 0, 0, 1, 3]},
    ],
    "sinkhorn": [{"block_size": 8}, {"block_size": 8, "causal": True}],
    "butterfly": [{}, {"layer_index": 1, "num_layers": 2}],
    "grouped": [{}, {"layer_index": 1, "num_layers": 2}],
}


def sent_by(mesh: Any, name: str, options: dict[str, Any]) -> tuple[float, float, float]:
    """Return the bytes sent forward and backward, and the formula's bytes."""
    length = mesh.size() * EACH
    mixer = rm.create_mixer(name, C, num_heads=H, max_length=length, **options).double()
    sizes = Sizes(mesh.size(), EACH, C, H, number=8, summed=8)
    expected = expected_bytes(mixer, sizes)
    mixer.requires_grad_(False)  # counts traffic of the sequence only, not of parameter gradients
    sharded = shard_sequence(mixer.eval(), mesh)
    x = torch.randn(1, EACH, C, dtype=torch.float64, requires_grad=True)
    with Traffic(mesh.get_local_rank(), mesh.size()) as forward:
        y = sharded(x)
    if not y.requires_grad:
        return forward.sent, 0.0, expected
    with Traffic(mesh.get_local_rank(), mesh.size()) as backward:
        y.sum().backward()
    return forward.sent, backward.sent, expected


def mesh_values(mesh: Any, value: float) -> list[float]:
    """Gather one value from each process."""
    own = torch.tensor([value], dtype=torch.float64)
    parts = [torch.empty_like(own) for _ in range(mesh.size())]
    torch.distributed.all_gather(parts, own, group=mesh.get_group())
    return [float(part) for part in parts]


def formulas_hold(mesh: Any) -> None:
    """Check that the counts of both passes match the formulas."""
    size, rank = mesh.size(), mesh.get_local_rank()
    later = size - 1 - rank
    for name in SHARDED_MIXERS:
        for options in OPTIONS.get(name, [{}]):
            forward, backward, expected = sent_by(mesh, name, options)
            most = max(mesh_values(mesh, forward))
            if name in ("butterfly", "grouped"):
                assert most <= expected, (name, options, most, expected)
            else:
                assert most == expected, (name, options, most, expected)
                assert sum(mesh_values(mesh, backward - forward)) == 0, (name, options, backward)
    # Groups that end at shard boundaries need no tokens from other shards; shifts need a few.
    assert sent_by(mesh, "csp", {"shift": "none"})[2] == 0
    assert sent_by(mesh, "csp", {"shift": [0, 1, 2, -1, 0, 0, 1, 3]})[2] == (3 + 1) * C * 8
    for name in ("average", "linear", "tssa"):
        forward, _, expected = sent_by(mesh, name, {"causal": True})
        assert forward * (size - 1) == later * expected, (name, forward, expected)
    # Last tokens of the previous process, and of earlier processes for long windows.
    for options in ({"shift": [1] * C}, {}):
        forward, _, expected = sent_by(mesh, "csp", {"causal": True, **options})
        nearest = 2 * C * 8 if options else expected
        assert expected == nearest, (expected, nearest)
        assert forward == min(expected, later * EACH * C * 8), (options, forward, expected)
