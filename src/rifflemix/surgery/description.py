"""Description of a swap as JSON values: the mixers, their places and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.json_values import check_json
from rifflemix.mixers import list_mixers
from rifflemix.models.pretrained import as_json, header_of, misfit
from rifflemix.surgery.settings import MixerSettings
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.wrappers import without_wrappers
from rifflemix.version import VERSION

_FORMAT = "rifflemix.swap/1"


class _Layer(TypedDict):
    mixer: str
    dim: int
    num_heads: int
    max_length: int | None
    layer_index: int
    num_layers: int
    causal: bool
    dropout: float
    options: dict[str, Any]


class _Description(TypedDict):
    format: str
    model: str
    layers: dict[str, _Layer]


def describe_swap(model: nn.Module) -> dict[str, Any]:
    """Describe replaced attention as JSON values for `apply_swap`.

    Args:
        model: model after `replace_attention`.

    Returns:
        Mixer, options and place of each replaced layer.

    Raises:
        InputError: nothing in the model was replaced. A mixer has no registry name, or has options
            that JSON does not support.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> report = rm.replace_attention(model, "tssa")
        >>> sorted(rm.surgery.describe_swap(model))
        ['format', 'layers', 'model', 'rifflemix_version']
    """
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    with without_wrappers(model) as alone:
        layers = {
            name: {**_layer(name, module.settings), "adapter": module.adapter}
            for name, module in alone.named_modules()
            if isinstance(module, SwappedAttention)
        }
    if not layers:
        raise InputError("model: expected replaced attention, got none; see replace_attention")
    return {
        "format": _FORMAT,
        "model": type(alone).__name__,
        "rifflemix_version": VERSION,
        "layers": layers,
    }


def check_description(description: Any) -> None:
    """Raise InputError unless `describe_swap` could have returned `description`."""
    try:
        check_json(description, _Description, "swap")
    except ValueError as error:
        raise InputError(f"the description of the swap is damaged: {error}") from None
    if description["format"] != _FORMAT:
        raise InputError(
            f"the description of the swap: expected format {_FORMAT!r}, "
            f"got {description['format']!r}"
        )


def settings_of(layer: Mapping[str, Any]) -> MixerSettings:
    """Return the mixer settings of a layer in a description."""
    return MixerSettings(**{key: layer[key] for key in _Layer.__annotations__})


def check_unchanged(state: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Raise if a mixer's tensors do not fit a new mixer.

    Loading copies the saved tensors into a new mixer.
    """
    for name, layer in description["layers"].items():
        place = f"{name}.mixer."
        mixer = {key: tensor for key, tensor in state.items() if key.startswith(place)}
        found = misfit(header_of(mixer), state_of_new(place, layer))
        if found is not None:
            raise bad_argument(
                f"mixer at {name}",
                f"one {found[1]}, as its settings make it",
                found[0],
                "undo what changed it, such as a parametrization, or keep its state_dict",
            )


def state_of_new(place: str, layer: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state_dict of a new mixer on the meta device."""
    with torch.device("meta"):
        mixer = settings_of(layer).build()
    return {place + key: tensor for key, tensor in mixer.state_dict().items()}


def _layer(name: str, settings: MixerSettings | None) -> _Layer:
    if settings is None or settings.mixer not in list_mixers():
        got = "none" if settings is None else repr(settings.mixer)
        raise InputError(
            f"{name}: expected a mixer with a registry name, got {got}; "
            "register its class with register_mixer and replace by name"
        )
    values = asdict(settings)
    try:
        values["options"] = as_json(values["options"])
    except ValueError as error:
        raise bad_argument(f"options of {name}", "values for JSON", error) from None
    return cast(_Layer, values)
