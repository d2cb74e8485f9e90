"""Cross-attention of Sinkhorn attention, and softmax cross-attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sinkhorn_variants import DIM, DOUBLE, HEADS, MAX, Options, build, tokens
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.mixers.cross_attention import SinkhornCrossAttention, SoftmaxCrossAttention

CROSS: dict[str, Options] = {
    "default": {},
    "small block": {"block_size": 3},
    "relu_mlp": {"sort_net": "relu_mlp"},
    "sum_logits": {"combine": "sum_logits"},
    "sum_out": {"combine": "sum_out"},
    "sortcut": {"sortcut": 2},
}


def build_cross(options: Options) -> SinkhornCrossAttention:
    layer = SinkhornCrossAttention(DIM, num_heads=HEADS, max_length=MAX, **options)
    return layer.to(DOUBLE).eval()


@pytest.fixture(params=CROSS.values(), ids=CROSS.keys())
def cross(request: pytest.FixtureRequest) -> SinkhornCrossAttention:
    return build_cross(request.param)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 20), (20, 3), (7, 13), (40, 20)])
def test_cross_attention_accepts_any_lengths(
    cross: SinkhornCrossAttention, queries: int, keys: int
) -> None:
    y = cross(tokens(queries), tokens(keys))
    assert y.shape == (2, queries, DIM)
    assert y.isfinite().all()


def test_cross_attention_queries_are_independent(cross: SinkhornCrossAttention) -> None:
    x, memory = tokens(17), tokens(13)
    y = cross(x, memory)
    for length in (1, 4, 9):
        torch.testing.assert_close(cross(x[:, :length], memory), y[:, :length])
    changed = x.clone()
    changed[:, 9] += 1
    others = [t for t in range(17) if t != 9]
    torch.testing.assert_close(cross(changed, memory)[:, others], y[:, others])


def test_cross_attention_reads_only_valid_memory(cross: SinkhornCrossAttention) -> None:
    x, memory = tokens(17, batch=4), tokens(MAX, batch=4)
    mask = torch.rand(4, MAX) > 0.5
    mask[1, :6], mask[1, 6:] = False, True
    mask[3] = True
    memory[mask] = float("nan")
    y = cross(x, memory, key_padding_mask=mask)
    for sample in range(3):
        alone = cross(x[sample, None], memory[sample, ~mask[sample]][None])
        torch.testing.assert_close(y[sample], alone[0])
    torch.testing.assert_close(y[3], cross.proj.bias.expand(17, -1))


def test_cross_attention_with_equal_inputs_is_self_attention() -> None:
    """Check the formula with equal weights and lengths, and memory = x."""
    options: Options = {"block_size": 4}
    mixer, layer = build(options), build_cross(options)
    layer.sorter.load_state_dict(mixer.sorter.state_dict())
    with torch.no_grad():
        for kind in ("weight", "bias"):
            q, kv = getattr(mixer.qkv, kind).split((DIM, 2 * DIM))
            getattr(layer.query, kind).copy_(q)
            getattr(layer.key_value, kind).copy_(kv)
    layer.proj.load_state_dict(mixer.proj.state_dict())
    x = tokens(18)
    torch.testing.assert_close(layer(x, x), mixer(x))


def test_cross_attention_gradients(cross: SinkhornCrossAttention) -> None:
    x, memory = tokens(5, batch=1).requires_grad_(), tokens(7, batch=1).requires_grad_()
    assert torch.autograd.gradcheck(cross, (x, memory), fast_mode=True)
    cross.train()
    y = cross(x, memory)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cross.parameters())


@pytest.mark.parametrize("kind", [SinkhornCrossAttention, SoftmaxCrossAttention])
def test_cross_attention_drops_weights_only_in_training(kind: type[torch.nn.Module]) -> None:
    options = {"max_length": MAX, "gumbel": "never"} if kind is SinkhornCrossAttention else {}
    layer = kind(DIM, num_heads=HEADS, dropout=0.5, **options)
    x, memory = tokens(9).float(), tokens(13).float()
    assert not torch.equal(layer(x, memory), layer(x, memory))
    layer.eval()
    assert torch.equal(layer(x, memory), layer(x, memory))


@pytest.mark.parametrize("kind", [SinkhornCrossAttention, SoftmaxCrossAttention])
@pytest.mark.parametrize("wide", ["x", "memory"])
def test_cross_attention_refuses_tokens_of_another_dtype(
    kind: type[torch.nn.Module], wide: str
) -> None:
    layer = kind(DIM, **({"max_length": MAX} if kind is SinkhornCrossAttention else {}))
    given = {"x": tokens(9).float(), "memory": tokens(13).float()}
    given[wide] = given[wide].double()
    with pytest.raises(InputError, match=rf"{wide}: .*torch.float32\b"):
        layer(**given)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("num_heads", {"num_heads": 3}),
        ("max_length", {"max_length": 0}),
        ("sort_net", {"sort_net": "attention"}),
        ("combine", {"combine": "sum_out", "sortcut": 1}),
        ("sortcut", {"sortcut": 9}),
        ("dropout", {"dropout": 1.0}),
    ],
)
def test_cross_attention_refuses_bad_options(name: str, change: Options) -> None:
    with pytest.raises(InputError, match=rf"^{name}:"):
        SinkhornCrossAttention(DIM, **{"max_length": MAX, **change})


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("x", lambda layer: layer(tokens(3)[0], tokens(3))),
        ("x", lambda layer: layer(tokens(0), tokens(3))),
        ("memory", lambda layer: layer(tokens(3), tokens(3)[..., :4])),
        ("memory", lambda layer: layer(tokens(3), tokens(3, batch=1))),
        ("memory", lambda layer: layer(tokens(3), tokens(MAX + 1))),
        (
            "key_padding_mask",
            lambda layer: layer(tokens(3), tokens(4), key_padding_mask=torch.ones(2, 3) > 0),
        ),
    ],
)
def test_cross_attention_refuses_bad_input(
    name: str, call: Callable[[SinkhornCrossAttention], Tensor]
) -> None:
    with pytest.raises(InputError, match=rf"^{name}:"):
        call(build_cross({}))
