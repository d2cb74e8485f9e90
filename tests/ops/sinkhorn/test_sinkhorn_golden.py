"""Compare with golden vectors from reference code and equations; their README names the source."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.ops import (
    block_scores,
    gumbel_sinkhorn,
    pool_blocks,
    sinkhorn,
    sinkhorn_attention,
    sort_blocks,
    top_k_blocks,
)

Golden = Callable[[str], dict[str, np.ndarray]]
BATCH, HEADS, BLOCK, TAU = 2, 2, 4, 0.75


def tensors(golden: Golden, name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value) for key, value in golden(name).items()}


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def per_head(merged: Tensor) -> Tensor:
    """Reshape (B * H, ...) to (B, H, ...)."""
    return merged.unflatten(0, (BATCH, HEADS))


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize("iterations", [1, 2, 5, 8, 20])
def test_operator_equals_the_golden_file(golden: Golden, iterations: int, backend: str) -> None:
    z = tensors(golden, "sinkhorn_operator")
    close(sinkhorn(z["r"], iterations, backend=backend), z[f"sink_it{iterations}"])


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_operator_with_the_relu_kernel(golden: Golden, backend: str) -> None:
    z = tensors(golden, "sinkhorn_operator")
    sort = gumbel_sinkhorn(
        z["gumbel_in"],
        7,
        temperature=TAU,
        noise=z["gumbel_noise"],
        kernel="relu",
        backend=backend,
    )
    close(sort, z["gumbel_out_it7_t0.75"])


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize(
    ("vector", "options"),
    [
        ("y_concat", {}),
        ("y_sumlogits", {"combine": "sum_logits"}),
        ("y_sumout", {"combine": "sum_out"}),
        ("y_sortcut2", {"sortcut": 2}),
        ("y_mixture", {"mixture": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_encoder_equals_the_golden_file(
    golden: Golden, vector: str, options: dict, backend: str
) -> None:
    z = tensors(golden, "literal_sinkhorn_encoder")
    pooled = pool_blocks(z["x"], BLOCK, backend=backend)
    scores = torch.einsum("bnc,hcm->bhnm", pooled, z["W"])
    close(scores, z["R"])
    sort = gumbel_sinkhorn(scores, 7, temperature=TAU, noise=z["gumbel"], backend=backend)
    close(sort, z["S"])
    y = sinkhorn_attention(z["q"], z["k"], z["v"], sort, BLOCK, backend=backend, **options)
    close(y, z[vector])


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize(
    ("final_row_norm", "suffix"), [(False, ""), (True, "_rowlast")], ids=["literal", "row last"]
)
def test_causal_operator_equals_the_golden_file(
    golden: Golden, final_row_norm: bool, suffix: str, backend: str
) -> None:
    z = tensors(golden, "literal_sinkhorn_causal")
    pooled = pool_blocks(z["x"], BLOCK, causal=True, backend=backend)
    scores = torch.einsum("bnc,hcm->bhnm", pooled, z["W"])
    close(scores, z["R"])
    sort = gumbel_sinkhorn(
        scores,
        5,
        temperature=TAU,
        noise=z["gumbel"],
        causal=True,
        final_row_norm=final_row_norm,
        backend=backend,
    )
    close(sort, z["S" + suffix])
    y = sinkhorn_attention(z["q"], z["k"], z["v"], sort, BLOCK, causal=True, backend=backend)
    close(y, z["y" + suffix])


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_port_with_the_attention_network(golden: Golden, backend: str) -> None:
    z = tensors(golden, "sinkhorn_enc_attnsort_gumbel")
    scores = block_scores(z["q"], z["k"], BLOCK, backend=backend)
    noise = per_head(z["gumbel_noise"])
    sort = gumbel_sinkhorn(scores, 7, temperature=TAU, noise=noise, kernel="relu", backend=backend)
    close(sort, per_head(z["R"]))
    close(sinkhorn_attention(z["q"], z["k"], z["v"], sort, BLOCK), z["y_fixed"])
    # The released code computes the sorted values from the sorted keys.
    sorted_k = sort_blocks(z["k"].unflatten(2, (-1, BLOCK)), sort)
    keys = torch.cat((sorted_k, z["k"].unflatten(2, (-1, BLOCK))), 3)
    values = torch.cat((sorted_k, z["v"].unflatten(2, (-1, BLOCK))), 3)
    y = F.scaled_dot_product_attention(z["q"].unflatten(2, (-1, BLOCK)), keys, values)
    close(y.flatten(2, 3), z["y_asis"])


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize("k", [1, 2])
def test_port_with_top_k(golden: Golden, k: int, backend: str) -> None:
    z = tensors(golden, f"sinkhorn_enc_attnsort_topk{k}")
    scores = block_scores(z["q"], z["k"], BLOCK, backend=backend)
    sort = top_k_blocks(scores, k, backend=backend)
    close(sort, per_head(z["R"]))
    y = sinkhorn_attention(z["q"], z["k"], z["v"], sort, BLOCK, backend=backend)
    close(y, z["y_fixed"])


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_port_with_a_mask(golden: Golden, backend: str) -> None:
    z = tensors(golden, "sinkhorn_enc_masked_fixed")
    scores = block_scores(z["q"], z["k"], BLOCK, backend=backend)
    noise = per_head(z["gumbel_noise"])
    sort = gumbel_sinkhorn(scores, 7, temperature=TAU, noise=noise, kernel="relu", backend=backend)
    close(sort, per_head(z["R"]))
    y = sinkhorn_attention(
        z["q"],
        z["k"],
        z["v"],
        sort,
        BLOCK,
        key_padding_mask=~z["mask"],
        padding_rule="argmax",
        backend=backend,
    )
    valid = z["mask"][:, None, :, None]
    assert not z["mask"].all()
    close(y * valid, z["y"] * valid)


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_port_with_sortcut_and_the_simple_network(golden: Golden, backend: str) -> None:
    z = tensors(golden, "sinkhorn_enc_sortcut2_simple")
    pooled = [z[name].unflatten(2, (-1, BLOCK)).sum(3) for name in "qk"]
    scores = torch.cat(pooled, -1) @ z["p.sort_net.linear"]
    noise = per_head(z["gumbel_noise"])
    sort = gumbel_sinkhorn(scores, 7, temperature=TAU, noise=noise, kernel="relu", backend=backend)
    close(sort, per_head(z["R"]))
    y = sinkhorn_attention(
        z["q"], z["k"], z["v"], sort, BLOCK, sortcut=2, sortcut_local=True, backend=backend
    )
    close(y, z["y"])


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_port_with_sortcut_and_top_k(golden: Golden, backend: str) -> None:
    z = tensors(golden, "sinkhorn_enc_sortcut2_topk")
    scores = block_scores(z["q"], z["k"], BLOCK, shared=True, backend=backend)
    sort = top_k_blocks(scores, 2, backend=backend)
    close(sort, per_head(z["R"]))
    y = sinkhorn_attention(
        z["q"], z["k"], z["v"], sort, BLOCK, sortcut=2, sortcut_local=True, backend=backend
    )
    close(y, z["y"])


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize("name", ["attnsort_top1", "attnsort_top2", "simplesort_top2"])
def test_causal_port(golden: Golden, name: str, backend: str) -> None:
    """Top-k selects past and null blocks. Half of the heads use shifted blocks."""
    z = tensors(golden, f"sinkhorn_causal_{name}")
    k = int(name[-1])
    sorts, outputs = [], []
    for head, rotation in ((0, 0), (1, BLOCK - 1)):
        one = slice(head, head + 1)
        q, keys, values = z["q"][:, one], z["k"][:, one], z["v"][:, one]
        rolled_q, rolled_k = q.roll(-rotation, 2), keys.roll(-rotation, 2)
        if name.startswith("attn"):
            scores = block_scores(rolled_q, rolled_k, BLOCK, causal=True, backend=backend)
            scores = F.pad(scores, (k, 0))
        else:
            mean = rolled_k.cumsum(2) / torch.arange(1.0, 17.0)[:, None]
            first = torch.cat((mean, rolled_k), -1)[:, :, ::BLOCK]
            scores = F.leaky_relu(first @ z["p.sort_net.linear"][:, one])
        sort = top_k_blocks(scores, k, temperature=TAU, causal=True, num_null=k, backend=backend)
        null_kv = (z["p.null_keys"][one, 0], z["p.null_values"][one, 0])
        sorts.append(sort)
        outputs.append(
            sinkhorn_attention(
                q,
                keys,
                values,
                sort,
                BLOCK,
                causal=True,
                null_kv=null_kv,
                rotation=rotation,
                backend=backend,
            )
        )
    # Null blocks can tie. The golden vector does not determine which null block wins.
    sort, expected = torch.cat(sorts, 1), per_head(z["R"])
    close(sort[..., k:], expected[..., k:])
    close(sort[..., :k].sum(-1), expected[..., :k].sum(-1))
    close(torch.cat(outputs, 1), z["y"])


def test_equals_the_authors_jax_port(golden: Golden) -> None:
    """The JAX port uses strided blocks, and its released einsum sums over the sources twice."""
    z = tensors(golden, "lra_jax_sinkhorn_asis")
    num_blocks = z["permutation"].shape[1]

    def strided(x: Tensor) -> Tensor:
        """Convert (B, N, H, D) to (B, H, N, D) with contiguous blocks."""
        return x.unflatten(1, (BLOCK, num_blocks)).permute(0, 3, 2, 1, 4).flatten(2, 3)

    def back(y: Tensor) -> Tensor:
        return y.unflatten(2, (num_blocks, BLOCK)).permute(0, 3, 2, 1, 4).flatten(1, 2)

    q, k, v = (strided(z[name]) for name in "QKV")
    intended = z["permutation"].permute(0, 2, 3, 1)  # rows are sources in the port
    as_is = torch.ones_like(intended)
    for sort, name in ((intended, "y_intended"), (as_is, "y_asis")):
        y = back(sinkhorn_attention(q, k, v, sort, BLOCK, combine="sum_out"))
        close(y, z[name])
