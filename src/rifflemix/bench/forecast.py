"""The cost of a point, predicted from shorter inputs, so that limits hold without a try."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from pathlib import Path

import torch

from rifflemix.runs.measure import Probe

# Tokens grow by this factor from one look ahead to the next; the first is at `_SHORTEST`.
_STEP, _SHORTEST = 4, 256
_LOWEST_EXPONENT, _HIGHEST_EXPONENT = 1.0, 2.5
_QUADRATIC = 2.0
_SHARE_OF_MEMORY = 0.8

Key = Hashable


class Forecast:
    """Remembers what calls took at each number of tokens, and extrapolates by a power law.

    Args:
        max_seconds: for one pass of one point: a call to see what it takes, and one to time.
        free_bytes: memory that a call may take; None where it is not known.
    """

    def __init__(self, max_seconds: float, free_bytes: int | None) -> None:
        self._max_seconds = max_seconds
        self._free_bytes = free_bytes
        self._seen: dict[Key, dict[str, dict[int, Probe]]] = defaultdict(lambda: defaultdict(dict))

    def record(self, key: Key, tokens: int, probes: Mapping[str, Probe]) -> None:
        """The cost of the passes of `key` at this many tokens."""
        for name, probe in probes.items():
            self._seen[key][name][tokens] = probe

    def ladder(self, key: Key, tokens: int) -> list[int]:
        """Shorter inputs to look at before `tokens`, rising, those past what was seen already."""
        longest = max((n for seen in self._seen[key].values() for n in seen), default=0)
        rungs = []
        rung = tokens // _STEP
        while rung >= _SHORTEST and rung > longest:
            rungs.append(rung)
            rung //= _STEP
        return rungs[::-1]

    def excess(self, key: Key, tokens: int) -> str:
        """Why a point would take too much, or "" if it would not."""
        for name, seen in self._seen[key].items():
            label = name.replace("_", " ")
            seconds = 2 * extrapolate({n: probe.seconds for n, probe in seen.items()}, tokens)
            if seconds > self._max_seconds:
                return (
                    f"{label} would take about {seconds:.2g} s, the limit is "
                    f"{self._max_seconds:g} s"
                )
            memory = extrapolate({n: probe.peak_memory_bytes for n, probe in seen.items()}, tokens)
            if self._free_bytes is not None and memory > _SHARE_OF_MEMORY * self._free_bytes:
                return (
                    f"{label} would take about {memory / 2**30:.2g} GiB of memory, "
                    f"{self._free_bytes / 2**30:.2g} GiB are free"
                )
        return ""


def extrapolate(seen: Mapping[int, float], tokens: int) -> float:
    """Cost at `tokens` from costs at other numbers of tokens.

    Two points give the exponent, kept within what attention-like layers can have; one point is
    taken to grow with the square; no point gives 0.
    """
    if tokens in seen:
        return seen[tokens]
    shorter = sorted(n for n in seen if n < tokens)
    if not shorter:
        return 0.0
    last, exponent = shorter[-1], _QUADRATIC
    if len(shorter) > 1 and min(seen[shorter[-2]], seen[last]) > 0:
        rise = math.log(seen[last] / seen[shorter[-2]]) / math.log(last / shorter[-2])
        exponent = min(max(rise, _LOWEST_EXPONENT), _HIGHEST_EXPONENT)
    return float(seen[last] * (tokens / last) ** exponent)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    kibibytes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    found = next(kibibytes, None)
    return None if found is None else 1024 * int(found)
