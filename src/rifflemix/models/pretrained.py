"""Saved models: a folder with config.json and model.safetensors, loaded without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model

from rifflemix import __version__
from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.files import make_folder, read_json, user_path
from rifflemix.json_values import parse_json
from rifflemix.models.presets import build_model
from rifflemix.models.weights_file import (
    FLOATS,
    Outline,
    misfit,
    outline_of,
    read_outline,
    write_described,
)

if TYPE_CHECKING:
    from rifflemix.models.base import Model

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FORMAT = "rifflemix.model/1"
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS}


def save_pretrained(model: Model, folder: str | Path) -> None:
    """Write the name, settings and weights of a model to `folder`.

    Each file is written atomically. Every tensor keeps its dtype.

    Raises:
        InputError: `create_model` did not build the model, or its tensors no longer match its
            settings. Also if the weights are on the meta device, a setting cannot be stored as
            JSON, or the folder cannot be written.
    """
    folder = user_path("folder", folder)
    if model.name is None:
        raise InputError(
            f"cannot save a {type(model).__name__} that was not built by create_model: "
            "its settings are unknown"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise bad_argument("model", "allocated weights", "a model on the meta device")
    config = {
        "format": _FORMAT,
        "name": model.name,
        "settings": _json_settings(model.settings),
        "dtype": _dtype_name(model),
        "rifflemix_version": __version__,
    }
    changed = _misfit(outline_of(model.state_dict()), config)
    if changed is not None:
        raise bad_argument(
            "model", f"one {changed[1]}, as its settings make it", changed[0], "keep its state_dict"
        )
    make_folder(folder)
    write_described(
        folder / WEIGHTS, lambda path: save_model(model, str(path)), folder / CONFIG, config
    )


def from_pretrained(folder: str | Path) -> Model:
    """Build the model that `save_pretrained` wrote, in evaluation mode, on the CPU.

    Raises:
        InputError: the folder or a file is missing, damaged, or belongs to another model.
    """
    folder = user_path("folder", folder)
    config = _read_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        raise InputError(f"{folder} holds no saved model: {WEIGHTS} is missing")
    outline = _checked_outline(path, config)
    model = build_model(config["name"], config["settings"])
    model.to(_DTYPES[config["dtype"]])
    _take_dtypes(model, outline)
    try:
        load_model(model, path)
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{path} does not fit the model {config['name']}: {reason}") from error
    return model.eval()


def _checked_outline(path: Path, config: Mapping[str, Any]) -> Outline:
    """Compare the weights header with the configuration, before allocating memory."""
    outline, layers = read_outline(path), config["settings"].get("num_layers")
    does_not_fit = f"{path} does not fit the model {config['name']}: expected"
    if isinstance(layers, int) and layers > len(outline.shapes):
        raise InputError(f"{does_not_fit} {layers} layers, got {len(outline.shapes)} tensors")
    found = _misfit(outline, config)
    if found is not None:
        raise InputError(f"{does_not_fit} a model {found[1]}, got {found[0]}")
    return outline


def _misfit(outline: Outline, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Compare weights with the model of a configuration, see `misfit`."""
    try:
        with torch.device("meta"):
            model = build_model(config["name"], config["settings"])
    except RuntimeError as error:
        if "meta" in str(error):  # a third-party model that reads values in its constructor
            return None
        raise
    return misfit(outline, model.state_dict())


def _take_dtypes(model: Model, outline: Outline) -> None:
    """Convert each floating-point tensor to its dtype in the file."""
    dtypes = {stored: dtype for dtype, stored in FLOATS.items()}
    for name, tensor in model.state_dict(keep_vars=True).items():
        stored = dtypes.get(outline.dtypes.get(name, ""), tensor.dtype)
        if tensor.is_floating_point() and tensor.dtype != stored:
            tensor.data = tensor.data.to(stored)


def _json_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings to JSON values for config.json."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        try:
            plain[name] = as_json(value)
        except ValueError as error:
            raise bad_argument(f"setting {name}", "a value for config.json", error) from None
    return plain


def as_json(value: Any) -> Any:
    """Convert a value to JSON types.

    Numbers and arrays of NumPy and torch become Python numbers and lists.

    Raises:
        ValueError: JSON cannot represent the value.
    """
    try:
        return parse_json(json.dumps(value, default=_plain, allow_nan=False))
    except (TypeError, RecursionError) as error:
        raise ValueError(error) from error


def _plain(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        raise TypeError(f"a {type(value).__name__}, which JSON cannot hold")
    return value.tolist()


_OTHER_FOLDERS = (
    (
        {"config", "task", "model"},
        "a training run",
        "create the model with the run's settings and the sizes of its task, load "
        "best.safetensors with safetensors.torch.load_model, and save it in another folder",
    ),
    ({"format", "data", "processes"}, "a training", "its subfolder run is a training run"),
    ({"mixers"}, "a comparison", "its subfolders MIXER/seedN are training runs"),
    ({"grid"}, "a sweep", "its subfolders are training runs"),
    (
        {"model_type"},
        "a model of transformers",
        "call rifflemix.register_hf(), then from_pretrained of transformers",
    ),
)
"""Folders that are not saved models: keys of config.json, kind of folder, how to load from it."""


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            f"{folder} holds no saved model: {CONFIG} is missing; save one with save_pretrained"
        )
    config = read_json(path, "save the model again")
    for marks, other, advice in _OTHER_FOLDERS if isinstance(config, dict) else ():
        if marks <= config.keys():
            raise bad_argument("folder", "a model that save_pretrained wrote", other, advice)
    keys = {"format": str, "name": str, "settings": dict, "dtype": str}
    if not isinstance(config, dict) or any(
        not isinstance(config.get(key), kind) for key, kind in keys.items()
    ):
        raise InputError(f"{path} is damaged: expected the keys {', '.join(keys)}")
    if config["format"] != _FORMAT:
        raise InputError(f"{path}: expected format {_FORMAT!r}, got {config['format']!r}")
    check_choice(f"dtype in {path}", config["dtype"], _DTYPES)
    return config


def _dtype_name(model: Model) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
