"""Every registered mixer, in every variant on its card, fulfills rifflemix.testing's contract.

No mixer is skipped. The card lists what a mixer does not support, and the card itself is tested.
tests/testing checks that the contract detects broken mixers.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

import rifflemix as rm
from rifflemix.mixers import mixer_class
from rifflemix.testing import PROPERTIES, Form, Property, forms_of
from rifflemix.testing.forms import tokens
from rifflemix.testing.graphs import compiles_to_one_graph
from rifflemix.testing.independence import require_padding_reaches_nothing
from rifflemix.testing.numerics import (
    forward_derivative,
    functional_gradient,
    gradients_equal_numerical_ones,
)

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]
# Tracing takes seconds per variant: one mixer here, all mixers in the slow tests.
TRACED = {"csp"}
TRACES = {"exports", "compiles_to_one_graph"}
# ONNX export is slow as well. Attacks try randomly drawn mixers for the others.
ONNX = "runs_as_onnx"
IN_ONNX = {"softmax", "csp", "sliceformer", "tssa", "butterfly", "token_parallel", "sinkhorn"}
# Compiled CPU code and full Jacobians take ten seconds per variant. All mixers are tested for a
# single graph and for a random direction in the Jacobian.
GENERATED = {"csp", "sliceformer", "tssa", "butterfly", "token_parallel", "sinkhorn", "s4"}


def marks(prop: Property, form: Form) -> list[pytest.MarkDecorator]:
    is_slow = prop.name == ONNX or (prop.name in TRACES and str(form) not in TRACED)
    return [pytest.mark.slow] if is_slow else []


def is_tried(prop: Property, form: Form) -> bool:
    return prop.name != ONNX or (form.card.name in IN_ONNX and str(form) != "sinkhorn-causal")


@pytest.mark.parametrize(
    ("form", "prop"),
    [
        pytest.param(form, prop, id=f"{form}-{prop.name}", marks=marks(prop, form))
        for form in FORMS
        for prop in PROPERTIES
        if prop.applies(form) and is_tried(prop, form)
    ],
)
def test_mixer_fulfills_the_contract(form: Form, prop: Property) -> None:
    prop.check(form)


# Inductor warns that Fourier transforms are not compiled.
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in FORMS if form.card.name in GENERATED], ids=str)
def test_compiles_with_the_default_backend(form: Form) -> None:
    """Check causal variants without a mask, since C++ compiles slowly."""
    masked = not (form.causal and len(forms_of(form.mixer)) == 2)
    compiles_to_one_graph(form, backend="inductor", masked=masked)


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in FORMS if form.card.name in GENERATED], ids=str)
def test_every_element_of_the_gradients_is_correct(form: Form) -> None:
    gradients_equal_numerical_ones(form, every_element=True)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_padding_anywhere_does_not_change_outputs(form: Form, data: st.DataObject) -> None:
    mixer = form.build()
    batch, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    x = tokens(batch, length)
    bits = st.lists(st.booleans(), min_size=batch * length, max_size=batch * length)
    mask = torch.tensor(data.draw(bits)).view(batch, length)
    require_padding_reaches_nothing(mixer, x.round() if data.draw(st.booleans()) else x, mask)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_all_function_transforms_are_supported(form: Form) -> None:
    mixer = form.build(8, num_heads=2)
    with sdpa_kernel(SDPBackend.MATH):
        for derivative in (forward_derivative, functional_gradient):
            derivative(mixer, *(tokens(2, 6, 8) for _ in range(3)))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_parameter_is_a_scalar(form: Form) -> None:
    """Check that no parameter is 0-d, since FSDP2 cannot shard scalars."""
    assert not [name for name, p in form.new().named_parameters() if p.dim() == 0]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_outputs_may_be_written_to(form: Form) -> None:
    x = tokens(2, 7)
    mixer = form.build()
    expected = mixer(x.clone()) + 1.0
    torch.testing.assert_close(mixer(x.clone()).add_(1.0), expected)


def test_unknown_mixer_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'softmx'.*softmax"):
        rm.create_mixer("softmx", 32)
