"""Forecasts: the next steps of a series from the steps before them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.lab.tasks.core.arrays import bad_input, listed, plain_array
from rifflemix.lab.tasks.core.base import Batch, Sample
from rifflemix.lab.tasks.core.kinds import FORECAST, Kind
from rifflemix.lab.tasks.core.numbers import NumberTask

Series = NDArray[np.float64]
"""Values (time, channels)."""

_WINDOWS = 512  # batch size when the reference forecast is scored


@dataclass(frozen=True, eq=False)
class WindowsOfSeries:
    """Windows of series: `context` steps, and the `horizon` steps after them.

    Attributes:
        series: All series.
        starts: (M, 2) index of the series, and first step of the window.
        context: Number of input steps L.
        horizon: Number of target steps H.
        inputs: Conversion of the input steps.
    """

    series: Sequence[Series]
    starts: NDArray[np.int64]
    context: int
    horizon: int
    inputs: SeriesInputs

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Sample:
        """Return standardized inputs (N, C) float32; targets (H, T) float64 and their series."""
        number, start = self.starts[index].tolist()
        middle = start + self.context
        values = self.series[number]
        inputs = torch.from_numpy(self.inputs.scaled(values[start : start + self.inputs.steps]))
        return inputs, (values[middle : middle + self.horizon, list(self.inputs.targets)], number)

    def digest(self) -> bytes:
        total = hashlib.blake2b(f"{self.context},{self.horizon};".encode(), digest_size=16)
        total.update(self.starts.astype("<i8").tobytes())
        for values in self.series:
            total.update(f"{values.shape}".encode() + values.astype("<f8").tobytes())
        return total.digest()


@dataclass(frozen=True)
class SeriesInputs:
    """Beginnings of series, standardized per channel.

    Attributes:
        context: Number of steps before the forecast that a model reads.
        mean, std: Mean and standard deviation of each channel in the training steps.
        columns: Columns of the user's table. Empty without a table.
        group: Column that names the series. Empty if the table has none.
        known: Channels that are known in advance. Models do not predict them.
        ahead: Number of future steps of the known channels. 0 without known channels.
    """

    kind: ClassVar[str] = "series"
    context: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()
    group: str = ""
    known: tuple[int, ...] = ()
    ahead: int = 0

    @property
    def steps(self) -> int:
        """Number of steps that a model reads."""
        return self.context + self.ahead

    @property
    def targets(self) -> tuple[int, ...]:
        """Channels that models predict."""
        return tuple(c for c in range(len(self.mean)) if c not in self.known)

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert series (N, C), or (N,) with one channel, to standardized (N, C) float32.

        Of a longer series, the last steps count. With known channels, a series contains the future
        steps of all channels. Future values of the other channels are ignored, and can be NaN.
        """
        rows = listed(raw, "series (steps, channels)")
        return [torch.from_numpy(self._row(row, number)) for number, row in enumerate(rows)]

    def scaled(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Standardize steps (N, C). Future values of the targets become 0."""
        scaled: NDArray[Any] = (values - np.array(self.mean)) / np.array(self.std)
        scaled[self.context :, list(self.targets)] = 0.0
        return np.asarray(scaled, dtype=np.float32)

    def _row(self, row: Any, number: int) -> NDArray[np.float32]:
        values = plain_array(row)
        if values.ndim == 1 and len(self.mean) == 1:
            values = values[:, None]
        is_series = values.ndim == 2 and values.shape[1] == len(self.mean)
        if values.dtype.kind not in "biuf" or not is_series or len(values) < self.steps:
            expected = f"numbers (at least {self.steps}, {len(self.mean)})"
            raise bad_input(expected, f"{values.dtype} of shape {values.shape}", number)
        values = values[-self.steps :].astype(np.float64)
        scaled = self.scaled(values)
        if not np.isfinite(scaled).all():
            raise bad_input("finite numbers", values[~np.isfinite(scaled)][0], number)
        return scaled


@dataclass(frozen=True, eq=False, kw_only=True)
class ForecastTask(NumberTask):
    """Prediction of the next `horizon` steps of all channels that are not known in advance.

    Labels are (B, H, T), outputs (B, H * T). Errors are in the units of the series, and means over
    the windows and channels. "mase" divides each absolute error by the mean absolute error of the
    seasonal naive forecast on the training steps of the same series and channel.

    Attributes:
        horizon: Number of predicted steps H.
        season: Number of steps of a season. 1 if the series has none.
        naive_errors: Mean absolute difference of a training step and the step one season before,
            for each series and each of its predicted channels.

    Source of MASE: Hyndman and Koehler 2006, Another look at measures of forecast accuracy.
    """

    of_kind: ClassVar[Kind] = FORECAST
    _deviation_of: ClassVar[Mapping[str, str]] = {**NumberTask._deviation_of, "mase": "mase"}

    horizon: int
    season: int
    naive_errors: tuple[tuple[float, ...], ...]

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Horizon and number of predicted channels."""
        return self.horizon, len(self.naive_errors[0])

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples into a batch with standardized labels (B, H, T) and their series (B,)."""
        batch = super().collate([(inputs, target) for inputs, (target, _) in samples])
        return {**batch, "series": torch.tensor([number for _, (_, number) in samples])}

    def _sizes(self, error: Tensor, batch: Batch) -> dict[str, Tensor]:
        sizes = super()._sizes(error, batch)
        units = self._units.to(error.device)[batch["series"]]
        return {**sizes, "mase": sizes["mae"] / units.unsqueeze(1)}

    @cached_property
    def _units(self) -> Tensor:
        return torch.tensor(self.naive_errors, dtype=torch.float64)

    def _deviation(self, means: Mapping[str, float]) -> dict[str, float]:
        """Compute the standard deviation, from the number of windows that do not overlap.

        A step is in up to `horizon` windows.
        """
        factor = math.sqrt(self.horizon)
        return {name: factor * value for name, value in super()._deviation(means).items()}

    @property
    def reference_answer(self) -> str:
        """Description of the seasonal naive forecast."""
        return "repeating the last step" if self.season == 1 else "repeating the last season"

    def reference_scores(self, split: str) -> dict[str, float]:
        """Return all metrics of the seasonal naive forecast on a split."""
        return self._reference[split]

    @cached_property
    def _reference(self) -> dict[str, dict[str, float]]:
        return {name: self._naive(name) for name in ("validation", "test")}

    def _naive(self, name: str) -> dict[str, float]:
        split, sums = self.split(name), dict[str, list[float]]()
        spec: Any = self.inputs  # SeriesInputs
        places = np.arange(self.horizon) % self.season - self.season + spec.context
        for start in range(0, len(split), _WINDOWS):
            stop = min(start + _WINDOWS, len(split))
            batch = self.collate([split[index] for index in range(start, stop)])
            forecast = batch["inputs"][:, places][:, :, list(spec.targets)].flatten(1)
            for metric, (total, count) in self.metrics(forecast, batch).items():
                seen = sums.setdefault(metric, [0.0, 0.0])
                seen[0], seen[1] = seen[0] + total, seen[1] + count
        means = {metric: total / count for metric, (total, count) in sums.items()}
        found = {**means, **self.summarise(means)}
        return {
            metric: value
            for metric, value in found.items()
            if not metric.startswith("_") and not metric.endswith("_deviation")
        }
