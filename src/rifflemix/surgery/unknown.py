"""Find modules that look like attention by the name of the class or attribute."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from torch import nn

from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import class_names

_ATTENTION = re.compile("attention|attn|(?-i:MHS?A|MLA)", re.IGNORECASE)
_CALLED = re.compile(r"(.*_)?(attn|attention|mhs?a)\d*", re.IGNORECASE)


def looks_like_attention(module: nn.Module) -> bool:
    """Return whether the name of a class or base class suggests attention."""
    return any(_ATTENTION.search(name) for name in class_names(module))


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
