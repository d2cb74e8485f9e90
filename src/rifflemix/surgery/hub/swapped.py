"""`from_pretrained` of models of transformers that were saved with their swap.

Imported by `rifflemix.register_hf`; the file itself tells transformers of the two classes.
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
from rifflemix.surgery.adapters import SwappedAttention
from rifflemix.surgery.description import check_description, describe_swap
from rifflemix.surgery.hosts.transformers_saving import METHOD, replaced_weights, swapped_in
from rifflemix.surgery.label import LABEL
from rifflemix.surgery.storage import apply_swap


@register_quantization_config(METHOD)
class SwapConfig(QuantizationConfigMixin):
    """The swap as transformers reads it from a config.

    Args:
        swap: see `rifflemix.surgery.describe_swap`.
        read: what else the config says; not used.
    """

    def __init__(self, swap: Any = None, **read: Any) -> None:
        check_description(swap)
        self.quant_method = METHOD
        self.swap = swap


@register_quantizer(METHOD)
class SwapLoader(HfQuantizer):
    """Makes the swap in a model that `from_pretrained` has built, before its weights come.

    It goes when they are there: the model is not quantised, and trains as any other.
    """

    def is_serializable(self) -> bool:
        """Yes; saving goes through `SavePretrained`."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Yes."""
        return True

    def update_weight_conversions(self, weight_conversions: list[Any], *_: Any) -> list[Any]:
        """Keep the caller's `key_mapping` only; the file has the model's own names."""
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
    """The swap in the names of `model`, which may be the body of the model that was saved, or have
    it as its own body.
    """
    prefix = f"{model.base_model_prefix}."
    modules = dict(model.named_modules())

    def rename(name: str) -> str:
        other = name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
        return name if name in modules or other not in modules else other

    return {**swap, "layers": {rename(name): layer for name, layer in swap["layers"].items()}}


def _not_made_yet(model: nn.Module, swap: dict[str, Any]) -> dict[str, Any]:
    """The swap without the layers that the model has replaced alike in its own `__init__`."""
    made = describe_swap(model)["layers"] if swapped_in(model) else {}
    layers = {name: layer for name, layer in swap["layers"].items() if made.get(name) != layer}
    return {**swap, "layers": layers}


def _check_keys(model: Any, info: Any) -> None:
    """Raise unless the weights of all mixers, and no others, were loaded.

    Takes the place of `_adjust_missing_and_unexpected_keys` of `model` while weights are loaded.

    Args:
        model: the model with its swap.
        info: `LoadStateDictInfo` of transformers; names of replaced attention are removed from it.
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
    """Return whether a key names a tensor of the mixer at one of these places."""
    place, _, rest = key.rpartition(f".{LABEL}")
    if place in places and not rest:
        return True
    return any(key.startswith(f"{place}.mixer.") for place in places)


def _show_original(module: SwappedAttention) -> None:
    """Let the host initialise maps of the replaced attention, which have no memory here.

    Some name them in the `_init_weights` of what is around it (BridgeTower, V-JEPA 2).
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
