"""The compiled kernels of both token statistics equal eager, and keep their other guarantees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

from rifflemix.ops import StatisticsState, causal_token_statistics, token_statistics
from rifflemix.ops.native import instruction_level
from rifflemix.ops.statistics import cpu, cpu_causal, cpu_common

pytestmark = pytest.mark.skipif(instruction_level() < 2, reason="no compiled kernels here")

FORMS = [
    pytest.param(token_statistics, id="both directions"),
    pytest.param(causal_token_statistics, id="causal"),
]
Form = Callable[..., Any]


def make_tokens(b: int, h: int, n: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Create (B, H, N, D) with (B, N, H, D) storage, like a projection."""
    return torch.randn(b, n, h, d, dtype=dtype).transpose(1, 2)


def in_another_layout(w: Tensor, layout: str) -> Tensor:
    """Return the same values in another memory layout."""
    if layout == "by head":
        return w.contiguous()
    if layout == "by feature":
        return w.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "part of a wider projection":
        return torch.cat((w, w), 3).transpose(1, 2).contiguous().transpose(1, 2)[..., : w.shape[3]]
    return w


LAYOUTS = ("by token", "by head", "by feature", "part of a wider projection")


def draw_tokens(data: st.DataObject) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor | None]:
    """Draw tokens, a preparation function, and a mask or None.

    Lengths are around the chunks of the kernels, features around their vectors. The preparation
    scales a feature to the floors of the norms, where gradients are cut off. It also changes
    the memory layout. Gradients with respect to the unprepared tokens have ordinary size.
    """
    b, h = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 3, 8]))
    n = data.draw(st.sampled_from([1, 2, 63, 64, 65, 130, 200]))
    d = data.draw(st.sampled_from([1, 3, 4, 7, 8, 16, 17, 33]))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    scale = torch.ones(h, 1, d, dtype=torch.float64)
    scale[0, 0, -1] = data.draw(st.sampled_from([1.0, 0.0, 1e-13, 3e-13, 3e-7]))
    layout = data.draw(st.sampled_from(LAYOUTS))
    share = data.draw(st.sampled_from([None, 0.0, 0.4, 1.0]))
    mask = None if share is None else torch.rand(b, n) < share
    return make_tokens(b, h, n, d), lambda w: in_another_layout(w * scale, layout), mask


def leaf(value: Tensor) -> Tensor:
    """Return a copy with the same strides that requires a gradient."""
    return value.detach().clone(memory_format=torch.preserve_format).requires_grad_()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_both_directions_equal_eager(data: st.DataObject) -> None:
    w, prepare, mask = draw_tokens(data)
    temperature = torch.randn(w.shape[1], dtype=torch.float64) * 2
    normalize, with_y, with_pi = (data.draw(st.booleans()) for _ in range(3))
    cotangents = torch.randn_like(w), torch.randn(w.shape[:3], dtype=torch.float64)
    results = []
    for backend in ("cpu", "eager"):
        inputs = [leaf(w), leaf(temperature)]
        outputs = token_statistics(
            prepare(inputs[0]),
            inputs[1],
            normalize=normalize,
            key_padding_mask=mask,
            return_membership=True,
            backend=backend,
        )
        used = [with_y or not with_pi, with_pi]
        losses = [(o * c).sum() for o, c, u in zip(outputs, cotangents, used, strict=True) if u]
        gradients = torch.autograd.grad(sum(losses), inputs)
        results.append((*(o.detach() for o in outputs), *gradients))
    torch.testing.assert_close(results[0], results[1], atol=1e-10, rtol=1e-8)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_causal_equals_eager(data: st.DataObject) -> None:
    w, prepare, mask = draw_tokens(data)
    b, h, n, d = w.shape
    temperature = torch.randn(h, dtype=torch.float64)
    bias = torch.randn(h, n + 2, dtype=torch.float64) * 0.3 if data.draw(st.booleans()) else None
    sums = None
    if data.draw(st.booleans()):
        sums = [torch.rand(shape, dtype=torch.float64) for shape in [(b, h, d)] * 2 + [(b, h)]]
    position = torch.randint(0, 3, (b,))
    shapes = [(b, h, n, d), (b, h, n), (b, h, d), (b, h, d), (b, h)]
    cotangents = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    used = [True, *(data.draw(st.booleans()) for _ in range(4))]
    results = []
    for backend in ("cpu", "eager"):
        inputs = [leaf(w), leaf(temperature), None if bias is None else leaf(bias)]
        starts = [] if sums is None else [leaf(value) for value in sums]
        y, pi, end = causal_token_statistics(
            prepare(inputs[0]),
            *inputs[1:],
            initial_state=StatisticsState(*starts, position) if starts else None,
            key_padding_mask=mask,
            return_membership=True,
            return_state=True,
            backend=backend,
        )
        outputs = (y, pi, *end[:3])
        losses = [(o * c).sum() for o, c, u in zip(outputs, cotangents, used, strict=True) if u]
        leaves = [value for value in (*inputs, *starts) if value is not None]
        gradients = torch.autograd.grad(sum(losses), leaves, materialize_grads=True)
        results.append((*(o.detach() for o in outputs), end.position, *gradients))
    torch.testing.assert_close(results[0], results[1], atol=1e-10, rtol=1e-8)


def run_with_gradients(form: Form, w: Tensor, backend: str, **options: Any) -> tuple[Tensor, ...]:
    """Return output and gradients in float64, for a cotangent that is exact in 16 bits."""
    w = leaf(w)
    wide = torch.promote_types(w.dtype, torch.float32)
    temperature = torch.full((w.shape[1],), 0.5, dtype=wide, requires_grad=True)
    y = form(w, temperature, backend=backend, **options)
    cotangent = torch.linspace(-1, 1, y.numel()).bfloat16().half().view_as(y).to(w.dtype)
    gradients = torch.autograd.grad((y * cotangent).sum(), (w, temperature))
    return tuple(value.detach().double() for value in (y, *gradients))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 0.0), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)],
    ids=str,
)
@pytest.mark.parametrize("length", [70, 3000])
def test_sums_are_float32(form: Form, length: int, dtype: torch.dtype, tolerance: float) -> None:
    """Inputs are exact in 16 bits, so only the rounding of the result remains, not of a sum."""
    w = make_tokens(2, 8, length, 20).bfloat16().half().to(dtype)
    got = run_with_gradients(form, w, "cpu")
    expected = run_with_gradients(form, w.double(), "eager")
    for value, exact in zip(got, expected, strict=True):
        scale = float(exact.abs().max())
        torch.testing.assert_close(value, exact, rtol=tolerance, atol=1e-5 * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("features", [3, 16], ids=["part of a vector", "whole vectors"])
def test_16_bits_round_as_torch_does(dtype: torch.dtype, features: int) -> None:
    """Rounding is bit-exact from subnormal numbers to infinity."""
    scale = torch.logspace(-9, 6, 300).view(1, 1, -1, 1)
    w = (make_tokens(1, 2, 300, features, torch.float32) * scale).to(dtype)
    for finite in (True, False):
        if finite:
            w = w.nan_to_num(posinf=0.0, neginf=0.0)
        else:
            w[0, 0, 3, 0], w[0, 1, 4, 1] = torch.nan, torch.inf
        y = token_statistics(w, torch.zeros(2), backend="cpu")
        exact = token_statistics(w.float(), torch.zeros(2), backend="cpu").to(dtype)
        torch.testing.assert_close(y, exact, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_gradients_of_gradients(form: Form, masked: bool) -> None:
    w = make_tokens(2, 2, 3, 2).requires_grad_()
    temperature = torch.randn(2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, True, False], [False] * 3]) if masked else None

    def run(w: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        options = {"key_padding_mask": mask, "return_membership": True, "backend": "cpu"}
        return form(w, temperature, **options)

    assert torch.autograd.gradcheck(run, (w, temperature))
    assert torch.autograd.gradgradcheck(run, (w, temperature))


def test_gradients_of_gradients_with_a_state() -> None:
    inputs = [make_tokens(1, 2, 3, 2), torch.rand(2).double(), torch.rand(2, 5).double()]
    sums = [torch.rand(shape).double() for shape in [(1, 2, 2), (1, 2, 2), (1, 2)]]

    def run(*values: Tensor) -> Tensor:
        state = StatisticsState(*values[3:], torch.tensor([1]))
        return causal_token_statistics(*values[:3], initial_state=state, backend="cpu")

    values = [value.requires_grad_() for value in (*inputs, *sums)]
    assert torch.autograd.gradgradcheck(run, values)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("form", FORMS)
def test_threads_do_not_change_a_bit(form: Form) -> None:
    w = make_tokens(2, 8, 2000, 33, torch.float32)
    mask = torch.rand(2, 2000) < 0.1
    results = []
    for count in (1, 2, 3, 8):
        torch.set_num_threads(count)
        results.append(run_with_gradients(form, w, "cpu", key_padding_mask=mask))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_heads_are_split_and_joined_without_a_copy(form: Form) -> None:
    projected = torch.randn(2, 70, 24, requires_grad=True)
    w = projected.unflatten(-1, (3, 8)).transpose(1, 2)
    y = form(w, torch.ones(3), backend="cpu")
    assert y.transpose(1, 2).flatten(2).data_ptr() == y.data_ptr()
    (gradient,) = torch.autograd.grad(y.sum(), w)
    assert gradient.transpose(1, 2).flatten(2).data_ptr() == gradient.data_ptr()


@pytest.mark.parametrize("form", FORMS)
def test_nan_has_the_same_positions_as_in_eager(form: Form) -> None:
    w = make_tokens(3, 2, 70, 9, torch.float32)
    w[0, 0, 5, 3] = torch.nan
    w[1, 1, 66, 8] = torch.inf
    got, expected = (form(w, torch.ones(2), backend=name) for name in ("cpu", "eager"))
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert got.isnan().any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads", [1, 5])
def test_empty_batch(form: Form, heads: int) -> None:
    w = make_tokens(0, heads, 4, 3, torch.float32).requires_grad_()
    y = form(w, torch.ones(heads), backend="cpu")
    assert y.shape == w.shape
    y.sum().backward()


def example_arguments(masked: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    w = make_tokens(2, 3, 70, 5, torch.float32).requires_grad_()
    mask = torch.rand(2, 70) < 0.3 if masked else None
    return w, torch.rand(3, requires_grad=True), mask


# Each takes seconds. The mask is one more argument, so the masked case covers most checks.
OPCHECKED = [
    pytest.param(True, id="masked"),
    pytest.param(False, id="whole", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("masked", OPCHECKED)
def test_opcheck(masked: bool) -> None:
    w, temperature, mask = example_arguments(masked)
    torch.library.opcheck(cpu._forward.overload, (w, temperature, mask, True))
    statistics = [value.detach() for value in cpu._forward(w, temperature, mask, True)[1:]]
    arguments = (w.detach(), temperature.detach(), mask, True, *statistics)
    torch.library.opcheck(cpu._backward.overload, (*arguments, torch.randn(2, 3, 70, 5), None))


@pytest.mark.parametrize("masked", OPCHECKED)
@pytest.mark.slow
def test_opcheck_causal(masked: bool) -> None:
    w, temperature, mask = example_arguments(masked)
    bias = torch.rand(1, 3, 70, requires_grad=True)
    shapes = [(2, 3, 5), (2, 3, 5), (2, 3)]
    sums = [torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    for start in (sums, [None] * 3):
        arguments = (w, temperature, bias, *start, mask)
        torch.library.opcheck(cpu_causal._forward.overload, arguments)
    outputs = [value.detach() for value in cpu_causal._forward(*arguments)]
    saved = (w.detach(), temperature.detach(), bias.detach(), mask, outputs[1], *outputs[5:])
    of_energy = torch.randn(2, 3, 5, dtype=torch.float64)
    grads = (torch.randn(2, 3, 70, 5), None, of_energy, None, None)
    torch.library.opcheck(cpu_causal._backward.overload, (*saved, *grads))


class Call(torch.nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form

    def forward(self, w: Tensor, temperature: Tensor) -> Any:
        return self.form(w, temperature, return_membership=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_compiles_for_any_length(form: Form) -> None:
    torch.compiler.reset()
    compiled = torch.compile(Call(form), fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 64, 130):
        results = []
        for run in (compiled, Call(form)):
            w = leaf(make_tokens(2, 3, 130, 4, torch.float32)[:, :, :length] * 0 + length)
            temperature = torch.ones(3, requires_grad=True)
            y, pi = run(w, temperature)
            gradients = torch.autograd.grad(y.square().sum() + pi[:, 0].sum(), (w, temperature))
            results.append((y.detach(), pi.detach(), *gradients))
        torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("form", FORMS)
def test_exported_programs_need_no_kernel(form: Form) -> None:
    arguments = (make_tokens(2, 3, 6, 4, torch.float32), torch.ones(3))
    program = torch.export.export(Call(form), arguments, strict=False)
    assert "rifflemix" not in program.graph_module.code
    torch.testing.assert_close(program.module()(*arguments), Call(form)(*arguments))


@pytest.mark.parametrize("form", FORMS)
def test_function_transforms_use_the_eager_backend(form: Form) -> None:
    w, temperature = make_tokens(2, 2, 4, 3), torch.rand(2).double()
    inputs = leaf(w)
    (expected,) = torch.autograd.grad(form(inputs, temperature).sum(), inputs)
    found = torch.func.grad(lambda w: form(w, temperature).sum())(w)
    torch.testing.assert_close(found, expected)
    stacked = torch.func.vmap(lambda w: form(w, temperature))(torch.stack((w, 2 * w)))
    torch.testing.assert_close(stacked[1], form(2 * w, temperature))


# Forward mode of torch loads the deprecated torch.jit.script on first use.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("form", FORMS)
def test_forward_mode_uses_the_eager_backend(form: Form) -> None:
    w, tangent = make_tokens(2, 2, 40, 8), make_tokens(2, 2, 40, 8)
    inputs = leaf(w)
    (gradient,) = torch.autograd.grad(form(inputs, torch.ones(2).double()).sum(), inputs)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(w, tangent)
        found = forward_ad.unpack_dual(form(dual, torch.ones(2).double())).tangent
    torch.testing.assert_close(found.sum(), (gradient * tangent).sum())


@pytest.mark.parametrize("form", FORMS)
def test_dropout_equals_eager(form: Form) -> None:
    results = []
    for backend in ("cpu", "eager", "reference"):
        torch.manual_seed(0)
        w = leaf(make_tokens(2, 2, 70, 3))
        y = form(w, torch.ones(2).double(), dropout_p=0.4, backend=backend)
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), w)))
    assert 0 < (results[0][0] == 0).double().mean() < 0.8
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_without_kernels_eager_is_used(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_common, "_HAS_VECTORS", False)
    w = make_tokens(1, 2, 5, 3)
    temperature = torch.ones(2)
    assert torch.equal(form(w, temperature), form(w, temperature, backend="eager"))
    with pytest.raises(ValueError, match=r"backend: .*got 'cpu'"):
        form(w, temperature, backend="cpu")
