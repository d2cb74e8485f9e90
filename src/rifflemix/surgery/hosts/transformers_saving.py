"""`save_pretrained` of swapped models of transformers.

transformers builds a model from its config alone and loads weights by name. It initializes missing
weights at random and only logs a message. So rifflemix writes the swap into `quantization_config`,
where transformers looks for changes to make before it loads weights. The weights file also contains
one tensor of a wrong shape for each replaced attention, so that programs without rifflemix fail.

The file uses the names of the model's own state_dict. transformers would rename weights by patterns
of the model type, and these patterns also match names inside mixers.
`rifflemix.surgery.hub.swapped` loads the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.surgery.adapters import ParentChange, SwappedAttention, class_names
from rifflemix.surgery.description import check_unchanged, describe_swap
from rifflemix.surgery.hub.card import card_of_swap
from rifflemix.surgery.hub.pushing import push
from rifflemix.surgery.wrappers import without_wrappers

METHOD = "rifflemix"
_CONFIG = "quantization_config"


class SavePretrained:
    """`save_pretrained` of one swapped model. It writes the swap next to the weights.

    Args:
        model: a `PreTrainedModel`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(
        self, save_directory: Any, *, state_dict: Mapping[str, Tensor] | None = None, **options: Any
    ) -> Any:
        """Save the model like `PreTrainedModel.save_pretrained`, with `save_original_format=False`.

        Raises:
            InputError: a mixer has no registry name or was changed after the swap, for example by a
                parametrization. The weights are also quantized. `save_original_format` is True.
        """
        with without_wrappers(self.model) as model:
            if not swapped_in(model):  # each layer was restored separately
                cls: Any = type(model)
                return cls.save_pretrained(model, save_directory, state_dict=state_dict, **options)
            return self._save(model, save_directory, state_dict, options)

    def _save(
        self, model: Any, folder: Any, state_dict: Mapping[str, Tensor] | None, options: Any
    ) -> Any:
        swap = describe_swap(model)
        if options.pop("push_to_hub", False):
            raise bad_argument("push_to_hub", "False", True, "call model.push_to_hub(repo_id)")
        if options.get("distributed_checkpoint"):
            raise bad_argument(
                "distributed_checkpoint", "False: transformers cannot load the swap from it", True
            )
        if options.setdefault("save_original_format", False):
            raise bad_argument(
                "save_original_format", "False: mixers are not part of that format", True
            )
        if _is_quantised(model.config):
            raise bad_argument(
                "model", "weights that are not quantised", "a quantization_config beside the swap"
            )
        weights = dict(model.state_dict() if state_dict is None else state_dict)
        check_unchanged(weights, swap)
        weights.update({name: torch.zeros(1) for name in replaced_weights(model)})
        setattr(model.config, _CONFIG, {"quant_method": METHOD, "swap": swap})
        try:
            return type(model).save_pretrained(model, folder, state_dict=weights, **options)
        finally:
            delattr(model.config, _CONFIG)


class PushToHub:
    """`push_to_hub` of one swapped model, with a card that describes the replacement.

    Args:
        model: a `PreTrainedModel`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, repo_id: str, **options: Any) -> str:
        """Upload the model, see `rifflemix.surgery.hub.pushing.push`."""
        if not swapped_in(self.model):
            cls: Any = type(self.model)
            return str(cls.push_to_hub(self.model, repo_id, **options))
        card = card_of_swap(self.model, describe_swap(self.model))
        return push(self.model, repo_id, card, **options)


def _is_quantised(config: Any) -> bool:
    """Return whether a config describes quantized weights.

    A swap in the config belongs to the model that the config comes from, and does not count.
    """
    found = getattr(config, _CONFIG, None)
    if isinstance(found, Mapping):
        return found.get("quant_method") != METHOD
    return getattr(found, "quant_method", METHOD) != METHOD


def saving_changes(parents: Sequence[nn.Module]) -> list[ParentChange]:
    """Return the changes that make transformers models save the swap.

    Args:
        parents: modules around attention of any host library. Many transformers models contain
            attention of torch.nn, and `TimmWrapperModel` contains attention of timm.
    """
    return [
        ParentChange(parent, name, method(parent))
        for parent in parents
        if "PreTrainedModel" in class_names(parent)
        for name, method in (("save_pretrained", SavePretrained), ("push_to_hub", PushToHub))
    ]


def swapped_in(model: nn.Module) -> dict[str, SwappedAttention]:
    """Return the replaced attention modules of a model by name."""
    return {n: m for n, m in model.named_modules() if isinstance(m, SwappedAttention)}


def replaced_weights(model: nn.Module) -> list[str]:
    """Return one weight name per replaced attention, preferably of a matrix."""
    found = []
    for name, module in swapped_in(model).items():
        weights = [(n, p.dim()) for n, p in module.original.named_parameters() if p.numel() != 1]
        matrices = [n for n, dim in weights if dim == 2] or [n for n, _ in weights]
        found += [f"{name}.{n}" for n in matrices[:1]]
    return found
