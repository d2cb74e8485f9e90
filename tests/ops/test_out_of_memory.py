"""A kernel out of memory raises MemoryError, on any thread, and the next call works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from ctypes import CDLL, c_long
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rifflemix import ops
from rifflemix.lab.runs.environment import using_threads
from rifflemix.ops import native
from rifflemix.ops.butterfly import cpu as block_maps
from rifflemix.ops.convolution import cpu as convolution
from rifflemix.ops.convolution.backends import short_convolution
from rifflemix.ops.dropout import cpu as attention
from rifflemix.ops.permutation import cpu_common as permutation
from rifflemix.ops.recurrence import cpu as recurrence
from rifflemix.ops.sinkhorn import cpu as sinkhorn
from rifflemix.ops.statistics import cpu_common as statistics

NATIVE = Path(native.__file__).parent
FAILING_NEW = Path(__file__).with_name("failing_new.cpp")
WITHOUT_TORCH = Path(__file__).with_name("without_torch.py")
needs_kernels = pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels")

# The backward pass of one head of 2^18 features needs 128 MiB per thread. The limit is 100 MiB for
# two threads.
LIMITED = """
import resource, torch
import rifflemix as rm

torch.set_num_threads(2)
w = torch.randn(2, 1, 1, 1 << 18, requires_grad=True)
y = rm.ops.causal_token_statistics(w, torch.ones(1), backend="cpu")
y.sum().backward(retain_graph=True)
expected, w.grad = w.grad, None
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
for _ in range(3):
    try:
        y.sum().backward(retain_graph=True)
    except MemoryError as error:
        print(error)
assert w.grad is None
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
y.sum().backward()
assert torch.equal(w.grad, expected)
"""


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
@pytest.mark.slow
def test_failed_allocations_are_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("memory" in line for line in lines)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the kernels with an allocator that fails on demand."""
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    sources = map(str, (FAILING_NEW, *NATIVE.glob("*.cpp")))
    flags = ["-std=c++17", "-O0", "-Wno-psabi", "-pthread", "-fPIC", "-shared", "-Wl,-Bsymbolic"]
    command = ["g++", *flags, "-DRIFFLEMIX_ONE_INSTRUCTION_SET", *sources, "-o", str(path)]
    subprocess.run(command, check=True, timeout=300)
    return path


def gradients(y: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]


def permuted(groups: int, shifted: bool) -> list[Tensor]:
    x = torch.randn(2, 512, 96, generator=torch.Generator().manual_seed(0)).requires_grad_()
    steps = torch.arange(96) if shifted else torch.zeros(96, dtype=torch.int64)
    return gradients(ops.channel_permute(x, steps, groups, backend="cpu"), x)


def exchanged() -> list[Tensor]:
    x = torch.randn(2, 512, 96, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return gradients(ops.max_exchange(x, backend="cpu"), x)


def statistic(causal: bool) -> list[Tensor]:
    w = torch.randn(2, 4, 1024, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    temperature = torch.ones(4, requires_grad=True)
    call = ops.causal_token_statistics if causal else ops.token_statistics
    return gradients(call(w, temperature, backend="cpu"), w, temperature)


def attended() -> list[Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 300, 16).requires_grad_() for _ in range(3))
    return gradients(ops.dropout_attention(q, k, v, 0.2, backend="cpu"), q, k, v)


def balanced() -> list[Tensor]:
    scores = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return gradients(ops.sinkhorn(scores, 3, backend="cpu"), scores)


def sorted_beside() -> list[Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 300, 16).requires_grad_() for _ in range(3)]
    inputs.append(torch.randn(2, 3, 10, 10).softmax(-1).requires_grad_())
    y = ops.sinkhorn_attention(*inputs, 30, dropout_p=0.2, backend="cpu")
    return gradients(y, *inputs)


def mapped() -> list[Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(300, 64, requires_grad=True), torch.randn(8, 8, 8, requires_grad=True)
    maps = [ops.BlockMap(w, None, 1, 1, "gelu"), ops.BlockMap(w, None, 8, 8)]
    return gradients(ops.block_mlp(x, maps, backend="cpu"), x, w)


def convolved() -> list[Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(*shape).requires_grad_() for shape in ((2, 300, 96), (4, 96), (96,))]
    return gradients(short_convolution(*inputs, -3, 300, "cpu"), *inputs)


def recurred() -> list[Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 100, 16).requires_grad_() for _ in range(3))
    y = ops.linear_recurrence(q, k, v, log_decay=-q.square(), backend="cpu")
    return gradients(y, q, k, v)


CALLS: dict[str, Callable[[], list[Tensor]]] = {
    "sort": lambda: permuted(8, shifted=False),
    "shift and sort": lambda: permuted(8, shifted=True),
    "pairs": lambda: permuted(256, shifted=True),
    "exchange": exchanged,
    "statistics": lambda: statistic(causal=False),
    "causal statistics": lambda: statistic(causal=True),
    "attention": attended,
    "balancing": balanced,
    "sorted blocks": sorted_beside,
    "block maps": mapped,
    "short convolution": convolved,
    "recurrence": recurred,
}


@pytest.mark.slow
@needs_kernels
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_every_allocation_may_fail(
    name: str, threads: int, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = CDLL(str(library))
    kernels.fail_allocation.argtypes = [c_long]
    kernels.allocations_left.restype = c_long
    for module in (permutation, statistics, block_maps, convolution, recurrence):
        monkeypatch.setattr(module, "_KERNELS", kernels)
    for module in (attention, sinkhorn):
        monkeypatch.setattr(module, "KERNELS", kernels)
    with using_threads(threads):
        expected = CALLS[name]()
        kernels.fail_allocation(1 << 40)
        CALLS[name]()
        count = (1 << 40) - kernels.allocations_left()
        assert count > 0
        # All allocations if there are few, otherwise some from each part of the call.
        for number in sorted({*range(min(count, 8)), *range(0, count, max(1, count // 24))}):
            kernels.fail_allocation(number)
            try:
                CALLS[name]()
            except MemoryError:
                pass
            else:  # threads share the work at random, so the last allocation may not occur
                assert kernels.allocations_left() >= 0
            kernels.fail_allocation(1 << 40)
        found = CALLS[name]()
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow
@needs_kernels
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_kernel_threads_without_memory(library: Path) -> None:
    command = [sys.executable, str(WITHOUT_TORCH), str(library), "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
