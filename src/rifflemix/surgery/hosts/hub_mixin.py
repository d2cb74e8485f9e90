"""Saving of swapped models that are derived from huggingface_hub's `PyTorchModelHubMixin`.

Its `from_pretrained` makes the model as its class does, before any swap from outside, and fills in
weights by name; what is missing stays at random. So the file has a tensor of another shape under a
name of each replaced attention, on which loading fails; a class that makes the swap in its own
`__init__` passes it by (`SwappedAttention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.surgery.adapters import ParentChange, class_names
from rifflemix.surgery.hosts.transformers_saving import replaced_weights


class SaveOfMixin:
    """`_save_pretrained` of one swapped model, by which the mixin writes its weights.

    Args:
        model: a `PyTorchModelHubMixin`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, save_directory: Any) -> None:
        """Write the weights as the class does, and beside them what tells of the swap."""
        cls: Any = type(self.model)
        saved = getattr(self.model, "module", self.model)  # as the mixin has it
        hook = saved.register_state_dict_post_hook(_tell)
        try:
            cls._save_pretrained(self.model, save_directory)
        finally:
            hook.remove()


def mixin_changes(parents: Sequence[nn.Module]) -> list[ParentChange]:
    """What makes models with the mixin tell of the swap where they save themselves."""
    return [
        ParentChange(parent, "_save_pretrained", SaveOfMixin(parent))
        for parent in parents
        if "PyTorchModelHubMixin" in class_names(parent)
    ]


def _tell(model: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    state.update({prefix + name: torch.zeros(1) for name in replaced_weights(model)})
