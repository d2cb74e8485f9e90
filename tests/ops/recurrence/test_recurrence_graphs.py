"""`linear_recurrence` as a registered operator, in compiled graphs, and in exported programs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from recurrence_variants import recurrence, tensors, with_tensors
from torch._dynamo.testing import CompileCounterWithBackend

from rifflemix.ops import linear_recurrence
from rifflemix.ops.recurrence import cpu
from rifflemix.ops.recurrence.common import Terms

MAX_LENGTH = 300
needs_kernels = pytest.mark.skipif(
    not cpu.supports(torch.ones(1, 1, 1, 1)), reason="needs the compiled kernels"
)
# Each variant takes seconds. The first one has all gates; the others update a state in other ways.
OTHERS = ("linear attention", "vector decay", "gated delta rule")
each_variant = pytest.mark.parametrize(
    "variant",
    ["vector decay and erase", *(pytest.param(v, marks=pytest.mark.slow) for v in OTHERS)],
)


class Call(torch.nn.Module):
    """Call of the operator with an initial state."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, arguments: dict[str, Any]) -> Any:
        return linear_recurrence(**arguments, return_state=True, **self.options)


def drawn(variant: str, batch: int, length: int) -> dict[str, Any]:
    arguments = recurrence(variant, (batch, 2, length), (4, 3), torch.float32)
    return {"initial_state": torch.randn(batch, 2, 4, 3), **arguments}


@needs_kernels
@pytest.mark.parametrize("offsets", [None, [0, 5, 5, 70]], ids=["batch", "packed"])
@each_variant
def test_opcheck(variant: str, offsets: list[int] | None) -> None:
    q, k, v, log_decay, beta, erase = (
        recurrence(variant, (1, 2, 70), dtype=torch.float32).get(name)
        for name in ("q", "k", "v", "log_decay", "beta", "erase")
    )
    first = torch.randn(1 if offsets is None else 3, 2, 3, 2)
    terms = Terms.of(q, k, v, log_decay, beta, erase, first)
    leaves = [None if x is None else x.detach().requires_grad_() for x in terms]
    torch.library.opcheck(cpu._forward.overload, (*leaves, offsets))
    _, last, saved = cpu._forward(*terms, offsets)
    gradients = (torch.randn_like(terms.v), torch.randn_like(last), offsets)
    torch.library.opcheck(cpu._backward.overload, (*terms[:-1], saved, *gradients))


def require_same(compiled: Any, call: Call, variant: str, length: int) -> None:
    """Compare outputs, states and gradients."""
    arguments = drawn(variant, 2, length)
    results = []
    for run in (compiled, call):
        leaves = [x.detach().requires_grad_() for x in tensors(arguments)]
        y, last = run(with_tensors(arguments, leaves))
        gradients = torch.autograd.grad(y.square().sum() + last.sum(), leaves)
        results.append((y.detach(), last.detach(), *gradients))
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-4)


@needs_kernels
@each_variant
def test_one_graph_of_the_kernels_serves_all_lengths(variant: str) -> None:
    """Check lengths above 64: torch compiles a second graph for a single chunk."""
    torch.compiler.reset()
    call = Call(backend="cpu")
    counting = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counting)
    for length in (70, 100, 150):
        require_same(compiled, call, variant, length)
    assert counting.frame_count == 1


@pytest.mark.slow
def test_the_eager_backend_is_one_graph() -> None:
    torch.compiler.reset()
    call = Call(backend="eager")
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    require_same(compiled, call, "vector decay and erase", 70)


SIZES = ((2, 130), (1, 1), (3, 64), (2, MAX_LENGTH))


def any_size(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return dynamic shapes with a symbolic batch size and length."""
    batch = torch.export.Dim("B", max=16)
    tokens = {0: batch, 2: torch.export.Dim("N", max=MAX_LENGTH)}
    axes: dict[str, Any] = {**dict.fromkeys(arguments, tokens), "initial_state": {0: batch}}
    return {"arguments": axes | ({"erase": (tokens, tokens)} if "erase" in arguments else {})}


@pytest.mark.slow
@pytest.mark.parametrize("variant", OTHERS[1:])
def test_one_program_serves_all_lengths(variant: str) -> None:
    call, arguments = Call(), drawn(variant, 3, 70)
    program = torch.export.export(
        call, (arguments,), dynamic_shapes=any_size(arguments), strict=False
    )
    assert "rifflemix" not in program.graph_module.code
    run = program.module()
    for size in SIZES:
        arguments = drawn(variant, *size)
        torch.testing.assert_close(run(arguments), call(arguments), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_one_onnx_file_serves_all_lengths() -> None:
    variant = "gated delta rule"  # tests/lab/trained exports whole models of other variants
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    call, arguments = Call(), drawn(variant, 3, 70)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the exporter's own code
        made: Any = torch.onnx.export(
            call,
            kwargs={"arguments": arguments},
            dynamic_shapes=any_size(arguments),
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    session = runtime.InferenceSession(
        made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [given.name for given in session.get_inputs()]
    for size in SIZES:
        arguments = drawn(variant, *size)
        inputs = [x.numpy() for x in tensors(arguments)]
        found = session.run(None, dict(zip(names, inputs, strict=True)))
        for value, wanted in zip(found, call(arguments), strict=True):
            torch.testing.assert_close(torch.from_numpy(value), wanted, atol=1e-4, rtol=1e-4)
