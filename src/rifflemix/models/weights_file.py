"""Compare the header of a weights file with a model before the model is built.

The header of a safetensors file is small and is checked on opening. The sizes in config.json are
not trusted, because building a model from them could allocate any amount of memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.files import check_regular, read_text, write_atomically, write_json
from rifflemix.json_values import parse_json

FLOATS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
_OTHERS = {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


@dataclass(frozen=True)
class Outline:
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


def read_outline(path: Path) -> Outline:
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
    return Outline(shapes, dtypes, aliases)


def outline_of(state: Mapping[str, Tensor]) -> Outline:
    """Return the header that a state_dict would have in a file."""
    names = FLOATS | _OTHERS
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    dtypes = {name: names.get(t.dtype, str(t.dtype)) for name, t in state.items()}
    return Outline(shapes, dtypes, frozenset())


def misfit(outline: Outline, own: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Compare the header of a file with a model.

    Args:
        outline: header of the file.
        own: state_dict of the model; tensors on the meta device suffice.

    Returns:
        The first difference as (found in the file, expected by the model), or None.
    """
    for name, tensor in own.items():
        if name not in outline.shapes:
            if name not in outline.aliases:
                return f"{name} absent", f"with {tuple(tensor.shape)}"
        elif outline.shapes[name] != tuple(tensor.shape):
            return f"{name} of shape {outline.shapes[name]}", f"with {tuple(tensor.shape)}"
        elif not _fits(outline.dtypes[name], tensor.dtype):
            return f"{name} of type {outline.dtypes[name]}", f"with {tensor.dtype}"
    for name, shape in outline.shapes.items():
        if name not in own:
            return f"{name} of shape {shape}", "without it"
    return None


def _fits(stored: str, own: torch.dtype) -> bool:
    """Check that the model's dtype can load numbers of a stored dtype."""
    if own.is_floating_point:
        return stored in FLOATS.values()
    return stored == _OTHERS.get(own, stored)
