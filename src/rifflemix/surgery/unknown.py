"""What looks like attention by its name alone."""

from __future__ import annotations

import re
from collections.abc import Collection

from torch import nn

from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import class_names

_ATTENTION = re.compile("attention|attn|(?-i:MHS?A)", re.IGNORECASE)


def looks_like_attention(module: nn.Module) -> bool:
    """Whether its class, or one that it is derived from, is called attention."""
    return any(_ATTENTION.search(name) for name in class_names(module))


def unknown_attention(model: nn.Module, known: Collection[str]) -> list[tuple[str, str]]:
    """Names and classes of the modules with weights that look like attention.

    Neither those within attention of a `known` name, nor those around it or around another one.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if not name or isinstance(module, TokenMixer) or not looks_like_attention(module):
            continue
        is_known = any(_is_within(name, other) or _is_within(other, name) for other in known)
        if not is_known and next(module.parameters(), None) is not None:
            found = {n: kind for n, kind in found.items() if not _is_within(name, n)}
            found[name] = type(module).__name__
    return list(found.items())


def _is_within(name: str, other: str) -> bool:
    return f"{name}.".startswith(f"{other}.")
