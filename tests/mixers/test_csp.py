from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rifflemix.errors import InputError
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.registry import create_mixer
from rifflemix.ops import channel_permute, circular_shift, group_sort, shift_steps

BUILDS: dict[str, dict[str, Any]] = {
    "default": {},
    "one group": {"num_groups": 1, "shift": "none"},
    "three groups": {"num_groups": 3, "pad": True},
    "groups of five": {"group_size": 5, "shift": "power", "pad": True},
    "shift only": {"group_size": 1},
    "ascending": {"order": "ascending", "shift": "code_linear"},
    "released powers": {"order": "ascending", "shift": "code_exp"},
    "explicit": {"shift": list(range(16)), "group_size": 4, "pad": True},
    "heads": {"heads": 4, "group_size": 3, "pad": True},
}


def build(**options: Any) -> CSP:
    """Build the permutation alone: both projections are identities."""
    mixer = create_mixer("csp", 16, layer_index=1, num_layers=3, out_proj=False, **options)
    nn.init.eye_(mixer.value.weight)
    return mixer.double()


@pytest.mark.parametrize("options", BUILDS.values(), ids=BUILDS)
def test_every_length_is_a_permutation_of_each_channel(options: dict[str, Any]) -> None:
    mixer = build(**options)
    for length in range(1, 20):
        x = torch.randn(2, length, 16, dtype=torch.float64)
        y = mixer(x)
        assert torch.equal(y.sort(dim=1).values, x.sort(dim=1).values)


@pytest.mark.parametrize("options", BUILDS.values(), ids=BUILDS)
def test_any_mask_permutes_the_valid_tokens(options: dict[str, Any]) -> None:
    mixer = build(**options)
    for length in (1, 2, 9, 13):
        x = torch.randn(4, length, 16, dtype=torch.float64)
        mask = torch.rand(4, length) < 0.4
        mask[0] = True
        y = mixer(x, key_padding_mask=mask)
        for sample in range(4):
            valid = ~mask[sample]
            kept, given = y[sample, valid], x[sample, valid]
            assert torch.equal(kept.sort(dim=0).values, given.sort(dim=0).values)


@pytest.mark.parametrize("name", ["csp_code_linear_n16c6", "csp_code_exp_l0"])
def test_released_presets(golden, name: str) -> None:
    vectors = golden(name)
    shift = "code_linear" if "linear" in name else "code_exp"
    mixer = CSP(6, shift=shift, order="ascending", out_proj=False, num_layers=3)
    nn.init.eye_(mixer.value.weight)
    y = mixer(torch.from_numpy(vectors["v"]))
    torch.testing.assert_close(y, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("literal_csp_kfull", {"num_groups": 12, "shift": list(range(8))}),
        ("literal_csp_linear_k1", {"num_groups": 1, "shift": "none"}),
    ],
)
def test_literal_operator(golden, name: str, options: dict[str, Any]) -> None:
    vectors = golden(name)
    mixer = CSP(8, out_proj=False, **options)
    nn.init.eye_(mixer.value.weight)
    y = mixer(torch.from_numpy(vectors["v"]))
    torch.testing.assert_close(y, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)


def test_released_reference_sort_with_gradients(golden) -> None:
    vectors = {
        key: torch.from_numpy(value) for key, value in golden("csp_reference_sort_full").items()
    }
    mixer = CSP(16, num_groups=1, shift="none")
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
    torch.testing.assert_close(mixer.value.weight.grad, vectors["gp.to_qkv.weight"][32:], **close)
    torch.testing.assert_close(mixer.proj.weight.grad, vectors["gp.to_out.0.weight"], **close)
    torch.testing.assert_close(mixer.proj.bias.grad, vectors["gp.to_out.0.bias"], **close)


def test_equals_the_public_operators() -> None:
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    steps = shift_steps("power", 12, 16, layer_index=1, num_layers=3)
    expected = channel_permute(x, steps, 4)
    assert torch.equal(build(shift="power", num_groups=4)(x), expected)
    assert torch.equal(build(shift="none", group_size=3)(x), group_sort(x, 4))
    linear = shift_steps("linear", 12, 16)
    assert torch.equal(build(group_size=1)(x), circular_shift(x, linear))
    assert torch.equal(build()(x), channel_permute(x, linear, 6))


@pytest.mark.parametrize("length", [2, 5, 9, 11])
@pytest.mark.parametrize("shift", ["none", "linear", [0, *range(3, 18)]], ids=str)
def test_last_group_may_be_shorter(shift: Any, length: int) -> None:
    """Check that shifts skip padding and the last group is sorted separately."""
    mixer = build(shift=shift, group_size=4, pad=True)
    x = torch.randn(2, length, 16, dtype=torch.float64)
    steps = [0] * 16 if shift == "none" else shift
    shifted = circular_shift(x, shift_steps("linear", length, 16) if shift == "linear" else steps)
    pieces = [group_sort(piece, 1) for piece in shifted.split(4, dim=1)]
    assert torch.equal(mixer(x), torch.cat(pieces, dim=1))


def test_num_groups_that_do_not_divide_round_the_size_up() -> None:
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    y = build(shift="none", num_groups=4, pad=True)(x)  # ceil(9 / 4) = 3 tokens per group
    assert torch.equal(y, group_sort(x, 3))


def test_reference_channels_are_not_shifted() -> None:
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    assert torch.equal(build(shift="code_exp")(x)[..., 0], x[..., 0])
    y = build(shift="linear", heads=4)(x)
    assert torch.equal(y[..., ::4], x[..., ::4])
    explicit = build(shift=[5] * 16, group_size=2)(x)
    assert torch.equal(explicit[..., 0], x[..., 0].roll(5, dims=1))


@pytest.mark.parametrize("name", [name for name in BUILDS if name != "one group"])
def test_sample_is_the_same_alone_and_in_a_batch_with_a_longer_one(name: str) -> None:
    x = torch.randn(2, 47, 16, dtype=torch.float64)
    mask = torch.arange(47) >= torch.tensor([[30], [47]])
    mixer = build(**BUILDS[name], max_length=50)
    assert torch.equal(mixer(x, key_padding_mask=mask)[:1, :30], mixer(x[:1, :30]))
    if name in ("default", "three groups", "groups of five", "released powers"):
        by_length = build(**BUILDS[name], max_length=50, layout="length")
        together = by_length(x, key_padding_mask=mask)[:1, :30]
        assert not torch.equal(together, by_length(x[:1, :30]))


@pytest.mark.parametrize("options", BUILDS.values(), ids=BUILDS)
def test_layouts_agree_at_max_length(options: dict[str, Any]) -> None:
    x = torch.randn(2, 17, 16, dtype=torch.float64)
    expected = build(**options)(x)
    assert torch.equal(build(**options, max_length=17)(x), expected)
    assert torch.equal(build(**options, max_length=40, layout="length")(x), expected)


def test_groups_are_parts_of_max_length() -> None:
    mixer = build(num_groups=4, shift="none", max_length=24)
    for length in (6, 18):  # groups of 6
        x = torch.randn(2, length, 16, dtype=torch.float64)
        assert torch.equal(mixer(x), group_sort(x, length // 6))
    for length in (3, 9):
        expected = rf"max_length.*num_groups.*{length}.*got 6\b"
        with pytest.raises(InputError, match=expected):
            mixer(torch.randn(2, length, 16, dtype=torch.float64))
    whole = build(num_groups=1, pad=False, shift="none", max_length=24)
    assert torch.equal(whole(x[:, :5]), group_sort(x[:, :5], 1))
    with pytest.raises(InputError, match=r"num_groups: .*max_length = 25.*got 4\b"):
        build(num_groups=4, max_length=25)(torch.randn(2, 9, 16, dtype=torch.float64))


@pytest.mark.parametrize("shift", ["none", [0, *range(2, 17)]], ids=["none", "list"])
@pytest.mark.parametrize("extra", [1, 2, 7])
def test_trailing_padding_does_not_matter_without_a_schedule(shift: Any, extra: int) -> None:
    mixer = build(shift=shift, group_size=3, pad=True)
    x = torch.randn(2, 10 + extra, 16, dtype=torch.float64)
    mask = torch.arange(10 + extra).expand(2, -1) >= 10
    y = mixer(x, key_padding_mask=mask)
    assert torch.equal(y[:, :10], mixer(x[:, :10]))


def test_layers_of_a_stack_differ() -> None:
    x = torch.randn(1, 32, 16)
    outputs = []
    for layer in range(3):
        mixer = create_mixer(
            "csp", 16, layer_index=layer, num_layers=3, shift="power", out_proj=False
        )
        nn.init.eye_(mixer.value.weight)
        outputs.append(mixer(x))
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 512 * 512 + 512 * 513),
        ({"bias": True}, 2 * 512 * 513),
        ({"out_proj": False}, 512 * 512),
        ({"shift": "power", "heads": 8, "num_groups": 7}, 512 * 512 + 512 * 513),
    ],
)
def test_parameter_count(options: dict[str, Any], expected: int) -> None:
    mixer = create_mixer("csp", 512, num_heads=8, **options)
    assert sum(p.numel() for p in mixer.parameters()) == expected
    assert set(mixer.state_dict()) <= {"value.weight", "value.bias", "proj.weight", "proj.bias"}


@pytest.mark.parametrize("name", ["csp", "sliceformer"])
@pytest.mark.parametrize("causal", [False, True])
def test_parameters_keep_their_order(name: str, causal: bool) -> None:
    """Check the order: optimizer states in checkpoints depend on it."""
    mixer = create_mixer(name, 16, causal=causal)
    assert list(mixer.state_dict()) == ["proj.weight", "proj.bias", "value.weight"]


def test_shared_heads_do_not_change_results() -> None:
    x = torch.randn(2, 8, 16)
    outputs = []
    for heads in (1, 4):
        torch.manual_seed(1)
        outputs.append(create_mixer("csp", 16, num_heads=heads)(x))
    assert torch.equal(*outputs)


def test_dropout_is_applied_by_the_block() -> None:
    mixer = create_mixer("csp", 16, dropout=0.5)
    x = torch.randn(4, 32, 16)
    assert torch.equal(mixer.train()(x), mixer.eval()(x))


@pytest.mark.parametrize("inner_dim", [4, 16, 40])
def test_inner_dim_is_the_permuted_width(inner_dim: int) -> None:
    mixer = create_mixer("csp", 16, inner_dim=inner_dim, heads=2, out_bias=False)
    assert sum(p.numel() for p in mixer.parameters()) == 2 * 16 * inner_dim
    x = torch.randn(2, 10, 16)
    steps = shift_steps("linear", 10, inner_dim)
    steps[inner_dim // 2] = 0  # the second head's reference
    v = channel_permute(mixer.value(x), steps, 5, heads=2)
    assert torch.equal(mixer(x), mixer.proj(v))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_groups": 2, "group_size": 2}, "group_size: .*None.*num_groups.*got 2"),
        ({"num_groups": 0}, "num_groups"),
        ({"group_size": 0}, "group_size"),
        ({"shift": "quadratic"}, "shift"),
        ({"shift": [1, 2, 3]}, "shift"),
        ({"shift": [0.5] * 16}, "shift"),
        ({"shift": 3}, "shift"),
        ({"order": "descending"}, "order"),
        ({"heads": 3}, "heads"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        create_mixer("csp", 16, **options)


@pytest.mark.parametrize("pad", [None, False])
@pytest.mark.parametrize("options", [{"num_groups": 4}, {"group_size": 4}], ids=str)
def test_requested_groups_must_divide_the_length(options: dict[str, Any], pad: bool | None) -> None:
    mixer = create_mixer("csp", 16, pad=pad, **options)
    assert mixer(torch.randn(1, 12, 16)).shape == (1, 12, 16)
    with pytest.raises(InputError, match=rf"{next(iter(options))}: .* N = 10, got 4; .*pad=True"):
        mixer(torch.randn(1, 10, 16))


def test_a_short_sequence_needs_pad_for_a_large_group() -> None:
    with pytest.raises(InputError, match="group_size"):
        create_mixer("csp", 16, pad=False, group_size=8)(torch.randn(1, 4, 16))


def test_without_projections_the_tokens_are_permuted() -> None:
    bare = create_mixer("csp", 16, value_proj=False, out_proj=False)
    assert not list(bare.parameters())
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    assert torch.equal(bare(x), build()(x))
    for refused in ({"bias": True}, {"inner_dim": 8}):
        with pytest.raises(InputError, match="value_proj: expected True"):
            create_mixer("csp", 16, value_proj=False, **refused)


COMPILED = {
    "power": {"shift": "power", "num_groups": 1},
    "explicit": {"shift": list(range(16)), "group_size": 1},
    "sorted": {"shift": "none", "num_groups": 3, "pad": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", COMPILED.values(), ids=COMPILED)
@pytest.mark.parametrize("masked", [False, True])
def test_compiles_for_changing_lengths(options: dict[str, Any], masked: bool) -> None:
    torch.compiler.reset()
    mixer = create_mixer("csp", 16, **options)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    for length in (12, 9, 17):
        x = torch.randn(2, length, 16)
        mask = torch.rand(2, length) < 0.3 if masked else None
        y = compiled(x, key_padding_mask=mask)
        torch.testing.assert_close(y, mixer(x, key_padding_mask=mask))


@pytest.mark.parametrize(
    ("options", "multiple"),
    [
        pytest.param({}, 2, id="pairs"),
        pytest.param({"shift": "power", "num_groups": 1}, 1, id="power", marks=pytest.mark.slow),
        pytest.param({"group_size": 1}, 1, id="shift", marks=pytest.mark.slow),
    ],
)
def test_exports_with_any_length(options: dict[str, Any], multiple: int) -> None:
    mixer = create_mixer("csp", 16, **options)
    length = multiple * torch.export.Dim("half", min=3, max=512)
    example = torch.randn(2, 12, 16)
    program = torch.export.export(mixer, (example,), dynamic_shapes={"x": {1: length}})
    longer: Tensor = torch.randn(2, 18, 16)
    torch.testing.assert_close(program.module()(longer), mixer(longer))


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averaged_weights_keep_the_shifts_if_buffers_are_not_averaged(use_buffers: bool) -> None:
    """Check the note in docs/start.md: torch rounds averages of integers down."""
    mixer, x = build(shift=list(range(16))), torch.randn(2, 19, 16, dtype=torch.float64)
    averaging = get_ema_multi_avg_fn(0.9)
    averaged = AveragedModel(mixer, multi_avg_fn=averaging, use_buffers=use_buffers)
    for _ in range(3):
        averaged.update_parameters(mixer)
    assert torch.equal(averaged(x), mixer(x)) is not use_buffers
