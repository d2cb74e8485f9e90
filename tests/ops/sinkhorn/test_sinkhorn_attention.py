"""Attention over local and sorted blocks: compared with loops; masks, causality, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from block_variants import BATCH, DOUBLE, HEADS, WIDTH
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import (
    block_attention,
    sinkhorn,
    sinkhorn_attention,
    top_k_blocks,
)

COMBINE = ("concat", "sum_logits", "sum_out")

ENCODERS: dict[str, dict[str, Any]] = {
    **{name: {"combine": name} for name in COMBINE},
    "mixture": {"mixture": True},
    "sortcut 1": {"sortcut": 1},
    "sortcut 2": {"sortcut": 2},
    "sortcut 2 local": {"sortcut": 2, "sortcut_local": True},
    "sortcut 2 local sum_out": {"sortcut": 2, "sortcut_local": True, "combine": "sum_out"},
    "argmax rule": {"padding_rule": "argmax"},
}
DECODERS: dict[str, dict[str, Any]] = {
    **{name: {"combine": name} for name in COMBINE},
    "mixture": {"mixture": True},
    "rotated": {"rotation": 3},
    "rotated by one": {"rotation": 1, "combine": "sum_out"},
}


def heads_of(length: int, batch: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, batch, HEADS, length, WIDTH, dtype=DOUBLE)
    return q, k, v


def sort_of(num_blocks: int, causal: bool = False, batch: int = BATCH) -> Tensor:
    scores = torch.randn(batch, HEADS, num_blocks, num_blocks, dtype=DOUBLE)
    return sinkhorn(scores, 3, causal=causal)


def variants() -> list[Any]:
    return [
        pytest.param(causal, options, id=f"{'causal ' if causal else ''}{name}")
        for causal, table in ((False, ENCODERS), (True, DECODERS))
        for name, options in table.items()
    ]


@settings(max_examples=5, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("causal", "options"), variants())
def test_eager_equals_reference(causal: bool, options: dict[str, Any], data: st.DataObject) -> None:
    block = data.draw(st.integers(options.get("rotation", 0) + 1, 5))
    n = data.draw(st.integers(options.get("sortcut", 1), 3))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    mask = None
    if data.draw(st.booleans()):
        bits = st.lists(st.booleans(), min_size=BATCH * n * block, max_size=BATCH * n * block)
        mask = torch.tensor(data.draw(bits)).view(BATCH, -1)
    q, k, v = heads_of(n * block)
    results = [
        sinkhorn_attention(
            q,
            k,
            v,
            sort_of_seed(n, causal),
            block,
            causal=causal,
            key_padding_mask=mask,
            backend=backend,
            **options,
        )
        for backend in ("eager", "reference")
    ]
    torch.testing.assert_close(*results)
    assert results[0].isfinite().all()


def sort_of_seed(num_blocks: int, causal: bool) -> Tensor:
    torch.manual_seed(num_blocks)
    return sort_of(num_blocks, causal)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rotation", [0, 3])
@pytest.mark.parametrize("k", [1, 2])
def test_top_k_with_null_blocks(k: int, rotation: int, masked: bool) -> None:
    q, keys, values = heads_of(12)
    scores = torch.randn(BATCH, HEADS, 3, k + 3, dtype=DOUBLE)
    sort = top_k_blocks(scores, k, causal=True, num_null=k)
    null_kv = tuple(torch.randn(2, HEADS, WIDTH, dtype=DOUBLE))
    mask = torch.rand(BATCH, 12) > 0.6 if masked else None
    results = [
        sinkhorn_attention(
            q,
            keys,
            values,
            sort,
            4,
            causal=True,
            null_kv=null_kv,
            rotation=rotation,
            key_padding_mask=mask,
            backend=backend,
        )
        for backend in ("eager", "reference")
    ]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("combine", COMBINE)
def test_block_attention_with_general_masks(combine: str) -> None:
    q, k, v, sorted_k, sorted_v = torch.randn(5, 2, 2, 3, 4, WIDTH, dtype=DOUBLE)
    hidden = torch.rand(2, 1, 3, 4, 4) > 0.5
    unseen = torch.rand(2, 2, 3, 1, 4) > 0.5
    hidden[0, 0, 0] = True
    unseen[0, :, 0] = True
    results = [
        block_attention(
            q,
            k,
            v,
            sorted_k,
            sorted_v,
            combine=combine,
            hidden=hidden,
            sorted_hidden=unseen,
            backend=backend,
        )
        for backend in ("eager", "reference")
    ]
    torch.testing.assert_close(*results)
    assert (results[0][0, :, 0] == 0).all()


def test_identity_sort_and_one_block_is_softmax_attention() -> None:
    q, k, v = heads_of(6)
    sort = torch.ones(BATCH, HEADS, 1, 1, dtype=DOUBLE)
    expected = F.scaled_dot_product_attention(q, k, v)
    # The softmax contains every key twice, so the result does not change.
    torch.testing.assert_close(sinkhorn_attention(q, k, v, sort, 6), expected)
    torch.testing.assert_close(sinkhorn_attention(q, k, v, sort, 6, sortcut=1), expected)
    torch.testing.assert_close(
        sinkhorn_attention(q, k, v, sort, 6, combine="sum_out"), 2 * expected
    )


@pytest.mark.parametrize(("causal", "options"), variants())
def test_padding_content_is_not_read(causal: bool, options: dict[str, Any]) -> None:
    mixes_padding = options.get("padding_rule") == "argmax"
    mask = torch.rand(BATCH, 12) > 0.5
    q, k, v = heads_of(12)
    sort = sort_of(3, causal)
    spoilt = [t.masked_fill(mask[:, None, :, None], 1e3) for t in (q, k, v)]
    run = {"causal": causal, "key_padding_mask": mask, **options}
    y, other = (sinkhorn_attention(*t, sort, 4, **run) for t in ((q, k, v), spoilt))
    valid = ~mask[:, None, :, None]
    assert torch.allclose(other * valid, y * valid) != mixes_padding


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS.keys())
def test_causal_variant_reads_no_later_token(options: dict[str, Any]) -> None:
    """The sort matrix is fixed here. The mixer's tests let it depend on the tokens."""
    q, k, v = heads_of(12)
    sort = sort_of(3, causal=True)
    y = sinkhorn_attention(q, k, v, sort, 4, causal=True, **options)
    for token in range(12):
        later = [t.clone() for t in (q, k, v)]
        for t in later:
            t[:, :, token:] = 10 * torch.randn(BATCH, HEADS, 12 - token, WIDTH, dtype=DOUBLE)
        after = sinkhorn_attention(*later, sort, 4, causal=True, **options)
        torch.testing.assert_close(after[:, :, :token], y[:, :, :token], atol=0, rtol=1e-12)
        assert not torch.allclose(after[:, :, token:], y[:, :, token:])


# One random direction by default, all directions in the slow tests.
DIRECTIONS = [
    pytest.param(True, id="one way"),
    pytest.param(False, id="all", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("fast", DIRECTIONS)
@pytest.mark.parametrize(("causal", "options"), variants())
def test_gradients_are_correct(causal: bool, options: dict[str, Any], fast: bool) -> None:
    mask = torch.zeros(1, 8, dtype=torch.bool)
    mask[0, [2, 7]] = True
    inputs = [t.requires_grad_() for t in heads_of(8, batch=1)]
    scores = torch.randn(1, HEADS, 2, 2, dtype=DOUBLE, requires_grad=True)

    def run(scores: Tensor, *qkv: Tensor) -> Tensor:
        sort = sinkhorn(scores, 2, causal=causal)
        return sinkhorn_attention(*qkv, sort, 4, causal=causal, key_padding_mask=mask, **options)

    assert torch.autograd.gradcheck(run, (scores, *inputs), fast_mode=fast)


@pytest.mark.parametrize(("causal", "options"), variants())
def test_bfloat16_is_finite_and_near(causal: bool, options: dict[str, Any]) -> None:
    q, k, v = heads_of(12)
    sort = sort_of(3, causal)
    expected = sinkhorn_attention(q, k, v, sort, 4, causal=causal, **options)
    low = [t.bfloat16() for t in (q, k, v, sort)]
    y = sinkhorn_attention(*low, 4, causal=causal, **options)
    assert y.dtype == torch.bfloat16
    assert (y.double() - expected).abs().mean() < 0.05 * expected.abs().mean()


def test_dropout_works_in_all_backends_except_the_reference() -> None:
    q, k, v = heads_of(8)
    sort = sort_of(2)
    plain = sinkhorn_attention(q, k, v, sort, 4)
    for combine in COMBINE:
        y = sinkhorn_attention(q, k, v, sort, 4, combine=combine, dropout_p=0.5)
        assert not torch.allclose(y, plain)
    with pytest.raises(InputError, match=r"^backend:"):
        sinkhorn_attention(q, k, v, sort, 4, dropout_p=0.5, backend="reference")


BAD: list[tuple[str, dict[str, Any]]] = [
    ("block_size", {"block_size": 5}),
    ("combine", {"combine": "sum"}),
    ("combine", {"combine": "sum_out", "sortcut": 1}),
    ("combine", {"combine": "sum_logits", "sortcut": 2, "sortcut_local": True}),
    ("padding_rule", {"padding_rule": "soft"}),
    ("sortcut", {"sortcut": 4}),
    ("sortcut", {"sortcut": 1, "causal": True}),
    ("sortcut_local", {"sortcut_local": True}),
    ("rotation", {"rotation": 1}),
    ("rotation", {"rotation": 4, "causal": True}),
    ("dropout_p", {"dropout_p": 1.0}),
    ("null_kv", {"null_kv": (torch.zeros(1), torch.zeros(1))}),
    ("sort", {"sort": torch.zeros(BATCH, HEADS, 3, 4, dtype=DOUBLE)}),
    ("sort", {"sort": torch.zeros(BATCH, HEADS, 4, 3, dtype=DOUBLE)}),
    ("sort", {"sort": torch.zeros(HEADS, 3, 3, dtype=DOUBLE)}),
    ("key_padding_mask", {"key_padding_mask": torch.zeros(BATCH, 11) > 0}),
]


@pytest.mark.parametrize(("name", "change"), BAD, ids=[f"{n} {i}" for i, (n, _) in enumerate(BAD)])
def test_bad_input_names_the_argument(name: str, change: dict[str, Any]) -> None:
    q, k, v = heads_of(12)
    arguments: dict[str, Any] = {"sort": sort_of(3), "block_size": 4, **change}
    with pytest.raises(InputError, match=f"^{name}:"):
        sinkhorn_attention(q, k, v, **arguments)


def test_keys_must_have_the_shape_of_queries_unless_shared() -> None:
    q, k, v = heads_of(12)
    with pytest.raises(InputError, match=r"^k:"):
        sinkhorn_attention(q[:, :, :8], k, v, sort_of(3), 4)
    for backend in ("eager", "reference"):
        y = sinkhorn_attention(q, k, v, sort_of_seed(3, False), 4, sortcut=2, backend=backend)
        part = sinkhorn_attention(
            q[:, :, :5], k, v, sort_of_seed(3, False), 4, sortcut=2, backend=backend
        )
        torch.testing.assert_close(part, y[:, :, :5])


@pytest.mark.parametrize("padded", [False, True])
def test_a_row_of_zeros_is_a_block_of_zeros_or_hidden(padded: bool) -> None:
    q, k, v = heads_of(6)
    sort = sort_of(3).index_fill(2, torch.tensor([1]), 0.0)
    mask = torch.zeros(BATCH, 6, dtype=torch.bool) if padded else None
    y, expected = (
        sinkhorn_attention(q, k, v, sort, 2, key_padding_mask=mask, backend=backend)
        for backend in ("eager", "reference")
    )
    torch.testing.assert_close(y, expected)
    rest = (q[:, :, 2:4] @ k[:, :, 2:4].mT / WIDTH**0.5).exp()
    zeros = 0 if padded else 2  # each adds exp(0) to the sum, with a zero value
    alone = rest @ v[:, :, 2:4] / (rest.sum(-1, keepdim=True) + zeros)
    torch.testing.assert_close(y[:, :, 2:4], alone)
