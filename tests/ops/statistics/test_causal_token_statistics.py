"""`causal_token_statistics`: the language variant of TSSA, in one call or streamed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rifflemix.ops import StatisticsState, causal_token_statistics, token_statistics

BACKENDS = ("reference", "eager")


def make(b: int, h: int, n: int, d: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Create tokens, a temperature, and a bias with two extra positions."""
    return [
        torch.randn(b, h, n, d, dtype=dtype),
        torch.randn(h, dtype=dtype) * 2,
        torch.randn(h, n + 2, dtype=dtype) * 0.3,
    ]


def draw(data: st.DataObject) -> tuple[list[Tensor], Tensor | None]:
    b, h, n, d = (data.draw(st.integers(1, most)) for most in (3, 3, 8, 4))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    arguments: list[Any] = make(b, h, n, d)
    if data.draw(st.booleans()):
        arguments[0][..., 0] = 0.0
    if data.draw(st.booleans()):
        arguments[2] = None
    if data.draw(st.booleans()):
        return arguments, None
    bits = data.draw(st.lists(st.booleans(), min_size=b * n, max_size=b * n))
    return arguments, torch.tensor(bits).view(b, n)


def some_state(b: int, h: int, d: int, position: int) -> StatisticsState:
    return StatisticsState(
        torch.rand(b, h, d, dtype=torch.float64) + 1,
        torch.rand(b, h, d, dtype=torch.float64),
        torch.rand(b, h, dtype=torch.float64) + 0.1,
        torch.full((b,), position),
    )


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_eager_equals_the_reference(data: st.DataObject) -> None:
    arguments, mask = draw(data)
    b, h, _, d = arguments[0].shape
    state = None
    if data.draw(st.booleans()):
        state = some_state(b, h, d, position=1)
        if arguments[2] is not None:
            state = state._replace(position=torch.randint(0, 3, (b,)))
    cotangent = torch.randn_like(arguments[0])
    results = []
    for backend in BACKENDS:
        inputs = [None if a is None else a.clone().requires_grad_() for a in arguments]
        y, pi, end = causal_token_statistics(
            *inputs,
            initial_state=state,
            return_state=True,
            return_membership=True,
            key_padding_mask=mask,
            backend=backend,
        )
        loss = (y * cotangent).sum() + (end.member_energy * cotangent[:, :, 0]).sum()
        loss = loss + (pi * cotangent[..., 0]).sum()
        given_inputs = [i for i in inputs if i is not None]
        gradients = torch.autograd.grad(loss, given_inputs, materialize_grads=True)
        results.append((y.detach(), pi.detach(), *(f.detach() for f in end), *gradients))
    torch.testing.assert_close(results[1], results[0], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("backend", ["eager", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("continued", [False, True], ids=["fresh", "continued"])
def test_gradcheck(backend: str, masked: bool, continued: bool) -> None:
    inputs = [a.requires_grad_() for a in make(2, 2, 4, 2)]
    mask = torch.tensor([[True, False, True, False], [True] * 4]) if masked else None
    sums = [f.requires_grad_() for f in some_state(2, 2, 2, 0)[:3]] if continued else []

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        state = StatisticsState(*values[3:], torch.tensor([2, 1])) if continued else None
        y, end = causal_token_statistics(
            *values[:3],
            initial_state=state,
            return_state=True,
            key_padding_mask=mask,
            backend=backend,
        )
        return (y, *end[:3])

    assert torch.autograd.gradcheck(run, (*inputs, *sums))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_explicit_computation_on_prefixes(backend: str) -> None:
    """The outputs equal the definition with sums recomputed over each prefix."""
    w, temperature, bias = make(1, 3, 6, 2)
    y, pi = causal_token_statistics(w, temperature, bias, return_membership=True, backend=backend)
    q = w[0].square()
    memberships: list[Tensor] = []
    for t in range(6):
        ratio = q[:, t] / q[:, : t + 1].sum(1) + bias[:, t, None]
        memberships.append(torch.softmax(temperature * ratio.sum(-1), 0))
        earlier = torch.stack(memberships, 1)
        torch.testing.assert_close(pi[0, :, : t + 1], earlier)
        moment = (earlier.unsqueeze(-1) * q[:, : t + 1]).sum(1) / (
            earlier.sum(1, keepdim=True) + 1e-8
        )
        torch.testing.assert_close(y[0, :, t], -w[0, :, t] * pi[0, :, t, None] / (1 + moment))


@pytest.mark.parametrize("backend", BACKENDS)
def test_first_token_has_equal_memberships(backend: str) -> None:
    """At initialization (temperature 1, bias 0), all heads share the first token equally."""
    w = torch.randn(2, 4, 1, 3, dtype=torch.float64)
    bias = torch.zeros(4, 1, dtype=torch.float64)
    pi = causal_token_statistics(
        w, torch.ones(4).double(), bias, return_membership=True, backend=backend
    )[1]
    torch.testing.assert_close(pi, torch.full((2, 4, 1), 0.25, dtype=torch.float64))


def test_one_head_equals_the_bidirectional_variant_on_every_prefix() -> None:
    w, temperature, bias = make(2, 1, 7, 3)
    y = causal_token_statistics(w, temperature, bias)
    for t in range(7):
        prefix = token_statistics(w[:, :, : t + 1], temperature)
        torch.testing.assert_close(y[:, :, t], prefix[:, :, t])


@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_counts_once_per_feature(backend: str) -> None:
    w, temperature, bias = make(1, 2, 1, 5)
    pi = causal_token_statistics(w, temperature, bias, return_membership=True, backend=backend)[1]
    logits = temperature * (5 + 5 * bias[:, 0])  # ratios of the first token are 1
    torch.testing.assert_close(pi[0, :, 0], torch.softmax(logits, 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_floor_of_the_running_energy(backend: str) -> None:
    """Energy 2.5e-13 is below the floor of 1e-12, so the ratio is 0.25."""
    w = torch.zeros(1, 2, 1, 1, dtype=torch.float64)
    w[0, 0] = 5e-7
    pi = causal_token_statistics(
        w, torch.tensor([4.0, 1.0]).double(), return_membership=True, backend=backend
    )[1]
    expected = torch.softmax(torch.tensor([1.0, 0.0], dtype=torch.float64), 0)
    torch.testing.assert_close(pi[0, :, 0], expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zeros_have_finite_gradients(backend: str, dtype: torch.dtype) -> None:
    w, temperature, bias = (a.requires_grad_() for a in make(2, 2, 5, 3, dtype))
    with torch.no_grad():
        w[0] = 0.0
        w[1, :, :3] = 0.0
        w[1, :, 3] = 1e-12
    y = causal_token_statistics(w, temperature, bias, backend=backend)
    for gradient in torch.autograd.grad(y.sum(), (w, temperature, bias)):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_no_output_depends_on_later_tokens(masked: bool) -> None:
    w, temperature, bias = make(1, 3, 12, 2)
    mask = torch.tensor([[False, True, False, False] * 3]) if masked else None
    y = causal_token_statistics(w, temperature, bias, key_padding_mask=mask)
    for position in range(1, 12):
        changed = w.clone()
        changed[:, :, position:] = 10 * torch.randn_like(changed[:, :, position:])
        other = causal_token_statistics(changed, temperature, bias, key_padding_mask=mask)
        assert torch.equal(other[:, :, :position], y[:, :, :position])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_padding_does_not_change_valid_tokens(data: st.DataObject) -> None:
    (w, *rest), mask = draw(data)
    if mask is None:
        mask = torch.zeros(w.shape[0], w.shape[2], dtype=torch.bool)
    w = torch.where(mask[:, None, :, None], torch.nan, w)
    y, pi, end = causal_token_statistics(
        w, *rest, key_padding_mask=mask, return_membership=True, return_state=True
    )
    assert (y.transpose(1, 2)[mask] == 0).all()
    assert (pi.transpose(1, 2)[mask] == 0).all()
    assert torch.equal(end.position, (~mask).sum(1))
    for b in range(len(w)):
        valid = ~mask[b]
        if valid.any():
            alone, alone_end = causal_token_statistics(
                w[b : b + 1, :, valid], *rest, return_state=True
            )
            torch.testing.assert_close(y[b : b + 1, :, valid], alone, atol=1e-12, rtol=1e-10)
            torch.testing.assert_close([f[b] for f in end], [f[0] for f in alone_end])
        else:
            assert all((field[b] == 0).all() for field in end)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_equal_the_whole_sequence(backend: str, data: st.DataObject) -> None:
    """Outputs, final state and gradients are equal for all cuts and paddings."""
    arguments, mask = draw(data)
    length = arguments[0].shape[2]
    positions = st.integers(1, length - 1) if length > 1 else st.nothing()
    cuts = [0, *sorted(data.draw(st.sets(positions))), length]
    inputs = [None if a is None else a.clone().requires_grad_() for a in arguments]
    options: dict[str, Any] = {"return_state": True, "backend": backend}
    whole, end = causal_token_statistics(*inputs, key_padding_mask=mask, **options)
    state, pieces = None, []
    for start, stop in itertools.pairwise(cuts):
        y, state = causal_token_statistics(
            inputs[0][:, :, start:stop],
            *inputs[1:],
            initial_state=state,
            key_padding_mask=None if mask is None else mask[:, start:stop],
            **options,
        )
        pieces.append(y)
    streamed = torch.cat(pieces, 2)
    torch.testing.assert_close(streamed, whole, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(tuple(state), tuple(end), atol=1e-12, rtol=1e-10)
    cotangent = torch.randn_like(whole)
    given_inputs = [i for i in inputs if i is not None]
    gradients = [
        torch.autograd.grad((y * cotangent).sum(), given_inputs, materialize_grads=True)
        for y in (streamed, whole)
    ]
    torch.testing.assert_close(*gradients, atol=1e-10, rtol=1e-8)


def test_state_has_its_own_small_memory_and_is_not_changed() -> None:
    w, temperature, bias = make(2, 3, 50, 4)
    state = causal_token_statistics(w[:, :, :40], temperature, bias, return_state=True)[1]
    for field in state:
        assert field.untyped_storage().nbytes() == field.numel() * field.element_size()
    kept = [field.clone() for field in state]
    causal_token_statistics(w[:, :, 40:], temperature, bias, initial_state=state)
    assert all(torch.equal(a, b) for a, b in zip(state, kept, strict=True))


def test_zero_state_equals_no_state() -> None:
    w, temperature, bias = make(2, 3, 5, 4, torch.float32)
    start = StatisticsState.zeros(2, 3, 4)
    y = causal_token_statistics(w, temperature, bias, initial_state=start)
    assert torch.equal(y, causal_token_statistics(w, temperature, bias))


@pytest.mark.parametrize("step", [1, 512, 4096])
def test_bfloat16_differs_by_the_last_rounding_only(step: int) -> None:
    """Sums in bfloat16 would stop growing after a few hundred tokens, so wider sums are used."""
    w, temperature, bias = make(1, 4, 4096 if step > 1 else 64, 8, torch.float32)
    w = w.bfloat16()
    state, pieces = None, []
    for piece in w.split(step, dim=2):
        y, state = causal_token_statistics(
            piece, temperature, bias, initial_state=state, return_state=True
        )
        assert state.energy.dtype == torch.float64
        pieces.append(y)
    expected = causal_token_statistics(w.double(), temperature.double(), bias.double())
    got = torch.cat(pieces, 2)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), expected, atol=1e-7, rtol=2**-8)


def test_autocast_does_not_touch_the_statistics() -> None:
    arguments = make(1, 2, 300, 4, torch.float32)
    expected = causal_token_statistics(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = causal_token_statistics(*arguments)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_drops_entries(backend: str) -> None:
    w, temperature, bias = make(1, 2, 20, 20)
    ratio = causal_token_statistics(w, temperature, bias, dropout_p=0.25, backend=backend)
    ratio = ratio / causal_token_statistics(w, temperature, bias)
    assert ((ratio.abs() < 1e-12) | ((ratio - 1 / 0.75).abs() < 1e-9)).all()
    assert 0.2 < (ratio == 0).double().mean() < 0.3


class Continue(torch.nn.Module):
    """Process one piece of a stream."""

    def forward(
        self, w: Tensor, temperature: Tensor, bias: Tensor, state: StatisticsState
    ) -> tuple[Tensor, StatisticsState]:
        return causal_token_statistics(w, temperature, bias, initial_state=state, return_state=True)


def test_streams_in_a_compiled_graph() -> None:
    """One graph serves every position: the position is a tensor, and its value is not read."""
    torch.compiler.reset()
    w, temperature, bias = make(2, 3, 9, 4, torch.float32)
    graphs = []

    def counting(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    step = torch.compile(Continue(), fullgraph=True, backend=counting)
    state = StatisticsState.zeros(2, 3, 4)
    outputs = []
    for token in w.split(1, dim=2):
        y, state = step(token, temperature, bias, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 2), causal_token_statistics(w, temperature, bias))
    assert len(graphs) == 1


def test_exports_with_a_state() -> None:
    w, temperature, bias = make(2, 3, 4, 5, torch.float32)
    state = causal_token_statistics(w, temperature, bias, return_state=True)[1]
    arguments = (w[:, :, :2], temperature, bias, state)
    program = torch.export.export(Continue(), arguments, strict=False)
    got, expected = program.module()(*arguments), Continue()(*arguments)
    torch.testing.assert_close((got[0], *got[1]), (expected[0], *expected[1]))


def test_streams_of_a_mapped_ensemble() -> None:
    w, temperature, bias = make(3, 2, 4, 5)
    positions = bias.repeat(1, 2)
    _, state = causal_token_statistics(w, temperature, positions, return_state=True)

    def one(w: Tensor, *parts: Tensor) -> Tensor:
        state = StatisticsState(*(part.unsqueeze(0) for part in parts))
        y = causal_token_statistics(w.unsqueeze(0), temperature, positions, initial_state=state)
        return y[0]

    expected = causal_token_statistics(w, temperature, positions, initial_state=state)
    torch.testing.assert_close(torch.func.vmap(one)(w, *state), expected)


def test_stream_length_is_limited_by_the_bias() -> None:
    w, temperature, bias = make(2, 3, 6, 2)
    state = causal_token_statistics(w, temperature, bias, return_state=True)[1]
    causal_token_statistics(w[:, :, :2], temperature, bias, initial_state=state)
    with pytest.raises(ValueError, match=r"denominator_bias: .*\b9\b.*got 8\b"):
        causal_token_statistics(w[:, :, :3], temperature, bias, initial_state=state)


def test_full_sample_may_be_extended_by_padding() -> None:
    """A sample that has used all positions accepts padding while other samples continue."""
    w, temperature, bias = make(2, 3, 4, 2)
    state = some_state(2, 3, 2, position=0)._replace(position=torch.tensor([6, 2]))
    mask = torch.tensor([[True] * 4, [False] * 4])
    options: dict[str, Any] = {"key_padding_mask": mask, "initial_state": state}
    y, end = causal_token_statistics(w, temperature, bias, return_state=True, **options)
    assert (y[0] == 0).all()
    assert end.position.tolist() == [6, 6]
    options["key_padding_mask"] = torch.tensor([[True] * 3 + [False], [False] * 4])
    with pytest.raises(ValueError, match=r"denominator_bias: .*\b7\b"):
        causal_token_statistics(w, temperature, bias, **options)


W, TEMPERATURE, BIAS = make(2, 3, 4, 5, torch.float32)
STATE = StatisticsState.zeros(2, 3, 5)
BAD = {
    "rank": ({"w": W[0]}, r"w: .*\(B, H, N, D\)"),
    "temperature": ({"temperature": torch.ones(3, 1)}, r"temperature: .*got \(3, 1\)"),
    "short bias": ({"denominator_bias": BIAS[:, :3]}, r"denominator_bias: .*\b4\b.*got 3\b"),
    "bias rank": ({"denominator_bias": BIAS[..., None]}, r"denominator_bias: .*got \(3, 6, 1\)"),
    "bias heads": ({"denominator_bias": BIAS[:2]}, r"denominator_bias: .*\(H, L\)"),
    "mask": ({"key_padding_mask": torch.zeros(2, 4)}, r"key_padding_mask: .*got torch\.float32"),
    "state type": ({"initial_state": tuple(STATE)}, "initial_state: .*StatisticsState"),
    "state of another batch": (
        {"initial_state": StatisticsState.zeros(1, 3, 5)},
        r"initial_state.energy: .*\(2, 3, 5\).*got \(1, 3, 5\)",
    ),
    "state in half": (
        {"initial_state": STATE._replace(member_count=STATE.member_count.half())},
        "initial_state.member_count: expected dtype torch.float64, got torch.float16",
    ),
    "position": ({"initial_state": STATE._replace(position=torch.zeros(2))}, "position: .*int64"),
    "dropout": ({"dropout_p": -0.1}, r"dropout_p: .*got -0\.1"),
    "backend": ({"backend": "eagre"}, "eager.*got 'eagre'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments = {"w": W, "temperature": TEMPERATURE, "denominator_bias": BIAS, **change}
    with pytest.raises(ValueError, match=message):
        causal_token_statistics(**arguments)
