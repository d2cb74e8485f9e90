from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rifflemix.errors import InputError
from rifflemix.ops import interleave_columns, shift_steps
from rifflemix.ops.permutation import SHIFT_KINDS, reference


def joint_power(num_tokens: int, channels: int, layers: int) -> list[int]:
    steps = [
        shift_steps("power", num_tokens, channels, layer_index=layer, num_layers=layers)
        for layer in range(layers)
    ]
    return torch.cat(steps).tolist()


@pytest.mark.parametrize(
    ("kind", "tokens", "channels", "expected"),
    [
        ("none", 9, 4, [0, 0, 0, 0]),
        ("linear", 64, 8, [0, 8, 16, 24, 32, 40, 48, 56]),
        ("linear", 10, 4, [0, 3, 6, 9]),
        ("linear", 9, 4, [0, 3, 6, 0]),  # c * ceil(9 / 4) mod 9
        ("linear", 4, 6, [0, 1, 2, 3, 0, 1]),
        ("code_linear", 16, 6, [0, 0, 2, 4, 6, 8]),
        ("code_linear", 5, 6, [0, 0, 2, 4, 1, 3]),
        ("head", 16, 6, [0, 0, 0, 0, 0, 0]),  # one head
        ("power", 16, 5, [0, 1, 3, 7, 15]),  # 16^(g/4) - 1
        ("code_exp", 16, 4, [1, 2, 4, 8]),
        ("code_exp", 2, 4, [1, 0, 0, 0]),  # ceil(2^(g/4)) = 2 = N is no shift
        ("power", 1, 3, [0, 0, 0]),
        ("power", 100, 1, [0]),  # LC = 1: the only channel is the reference
        ("linear", 1, 3, [0, 0, 0]),
        ("code_exp", 1, 3, [0, 0, 0]),
    ],
)
def test_steps_have_the_published_values(
    kind: str, tokens: int, channels: int, expected: list[int]
) -> None:
    steps = shift_steps(kind, tokens, channels)
    assert steps.dtype == torch.int64
    assert steps.tolist() == expected


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SHIFT_KINDS), st.integers(1, 5000), st.integers(1, 40), st.integers(1, 5))
def test_steps_are_in_range(kind: str, tokens: int, channels: int, layers: int) -> None:
    for layer in range(layers):
        steps = shift_steps(kind, tokens, channels, layer_index=layer, num_layers=layers)
        assert steps.shape == (channels,)
        assert steps.min() >= 0
        assert steps.max() < tokens
        if kind != "code_exp":
            assert steps[0] == 0


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(SHIFT_KINDS),
    st.integers(1, 20000),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 40),
)
def test_equals_the_reference(
    kind: str, tokens: int, width: int, heads: int, layers: int, group_size: int
) -> None:
    channels = width * heads
    for layer in range(layers):
        steps = shift_steps(
            kind,
            tokens,
            channels,
            layer_index=layer,
            num_layers=layers,
            group_size=group_size,
            heads=heads,
        )
        expected = reference.shift_steps(kind, tokens, channels, layer, layers, group_size, heads)
        assert steps.tolist() == expected


def test_power_law_goes_from_local_to_global() -> None:
    steps = joint_power(1024, 16, 4)
    moving = [step for joint, step in enumerate(steps) if joint % 16]
    assert moving == sorted(moving)
    assert moving[0] == 0
    assert moving[-1] == 1023


def test_released_powers_are_ceilings_of_doubles() -> None:
    """Rounding lifts the integer powers at g = 160, 224 and 320 of 384, as in the released code."""
    steps = torch.cat(
        [shift_steps("code_exp", 4096, 64, layer_index=layer, num_layers=6) for layer in range(6)]
    ).tolist()
    wrong = {
        joint: step
        for joint, step in enumerate(steps)
        if not step**384 >= 4096**joint > (step - 1) ** 384
    }
    assert wrong == {160: 33, 224: 129, 320: 1025}


def test_powers_do_not_depend_on_floating_point() -> None:
    assert math.ceil(64 ** (10 / 12)) == 33  # the true value is 32
    assert shift_steps("code_exp", 64, 12)[10] == 33
    assert shift_steps("power", 64, 13)[10] == 31


@pytest.mark.parametrize(("group_size", "different"), [(1, 64), (2, 32), (4, 16), (64, 1)])
def test_released_stride_is_the_group_size(group_size: int, different: int) -> None:
    steps = shift_steps("code_linear", 64, 512, group_size=group_size).tolist()
    assert steps[:2] == [0, 0]
    assert steps[2] == group_size % 64
    assert len(set(steps)) == different


def test_one_step_per_head() -> None:
    """CSP equation (3) on CIFAR-10: C = 512, D = 64, M = 8 steps of C/D."""
    steps = shift_steps("head", 64, 512, heads=8).tolist()
    assert steps == [8 * (channel // 64) for channel in range(512)]
    assert shift_steps("head", 5, 6, heads=3).tolist() == [0, 0, 3, 3, 1, 1]


def test_power_op_passes_opcheck() -> None:
    arguments = ("power", 100, 8, 1, 3, torch.device("cpu"))
    torch.library.opcheck(torch.ops.rifflemix.power_shift_steps.default, arguments)


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        (("lineal", 8, 4), {}, "linear"),
        (("linear", 0, 4), {}, "num_tokens"),
        (("linear", 8, 0), {}, "num_channels"),
        (("power", 8, 4), {"layer_index": 1}, "layer_index"),
        (("power", 8, 4), {"layer_index": -1, "num_layers": 2}, "layer_index"),
        (("power", 8, 4), {"num_layers": 0}, "num_layers"),
        (("code_linear", 8, 4), {"group_size": 0}, "group_size"),
        (("head", 8, 4), {"heads": 3}, "heads"),
    ],
)
def test_bad_schedules_are_refused(arguments: tuple, options: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        shift_steps(*arguments, **options)


def columns(*arguments: int, **options: object) -> list[int]:
    return interleave_columns(*arguments, **options).nonzero().flatten().tolist()


RELEASED = [(8, 1), (8, 2), (8, 4), (8, 8), (8, 16), (8, 32), (64, 1), (64, 2), (64, 8), (10, 2)]


@pytest.mark.parametrize(("width", "basis"), [*RELEASED, (96, 32)])
def test_interleave_equals_the_released_code(golden, width: int, basis: int) -> None:
    expected = golden("sliceformer_haar_basis")[f"idx_{width}_{basis}"]
    assert columns(width, basis.bit_length() - 1) == sorted(expected.tolist())


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((10, 2), {}, [2, 3, 6, 7]),  # the released code adds 9
        ((1, 3), {}, []),  # the released code raises
        ((8, 0), {}, []),
        ((8, 1), {"heads": 2}, [2, 3, 6, 7]),
        ((8, 60), {}, [1, 3, 5, 7]),
        ((8, 0), {"reverse": True, "num_layers": 3}, [2, 3, 6, 7]),
        ((8, 2), {"reverse": True, "num_layers": 3}, []),
        ((8, 1), {"num_layers": 3}, [4, 5, 6, 7]),
    ],
)
def test_interleave_rule(arguments: tuple, options: dict, expected: list[int]) -> None:
    mask = interleave_columns(*arguments, **options)
    assert mask.dtype == torch.bool
    assert mask.shape == arguments[:1]
    assert mask.nonzero().flatten().tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((0, 0), {}, "num_channels"),
        ((8, -1), {}, "layer_index"),
        ((8, 3), {"num_layers": 3}, "layer_index"),
        ((8, 0), {"heads": 3}, "heads"),
        ((8, 0), {"reverse": True}, "num_layers"),
    ],
)
def test_bad_interleaves_are_refused(arguments: tuple, options: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        interleave_columns(*arguments, **options)
