"""Reformer against loops over sets of positions, and against recorded reference outputs."""

from __future__ import annotations

import pattern_reference as reference
import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.reformer import Reformer, default_buckets, lsh_buckets


def literal_bucket(vector: Tensor, rotation: Tensor, factors: tuple[int, ...]) -> int:
    bucket, scale, column = 0, 1, 0
    for factor in factors:
        rotated = vector @ rotation[:, column : column + factor // 2]
        bucket += scale * int(torch.cat((rotated, -rotated)).argmax())
        scale *= factor
        column += factor // 2
    return bucket


def seen_by(i: int, buckets: list[int], chunk: int, causal: bool) -> set[int]:
    """Return the positions that query i attends to, except i.

    The positions belong to a single round.
    """
    order = sorted(range(len(buckets)), key=lambda j: (buckets[j], j))
    position = order.index(i)
    if causal:
        near = order[max(0, position - chunk) : position]
        return {j for j in near if buckets[j] == buckets[i]}
    own = position // chunk
    return set(order[max(0, own - 1) * chunk : (own + 1) * chunk]) - {i}


def literal(mixer: Reformer, x: Tensor, mask: Tensor | None) -> Tensor:
    """Compute equation (6) of the paper: one softmax over all rounds."""

    def one(tokens: Tensor) -> Tensor:
        n, chunk = len(tokens), mixer.chunk_size
        qk, v = (reference.split_heads(m(tokens), mixer.num_heads) for m in (mixer.qk, mixer.value))
        y = torch.zeros_like(v)
        for h in range(mixer.num_heads):
            keys = qk[h] * torch.rsqrt(qk[h].square().mean(-1, keepdim=True) + 1e-6)
            keys = keys / qk.shape[-1] ** 0.5
            rounds = [
                [literal_bucket(q, mixer.rotations[h, :, r], mixer.bucket_factors) for q in qk[h]]
                for r in range(mixer.num_hashes)
            ]
            for i in range(n):
                found = set().union(*(seen_by(i, b, chunk, mixer.causal) for b in rounds))
                seen = sorted(found) or [i]
                y[h, i] = (keys[seen] @ qk[h, i]).softmax(0) @ v[h, seen]
        return mixer.proj(y.transpose(0, 1).flatten(1))

    return reference.on_valid_tokens(one, x, mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "trailing", "leading", "scattered"])
@pytest.mark.parametrize(
    ("length", "chunk", "hashes", "buckets"),
    [(1, 4, 2, 4), (4, 4, 3, 2), (16, 4, 1, 4), (23, 4, 2, (2, 4)), (23, 3, 3, 6), (20, 1, 2, 2)],
)
def test_equals_explicit_sets_of_positions(length, chunk, hashes, buckets, padding, causal) -> None:
    mixer = rm.create_mixer(
        "reformer", 8, num_heads=2, chunk_size=chunk, num_hashes=hashes, num_buckets=buckets,
        causal=causal, bias=True, out_bias=True,
    ).double()  # fmt: skip
    x = torch.randn(3, length, 8, dtype=torch.float64)
    mask = reference.masks(3, length)[padding]
    expected = literal(mixer, x, mask)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected, atol=1e-12, rtol=1e-9)


def recorded(golden) -> tuple[Reformer, dict[str, Tensor]]:
    """Build the fixture's layer: rotations from seed 0, no output projection."""
    g = {name: torch.from_numpy(value) for name, value in golden("reformer_lsh_hf").items()}
    mixer = rm.create_mixer(
        "reformer", 8, num_heads=2, num_hashes=2, num_buckets=4, chunk_size=4, compat="hf"
    )
    torch.manual_seed(0)
    mixer.rotations.copy_(torch.randn(2, 4, 2, 2))
    mixer.qk.weight.data.copy_(g["p.query_key.weight"])
    mixer.value.weight.data.copy_(g["p.value.weight"])
    mixer.proj.weight.data.copy_(torch.eye(8))
    return mixer, g


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_default_device_does_not_change_rotations() -> None:
    here = rm.create_mixer("reformer", 8, num_heads=2, max_length=16)
    with torch.device("cuda"):
        there = rm.create_mixer("reformer", 8, num_heads=2, max_length=16)
    assert there.rotations.is_cuda
    assert torch.equal(there.rotations.cpu(), here.rotations)


def test_recorded_buckets(golden) -> None:
    mixer, g = recorded(golden)
    qk = mixer.qk(g["x"]).view(2, 16, 2, 4).transpose(1, 2)
    buckets = lsh_buckets(qk, mixer.rotations, (4,))
    offsets = torch.tensor([0, 4]).view(1, 1, 2, 1)
    assert torch.equal(buckets + offsets, g["buckets"].long())


@pytest.mark.parametrize("kind", ["nomask", "masked"])
def test_recorded_outputs(golden, kind: str) -> None:
    mixer, g = recorded(golden)
    mask = g["mask"] == 0
    y = mixer(g["x"], key_padding_mask=mask if kind == "masked" else None)
    expected = g[f"y_{kind}"]
    if kind == "masked":
        assert mask.any()
        expected = expected.masked_fill(mask.unsqueeze(-1), 0.0)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)


def test_paper_and_released_code_differ(golden) -> None:
    mixer, g = recorded(golden)
    mixer.compat = "none"
    assert (mixer(g["x"]) - g["y_nomask"]).abs().max() > 0.01


@pytest.mark.parametrize("compat", ["none", "hf"])
def test_one_chunk_is_shared_key_attention(compat: str) -> None:
    """Check that keys found by several rounds count once."""
    mixer = rm.create_mixer("reformer", 8, num_heads=2, chunk_size=64, compat=compat).double()
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x), literal(mixer, x, None), atol=1e-12, rtol=1e-9)


def test_compat_equals_the_default_for_one_round_of_neighbours() -> None:
    """Check one round: wrapping around changes only the first chunk."""
    x = torch.randn(1, 12, 8, dtype=torch.float64)
    outputs = []
    for compat in ("none", "hf"):
        mixer = rm.create_mixer(
            "reformer", 8, num_hashes=1, num_buckets=4, chunk_size=3, compat=compat
        ).double()
        torch.nn.init.eye_(mixer.qk.weight)
        torch.nn.init.eye_(mixer.value.weight)
        torch.nn.init.eye_(mixer.proj.weight)
        outputs.append(mixer(x))
    differs = (outputs[0] - outputs[1])[0].abs().amax(-1) > 1e-9
    assert differs.sum() == 3


def test_causal_long_sequences_do_not_depend_on_later_tokens() -> None:
    mixer = rm.create_mixer(
        "reformer", 8, num_heads=2, chunk_size=3, num_buckets=4, num_hashes=3, causal=True
    ).double()
    x = torch.randn(1, 41, 8, dtype=torch.float64)
    y = mixer(x)
    for position in range(1, 41):
        changed = x.clone()
        changed[:, position:] = torch.randn_like(changed[:, position:])
        assert (mixer(changed) - y)[:, :position].abs().max() < 1e-12


def test_rotations_come_from_seed_and_layer() -> None:
    def rotations(**options) -> Tensor:
        torch.manual_seed(torch.seed())
        return rm.create_mixer("reformer", 8, num_layers=2, **options).rotations

    assert torch.equal(rotations(), rotations())
    assert not torch.equal(rotations(), rotations(layer_index=1))
    assert not torch.equal(rotations(), rotations(hash_seed=1))


@pytest.mark.parametrize(
    ("max_length", "chunk", "factors"),
    [(None, 64, (64,)), (64, 8, (16,)), (1, 1, (2,)), (4096, 64, (128,)), (16384, 64, (16, 32))],
)
def test_default_buckets(max_length, chunk: int, factors: tuple[int, ...]) -> None:
    assert default_buckets(max_length, chunk) == factors


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_hashes": 0}, "num_hashes"),
        ({"num_buckets": 3}, "num_buckets"),
        ({"num_buckets": 0}, "num_buckets"),
        ({"num_buckets": ()}, "num_buckets"),
        ({"num_buckets": (4, 5)}, "num_buckets"),
        ({"num_buckets": "4"}, "num_buckets"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"compat": "lra"}, "compat"),
        ({"compat": "hf", "causal": True}, "compat"),
        ({"hash_seed": -1}, "hash_seed"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}: expected"):
        rm.create_mixer("reformer", 8, **options)
