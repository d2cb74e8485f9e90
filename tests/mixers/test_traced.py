"""Tests of ONNX, jit.trace, fx, TensorBoard, second gradients and nested tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_export import FORMS, batch, parameters
from torch import Tensor

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.mixers import mixer_class
from rifflemix.ops.permutation import eager
from rifflemix.testing import Form, forms_of
from rifflemix.testing.forms import DIM, MAX_LENGTH
from rifflemix.testing.graphs import runs_as_onnx


@pytest.mark.slow
@pytest.mark.parametrize("form", forms_of(mixer_class("synthesizer")), ids=str)
def test_learned_scores_export_to_onnx(form: Form) -> None:
    runs_as_onnx(form)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_jit_trace(form: Form) -> None:
    mixer = form.build(dtype=torch.float32)
    x, _ = batch(2, 24)
    traced = torch.jit.trace(mixer, (x,), check_trace=False)
    assert "rifflemix::" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x + 1.0), mixer(x + 1.0))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("synthesizer", {}),
        ("synthesizer", {"mode": "factorized"}),
        ("sparse_transformer", {"max_length": None}),
        ("csp", {"max_length": None, "shift": "power"}),
        ("csp", {"max_length": None, "shift": "code_exp"}),
    ],
    ids=str,
)
def test_jit_trace_with_size_dependent_branches(name: str, options: dict[str, Any]) -> None:
    """Check tensor sizes: torch.jit.trace passes sizes as tensors."""
    mixer = rm.create_mixer(name, DIM, num_heads=4, **{"max_length": MAX_LENGTH, **options}).eval()
    x, _ = batch(2, 24)
    traced = torch.jit.trace(mixer, (x,), check_trace=False)
    assert "rifflemix::" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x + 1.0), mixer(x + 1.0))


class Host(torch.nn.Module):
    """A host model with a mixer and an attention layer to replace."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = rm.create_mixer("csp", DIM, num_heads=4)
        self.attention = torch.nn.MultiheadAttention(DIM, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(x)
        return x + self.attention(x, x, x, need_weights=False)[0]


def test_fx_treats_mixers_and_swapped_layers_as_leaves() -> None:
    host = Host().eval()
    replaced = rm.replace_attention(host, "tssa").replaced

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, rm.TokenMixer) or module_qualified_name in replaced

    traced = torch.fx.GraphModule(host, Tracer().trace(host))
    for size in ((2, 24), (3, 17)):
        x, _ = batch(*size)
        assert torch.equal(traced(x), host(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_tensorboard_draws_the_graph(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip(
        "torch.utils.tensorboard", reason="tensorboard is not installed"
    )
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(Form(mixer_class("butterfly")).build(dtype=torch.float32), batch(2, 24)[0])
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("form", parameters(FORMS, {"csp", "butterfly"}))
def test_gradients_can_be_differentiated(form: Form) -> None:
    mixer = form.build(8, num_heads=2).requires_grad_(False)
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False] * 5 + [True]])
    for key_padding_mask in (None, mask):

        def run(x: Tensor, mask: Tensor | None = key_padding_mask) -> Tensor:
            return mixer(x, key_padding_mask=mask)

        assert torch.autograd.gradgradcheck(run, (x,), atol=1e-4)


def test_second_gradients_reach_the_parameters() -> None:
    """Check that second gradients equal the plain attention formula, also in float32."""
    mixer = Form(mixer_class("butterfly")).build(dtype=torch.float32)
    x = torch.randn(2, 20, DIM, requires_grad=True)

    def penalty() -> tuple[Tensor, ...]:
        (gradient,) = torch.autograd.grad(mixer(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), list(mixer.parameters()))

    found = penalty()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = penalty()
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_tensors_are_refused_by_name(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.randn(n, DIM) for n in (3, 5)], layout=layout)
    mask = torch.nested.nested_tensor(
        [torch.zeros(n, dtype=torch.bool) for n in (3, 5)], layout=layout
    )
    mixer = rm.create_mixer("tssa", DIM, num_heads=4)
    with pytest.raises(InputError, match=r"^x: .*to_padded_tensor"):
        mixer(nested)
    with pytest.raises(InputError, match=r"^key_padding_mask:"):
        mixer(torch.randn(2, 5, DIM), key_padding_mask=mask)
    with pytest.raises(InputError, match=r"^x: .*to_padded_tensor"):
        rm.ops.butterfly_split(nested, 2, 2)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_sorting_by_value_equals_sorting_by_key(groups: int, masked: bool) -> None:
    """Check the exported order with ties, infinities, both zeros and NaN."""
    values = torch.tensor([1.0, -1.0, 0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0])
    x = values[torch.randint(len(values), (3, 12, 5))]
    mask = torch.rand(3, 12) < 0.4 if masked else None
    descending = torch.tensor([False, True, False, True, True])
    shape = (groups, 12 // groups)
    keys = eager.sort_key(x, descending, mask).unflatten(1, shape)
    order = eager._order_by_value(x, descending, mask, shape)
    assert torch.equal(order, keys.sort(dim=2, stable=True).indices)
    if mask is not None:
        mask[:, 0] = False
        largest = eager._largest_by_value(x, mask.unsqueeze(-1))
        assert torch.equal(largest, eager._largest_positions(x, mask))
