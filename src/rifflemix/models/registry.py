"""The one list of models. A family of presets is one line here."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.models.base import Model, ModelCard, Preset
from rifflemix.models.graphs import graphormer
from rifflemix.models.language import gpt_presets, seq2seq
from rifflemix.models.sequence import encoder, imdb, lra, mega, point_cloud, s4
from rifflemix.models.vision import (
    dimension_mixer,
    mlp_mixer,
    patch_only,
    resnet_mixers,
    tost_presets,
    vit,
)

_PRESETS: dict[str, Preset] = {
    preset.card.name: preset
    for family in (
        encoder,
        vit,
        tost_presets,
        lra,
        mega,
        s4,
        gpt_presets,
        seq2seq,
        dimension_mixer,
        mlp_mixer,
        patch_only,
        resnet_mixers,
        imdb,
        point_cloud,
        graphormer,
    )
    for preset in family.PRESETS
}


def list_models() -> list[str]:
    """Names of all registered models."""
    return list(_PRESETS)


def model_card(name: str) -> ModelCard:
    """The card of a registered model; an unknown name suggests the nearest."""
    return _preset(name).card


def model_settings(name: str) -> dict[str, Any]:
    """Names of the settings of a model that can be overridden, and their values."""
    preset = _preset(name)
    parameters = inspect.signature(preset.build).parameters.values()
    settings = {p.name: p.default for p in parameters} | dict(preset.settings)
    return copy.deepcopy(settings)


def create_model(name: str, **overrides: Any) -> Model:
    """Build a model by name.

    Args:
        name: one of `list_models()`.
        overrides: settings of the model that replace its own (`model_settings(name)` has them).

    Raises:
        InputError: unknown name or setting, or a value out of range.
    """
    return build_model(name, {**_preset(name).settings, **overrides})


def build_model(name: str, settings: Mapping[str, Any]) -> Model:
    """Build a model by name from all of its settings, those of its preset included."""
    preset = _preset(name)
    known = inspect.signature(preset.build).parameters
    for setting in settings:
        if setting not in known:
            raise bad_argument(f"settings of {name}", ", ".join(known), repr(setting))
    model = preset.build(**settings)
    # A copy: what the caller, or the preset, does with its dicts later is no setting of the model.
    model.name, model.settings = name, copy.deepcopy(dict(settings))
    return model


def _preset(name: str) -> Preset:
    if not isinstance(name, str) or name not in _PRESETS:
        raise unknown_name("model", name, _PRESETS)
    return _PRESETS[name]
