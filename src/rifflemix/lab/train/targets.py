"""Training-only changes of samples and labels: augmentation, mixing and smoothing."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.protocols import (
    Augments,
    Batch,
    MixesSamples,
    SmoothsLabels,
    TrainableTask,
)
from rifflemix.lab.train.seeds import derive_seed

_AUGMENT, _MIX = 5, 6  # purposes of derived seeds


def check_targets(task: TrainableTask, config: TrainConfig) -> None:
    """Check that the task supports the settings for label smoothing and mixing.

    Raises:
        InputError: a setting is not supported; the message names the setting.
    """
    if config.label_smoothing and not _smooths(task):
        raise bad_argument(
            "label_smoothing",
            f"0 for task {task.name}",
            config.label_smoothing,
            "its loss is not over classes",
        )
    for name in ("mixup", "cutmix"):
        if getattr(config, name) and not isinstance(task, MixesSamples):
            raise bad_argument(
                name,
                f"0 for task {task.name}",
                getattr(config, name),
                "only whole images can be mixed (layout 'image')",
            )


def _smooths(task: TrainableTask) -> bool:
    """Return whether the class that defines `loss` also defines `uniform_loss`.

    If a subclass overrides only `loss`, the inherited `uniform_loss` may not match.
    """
    definition = next((kind for kind in type(task).__mro__ if "loss" in vars(kind)), object)
    return isinstance(task, SmoothsLabels) and "uniform_loss" in vars(definition)


def change_batch(
    task: TrainableTask, config: TrainConfig, batch: Batch, at: Sequence[int]
) -> Batch:
    """Augment and mix a training batch.

    Args:
        task: task with optional methods `augment` and `mix`.
        config: training settings with seed, mixup and cutmix.
        batch: collated batch.
        at: positions of the samples in the data order; the changes depend on them.
    """
    if isinstance(task, Augments):
        batch = task.augment(batch, [derive_seed(config.seed, _AUGMENT, place) for place in at])
    if (config.mixup or config.cutmix) and isinstance(task, MixesSamples):
        seed = derive_seed(config.seed, _MIX, at[0])
        batch = task.mix(batch, seed, mixup=config.mixup, cutmix=config.cutmix)
    return batch


def training_loss(
    task: TrainableTask, outputs: Tensor, batch: Batch, label_smoothing: float
) -> Tensor:
    """Compute the task's loss with label smoothing.

    The share `label_smoothing` of each label is spread evenly over all classes.

    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7.
    """
    loss = task.loss(outputs, batch)
    if not label_smoothing or not isinstance(task, SmoothsLabels):
        return loss
    uniform = task.uniform_loss(outputs, batch)
    return (1.0 - label_smoothing) * loss + label_smoothing * uniform
