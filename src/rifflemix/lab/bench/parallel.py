"""`rifflemix bench parallel`: layers with a sequence split over the processes of torchrun."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed.nn.functional  # a later import would keep the group alive
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.bench.gate import (
    OPERATOR_TOLERANCE,
    Check,
    OutOfTimeError,
    check,
    output_and_gradients,
    output_gradient,
    time_limit,
)
from rifflemix.lab.bench.rows import (
    ALONE,
    FAILED,
    FORWARD_BACKWARD,
    LAYER,
    LEFT_OUT,
    STOPPED,
    Row,
    Shape,
    assemble,
    timing,
)
from rifflemix.lab.bench.runner import Hooks, Settings, forward_and_backward
from rifflemix.lab.bench.traffic import Sizes, Traffic, expected_bytes
from rifflemix.lab.runs.measure import Call, Probe, probe, seconds_of
from rifflemix.lab.runs.options import count_processes, is_one_of_many
from rifflemix.mixers import TokenMixer, create_mixer, mixer_card
from rifflemix.parallel import SHARDED_MIXERS, shard_sequence, shard_tokens

DEFAULT_TOKENS = (1024, 4096, 16_384)
_GATE_TOKENS = 256


def run(
    tokens: Sequence[int] = DEFAULT_TOKENS,
    *,
    batch: int = 1,
    dim: int = 512,
    heads: int = 8,
    mixers: Sequence[str] | None = None,
    causal: bool = False,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
    mesh: DeviceMesh | None = None,
) -> dict[str, Any]:
    """Measure layers over a range of N, split over all processes.

    Each process has an equal share of the tokens. Every process must call this function with the
    same arguments. The first process also measures the whole sequence for comparison.

    Args:
        tokens: values of N, each once; each must be a multiple of the number of processes.
        batch: batch size.
        dim: channels C.
        heads: number of heads, for layers with heads.
        mixers: registry names, by default all mixers that support sharding.
        causal: build causal layers; by default only mixers with a causal form are included.
        settings: data type, device, number of timings and limits. A layer that takes longer than
            half of `max_seconds` is not timed. It cannot be interrupted, because a process that
            stops alone would block the others.
        hooks: callbacks for progress, stopping and saving.
        mesh: device mesh with one dimension; by default all processes that torchrun started.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "layer" and the passes
        "forward_backward" and "alone" (one process). For "forward_backward", time and memory are
        the largest of all processes. "extra" contains `processes` and the largest traffic of any
        process: `sent_bytes` of a forward pass, `expected_bytes` by formula, `backward_sent_bytes`,
        and `sent_bytes_per_token` for each of its tokens.

    Raises:
        InputError: there is only one process, a mixer is unknown or does not support the request,
            or the number of processes does not divide N.
    """
    settings, hooks = settings or Settings(), hooks or Hooks()
    names, shapes = _mixers(mixers, causal), _shapes(tokens, batch, dim, heads)
    starts = not torch.distributed.is_initialized()
    if mesh is None:
        _check_launched(settings)
        size = count_processes()
        _check_divides(shapes, size)
        mesh = init_device_mesh(settings.torch_device.type, (size,), mesh_dim_names=("sequence",))
    try:
        _check_divides(shapes, mesh.size())
        details = {
            "tokens": [shape.tokens for shape in shapes], "batch": batch, "dim": dim,
            "heads": heads, "mixers": names, "causal": causal, "processes": mesh.size(),
        }  # fmt: skip
        bench = _Bench(settings, hooks, mesh, causal, len(names) * len(shapes))
        return bench.measure(names, shapes, details)
    finally:
        if starts:
            torch.distributed.destroy_process_group()


def _mixers(names: Sequence[str] | None, causal: bool) -> list[str]:
    """Return the requested mixers, or all mixers that support the request."""
    if names is None:
        return [name for name in SHARDED_MIXERS if mixer_card(name).causal or not causal]
    cards = [mixer_card(name) for name in names]
    for card in cards:
        if card.name not in SHARDED_MIXERS:
            expected = f"mixers with a sharded form ({', '.join(SHARDED_MIXERS)})"
            raise bad_argument("mixers", expected, card.name)
        if causal and not card.causal:
            raise bad_argument("mixers", "mixers that can be causal", card.name)
    return [card.name for card in cards]


def _shapes(tokens: Sequence[int], batch: int, dim: int, heads: int) -> list[Shape]:
    if not tokens or len(set(tokens)) != len(tokens):
        raise bad_argument("tokens", "at least one number, each only once", list(tokens))
    return [Shape(batch, n, dim, heads) for n in sorted(tokens)]


def _check_launched(settings: Settings) -> None:
    if not is_one_of_many():
        raise InputError(
            "bench parallel splits sequences over several processes, but this is one alone; type "
            "torchrun --nproc-per-node 4 -m rifflemix bench parallel"
        )
    if settings.torch_device.type == "cuda":
        if ":" in settings.device:
            expected = "no index when launched as several processes"
            raise bad_argument("device", expected, settings.device)
        here = int(os.environ.get("LOCAL_RANK", "0"))
        if here >= torch.cuda.device_count():
            raise bad_argument("--nproc-per-node", f"at most {torch.cuda.device_count()}", "more")
        torch.cuda.set_device(here)


def _check_divides(shapes: Sequence[Shape], processes: int) -> None:
    for shape in shapes:
        if shape.tokens % processes:
            raise bad_argument(
                "tokens", f"multiples of the {processes} processes of torchrun", shape.tokens
            )


@dataclass
class _Point:
    """A row in progress: its calls, their timings and the cost of a trial call."""

    row: Row
    calls: dict[str, Call]
    seconds: dict[str, list[float]]
    probes: dict[str, Probe]

    def is_within(self, name: str, max_seconds: float) -> bool:
        """Check whether another timing fits into the limit.

        The first timing always does.
        """
        taken = self.seconds[name]
        spent = self.probes[name].seconds + sum(taken)
        return not taken or spent + taken[-1] <= max_seconds


class _Bench:
    """Measurement in one process. All processes agree on each decision."""

    def __init__(
        self, settings: Settings, hooks: Hooks, mesh: DeviceMesh, causal: bool, total: int
    ) -> None:
        self.settings = settings
        self.hooks = hooks
        self.mesh = mesh
        self.causal = causal
        self.total = total
        self.is_first = mesh.get_local_rank() == 0
        self._done = 0
        self._too_long: dict[str, str] = {}

    def measure(
        self, names: Sequence[str], shapes: Sequence[Shape], details: dict[str, Any]
    ) -> dict[str, Any]:
        """Measure all points and save the result after every shape."""
        start, rows = time.monotonic(), list[Row]()
        result: dict[str, Any] = {}
        for shape in shapes:
            points = []
            for name in names:
                self.hooks.progress(self._done, self.total, f"{name} at {shape}")
                points.append(self._prepare(name, shape))
                self._done += 1
            self.hooks.progress(self._done, self.total, f"timing at {shape}")
            self._time([point for point in points if point.calls])
            rows += [point.row for point in points]
            result = assemble(
                "parallel",
                {**asdict(self.settings), **details},
                rows,
                complete=len(rows) == self.total and all(row.status != STOPPED for row in rows),
                wall_seconds=time.monotonic() - start,
            )
            self.hooks.save(result)
            if self._stops():
                break
        return result

    # One row.

    def _prepare(self, name: str, shape: Shape) -> _Point:
        """Check a layer, count its traffic and probe its passes."""
        point = _Point(Row(LAYER, name, None, shape), {}, {}, {})
        row = point.row
        if self._stops():
            row.status, row.note = STOPPED, "stopped before it was measured"
            return point
        if name in self._too_long:
            row.status, row.note = LEFT_OUT, self._too_long[name]
            return point
        row.gate = [self._gate(name, shape)]
        if not row.gate[0].passed:
            row.status, row.note = FAILED, row.gate[0].failure()
            return point
        whole, x = self._built(name, shape, self.settings.torch_dtype)
        calls = {FORWARD_BACKWARD: self._sharded_step(whole, x, row)}
        point.probes[FORWARD_BACKWARD] = self._probe(calls[FORWARD_BACKWARD])
        limit = self.settings.max_seconds / 2
        if point.probes[FORWARD_BACKWARD].seconds > limit:
            row.status = LEFT_OUT
            row.note = f"it takes over {limit:g} s, half of the limit of {2 * limit:g} s"
            self._too_long[name] = f"{shape.tokens:,} tokens took too long already"
            return point
        calls[ALONE] = _step(whole, x.requires_grad_())
        alone = self._probe_alone(calls[ALONE])
        if alone is not None:
            point.probes[ALONE] = alone
        point.calls = calls
        point.seconds = {pass_name: [] for pass_name in point.probes}
        return point

    def _built(self, name: str, shape: Shape, dtype: torch.dtype) -> tuple[TokenMixer, Tensor]:
        """Build a layer and whole sequences that are equal on all processes."""
        torch.manual_seed(0)
        mixer = create_mixer(
            name,
            shape.channels,
            num_heads=shape.heads,
            max_length=shape.tokens,
            causal=self.causal,
            layer_index=1,  # with index 0, each strided group is on one process
            num_layers=2,
        )
        x = torch.randn(shape.batch, shape.tokens, shape.channels)
        device = self.settings.torch_device
        return mixer.to(device, dtype).eval(), x.to(device, dtype)

    def _gate(self, name: str, shape: Shape) -> Check:
        """Compare a short sequence with one process, in float64.

        The check covers outputs and all gradients.
        """
        size = self.mesh.size()
        length = max(size, min(shape.tokens, _GATE_TOKENS) // size * size)
        small = replace(shape, batch=1, tokens=length)
        mixer, x = self._built(name, small, torch.float64)
        x.requires_grad_()
        y, dx, *expected = output_and_gradients(lambda: mixer(x), (x, *mixer.parameters()))
        weights = shard_tokens(output_gradient(y), self.mesh)
        sharded = shard_sequence(copy.deepcopy(mixer), self.mesh)
        own = shard_tokens(x.detach(), self.mesh).clone().requires_grad_()
        ours = sharded(own)
        # Each process's loss covers only its own tokens, and parameter gradients are averaged.
        grads = torch.autograd.grad(
            ours, (own, *sharded.parameters()), weights, materialize_grads=True
        )
        found = check(
            "one process, float64",
            small,
            [ours, grads[0], *(size * gradient for gradient in grads[1:])],
            [shard_tokens(y, self.mesh), shard_tokens(dx, self.mesh), *expected],
            OPERATOR_TOLERANCE[torch.float64],
        )
        (is_wrong,) = self._largest(float(not found.passed))
        if is_wrong and found.passed:
            return replace(found, error=None, passed=False)
        return found

    def _sharded_step(self, whole: TokenMixer, x: Tensor, row: Row) -> Call:
        """Build the sharded forward and backward pass and store its traffic."""
        size = self.mesh.size()
        sharded = shard_sequence(copy.deepcopy(whole), self.mesh)
        own = shard_tokens(x, self.mesh).clone().requires_grad_()
        with Traffic(self.mesh.get_local_rank(), size) as forward:
            y = sharded(own)
        with Traffic(self.mesh.get_local_rank(), size) as backward:  # without parameters
            torch.autograd.grad(y, own, torch.ones_like(y))
        number = x.element_size()
        sizes = Sizes(
            size, own.shape[1], x.shape[2], row.shape.heads, len(x), number, max(4, number)
        )
        sent, returned = self._largest(forward.sent, backward.sent)
        row.extra = {
            "processes": size,
            "sent_bytes": sent,
            "expected_bytes": expected_bytes(whole, sizes),
            "backward_sent_bytes": returned,
            "sent_bytes_per_token": sent / (len(x) * own.shape[1]),
        }
        return _step(sharded, own)

    def _probe(self, call: Call) -> Probe:
        """Measure a collective call: the longest time and the most memory of any process."""
        found = probe(call, self.settings.torch_device)
        seconds, memory = self._largest(found.seconds, float(found.peak_memory_bytes))
        return Probe(seconds, int(memory))

    def _probe_alone(self, call: Call) -> Probe | None:
        """Measure a call on the first process alone, or return None if it exceeds a limit."""
        found = Probe(0.0, 0)
        if self.is_first:
            limit = self.settings.max_seconds / 2
            try:
                with time_limit(limit):
                    found = probe(call, self.settings.torch_device)
            except (OutOfTimeError, torch.OutOfMemoryError, MemoryError):
                found = Probe(-1.0, 0)
        seconds, less, memory = self._largest(
            found.seconds, -found.seconds, float(found.peak_memory_bytes)
        )
        return None if less > 0 else Probe(seconds, int(memory))

    # Timings.

    def _time(self, points: Sequence[_Point]) -> None:
        """Time all points in turn; collective calls take the time of the slowest process."""
        limit = self.settings.max_seconds
        turns = [(point, name) for point in points for name in point.probes]
        for point, name in turns:
            self._seconds(point, name)  # warms up
        for _ in range(self.settings.repeats):
            for point, name in turns:
                if self._stops():
                    self._finish(points)
                    return
                if point.is_within(name, limit):
                    point.seconds[name].append(self._seconds(point, name))
        self._finish(points)

    def _seconds(self, point: _Point, name: str) -> float:
        self._largest(0.0)  # synchronize the start
        taken = 0.0
        if name != ALONE or self.is_first:
            taken = seconds_of(point.calls[name], self.settings.torch_device)
        (seconds,) = self._largest(taken)
        return seconds

    def _finish(self, points: Sequence[_Point]) -> None:
        for point in points:
            row = point.row
            for name, seconds in point.seconds.items():
                if seconds:
                    memory = point.probes[name].peak_memory_bytes
                    row.passes[name] = timing(seconds, memory)
            if len(row.passes) < len(point.seconds):
                row.status, row.note = STOPPED, "stopped before all its timings"
            elif ALONE in row.passes:
                together = row.passes[FORWARD_BACKWARD]
                together.ratios[ALONE] = together.p50 / row.passes[ALONE].p50

    # Agreement.

    def _stops(self) -> bool:
        """Check whether any process requests a stop."""
        return self._largest(float(self.hooks.should_stop()))[0] > 0

    def _largest(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over all processes (a collective call)."""
        most = torch.tensor(numbers, dtype=torch.float64, device=self.settings.torch_device)
        torch.distributed.all_reduce(
            most, torch.distributed.ReduceOp.MAX, group=self.mesh.get_group()
        )
        return most.tolist()


def _step(module: nn.Module, x: Tensor) -> Call:
    leaves = (x, *module.parameters())
    return forward_and_backward(lambda: module(x), leaves, module)[FORWARD_BACKWARD]
