"""Swapped models on disk: swap.json says which mixer is where, model.safetensors holds weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import make_folder, read_json, user_path, write_atomically, write_json
from rifflemix.surgery.adapters import SwappedAttention
from rifflemix.surgery.description import (
    check_description,
    describe_swap,
    settings_of,
    uncompiled,
)
from rifflemix.surgery.replace import Swap, commit, prepare, restore_attention
from rifflemix.surgery.sites import find_sites

SWAP, WEIGHTS = "swap.json", "model.safetensors"
_M = TypeVar("_M", bound=nn.Module)


def apply_swap(model: nn.Module, description: Mapping[str, Any]) -> None:
    """Replace the attention in `model` as a description says; the mixers are newly initialised.

    Raises:
        InputError: the description is damaged, or the model is not what it describes; nothing is
            changed then.
    """
    check_description(description)
    model = uncompiled(model)
    sites = {site.name: site for site in find_sites(model)}
    swaps: list[Swap] = []
    for name, layer in description["layers"].items():
        site = sites.get(name)
        if site is None or site.host.refusal or site.host.dim != layer["dim"]:
            raise _other_model(
                model, description, f"attention of {layer['dim']} channels at {name}"
            )
        if isinstance(site.module, SwappedAttention):
            raise bad_argument(
                "model", "the architecture before the swap", f"replaced attention at {name}"
            )
        settings = settings_of(layer)
        swaps.append(prepare(site, settings, "fresh"))
    commit(swaps)


def save_swapped(model: nn.Module, folder: str | Path) -> None:
    """Write a model with replaced attention to `folder`, each file whole or not at all.

    Args:
        model: changed by `replace_attention`.
        folder: new, or one to write over.

    Raises:
        InputError: see `describe_swap`; a model without weights in memory, an unwritable folder.
    """
    folder = user_path("folder", folder)
    description = describe_swap(model)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise bad_argument("model", "allocated weights", "a model on the meta device")
    make_folder(folder)
    # The description goes last: a folder that has one is complete.
    write_atomically(folder / WEIGHTS, lambda path: save_model(uncompiled(model), str(path)))
    write_json(folder / SWAP, description)


def load_swapped(folder: str | Path, model: _M) -> _M:
    """Swap and load what `save_swapped` wrote, strictly: every weight must be there and fit.

    Args:
        folder: written by `save_swapped`.
        model: the same architecture before the swap; its weights do not matter.

    Returns:
        The same model, changed in place, in the mode, dtype and device that it has.

    Raises:
        InputError: a file is missing or damaged, or the model is another; it is unchanged then.
    """
    folder = user_path("folder", folder)
    for name in (SWAP, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(f"{folder} holds no swapped model: {name} is missing")
    description = read_json(folder / SWAP)
    apply_swap(model, description)
    try:
        _check_weights(folder / WEIGHTS, uncompiled(model), description)
    except InputError:
        restore_attention(model)
        raise
    load_model(uncompiled(model), folder / WEIGHTS)
    return model


def _check_weights(path: Path, model: nn.Module, description: Mapping[str, Any]) -> None:
    """Raise unless the file has the model's tensors, but for those that share another's memory."""
    try:
        with safe_open(path, framework="pt") as file:
            saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no dict)
            aliases = set(file.metadata() or {}) - {"format"}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in own.items():
        if name not in aliases and saved.get(name) != shape:
            there = f"of shape {saved[name]}" if name in saved else "absent"
            raise _other_model(model, description, f"{name} {there}", f"with {shape}")
    for name, shape in saved.items():
        if name not in own:
            raise _other_model(model, description, f"{name} of shape {shape}")


def _other_model(
    model: nn.Module, description: Mapping[str, Any], wanted: str, got: str = "without it"
) -> InputError:
    return bad_argument(
        "model",
        f"the {description['model']} that was saved, with {wanted}",
        f"a {type(model).__name__} {got}",
        "build it with the same settings, before the swap",
    )
