from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from rifflemix.lab.runs.measure import Probe, kernel_share, median_seconds, probe

CPU = torch.device("cpu")


def counted(calls: Counter[str], name: str, seconds: float = 0.0) -> Callable[[], None]:
    def call() -> None:
        calls[name] += 1
        time.sleep(seconds)

    return call


def test_probe_measures_time_and_memory_of_one_call() -> None:
    calls: Counter[str] = Counter()

    def call() -> torch.Tensor:
        calls["call"] += 1
        time.sleep(0.02)
        return torch.zeros(2**18)

    found = probe(call, CPU)
    assert calls["call"] == 1
    assert 0.02 <= found.seconds < 0.2
    assert found.peak_memory_bytes == 4 * 2**18


def test_number_of_repeats_follows_the_time_limit() -> None:
    calls: Counter[str] = Counter()
    pair = {"quick": counted(calls, "quick", 0.001), "slow": counted(calls, "slow", 0.05)}
    seconds = median_seconds(pair, CPU, repeats=6, min_seconds=0.0, max_seconds=0.12)
    assert len(seconds["quick"]) == 6
    assert len(seconds["slow"]) == 2


def test_a_call_known_to_be_long_is_not_warmed_up() -> None:
    calls: Counter[str] = Counter()
    seconds = median_seconds(
        {"long": counted(calls, "long")}, CPU, repeats=3, max_seconds=60.0,
        probes={"long": Probe(59.0, 0)},
    )  # fmt: skip
    assert calls["long"] == 3 == len(seconds["long"])


def test_every_call_is_timed_at_least_once() -> None:
    seconds = median_seconds(
        {"a": lambda: time.sleep(0.01)}, CPU, repeats=5, max_seconds=1e-6, min_seconds=0.0
    )
    assert len(seconds["a"]) == 1


def test_stopping_keeps_the_times_so_far() -> None:
    calls: Counter[str] = Counter()
    pair = {"a": counted(calls, "a", 0.001), "b": counted(calls, "b", 0.001)}
    polls = iter(range(100))
    seconds = median_seconds(
        pair, CPU, repeats=5, min_seconds=0.0, should_stop=lambda: next(polls) >= 5
    )
    assert (len(seconds["a"]), len(seconds["b"])) == (3, 2)


def test_kernel_share_separates_computing_from_waiting() -> None:
    x = torch.randn(600, 600)
    computing = kernel_share(lambda: [x @ x for _ in range(10)], CPU)
    waiting = kernel_share(lambda: (x + 1, time.sleep(0.1)), CPU)
    assert computing > 0.8
    assert waiting < 0.2
    assert 0 <= waiting < computing <= 1


@pytest.mark.parametrize("repeats", [1, 4])
def test_calls_are_interleaved(repeats: int) -> None:
    order: list[str] = []
    pair = {name: lambda name=name: order.append(name) for name in "ab"}
    known = {name: Probe(2.0, 0) for name in "ab"}  # long: one call per turn
    median_seconds(pair, CPU, repeats=repeats, probes=known)
    assert order == ["a", "b"] * repeats
