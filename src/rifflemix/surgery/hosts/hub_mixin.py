"""Save swapped models with the `PyTorchModelHubMixin` of huggingface_hub.

`from_pretrained` of the mixin builds the model without the swap and loads weights by name. Missing
weights keep random values. The file therefore contains one tensor of a wrong shape for each
replaced attention, so that loading fails. A class that replaces attention in its own `__init__`
ignores this tensor (see `SwappedAttention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.surgery.adapters import ParentChange, class_names
from rifflemix.surgery.hosts.transformers_saving import replaced_weights


class SaveOfMixin:
    """`_save_pretrained` of a swapped model. The mixin calls it to write weights.

    Args:
        model: a `PyTorchModelHubMixin`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, save_directory: Any) -> None:
        """Write the weights, and the tensors that mark the swap."""
        cls: Any = type(self.model)
        saved = getattr(self.model, "module", self.model)  # same as in the mixin
        hook = saved.register_state_dict_post_hook(_tell)
        try:
            cls._save_pretrained(self.model, save_directory)
        finally:
            hook.remove()


def mixin_changes(parents: Sequence[nn.Module]) -> list[ParentChange]:
    """Return the changes that make models with the mixin mark the swap."""
    return [
        ParentChange(parent, "_save_pretrained", SaveOfMixin(parent))
        for parent in parents
        if "PyTorchModelHubMixin" in class_names(parent)
    ]


def _tell(model: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    state.update({prefix + name: torch.zeros(1) for name in replaced_weights(model)})
