"""`from_pretrained` for models of transformers that were saved with a swap.

`rifflemix.register_hf` imports this file. The import registers the two classes in transformers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from rifflemix.errors import InputError
from rifflemix.surgery.description import check_description, describe_swap
from rifflemix.surgery.hub.saving import METHOD, replaced_weights, swapped_in
from rifflemix.surgery.settings import LABEL
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.swaps import apply_swap


@register_quantization_config(METHOD)
class SwapConfig(QuantizationConfigMixin):
    """Swap in a config of transformers.

    Args:
        swap: description from `rifflemix.surgery.describe_swap`.
        read: other values of the config, ignored.
    """

    def __init__(self, swap: Any = None, **read: Any) -> None:
        check_description(swap)
        self.quant_method = METHOD
        self.swap = swap


@register_quantizer(METHOD)
class SwapLoader(HfQuantizer):
    """Replace the attention in `from_pretrained`, before weights are loaded.

    transformers treats the swap as a quantizer. `SwapLoader` removes itself after loading: the
    model is not quantized and trains as usual.
    """

    def is_serializable(self) -> bool:
        """Return True. `rifflemix.surgery.hub.saving` saves the model."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Return True."""
        return True

    def update_weight_conversions(self, weight_conversions: list[Any], *_: Any) -> list[Any]:
        """Keep only the caller's `key_mapping`; the file uses the model's names."""
        return weight_conversions[: len(weight_conversions) - self.num_conversions]

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        swap = _not_made_yet(model, _named_for(model, self.quantization_config.swap))
        if swap["layers"]:
            apply_swap(model, swap)
        for module in swapped_in(model).values():
            _show_original(module)
        self.num_conversions = len(get_model_conversion_mapping(model))
        model._adjust_missing_and_unexpected_keys = partial(_check_keys, model)
        return model

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        for module in swapped_in(model).values():
            _hide_original(module)
            if module.settings is not None:
                module.settings.fill_constants(module.mixer)
            module.check_loaded()
        self.remove_quantization_config(model)
        for module in model.modules():
            if hasattr(getattr(module, "config", None), "_is_quantized"):
                del module.config._is_quantized
        return model


def _named_for(model: Any, swap: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the layers of a swap for `model`.

    `model` may be the body of the saved model, or contain the saved model as its body.
    """
    prefix = f"{model.base_model_prefix}."
    modules = dict(model.named_modules())

    def rename(name: str) -> str:
        other = name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
        return name if name in modules or other not in modules else other

    return {**swap, "layers": {rename(name): layer for name, layer in swap["layers"].items()}}


def _not_made_yet(model: nn.Module, swap: dict[str, Any]) -> dict[str, Any]:
    """Remove the layers that the model already replaced in its `__init__`."""
    made = describe_swap(model)["layers"] if swapped_in(model) else {}
    layers = {name: layer for name, layer in swap["layers"].items() if made.get(name) != layer}
    return {**swap, "layers": layers}


def _check_keys(model: Any, info: Any) -> None:
    """Raise unless exactly the weights of all mixers were loaded.

    The function replaces `model._adjust_missing_and_unexpected_keys` while weights are loaded.

    Args:
        model: model with replaced attention.
        info: `LoadStateDictInfo` of transformers. The function removes the names of replaced
            attention.
    """
    del model._adjust_missing_and_unexpected_keys
    prefix = f"{model.base_model_prefix}."
    replaced = {name.removeprefix(prefix) for name in replaced_weights(model)}
    info.unexpected_keys = {
        key for key in info.unexpected_keys if key.removeprefix(prefix) not in replaced
    }
    places = {name.removeprefix(prefix) for name in swapped_in(model)}
    places |= {
        key.removeprefix(prefix).removesuffix(f".{LABEL}")
        for key in info.unexpected_keys
        if key.endswith(f".{LABEL}")
    }
    for problem, keys in (
        ("missing", info.missing_keys),
        ("unexpected", info.unexpected_keys),
        ("from another mixer or with other options", {key for key, *_ in info.mismatched_keys}),
    ):
        found = sorted(key for key in keys if _is_in(key.removeprefix(prefix), places))
        if found:
            info.mismatched_keys.clear()  # transformers would report these instead
            raise InputError(
                f"weights: expected the weights of the mixers in this config, got {found[0]} "
                f"{problem}. Load the files that were saved with this config"
            )
    model._adjust_missing_and_unexpected_keys(info)


def _is_in(key: str, places: Collection[str]) -> bool:
    """Return whether a key belongs to a mixer at a listed place."""
    place, _, rest = key.rpartition(f".{LABEL}")
    if place in places and not rest:
        return True
    return any(key.startswith(f"{place}.mixer.") for place in places)


def _show_original(module: SwappedAttention) -> None:
    """Expose the projections of the replaced attention to `_init_weights`.

    Some models initialize these projections from the module around them (BridgeTower, V-JEPA 2).
    They have no memory here.
    """
    original = module.original
    parts = [*original.named_children(), *original.named_parameters(recurse=False)]
    for name, part in parts:
        if name not in module._modules:
            vars(module).setdefault(name, part)


def _hide_original(module: SwappedAttention) -> None:
    for name, part in list(vars(module).items()):
        if isinstance(part, nn.Module | nn.Parameter):
            delattr(module, name)
