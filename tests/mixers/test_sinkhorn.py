"""Sparse Sinkhorn attention as a mixer: variants, padding, causality, noise and options."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sinkhorn_variants import DECODERS, DIM, DOUBLE, ENCODERS, HEADS, MAX, Options, build, tokens
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.mixers import create_mixer
from rifflemix.mixers import sorting_networks as networks
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.ops.sinkhorn import backends

VARIANTS = [
    pytest.param(causal, options, id=f"{'causal ' if causal else ''}{name}")
    for causal, table in ((False, ENCODERS), (True, DECODERS))
    for name, options in table.items()
]


@pytest.mark.parametrize(("causal", "options"), VARIANTS)
def test_any_length_is_accepted(causal: bool, options: Options) -> None:
    mixer = build(options, causal)
    for length in (1, 2, 7, 8, 13, MAX):
        y = mixer(tokens(length))
        assert y.shape == (2, length, DIM)
        assert y.isfinite().all()


@settings(max_examples=3, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("causal", "options"), VARIANTS)
def test_masked_input_equals_the_valid_tokens(
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


@pytest.mark.parametrize(("causal", "options"), VARIANTS)
def test_gradients_are_correct(causal: bool, options: Options) -> None:
    mixer = build({**options, "block_size": 2, "num_iterations": 2}, causal, max_length=6)
    names = [name for name, _ in mixer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in mixer.parameters()]
    mask = torch.tensor([[False, False, True, False, False, False]])

    def run(x: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(mixer, parameters, (x,), {"key_padding_mask": mask})

    x = tokens(6, batch=1).requires_grad_()
    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


@pytest.mark.parametrize(("causal", "options"), VARIANTS)
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


class FixedProjection(torch.nn.Module):
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
    mixer.qkv, mixer.proj = FixedProjection(z["q"], z["k"], z["v"]), torch.nn.Identity()
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
