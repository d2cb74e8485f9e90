"""The contract that every registered mixer must pass, in every form its card offers.

No mixer is skipped: what a mixer cannot do is read from its card, and the card itself is tested.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rifflemix as rm

FORMS = [
    pytest.param((name, causal), id=f"{name}-causal" if causal else name)
    for name in rm.list_mixers()
    for causal in ([False, True] if rm.mixer_card(name).causal else [False])
]
LAID_OUT_OVER_TOKENS = [
    form for form in FORMS if not rm.mixer_card(form.values[0][0]).layout_over_length
]
NAMES = rm.list_mixers()
CAUSAL = [name for name in NAMES if rm.mixer_card(name).causal]
STREAMING = [name for name in NAMES if rm.mixer_card(name).streaming]
MAX_LENGTH = 64
LENGTHS = (1, 2, 3, 7, 16, 33, 64)

Form = tuple[str, bool]


def build(
    form: Form, *, dim: int = 32, heads: int = 4, dtype: Any = torch.float64
) -> rm.TokenMixer:
    name, causal = form
    torch.manual_seed(7)
    mixer = rm.create_mixer(name, dim, num_heads=heads, max_length=MAX_LENGTH, causal=causal)
    with torch.no_grad():  # zero- and one-initialised parameters must play a part
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mixer.to(dtype).eval()


def padded_like(x: Tensor, mask: Tensor, fill: float) -> Tensor:
    return torch.where(mask.unsqueeze(-1), torch.full_like(x, fill), x)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_shape_and_dtype_are_kept(form: Form, length: int, dtype: torch.dtype) -> None:
    mixer = build(form, dtype=dtype)
    y = mixer(torch.randn(2, length, 32, dtype=dtype))
    assert y.shape == (2, length, 32)
    assert y.dtype == dtype
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("is_masked", [False, True])
def test_no_samples_are_mixed_to_none(form: Form, is_masked: bool) -> None:
    mixer = build(form)
    x = torch.randn(0, 16, 32, dtype=torch.float64, requires_grad=True)
    y = mixer(x, key_padding_mask=torch.zeros(0, 16, dtype=torch.bool) if is_masked else None)
    assert y.shape == (0, 16, 32)
    y.sum().backward()
    assert x.grad is not None


def test_shapes_are_known_without_memory(form: Form) -> None:
    name, causal = form
    with torch.device("meta"):
        mixer = rm.create_mixer(name, 32, num_heads=4, max_length=MAX_LENGTH, causal=causal)
    assert mixer(torch.empty(2, 16, 32, device="meta")).shape == (2, 16, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_follows_float64(form: Form, dtype: torch.dtype) -> None:
    """On values that the low precision holds exactly, only arithmetic may differ."""
    mixer = build(form)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    # Few distinct, exactly representable projections would make ties; random ones rarely do.
    x = torch.randn(2, 48, 32, dtype=torch.bfloat16)
    expected = mixer(x.double())
    y = copy.deepcopy(mixer).to(dtype)(x.to(dtype)).double()
    scale = expected.abs().max()
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    # A sort may swap values that round to the same number: compare the bulk, not single places.
    assert (y - expected).abs().mean() < tolerance * scale


def test_gradients_equal_numerical_ones(form: Form) -> None:
    mixer = build(form, dim=8, heads=2)
    names = [name for name, _ in mixer.named_parameters()]
    x = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(mixer, parameters, (x,))

    values = [p.detach().clone().requires_grad_() for p in mixer.parameters()]
    assert torch.autograd.gradcheck(run, (x, *values), eps=1e-6, atol=1e-5, rtol=1e-4)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("form", FORMS)
def test_samples_of_a_batch_do_not_meet(form: Form, data: st.DataObject) -> None:
    mixer = build(form)
    length = data.draw(st.integers(1, 24))
    a, b = torch.randn(2, length, 32).double(), torch.randn(3, length, 32).double()
    together = mixer(torch.cat((a, b)))
    torch.testing.assert_close(together, torch.cat((mixer(a), mixer(b))), atol=1e-10, rtol=1e-10)


def draw_masked(data: st.DataObject) -> tuple[Tensor, Tensor]:
    """Tokens with ties, and a mask of any pattern; some samples may be padding throughout."""
    batch, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    x = torch.randn(batch, length, 32, dtype=torch.float64)
    if data.draw(st.booleans()):
        x = x.round()
    bits = st.lists(st.booleans(), min_size=batch * length, max_size=batch * length)
    return x, torch.tensor(data.draw(bits)).view(batch, length)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("form", FORMS)
def test_padded_places_reach_nothing(form: Form, data: st.DataObject) -> None:
    """Outputs and all gradients are the same whatever stands in padded places, NaN included."""
    mixer = build(form)
    x, mask = draw_masked(data)
    results = []
    for fill in (0.0, 1e3, float("nan")):
        inputs = padded_like(x, mask, fill).requires_grad_()
        y = mixer(inputs, key_padding_mask=mask)
        assert (y[mask] == 0).all()
        gradients = torch.autograd.grad(
            (y * torch.linspace(-1, 1, 32).double()).sum(),
            [inputs, *mixer.parameters()],
            allow_unused=True,
        )
        assert (gradients[0][mask] == 0).all()
        assert all(torch.isfinite(g).all() for g in gradients if g is not None)
        results.append((y.detach(), *gradients))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("length", [1, 5, 16])
def test_a_mask_without_padding_changes_nothing(form: Form, length: int) -> None:
    mixer = build(form)
    x = torch.randn(2, length, 32, dtype=torch.float64)
    mask = torch.zeros(2, length, dtype=torch.bool)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), mixer(x), atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("extra", [1, 3, 11])
@pytest.mark.parametrize("length", [1, 6, 17])
@pytest.mark.parametrize("form", LAID_OUT_OVER_TOKENS)
def test_amount_of_padding_changes_nothing(form: Form, length: int, extra: int) -> None:
    mixer = build(form)
    x = torch.randn(2, length + extra, 32, dtype=torch.float64)
    mask = torch.zeros(2, length + extra, dtype=torch.bool)
    mask[:, length:] = True
    y = mixer(x, key_padding_mask=mask)[:, :length]
    torch.testing.assert_close(y, mixer(x[:, :length]), atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_outputs_ignore_later_tokens(name: str) -> None:
    mixer = build((name, True))
    x = torch.randn(1, 37, 32, dtype=torch.float64)
    y = mixer(x)
    for position in range(1, 37):
        changed = x.clone()
        changed[:, position:] = torch.randn_like(changed[:, position:])
        moved = (mixer(changed)[:, :position] - y[:, :position]).abs().amax()
        assert moved < 1e-12, f"outputs before {position} moved by {moved}"


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(CAUSAL)))
def test_others_refuse_causal(name: str) -> None:
    with pytest.raises(ValueError, match="causal: expected False"):
        rm.create_mixer(name, 32, num_heads=4, max_length=64, causal=True)


@pytest.mark.parametrize("name", STREAMING)
def test_streaming_equals_the_parallel_form(name: str) -> None:
    mixer = build((name, True))
    x = torch.randn(3, 21, 32, dtype=torch.float64)
    state = mixer.init_state(3, device=x.device, dtype=x.dtype)
    outputs = []
    for position in range(21):
        y_t, state = mixer.step(x[:, position], state)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x), atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("name", STREAMING)
def test_steps_check_their_input(name: str) -> None:
    mixer = build((name, True))
    state = mixer.init_state(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="x_t: expected"):
        mixer.step(torch.randn(2, 31, dtype=torch.float64), state)
    with pytest.raises(ValueError, match="batch_size: expected"):
        mixer.init_state(0)


@pytest.mark.parametrize("name", NAMES)
def test_other_forms_refuse_to_stream(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        build((name, False)).init_state(2)


def test_state_dict_round_trip(form: Form) -> None:
    mixer = build(form)
    name, causal = form
    torch.manual_seed(99)
    other = rm.create_mixer(name, 32, num_heads=4, max_length=MAX_LENGTH, causal=causal)
    other = other.double().eval()
    other.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 19, 32, dtype=torch.float64)
    assert torch.equal(other(x), mixer(x))


def test_same_seed_same_result(form: Form) -> None:
    def run() -> tuple[Tensor, ...]:
        name, causal = form
        torch.manual_seed(3)
        mixer = rm.create_mixer(
            name, 32, num_heads=4, max_length=64, causal=causal, dropout=0.2
        ).train()
        x = torch.randn(2, 30, 32, requires_grad=True)
        y = mixer(x)
        y.square().sum().backward()
        return y, x.grad, *(p.grad for p in mixer.parameters() if p.grad is not None)

    first, second = run(), run()
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_every_parameter_is_used(form: Form) -> None:
    """No dead weights: each parameter receives a gradient at some length."""
    mixer = build(form)
    x = torch.randn(2, 64, 32, dtype=torch.float64, requires_grad=True)
    mixer(x).square().sum().backward()
    unused = [n for n, p in mixer.named_parameters() if p.grad is None or not p.grad.any()]
    assert not unused


def check_compiled(form: Form, backend: str) -> None:
    torch.compiler.reset()
    mixer = build(form, dtype=torch.float32)
    compiled = torch.compile(mixer, fullgraph=True, backend=backend)
    mask = torch.zeros(2, 24, dtype=torch.bool)
    mask[0, 17:] = True
    for key_padding_mask in (None, mask):
        x = torch.randn(2, 24, 32)
        results = []
        for run in (mixer, compiled):
            inputs = x.clone().requires_grad_()
            y = run(inputs, key_padding_mask=key_padding_mask)
            used = [p for p in mixer.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(y.square().sum(), [inputs, *used], allow_unused=True)
            results.append((y.detach(), *gradients))
        torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


def test_compiles_to_one_graph(form: Form) -> None:
    check_compiled(form, "aot_eager")


# Fourier transforms stay torch's own, and inductor says so.
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.slow
def test_compiles_with_the_default_backend(form: Form) -> None:
    check_compiled(form, "inductor")


def test_exports(form: Form) -> None:
    mixer = build(form, dtype=torch.float32)
    x = torch.randn(2, 24, 32)
    mask = torch.zeros(2, 24, dtype=torch.bool)
    mask[1, 20:] = True
    program = torch.export.export(mixer, (x,), {"key_padding_mask": mask}, strict=False)
    y = program.module()(x, key_padding_mask=mask)
    torch.testing.assert_close(y, mixer(x, key_padding_mask=mask), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_card_tells_permutation_equivariance(name: str) -> None:
    mixer = build((name, False))
    x = torch.randn(2, 16, 32, dtype=torch.float64)
    order = torch.randperm(16)
    equivariant = torch.allclose(mixer(x[:, order]), mixer(x)[:, order], atol=1e-9)
    assert equivariant == rm.mixer_card(name).permutation_equivariant


@pytest.mark.parametrize("name", NAMES)
def test_builds_with_few_arguments(name: str) -> None:
    length = 32 if rm.mixer_card(name).needs_max_length else None
    mixer = rm.create_mixer(name, 16, max_length=length)
    assert mixer(torch.randn(1, 20, 16)).shape == (1, 20, 16)
    if length is not None:
        with pytest.raises(ValueError, match="max_length"):
            rm.create_mixer(name, 16)


GOOD = {"dim": 32, "num_heads": 4, "max_length": 64}
BAD_BUILDS = {
    "heads do not divide": ({"num_heads": 5}, "num_heads"),
    "no heads": ({"num_heads": 0}, "num_heads"),
    "no channels": ({"dim": 0}, "dim"),
    "no length": ({"max_length": 0}, "max_length"),
    "layer outside the stack": ({"layer_index": 2, "num_layers": 2}, "layer_index"),
    "negative layer": ({"layer_index": -1}, "layer_index"),
    "no layers": ({"num_layers": 0}, "num_layers"),
    "dropout of one": ({"dropout": 1.0}, "dropout"),
    "unknown option": ({"wings": 2}, "wings"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("change", "named"), BAD_BUILDS.values(), ids=BAD_BUILDS)
def test_bad_settings_name_the_argument(change: dict[str, Any], named: str, name: str) -> None:
    with pytest.raises(ValueError, match=named):
        rm.create_mixer(name, **{**GOOD, **change})


BAD_CALLS = {
    "rank": (torch.randn(4, 32), None, "x"),
    "channels": (torch.randn(2, 4, 31), None, "x"),
    "integers": (torch.ones(2, 4, 32, dtype=torch.int64), None, "x"),
    "no tokens": (torch.randn(2, 0, 32), None, "x"),
    "too long": (torch.randn(2, 65, 32), None, "max_length"),
    "mask shape": (torch.randn(2, 4, 32), torch.zeros(2, 5, dtype=torch.bool), "key_padding_mask"),
    "mask dtype": (torch.randn(2, 4, 32), torch.zeros(2, 4), "key_padding_mask"),
}


@pytest.mark.parametrize(("x", "mask", "named"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_inputs_name_the_argument(
    form: Form, x: Tensor, mask: Tensor | None, named: str
) -> None:
    mixer = build(form, dtype=torch.float32)
    with pytest.raises(ValueError, match=named) as caught:
        mixer(x, key_padding_mask=mask)
    assert "expected" in str(caught.value)
    assert "got" in str(caught.value)


def test_unknown_mixer_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown mixer 'softmx'; did you mean softmax"):
        rm.create_mixer("softmx", 32)
