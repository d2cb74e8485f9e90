"""Measures candidates at shapes: the gate first, then time and memory, within limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument, check_choice, is_out_of_memory
from rifflemix.lab.bench.gate import Check
from rifflemix.lab.bench.limits import OutOfTimeError, memory_limit, time_limit
from rifflemix.lab.bench.rows import (
    FAILED,
    FORWARD,
    FORWARD_BACKWARD,
    LEFT_OUT,
    STOPPED,
    Key,
    Row,
    Shape,
    add_ratios,
    assemble,
    timing,
)
from rifflemix.lab.runs.device import check_device
from rifflemix.lab.runs.measure import Call, Probe, median_seconds, probe

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """The settings that all benchmarks take.

    Attributes:
        dtype: float32, bfloat16 or float64.
        device: "cpu", "cuda", "cuda:1" ...
        repeats: timings of each call.
        max_seconds: for one pass of one row, a first call and a timed one; what takes longer is
            left out.
    """

    dtype: str = "float32"
    device: str = "cpu"
    repeats: int = 5
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES)
        check_device(self.device)
        if self.repeats < 1:
            raise bad_argument("repeats", "at least 1", self.repeats)
        if not self.max_seconds > 0:
            raise bad_argument("max_seconds", "a number above 0", self.max_seconds)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        return DTYPES[self.dtype]

    @property
    def torch_device(self) -> torch.device:
        """The device as torch has it."""
        return torch.device(self.device)


@dataclass(frozen=True)
class Built:
    """Something ready to run: its passes, and what else to say of it once they are timed."""

    passes: Mapping[str, Call]
    describe: Callable[[Row], dict[str, float]] = lambda row: {}


@dataclass(frozen=True)
class Candidate:
    """Something to measure at any shape.

    Attributes:
        kind, name, backend: as in `Row`.
        build: makes it; raises InputError where it cannot be made.
        gate: makes its checks; empty for what torch itself provides.
        obstacle: why it cannot run at a shape, or "".
    """

    kind: str
    name: str
    backend: str | None
    build: Callable[[Shape], Built]
    gate: Callable[[Shape], list[Check]] = lambda shape: []
    obstacle: Callable[[Shape], str] = lambda shape: ""

    @property
    def label(self) -> str:
        """For progress."""
        return self.name if self.backend is None else f"{self.name} ({self.backend})"


@dataclass(frozen=True)
class Group:
    """Candidates that are timed in turn at one shape; ratios are taken to `references`."""

    shape: Shape
    candidates: Sequence[Candidate]
    references: tuple[Key, ...]


@dataclass(frozen=True)
class Hooks:
    """The caller's callbacks: progress, and whether to stop.

    Attributes:
        progress: told points done, points in all, and what is being measured.
        should_stop: polled between calls; when True, what has been measured is returned.
        save: given the result so far after each group.
    """

    progress: Callable[[int, int, str], None] = lambda done, total, text: None
    should_stop: Callable[[], bool] = lambda: False
    save: Callable[[dict[str, Any]], object] = lambda result: None


@dataclass
class _Point:
    """A row on its way: what runs, and what a call of each pass takes."""

    row: Row
    built: Built | None = None
    probes: dict[str, Probe] = field(default_factory=dict)


def forward_and_backward(
    run: Callable[[], Tensor], leaves: Sequence[Tensor], module: nn.Module | None = None
) -> dict[str, Call]:
    """The two passes of operators and layers.

    Args:
        run: the call.
        leaves: tensors whose gradients the backward computes.
        module: what is switched to evaluation for the forward and to training for both.
    """

    def forward() -> Tensor:
        switch(module, training=False)
        with torch.no_grad():
            return run()

    def forward_backward() -> tuple[Tensor, ...]:
        switch(module, training=True)
        y = run()
        return torch.autograd.grad(y, leaves, torch.ones_like(y), materialize_grads=True)

    return {FORWARD: forward, FORWARD_BACKWARD: forward_backward}


def switch(module: nn.Module | None, *, training: bool) -> None:
    """Put a module into training or evaluation; each layer is told only where that is new."""
    if module is not None and module.training != training:
        module.train(training)


def run_benchmark(
    name: str,
    groups: Sequence[Group],
    settings: Settings,
    details: Mapping[str, Any],
    *,
    hooks: Hooks | None = None,
    summarise: Callable[[Sequence[Row]], dict[str, Any]] = lambda rows: {},
) -> dict[str, Any]:
    """Measure all groups.

    Args:
        name: as on the command line.
        groups: at least one.
        settings: shared by all benchmarks.
        details: the other settings, to be written down beside them.
        hooks: progress, stopping and saving.
        summarise: what the result gets beside its rows.

    Returns:
        See benchmarks/README.md; "status" is "partial" after a stop.
    """
    bench = _Bench(settings, hooks or Hooks(), sum(len(group.candidates) for group in groups))
    start = time.monotonic()
    rows: list[Row] = []
    result: dict[str, Any] = {}
    for group in groups:
        rows += bench.measure(group)
        result = assemble(
            name,
            {**asdict(settings), **details},
            rows,
            complete=len(rows) == bench.total and all(row.status != STOPPED for row in rows),
            wall_seconds=time.monotonic() - start,
        )
        result |= summarise(rows)
        bench.hooks.save(result)
        if bench.hooks.should_stop():
            break
    return result


class _Bench:
    """Measures group by group; remembers the length at which a candidate ran out of time."""

    def __init__(self, settings: Settings, hooks: Hooks, total: int) -> None:
        self.settings = settings
        self.hooks = hooks
        self.total = total
        self._done = 0
        self._device = settings.torch_device
        self._too_long: dict[tuple[object, ...], int] = {}  # tokens at which time ran out

    def measure(self, group: Group) -> list[Row]:
        """Rows of a group, in the order of its candidates."""
        points = []
        for candidate in group.candidates:
            self._tell(f"{candidate.label} at {group.shape}")
            points.append(self._prepare(candidate, group.shape))
            self._done += 1
        self._tell(f"timing at {group.shape}")
        self._time([point for point in points if point.built is not None])
        rows = [point.row for point in points]
        add_ratios(rows, group.references)
        return rows

    def _tell(self, text: str) -> None:
        self.hooks.progress(self._done, self.total, text)

    def _prepare(self, candidate: Candidate, shape: Shape) -> _Point:
        """Gate a candidate and see what its passes take; `built` is None if it must not run."""
        row = Row(candidate.kind, candidate.name, candidate.backend, shape)
        if self.hooks.should_stop():
            row.status, row.note = STOPPED, "stopped before it was measured"
            return _Point(row)
        try:
            # Free memory is that of a CPU; a GPU refuses what it does not have.
            with memory_limit() if self._device.type == "cpu" else nullcontext():
                return self._gate_and_probe(candidate, row)
        except InputError as error:
            row.status, row.note = LEFT_OUT, str(error)
        except Exception as error:  # what crashes has failed; the others are still worth knowing
            if is_out_of_memory(error):
                row.status, row.note = LEFT_OUT, "out of memory"
            else:
                row.status, row.note = FAILED, f"{type(error).__name__}: {error}"
        return _Point(row)

    def _gate_and_probe(self, candidate: Candidate, row: Row) -> _Point:
        obstacle = candidate.obstacle(row.shape)
        if obstacle:
            raise InputError(obstacle)
        torch.manual_seed(0)
        row.gate = candidate.gate(row.shape)
        failed = [check for check in row.gate if not check.passed]
        if failed:
            row.status = FAILED
            row.note = "; ".join(check.failure() for check in failed)
            return _Point(row)
        key = _key(candidate, row.shape)
        if row.shape.tokens > self._too_long.get(key, row.shape.tokens):
            raise InputError(f"{self._too_long[key]:,} tokens took too long already")
        torch.manual_seed(0)
        built = candidate.build(row.shape)
        probes = {}
        for name, call in built.passes.items():
            try:
                probes[name] = self._probe(call)
            except OutOfTimeError:
                self._too_long[key] = row.shape.tokens
                limit = self.settings.max_seconds
                took = f"{name.replace('_', ' ')} takes over {limit / 2:g} s"
                raise InputError(f"{took}, half of the limit of {limit:g} s") from None
        return _Point(row, built, probes)

    def _probe(self, call: Call) -> Probe:
        """The cost of a call. It is made again to be timed, so each has half of the limit."""
        if self._device.type == "cuda":
            call()  # compiles kernels, which would count as time and memory
        limit = self.settings.max_seconds / 2

        def limited() -> object:  # the call alone: the profiler's start may take seconds
            with time_limit(limit):
                return call()

        found = probe(limited, self._device)
        if found.seconds > limit:
            raise OutOfTimeError
        return found

    def _time(self, points: Sequence[_Point]) -> None:
        """Time one pass after the other, in each all points in turn."""
        names = list(dict.fromkeys(name for point in points for name in point.probes))
        for name in names:
            turn = {str(i): point for i, point in enumerate(points) if name in point.probes}
            seconds = median_seconds(
                {i: point.built.passes[name] for i, point in turn.items() if point.built},
                self._device,
                repeats=self.settings.repeats,
                max_seconds=self.settings.max_seconds,
                probes={i: point.probes[name] for i, point in turn.items()},
                should_stop=self.hooks.should_stop,
            )
            for i, point in turn.items():
                if seconds[i]:
                    memory = point.probes[name].peak_memory_bytes
                    point.row.passes[name] = timing(seconds[i], memory)
        for point in points:
            self._finish(point)

    def _finish(self, point: _Point) -> None:
        """Mark a row that was not timed to the end, or describe it."""
        missing = len(point.probes) - len(point.row.passes)
        short = any(len(t.seconds) < self.settings.repeats for t in point.row.passes.values())
        if missing or (short and self.hooks.should_stop()):
            point.row.status, point.row.note = STOPPED, "stopped before all its timings"
        elif point.built is not None:
            point.row.extra = point.built.describe(point.row)


def _key(candidate: Candidate, shape: Shape) -> tuple[object, ...]:
    """The key under which times at two numbers of tokens are comparable."""
    size = (shape.batch, shape.channels, shape.heads)
    return (candidate.kind, candidate.name, candidate.backend, *size)
