"""The stages of one conversion, resumed from the checkpoints in its folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rifflemix.files import damaged_run, read_json, write_json
from rifflemix.json_values import check_seal, decode, sealed
from rifflemix.lab.bench.swap import ORIGINAL, SwapRow, device_of, measure_models
from rifflemix.lab.conversion.outputs import Budget, Objective, Samples, assess, choose_layers
from rifflemix.lab.conversion.report import ConversionReport, LayerResult, StageResult
from rifflemix.lab.conversion.stages import StageTask, stage_model
from rifflemix.lab.runs.status import OnStatus, RunStatus, ShouldStop, StatusFeed
from rifflemix.lab.train import TrainConfig, TrainResult, train
from rifflemix.models.base import call_model
from rifflemix.surgery import SurgeryReport, restore_attention
from rifflemix.surgery.distillation import LayerMatcher, swapped_modules
from rifflemix.surgery.sites import find_sites

FORMAT = "rifflemix.conversion/1"


@dataclass(frozen=True)
class Plan:
    """Training settings of a conversion.

    Attributes:
        steps: stage -> optimizer steps, in order.
        rates: stage -> peak learning rate.
        budget: limit of the converted layers.
        seed: seed of the training.
        identity: hash of the batches and of the original model.
    """

    steps: dict[str, int]
    rates: dict[str, float]
    budget: Budget
    seed: int
    identity: str

    def config(self, stage: str) -> TrainConfig:
        """Return the settings of the training loop for a stage."""
        steps = self.steps[stage]
        return TrainConfig(
            max_steps=steps,
            batch_size=1,
            lr=self.rates[stage],
            schedule="cosine",
            warmup_steps=min(20, steps // 10),
            clip_norm=1.0,
            checkpoint_seconds=60.0,
            seed=self.seed,
        )

    def settings(
        self, surgery: SurgeryReport, objective: Objective, options: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the settings that a continued conversion must share, as JSON values."""
        match = objective.match
        return {
            "format": FORMAT,
            "mixer": surgery.mixer,
            "mixer_options": {name: repr(value) for name, value in (options or {}).items()},
            "layers": list(surgery.replaced),
            "match": match if isinstance(match, str) else "a function",
            "temperature": objective.temperature,
            "has_loss": objective.loss is not None,
            "steps": self.steps,
            "lr": {name: self.rates[name] for name in self.steps},
            "budget": asdict(self.budget),
            "seed": self.seed,
            "data": self.identity,
        }


@dataclass
class Conversion:
    """One conversion; `report` makes it.

    Attributes:
        user_model: model of the caller, never changed.
        original: frozen copy of it.
        model: copy with replaced attention, trained in place.
        surgery: report of the replacement.
        samples, checked: training and validation batches.
        objective: losses of the outputs.
        plan: settings.
        folder: folder of the checkpoints.
        score, on_status, should_stop: functions of the caller.
    """

    user_model: nn.Module
    original: nn.Module
    model: nn.Module
    surgery: SurgeryReport
    samples: Samples
    checked: Samples
    objective: Objective
    plan: Plan
    folder: Path
    score: Callable[[nn.Module], float] | None
    on_status: OnStatus | None
    should_stop: ShouldStop | None

    def report(
        self, make_inputs: Callable[[int], Any] | None, lengths: Sequence[int]
    ) -> ConversionReport:
        """Train all stages and measure the result."""
        stages = [self._assessed("original", self.original), self._assessed("swap", self.model)]
        inputs = self._inputs(make_inputs, lengths)
        layers: list[LayerResult] = []
        finished = True
        if "layers" not in self.plan.steps:
            layers = self._choose(inputs)
        for stage in self.plan.steps:
            result = self._train(stage)
            stages.append(self._assessed(stage, self.model, result))
            if not result.finished:
                finished = False
                break
            if stage == "layers":
                layers = self._choose(inputs)
                kept = len(layers) - sum(layer.is_converted for layer in layers)
                if kept:
                    stages.append(self._assessed(f"keep {kept}", self.model))
        self._restore_flags()
        return ConversionReport(
            self.model,
            self.surgery.mixer,
            stages,
            layers,
            self._speed(inputs) if finished else [],
            self.surgery,
            finished,
        )

    def _train(self, stage: str) -> TrainResult:
        module = stage_model(stage, self.model, self.original, self.samples, self.objective)
        self._freeze(stage)
        task = StageTask(stage, len(self.samples), self.plan.identity)
        config = self.plan.config(stage)
        feed = StatusFeed(stage, self.plan.seed, config.max_steps, self._tell, "loss")
        with torch.random.fork_rng():
            result = train(
                module,
                task,
                config,
                self.folder / stage,
                device=device_of(self.original),
                on_event=feed.on_event,
                should_stop=self.should_stop,
                tests=False,
                weights="last",
            )
        feed.end(result)
        return result

    def _tell(self, status: RunStatus) -> None:
        """Add the time of the later stages, at the speed of this one."""
        if self.on_status is None:
            return
        names = list(self.plan.steps)
        later = sum(self.plan.steps[name] for name in names[names.index(status.mixer) + 1 :])
        left, speed = status.seconds_left, status.steps_per_second
        in_all = None if left is None or not speed else left + later / speed
        self.on_status(replace(status, seconds_left_in_all=in_all))

    def _freeze(self, stage: str) -> None:
        """Let only the weights of the stage change."""
        self._restore_flags()
        if stage in ("layers", "own_inputs"):
            mixers = {
                id(p) for m in swapped_modules(self.model).values() for p in m.mixer.parameters()
            }
            for parameter in self.model.parameters():
                parameter.requires_grad_(parameter.requires_grad and id(parameter) in mixers)

    def _restore_flags(self) -> None:
        """Set `training` and `requires_grad` as in the caller's model; mixers are trainable."""
        flags = {name: p.requires_grad for name, p in self.user_model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(flags.get(name, True))
            parameter.grad = None
        self.model.train(self.user_model.training)
        modes = {name: module.training for name, module in self.user_model.named_modules()}
        for name, module in self.model.named_modules():
            module.training = modes.get(name, module.training)

    def _assessed(
        self, stage: str, model: nn.Module, result: TrainResult | None = None
    ) -> StageResult:
        quality = assess(model, self.original, self.checked, self.objective)
        return StageResult(
            stage,
            0 if result is None else result.step,
            0.0 if result is None else result.seconds["train"],
            quality.error,
            quality.task_loss,
            self._score(model),
            self._layer_errors() if model is self.model else {},
        )

    def _score(self, model: nn.Module) -> float | None:
        if self.score is None:
            return None
        modes = {module: module.training for module in model.modules()}
        model.eval()
        with torch.no_grad():
            value = float(self.score(model))
        for module, training in modes.items():
            module.training = training
        return value

    def _layer_errors(self) -> dict[str, float]:
        matcher = LayerMatcher(self.model, self.original)
        sums = dict.fromkeys(matcher.names, 0.0)
        for index in range(len(self.checked)):
            for name, error in matcher.errors(self.checked.inputs(index)).items():
                sums[name] += float(error.detach())
        return {name: total / len(self.checked) for name, total in sums.items()}

    def _choose(self, inputs: Mapping[int, Any]) -> list[LayerResult]:
        """Rank the layers, or read the ranks of an earlier call; restore the other layers."""
        path = self.folder / "layers.json"
        if path.exists():
            layers = self._read_layers(path)
        else:
            layers = choose_layers(
                self.model,
                self._indices(),
                lambda: assess(self.model, self.original, self.checked, self.objective).error,
                self.plan.budget,
                inputs[max(inputs)],
            )
            write_json(path, sealed({"layers": [asdict(layer) for layer in layers]}))
        for layer in layers:
            if not layer.is_converted:
                restore_attention(self.model.get_submodule(layer.name.rpartition(".")[0]))
        return layers

    def _read_layers(self, path: Path) -> list[LayerResult]:
        value = read_json(path)
        try:
            check_seal(value)
            return [decode(LayerResult, layer) for layer in value["layers"]]
        except ValueError as error:
            raise damaged_run(path, str(error)) from error

    def _indices(self) -> dict[str, int]:
        own = [site.name for site in find_sites(self.original) if not site.host.cross]
        return {name: own.index(name) for name in self.surgery.replaced}

    def _inputs(
        self, make_inputs: Callable[[int], Any] | None, lengths: Sequence[int]
    ) -> dict[int, Any]:
        """Return number of tokens -> inputs, by default of the first validation batch."""
        if make_inputs is not None:
            return {length: make_inputs(length) for length in sorted({*map(int, lengths)})}
        inputs, seen = self.checked.inputs(0), list[int]()
        mixer = next(iter(swapped_modules(self.model).values())).mixer
        handle = mixer.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
        try:
            with torch.no_grad():
                call_model(self.model, inputs, name="batches")
        finally:
            handle.remove()
        return {seen[0]: inputs}

    def _speed(self, inputs: Mapping[int, Any]) -> list[SwapRow]:
        models = {
            ORIGINAL: copy.deepcopy(self.user_model),
            self.surgery.mixer: copy.deepcopy(self.model),
        }
        return measure_models(models, inputs.__getitem__, list(inputs), phases=("forward",))
