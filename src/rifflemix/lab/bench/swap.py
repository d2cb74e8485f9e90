"""Measure time and memory of a user's model with each mixer, forward and training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integers, shown
from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.files import user_path, write_bytes
from rifflemix.lab.bench.scaling import Crossover, find_crossover
from rifflemix.lab.bench.tables import crossover_text
from rifflemix.lab.report.units import format_bytes, format_count
from rifflemix.lab.runs.measure import median, median_seconds, peak_memory
from rifflemix.models.base import call_model
from rifflemix.surgery import replace_attention
from rifflemix.text import bullet_lines, table_lines

ORIGINAL = "original"
PHASES = ("forward", "training")
_MEASURES = ("seconds", "peak_memory_bytes")


@dataclass(frozen=True)
class SwapRow:
    """One measurement.

    Attributes:
        mixer: label of the mixer; "original" is the unchanged model.
        length: number of tokens N.
        phase: "forward" (evaluation mode, without gradients) or "training" (forward and backward).
        seconds: median time of a call.
        peak_memory_bytes: peak memory of torch's allocator minus the memory in use before the
            call.
    """

    mixer: str
    length: int
    phase: str
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class SwapMeasurement:
    """Result of `measure_swap`.

    Attributes:
        rows: all measurements.
        refused: label -> reason if the mixer does not fit into this model.
        device: device of the measurement.
        threads: number of torch threads on a CPU.
    """

    rows: list[SwapRow]
    refused: dict[str, str]
    device: str
    threads: int

    def costs(self, mixer: str, phase: str, measure: str = "seconds") -> dict[int, float]:
        """Return N -> cost of one mixer; `measure` is "seconds" or "peak_memory_bytes"."""
        return {
            row.length: float(getattr(row, measure))
            for row in self.rows
            if row.mixer == mixer and row.phase == phase
        }

    def crossover(self, mixer: str, phase: str, measure: str = "seconds") -> Crossover | None:
        """Find the N from which a mixer stays cheaper than the original."""
        return find_crossover(
            self.costs(mixer, phase, measure), self.costs(ORIGINAL, phase, measure)
        )

    def table(self) -> str:
        """Format as Markdown: one table per phase, then notes and refused mixers."""
        parts = [self._phase_table(phase) for phase in self.phases]
        notes = [*self._wins(), *(f"{name}: {reason}" for name, reason in self.refused.items())]
        where = f"{self.device}, {self.threads} threads" if self.device == "cpu" else self.device
        notes.append(f"Medians on {where}; memory is what torch's allocator held at most.")
        return "\n\n".join([*parts, "\n".join(bullet_lines(notes))])

    def __str__(self) -> str:
        return self.table()

    def plot(self, path: str | Path | None = None) -> bytes:
        """Plot seconds against N as a PNG.

        There is one panel per phase, with logarithmic axes.

        Args:
            path: file to write the plot to, or None.

        Raises:
            InputError: matplotlib is not installed, or the file cannot be written.
        """
        require_packages("a plot", "compare", "matplotlib")
        from rifflemix.lab.bench.plots import swap_plot

        picture = swap_plot(
            {phase: {m: self.costs(m, phase) for m in self.mixers} for phase in self.phases}
        )
        if path is not None:
            write_bytes(user_path("path", path), picture)
        return picture

    @property
    def mixers(self) -> list[str]:
        """Labels of the measured models; the original model is first."""
        return list(dict.fromkeys(row.mixer for row in self.rows))

    @property
    def phases(self) -> list[str]:
        """Measured phases, "forward" first."""
        return list(dict.fromkeys(row.phase for row in self.rows))

    def _phase_table(self, phase: str) -> str:
        lengths = sorted({row.length for row in self.rows})
        headers = [
            phase,
            *(f"N = {format_count(n)}" for n in lengths),
            "faster from",
            "less memory from",
        ]
        table = []
        for mixer in self.mixers:
            seconds, memory = (self.costs(mixer, phase, measure) for measure in _MEASURES)
            cells = [f"{1e3 * seconds[n]:.3g} ms, {format_bytes(memory[n])}" for n in lengths]
            crossings = ["", ""]
            if mixer != ORIGINAL:
                found = (self.crossover(mixer, phase, measure) for measure in _MEASURES)
                crossings = [crossover_text(None if c is None else asdict(c)) for c in found]
            table.append([mixer, *cells, *crossings])
        return "\n".join(table_lines(headers, table, range(1, len(headers))))

    def _wins(self) -> list[str]:
        """List the lengths at which the original model is faster."""
        sentences = []
        for phase in self.phases:
            original = self.costs(ORIGINAL, phase)
            for mixer in self.mixers[1:]:
                costs = self.costs(mixer, phase)
                slower = [format_count(n) for n in sorted(costs) if costs[n] >= original[n]]
                if slower:
                    sentences.append(
                        f"The original wins over {mixer} ({phase}) at N = {', '.join(slower)}."
                    )
        return sentences


def measure_swap(
    model: nn.Module,
    mixers: Sequence[str] | Mapping[str, str | tuple[str, Mapping[str, Any]]],
    make_inputs: Callable[[int], Any],
    lengths: Sequence[int],
    *,
    repeats: int = 5,
    max_seconds: float = 20.0,
) -> SwapMeasurement:
    """Measure a model as it is and with each mixer.

    The measurement covers several input lengths. Each mixer is measured in a copy of the model, so
    memory for all copies is needed. The model itself does not change. Timings of the copies are
    interleaved.

    Args:
        model: model with its original attention layers.
        mixers: names from `list_mixers()`, or label -> name or (name, options).
        make_inputs: maps a number of tokens N to inputs of the model, with a batch and on the
            device of the model: a tensor, a tuple of positional arguments or a dict of keyword
            arguments.
        lengths: numbers of tokens N to measure.
        repeats: number of timings of each call.
        max_seconds: time limit of the timings of one mixer, length and phase; at least one timing
            is always made.

    Returns:
        Times, memory and crossovers; `print` shows a table.

    Raises:
        InputError: no mixer fits into the model, a length is below 1, or the output contains no
            floating-point tensor.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True)
        >>> measured = rm.measure_swap(
        ...     model, ["csp", "tssa"], lambda length: torch.randn(1, length, 32), lengths=[64, 128]
        ... )
        >>> measured.mixers, measured.phases
        (['original', 'csp', 'tssa'], ['forward', 'training'])
    """
    sizes = sorted(set(check_integers("lengths", lengths, 1)))
    if not sizes:
        raise bad_argument("lengths", "at least one number of tokens", "none")
    models, refused = _swapped(model, _labelled(mixers), max(sizes))
    rows = measure_models(models, make_inputs, sizes, repeats=repeats, max_seconds=max_seconds)
    device = device_of(model)
    return SwapMeasurement(rows, refused, device.type, torch.get_num_threads())


def measure_models(
    models: Mapping[str, nn.Module],
    make_inputs: Callable[[int], Any],
    lengths: Sequence[int],
    *,
    phases: Sequence[str] = PHASES,
    repeats: int = 5,
    max_seconds: float = 20.0,
) -> list[SwapRow]:
    """Measure several models on the same inputs; see `measure_swap` for the arguments."""
    device = device_of(next(iter(models.values())))
    rows = []
    for length in lengths:
        inputs = make_inputs(length)
        for phase in phases:
            calls = {name: _call(part, inputs, phase) for name, part in models.items()}
            memory = {name: peak_memory(call, device) for name, call in calls.items()}
            taken = median_seconds(calls, device, repeats=repeats, max_seconds=max_seconds)
            rows += [
                SwapRow(name, length, phase, median(taken[name]), memory[name]) for name in calls
            ]
            for part in models.values():
                part.zero_grad(set_to_none=True)
    return rows


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter of a model, or the CPU."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _labelled(mixers: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    if isinstance(mixers, str):
        raise bad_argument("mixers", "a list of names", repr(mixers))
    named = dict(mixers) if isinstance(mixers, Mapping) else {name: name for name in mixers}
    if not named or ORIGINAL in named:
        raise bad_argument("mixers", f"some, none of them labelled {ORIGINAL!r}", repr(mixers))
    pairs = {
        label: (what, {}) if isinstance(what, str | type) else what for label, what in named.items()
    }
    for label, what in pairs.items():
        is_pair = isinstance(what, tuple | list) and len(what) == 2
        if not is_pair or not isinstance(what[1], Mapping):
            raise bad_argument("mixers", f"a name, or (name, options) for {label!r}", shown(what))
    return pairs


def _swapped(
    model: nn.Module, mixers: Mapping[str, tuple[str, Mapping[str, Any]]], longest: int
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return copies of the model by label, and reasons for refusals.

    The original model is first.
    """
    models, refused = {ORIGINAL: copy.deepcopy(model)}, {}
    for label, (name, options) in mixers.items():
        part = copy.deepcopy(model)
        try:
            replace_attention(part, name, mixer_options=options, max_length=longest)
        except InputError as error:
            refused[label] = str(error)
        else:
            models[label] = part
    if len(models) == 1:
        reason = next(iter(refused.values()))
        raise InputError(f"mixers: expected a mixer that fits this model, got none; {reason}")
    return models, refused


def _call(model: nn.Module, inputs: Any, phase: str) -> Callable[[], None]:
    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            call_model(model, inputs)

    def train() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        _first_tensor(call_model(model, inputs)).float().square().mean().backward()

    return evaluate if phase == "forward" else train


def _first_tensor(output: Any) -> Tensor:
    """Find the first floating-point tensor with a gradient in an output."""
    todo = [output]
    while todo:
        value = todo.pop(0)
        if isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad:
            return value
        if isinstance(value, Mapping):
            todo += value.values()
        elif is_dataclass(value) and not isinstance(value, type):
            todo += vars(value).values()
        elif isinstance(value, tuple | list):
            todo += value
    raise bad_argument("model", "an output with a floating-point tensor", type(output).__name__)
