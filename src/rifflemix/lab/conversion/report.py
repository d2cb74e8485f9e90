"""Report of a conversion."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from rifflemix.errors import InputError
from rifflemix.lab.bench.swap import ORIGINAL, SwapMeasurement, SwapRow
from rifflemix.lab.report.units import format_bytes, format_duration
from rifflemix.surgery import SurgeryReport
from rifflemix.text import table_lines


@dataclass(frozen=True)
class StageResult:
    """State of the model after a stage.

    Attributes:
        stage: "original", "swap" (new mixers before training), or a training stage.
        steps: optimizer steps of the stage.
        seconds: training time of the stage, without evaluations.
        error: mean distance from the outputs of the original on the validation batches.
        task_loss: mean task loss on the validation batches, or None without `loss`.
        score: result of `score`, or None.
        layer_errors: error of each replaced layer on the inputs of the original model.
    """

    stage: str
    steps: int
    seconds: float
    error: float
    task_loss: float | None
    score: float | None
    layer_errors: dict[str, float]


@dataclass(frozen=True)
class LayerResult:
    """Cost of one layer after the stage "layers".

    Attributes:
        index: index among the self-attention layers of the model.
        name: name of the attention module.
        error: error of the outputs if only this layer is converted.
        rank: position in the order of conversion; 0 has the smallest error.
        error_so_far: error of the outputs if all layers up to this rank are converted.
        is_converted: whether the layer of the result has the new mixer.
    """

    index: int
    name: str
    error: float
    rank: int
    error_so_far: float
    is_converted: bool


@dataclass(frozen=True)
class ConversionReport:
    """Result of `convert`.

    Attributes:
        model: converted model, in the training mode of the original.
        mixer: name of the mixer.
        stages: the original, the swap and each stage, in order.
        layers: every layer that could be converted, in the order of the model.
        speed: time and memory of a forward pass before and after.
        surgery: report of the replacement, before layers were restored.
        finished: False if `should_stop` stopped the conversion.

    Example:
        >>> import torch, rifflemix as rm
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> batches = [torch.randn(4, 8, 16) for _ in range(3)]
        >>> report = rm.convert(model, "linear", batches, steps={"layers": 3})
        >>> report.finished, [layer.is_converted for layer in report.layers]
        (True, [True, True])
    """

    model: nn.Module
    mixer: str
    stages: list[StageResult]
    layers: list[LayerResult]
    speed: list[SwapRow]
    surgery: SurgeryReport
    finished: bool

    @property
    def speedups(self) -> dict[int, float]:
        """Number of tokens -> time of the original / time of the converted model."""
        seconds = {(row.mixer == ORIGINAL, row.length): row.seconds for row in self.speed}
        lengths = sorted({row.length for row in self.speed})
        return {n: seconds[True, n] / seconds[False, n] for n in lengths}

    def to_frame(self) -> Any:
        """Return one line per stage as a pandas.DataFrame.

        Returns:
            A pandas.DataFrame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InputError(
                "to_frame: expected pandas, got no such package; pip install pandas"
            ) from None
        lines = []
        for stage in self.stages:
            line = asdict(stage)
            errors = line.pop("layer_errors")
            lines.append({**line, **{f"error of {name}": error for name, error in errors.items()}})
        return pandas.DataFrame(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the model as JSON values.

        Returns:
            Name -> JSON value.
        """
        return {
            "mixer": self.mixer,
            "finished": self.finished,
            "stages": [asdict(stage) for stage in self.stages],
            "layers": [asdict(layer) for layer in self.layers],
            "speed": [asdict(row) for row in self.speed],
            "speedups": {str(n): value for n, value in self.speedups.items()},
            "surgery": asdict(self.surgery),
        }

    def __str__(self) -> str:
        """Return the tables of stages, layers and speed."""
        parts = [self._stage_table()]
        if len(self.layers) > 1:
            parts.append(self._layer_table())
        if self.speed:
            parts.append(self._speed_table())
        if not self.finished:
            parts.append("Stopped before the end. Make the same call again to continue.")
        return "\n\n".join(parts)

    def _stage_table(self) -> str:
        headers = ["stage", "steps", "time", "error", "task loss", "score"]
        rows = [
            [
                stage.stage,
                f"{stage.steps:,}",
                format_duration(stage.seconds),
                f"{stage.error:.4g}",
                _number(stage.task_loss),
                _number(stage.score),
            ]
            for stage in self.stages
        ]
        return "\n".join(table_lines(headers, rows, range(1, len(headers))))

    def _layer_table(self) -> str:
        headers = ["layer", "name", "rank", "error alone", "error up to here", "mixer"]
        rows = [
            [
                str(layer.index),
                layer.name,
                str(layer.rank),
                f"{layer.error:.4g}",
                f"{layer.error_so_far:.4g}",
                self.mixer if layer.is_converted else "original",
            ]
            for layer in self.layers
        ]
        return "\n".join(table_lines(headers, rows, range(2, 5)))

    def _speed_table(self) -> str:
        costs = SwapMeasurement(self.speed, {}, "", 0)
        mixer = next(row.mixer for row in self.speed if row.mixer != ORIGINAL)
        headers = ["tokens", "before", "after", "speed-up", "memory before", "memory after"]
        before, after = (costs.costs(name, "forward") for name in (ORIGINAL, mixer))
        held, holds = (
            costs.costs(name, "forward", "peak_memory_bytes") for name in (ORIGINAL, mixer)
        )
        rows = [
            [
                f"{n:,}",
                f"{1e3 * before[n]:.3g} ms",
                f"{1e3 * after[n]:.3g} ms",
                f"{speedup:.2f}",
                format_bytes(held[n]),
                format_bytes(holds[n]),
            ]
            for n, speedup in self.speedups.items()
        ]
        return "\n".join(table_lines(headers, rows, range(len(headers))))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
