"""A small experiment with real trainings, for tests of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toy_training import SETTINGS, ToyTask, make_config, make_model

from rifflemix.lab.experiments import PlannedRun, Records, Trained
from rifflemix.lab.runs.status import ShouldStop
from rifflemix.lab.train import TrainingDiverged, train
from rifflemix.lab.train.engine import Engine


@dataclass(frozen=True)
class Toy:
    """Runs "a", "b" and "c"; "chosen" continues "a" after all three have finished."""

    out: Path
    settings: Mapping[str, Any] = field(default_factory=lambda: {"format": "toy/1"})
    free: Sequence[str] = ()

    def planned(self, records: Records) -> list[PlannedRun]:
        first = [PlannedRun(f"x/{name}", name, 0, tests=False) for name in "abc"]
        if all(run.name in records for run in first):
            return [*first, PlannedRun("x/chosen", "a", 0, start="x/a")]
        return first


class ToyTrainer:
    """Train the toy model and call `at_step` after every update."""

    def __init__(self, at_step: Any = None, diverges: str = "") -> None:
        self.at_step = at_step
        self.diverges = diverges
        self.trained: list[str] = []

    def train(
        self, run: PlannedRun, folder: Path, records: Records, should_stop: ShouldStop
    ) -> Trained:
        if run.subject == self.diverges:
            return Trained(result=None, error="the loss is nan", wall_seconds=1.0)

        def on_event(event: Any) -> None:
            if event.kind == "step":
                self.trained.append(run.name)
                if self.at_step is not None:
                    self.at_step(run, event.step)

        try:
            result = train(
                make_model(),
                ToyTask(),
                make_config(checkpoint_every=2),
                folder,
                device="cpu",
                model_settings=SETTINGS,
                should_stop=should_stop,
                on_event=on_event,
                tests=run.tests,
            )
        except TrainingDiverged as error:
            return Trained(result=None, error=error.reason)
        return Trained(result=result, peak_memory_bytes=1)


def engine() -> Engine:
    return Engine(make_config(), "cpu")
