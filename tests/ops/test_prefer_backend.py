from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from typing import TypeVar

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.ops.dispatch import choose, prefer_backend

T = TypeVar("T")
AVAILABLE = ("reference", "eager", "cpu")


@pytest.mark.parametrize(
    ("preferred", "asked", "chosen"),
    [
        ("eager", "auto", "eager"),
        ("reference", "auto", "reference"),
        ("triton", "auto", "cpu"),  # unavailable: the fastest available backend
        ("auto", "auto", "cpu"),
        ("eager", "cpu", "cpu"),  # an explicit backend wins
    ],
)
def test_auto_is_the_preferred_backend_inside_the_context(
    preferred: str, asked: str, chosen: str
) -> None:
    with prefer_backend(preferred):
        assert choose(asked, AVAILABLE) == chosen
    assert choose("auto", AVAILABLE) == "cpu"


def test_preferences_nest_and_end_with_an_error() -> None:
    with prefer_backend("eager"):
        with pytest.raises(InputError), prefer_backend("reference"):
            choose("triton", AVAILABLE)
        assert choose("auto", AVAILABLE) == "eager"
    assert choose("auto", AVAILABLE) == "cpu"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="backend"), prefer_backend("gpu"):
        pass


def in_thread(run: Callable[[], T]) -> T:
    """Return the result of `run` in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_threads_have_separate_preferences() -> None:
    """Each thread enters before the other thread exits; a shared preference would leak here."""
    entered, left = threading.Event(), threading.Event()

    def other() -> str:
        with prefer_backend("reference"):
            entered.set()
            assert left.wait(60)
            return choose("auto", AVAILABLE)

    with ThreadPoolExecutor(1) as pool:
        with prefer_backend("eager"):
            found = pool.submit(other)
            assert entered.wait(60)
            assert choose("auto", AVAILABLE) == "eager"
        assert choose("auto", AVAILABLE) == "cpu"
        left.set()
        assert found.result() == "reference"
        assert pool.submit(choose, "auto", AVAILABLE).result() == "cpu"
    assert choose("auto", AVAILABLE) == "cpu"


def test_a_thread_inherits_a_preference_only_with_its_context() -> None:
    with prefer_backend("eager"):
        context = copy_context()
        assert in_thread(lambda: choose("auto", AVAILABLE)) == "cpu"
        assert in_thread(lambda: context.run(choose, "auto", AVAILABLE)) == "eager"


def test_async_tasks_have_separate_preferences() -> None:
    async def prefer(backend: str) -> str:
        with prefer_backend(backend):
            await asyncio.sleep(0)
            return choose("auto", AVAILABLE)

    async def both() -> list[str]:
        return await asyncio.gather(prefer("eager"), prefer("reference"))

    assert asyncio.run(both()) == ["eager", "reference"]
    assert choose("auto", AVAILABLE) == "cpu"


def test_a_compiled_function_follows_the_preference() -> None:
    torch.compiler.reset()

    def scaled(x: Tensor) -> Tensor:
        return x * AVAILABLE.index(choose("auto", AVAILABLE))

    compiled, one = torch.compile(scaled, fullgraph=True, backend="eager"), torch.ones(())
    found = [float(compiled(one))]
    for backend in ("eager", "reference", "eager"):
        with prefer_backend(backend):
            found.append(float(compiled(one)))
    assert [*found, float(compiled(one))] == [2, 1, 0, 1, 2]


@pytest.mark.parametrize("mixer", ["tssa", "csp"])
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_checkpointing_computes_again_with_the_backend_of_the_forward(
    mixer: str, when: str
) -> None:
    """Backends save different tensors, and torch reports a mismatch as a CheckpointError.

    A GPU recomputes on an autograd thread. This test runs the backward pass in a new thread.
    """
    model = rm.create_model(
        "gpt", mixer=mixer, dim=8, num_layers=1, num_heads=2, vocab_size=5, max_length=8
    )
    model.gradient_checkpointing = True
    with prefer_backend("eager") if when == "forward" else nullcontext():
        loss = model(torch.tensor([[1, 2, 3]])).square().sum()
    with prefer_backend("eager") if when == "backward" else nullcontext():
        loss.backward() if when == "backward" else in_thread(loss.backward)
    assert all(p.grad is not None for p in model.parameters())
