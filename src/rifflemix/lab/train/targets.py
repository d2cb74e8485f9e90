"""What only training does to samples and labels: changes at random, mixtures, smoothing."""

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
    """Raise unless the task can do what the settings ask of its samples and labels.

    Raises:
        InputError: naming the setting.
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
    """Whether the class that defines the loss also defines that of a smoothed label.

    A loss of its own, which a subclass writes, need not go with what it inherits.
    """
    definition = next((kind for kind in type(task).__mro__ if "loss" in vars(kind)), object)
    return isinstance(task, SmoothsLabels) and "uniform_loss" in vars(definition)


def change_batch(
    task: TrainableTask, config: TrainConfig, batch: Batch, at: Sequence[int]
) -> Batch:
    """A training batch as the model sees it.

    Args:
        task: may change samples.
        config: seed and mixing.
        batch: as it was read.
        at: positions of its samples in the data order, on which the changes depend.
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
    """The task's loss; of a label, `label_smoothing` is spread evenly over all classes.

    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7.
    """
    loss = task.loss(outputs, batch)
    if not label_smoothing or not isinstance(task, SmoothsLabels):
        return loss
    uniform = task.uniform_loss(outputs, batch)
    return (1.0 - label_smoothing) * loss + label_smoothing * uniform
