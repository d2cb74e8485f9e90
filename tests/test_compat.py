"""Private and version-dependent uses of torch: a torch version without one fails here."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from rifflemix import compat
from rifflemix.checks import autocast_enabled
from rifflemix.lab.runs.measure import peak_memory
from rifflemix.models.macs import flop_formulas
from rifflemix.ops import sinkhorn_attention
from rifflemix.ops.native import instruction_level

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture
def states() -> tuple[list[tuple[bool, bool]], Any]:
    """Return a list of answers, and a function that appends both answers."""
    seen: list[tuple[bool, bool]] = []

    def ask(x: Tensor) -> Tensor:
        seen.append((compat.in_function_transform(), compat.has_plain_autograd()))
        return x.square().sum()

    return seen, ask


@pytest.mark.parametrize("transform", ["vmap", "grad", "vjp"])
def test_function_transforms_are_detected(transform: str, states: Any) -> None:
    seen, ask = states
    x = torch.randn(3)
    if transform == "vjp":
        torch.func.vjp(ask, x)
    else:
        getattr(torch.func, transform)(ask)(x)
    assert seen == [(True, False)]


def test_forward_mode_is_detected(states: Any) -> None:
    seen, ask = states
    x = torch.randn(3)
    ask(x)
    with forward_ad.dual_level():
        ask(forward_ad.make_dual(x, x))
    ask(x.requires_grad_())
    assert seen == [(False, True), (False, False), (False, True)]


def test_sizes_of_a_traced_graph_are_not_guessed() -> None:
    assert compat.statically_known_true(3 < 4)
    assert not compat.statically_known_true(4 < 3)
    answers = []

    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[0]
            answers.append([compat.statically_known_true(q) for q in (n == n, n < 8, n < 65)])
            return x + 1

    sizes = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    torch.export.export(Asks(), (torch.randn(5),), dynamic_shapes=sizes, strict=False)
    assert answers[-1] == [True, False, True]


def test_the_compiler_does_not_step_into_constants() -> None:
    steps = []

    def search(length: int) -> int:
        steps.append(length)
        print("a compiler that stepped in here would break the graph")
        return length + 1

    marked = compat.constant_for_compiler(search)
    assert marked is search

    def run(x: Tensor) -> Tensor:
        return x * marked(x.shape[0])

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert steps == [3]
    reference = torch.compiler.assume_constant_result(lambda: 1)
    assert vars(search) == vars(reference)


def test_slow_imports_are_lazy() -> None:
    """Check lazy imports: compiler, symbols, distributed checkpoints and triton take seconds."""
    slow = ("torch._dynamo", "sympy", "torch.distributed.checkpoint", "triton", "matplotlib.pyplot")
    lab = ("recipes", "train", "experiments", "comparison", "reproduction", "bench")
    names = ("mixers", "models", *(f"lab.{name}" for name in lab))
    imports = ", ".join(f"rifflemix.{name}" for name in names)
    code = f"import sys, {imports}; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_attention_on_a_cpu_is_counted() -> None:
    """Check 2 FLOPs per multiplication, for 2 products forward and 5 backward.

    Forward multiplies q with k and weights with v. Backward recomputes the weights.
    """
    q, k, v = torch.randn(3, 2, 4, 16, 8, requires_grad=True)
    product = 2 * 2 * 4 * 16 * 16 * 8
    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    with counter:
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        assert counter.get_total_flops() == 2 * product
        y.sum().backward()
    assert counter.get_total_flops() == 7 * product


@pytest.mark.skipif(instruction_level() < 2, reason="needs the compiled kernels")
def test_sinkhorn_attention_on_a_cpu_is_counted() -> None:
    """Check the FLOPs of attention products and sorting products.

    Forward: two attention products with the own and the sorted block, two sorting products.
    Backward: five attention products and six sorting products. Two products sort again, two are for
    keys and values, and two for the sorting weights.
    """
    q, k, v = torch.randn(3, 2, 4, 12, 8, requires_grad=True)
    sort = torch.rand(2, 4, 3, 3, requires_grad=True)
    attended, sorting = 2 * 2 * 4 * 12 * 8 * 8, 2 * 2 * 4 * 3 * 3 * 4 * 8
    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    with counter:
        y = sinkhorn_attention(q, k, v, sort, 4)
        assert counter.get_total_flops() == 2 * attended + 2 * sorting
        y.sum().backward()
    assert counter.get_total_flops() == 7 * attended + 8 * sorting


def test_operators_are_recorded_without_tensor_values() -> None:
    seen = []

    class Watch(compat.OperatorWatch):
        def saw(self, operator: Any, args: Any, options: Any, out: Any) -> None:
            if operator.namespace == "aten":
                seen.append(operator.name())

    with compat.shapes_only():
        x = torch.ones(10**6, 10**6, requires_grad=True)  # four terabytes
        with Watch():
            y = (x * 2).sum()
            y.backward()
            number, flag = y.item(), bool((x > 0).any())
        assert x.grad.shape == x.shape
        assert not compat.has_values(x)
        with Watch(), pytest.raises(compat.UnknownShape):
            x[x > 0]
    assert compat.has_values(torch.ones(1))
    assert not compat.has_values(torch.ones(1, device="meta"))
    assert (number, flag) == (1, False)
    assert seen[:2] == ["aten::mul.Tensor", "aten::sum"]
    assert "aten::mul.Tensor" in seen[2:]  # backward


def test_tensors_that_share_memory_share_its_key() -> None:
    x = torch.zeros(4)
    assert compat.storage_key(x) == compat.storage_key(x[1:].view(3, 1))
    assert compat.storage_key(x) != compat.storage_key(x.clone())


def test_memory_is_replayed_in_order_of_time() -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(500, dtype=torch.uint8)
        del first
        third = torch.empty(250, dtype=torch.uint8)
        del second, third
    assert compat.memory_changes(record) == [1000, 500, -1000, 250, -500, -250]


def test_peak_memory_is_the_highest_level() -> None:
    def call() -> None:
        first = torch.empty(1000, dtype=torch.uint8)
        del first
        second, third = (torch.empty(n, dtype=torch.uint8) for n in (700, 600))
        del second, third

    assert peak_memory(call, torch.device("cpu")) == 1300


def test_kernels_of_a_cpu_are_not_a_gpus() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as record:
        torch.ones(3) + 1
    events = record.key_averages()
    assert events
    assert not any(map(compat.runs_on_gpu, events))


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm],
    ids=lambda n: n.__name__,
)
def test_batch_norms_have_one_base(norm: Any) -> None:
    assert isinstance(norm(4), compat.BatchNorm)
    assert not isinstance(nn.GroupNorm(2, 4), compat.BatchNorm)


@pytest.mark.parametrize("device_type", ["cpu", "meta"])
def test_autocast_of_any_device(device_type: str) -> None:
    assert not autocast_enabled(device_type)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert autocast_enabled(device_type) == (device_type == "cpu")


def test_training_modes_are_restored_per_module() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model[1].training = False
    with compat.evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_to_empty_is_distinguished_from_other_conversions() -> None:
    seen: list[bool] = []

    class Watched(nn.Module):
        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            seen.append(compat.is_to_empty(fn))
            return super()._apply(fn, recurse)

    Watched().to_empty(device="cpu").to("cpu").double().float()
    assert seen == [True, False, False, False]
