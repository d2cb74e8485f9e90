"""The direct call of an operator's function: when it is used, and that it gives equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rifflemix.ops.operator import Operator

calls: list[str] = []


def _double(x: Tensor, factor: float, y: Tensor | None) -> tuple[Tensor, Tensor]:
    calls.append("function")
    doubled = x.detach() * factor
    return doubled, doubled.sum(0) if y is None else doubled + y.detach()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, ctx.factor, y = inputs
    ctx.has_second = y is not None
    ctx.save_for_backward(output[0])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, grad_both: Tensor | None) -> tuple[Any, ...]:
    calls.append("backward")
    (doubled,) = ctx.saved_tensors
    total = torch.zeros_like(doubled)
    for part in (grad, grad_both):
        total = total if part is None else total + part * ctx.factor
    return total, None, grad_both if ctx.has_second else None


@pytest.fixture(scope="module")
def double() -> Operator:
    schema = "(Tensor x, float factor, Tensor? y) -> (Tensor, Tensor)"
    operator = Operator(_double, "rifflemix_test::double", schema=schema)

    def fake(x: Tensor, factor: float, y: Tensor | None) -> tuple[Tensor, Tensor]:
        calls.append("fake")
        return torch.empty_like(x), x.new_empty(x.shape[1:]) if y is None else torch.empty_like(y)

    operator.register_fake(fake)
    operator.register_autograd(_differentiate, setup_context=_save)
    return operator


@pytest.fixture(scope="module")
def plain() -> Operator:
    """Create an operator without a gradient."""

    def negative(x: Tensor) -> Tensor:
        return -x.detach()

    return Operator(negative, "rifflemix_test::negative", schema="(Tensor x) -> Tensor")


class Seen(TorchDispatchMode):
    """Record the names of the operators that reach a dispatch mode."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        self.names.append(str(function))
        return function(*arguments, **(named or {}))


class Wrapped(Tensor):
    """A tensor subclass whose operations return the subclass."""


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)


def ways(double: Operator) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "short", double
    yield "torch's", double.overload


@pytest.mark.parametrize("with_second", [True, False])
def test_results_and_gradients_are_those_of_the_operator(
    double: Operator, with_second: bool
) -> None:
    x, y = inputs()
    second = y if with_second else None
    leaves = (x, y) if with_second else (x,)
    found = {}
    for name, call in ways(double):
        outputs = call(x, 2.0, second)
        total = sum((output.sin() for output in outputs), torch.zeros(4, 3)).sum()
        found[name] = (*outputs, *torch.autograd.grad(total, leaves))
    for value, expected in zip(*found.values(), strict=True):
        assert torch.equal(value, expected)
        assert value.requires_grad == expected.requires_grad
    assert type(double(x, 2.0, y)[0].grad_fn).__name__ == "doubleBackward"


def test_one_output_alone_has_a_gradient(double: Operator) -> None:
    x, y = inputs()
    (found,) = torch.autograd.grad(double(x, 3.0, y)[0].sum(), x)
    assert torch.equal(found, torch.full_like(x, 3.0))


def test_inputs_without_gradients_get_none(double: Operator) -> None:
    x, y = inputs()
    double(x.detach(), 2.0, y)[1].sum().backward()
    assert x.grad is None
    assert torch.equal(y.grad, torch.ones_like(y))


def test_without_gradients_nothing_is_kept(double: Operator) -> None:
    x, y = inputs()
    with torch.no_grad():
        assert not double(x, 2.0, y)[0].requires_grad
    with torch.inference_mode():
        assert double(x, 2.0, y)[0].is_inference()
    assert not double(x.detach(), 2.0, None)[0].requires_grad


def test_modes_see_the_operator(double: Operator) -> None:
    x, y = inputs()
    with Seen() as seen:
        double(x, 2.0, y)
    assert "rifflemix_test.double.default" in seen.names


def test_profilers_see_the_operator(double: Operator) -> None:
    x, y = inputs()
    with torch.profiler.profile() as profile:
        double(x, 2.0, y)
    assert "rifflemix_test::double" in {event.key for event in profile.key_averages()}


def test_a_compiled_graph_has_the_operator(double: Operator) -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(str(graph.graph))
        return graph

    x, y = inputs()
    compiled = torch.compile(lambda x, y: double(x, 2.0, y)[1].sin(), backend=backend)
    assert torch.equal(compiled(x, y), double(x, 2.0, y)[1].sin())
    assert len(graphs) == 1
    assert "rifflemix_test.double" in graphs[0]


def test_fake_tensors_need_no_values(double: Operator) -> None:
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(4, 3)
    calls.clear()
    assert double(x, 2.0, None)[1].shape == (3,)
    assert double(torch.empty(4, 3, device="meta"), 2.0, None)[0].device.type == "meta"
    assert calls == ["fake", "fake"]


def test_tensors_that_are_more_than_their_numbers(double: Operator) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(double(torch._neg_view(x), 2.0, None)[0], -2 * x)
    assert torch.equal(double(torch._efficientzerotensor((4, 3)), 2.0, x)[1], x)
    assert torch.equal(double(x.as_subclass(Wrapped), 2.0, None)[0], 2 * x)


def test_an_operator_without_a_gradient_says_so(plain: Operator) -> None:
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(plain(x.detach()), -x)
    with pytest.raises(RuntimeError, match="autograd"):
        plain(x).sum().backward()
