"""Compare dropout attention with an explicit softmax and mask, without storing the weights."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

import rifflemix as rm
from rifflemix.ops import dropout_attention
from rifflemix.ops.dropout import cpu, reference
from rifflemix.ops.native import instruction_level

needs_kernels = pytest.mark.skipif(instruction_level() < 2, reason="no compiled kernels here")
FAST = ["eager", pytest.param("cpu", marks=needs_kernels)]

# B, H, N, S, D, E: sizes around vectors, vector panels, tiles of 64 weights and query blocks.
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 5, 7, 3, 9),
    (2, 2, 64, 64, 32, 32),
    (1, 2, 130, 70, 16, 5),
    (2, 1, 33, 200, 17, 16),
    (1, 1, 19, 5000, 4, 4),
]


def make(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Create q, k and v: q strided like a projection, v a slice of wider rows."""
    b, h, n, s, d, e = sizes
    q = torch.randn(b, n, h, d, dtype=dtype).transpose(1, 2)
    v = torch.randn(b, h, s, e + 3, dtype=dtype)[..., :e]
    return [q.requires_grad_(), torch.randn(b, h, s, d, dtype=dtype).requires_grad_(), v]


def make_mask(kind: str, sizes: tuple[int, ...]) -> Tensor | None:
    b, h, n, s = sizes[:4]
    torch.manual_seed(3)
    if kind == "keys":
        return torch.rand(b, 1, 1, s) < 0.7
    if kind == "pairs":  # some queries see no key
        return (torch.rand(b, h, n, s) < 0.5) & (torch.rand(b, 1, n, 1) < 0.8)
    if kind == "queries":
        return torch.rand(n, 1) < 0.7
    if kind == "tail":  # last keys are hidden from all queries; in the last sample all keys
        seen = torch.tensor([max(1, s // 3), 0][-b:])
        return (torch.arange(s) < seen[:, None])[:, None, None]
    if kind == "strided":
        return (torch.rand(b, 1, s, n) < 0.6).mT
    return None


def run(
    backend: str,
    inputs: list[Tensor],
    p: float,
    mask: Tensor | None = None,
    causal: bool = False,
    padding: bool = False,
) -> tuple[Tensor, ...]:
    """Return the output and the gradients for a fixed dropout seed."""
    q, k, v = inputs
    leaf = v.detach().clone().requires_grad_()
    torch.manual_seed(11)
    y = dropout_attention(
        q, k, leaf, p, mask=mask, is_causal=causal, is_padding=padding, backend=backend
    )
    cotangent = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return y.detach(), *torch.autograd.grad(y, (q, k, leaf), cotangent)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("kind", ["none", "causal", "keys", "tail", "pairs", "queries", "strided"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equal_to_the_explicit_softmax_and_mask(
    sizes: tuple[int, ...], kind: str, backend: str
) -> None:
    inputs, mask = make(sizes), make_mask(kind, sizes)
    for p in (0.1, 0.6):
        expected = run("reference", inputs, p, mask, kind == "causal")
        found = run(backend, inputs, p, mask, kind == "causal")
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("kind", ["keys", "tail", "all"])
@pytest.mark.parametrize("tokens", [1, 7, 64, 130])
def test_padded_queries_return_zero(tokens: int, kind: str, backend: str) -> None:
    sizes = (2, 2, tokens, tokens, 8, 5)
    inputs = make(sizes)
    mask = torch.ones(2, 1, 1, tokens).bool() if kind == "all" else make_mask(kind, sizes)
    assert mask is not None
    expected = run("reference", inputs, 0.3, mask, padding=True)
    assert not expected[0].masked_select(~mask.mT).any()
    pairs = run("reference", inputs, 0.3, mask & mask.mT)
    torch.testing.assert_close(expected, pairs)
    found = run(backend, inputs, 0.3, mask, padding=True)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-11)


@needs_kernels
@pytest.mark.parametrize("kind", ["none", "tail"])
@pytest.mark.parametrize("used", [0, 1, 70])
def test_gradients_if_some_outputs_are_unused(used: int, kind: str) -> None:
    """Gradients stay correct when the kernel skips query blocks without a gradient."""
    sizes = (2, 2, 130, 150, 8, 8)
    inputs, mask, results = make(sizes), make_mask(kind, sizes), []
    cotangent = torch.randn(2, 2, 130, 8, dtype=torch.float64)
    cotangent[:, :, used:] = 0.0
    for backend in ("cpu", "reference"):
        torch.manual_seed(4)
        y = dropout_attention(
            *inputs[:2], inputs[2].requires_grad_(), 0.3, mask=mask, backend=backend
        )
        results.append(torch.autograd.grad(y, inputs, cotangent))
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-11)


@needs_kernels
def test_hidden_keys_at_the_end_are_not_read() -> None:
    sizes = (2, 2, 40, 90, 8, 8)
    inputs, mask = make(sizes), make_mask("tail", sizes)
    assert mask is not None
    expected = run("cpu", inputs, 0.3, mask)
    hidden = ~mask[..., 0, :, None]
    broken = [inputs[0], *(t.detach().masked_fill(hidden, math.nan) for t in inputs[1:])]
    broken[1].requires_grad_()
    for found, clean in zip(run("cpu", broken, 0.3, mask), expected, strict=True):
        assert torch.equal(found, clean)


@pytest.mark.parametrize("backend", [*FAST, "reference"])
def test_dropped_weights_are_those_of_dropout(backend: str) -> None:
    """With one-hot values, the output equals the dropped weights."""
    q, k, _ = make((2, 3, 20, 30, 8, 1))
    one_hot = torch.eye(30, dtype=torch.float64).expand(2, 3, 30, 30)
    torch.manual_seed(5)
    found = dropout_attention(q, k, one_hot, 0.3, backend=backend)
    weights = (q @ k.mT / math.sqrt(8)).softmax(-1)
    torch.manual_seed(5)
    expected = rm.ops.dropout(weights, 0.3, backend="reference")
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-12)


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)],
    ids=str,
)
@pytest.mark.parametrize("length", [40, 700])
def test_sums_are_float32(length: int, dtype: torch.dtype, tolerance: float) -> None:
    """Inputs are exact in the low-precision type, so only the rounding of the result remains."""
    exact = [t.detach().to(dtype).double() for t in make((1, 2, length, length, 16, 16))]
    expected = run("reference", [t.clone().requires_grad_() for t in exact], 0.2)
    found = run("cpu", [t.to(dtype).requires_grad_() for t in exact], 0.2)
    assert found[0].dtype == dtype
    # The gradient of the scores uses the rounded y.
    torch.testing.assert_close(found[0].double(), expected[0], atol=tolerance, rtol=tolerance)
    for gradient, exactly in zip(found[1:], expected[1:], strict=True):
        scale = exactly.abs().max().item()
        off = (gradient.double() - exactly).abs().max().item()
        assert off < 2 * tolerance * scale


@needs_kernels
def test_dropout_near_zero_approaches_torch_attention() -> None:
    """With p = 1e-9, no weight is dropped, and large scores do not overflow."""
    q, k, v = make((2, 2, 50, 60, 16, 16))
    found = run("cpu", [q * 30, k * 30, v], 1e-9)[0]
    expected = F.scaled_dot_product_attention(q * 30, k * 30, v).detach()
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-8)


@needs_kernels
def test_nan_affects_only_its_query() -> None:
    q, k, v = make((1, 1, 10, 12, 4, 4))
    broken = q.detach().clone()
    broken[0, 0, 3] = math.nan
    y = run("cpu", [broken.requires_grad_(), k, v], 0.2)[0]
    clean = run("cpu", [q, k, v], 0.2)[0]
    assert y[0, 0, 3].isnan().any()
    rest = [i for i in range(10) if i != 3]
    assert torch.equal(y[:, :, rest], clean[:, :, rest])


@needs_kernels
def test_number_of_threads_does_not_change_results() -> None:
    before, inputs = torch.get_num_threads(), make((2, 3, 40, 50, 8, 8), torch.float32)
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run("cpu", inputs, 0.3))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


@needs_kernels
def test_backward_saves_no_attention_weights() -> None:
    """The tensors saved for the backward pass are linear in the number of tokens."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    q, k, v = make((1, 1, 300, 300, 4, 4))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        dropout_attention(q, k, v, 0.1)
    assert max(kept) == 300 * 4


@pytest.mark.parametrize("backend", FAST)
def test_second_order_gradients(backend: str) -> None:
    inputs = [t.detach().requires_grad_() for t in make((1, 1, 3, 4, 2, 2))]

    def attend(*qkv: Tensor) -> Tensor:
        torch.manual_seed(1)
        return dropout_attention(*qkv, 0.4, backend=backend)

    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)
    q, k, v = inputs
    (gradient,) = torch.autograd.grad(attend(q, k.detach(), v.detach()).sum(), q, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), q)[0].isfinite().all()


@pytest.mark.parametrize("sizes", [(2, 2, 6, 7), (1, 2, 6, 7), (7,)], ids=str)
@pytest.mark.parametrize("form", FAST)
def test_additive_mask(form: str, sizes: tuple[int, ...]) -> None:
    inputs = make((2, 2, 6, 7, 4, 4))
    bias = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    results = []
    for backend in (form, "reference"):
        torch.manual_seed(2)
        y = dropout_attention(*inputs, 0.3, mask=bias, backend=backend)
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), (*inputs[:2], bias))))
    torch.testing.assert_close(*results, atol=1e-13, rtol=1e-11)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("backend", [*FAST, "reference"])
def test_additive_mask_that_hides_all_keys_of_a_query(backend: str, p: float) -> None:
    inputs = [t.detach().requires_grad_() for t in make((2, 2, 6, 7, 4, 4))]
    bias = torch.zeros(1, 1, 6, 7, dtype=torch.float64)
    bias[..., 2, :], bias[..., 3, :5] = -torch.inf, -torch.inf
    y = dropout_attention(*inputs, p, mask=bias, backend=backend)
    assert not y[:, :, 2].any()
    gradients = torch.autograd.grad(y.square().sum(), inputs)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][:, :, 2].any()


@pytest.mark.parametrize("of", [0, 1, 2])
def test_second_order_gradients_of_one_input(of: int) -> None:
    """A second-order gradient works when only one input needs a first-order gradient."""
    inputs = [t.detach().requires_grad_() for t in make((1, 2, 5, 5, 4, 4))]
    y = dropout_attention(*inputs, 0.0)
    (first,) = torch.autograd.grad(y.square().sum(), inputs[of], create_graph=True)
    found = torch.autograd.grad(first.square().sum(), inputs)
    y = dropout_attention(*inputs, 0.0, backend="reference")
    (first,) = torch.autograd.grad(y.square().sum(), inputs[of], create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(first.square().sum(), inputs))


@pytest.mark.parametrize("backend", FAST)
def test_second_order_gradients_with_an_additive_mask(backend: str) -> None:
    inputs = [t.detach().requires_grad_() for t in make((1, 1, 3, 4, 2, 2))]
    inputs.append(torch.randn(3, 4, dtype=torch.float64, requires_grad=True))

    def attend(*inputs: Tensor) -> Tensor:
        torch.manual_seed(1)
        return dropout_attention(*inputs[:3], 0.4, mask=inputs[3], backend=backend)

    assert torch.autograd.gradgradcheck(attend, inputs)


def test_zero_dropout_uses_torch_attention() -> None:
    q, k, v = make((2, 2, 6, 7, 4, 4))
    mask, state = torch.rand(2, 1, 6, 7) < 0.8, torch.get_rng_state()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.equal(dropout_attention(q, k, v, 0.0, mask=mask), expected)
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(dropout_attention(q, k, v, 0.0, is_causal=True), causal)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms_and_forward_mode_use_torch() -> None:
    q, k, v = (t.detach() for t in make((2, 2, 6, 7, 4, 4)))
    gradient = torch.func.grad(lambda q: dropout_attention(q, k, v, 0.5).sum())(q)
    assert gradient.isfinite().all()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(v, torch.ones_like(v))
        tangent = forward_ad.unpack_dual(dropout_attention(q, k, dual, 0.5)).tangent
    assert tangent.isfinite().all()


@needs_kernels
def test_operators_are_registered_with_torch() -> None:
    q, k, v = make((2, 2, 5, 6, 4, 3), torch.float32)
    mask = torch.rand(2, 2, 5, 6) < 0.7
    arguments = (q, k, v.requires_grad_(), mask, False, False, torch.tensor(3), 0.2)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    operator = torch.ops.rifflemix.dropout_attention.default
    torch.library.opcheck(operator, arguments, test_utils=checks)
    y, lse = (t.detach() for t in operator(*arguments))
    arguments = tuple(a.detach() if isinstance(a, Tensor) else a for a in arguments)
    backward = torch.ops.rifflemix.dropout_attention_backward.default
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(backward, (*arguments, y, lse, torch.ones_like(y)), test_utils=checks)


@needs_kernels
@pytest.mark.parametrize("mixer", ["softmax", "butterfly", "local", "linformer"])
def test_mixers_use_the_attention_operator(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    inner = cpu.dropout_attention

    def counted(*arguments: object) -> Tensor:
        calls.append(1)
        return inner(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cpu, "dropout_attention", counted)
    layer = rm.create_mixer(mixer, 8, num_heads=2, max_length=20, dropout=0.4)
    x = torch.randn(2, 20, 8)
    padding = torch.arange(20).expand(2, 20) >= 17
    layer.train()(x, key_padding_mask=padding).sum().backward()
    assert calls
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)
    before = len(calls)
    layer.eval()(x, key_padding_mask=padding)
    assert len(calls) == before


def test_reference_equals_the_equation() -> None:
    """The reference equals explicit loops over queries and keys."""
    q, k, v = (t.detach() for t in make((1, 1, 3, 4, 2, 2)))
    seed = torch.tensor(9)
    kept = reference.is_kept(12, 0.5, seed).view(3, 4)
    expected = torch.zeros(3, 2, dtype=torch.float64)
    for i in range(3):
        scores = [math.exp(float(q[0, 0, i] @ k[0, 0, j]) / math.sqrt(2)) for j in range(4)]
        for j in range(4):
            expected[i] += scores[j] / sum(scores) * (2.0 if kept[i, j] else 0.0) * v[0, 0, j]
    found = reference.dropout_attention(q, k, v, None, False, False, 0.5, seed)
    torch.testing.assert_close(found[0, 0], expected, atol=1e-14, rtol=1e-12)
