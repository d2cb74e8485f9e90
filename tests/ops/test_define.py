"""Defined operators: the direct call of their functions, their gradients and argument checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rifflemix.errors import InputError
from rifflemix.ops.define import Operator, define

calls: list[str] = []


def _empty(x: Tensor, factor: float, y: Tensor | None) -> tuple[Tensor, Tensor]:
    calls.append("fake")
    return torch.empty_like(x), x.new_empty(x.shape[1:]) if y is None else torch.empty_like(y)


def _gradient(
    doubled: Tensor, factor: float, y: Tensor | None, grad: Tensor | None, grad_both: Tensor | None
) -> tuple[Any, ...]:
    calls.append("backward")
    total = torch.zeros_like(doubled)
    for part in (grad, grad_both):
        total = total if part is None else total + part * factor
    return total, None, grad_both if y is not None else None


@pytest.fixture(scope="module")
def double() -> Operator:
    @define(
        "rifflemix_test::double",
        shapes="x: B C, y: B C",
        like=_empty,
        outputs="doubled both",
        saves="doubled factor y",
        backward=_gradient,
    )
    def double(x: Tensor, factor: float, y: Tensor | None) -> tuple[Tensor, Tensor]:
        calls.append("function")
        doubled = x.detach() * factor
        return doubled, doubled.sum(0) if y is None else doubled + y.detach()

    return double


@pytest.fixture(scope="module")
def plain() -> Operator:
    """Create an operator without a gradient."""

    @define("rifflemix_test::negative", like="x")
    def negative(x: Tensor) -> Tensor:
        return -x.detach()

    return negative


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
    """A tensor subclass with operations that return the subclass."""


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)


def ways(double: Operator) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "short", double
    yield "torch's", double.overload


@pytest.mark.parametrize("with_second", [True, False])
def test_results_and_gradients_equal_the_operator(double: Operator, with_second: bool) -> None:
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


def test_gradient_of_one_output_only(double: Operator) -> None:
    x, y = inputs()
    (found,) = torch.autograd.grad(double(x, 3.0, y)[0].sum(), x)
    assert torch.equal(found, torch.full_like(x, 3.0))


def test_inputs_without_gradients_get_none(double: Operator) -> None:
    x, y = inputs()
    double(x.detach(), 2.0, y)[1].sum().backward()
    assert x.grad is None
    assert torch.equal(y.grad, torch.ones_like(y))


def test_without_gradients_nothing_is_saved(double: Operator) -> None:
    x, y = inputs()
    with torch.no_grad():
        assert not double(x, 2.0, y)[0].requires_grad
    with torch.inference_mode():
        assert double(x, 2.0, y)[0].is_inference()
    assert not double(x.detach(), 2.0, None)[0].requires_grad


def test_dispatch_modes_receive_the_operator(double: Operator) -> None:
    x, y = inputs()
    with Seen() as seen:
        double(x, 2.0, y)
    assert "rifflemix_test.double.default" in seen.names


def test_profilers_record_the_operator(double: Operator) -> None:
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


def test_negative_views_zero_tensors_and_subclasses(double: Operator) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(double(torch._neg_view(x), 2.0, None)[0], -2 * x)
    assert torch.equal(double(torch._efficientzerotensor((4, 3)), 2.0, x)[1], x)
    assert torch.equal(double(x.as_subclass(Wrapped), 2.0, None)[0], 2 * x)


def test_operator_without_a_gradient_raises_an_error(plain: Operator) -> None:
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(plain(x.detach()), -x)
    with pytest.raises(RuntimeError, match="autograd"):
        plain(x).sum().backward()


@pytest.fixture(scope="module")
def shaped() -> Operator:
    """Create an operator with shapes that use the whole grammar."""

    def check(x: Tensor, *settings: Any) -> dict[str, Any]:
        groups = settings[-1]
        return {"GROUPS": groups, "STATE...": (groups, 2)}

    @define(
        "rifflemix_test::shaped",
        shapes="x: ... K K, sums: ... K wide, state: STATE... 1 float64, rows: GROUPS LENGTH, "
        "more: LENGTH bool|int64, seed: int64",
        check=check,
        like="x",
    )
    def shaped(
        x: Tensor,
        sums: Tensor | None,
        state: Tensor | None,
        rows: Tensor | None,
        more: Tensor | None,
        seed: Tensor | None,
        groups: int,
    ) -> Tensor:
        return x.clone()

    return shaped


GOOD: dict[str, Any] = {
    "x": torch.zeros(2, 3, 3, dtype=torch.bfloat16),
    "sums": torch.zeros(2, 3),
    "state": torch.zeros(4, 2, 1, dtype=torch.float64),
    "rows": torch.zeros(4, 5, dtype=torch.bfloat16),
    "more": torch.zeros(5, dtype=torch.bool),
    "seed": torch.tensor(1),
    "groups": 4,
}
BAD: dict[str, tuple[str, Any]] = {
    "not square": ("x", torch.zeros(2, 3, 4, dtype=torch.bfloat16)),
    "no size of a square": ("x", torch.zeros(2, 0, 0, dtype=torch.bfloat16)),
    "few dimensions": ("x", torch.zeros(3, dtype=torch.bfloat16)),
    "integers": ("x", torch.zeros(2, 3, 3, dtype=torch.int64)),
    "other leading sizes": ("sums", torch.zeros(1, 3)),
    "dtype of the first": ("sums", torch.zeros(2, 3, dtype=torch.bfloat16)),
    "named leading sizes": ("state", torch.zeros(2, 4, 1, dtype=torch.float64)),
    "size 1": ("state", torch.zeros(4, 2, 2, dtype=torch.float64)),
    "size of the check": ("rows", torch.zeros(3, 5, dtype=torch.bfloat16)),
    "no new size": ("rows", torch.zeros(4, 0, dtype=torch.bfloat16)),
    "new size": ("more", torch.zeros(6, dtype=torch.bool)),
    "neither dtype": ("more", torch.zeros(5, dtype=torch.int32)),
    "no scalar": ("seed", torch.tensor([1])),
    "elsewhere": ("seed", torch.tensor(1, device="meta")),
}


@pytest.mark.parametrize("missing", [None, "sums", "state", "rows", "more", "seed"])
def test_valid_and_absent_tensors_pass(shaped: Operator, missing: str | None) -> None:
    arguments = GOOD if missing is None else GOOD | {missing: None}
    if missing == "rows":
        arguments = arguments | {"more": torch.zeros(9, dtype=torch.int64)}
    assert shaped(*arguments.values()).shape == (2, 3, 3)
    assert shaped(*(GOOD | {"x": GOOD["x"][:0], "sums": GOOD["sums"][:0]}).values()).numel() == 0


@pytest.mark.parametrize(("name", "value"), BAD.values(), ids=BAD)
def test_wrong_tensors_are_named(shaped: Operator, name: str, value: Tensor) -> None:
    arguments = (GOOD | {name: value}).values()
    for call in (shaped._function, shaped.overload):
        with pytest.raises(InputError, match=f"^({name}|tensors): "):
            call(*arguments)


def test_a_required_tensor_is_not_none(shaped: Operator) -> None:
    with pytest.raises(InputError, match=r"^x: "):
        shaped.overload(*(GOOD | {"x": None}).values())


def test_second_order_gradients_use_the_formula() -> None:
    @define(
        "rifflemix_test::cube",
        shapes="x: N",
        like="x",
        saves="x needs",
        backward=lambda x, needs, grad: 3 * x.detach() ** 2 * grad if needs[0] else None,
    )
    def cube(x: Tensor) -> Tensor:
        return x.detach() ** 3

    @define(
        "rifflemix_test::scaled_cube",
        shapes="x: N",
        like="x",
        saves="x factor",
        backward=lambda x, factor, grad: 3 * factor * x.detach() ** 2 * grad,
        formula=lambda x, factor: factor * x**3,
    )
    def scaled_cube(x: Tensor, factor: float) -> Tensor:
        return factor * x.detach() ** 3

    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cube, (x,))
    assert torch.autograd.gradcheck(scaled_cube, (x, 2.0))
    assert torch.autograd.gradgradcheck(scaled_cube, (x, 2.0))
