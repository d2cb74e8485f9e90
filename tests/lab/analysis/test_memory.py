"""Check that the memory of analyses does not depend on the number of batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rifflemix as rm
from rifflemix.lab.analysis import analyze, trace
from rifflemix.lab.runs.measure import peak_memory

CPU = torch.device("cpu")
B, N, C, LAYERS = 8, 32, 32, 4
ONE_BATCH = 2 * LAYERS * B * N * C * 4  # bytes of the inputs and outputs of all mixers
KINDS = {"spectrum": "csp", "rate": "tssa", "softmax-spread": "softmax"}


def encoder(mixer: str) -> nn.Module:
    sizes = {"in_channels": 4, "max_length": N, "dim": C, "num_layers": LAYERS, "num_heads": 2}
    return rm.create_model("encoder", mixer=mixer, **sizes)


def peaks(look: Any) -> list[int]:
    """Measure the peak over three batches and over nine batches."""
    batches = [torch.randn(B, N, 4) for _ in range(9)]
    look(batches[:1])  # allocate one-time buffers
    return [peak_memory(lambda n=n: look(batches[:n]), CPU) for n in (3, 9)]


@pytest.mark.slow
def test_trace_keeps_at_most_two_batches() -> None:
    model = encoder("csp")

    def look(batches: list[torch.Tensor]) -> None:
        for calls in trace(model, batches):
            assert len(calls) == LAYERS

    three, nine = peaks(look)
    assert ONE_BATCH < three < 4 * ONE_BATCH
    assert nine <= three + 1024

    kept = peaks(lambda batches: list(trace(model, batches)))
    assert kept[1] > kept[0] + 5 * ONE_BATCH, "the measurement would show it"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_an_analysis_does_not_grow_with_the_batches(kind: str) -> None:
    model = encoder(KINDS[kind])
    three, nine = peaks(lambda batches: analyze(kind, model, batches))
    assert nine < three + ONE_BATCH
