"""Card of a task: its description, default budget and status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rifflemix.lab.tasks.core.kinds import KINDS, Output
from rifflemix.lab.tasks.core.shapes import Shapes


@dataclass(frozen=True)
class Budget:
    """Default model size and training budget, equal for every mixer.

    Attributes:
        dim: Number of channels C.
        num_layers: Number of blocks.
        num_heads: Number of heads H.
        max_steps: Number of optimizer updates.
        batch_size: Sequences per update.
        lr: Peak learning rate.
        evaluations: Number of evaluations on the validation split. The best one selects the
            weights.

    Example:
        >>> import rifflemix as rm
        >>> rm.tasks.Budget(max_steps=100).lr
        0.001
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_steps: int = 1000
    batch_size: int = 32
    lr: float = 1e-3
    evaluations: int = 5


@dataclass(frozen=True)
class TaskCard:
    """Description of a task and its data, for lists, tables and commands.

    Attributes:
        name: Registry name.
        title: Common name.
        source: Author and origin of the data.
        licence: License of the data.
        description: One or two sentences on inputs, labels and splits.
        needs_data: True if the task needs files or a network, False if its data is built in or
            generated.
        options: Options of the task and their defaults.
        output: Kind of model output, see `Output`.
        backbone: Registry name of a model that accepts the samples and returns this output.
        image_backbone: Registry name of a model for whole images, for option layout="image".
        causal_backbone: Registry name of a model with causal mixers, for option causal=True of a
            task with output "tokens".
        is_image: True if positions are pixels or patches of a square image, row by row. Learned
            positions can then be enlarged for a larger image.
        budget: Model size and training budget, not tuned for any mixer. A few mixers finish in
            minutes (digits) or in an hour or two (other tasks) on two cores.
        solved_at: Test accuracy from which a task with known answers counts as solved. None for
            other tasks.
        shapes: Function from all options to the shapes of the samples. None if only the data
            determines them. `rifflemix list recipes --cost` needs it.

    Example:
        >>> import rifflemix as rm
        >>> card = rm.tasks.task_card("digits")
        >>> card.needs_data, card.budget.max_steps
        (False, 400)
    """

    name: str
    title: str
    source: str
    licence: str
    description: str
    needs_data: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    output: Output = "classes"
    backbone: str = "encoder"
    image_backbone: str = "vit_cifar10"
    causal_backbone: str = ""
    is_image: bool = False
    budget: Budget = Budget()
    solved_at: float | None = None
    shapes: Callable[[Mapping[str, Any]], Shapes] | None = None

    @property
    def is_generative(self) -> bool:
        """True if models predict tokens from previous tokens and must be causal."""
        return self.output in ("next_token", "sequence")

    def for_options(self, options: Mapping[str, Any]) -> TaskCard:
        """Return the card for these options, which may change the output and the backbone.

        layout="image" needs a model of images. causal=False allows models that use all tokens.
        Option "kind" of user data names the output.
        """
        chosen = {**self.options, **options}
        if chosen.get("layout") == "image":
            return replace(self, backbone=self.image_backbone)
        kind = KINDS.get(chosen.get("kind", "")) if self.options.get("kind") == "auto" else None
        if kind is not None:
            return replace(self, output=kind.output, backbone=kind.backbone)
        if chosen.get("causal") is False and self.output == "next_token":
            return replace(self, output="tokens", backbone="encoder")
        if chosen.get("causal") is True and self.causal_backbone:
            return replace(self, backbone=self.causal_backbone)
        return self


@dataclass(frozen=True)
class TaskStatus:
    """Availability of a task, and details on its data.

    Example:
        >>> import rifflemix as rm
        >>> status = rm.tasks.task_status("digits")
        >>> status.name, status.available
        ('digits', True)
    """

    name: str
    available: bool
    detail: str
