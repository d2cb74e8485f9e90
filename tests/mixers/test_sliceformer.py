from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rifflemix.errors import InputError
from rifflemix.mixers.registry import create_mixer
from rifflemix.mixers.sliceformer import VARIANTS, Sliceformer
from rifflemix.ops import interleave_columns


def build(**options: Any) -> Sliceformer:
    """Build the sort alone: both projections are identities."""
    mixer = Sliceformer(16, out_proj=False, **options)
    nn.init.eye_(mixer.value.weight)
    return mixer.double()


@pytest.mark.parametrize("layer", [0, 1])
def test_released_interleave_with_gradients(golden, layer: int) -> None:
    vectors = {
        key: torch.from_numpy(value)
        for key, value in golden(f"sliceformer_interleave_l{layer}").items()
    }
    mixer = Sliceformer(16, variant="interleave", heads=2, layer_index=layer, num_layers=4)
    mixer.load_state_dict(
        {
            "value.weight": vectors["p.to_qkv.weight"][32:],
            "proj.weight": vectors["p.to_out.0.weight"],
            "proj.bias": vectors["p.to_out.0.bias"],
        }
    )
    x = vectors["x"].requires_grad_()
    y = mixer(x)
    close = {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(y, vectors["y"], **close)
    (y * vectors["ct"]).sum().backward()
    torch.testing.assert_close(x.grad, vectors["gx"], **close)
    weights = vectors["gp.to_qkv.weight"]
    assert not weights[:32].any()  # queries and keys of the released code have no effect
    torch.testing.assert_close(mixer.value.weight.grad, weights[32:], **close)
    torch.testing.assert_close(mixer.proj.weight.grad, vectors["gp.to_out.0.weight"], **close)
    torch.testing.assert_close(mixer.proj.bias.grad, vectors["gp.to_out.0.bias"], **close)


def test_released_max_exchange(golden) -> None:
    vectors = golden("sliceformer_max_exchange")
    mixer = Sliceformer(8, variant="max_exchange", out_proj=False)
    nn.init.eye_(mixer.value.weight)
    y = mixer(torch.from_numpy(vectors["v"]).flatten(0, 1))
    torch.testing.assert_close(y, torch.from_numpy(vectors["y"]).flatten(0, 1))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_variants_sort_the_valid_tokens(length: int, masked: bool) -> None:
    x = torch.randn(3, length, 16, dtype=torch.float64)
    mask = torch.rand(3, length) < 0.4 if masked else torch.zeros(3, length, dtype=torch.bool)
    outputs = {
        variant: build(variant=variant, layer_index=1, num_layers=2)(x, key_padding_mask=mask)
        for variant in VARIANTS
    }
    down = interleave_columns(16, 1)
    for sample in range(3):
        valid = ~mask[sample]
        up = x[sample, valid].sort(dim=0).values
        kept = {variant: y[sample, valid] for variant, y in outputs.items()}
        assert torch.equal(kept["ascending"], up)
        assert torch.equal(kept["descending"], up.flip(0))
        assert torch.equal(kept["interleave"], torch.where(down, up.flip(0), up))
        assert torch.equal(kept["max_exchange"].sort(dim=0).values, up)
        assert torch.equal(kept["max_exchange"][:1], up[-1:])


def test_leading_class_token_is_the_minimum_or_maximum() -> None:
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    assert torch.equal(build()(x)[:, 0], x.amin(dim=1))
    assert torch.equal(build(variant="max_exchange")(x)[:, 0], x.amax(dim=1))


def test_reverse_puts_the_finest_layer_first() -> None:
    for layer in range(4):
        mixer = Sliceformer(
            16, variant="interleave", reverse=True, heads=2, layer_index=layer, num_layers=4
        )
        assert torch.equal(mixer.descending, interleave_columns(16, 3 - layer, heads=2))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 64 * 64 + 64 * 65),
        ({"bias": True, "variant": "max_exchange"}, 2 * 64 * 65),
        ({"out_proj": False, "variant": "interleave"}, 64 * 64),
    ],
)
def test_parameter_count(options: dict[str, Any], expected: int) -> None:
    mixer = create_mixer("sliceformer", 64, num_heads=4, **options)
    assert sum(p.numel() for p in mixer.parameters()) == expected
    assert set(mixer.state_dict()) <= {"value.weight", "value.bias", "proj.weight", "proj.bias"}


def test_dropout_is_applied_by_the_block() -> None:
    mixer = Sliceformer(16, dropout=0.5)
    x = torch.randn(4, 32, 16)
    assert torch.equal(mixer.train()(x), mixer.eval()(x))


def test_arena_sizes() -> None:
    """Check the Long Range Arena's Image model.

    It sorts 48 of 96 channels and has no biases.
    """
    mixer = Sliceformer(96, inner_dim=48, heads=8, variant="interleave", out_bias=False)
    assert sum(p.numel() for p in mixer.parameters()) == 2 * 96 * 48
    assert mixer(torch.randn(2, 9, 96)).shape == (2, 9, 96)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradcheck_with_padding(variant: str) -> None:
    mixer = Sliceformer(4, variant=variant, layer_index=1, num_layers=2).double()
    x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 7) < 0.4
    torch.autograd.gradcheck(lambda x: mixer(x, key_padding_mask=mask), (x,))


@pytest.mark.parametrize(
    ("options", "named"),
    [({"variant": "sorted"}, "variant"), ({"heads": 5}, "heads")],
)
def test_bad_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        create_mixer("sliceformer", 16, **options)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_exports_with_any_length(variant: str) -> None:
    mixer = Sliceformer(16, variant=variant, layer_index=1, num_layers=2)
    length = torch.export.Dim("length", min=3, max=512)
    example = torch.randn(2, 12, 16)
    program = torch.export.export(mixer, (example,), dynamic_shapes={"x": {1: length}})
    longer = torch.randn(2, 17, 16)
    torch.testing.assert_close(program.module()(longer), mixer(longer))
