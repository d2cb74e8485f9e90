"""Tests of the plugin of docs/learned-permutations.md: hard outputs, gradients, the contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from document_scripts import load_script
from rifflemix.mixers.csp import CSP
from rifflemix.ops import group_sort
from rifflemix.testing import graphs, inputs, numerics, states
from rifflemix.testing.contract import PROPERTIES
from rifflemix.testing.forms import forms_of

MASK = torch.zeros(2, 11, dtype=torch.bool)
MASK[0, 3] = MASK[1, 7:] = True


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    """Load the module without registering its mixer.

    Other tests list all registered mixers.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rm, "register_mixer", lambda cls: cls)
        yield load_script("benchmarks/learned_permutations.py")


def tokens(channels: int = 6) -> Tensor:
    return torch.randn(2, 11, channels, dtype=torch.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_a_learned_reference_orders_by_its_score(plugin: ModuleType, masked: bool) -> None:
    """Check that the forward pass is a hard sort in training and in evaluation."""
    mixer = plugin.LearnedReference(6, heads=2, group_size=4, shift="none", pad=True).double()
    x, mask = tokens(), MASK if masked else None
    y = mixer(x, key_padding_mask=mask)
    v = mixer.value(x).unflatten(2, (2, 4))
    padded = torch.ones(2, 12, dtype=torch.bool)
    padded[:, :11] = MASK if masked else False
    v = torch.cat((v, v[:, :1]), 1)
    heads = []
    for head in range(2):
        sorted_ = group_sort(v[:, :, head], 3, key_padding_mask=padded)
        heads.append(sorted_[:, :11, 1:])
    expected = mixer.proj(torch.cat(heads, 2))
    if masked:
        expected = expected.masked_fill(MASK[..., None], 0.0)
    torch.testing.assert_close(y, expected)
    with torch.no_grad():
        assert torch.equal(mixer.eval()(x, key_padding_mask=mask), y)


def test_the_gradient_of_a_learned_reference(plugin: ModuleType) -> None:
    """Values get permuted gradients; scores get gradients of soft ranks along sorted values."""
    mixer = plugin.LearnedReference(3, group_size=5, shift="none", temperature=0.9)
    mixer = mixer.double()
    mixer.proj = torch.nn.Identity()
    x, weight = torch.randn(2, 1, 5, 3, dtype=torch.float64)
    v = mixer.value(x).detach()
    score, values = v[..., :1], v[..., 1:]
    (found,) = torch.autograd.grad(mixer(x), mixer.value.weight, weight)
    ordered, order = values.sort(1).values, score.sort(1).indices
    place = order.argsort(1).expand_as(values)
    high, low = ordered.gather(1, (place + 1).clamp(max=4)), ordered.gather(1, (place - 1).clamp(0))
    steps = (place + 1).clamp(max=4) - (place - 1).clamp(0)

    def relaxed(w: Tensor) -> Tensor:
        rank = plugin.soft_ranks(x @ w[:1].T, torch.zeros(1, 5, dtype=torch.bool), 1, 0.9)
        hard = group_sort(torch.cat((score, x @ w[1:].T), 2))[..., 1:]
        return hard + (high - low) / steps * (rank - rank.detach())

    w = mixer.value.weight.detach().requires_grad_()
    (expected,) = torch.autograd.grad(relaxed(w), w, weight)
    torch.testing.assert_close(found, expected)


def test_soft_ranks_are_the_nearest_points_of_the_permutahedron(plugin: ModuleType) -> None:
    """Compare with the best of many random convex combinations of permutations."""
    z = torch.tensor([0.3, 2.0, 0.1], dtype=torch.float64)
    (found,) = plugin.soft_ranks(z[None, :, None], torch.zeros(1, 3, dtype=torch.bool), 1, 0.5)
    torch.testing.assert_close(found[:, 0], torch.tensor([0.7, 2.0, 0.3], dtype=torch.float64))
    corners = torch.tensor(list(itertools.permutations(range(3))), dtype=torch.float64)
    points = torch.randn(1000, 6, dtype=torch.float64).mul(9).softmax(1) @ corners
    assert (points - z / 0.5).norm(dim=1).min() >= (found[:, 0] - z / 0.5).norm()


def test_soft_ranks_ignore_padding(plugin: ModuleType) -> None:
    x = tokens(2)
    x[0, 8:11] = x[0, 1:4]
    padded = torch.zeros(2, 11, dtype=torch.bool)
    padded[0, :5] = padded[1, 3:6] = True
    found = plugin.soft_ranks(x, padded, 1, 0.4)
    for sample, mask in enumerate(padded):
        alone = x[sample : sample + 1, ~mask]
        expected = plugin.soft_ranks(alone, mask.new_zeros(1, alone.shape[1]), 1, 0.4)
        torch.testing.assert_close(found[sample, ~mask], expected[0])


def test_low_temperature_gives_scores_almost_no_gradient(plugin: ModuleType) -> None:
    """Lower the temperature through its attribute, as a training loop does."""
    mixer = plugin.LearnedReference(6, heads=2, group_size=4, pad=True).double()
    sizes = []
    for mixer.temperature in (10.0, 1e-9):
        mixer.zero_grad()
        y = mixer(tokens())
        (y * torch.randn_like(y)).sum().backward()
        sizes.append(mixer.value.weight.grad[::4].norm())
    assert sizes[0] > 0
    assert sizes[1] == 0


def test_whole_learned_shifts_equal_csp(plugin: ModuleType) -> None:
    """Whole shifts equal CSP; evaluation rounds fractional shifts to whole shifts."""
    options: dict[str, Any] = {"max_length": 11, "heads": 2, "pad": True}
    mixer, hard = plugin.LearnedShift(6, **options).double(), CSP(6, **options).double()
    hard.load_state_dict({k: v for k, v in mixer.state_dict().items() if k != "offset"})
    x = tokens()
    for mask in (None, MASK):
        expected = hard(x, key_padding_mask=mask)
        for mode in (True, False):
            assert torch.equal(mixer.train(mode)(x, key_padding_mask=mask), expected)
    with torch.no_grad():
        mixer.offset.fill_(0.3 / mixer.reach)
    assert torch.equal(mixer.eval()(x), hard(x))
    assert not torch.equal(mixer.train()(x), hard(x))
    assert (mixer.shifts() == mixer.start).tolist() == [True, False, False] * 2


def test_numerical_gradients_of_learned_shifts(plugin: ModuleType) -> None:
    mixer = plugin.LearnedShift(4, max_length=5, reach=3.0, group_size=2, pad=True).double()
    x = torch.randn(1, 5, 4, dtype=torch.float64)

    def run(offset: Tensor) -> Tensor:
        return torch.func.functional_call(mixer, {"offset": offset}, (x,))

    offset = torch.tensor([0.05, 0.1, -0.08, 0.13], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (offset,))


LEFT_OUT = {
    "reference": (numerics.gradients_equal_numerical_ones,),  # straight through: gradients differ
    "shift": (
        inputs.builds_with_few_arguments,  # the initial schedule needs max_length
        numerics.low_precision_follows_float64,  # 16 bits may round to another token
        numerics.every_parameter_is_used,  # rounded in evaluation, shifts have no gradient
        states.training_without_dropout_is_evaluation,  # shifts are fractional in training
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("learn", LEFT_OUT)
def test_learned_permutations_fulfill_the_contract(plugin: ModuleType, learn: str) -> None:
    class Variant(plugin.Permuted):  # type: ignore[misc, name-defined]
        def __init__(self, dim: int, **options: Any) -> None:
            options = {"learn": learn, "heads": 2, "group_size": 4} | options
            super().__init__(dim, **options)

    left_out = (*LEFT_OUT[learn], graphs.exports, graphs.runs_as_onnx)
    for prop in PROPERTIES:
        form = forms_of(Variant)[0]
        if prop.applies(form) and prop.holds not in left_out:
            prop.check(form)
