"""Notes on features that a replacement loses in every host model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from rifflemix import compat
from rifflemix.surgery.sites import Site

# Hooks that collect attention weights. The swapped module raises for these itself.
_OF_THE_HOST = "transformers.utils.output_capturing"


def parameters_beside(module: nn.Module, sites: Sequence[Site]) -> dict[int, int]:
    """Return sizes, by id, of the parameters outside of the sites.

    A parameter that the sites share with other modules is included.
    """
    return _beside(module, {id(site.module) for site in sites})


def not_taken_over(model: nn.Module, sites: Sequence[Site]) -> list[str]:
    """Describe lost hooks and frozen or tied weights, one sentence per kind."""
    beside = parameters_beside(model, sites)
    owners = Counter(id(p) for site in sites for p in set(site.module.parameters()))
    hooked, frozen, tied = [], [], []
    for site in sites:
        parameters = list(site.module.parameters())
        if any(_hooks(part) for part in site.module.modules()):
            hooked.append(site.name)
        if parameters and not any(p.requires_grad for p in parameters):
            frozen.append(site.name)
        if any(id(p) in beside or owners[id(p)] > 1 for p in parameters):
            tied.append(site.name)
    notes = {
        "hooks on it are not called while it is replaced": hooked,
        "its weights were frozen; those of the mixer in its place can be trained": frozen,
        "it shares weights with other modules; the mixer in its place has its own": tied,
    }
    return [f"{_some(names)}: {note}" for note, names in notes.items() if names]


def _beside(module: nn.Module, replaced: set[int]) -> dict[int, int]:
    if id(module) in replaced:
        return {}
    sizes = {id(p): p.numel() for p in module.parameters(recurse=False)}
    for child in module.children():
        sizes |= _beside(child, replaced)
    return sizes


def _hooks(part: nn.Module) -> bool:
    hooks = compat.hooks_of(part)
    return any(getattr(hook, "__module__", "") != _OF_THE_HOST for hook in hooks)


def _some(names: Sequence[str]) -> str:
    return names[0] + f" and {len(names) - 1} more" * (len(names) > 1)
