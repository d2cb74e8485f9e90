"""The registry of models, and the table of all models.

Third-party models come from `register_model` and from the entry points `rifflemix.models`.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import asdict
from typing import Any

import torch

from rifflemix.errors import InputError
from rifflemix.models import graphormer
from rifflemix.models.base import Model
from rifflemix.models.language import presets as language_presets
from rifflemix.models.presets import (
    ModelCard,
    add_presets,
    build_model,
    find_preset,
    preset_names,
    usable_presets,
)
from rifflemix.models.sequence import compressor, encoder, mega, s4
from rifflemix.models.vision import dimension_mixer, mlp_mixer, patch_only, resnet_mixers, tost, vit

for _presets in (
    encoder.PRESETS,
    compressor.PRESETS,
    vit.PRESETS,
    tost.PRESETS,
    encoder.LRA_PRESETS,
    mega.PRESETS,
    s4.PRESETS,
    language_presets.GPT_PRESETS,
    language_presets.SEQ2SEQ_PRESETS,
    dimension_mixer.PRESETS,
    mlp_mixer.PRESETS,
    patch_only.PRESETS,
    resnet_mixers.PRESETS,
    encoder.IMDB_PRESETS,
    encoder.POINT_CLOUD_PRESETS,
    graphormer.PRESETS,
):
    add_presets(_presets)


def list_models() -> list[str]:
    """List the names of all registered models, without importing third-party packages.

    Returns:
        Names for `create_model`.

    Example:
        >>> import rifflemix as rm
        >>> rm.list_models()[:4]
        ['encoder', 'compressor', 'causal_compressor', 'vit_mnist']
    """
    return preset_names()


def usable_models() -> list[str]:
    """List the models that can be imported; warn about the others.

    Returns:
        Names for `create_model`.

    Example:
        >>> import rifflemix as rm
        >>> "encoder" in rm.models.usable_models()
        True
    """
    return usable_presets()


def model_card(name: str) -> ModelCard:
    """Return the card of a registered model.

    Args:
        name: name in `list_models()`.

    Returns:
        The card.

    Raises:
        InputError: the name is unknown; the message suggests a similar name.

    Example:
        >>> import rifflemix as rm
        >>> card = rm.models.model_card("tost_tiny_16")
        >>> card.inputs, card.printed
        ('images', '5.8 M')
    """
    return find_preset(name).card


def model_settings(name: str) -> dict[str, Any]:
    """Return the names and default values of the settings of a model.

    `create_model` can override each of them.

    Args:
        name: name in `list_models()`.

    Returns:
        Setting -> default value.

    Raises:
        InputError: the name is unknown.

    Example:
        >>> import rifflemix as rm
        >>> settings = rm.models.model_settings("gpt")
        >>> settings["mixer"], settings["dim"], settings["num_layers"]
        ('softmax', 64, 2)
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

    Returns:
        The model.

    Raises:
        InputError: the name or a setting is unknown, or a value is out of range.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("encoder", vocab_size=100, mixer="csp+softmax", num_layers=4)
        >>> model(torch.randint(100, (2, 512))).shape
        torch.Size([2, 10])
    """
    return build_model(name, {**find_preset(name).settings, **overrides}, Model)


_MILLION = " M"


def model_entries() -> list[dict[str, Any]]:
    """Return an entry for each registered model: its card, `parameters` and `difference`.

    `parameters` is None if the model cannot be built without choosing a size first. `difference` is
    our count minus the reported count, rounded to the digits of the paper. It is empty if the paper
    reports no count.
    """
    entries = []
    for name in usable_models():
        card, parameters = model_card(name), count_parameters(name)
        difference = "" if parameters is None else difference_to(card.printed, parameters)
        entries.append(asdict(card) | {"parameters": parameters, "difference": difference})
    return entries


def count_parameters(name: str, **overrides: Any) -> int | None:
    """Count the parameters of a model; None if a setting is missing.

    The model is built on the meta device and needs no memory.
    """
    try:
        with torch.device("meta"):
            return create_model(name, **overrides).num_parameters()
    except InputError:
        return None


def difference_to(printed: str, parameters: int) -> str:
    """Format our count minus the reported count: "0", "+12", "-0.04 M".

    The difference is rounded to the digits of the reported count.
    """
    if not printed:
        return ""
    if not printed.endswith(_MILLION):
        return _signed(parameters - int(printed), 0)
    number = printed.removesuffix(_MILLION)
    digits = len(number.partition(".")[2])
    text = _signed(round(parameters / 1e6, digits) - float(number), digits)
    return text if text == "0" else text + _MILLION


def _signed(value: float, digits: int) -> str:
    text = f"{value:+,.{digits}f}"
    return "0" if float(text.replace(",", "")) == 0 else text
