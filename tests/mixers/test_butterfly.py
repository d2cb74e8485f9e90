"""Butterfly attention against dense attention with the groups as a mask."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.token_groups import default_group_size


def build(*, layer_index: int = 0, num_layers: int = 6, **options) -> Butterfly:
    mixer = rm.create_mixer(
        "butterfly", 8, num_heads=2, layer_index=layer_index, num_layers=num_layers, **options
    )
    return mixer.double().eval()


def dense(mixer: Butterfly, x: Tensor, may_attend: Tensor) -> Tensor:
    """Compute attention under a mask (B, N, N), head by head."""
    q, k, v = mixer.attention.qkv(x).chunk(3, dim=-1)
    width = x.shape[-1] // mixer.num_heads
    heads = []
    for h in range(mixer.num_heads):
        part = slice(h * width, (h + 1) * width)
        scores = q[..., part] @ k[..., part].mT / math.sqrt(width)
        scores = scores.masked_fill(~may_attend, -torch.inf)
        heads.append(scores.softmax(-1).nan_to_num(0.0) @ v[..., part])
    return mixer.attention.proj(torch.cat(heads, -1))


def same_group(length: int, block: int, stride: int) -> Tensor:
    position = torch.arange(length)
    key = position // (block * stride) * stride + position % stride
    return key[:, None] == key[None, :]


def test_block_attention_equals_the_golden_file(
    golden: Callable[[str], dict[str, np.ndarray]],
) -> None:
    vectors = {k: torch.from_numpy(v) for k, v in golden("block_attention").items()}
    mixer = rm.create_mixer("butterfly", 8, num_heads=2, block_size=4, num_layers=2).eval()
    names = ("queries", "keys", "values")
    mixer.load_state_dict(
        {
            "attention.qkv.weight": torch.cat([vectors[f"p.{n}.weight"] for n in names]),
            "attention.qkv.bias": torch.cat([vectors[f"p.{n}.bias"] for n in names]),
            "attention.proj.weight": vectors["p.fc_out.weight"],
            "attention.proj.bias": vectors["p.fc_out.bias"],
        }
    )
    assert mixer.strides(12) == [1, 3]
    torch.testing.assert_close(mixer(vectors["x"]), vectors["y"], atol=1e-5, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_dense_attention_within_the_groups(data: st.DataObject) -> None:
    """Check any length, layer, block, mask, stride order and token order."""
    length = data.draw(st.integers(1, 40))
    block = data.draw(st.sampled_from([None, 2, 3, 4, 8]))
    reverse = data.draw(st.booleans())
    order = data.draw(st.sampled_from(["natural", "random"]))
    layer = data.draw(st.integers(0, 5))
    layout = data.draw(st.sampled_from(["max_length", "length"]))
    mixer = build(
        layer_index=layer,
        block_size=block,
        layout=layout,
        reverse=reverse,
        token_order=order,
        max_length=40,
    )
    x = torch.randn(2, length, 8, dtype=torch.float64)
    bits = st.lists(st.booleans(), min_size=2 * length, max_size=2 * length)
    mask = torch.tensor(data.draw(bits)).view(2, length)
    strides = mixer.strides(length)
    size = block or default_group_size(40)
    size = size if layout == "max_length" else min(size, length)
    places = 40 if layout == "max_length" else length
    groups = same_group(places, size, strides[layer % len(strides)])
    if layout == "max_length":
        position = torch.arange(length) if order == "natural" else mixer.token_rank[:length]
        groups = groups[position][:, position]
    elif order == "random":
        position = mixer.token_rank[:length].argsort().argsort()
        groups = groups[position][:, position]
    expected = dense(mixer, x, groups & ~mask[:, None, :]).masked_fill(mask.unsqueeze(-1), 0.0)
    y = mixer(x, key_padding_mask=mask)
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)
    unmasked = dense(mixer, x, groups)
    torch.testing.assert_close(mixer(x), unmasked, atol=1e-10, rtol=1e-10)


def depends(length: int, layers: list[Butterfly]) -> Tensor:
    """Return (N, N) bool: output i depends on input j."""
    x = torch.randn(1, length, 8, dtype=torch.float64, requires_grad=True)
    y = x
    for layer in layers:
        y = y + layer(nn.functional.layer_norm(y, (8,)))
    # A random direction per output, since the sum over channels could vanish.
    outputs = (y[0] * torch.randn(8, dtype=torch.float64)).sum(-1)
    rows = [torch.autograd.grad(o, x, retain_graph=True)[0][0].norm(dim=-1) for o in outputs]
    return torch.stack(rows) > 0


@pytest.mark.parametrize("order", ["natural", "random"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("length", "block"), [(16, 4), (8, 4), (12, 4), (27, 3), (32, 4), (64, None), (6, None)]
)
def test_all_layers_mix_all_tokens_and_fewer_do_not(
    length: int, block: int | None, reverse: bool, order: str
) -> None:
    options = {"block_size": block, "reverse": reverse, "token_order": order}
    count = len(build(max_length=length, **options).strides(length))
    layers = [build(max_length=length, layer_index=i, **options) for i in range(count)]
    assert depends(length, layers).all()
    for missing in range(count):
        assert not depends(length, layers[:missing] + layers[missing + 1 :]).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("block", [None, 2, 3, 4, 6, 8])
def test_one_pass_through_the_strides_connects_all_tokens(block: int | None, reverse: bool) -> None:
    """Check that one pass connects all tokens without using padded positions."""
    mixer = build(block_size=block, reverse=reverse)
    for length in (*range(1, 40), 63, 64, 65, 100, 127, 128, 130):
        size = min(block or default_group_size(length), length)
        met = torch.eye(length)
        for stride in mixer.strides(length):
            met = (same_group(length, size, stride).float() @ met).clamp(max=1.0)
        assert met.all(), f"{length} tokens, strides {mixer.strides(length)}"


@pytest.mark.parametrize("length", [13, 20, 36])
def test_stacks_that_need_more_strides_mix_all_tokens(length: int) -> None:
    """Check 20 and 36 tokens.

    Their strides need no padding and are not powers of the block.
    """
    count = len(build(block_size=4).strides(length))
    layers = [build(block_size=4, layer_index=i, num_layers=count) for i in range(count)]
    assert depends(length, layers).all()


@pytest.mark.slow
@pytest.mark.parametrize("length", [20, 44, 45])
def test_searched_strides_compile(length: int) -> None:
    torch.compiler.reset()
    mixer = build(block_size=4, layer_index=1)
    x = torch.randn(2, length, 8, dtype=torch.float64)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), mixer(x))


@pytest.mark.parametrize(
    ("length", "block"),
    [(1, 1), (2, 2), (4, 2), (5, 4), (16, 4), (64, 8), (65, 16), (256, 16), (1024, 32), (2048, 64)],
)
def test_default_block(length: int, block: int) -> None:
    assert default_group_size(length) == block
    assert build(max_length=length).block_size == block


@pytest.mark.parametrize(
    ("max_length", "length", "strides"),
    [
        (2048, 2048, [1, 32]),
        (4096, 4096, [1, 64]),
        (1024, 1024, [1, 32]),
        (64, 64, [1, 8]),
        (64, 20, [1, 8]),
        (64, 8, [1, 8]),
        (64, 1, [1, 8]),
        (None, 64, [1, 8]),
        (None, 20, [1, 3]),
        (None, 1, [1]),
    ],
)
def test_strides_of_a_stack(max_length: int | None, length: int, strides: list[int]) -> None:
    assert build(max_length=max_length).strides(length) == strides
    assert build(max_length=max_length, reverse=True).strides(length) == strides[::-1]


def test_strides_can_be_chosen_for_the_actual_length() -> None:
    mixer = build(max_length=64, layout="length")
    assert [mixer.strides(n) for n in (64, 20, 8, 1)] == [[1, 8], [1, 3], [1], [1]]


def connected(length: int, block: int, strides: list[int]) -> bool:
    met = torch.eye(length)
    for stride in strides:
        met = (same_group(length, block, stride).float() @ met).clamp(max=1.0)
    return bool(met.all())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("block", [None, 2, 3, 4, 6])
def test_two_passes_of_max_length_strides_connect_shorter_sequences(
    block: int | None, reverse: bool
) -> None:
    """Check two passes, and one pass for the longest sequence.

    The strides for 6, 10 and 24 tokens come from a search.
    """
    for most in (1, 6, 10, 13, 24):
        mixer = build(block_size=block, reverse=reverse, max_length=most)
        size, strides = min(mixer.block_size, most), mixer.strides(most)
        assert connected(most, size, strides)
        for length in range(1, most):
            assert mixer.strides(length) == strides
            assert connected(length, size, 2 * strides), f"{length} of {most}, {strides}"


@pytest.mark.parametrize("order", ["natural", "random"])
@pytest.mark.parametrize("layer_index", [0, 1])
def test_sequence_of_600_is_the_same_alone_and_in_a_batch_with_900(
    layer_index: int, order: str
) -> None:
    options = {"max_length": 1024, "layer_index": layer_index, "token_order": order}
    x = torch.randn(2, 900, 8, dtype=torch.float64)
    mask = torch.arange(900) >= torch.tensor([[600], [900]])
    for layout, same in (("max_length", True), ("length", False)):
        mixer = build(**options, layout=layout)
        alone, together = mixer(x[:1, :600]), mixer(x, key_padding_mask=mask)[:1, :600]
        if same:
            torch.testing.assert_close(together, alone, atol=1e-10, rtol=1e-10)
        elif layer_index:
            assert (together - alone).abs().max() > 1e-2


def test_lengths_over_the_square_of_the_block_need_more_layers() -> None:
    mixer = build(block_size=4)
    assert [len(mixer.strides(n)) for n in (4, 5, 16, 17, 64, 65)] == [1, 3, 2, 6, 3, 8]


def test_layers_repeat_the_strides() -> None:
    x = torch.randn(1, 16, 8, dtype=torch.float64)
    outputs = []
    for layer_index in range(4):
        torch.manual_seed(0)
        outputs.append(build(layer_index=layer_index)(x))
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])
    assert not torch.allclose(outputs[0], outputs[1])


def test_random_order_is_one_for_all_layers_and_follows_its_seed() -> None:
    ranks = [
        build(token_order="random", max_length=30, layer_index=i, token_order_seed=seed).token_rank
        for i, seed in [(0, 0), (1, 0), (0, 1)]
    ]
    assert torch.equal(ranks[0].sort().values, torch.arange(30))
    assert torch.equal(ranks[0], ranks[1])
    assert not torch.equal(ranks[0], ranks[2])


@pytest.mark.slow
def test_random_order_compiles() -> None:
    mixer = build(token_order="random", max_length=30)
    x = torch.randn(2, 21, 8, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), mixer(x), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 9, 16, 22])
def test_gradients_are_correct(length: int) -> None:
    mixer = build(layer_index=1, block_size=4)
    x = torch.randn(1, length, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(length).unsqueeze(0) > 5
    assert torch.autograd.gradcheck(lambda x: mixer(x, key_padding_mask=mask), (x,))


def test_dropout_acts_in_training_only() -> None:
    mixer = rm.create_mixer("butterfly", 8, num_heads=2, dropout=0.5)
    x = torch.randn(2, 16, 8)
    assert not torch.equal(mixer.train()(x), mixer(x))
    assert torch.equal(mixer.eval()(x), mixer(x))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"block_size": 1}, r"block_size: .*\b2\b"),
        ({"block_size": -4}, "block_size"),
        ({"token_order": "shuffled"}, "token_order: .*got 'shuffled'"),
        ({"token_order": "random"}, "max_length: expected"),
        ({"layout": "batch"}, "layout: .*max_length.*got 'batch'"),
        ({"layout": "max_length"}, 'max_length: .*layout="max_length"'),
    ],
)
def test_bad_options_are_refused(options: dict, named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        rm.create_mixer("butterfly", 8, **options)
