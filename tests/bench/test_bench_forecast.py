from __future__ import annotations

import pytest
import torch

from rifflemix.bench.forecast import Forecast, extrapolate, free_memory
from rifflemix.runs.measure import Probe

GIB = 2**30


@pytest.mark.parametrize(
    ("seen", "tokens", "expected"),
    [
        ({}, 1024, 0.0),
        ({256: 1.0}, 1024, 16.0),  # one point: quadratic
        ({256: 1.0, 1024: 4.0}, 4096, 16.0),  # linear
        ({256: 1.0, 1024: 16.0}, 4096, 256.0),  # quadratic
        ({256: 1.0, 1024: 0.5}, 4096, 2.0),  # never falling: at least linear
        ({256: 0.0, 1024: 1.0}, 4096, 16.0),  # nothing to take a logarithm of
        ({1024: 7.0}, 1024, 7.0),
        ({4096: 7.0}, 1024, 0.0),  # longer inputs say nothing
    ],
    ids=["nothing", "one", "linear", "quadratic", "falling", "zero", "itself", "longer"],
)
def test_extrapolation(seen: dict[int, float], tokens: int, expected: float) -> None:
    assert extrapolate(seen, tokens) == pytest.approx(expected)


def test_ladder_looks_at_shorter_inputs_that_were_not_seen() -> None:
    forecast = Forecast(60.0, None)
    assert forecast.ladder("a", 65536) == [256, 1024, 4096, 16384]
    assert forecast.ladder("a", 1000) == []
    forecast.record("a", 1024, {"forward": Probe(0.1, 10)})
    assert forecast.ladder("a", 65536) == [4096, 16384]
    assert forecast.ladder("a", 2048) == []
    assert forecast.ladder("b", 65536)[0] == 256


def test_excess_of_time_names_the_pass_and_the_limit() -> None:
    forecast = Forecast(10.0, None)
    forecast.record("a", 1024, {"forward_backward": Probe(0.4, 0)})
    assert forecast.excess("a", 2048) == ""
    # A call to see what it takes and one to time: 2 x 0.4 s x 16.
    reason = "forward backward would take about 13 s, the limit is 10 s"
    assert forecast.excess("a", 4096) == reason
    assert forecast.excess("b", 4096) == ""


def test_excess_of_memory() -> None:
    forecast = Forecast(1e9, 10 * GIB)
    forecast.record("a", 1024, {"forward": Probe(1e-3, GIB)})
    assert forecast.excess("a", 2048) == ""
    assert "16 GiB of memory, 10 GiB are free" in forecast.excess("a", 4096)


def test_free_memory_is_plausible() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50
