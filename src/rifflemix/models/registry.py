"""The registry of models. Each family of presets is one line in this module.

Third-party models come from `register_model` and from the entry points `rifflemix.models`.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

from rifflemix.models.base import Model
from rifflemix.models.graphs import graphormer
from rifflemix.models.language import gpt_presets, seq2seq
from rifflemix.models.presets import (
    ModelCard,
    add_presets,
    build_model,
    find_preset,
    preset_names,
    usable_presets,
)
from rifflemix.models.sequence import encoder, imdb, lra, mega, point_cloud, s4
from rifflemix.models.vision import (
    dimension_mixer,
    mlp_mixer,
    patch_only,
    resnet_mixers,
    tost_presets,
    vit,
)

for _family in (
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
):
    add_presets(_family.PRESETS)


def list_models() -> list[str]:
    """List the names of all registered models, without importing third-party packages."""
    return preset_names()


def usable_models() -> list[str]:
    """List the models that can be imported; warn about the others."""
    return usable_presets()


def model_card(name: str) -> ModelCard:
    """Return the card of a registered model.

    Raises:
        InputError: the name is unknown; the message suggests a similar name.
    """
    return find_preset(name).card


def model_settings(name: str) -> dict[str, Any]:
    """Return the names and default values of the settings of a model.

    `create_model` can override each of them.
    """
    preset = find_preset(name)
    parameters = inspect.signature(preset.build).parameters.values()
    settings = {p.name: p.default for p in parameters} | dict(preset.settings)
    return copy.deepcopy(settings)


def create_model(name: str, **overrides: Any) -> Model:
    """Build a model by name.

    Args:
        name: one of `list_models()`.
        overrides: new values for settings of the model; `model_settings(name)` lists them all.

    Raises:
        InputError: the name or a setting is unknown, or a value is out of range.
    """
    return build_model(name, {**find_preset(name).settings, **overrides})
