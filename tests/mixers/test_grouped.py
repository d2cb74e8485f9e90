"""Grouped mixing: the inner mixer per strided group, full coverage in two layers, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.mixers.grouped import Grouped
from rifflemix.mixers.tssa import TSSA


def build(**options: Any) -> Grouped:
    torch.manual_seed(3)
    mixer = rm.create_mixer("grouped", 8, num_heads=2, **options).double().eval()
    assert isinstance(mixer, Grouped)
    return perturb(mixer, 0.1)


def group_by_group(mixer: Grouped, x: Tensor, mask: Tensor, block: int, stride: int) -> Tensor:
    """Apply the inner mixer to the valid tokens of every group."""
    y = torch.zeros_like(x)
    places = torch.arange(x.shape[1])
    for sample in range(len(x)):
        for first in range(0, x.shape[1], block * stride):
            for phase in range(stride):
                in_span = (places >= first) & (places < first + block * stride)
                tokens = in_span & (places % stride == phase) & ~mask[sample]
                if tokens.any():
                    y[sample, tokens] = mixer.inner(x[sample : sample + 1, tokens])[0]
    return y


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("layout", ["max_length", "length"])
@pytest.mark.parametrize("layer_index", [0, 1])
@pytest.mark.parametrize(
    ("inner", "inner_options"),
    [("tssa", {}), ("tssa", {"normalize": False, "bias": False}), ("linear", {}), ("xca", {})],
    ids=["tssa", "tssa options", "linear", "xca"],
)
def test_equals_the_inner_mixer_group_by_group(
    inner: str, inner_options: dict[str, Any], layer_index: int, layout: str, masked: bool
) -> None:
    mixer = build(
        inner=inner,
        inner_options=inner_options,
        layer_index=layer_index,
        num_layers=2,
        max_length=25,
        block_size=5,
        layout=layout,
    )
    for length in (1, 3, 13, 25):
        x = torch.randn(2, length, 8, dtype=torch.float64)
        mask = torch.rand(2, length) < (0.4 if masked else -1.0)
        laid_out = 25 if layout == "max_length" else length
        strides = mixer.strides(length)
        stride = strides[layer_index % len(strides)]
        expected = group_by_group(mixer, x, mask, min(5, laid_out), stride)
        found = mixer(x, key_padding_mask=mask if masked else None)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("inner", ["tssa", "softmax", "average"])
def test_two_layers_connect_all_tokens(inner: str) -> None:
    length, block = 25, 5
    layers = [
        build(inner=inner, block_size=block, max_length=length, layer_index=i, num_layers=2)
        for i in range(2)
    ]
    x = torch.randn(1, length, 8, dtype=torch.float64)

    def met(*chain: Grouped) -> Tensor:
        """Return (N, N) bool: output n depends on input m."""

        def run(tokens: Tensor) -> Tensor:
            for layer in chain:
                tokens = tokens + layer(tokens)
            return tokens[0].sum(-1)

        jacobian = torch.autograd.functional.jacobian(run, x)
        return jacobian.abs().amax(dim=(1, 3)) > 1e-12

    place = torch.arange(length)
    assert torch.equal(met(layers[0]), place[:, None] // block == place // block)
    assert torch.equal(met(layers[1]), place[:, None] % block == place % block)
    assert met(*layers).all()


def test_with_softmax_equals_butterfly_attention() -> None:
    for layer_index in range(2):
        options: dict[str, Any] = {"max_length": 40, "layer_index": layer_index, "num_layers": 2}
        butterfly = rm.create_mixer("butterfly", 8, num_heads=2, **options).double()
        mixer = build(inner="softmax", **options)
        names = {name: name.replace("attention.", "inner.") for name in butterfly.state_dict()}
        mixer.load_state_dict({names[k]: v for k, v in butterfly.state_dict().items()})
        x, mask = torch.randn(2, 37, 8, dtype=torch.float64), torch.rand(2, 37) < 0.3
        assert torch.equal(mixer(x, key_padding_mask=mask), butterfly(x, key_padding_mask=mask))


def test_inner_mixer_gets_the_group_length_and_the_options() -> None:
    mixer = rm.create_mixer(
        "grouped", 8, num_heads=2, max_length=64, dropout=0.25, inner_options={"bias": False}
    )
    assert isinstance(mixer, Grouped)
    assert isinstance(mixer.inner, TSSA)
    assert (mixer.block_size, mixer.inner.max_length) == (8, 8)
    assert (mixer.inner.num_heads, mixer.inner.dropout) == (2, 0.25)
    assert mixer.inner.in_proj.bias is None
    assert "inner=tssa" in repr(mixer)


class Largest(rm.TokenMixer):
    """Returns the largest valid value of each channel."""

    card = rm.MixerCard(
        name="largest",
        title="Largest",
        paper="folklore",
        equations="max",
        complexity="O(N C)",
        cost_exponent=1.0,
        permutation_equivariant=True,
    )

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), -torch.inf)
        return x.amax(1, keepdim=True).expand_as(x)


@pytest.mark.usefixtures("registries")
def test_user_defined_inner_mixer() -> None:
    rm.register_mixer(Largest)
    mixer = build(inner="largest", block_size=4, layout="length")
    x = torch.randn(1, 8, 8, dtype=torch.float64)
    expected = x.view(1, 2, 4, 8).amax(2, keepdim=True).expand(1, 2, 4, 8).reshape(1, 8, 8)
    assert torch.equal(mixer(x), expected)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    "change", [{"padding": False}, {"layout_over_length": "strides"}], ids=lambda c: next(iter(c))
)
def test_inner_mixer_must_support_any_padding(change: dict[str, Any]) -> None:
    mixer = type("Other", (Largest,), {"card": replace(Largest.card, name="other", **change)})
    rm.register_mixer(mixer)
    with pytest.raises(rm.InputError, match=r"inner: .*got other"):
        rm.create_mixer("grouped", 8, inner="other")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"inner": "csp"}, r"inner: .*\(softmax, tssa.*\).*got csp"),
        ({"inner": "grouped"}, r"inner: .*got grouped"),
        ({"inner": "tsa"}, "'tsa'.*tssa"),
        ({"causal": True}, "causal: .*False.*got True"),
        ({"inner_options": {"causal": True}}, "inner_options: .*'causal'"),
        ({"inner_options": {"dropout": 0.1}}, "inner_options: .*'dropout'"),
        ({"inner_options": {1: 2}}, r"inner_options: .*tssa.*got 1\b"),
        ({"inner_options": "bias"}, "inner_options: .*tssa.*got 'bias'"),
        ({"inner": "identity", "inner_options": {"a": 1}}, "identity.*got 'a'"),
        ({"inner_options": {"bias": "no"}}, "bias: .*True.*False.*got 'no'"),
        ({"block_size": 1}, r"block_size: .*\b2\b"),
        ({"layout": "max_length"}, "max_length: .*got None"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        rm.create_mixer("grouped", 8, **options)
