"""Operators under other default devices, symbolic sizes, tensors without values, and autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rifflemix import ops
from rifflemix.ops.convolution.backends import short_convolution

B, H, N, C, SIZE = 2, 2, 12, 8, 4
STEPS = list(range(C))
Inputs = dict[str, Tensor]


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


def inputs() -> Inputs:
    mask = torch.zeros(B, N, dtype=torch.bool)
    mask[0, 9:] = True
    heads = rand(B, H, N, SIZE)
    return {
        "x": rand(B, N, C),
        "q": heads,
        "blocks": heads.unflatten(2, (-1, SIZE)),
        "scores": rand(B, H, 3, 3),
        "noise": rand(B, H, 3, 3) - 1,
        "heat": rand(H),
        "mask": mask,
        "weight": rand(4, 2, 3),
        **{f"state_{i}": field for i, field in enumerate(state())},
    }


def state() -> ops.StatisticsState:
    return ops.StatisticsState.zeros(B, H, SIZE, device="cpu")


def states(i: Inputs) -> ops.StatisticsState:
    return ops.StatisticsState(*(i[f"state_{n}"] for n in range(len(state()))))


# Each operator with its arguments. Only the first of several outputs is checked.
CALLS: dict[str, Callable[[Inputs], Any]] = {
    "circular_shift": lambda i: ops.circular_shift(i["x"], STEPS, key_padding_mask=i["mask"]),
    "group_sort": lambda i: ops.group_sort(i["x"], 1, key_padding_mask=i["mask"]),
    "group_sort, pairs": lambda i: ops.group_sort(i["x"], 6, order="ascending"),
    "channel_permute": lambda i: ops.channel_permute(i["x"], STEPS, 3),
    "max_exchange": lambda i: ops.max_exchange(i["x"], key_padding_mask=i["mask"]),
    "causal_shift": lambda i: ops.causal_shift(i["x"], STEPS),
    "rank_filter": lambda i: ops.rank_filter(i["x"], [0] * C, 3),
    "shift_steps": lambda i: i["x"] + ops.shift_steps("power", N, C, device="cpu"),
    "token_statistics": lambda i: ops.token_statistics(
        i["q"], i["heat"], key_padding_mask=i["mask"]
    ),
    "causal_token_statistics": lambda i: ops.causal_token_statistics(
        i["q"], i["heat"], initial_state=states(i), return_state=True
    ),
    "linear_recurrence": lambda i: ops.linear_recurrence(
        *[i["q"]] * 3, log_decay=-i["q"], beta=i["q"][..., 0] / 8, key_padding_mask=i["mask"]
    ),
    "short_convolution": lambda i: short_convolution(
        i["x"], i["x"][0, :4], i["x"][0, 0], -3, i["x"].shape[1]
    ),
    "sinkhorn": lambda i: ops.sinkhorn(i["scores"], 3),
    "gumbel_sinkhorn": lambda i: ops.gumbel_sinkhorn(i["scores"], 3, noise=i["noise"]),
    "top_k_blocks": lambda i: ops.top_k_blocks(i["scores"], 2),
    "pool_blocks": lambda i: ops.pool_blocks(i["x"], SIZE, key_padding_mask=i["mask"]),
    "block_scores": lambda i: ops.block_scores(i["q"], i["q"], SIZE),
    "sort_blocks": lambda i: ops.sort_blocks(i["blocks"], i["scores"]),
    "sorted_padding_mask": lambda i: ops.sorted_padding_mask(i["scores"], SIZE, i["mask"]),
    "block_attention": lambda i: ops.block_attention(*[i["blocks"]] * 5),
    "sinkhorn_attention": lambda i: ops.sinkhorn_attention(
        *[i["q"]] * 3, i["scores"], SIZE, key_padding_mask=i["mask"]
    ),
    "sinkhorn_attention, logits": lambda i: ops.sinkhorn_attention(
        *[i["q"]] * 3, i["scores"], SIZE, combine="sum_logits"
    ),
    "block_linear": lambda i: ops.block_linear(i["x"], i["weight"]),
    "butterfly_split": lambda i: ops.butterfly_split(i["x"], 3, 2),
    "dropout": lambda i: ops.dropout(i["x"], 0.0),
    "dropout_attention": lambda i: ops.dropout_attention(*[i["q"]] * 3, 0.0, is_causal=True),
    "compression_rate": lambda i: ops.compression_rate(i["x"], i["q"][..., 0].softmax(1)),
}


def first(outputs: Any) -> Tensor:
    found = outputs if isinstance(outputs, Tensor) else outputs[0]
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_default_device_does_not_change_results(name: str) -> None:
    """Operators use the device of their inputs, not torch's default device."""
    given = inputs()
    expected = first(CALLS[name](given))
    with torch.device("meta"):
        assert torch.equal(first(CALLS[name](given)), expected)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x, sort: ops.dropout(x, 0.5),
        lambda x, sort: ops.dropout(x[:0], 0.5, backend="eager"),
        lambda x, sort: ops.dropout_attention(x, x, x, 0.5),
        lambda x, sort: ops.sinkhorn_attention(x, x, x, sort, SIZE, dropout_p=0.5),
    ],
)
def test_default_device_does_not_change_dropout(drop: Callable[..., Tensor]) -> None:
    i = inputs()
    torch.manual_seed(1)
    expected = drop(i["q"], i["scores"])
    torch.manual_seed(1)
    with torch.device("meta"):
        assert torch.equal(drop(i["q"], i["scores"]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_sizes_may_be_symbolic(name: str) -> None:
    torch.compiler.reset()
    given = inputs()
    compiled = torch.compile(CALLS[name], fullgraph=True, dynamic=True, backend="eager")
    torch.testing.assert_close(first(compiled(given)), first(CALLS[name](given)))


@pytest.mark.parametrize("name", CALLS)
def test_tensors_may_have_no_values(name: str) -> None:
    given = inputs()
    expected = first(CALLS[name](given))
    with FakeTensorMode() as mode:
        fake = {key: mode.from_tensor(value) for key, value in given.items()}
        found = first(CALLS[name](fake))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_autocast_does_not_change_the_dtype_of_attention(backend: str) -> None:
    i = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        for y in (
            ops.dropout_attention(*[i["q"]] * 3, 0.0, backend=backend),
            ops.dropout_attention(*[i["q"]] * 3, 0.3, backend=backend),
            ops.sinkhorn_attention(*[i["q"]] * 3, i["scores"], SIZE, backend=backend),
            ops.sinkhorn_attention(
                *[i["q"]] * 3, i["scores"], SIZE, combine="sum_logits", backend=backend
            ),
            ops.block_attention(*[i["blocks"]] * 5, backend=backend),
            ops.sort_blocks(i["blocks"], i["scores"], backend=backend),
        ):
            assert y.dtype == torch.float32
