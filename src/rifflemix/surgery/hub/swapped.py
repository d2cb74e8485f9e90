"""`from_pretrained` of models of transformers that were saved with their swap.

Imported by `rifflemix.register_hf`; the file itself tells transformers of the two classes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from rifflemix.errors import InputError
from rifflemix.surgery.adapters import SwappedAttention
from rifflemix.surgery.description import check_description, describe_swap
from rifflemix.surgery.hosts.transformers_saving import METHOD, replaced_weights, swapped_in
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

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> Any:
        swap = _not_made_yet(model, _named_for(model, self.quantization_config.swap))
        if swap["layers"]:
            apply_swap(model, swap)
        for module in swapped_in(model).values():
            _show_original(module)
        _check_all_are_there(model, options.get("checkpoint_files"))
        # A body in a saved head has longer names in the file.
        ignored = {rf"(^|\.){re.escape(name)}$" for name in replaced_weights(model)}
        known = model._keys_to_ignore_on_load_unexpected or set()
        model._keys_to_ignore_on_load_unexpected = set(known) | ignored
        return model

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        for module in swapped_in(model).values():
            _hide_original(module)
            _fill_constants(module)
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


def _check_all_are_there(model: nn.Module, files: Sequence[str] | None) -> None:
    """Raise unless files hold the weights of these mixers; others transformers draws at random."""
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        return
    # What stands before a mixer transformers may rename, what stands after it is ours.
    saved: Counter[str] = Counter()
    others = _around_other_mixers(model)
    for path in files:
        with safe_open(path, framework="pt") as file:
            saved += _in_mixers(file.keys(), others)
    own = _in_mixers(
        f"{name}.mixer.{key}"
        for name, module in swapped_in(model).items()
        for key in module.mixer.state_dict()
    )
    missing, unknown = own - saved, saved - _in_mixers(model.state_dict(), others)
    if missing or unknown:
        there = own.total() - missing.total() + unknown.total()
        raise InputError(
            f"{files[0]}: expected {own.total()} tensors of the mixers, got {there} "
            f"({'without' if missing else 'also'} {min(missing or unknown)}); the weights are not "
            "those that were saved with this config"
        )


def _around_other_mixers(model: nn.Module) -> set[str]:
    """What modules are called in which a host calls a part of its own "mixer" (Nemotron-H)."""
    swapped = swapped_in(model)
    parts = (name.rpartition(".") for name, _ in model.named_modules())
    around = {name for name, _, part in parts if part == "mixer"} - swapped.keys()
    return {name.rpartition(".")[2] for name in around}


def _in_mixers(names: Iterable[str], others: Collection[str] = ()) -> Counter[str]:
    """Names after the last "mixer." in them, and how often each is there.

    Args:
        names: of tensors.
        others: what the modules around mixers are called that are none of ours.
    """
    parts = (name.rpartition(".mixer.") for name in names)
    ours = ((a, key) for a, _, key in parts if a and a.rpartition(".")[2] not in others)
    return Counter(key for _, key in ours)


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


def _fill_constants(module: SwappedAttention) -> None:
    """Numbers of a mixer that no file holds, which were built without memory."""
    mixer, settings = module.mixer, module.settings
    if settings is None:
        raise InputError("a swapped layer: expected its settings, got none")
    saved = set(mixer.state_dict())
    if all(name in saved for name, _ in mixer.named_buffers()):
        return
    with torch.random.fork_rng():
        fresh = settings.build()
    for name, buffer in fresh.named_buffers():
        if name not in saved:
            mixer.get_buffer(name).copy_(buffer)
