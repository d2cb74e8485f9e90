"""Measure candidates at shapes: correctness checks, then time and memory, within limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument, check_choice, is_out_of_memory
from rifflemix.lab.bench.gate import Check, OutOfTimeError, memory_limit, time_limit
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
from rifflemix.lab.runs.environment import check_device
from rifflemix.lab.runs.measure import Call, Probe, median_seconds, probe

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """Settings that all benchmarks share.

    Attributes:
        dtype: float32, bfloat16 or float64.
        device: "cpu", "cuda", "cuda:1" ...
        repeats: number of timings of each call.
        max_seconds: time limit for one pass of one row: a trial call and at least one timed call.
            Slower candidates are left out.
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
        """The `torch.dtype` of the setting."""
        return DTYPES[self.dtype]

    @property
    def torch_device(self) -> torch.device:
        """The `torch.device` of the setting."""
        return torch.device(self.device)


@dataclass(frozen=True)
class Built:
    """A candidate that is ready to run.

    Attributes:
        passes: pass name -> call.
        describe: computes the `extra` numbers of the row after timing.
    """

    passes: Mapping[str, Call]
    describe: Callable[[Row], dict[str, float]] = lambda row: {}


@dataclass(frozen=True)
class Candidate:
    """A candidate that can be measured at any shape.

    Attributes:
        kind, name, backend: as in `Row`.
        build: builds the candidate for a shape; raises InputError if that is impossible.
        gate: runs the correctness checks; returns an empty list for torch's own operators.
    """

    kind: str
    name: str
    backend: str | None
    build: Callable[[Shape], Built]
    gate: Callable[[Shape], list[Check]] = lambda shape: []

    @property
    def label(self) -> str:
        """Name and backend for progress messages."""
        return self.name if self.backend is None else f"{self.name} ({self.backend})"


@dataclass(frozen=True)
class Group:
    """Candidates at one shape. Their timings are interleaved, with ratios to `references`."""

    shape: Shape
    candidates: Sequence[Candidate]
    references: tuple[Key, ...]


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the caller.

    Attributes:
        progress: called with the number of finished points, all points, and the current step.
        should_stop: called between measurements; True stops the benchmark and returns the partial
            result.
        save: called with the partial result after each group.
    """

    progress: Callable[[int, int, str], None] = lambda done, total, text: None
    should_stop: Callable[[], bool] = lambda: False
    save: Callable[[dict[str, Any]], object] = lambda result: None


@dataclass
class _Point:
    """A row in progress: the built candidate and the cost of a trial call for each pass."""

    row: Row
    built: Built | None = None
    probes: dict[str, Probe] = field(default_factory=dict)


def forward_and_backward(
    run: Callable[[], Tensor], leaves: Sequence[Tensor], module: nn.Module | None = None
) -> dict[str, Call]:
    """Build the two passes of operators and layers.

    Args:
        run: the forward call.
        leaves: tensors that receive gradients.
        module: module to switch to evaluation mode for "forward" and to training mode for
            "forward_backward".
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
    """Set the training mode of a module, if it differs."""
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
        name: name of the benchmark on the command line.
        groups: at least one group.
        settings: settings that all benchmarks share.
        details: other settings to store in the result.
        hooks: callbacks for progress, stopping and saving.
        summarise: computes further entries of the result from the rows.

    Returns:
        Result in the format of benchmarks/README.md; "status" is "partial" after a stop.
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
    """Measure group by group and remember at which length a candidate was too slow."""

    def __init__(self, settings: Settings, hooks: Hooks, total: int) -> None:
        self.settings = settings
        self.hooks = hooks
        self.total = total
        self._done = 0
        self._device = settings.torch_device
        self._too_long: dict[tuple[object, ...], int] = {}  # least tokens that took too long

    def measure(self, group: Group) -> list[Row]:
        """Return the rows of a group, in the order of its candidates."""
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
        """Check and probe a candidate.

        `built` is None if the candidate must not run.
        """
        row = Row(candidate.kind, candidate.name, candidate.backend, shape)
        if self.hooks.should_stop():
            row.status, row.note = STOPPED, "stopped before it was measured"
            return _Point(row)
        try:
            # The limit is for CPU memory. CUDA raises its own out-of-memory error.
            with memory_limit() if self._device.type == "cpu" else nullcontext():
                return self._gate_and_probe(candidate, row)
        except InputError as error:
            row.status, row.note = LEFT_OUT, str(error)
        except Exception as error:  # one crash must not stop the other candidates
            if is_out_of_memory(error):
                row.status, row.note = LEFT_OUT, "out of memory"
            else:
                row.status, row.note = FAILED, f"{type(error).__name__}: {error}"
        return _Point(row)

    def _gate_and_probe(self, candidate: Candidate, row: Row) -> _Point:
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
        """Measure one trial call.

        The timed call repeats it, so each gets half of the limit.
        """
        if self._device.type == "cuda":
            call()  # compiles kernels before time and memory are measured
        limit = self.settings.max_seconds / 2

        def limited() -> object:  # excludes the slow start of the profiler
            with time_limit(limit):
                return call()

        found = probe(limited, self._device)
        if found.seconds > limit:
            raise OutOfTimeError
        return found

    def _time(self, points: Sequence[_Point]) -> None:
        """Time pass by pass, with interleaved timings of all points."""
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
        """Mark an incomplete row as stopped, or add its `extra` numbers."""
        missing = len(point.probes) - len(point.row.passes)
        short = any(len(t.seconds) < self.settings.repeats for t in point.row.passes.values())
        if missing or (short and self.hooks.should_stop()):
            point.row.status, point.row.note = STOPPED, "stopped before all its timings"
        elif point.built is not None:
            point.row.extra = point.built.describe(point.row)


def _key(candidate: Candidate, shape: Shape) -> tuple[object, ...]:
    """Return a key for candidates that differ only in tokens."""
    size = (shape.batch, shape.channels, shape.heads)
    return (candidate.kind, candidate.name, candidate.backend, *size)
