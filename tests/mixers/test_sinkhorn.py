"""Sparse Sinkhorn attention as a mixer: variants, padding, causality, noise, cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.mixers import create_mixer
from rifflemix.mixers import sorting_networks as networks
from rifflemix.mixers.cross_attention import SinkhornCrossAttention, SoftmaxCrossAttention
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.ops.sinkhorn import backends

DOUBLE = torch.float64
DIM, HEADS, MAX = 8, 2, 20
Options = dict[str, Any]

SHARED: dict[str, Options] = {
    "default": {},
    "odd block": {"block_size": 5},
    "block of one": {"block_size": 1},
    "block over max_length": {"block_size": 32},
    "relu": {"sort_net": "relu"},
    "mlp": {"sort_net": "mlp"},
    "relu_mlp": {"sort_net": "relu_mlp"},
    "attention": {"sort_net": "attention"},
    "no iterations": {"num_iterations": 0},
    "relu kernel": {"kernel": "relu"},
    "sum_logits": {"combine": "sum_logits"},
    "sum_out": {"combine": "sum_out"},
    "mixture": {"mixture": True},
    "tied": {"tie_kv": True},
    "no bias": {"bias": False},
    "top 1": {"top_k": 1},
    "top 2": {"top_k": 2, "block_size": 4},
    "top 2 attention": {"top_k": 2, "sort_net": "attention"},
}
ENCODERS: dict[str, Options] = {
    **SHARED,
    "sortcut": {"sortcut": 2},
    "sortcut local": {"sortcut": 2, "sortcut_local": True, "block_size": 4},
    "sortcut attention": {"sortcut": 1, "sort_net": "attention"},
    "sortcut top 2": {"sortcut": 2, "top_k": 2},
    "sortcut top 2 attention": {"sortcut": 2, "top_k": 2, "sort_net": "attention"},
}
DECODERS: dict[str, Options] = {
    **SHARED,
    "literal order": {"final_row_norm": False},
    "null": {"null_kv": True},
    "null literal": {"null_kv": True, "final_row_norm": False, "combine": "sum_logits"},
    "null top 2": {"null_kv": True, "top_k": 2, "block_size": 4},
    "rotated": {"rotate_heads": True, "block_size": 4},
    "port": {"rotate_heads": True, "null_kv": True, "top_k": 2, "sort_net": "attention"},
}
FORMS = [
    pytest.param(causal, options, id=f"{'causal ' if causal else ''}{name}")
    for causal, table in ((False, ENCODERS), (True, DECODERS))
    for name, options in table.items()
]


def build(options: Options, causal: bool = False, **shared: Any) -> Sinkhorn:
    arguments = {"num_heads": HEADS, "max_length": MAX, "causal": causal, **shared}
    mixer = Sinkhorn(DIM, **options, **arguments)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mixer.to(DOUBLE).eval()


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=DOUBLE)


@pytest.mark.parametrize(("causal", "options"), FORMS)
def test_any_length_is_accepted(causal: bool, options: Options) -> None:
    mixer = build(options, causal)
    for length in (1, 2, 7, 8, 13, MAX):
        y = mixer(tokens(length))
        assert y.shape == (2, length, DIM)
        assert y.isfinite().all()


@settings(max_examples=3, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("causal", "options"), FORMS)
def test_masked_input_equals_the_valid_tokens_alone(
    causal: bool, options: Options, data: st.DataObject
) -> None:
    """Check that padding anywhere, with any content, equals removing it."""
    length = data.draw(st.integers(1, MAX))
    bits = st.lists(st.booleans(), min_size=3 * length, max_size=3 * length)
    mask = torch.tensor(data.draw(bits)).view(3, length)
    mixer = build(options, causal)
    x = tokens(length, batch=3)
    x[mask] = float("nan")
    x.requires_grad_()
    y = mixer(x, key_padding_mask=mask)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert (y[mask] == 0).all()
    assert gradient.isfinite().all()
    for sample in range(3):
        valid = ~mask[sample]
        if valid.any():
            alone = mixer(x[sample, valid][None])[0]
            torch.testing.assert_close(y[sample, valid], alone)


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS.keys())
def test_no_output_depends_on_later_tokens(options: Options) -> None:
    mixer = build(options, causal=True)
    mixer.proj = torch.nn.Identity()  # exposes every head separately
    x = tokens(MAX)
    y = mixer(x)
    for token in range(MAX):
        later = x.clone()
        later[:, token:] = 5 * torch.randn(2, MAX - token, DIM, dtype=DOUBLE)
        after = mixer(later)
        torch.testing.assert_close(after[:, :token], y[:, :token], atol=1e-12, rtol=1e-12)
        # "sum_logits" uses no local values, so its first block has no keys.
        if mixer.options.combine != "sum_logits" or token >= mixer.block_size:
            assert not torch.allclose(after[:, token], y[:, token])


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS.keys())
def test_causal_prefix_does_not_depend_on_later_tokens(options: Options) -> None:
    mixer = build(options, causal=True)
    x = tokens(MAX)
    y = mixer(x)
    for length in (1, 4, 11):
        torch.testing.assert_close(mixer(x[:, :length]), y[:, :length])


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS.keys())
def test_causal_gradients_flow_to_the_past_only(options: Options) -> None:
    mixer = build(options, causal=True)
    x = tokens(12, batch=1).requires_grad_()
    y = mixer(x)
    for token in (0, 3, 4, 7, 11):
        (gradient,) = torch.autograd.grad(y[0, token].sum(), x, retain_graph=True)
        assert gradient.isfinite().all()
        assert gradient[0, token + 1 :].abs().max() <= 1e-14 if token < 11 else True


@pytest.mark.parametrize(("causal", "options"), FORMS)
def test_gradients(causal: bool, options: Options) -> None:
    mixer = build({**options, "block_size": 2, "num_iterations": 2}, causal, max_length=6)
    names = [name for name, _ in mixer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in mixer.parameters()]
    mask = torch.tensor([[False, False, True, False, False, False]])

    def run(x: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(mixer, parameters, (x,), {"key_padding_mask": mask})

    x = tokens(6, batch=1).requires_grad_()
    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


@pytest.mark.parametrize(("causal", "options"), FORMS)
def test_batch_and_precision(causal: bool, options: Options) -> None:
    mixer = build(options, causal)
    x = tokens(13, batch=4)
    y = mixer(x)
    torch.testing.assert_close(torch.cat((mixer(x[:1]), mixer(x[1:]))), y)
    for dtype in (torch.float32, torch.bfloat16):
        low = mixer.to(dtype)(x.to(dtype))
        assert low.dtype == dtype
        assert low.isfinite().all()
    mixer.train()
    mixer.dropout = 0.1
    loss = mixer(x.bfloat16()).square().mean()
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())


@pytest.mark.parametrize(
    ("gumbel", "in_training", "in_eval"),
    [("training", True, False), ("always", True, True), ("never", False, False)],
)
@pytest.mark.parametrize("options", [{}, {"top_k": 1}], ids=["sinkhorn", "top-k"])
def test_gumbel_noise(gumbel: str, in_training: bool, in_eval: bool, options: Options) -> None:
    mixer = build({"gumbel": gumbel, **options})
    x = tokens(MAX)
    for training, noisy in ((True, in_training), (False, in_eval)):
        mixer.train(training)
        assert torch.equal(mixer(x), mixer(x)) != noisy
        torch.manual_seed(3)
        y = mixer(x)
        torch.manual_seed(3)
        assert torch.equal(mixer(x), y)


def test_low_temperature_attends_to_the_named_block() -> None:
    """Check one-hot sorting: block u attends to block order[u] and itself."""
    mixer = build({"block_size": 4, "temperature": 0.1}, max_length=16)
    order = torch.tensor([2, 0, 3, 1])
    x = tokens(16)
    with torch.no_grad():
        mixer.sorter.net.weight.zero_()
        mixer.sorter.net.bias.zero_()
        pooled = x[0].view(4, 4, DIM).sum(1)
        for head in range(HEADS):
            target = 20.0 * F.one_hot(order, 4).to(DOUBLE)
            mixer.sorter.net.weight[head] = torch.linalg.lstsq(pooled, target).solution
        y = mixer(x[:1])
        q, k, v = mixer.qkv(x[:1]).view(1, 4, 4, 3, HEADS, DIM // HEADS).permute(3, 0, 4, 1, 2, 5)
        keys, values = (torch.cat((t, t[:, :, order]), 3) for t in (k, v))
        expected = F.scaled_dot_product_attention(q, keys, values)
        expected = mixer.proj(expected.permute(0, 2, 3, 1, 4).reshape(1, 16, DIM))
    torch.testing.assert_close(y, expected)


def test_memory_is_not_quadratic_in_the_length() -> None:
    """Check that the tensors autograd saves grow like N b, not N^2."""
    kept = {}
    for length in (256, 1024):
        mixer = Sinkhorn(8, num_heads=1, max_length=length, block_size=16)
        largest = 0

        def pack(t: Tensor) -> Tensor:
            nonlocal largest
            largest = max(largest, t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            mixer(torch.randn(1, length, 8))
        kept[length] = largest
    assert kept[1024] <= 4.2 * kept[256]


@pytest.mark.parametrize(
    ("max_length", "block_size"), [(1, 1), (2, 2), (64, 8), (65, 16), (1024, 32), (2000, 64)]
)
def test_default_block_is_near_the_square_root(max_length: int, block_size: int) -> None:
    mixer = create_mixer("sinkhorn", 4, max_length=max_length)
    assert mixer.block_size == block_size
    assert mixer.sorter.net.weight.shape[-1] == -(-max_length // block_size)


def test_sorting_network_has_xavier_uniform_initialization() -> None:
    net = networks.SortingNetwork("mlp", 64, 4, 16)
    assert net.hidden_weight.shape == (4, 64, 64)
    for weight in (net.hidden_weight, net.weight):
        bound = (6 / sum(weight.shape[1:])) ** 0.5
        assert 0.95 * bound < weight.abs().max() <= bound
    assert not net.bias.any()


def test_whole_layer_equals_the_port(
    golden: Callable[[str], dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    z = {key: torch.from_numpy(value) for key, value in golden("sinkhorn_selfattn_fixed").items()}
    noise = z["gumbel_noise"].unflatten(0, (2, 2))
    monkeypatch.setattr(backends, "gumbel_noise", lambda shape, *_: noise.reshape(shape))
    mixer = Sinkhorn(
        8,
        num_heads=2,
        max_length=16,
        block_size=4,
        sort_net="attention",
        kernel="relu",
        num_iterations=7,
        gumbel="always",
    ).eval()
    with torch.no_grad():
        mixer.qkv.weight.copy_(torch.cat((z["p.to_q.weight"], z["p.to_kv.weight"])))
        mixer.qkv.bias.zero_()
        mixer.proj.weight.copy_(z["p.to_out.weight"])
        mixer.proj.bias.copy_(z["p.to_out.bias"])
        torch.testing.assert_close(mixer(z["x"]), z["y"], atol=1e-5, rtol=1e-4)


class Given(torch.nn.Module):
    """Replaces the projection: returns fixed queries, keys and values."""

    def __init__(self, *heads: Tensor) -> None:
        super().__init__()
        self.projected = torch.cat([t.transpose(1, 2).flatten(2) for t in heads], -1)

    def forward(self, x: Tensor) -> Tensor:
        return self.projected


@pytest.mark.parametrize("k", [1, 2])
def test_whole_causal_layer_equals_the_port(
    golden: Callable[[str], dict[str, np.ndarray]], k: int
) -> None:
    arrays = golden(f"sinkhorn_causal_attnsort_top{k}")
    z = {key: torch.from_numpy(value) for key, value in arrays.items()}
    mixer = create_mixer(
        "sinkhorn",
        8,
        num_heads=2,
        max_length=16,
        causal=True,
        block_size=4,
        sort_net="attention",
        top_k=k,
        null_kv=True,
        rotate_heads=True,
    ).eval()
    mixer.qkv, mixer.proj = Given(z["q"], z["k"], z["v"]), torch.nn.Identity()
    with torch.no_grad():
        mixer.null_key.copy_(z["p.null_keys"][:, 0])
        mixer.null_value.copy_(z["p.null_values"][:, 0])
        y = mixer(torch.zeros(2, 16, 8)).view(2, 16, 2, 4).transpose(1, 2)
    torch.testing.assert_close(y, z["y"], atol=1e-5, rtol=1e-4)


BAD: list[tuple[str, Options]] = [
    ("max_length", {"max_length": None}),
    ("block_size", {"block_size": 0}),
    ("sort_net", {"sort_net": "linaer"}),
    ("gumbel", {"gumbel": "train"}),
    ("kernel", {"kernel": "gelu"}),
    ("kernel", {"kernel": "relu", "top_k": 1}),
    ("combine", {"combine": "sum"}),
    ("combine", {"combine": "sum_out", "sortcut": 1}),
    ("combine", {"combine": "sum_logits", "top_k": 2}),
    ("combine", {"combine": "sum_logits", "sortcut": 2, "sortcut_local": True}),
    ("temperature", {"temperature": 0.0}),
    ("num_iterations", {"num_iterations": -1}),
    ("sortcut", {"sortcut": -1}),
    ("sortcut", {"sortcut": 4}),
    ("sortcut", {"sortcut": 1, "causal": True}),
    ("sortcut", {"sortcut": 2, "top_k": 1}),
    ("sortcut_local", {"sortcut_local": True}),
    ("top_k", {"top_k": 4}),
    ("top_k", {"top_k": -1}),
    ("null_kv", {"null_kv": True}),
    ("final_row_norm", {"final_row_norm": False}),
    ("final_row_norm", {"final_row_norm": False, "causal": True, "top_k": 1}),
    ("rotate_heads", {"rotate_heads": True}),
    ("rotate_heads", {"rotate_heads": True, "causal": True, "num_heads": 1}),
]


@pytest.mark.parametrize(("name", "change"), BAD, ids=[f"{n} {i}" for i, (n, _) in enumerate(BAD)])
def test_bad_input_names_the_argument(name: str, change: Options) -> None:
    with pytest.raises(InputError, match=rf"^{name}:"):
        Sinkhorn(DIM, **{"num_heads": HEADS, "max_length": MAX, **change})


# Cross-attention

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
