"""Seeded dropout: published random numbers, equal bits in all backends, and unbiased rates."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.nn.layers import Dropout
from rifflemix.ops import dropout
from rifflemix.ops.dropout import cpu, eager, reference
from rifflemix.ops.dropout.spec import threshold
from rifflemix.ops.native import library

needs_kernels = pytest.mark.skipif(library() is None, reason="no compiled kernels here")
BACKENDS = ["reference", "eager", pytest.param("cpu", marks=needs_kernels)]

ONES = (0xFFFFFFFF,) * 8
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98)
# Known answers of the authors: counter and key, then the words after 13 and after 20 rounds.
KNOWN = [
    ((0,) * 8, "531c7e4f 39491ee5 2c855a92 3d6abf9a", "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
    (ONES, "c4189358 1c9cc83a d5881c67 6a0a89e0", "2a881696 57012287 f6c7446e a16a6732"),
    (
        (*PI, 0xEC4E6C89),
        "4aa71d8f 734738c2 431fc6a8 ae6debf1",
        "59cd1dbb b8879579 86b5d00c ac8b6d84",
    ),
]


@pytest.mark.parametrize(("words", "after_13", "after_20"), KNOWN, ids=["zero", "ones", "pi"])
def test_generator_equals_published_values(
    words: tuple[int, ...], after_13: str, after_20: str
) -> None:
    tensors = [torch.tensor(word) for word in words]
    for rounds, expected in ((13, after_13), (20, after_20)):
        found = reference.threefry(tensors[:4], tensors[4:], rounds)
        assert " ".join(f"{int(word):08x}" for word in found) == expected


def same_seed(seed: int, x: Tensor, p: float, backend: str) -> Tensor:
    torch.manual_seed(seed)
    return dropout(x, p, backend=backend)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.1, 0.5, 2.0**-16, 3e-10, 1 - 2.0**-20, 1 - 1e-12])
def test_all_backends_drop_the_same_elements(p: float, dtype: torch.dtype) -> None:
    for count in (0, 1, 7, 63, 64, 65, 2047, 2049, 10_001):
        x = torch.randn(count).to(dtype)
        expected = same_seed(count, x, p, "reference")
        assert expected.dtype == dtype
        for backend in ("eager", "cpu", "auto"):
            assert torch.equal(same_seed(count, x, p, backend), expected)


@needs_kernels
def test_random_numbers_equal_to_the_threshold_in_the_upper_half() -> None:
    """With p = 1/2 + 1/2^17, the lower half of a number decides for one element in 65,536."""
    p, count, seed = 0.5 + 2.0**-17, 400_000, torch.tensor(5)
    numbers = reference.numbers(count, seed)
    tied = numbers >> 16 == threshold(p) >> 16
    expected = numbers >= threshold(p)
    assert tied.sum() >= 2
    assert {bool(kept) for kept in expected[tied]} == {True, False}
    assert torch.equal(cpu.dropout(torch.ones(count), p, seed) > 0, expected)
    assert torch.equal(eager.is_kept(count, p, 5), expected)


@needs_kernels
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63 - 1])
def test_seeds_of_any_size(seed: int) -> None:
    expected = reference.is_kept(1000, 0.3, torch.tensor(seed))
    assert torch.equal(cpu.dropout(torch.ones(1000), 0.3, torch.tensor(seed)) > 0, expected)
    assert torch.equal(eager.is_kept(1000, 0.3, seed), expected)


def test_seeds_and_positions_have_different_numbers() -> None:
    """All 64 bits of the seed matter, and no tile repeats the numbers of another tile."""
    seeds = [0, 1, 2, 2**32, 2**33, 2**62]
    rows = torch.cat([reference.numbers(6400, torch.tensor(seed)).view(-1, 64) for seed in seeds])
    assert len(rows.unique(dim=0)) == 100 * len(seeds)
    assert len(rows.unique()) > rows.numel() - 100


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_of_dropped_elements(p: float, backend: str) -> None:
    """Rates are within 4.5 standard deviations: overall, per tile position, for neighbor pairs."""
    torch.manual_seed(1)
    count = 64 * 4000
    dropped = torch.cat([dropout(torch.ones(count), p, backend=backend) == 0 for _ in range(2)])
    dropped = dropped.double()

    def is_fair(found: Tensor, chance: float, trials: int) -> None:
        spread = math.sqrt(chance * (1 - chance) / trials)
        assert ((found - chance).abs() < 4.5 * spread).all()

    is_fair(dropped.mean(), p, 2 * count)
    is_fair(dropped.view(-1, 64).mean(0), p, 8000)
    for distance in (1, 2, 3, 16, 63, 64, 512, count):  # the last distance: this call and the next
        pairs = dropped[distance:] * dropped[:-distance]
        is_fair(pairs.mean(), p * p, len(pairs) // 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_kept_elements_are_scaled(backend: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 50, 7, dtype=torch.float64)
    y = dropout(x, 0.25, backend=backend)
    kept = y != 0
    assert 0.65 < kept.double().mean() < 0.85
    torch.testing.assert_close(y[kept], x[kept] / 0.75, rtol=1e-15, atol=0)
    assert y.shape == x.shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropped_elements_are_zero_even_if_not_finite(backend: str) -> None:
    torch.manual_seed(0)
    y = dropout(torch.tensor([math.nan, math.inf]).repeat(100), 0.5, backend=backend)
    assert 50 < (y == 0).sum() < 150
    assert y[y != 0].isfinite().sum() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropped_positions_do_not_depend_on_memory_layout(backend: str) -> None:
    x = torch.randn(6, 100)
    expected = same_seed(3, x, 0.4, backend)
    for view in (x.t().contiguous().t(), torch.cat((x, x), 1)[:, :100], x.flip(0).flip(0)):
        assert torch.equal(same_seed(3, view, 0.4, backend), expected)
    expanded = same_seed(3, x[:, :1].expand(6, 100), 0.4, backend)
    assert torch.equal(expanded, same_seed(3, x[:, :1].repeat(1, 100), 0.4, backend))


@needs_kernels
def test_number_of_threads_does_not_change_dropped_elements() -> None:
    before, x = torch.get_num_threads(), torch.randn(100_003)
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(same_seed(0, x, 0.1, "cpu"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_generator_state_determines_dropped_elements() -> None:
    x = torch.ones(500)
    torch.manual_seed(7)
    first, state, second = dropout(x, 0.5), torch.get_rng_state(), dropout(x, 0.5)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.5), second)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.5), first)
    torch.manual_seed(8)
    assert not torch.equal(dropout(x, 0.5), first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_correct(backend: str) -> None:
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        return same_seed(2, x, 0.3, backend)

    assert torch.autograd.gradcheck(run, x)
    assert torch.autograd.gradgradcheck(run, x)
    (gradient,) = torch.autograd.grad(run(x).sum(), x)
    assert torch.equal(gradient, same_seed(2, torch.ones_like(x), 0.3, backend))
    (through_a_view,) = torch.autograd.grad(run(x.t()).t().square().sum(), x)
    assert torch.equal(through_a_view == 0, run(x.t()).t() == 0)


@needs_kernels
def test_backward_saves_no_mask() -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    x = torch.randn(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        dropout(x, 0.1)
    assert kept == [8]


def test_checkpointed_block_drops_the_same_elements_again() -> None:
    x = torch.randn(300, requires_grad=True)

    def block(x: Tensor) -> Tensor:
        return dropout(dropout(x, 0.3).sin(), 0.3)

    gradients = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=False)):
        torch.manual_seed(4)
        gradients.append(torch.autograd.grad(run(x).sum(), x)[0])
    assert torch.equal(*gradients)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms_and_forward_mode_use_torch() -> None:
    x = torch.randn(64, 50)
    y = torch.func.vmap(lambda row: dropout(row, 0.5), randomness="different")(x)
    assert 0.3 < (y == 0).float().mean() < 0.7
    gradient = torch.func.grad(lambda x: dropout(x, 0.5).sum())(x)
    assert set(gradient.unique().tolist()) == {0.0, 2.0}
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        y, tangent = forward_ad.unpack_dual(dropout(dual, 0.5))
    assert torch.equal(tangent == 0, y == 0)


@needs_kernels
def test_operator_is_registered_with_torch() -> None:
    x = torch.randn(4, 70, requires_grad=True)
    operator, arguments = torch.ops.rifflemix.dropout.default, (x, torch.tensor(3), 0.2)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, arguments, test_utils=checks)


@needs_kernels
@pytest.mark.slow
def test_compiled_layers_draw_new_dropout_at_each_call() -> None:
    x = torch.randn(400, requires_grad=True)
    run = torch.compile(lambda x: dropout(x * 2.0, 0.25), fullgraph=True)
    first, second = run(x), run(x)
    assert not torch.equal(first, second)
    torch.testing.assert_close(first[first != 0], x[first != 0] * 2.0 / 0.75)
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient == 0, first == 0)


def test_zero_dropout_returns_the_input() -> None:
    x, state = torch.randn(5), torch.get_rng_state()
    assert dropout(x, 0) is x
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_layer() -> None:
    layer, x = Dropout(0.5), torch.randn(200)
    torch.manual_seed(0)
    y = layer(x)
    assert torch.equal(y, same_seed(0, x, 0.5, "reference"))
    assert isinstance(layer, torch.nn.Dropout)
    assert repr(layer) == "Dropout(p=0.5, inplace=False)"
    assert not layer.state_dict()


def test_models_use_the_dropout_operator() -> None:
    """A model contains no torch.nn.Dropout itself, because torch draws with a single thread."""
    model = rm.create_model("encoder", vocab_size=8, num_classes=2, max_length=16, dropout=0.1)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    assert layers
    assert all(type(layer) is Dropout for layer in layers)


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "list": ("x:", lambda: dropout([1.0], 0.5)),  # type: ignore[arg-type]
    "integers": (r"x: .*got torch\.int64", lambda: dropout(torch.ones(2).long(), 0.5)),
    "sparse": ("x:", lambda: dropout(torch.ones(2).to_sparse(), 0.5)),
    "one": (r"p: .*\[0, 1\)", lambda: dropout(torch.ones(2), 1.0)),
    "negative": (r"p: .*got -0\.1", lambda: dropout(torch.ones(2), -0.1)),
    "text": ("p: .*got 'a'", lambda: dropout(torch.ones(2), "a")),  # type: ignore[arg-type]
    "NaN": ("p:", lambda: dropout(torch.ones(2), math.nan)),
    "layer": (r"dropout: .*got 1\.5", lambda: Dropout(1.5)),
    "backend": ("backend: .*got 'triton'", lambda: dropout(torch.ones(2), 0.5, backend="triton")),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=message):
        call()
