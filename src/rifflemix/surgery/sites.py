"""Find the attention modules of a model: the registry of adapters, and the sites."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from rifflemix.checks import check_integers
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import Adapter, HostAttention, looks_like_attention, returned
from rifflemix.surgery.hosts import ADAPTERS
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.wrappers import inside, is_compiled

_registered: list[Adapter] = []


def register_adapter(adapter: Adapter) -> Adapter:
    """Add an adapter for the attention of another host library.

    `replace_attention` tries the latest adapter first, and built-in adapters last.

    Args:
        adapter: instance of a subclass of `rifflemix.surgery.Adapter`.

    Returns:
        The same adapter.

    Raises:
        InputError: the argument is not an `Adapter`, or the adapter has no name.

    Example:
        >>> import torch, rifflemix as rm
        >>> from rifflemix.surgery import Adapter, HostAttention, SwappedAttention
        >>> class Averaging(torch.nn.Module):
        ...     def forward(self, tokens):
        ...         return tokens.mean(1, keepdim=True).expand_as(tokens)
        >>> class SwappedAveraging(SwappedAttention):
        ...     def forward(self, tokens):
        ...         return self.mixer(tokens)
        >>> class AveragingAdapter(Adapter):
        ...     name = "averaging"
        ...     def matches(self, module):
        ...         return isinstance(module, Averaging)
        ...     def describe(self, module, parents):
        ...         return HostAttention(dim=64, num_heads=4)
        ...     def wrap(self, module, mixer):
        ...         return SwappedAveraging(mixer, module)
        >>> adapter = rm.register_adapter(AveragingAdapter())
        >>> rm.replace_attention(torch.nn.Sequential(Averaging()), "tssa").replaced
        ['0']
    """
    if not isinstance(adapter, Adapter):
        raise bad_argument("adapter", "an instance of rifflemix.surgery.Adapter", repr(adapter))
    if not adapter.name:
        raise bad_argument("adapter", "a name for the reports", "an empty one")
    _registered.insert(0, adapter)
    return adapter


def adapter_for(module: nn.Module) -> Adapter | None:
    """Return the first adapter that matches `module`, or None."""
    return next((a for a in (*_registered, *ADAPTERS) if a.matches(module)), None)


def is_registered(name: str) -> bool:
    """Return whether an adapter with this name exists."""
    return any(adapter.name == name for adapter in (*_registered, *ADAPTERS))


Layers = str | Sequence[int] | Callable[..., bool]


@dataclass(frozen=True)
class Site:
    """Attention module in a model.

    Attributes:
        name: first name of the module in the model.
        module: attention module, or the `SwappedAttention` in its place.
        adapter: adapter that matched the module.
        host: description of the attention by the adapter.
        parents: modules around it, starting with the model.
        places: (parent, attribute) pairs that refer to the module. There are several if layers
            share it.
        stack: name of the stack of layers that contains the module.
    """

    name: str
    module: nn.Module
    adapter: Adapter
    host: HostAttention
    parents: tuple[nn.Module, ...]
    places: tuple[tuple[nn.Module, str], ...]
    stack: str


def find_sites(model: nn.Module) -> list[Site]:
    """Find all attention modules that an adapter supports, in model order.

    Raises:
        InputError: `model` is not a module, is itself an attention module, or has a wrapper for
            several devices.
    """
    check_model(model)
    named = dict(model.named_modules(remove_duplicate=False))
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    found: dict[int, tuple[str, Adapter]] = {}
    inside: tuple[str, ...] = ()
    for name, module in named.items():
        if inside and name.startswith(inside):
            continue
        adapter = adapter_for(module.original if isinstance(module, SwappedAttention) else module)
        if adapter is None:
            continue
        if not name:
            raise bad_argument(
                "model", "a module that holds attention", f"the attention {type(model).__name__}"
            )
        inside = (f"{name}.",)
        parent, _, attribute = name.rpartition(".")
        places.setdefault(id(module), []).append((named[parent], attribute))
        found.setdefault(id(module), (name, adapter))
    return [_site(name, adapter, named, places) for name, adapter in found.values()]


def select(sites: Sequence[Site], layers: Layers) -> list[bool]:
    """Return for each site whether `layers` selects it.

    Cross-attention has no index and is never selected.

    Raises:
        InputError: an index is out of range, or `layers` has the wrong type.
    """
    own = [i for i, site in enumerate(sites) if not site.host.cross]
    if isinstance(layers, str):
        if layers != "all":
            raise _bad_layers(layers)
        chosen = set(own)
    elif callable(layers):
        chosen = {own[i] for i in range(len(own)) if _asks(layers, i, sites[own[i]].name)}
    else:
        chosen = {own[_index(i, len(own))] for i in check_integers("layers", layers)}
    return [i in chosen for i in range(len(sites))]


def depths(sites: Sequence[Site]) -> dict[str, tuple[int, int]]:
    """Return (layer_index, num_layers) of each site in its stack.

    Cross-attention is skipped.
    """
    own = [site for site in sites if not site.host.cross]
    sizes = Counter(site.stack for site in own)
    seen: Counter[str] = Counter()
    result = {}
    for site in own:
        result[site.name] = (seen[site.stack], sizes[site.stack])
        seen[site.stack] += 1
    return result


def check_model(model: Any) -> None:
    """Raise InputError if surgery does not support the model.

    The model must be a module with whole weights, without a wrapper for several devices. No
    attention in it may be compiled on its own.
    """
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in {"DistributedDataParallel", "FullyShardedDataParallel"} or kind.startswith(
            "FSDP"
        ):
            raise InputError(
                f"model: {name or 'it'} is wrapped in {kind}, and the wrapper owns the "
                "parameters; replace the attention first, then wrap"
            )
        if is_compiled(module) and adapter_for(inside(module)) is not None:
            raise InputError(
                f"model: {name or 'it'} is attention that was compiled by itself, and "
                "torch.compile goes on running it; replace the attention first, then compile"
            )
    check_whole("model", model)


def check_whole(name: str, model: nn.Module) -> None:
    """Raise InputError if the weights are sharded (FSDP2, tensor parallel)."""
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise bad_argument(
            name,
            "whole weights",
            "weights sharded over processes (DTensor)",
            "gather them first (torch.distributed.checkpoint.state_dict.get_model_state_dict with "
            "full_state_dict=True) and load them into a model that is not sharded",
        )


def _site(
    name: str,
    adapter: Adapter,
    named: dict[str, nn.Module],
    places: dict[int, list[tuple[nn.Module, str]]],
) -> Site:
    parts = name.split(".")
    parents = tuple(named[".".join(parts[:i])] for i in range(len(parts)))
    module = named[name]
    original = module.original if isinstance(module, SwappedAttention) else module
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    stack = ".".join(parts[: numbers[0]] if numbers else parts[:-1])
    host = returned(adapter, "describe", adapter.describe(original, parents), HostAttention)
    return Site(name, module, adapter, host, parents, tuple(places[id(module)]), stack)


def _asks(layers: Callable[..., bool], index: int, name: str) -> bool:
    """Call `layers` with the index, or with the index and the name."""
    positional = [
        p
        for p in inspect.signature(layers).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    arguments = (index, name) if len(positional) > 1 else (index,)
    try:
        return bool(layers(*arguments))
    except TypeError as error:
        got = f"one that fails with {arguments}: {error}"
        raise bad_argument("layers", "a callable (index) or (index, name) -> bool", got) from error


def _index(index: int, number: int) -> int:
    if not -number <= index < number:
        raise bad_argument("layers", f"indices of {number} attention layers, from 0", index)
    return index % number


def _bad_layers(layers: object) -> InputError:
    return bad_argument(
        "layers", "'all', indices, or a callable (index) or (index, name) -> bool", repr(layers)
    )


_CALLED = re.compile(r"(.*_)?(attn|attention|mhs?a)\d*", re.IGNORECASE)


def unknown_attention(model: nn.Module, known: Collection[str]) -> list[tuple[str, str]]:
    """Find modules with weights that look like attention.

    Modules inside or around known attention are skipped. Of nested candidates, only the innermost
    counts.

    Args:
        model: host model.
        known: names of the attention modules that an adapter supports.

    Returns:
        (name, class name) of each module.
    """
    found = _find(model, known, lambda _, module: looks_like_attention(module))
    found |= _find(model, [*known, *found], _is_called_attention)
    return list(found.items())


def _find(
    model: nn.Module, known: Collection[str], test: Callable[[str, nn.Module], bool]
) -> dict[str, str]:
    """Return names and classes of the innermost unknown modules that pass `test`."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if not name or isinstance(module, TokenMixer) or not test(name, module):
            continue
        is_known = any(_is_within(name, other) or _is_within(other, name) for other in known)
        if not is_known and next(module.parameters(), None) is not None:
            found = {n: kind for n, kind in found.items() if not _is_within(name, n)}
            found[name] = type(module).__name__
    return found


def _is_called_attention(name: str, module: nn.Module) -> bool:
    """Return whether the attribute is called attention and has several linear layers."""
    maps = [part for part in module.children() if isinstance(part, nn.Linear)]
    is_list = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    return len(maps) > 1 and not is_list and bool(_CALLED.fullmatch(name.rpartition(".")[2]))


def _is_within(name: str, other: str) -> bool:
    return f"{name}.".startswith(f"{other}.")
