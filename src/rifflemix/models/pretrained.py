"""Saved models: a folder with config.json and model.safetensors, loaded without pickle.

The header of a safetensors file is small and is checked on opening. The sizes in config.json are
not trusted, because building a model from them could allocate any amount of memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.files import (
    check_regular,
    make_folder,
    read_json,
    read_text,
    user_path,
    write_atomically,
    write_json,
)
from rifflemix.json_values import parse_json
from rifflemix.models.presets import NamedModel, build_model
from rifflemix.version import VERSION

FLOATS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
_OTHERS = {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


@dataclass(frozen=True)
class FileHeader:
    """The header of a weights file.

    Attributes:
        shapes: shape of each tensor.
        dtypes: dtype of each tensor, in the notation of safetensors.
        aliases: tensors that are not stored because they share memory with a stored tensor.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    aliases: frozenset[str]


def write_described(
    weights: Path, write: Callable[[Path], object], about: Path, description: Mapping[str, Any]
) -> None:
    """Write weights and their description.

    The two files on disk never contradict each other, even after an interruption.

    Args:
        weights: path of the weights; an existing file is replaced.
        write: function that writes the weights to a path.
        about: path of the description, written last. An old description is deleted first if it
            differs.
        description: JSON values.

    Raises:
        InputError: a file cannot be written.
    """

    def write_alone(temporary: Path) -> None:
        write(temporary)
        if not _holds(about, description):
            about.unlink(missing_ok=True)

    write_atomically(weights, write_alone)
    write_json(about, description)


def _holds(path: Path, value: Mapping[str, Any]) -> bool:
    try:
        return bool(parse_json(read_text(path)) == json.loads(json.dumps(value)))
    except (OSError, ValueError):
        return False


def read_header(path: Path) -> FileHeader:
    """Read the header of a safetensors file.

    Raises:
        InputError: the file cannot be read or is not a safetensors file.
    """
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            shapes = {name: tuple(part.get_shape()) for name, part in parts.items()}
            dtypes = {name: str(part.get_dtype()) for name, part in parts.items()}
            aliases = frozenset(file.metadata() or {}) - {"format"}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return FileHeader(shapes, dtypes, aliases)


def header_of(state: Mapping[str, Tensor]) -> FileHeader:
    """Return the header that a state_dict would have in a file."""
    names = FLOATS | _OTHERS
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    dtypes = {name: names.get(t.dtype, str(t.dtype)) for name, t in state.items()}
    return FileHeader(shapes, dtypes, frozenset())


def misfit(header: FileHeader, own: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Compare the header of a file with a model.

    Args:
        header: header of the file.
        own: state_dict of the model; tensors on the meta device suffice.

    Returns:
        The first difference as (found in the file, expected by the model), or None.
    """
    for name, tensor in own.items():
        if name not in header.shapes:
            if name not in header.aliases:
                return f"{name} absent", f"with {tuple(tensor.shape)}"
        elif header.shapes[name] != tuple(tensor.shape):
            return f"{name} of shape {header.shapes[name]}", f"with {tuple(tensor.shape)}"
        elif not _fits(header.dtypes[name], tensor.dtype):
            return f"{name} of type {header.dtypes[name]}", f"with {tensor.dtype}"
    for name, shape in header.shapes.items():
        if name not in own:
            return f"{name} of shape {shape}", "without it"
    return None


def _fits(stored: str, own: torch.dtype) -> bool:
    """Check that the model's dtype can load numbers of a stored dtype."""
    if own.is_floating_point:
        return stored in FLOATS.values()
    return stored == _OTHERS.get(own, stored)


_Model = TypeVar("_Model", bound=NamedModel)

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FORMAT = "rifflemix.model/1"
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS}


def save_pretrained(model: NamedModel, folder: str | Path) -> None:
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
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "rifflemix_version": VERSION,
    }
    changed = _misfit(header_of(model.state_dict()), config)
    if changed is not None:
        raise bad_argument(
            "model",
            f"one {changed[1]}, as its settings make it",
            changed[0],
            "keep its state_dict, or use rifflemix.save_swapped after replace_attention",
        )
    make_folder(folder)
    write_described(
        folder / WEIGHTS, lambda path: save_model(model, str(path)), folder / CONFIG, config
    )


def from_pretrained(folder: str | Path, kind: type[_Model]) -> _Model:
    """Build the model that `save_pretrained` wrote, in evaluation mode, on the CPU.

    Raises:
        InputError: the folder or a file is missing, damaged, or belongs to a model that is not a
            `kind`.
    """
    folder = user_path("folder", folder)
    config = _read_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        raise InputError(f"{folder} holds no saved model: {WEIGHTS} is missing")
    header = _checked_header(path, config)
    model = build_model(config["name"], config["settings"], kind)
    model.to(_DTYPES[config["dtype"]])
    _take_dtypes(model, header)
    try:
        load_model(model, path)
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{path} does not fit the model {config['name']}: {reason}") from error
    return model.eval()


def _checked_header(path: Path, config: Mapping[str, Any]) -> FileHeader:
    """Compare the weights header with the configuration, before allocating memory."""
    header, layers = read_header(path), config["settings"].get("num_layers")
    does_not_fit = f"{path} does not fit the model {config['name']}: expected"
    if isinstance(layers, int) and layers > len(header.shapes):
        raise InputError(f"{does_not_fit} {layers} layers, got {len(header.shapes)} tensors")
    found = _misfit(header, config)
    if found is not None:
        raise InputError(f"{does_not_fit} a model {found[1]}, got {found[0]}")
    return header


def _misfit(header: FileHeader, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Compare weights with the model of a configuration, see `misfit`."""
    try:
        with torch.device("meta"):
            model = build_model(config["name"], config["settings"], NamedModel)
    except RuntimeError as error:
        if "meta" in str(error):  # a third-party model that reads values in its constructor
            return None
        raise
    return misfit(header, model.state_dict())


def _take_dtypes(model: NamedModel, header: FileHeader) -> None:
    """Convert each floating-point tensor to its dtype in the file."""
    dtypes = {stored: dtype for dtype, stored in FLOATS.items()}
    for name, tensor in model.state_dict(keep_vars=True).items():
        stored = dtypes.get(header.dtypes.get(name, ""), tensor.dtype)
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
        raise TypeError(f"a {type(value).__name__}, but JSON does not support it")
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
