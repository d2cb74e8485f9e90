"""Block and window attention against one dense softmax, and their memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rifflemix as rm
from rifflemix.mixers._attention.window import SharedKeys, block_attention, window_attention


def random_qkv(length: int, dtype=torch.float64) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 3, length, 4, dtype=dtype) for _ in range(3))


def dense(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    scores = (q @ k.mT / 2).masked_fill(~sees.unsqueeze(1), -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


def compare(y: Tensor, expected: Tensor, sees: Tensor) -> None:
    assert torch.isfinite(y).all()
    used = sees.any(-1)[:, None, :, None].expand_as(y)
    torch.testing.assert_close(y[used], expected[used], atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("window", [(0, 0), (1, 0), (0, 3), (4, 4), (5, 2), (40, 40), (17, 20)])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 37])
def test_window_is_a_band(length: int, window: tuple[int, int], padded: bool) -> None:
    before, after = window
    q, k, v = random_qkv(length)
    offset = torch.arange(length) - torch.arange(length).unsqueeze(1)
    sees = ((offset >= -before) & (offset <= after)).expand(2, -1, -1)
    mask = torch.rand(2, length) < 0.3 if padded else None
    if mask is not None:
        sees = sees & ~mask.unsqueeze(1)
    y = window_attention(q, k, v, before=before, after=after, key_padding_mask=mask)
    compare(y, dense(q, k, v, sees), sees)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("block", [1, 3, 8, 50])
@pytest.mark.parametrize("length", [1, 8, 17, 24])
def test_blocks_are_contiguous(length: int, block: int, padded: bool, causal: bool) -> None:
    q, k, v = random_qkv(length)
    position = torch.arange(length)
    sees = (position // block == position.unsqueeze(1) // block).expand(2, -1, -1)
    if causal:
        sees = sees.tril()
    mask = torch.rand(2, length) < 0.3 if padded else None
    if mask is not None:
        sees = sees & ~mask.unsqueeze(1)
    y = block_attention(q, k, v, block_size=block, causal=causal, key_padding_mask=mask)
    compare(y, dense(q, k, v, sees), sees)


@pytest.mark.parametrize("kind", ["block", "window"])
def test_shared_keys_join_the_softmax(kind: str) -> None:
    q, k, v = random_qkv(21)
    shared = SharedKeys(
        *(torch.randn(2, 3, 5, 4).double() for _ in "kv"), torch.rand(2, 21, 5) < 0.5
    )
    position = torch.arange(21)
    if kind == "block":
        y = block_attention(q, k, v, block_size=6, shared=shared)
        sees = position // 6 == position.unsqueeze(1) // 6
    else:
        y = window_attention(q, k, v, before=4, after=1, shared=shared)
        offset = position - position.unsqueeze(1)
        sees = (offset >= -4) & (offset <= 1)
    sees = torch.cat((sees.expand(2, -1, -1), shared.visible), 2)
    keys, values = torch.cat((k, shared.keys), 2), torch.cat((v, shared.values), 2)
    compare(y, dense(q, keys, values, sees), sees)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda t: block_attention(t, t, t, block_size=0), "block_size"),
        (lambda t: window_attention(t, t, t, before=-1, after=0), "before"),
        (lambda t: window_attention(t, t, t, before=0, after=-1), "after"),
    ],
    ids=["no block", "before", "after"],
)
def test_bad_sizes_are_named(call, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}: expected"):
        call(torch.randn(1, 1, 4, 2))


class LargestTensor(TorchDispatchMode):
    """Count the entries of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and not func.is_view:
                self.entries = max(self.entries, tensor.numel())
        return out


@pytest.mark.parametrize(
    "name",
    ["local", "longformer", "bigbird", "reformer", "sparse_transformer", "fnet", "mlp_mixer"],
)
def test_no_tensor_is_quadratic_in_the_length(name: str) -> None:
    """Check N = 512 and 2048: a quadratic tensor would grow 16-fold."""
    sizes = []
    for length in (512, 2048):
        mixer = rm.create_mixer(name, 8, num_heads=2, max_length=2048)
        x = torch.randn(1, length, 8, requires_grad=True)
        mask = torch.zeros(1, length, dtype=torch.bool)
        mask[:, -5:] = True
        with LargestTensor() as largest:
            mixer(x, key_padding_mask=mask).sum().backward()
        sizes.append(largest.entries)
    exponent = rm.mixer_card(name).cost_exponent
    assert sizes[1] / sizes[0] < 1.25 * 4**exponent, sizes
