"""Long streams, many calls and many half-precision steps: no drift, no leak, no failure."""

from __future__ import annotations

import copy
import gc
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_calls import outputs_and_gradients
from attack_operators import CLOSE, EXACT
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.mixers import list_mixers, mixer_card

STREAMING = [name for name in list_mixers() if mixer_card(name).streaming]
LONGEST = 100_000  # tokens
DIM, HEADS = 8, 2


@pytest.mark.parametrize("name", STREAMING)
def test_long_streams(name: str, attack: Any) -> None:
    """Streaming in float32 is as close to float64 as a float32 pass over the whole sequence."""
    length = min(LONGEST, attack.scaled(600))
    torch.manual_seed(attack.seed)
    mixer = rm.create_mixer(name, DIM, num_heads=HEADS, max_length=length, causal=True).eval()
    x = torch.randn(1, length, DIM)
    with torch.no_grad():
        truth = copy.deepcopy(mixer).double()(x.double())
        whole = mixer(x)
        state = mixer.init_state(1, dtype=x.dtype)
        streamed = torch.empty_like(x)
        for n in range(length):
            streamed[:, n], state = mixer.step(x[:, n], state)
    attack.count("tokens", length)
    rounding = torch.finfo(x.dtype).eps * float(truth.abs().max())
    # Check the last tokens separately: early tokens must not hide a growing error.
    for part in (slice(None), slice(length - length // 10, None)):
        off, plain = (float((y - truth)[:, part].abs().max()) for y in (streamed, whole))
        assert off <= 8 * plain + 64 * rounding, (name, off, plain, rounding)


def resources() -> dict[str, int]:
    """Return memory in bytes, threads, descriptors and tensors of this process."""
    gc.collect()
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    return {
        "bytes": int(status["VmRSS"].split()[0]) << 10,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tensors": sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()),
    }


def step(name: str) -> Callable[[], object]:
    """Create a training step of a mixer on tokens with padding."""
    mixer = rm.create_mixer(name, DIM, num_heads=HEADS, max_length=32)
    mask = torch.zeros(2, 32, dtype=torch.bool)
    mask[:, 20:] = mixer.card.padding
    padded = mask if mixer.card.padding else None

    def call() -> None:
        x = torch.randn(2, 32, DIM, requires_grad=True)
        mixer(x, key_padding_mask=padded).sum().backward()
        mixer.zero_grad()

    return call


def operator(name: str) -> Callable[[], object]:
    number = 0
    while True:  # the first small call, because the test looks for growth, not speed
        call = (EXACT | CLOSE)[name](random.Random(f"{name}/{number}"))
        if sum(x.numel() for x in call.tensors) < 5000:
            return lambda: outputs_and_gradients(call, "auto")
        number += 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_many_calls_leave_nothing_behind(attack: Any) -> None:
    calls = [operator(name) for name in (*EXACT, *CLOSE)] + [step(name) for name in list_mixers()]

    def run(count: int) -> None:
        for number in range(count):
            calls[number % len(calls)]()
        attack.count("calls", count)

    count = attack.scaled(2000)
    run(4 * len(calls))
    before = resources()
    run(count)
    after = resources()
    assert after["threads"] <= before["threads"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["tensors"] <= before["tensors"]
    # The allocator keeps some pages. A leak of 4 KiB per call would be 8 MB.
    assert after["bytes"] - before["bytes"] < (6 << 20), (before, after)


MIXERS = ("csp", "sliceformer", "tssa", "butterfly", "sinkhorn", "softmax")
PRECISIONS = {
    "bf16": (torch.bfloat16, None),
    "fp16": (torch.float16, None),
    "autocast bf16": (torch.float32, torch.bfloat16),
    "autocast fp16": (torch.float32, torch.float16),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MIXERS)
def test_steps_in_half_precision(name: str, precision: str, attack: Any) -> None:
    """A model learns which half has the larger sum; its loss stays finite and decreases."""
    dtype, autocast = PRECISIONS[precision]
    torch.manual_seed(attack.seed)
    steps = min(300, attack.scaled(40))
    mixer = rm.create_mixer(name, 16, num_heads=2, max_length=16)
    model = nn.ModuleDict({"embed": nn.Linear(2, 16), "mixer": mixer, "head": nn.Linear(16, 2)})
    model.to(dtype)
    # SGD: the second moments of Adam would underflow in half precision with any mixer.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 16, 2)
        label = (x[:, :8].sum((1, 2)) > x[:, 8:].sum((1, 2))).long()
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            tokens = model["embed"](x.to(dtype))
            logits = model["head"]((tokens + model["mixer"](tokens))[:, 0])
        loss = nn.functional.cross_entropy(logits.float(), label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    attack.count("steps", steps)
    assert all(torch.isfinite(torch.tensor(losses)))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    last = losses[-steps // 4 :]
    assert sum(last) / len(last) < 1.0, losses
