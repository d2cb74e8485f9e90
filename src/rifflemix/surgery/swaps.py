"""Apply, undo, save and load replacements of attention.

On disk, swap.json describes the mixers and model.safetensors contains the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import make_folder, read_json, user_path
from rifflemix.mixers import TokenMixer
from rifflemix.models.pretrained import FileHeader, misfit, read_header, write_described
from rifflemix.surgery.adapters import ParentChange, returned
from rifflemix.surgery.description import (
    check_description,
    check_unchanged,
    describe_swap,
    settings_of,
    state_of_new,
)
from rifflemix.surgery.hub.saving import save_swaps
from rifflemix.surgery.settings import MixerSettings
from rifflemix.surgery.sites import Site, check_model, check_whole, find_sites, is_registered
from rifflemix.surgery.swapped import SwappedAttention, place_of
from rifflemix.surgery.weights import compute_weights
from rifflemix.surgery.wrappers import inside, is_compiled, without_wrappers

_BEFORE = "_before_surgery"


class Swap(NamedTuple):
    """A replacement that is prepared but not yet applied."""

    site: Site
    settings: MixerSettings
    module: SwappedAttention
    copied: list[str]


def restore_attention(model: nn.Module) -> list[str]:
    """Restore the attention modules that `replace_attention` removed.

    The restored modules have their old weights and the current training mode. The weights of the
    mixers are lost.

    Args:
        model: model with replaced attention, or a part of the model. A part does not restore
            attributes of modules around it. Restore the whole model to enable nested tensors in
            `torch.nn.TransformerEncoder` again.

    Returns:
        Names of the restored modules. The list is empty if nothing was replaced.

    Raises:
        InputError: the model was loaded without the attention that the mixers replaced.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> report = rm.replace_attention(model, "tssa")
        >>> rm.restore_attention(model)
        ['self_attn']
        >>> type(model.self_attn).__name__
        'MultiheadAttention'
    """
    if isinstance(model, nn.Module) and isinstance(inside(model), SwappedAttention):
        raise bad_argument("model", "a module around the replaced attention", "one of these alone")
    back = []
    named = dict(model.named_modules(remove_duplicate=False))
    for name, module in named.items():
        if isinstance(module, SwappedAttention) and _is_gone(module):
            raise InputError(
                f"model: {name} was loaded without the attention that it replaced; load the "
                "original model instead"
            )
    for name, module in named.items():
        if isinstance(module, SwappedAttention):
            parent, _, attribute = name.rpartition(".")
            while is_compiled(named[parent]):
                parent, _, attribute = parent.rpartition(".")
            module.original.train(module.training)
            setattr(named[parent], attribute, module.original)
            back.append(name)
    _unchange(model.modules())
    return back


def _is_gone(module: SwappedAttention) -> bool:
    """Return whether the replaced attention has no memory although the mixer has."""
    return any(p.is_meta for p in module.original.parameters()) and not any(
        p.is_meta for p in module.mixer.parameters()
    )


def prepare(site: Site, settings: MixerSettings, init: str) -> Swap:
    """Build and wrap the mixer for one site without changing the model."""
    original = site.module
    place = place_of(original)
    if place is None:
        mixer = settings.build()
    else:
        # Ignore torch's default device (it may be meta). Allocate nothing for meta hosts.
        with torch.device("meta" if place[0].type == "meta" else "cpu"):
            mixer = settings.build().to(device=place[0], dtype=place[1])
        if place[0].type == "meta" and not _has_no_memory(site.parents[0]):
            settings.fill_constants(mixer)
            _mark_unloaded(mixer)
    copied: list[str] = []
    if init == "copy":
        compute_weights(original)
        copied = site.adapter.copy_weights(original, mixer)
    wrapped = site.adapter.wrap(original, mixer)
    module = returned(site.adapter, "wrap", wrapped, SwappedAttention)
    return Swap(site, settings, module, copied)


def _has_no_memory(model: nn.Module) -> bool:
    """Return whether constants belong on meta, like the weights of the model.

    `accelerate.init_empty_weights` keeps constants in memory, since no file contains them.
    """
    on_meta = torch.get_default_device().type == "meta"
    return on_meta or any(buffer.is_meta for buffer in model.buffers())


def _mark_unloaded(mixer: TokenMixer) -> None:
    """Fill the buffers that files contain with NaN, so that `check_loaded` detects them.

    accelerate does not load buffers into modules on disk, and moves buffers to the CPU.
    """
    for name, buffer in mixer.named_buffers():
        if buffer.is_meta:
            owner, _, key = name.rpartition(".")
            empty = torch.full_like(buffer, torch.nan, device="cpu")
            mixer.get_submodule(owner).register_buffer(key, empty)


def commit(swaps: Sequence[Swap]) -> None:
    """Insert the prepared modules into the model. Undo everything on an error."""
    done: list[tuple[nn.Module, str, Any]] = []
    try:
        for swap in swaps:
            for parent, attribute in swap.site.places:
                done.append((parent, attribute, swap.site.module))
                setattr(parent, attribute, swap.module)
            swap.module.name_mixer(swap.settings, swap.site.adapter.name, swap.site.name)
        for swap in swaps:
            site = swap.site
            for change in site.adapter.parent_changes(site.module, site.parents):
                _change(change)
        save_swaps()
    except BaseException:
        for parent, attribute, original in reversed(done):
            setattr(parent, attribute, original)
        _unchange(parent for swap in swaps for parent in swap.site.parents)
        raise


def _change(change: ParentChange) -> None:
    before = vars(change.module).setdefault(_BEFORE, {})
    before.setdefault(change.attribute, getattr(change.module, change.attribute))
    setattr(change.module, change.attribute, change.value)


def _unchange(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        for attribute, value in vars(module).pop(_BEFORE, {}).items():
            setattr(module, attribute, value)


SWAP, WEIGHTS = "swap.json", "model.safetensors"
# Errors of torch for tensor sizes that are too large or invalid.
_TOO_LARGE = (RuntimeError, MemoryError, OverflowError, TypeError)
_M = TypeVar("_M", bound=nn.Module)


def apply_swap(model: nn.Module, description: Mapping[str, Any]) -> None:
    """Replace the attention in `model` according to a description.

    The new mixers have initial weights.

    Args:
        model: model of the architecture before the swap.
        description: description from `describe_swap`.

    Raises:
        InputError: the description is damaged or does not match the model. The model is unchanged.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> report = rm.replace_attention(model, "tssa")
        >>> fresh = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> rm.surgery.apply_swap(fresh, rm.surgery.describe_swap(model))
        >>> type(fresh.self_attn.mixer).__name__
        'TSSA'
    """
    check_description(description)
    check_model(model)
    with without_wrappers(model) as alone:
        _apply(alone, description)


def _apply(model: nn.Module, description: Mapping[str, Any]) -> None:
    sites = {site.name: site for site in find_sites(model)}
    swaps: list[Swap] = []
    for name, layer in description["layers"].items():
        site = sites.get(name)
        adapter = layer.get("adapter", "")
        if site is None and adapter and not is_registered(adapter):
            raise InputError(
                f"model: {name} was replaced with the adapter {adapter!r}, but no adapter "
                "has this name; pass it to rifflemix.register_adapter first"
            )
        if site is not None and site.host.refusal:
            raise InputError(f"model: {name} cannot be replaced; {site.host.refusal}")
        if site is None or site.host.dim != layer["dim"]:
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
    """Write a model with replaced attention to `folder`.

    Each file is written completely or not at all.

    Args:
        model: model after `replace_attention`.
        folder: new folder, or a folder to overwrite.

    Raises:
        InputError: see `describe_swap`. The weights are sharded or not in memory. The folder is not
            writable.

    Example:
        >>> import torch, rifflemix as rm
        >>> from pathlib import Path
        >>> model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> report = rm.replace_attention(model, "tssa")
        >>> rm.save_swapped(model, "my-model")
        >>> sorted(path.name for path in Path("my-model").iterdir())
        ['model.safetensors', 'swap.json']
    """
    folder = user_path("folder", folder)
    description = describe_swap(model)
    check_whole("model", model)
    with without_wrappers(model) as alone:
        check_unchanged(alone.state_dict(), description)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise bad_argument("model", "allocated weights", "a model on the meta device")
    make_folder(folder)
    with without_wrappers(model) as alone:
        write_described(
            folder / WEIGHTS, lambda path: save_model(alone, str(path)), folder / SWAP, description
        )


def load_swapped(folder: str | Path, model: _M) -> _M:
    """Replace attention and load the weights that `save_swapped` wrote.

    Loading is strict: every weight must exist and have the right shape.

    Args:
        folder: folder that `save_swapped` wrote.
        model: model of the same architecture before the swap. Its weights do not matter.

    Returns:
        The same model, changed in place. Mode, dtype and device stay the same.

    Raises:
        InputError: a file is missing or damaged, or belongs to another model. The model is
            unchanged.

    Example:
        >>> import torch, rifflemix as rm
        >>> original = torch.nn.TransformerEncoderLayer(64, 4)
        >>> report = rm.replace_attention(original, "tssa")
        >>> rm.save_swapped(original, "my-model")
        >>> model = rm.load_swapped("my-model", torch.nn.TransformerEncoderLayer(64, 4))
        >>> torch.equal(model.linear1.weight, original.linear1.weight)
        True
    """
    folder = user_path("folder", folder)
    for name in (SWAP, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(f"{folder} holds no swapped model: {name} is missing")
    description = read_json(folder / SWAP, "save the model again")
    check_description(description)
    header = read_header(folder / WEIGHTS)
    try:
        _check_mixers(header, model, description)
        apply_swap(model, description)
    except InputError:
        raise
    except _TOO_LARGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{folder / SWAP}: no such mixer can be made here: {reason}") from error
    try:
        with without_wrappers(model) as alone:
            _check_weights(header, alone, description)
            load_model(alone, folder / WEIGHTS)
    except InputError:
        restore_attention(model)
        raise
    except (OSError, SafetensorError) as error:
        restore_attention(model)
        raise InputError(f"{folder / WEIGHTS} is damaged: {error}") from error
    return model


def _check_mixers(header: FileHeader, model: nn.Module, description: Mapping[str, Any]) -> None:
    """Check that the file fits the mixers before they are allocated."""
    for name, layer in description["layers"].items():
        place = f"{name}.mixer."
        own = state_of_new(place, layer)
        saved = {key: shape for key, shape in header.shapes.items() if key.startswith(place)}
        found = misfit(replace(header, shapes=saved), own)
        if found is not None:
            raise _other_model(model, description, *found)


def _check_weights(header: FileHeader, model: nn.Module, description: Mapping[str, Any]) -> None:
    """Check that the file contains all tensors, except aliases of shared memory."""
    own = model.state_dict()
    there = {tensor.data_ptr() for name, tensor in own.items() if name in header.shapes}
    shared = {name for name in header.aliases if name in own and own[name].data_ptr() in there}
    found = misfit(replace(header, aliases=frozenset(shared)), own)
    if found is not None:
        raise _other_model(model, description, *found)
    if any(tensor.is_meta for tensor in own.values()):
        raise bad_argument("model", "allocated weights", "a model on the meta device")


def _other_model(
    model: nn.Module, description: Mapping[str, Any], wanted: str, got: str = "without it"
) -> InputError:
    return bad_argument(
        "model",
        f"the {description['model']} that was saved, with {wanted}",
        f"a {type(model).__name__} {got}",
        "build it with the same settings, before the swap",
    )
