"""Save models with replaced attention by transformers and by the mixin of huggingface_hub.

Both libraries build a model from its config alone and load weights by name. Weights that are
missing from the file get random values. rifflemix therefore wraps `save_pretrained` of
`PreTrainedModel` and `ModelHubMixin`. Models without replaced attention are saved as before.

For replaced attention, the weights file also contains one tensor of a wrong shape per replaced
module, so that programs without rifflemix fail. transformers also gets the swap as the
`quantization_config` of the model, because it reads this entry before it loads weights.
`rifflemix.surgery.hub.swapped` loads the file. Models with the mixin must replace attention in
their own `__init__`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.surgery.adapters import SwappedAttention
from rifflemix.surgery.description import check_unchanged, describe_swap
from rifflemix.surgery.hub.card import card_of_swap, push
from rifflemix.surgery.wrappers import without_wrappers

METHOD = "rifflemix"
_CONFIG = "quantization_config"


def save_swaps() -> None:
    """Make the imported libraries save replaced attention in any part of a model."""
    for library, cls, method, save in (
        ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", _save),
        ("transformers.modeling_utils", "PreTrainedModel", "push_to_hub", _push),
        ("huggingface_hub.hub_mixin", "ModelHubMixin", "save_pretrained", _save_of_mixin),
    ):
        owner: Any = getattr(sys.modules.get(library), cls, None)
        if owner is not None and not hasattr(getattr(owner, method), "plain"):
            setattr(owner, method, _wrapped(getattr(owner, method), save))


SwappedAttention.on_unpickling.append(save_swaps)


def _wrapped(plain: Callable[..., Any], save: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def method(model: Any, *args: Any, **options: Any) -> Any:
        if isinstance(model, nn.Module) and swapped_in(model):
            return save(plain, model, *args, **options)
        return plain(model, *args, **options)

    method.plain = plain  # type: ignore[attr-defined]
    return method


def _save(
    plain: Callable[..., Any],
    model: Any,
    save_directory: Any,
    is_main_process: bool = True,
    state_dict: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Any:
    """Save a model of transformers with `save_original_format=False`.

    transformers would rename weights by patterns of the model type, and these patterns also match
    names inside mixers.

    Raises:
        InputError: a mixer has no registry name or was changed after the swap, for example by a
            parametrization. The weights are also quantized. `save_original_format` is True.
    """
    with without_wrappers(model):
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
        if _is_quantized(model.config):
            raise bad_argument(
                "model", "weights that are not quantized", "a swap and a quantization_config"
            )
        weights = dict(model.state_dict() if state_dict is None else state_dict)
        check_unchanged(weights, swap)
        weights.update({name: torch.zeros(1) for name in replaced_weights(model)})
        setattr(model.config, _CONFIG, {"quant_method": METHOD, "swap": swap})
        try:
            return plain(model, save_directory, is_main_process, weights, **options)
        finally:
            delattr(model.config, _CONFIG)


def _is_quantized(config: Any) -> bool:
    """Return whether a config describes quantized weights.

    A swap in the config belongs to the model that the config comes from, and does not count.
    """
    found = getattr(config, _CONFIG, None)
    if isinstance(found, Mapping):
        return found.get("quant_method") != METHOD
    return getattr(found, "quant_method", METHOD) != METHOD


def _push(plain: Callable[..., Any], model: Any, repo_id: str, **options: Any) -> str:
    """Upload a model with a card that describes the replacement."""
    return push(model, repo_id, card_of_swap(model, describe_swap(model)), **options)


def _save_of_mixin(plain: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
    """Save a model with the mixin, and the tensors that mark the swap."""
    saved: nn.Module = getattr(model, "module", model)  # same as in the mixin
    hook = saved.register_state_dict_post_hook(_mark)
    try:
        return plain(model, *args, **options)
    finally:
        hook.remove()


def _mark(model: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    state.update({prefix + name: torch.zeros(1) for name in replaced_weights(model)})


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
