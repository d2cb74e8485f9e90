"""Prepare replacements, insert them into a model, and restore the attention of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import ParentChange, SwappedAttention, place_of, returned
from rifflemix.surgery.hosts.saving import save_swaps
from rifflemix.surgery.settings import MixerSettings
from rifflemix.surgery.sites import Site
from rifflemix.surgery.weights import compute_weights
from rifflemix.surgery.wrappers import inside, is_compiled

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
