"""Trained runs of rifflemix for `rifflemix convert`: their data, and the runs it writes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import make_folder, read_json, write_json, write_tensors
from rifflemix.json_values import sealed
from rifflemix.lab.conversion.outputs import Match
from rifflemix.lab.conversion.report import ConversionReport
from rifflemix.lab.conversion.source import Scores, Source
from rifflemix.lab.experiments import only_run
from rifflemix.lab.runs.build_for_task import check_batch_size
from rifflemix.lab.runs.folder import StoredRun, check_same_data, is_run, load_stored_task, read_run
from rifflemix.lab.tasks import Progress, Task
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.evaluate import evaluate, model_options
from rifflemix.lab.train.run_folder import RunFolder, TrainResult
from rifflemix.lab.train.state import read_result
from rifflemix.lab.train.targets import judged_by
from rifflemix.lab.trained.load import find_run, load_run
from rifflemix.mixers import mixer_options
from rifflemix.mixers.cards import layer_mixer
from rifflemix.models import Model, create_model
from rifflemix.models.pretrained import as_json
from rifflemix.surgery.distillation import swapped_modules
from rifflemix.surgery.settings import LABEL, MixerSettings
from rifflemix.surgery.sites import find_sites

HOST = "softmax"
"""Mixer whose runs are converted."""

ROPE, ROTARY = "rope", "rotary"
"""Positions of a model, and the option of mixers that use them."""

_VALIDATION = 8  # batches for the errors
_WITH_LOGITS = ("classes", "tokens", "next_token")


@dataclass(frozen=True, eq=False)
class RunSource:
    """A trained run and its data.

    Attributes:
        run: settings of the run.
        result: result of its training.
        model: trained model.
        task: data of the run.
        config: batch size, seed and metric for evaluations.
        device: device of evaluations.
    """

    run: StoredRun
    result: TrainResult
    model: Model
    task: Task
    config: TrainConfig
    device: str

    def batches(self, split: str, count: int) -> list[Any]:
        """Return at most `count` batches of a split, as `rifflemix.convert` expects them.

        Batches of the training split are random.
        """
        data, size = self.task.split(split), self.config.batch_size
        rows = list(range(len(data)))
        if split == "train":
            drawn = torch.Generator().manual_seed(self.config.seed)
            rows = torch.randperm(len(data), generator=drawn).tolist()
        if not rows:
            raise InputError(f"task {self.task.name}: expected a {split} split, got none")
        parts = (rows[start : start + size] for start in range(0, len(rows), size)[:count])
        return [self._pair([data[index] for index in part]) for part in parts]

    def _pair(self, samples: list[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the arguments of the model, and the whole batch for the loss."""
        batch = dict(self.task.collate(samples))
        first = next(iter(inspect.signature(self.model.forward).parameters))
        return {first: batch["inputs"], **model_options(batch)}, batch

    def metrics(self, model: nn.Module, split: str) -> dict[str, float]:
        """Return the metrics of a model on a split."""
        engine = Engine(self.config, self.device)
        return evaluate(engine, model, self.task, split, self.config, lambda: False) or {}

    def score(self, model: nn.Module) -> float:
        """Return the metric of the run on the validation split."""
        return self.metrics(model, "validation")[self.result.metric]

    def write(self, report: ConversionReport, folder: Path) -> Scores:
        """Write the converted model as a run, and test it once."""
        model = as_own_model(self.model, report.model).to(self.device)
        steps = sum(stage.steps for stage in report.stages)
        found = {split: self.metrics(model, split) for split in ("validation", "test")}
        files, stored = RunFolder(folder), read_json(self.run.files.config)
        make_folder(folder)
        settings = {"model": model.name, "mixer": report.mixer, "model_settings": model.settings}
        if "plugins" in self.run.settings:
            settings["plugins"] = self.run.settings["plugins"]
        stored.pop("weights", None)
        write_json(files.config, {**stored, "model": {"settings": as_json(settings)}})
        write_json(files.task, self.task.record().to_json())
        weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        write_tensors(files.best, weights, {"step": steps})
        metric, before = self.result.metric, self.result
        after = replace(
            before,
            step=steps,
            max_steps=steps,
            best_step=steps,
            best_value=found["validation"][metric],
            validation=[{"step": steps, **found["validation"]}],
            test=found["test"],
            tests={"last": found["test"]},
            protocol={**before.protocol, "selected_by": "last step", "test_evaluations": 1},
            train_loss=None,
            parameters=model.num_parameters(),
            samples=steps * self.config.batch_size,
            steps_per_second=None,
            tokens_per_second=None,
            seconds={"train": sum(stage.seconds for stage in report.stages)},
            confusion=None,
        )
        write_json(files.result, sealed(after.to_dict()))
        return Scores(
            metric,
            before={"validation": before.chosen()[metric], "test": (before.test or {})[metric]},
            after={split: values[metric] for split, values in found.items()},
        )


def run_source(
    folder: Path,
    run_seed: int | None,
    data_dir: Path | None,
    data: Path | None,
    progress: Progress,
    *,
    steps: int,
    batch_size: int | None,
    seed: int,
    device: str,
) -> Source:
    """Load a run of softmax attention, and batches of its training split.

    Args:
        folder: folder of train, compare, sweep or reproduce, or of one run in it.
        run_seed: seed of the run. None chooses the best run by validation.
        data_dir: folder of data files.
        data: file or folder of user data, if it was moved.
        progress: called with the progress of loading data.
        steps: number of steps of the conversion.
        batch_size: samples per batch; that of the training if None.
        seed: seed of the choice of samples.
        device: device of evaluations.

    Raises:
        InputError: there is no such run, or its data is missing or has changed.
    """
    is_single = is_run(folder) or only_run(folder) != folder
    path = find_run(folder, None if is_single else HOST, run_seed)
    run = read_run(path)
    task = load_stored_task(run, data_dir=data_dir, data=data, progress=progress)
    check_same_data(run, task)
    trained = TrainConfig.from_dict(read_json(run.files.config)["config"])
    config = TrainConfig(
        max_steps=1,
        batch_size=trained.batch_size if batch_size is None else batch_size,
        seed=seed,
        metric=trained.metric,
    )
    check_batch_size(config.batch_size, task)
    result, model = read_result(run.files), load_run(path).model
    if not _attention(model):
        raise bad_argument("MODEL", f"a run of the mixer {HOST}", f"a run of {run.label}")
    source = RunSource(run, result, model, judged_by(task, config.metric), config, device)
    match: Match = "kl" if task.output in _WITH_LOGITS else "error"
    return Source(
        model,
        source.batches("train", steps),
        source.batches("validation", _VALIDATION),
        source.write,
        loss=task.loss,
        match=match,
        score=source.score,
        options={ROTARY: True} if model.settings.get("positions") == ROPE else {},
    )


def as_own_model(original: Model, converted: nn.Module) -> Model:
    """Build the model of rifflemix with the mixers and weights of a converted model.

    Args:
        original: model before the conversion.
        converted: the same model with replaced attention in all or some layers.
    """
    layers = _layers(original, converted)
    mixer, options = layers[0] if all(layer == layers[0] for layer in layers) else (layers, None)
    settings = {**original.settings, "mixer": mixer, "mixer_options": options}
    if isinstance(settings.get("pool"), Mapping):  # a pooling for each mixer
        settings["pool"] = original.pool
    if settings.get("positions") == ROPE and not any(
        ROTARY in mixer_options(name) for name, _ in layers
    ):
        settings["positions"] = "none"
    model = create_model(str(original.name), **settings).eval()
    model.load_state_dict(_own_weights(converted))
    return model


def _layers(original: Model, converted: nn.Module) -> list[Any]:
    """Return name and options of the mixer of each layer."""
    swapped, names, layers = swapped_modules(converted), _attention(original), []
    count = original.get_submodule(next(iter(names.values()))).num_layers
    for index in range(int(count)):  # type: ignore[arg-type]
        place = names.get(index)
        if place not in swapped:
            settings = original.settings
            mixer, options = settings.get("mixer", HOST), settings.get("mixer_options")
            layers.append(layer_mixer(mixer, options, index, "mixer_options"))
            continue
        of = cast(MixerSettings, swapped[place].settings)
        name = str(of.mixer)
        # All options, since the model has defaults of its own for some.
        layers.append((name, {**mixer_options(name), **of.options}))
    return [[mixer, dict(options or {})] for mixer, options in layers]


def _attention(model: Model) -> dict[int, str]:
    """Return layer -> name of its softmax attention.

    Raises:
        InputError: a layer has several.
    """
    sites = [site for site in find_sites(model) if not site.host.cross]
    found = {int(site.module.layer_index): site.name for site in sites}  # type: ignore[arg-type]
    if len(found) < len(sites):
        raise bad_argument(
            "MODEL", "a model with one mixer per layer", str(model.name),
            "convert it in Python: rifflemix.convert(load_run(folder).model, ...)",
        )  # fmt: skip
    return found


def _own_weights(converted: nn.Module) -> dict[str, Tensor]:
    """Return the weights with the names that they have without replaced modules."""
    weights = {}
    places = swapped_modules(converted)
    for name, tensor in converted.state_dict().items():
        place = next((place for place in places if name.startswith(f"{place}.")), None)
        if place is None:
            weights[name] = tensor
        elif name != f"{place}.{LABEL}":
            weights[place + name.removeprefix(f"{place}.mixer")] = tensor
    return weights
