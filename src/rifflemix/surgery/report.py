"""Report of the changes that a replacement made, and of host features that it does not transfer."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from rifflemix import compat
from rifflemix.errors import InputError
from rifflemix.mixers import TokenMixer
from rifflemix.models.macs import multiply_accumulates
from rifflemix.surgery.sites import Site

# Hooks that collect attention weights. The swapped module raises for these itself.
_OF_THE_HOST = "transformers.utils.output_capturing"


def parameters_outside(module: nn.Module, sites: Sequence[Site]) -> dict[int, int]:
    """Return sizes, by id, of the parameters outside of the sites.

    A parameter that the sites share with other modules is included.
    """
    return _outside(module, {id(site.module) for site in sites})


def untransferred(model: nn.Module, sites: Sequence[Site]) -> list[str]:
    """Describe lost hooks and frozen or tied weights, one sentence per kind."""
    outside = parameters_outside(model, sites)
    owners = Counter(id(p) for site in sites for p in set(site.module.parameters()))
    hooked, frozen, tied = [], [], []
    for site in sites:
        parameters = list(site.module.parameters())
        if any(_hooks(part) for part in site.module.modules()):
            hooked.append(site.name)
        if parameters and not any(p.requires_grad for p in parameters):
            frozen.append(site.name)
        if any(id(p) in outside or owners[id(p)] > 1 for p in parameters):
            tied.append(site.name)
    notes = {
        "its hooks are not called while it is replaced": hooked,
        "its weights were frozen; the weights of its mixer are trainable": frozen,
        "it shares weights with other modules; its mixer has separate weights": tied,
    }
    return [f"{_some(names)}: {note}" for note, names in notes.items() if names]


def _outside(module: nn.Module, replaced: set[int]) -> dict[int, int]:
    if id(module) in replaced:
        return {}
    sizes = {id(p): p.numel() for p in module.parameters(recurse=False)}
    for child in module.children():
        sizes |= _outside(child, replaced)
    return sizes


def _hooks(part: nn.Module) -> bool:
    hooks = compat.hooks_of(part)
    return any(getattr(hook, "__module__", "") != _OF_THE_HOST for hook in hooks)


def _some(names: Sequence[str]) -> str:
    return names[0] + f" and {len(names) - 1} more" * (len(names) > 1)


DEFAULT_LENGTH = 1024
"""Number of tokens for MACs if neither the caller nor the host model defines a length."""


@dataclass
class SurgeryReport:
    """Replaced modules, skipped modules and costs of `replace_attention`.

    Attributes:
        mixer: name of the mixer.
        replaced: names of the replaced modules, in the order of the model.
        skipped: (name, reason) of each attention module that was not replaced.
        notes: features that the replacement loses or changes, one sentence each.
        copied: names of the new parameters with weights of the host model.
        no_weight_decay: names of the new parameters that should have no weight decay.
        parameters_before: number of parameters of the whole model before.
        parameters_after: number of parameters of the whole model afterwards.
        length: number of tokens N for the MACs.
        macs_before: multiply-accumulates of the replaced attention for one sequence of `length`
            tokens. None if unknown. Fourier transforms and sorts count as 0.
        macs_after: multiply-accumulates of the mixers, or None if they cannot be counted.
        dry_run: whether the model was left unchanged.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> report = rm.replace_attention(model, "linear", dry_run=True)
        >>> report.replaced, report.parameters_after <= report.parameters_before
        (['self_attn'], True)
    """

    mixer: str
    replaced: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    no_weight_decay: list[str] = field(default_factory=list)
    parameters_before: int = 0
    parameters_after: int = 0
    length: int = DEFAULT_LENGTH
    macs_before: int | None = None
    macs_after: int | None = None
    dry_run: bool = False

    def __str__(self) -> str:
        """Return the report as lines of text."""
        verb = "would replace" if self.dry_run else "replaced"
        lines = [f"{self.mixer} {verb} {_counted(len(self.replaced), 'attention module')}"]
        lines += [f"  {name}" for name in _shortened(self.replaced)]
        if self.skipped:
            lines.append(f"left alone: {len(self.skipped)}")
            lines += _grouped(self.skipped)
        if self.replaced:
            before, after = self.parameters_before, self.parameters_after
            lines.append(f"parameters: {before:,} -> {after:,} ({after - before:+,})")
            macs = f"{_macs(self.macs_before)} -> {_macs(self.macs_after)}"
            lines.append(f"MACs of these modules, one sequence of {self.length:,} tokens: {macs}")
            lines.append(f"copied from the host: {_counted(len(self.copied), 'parameter')}")
        if self.no_weight_decay:
            lines.append("no weight decay for:")
            lines += [f"  {name}" for name in _shortened(self.no_weight_decay)]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def mixer_macs(mixer: TokenMixer, length: int) -> int | None:
    """Count the MACs of a mixer on the meta device.

    Returns:
        Number of MACs, or None if the mixer cannot run on the meta device.
    """
    try:
        on_meta = copy.deepcopy(mixer).to("meta").eval()
        tokens = torch.empty(1, length, mixer.dim, device="meta", dtype=_dtype(mixer))
        return multiply_accumulates(on_meta, tokens)
    except (InputError, NotImplementedError, RuntimeError):
        return None


def _dtype(mixer: TokenMixer) -> torch.dtype:
    parameter = next(mixer.parameters(), None)
    return torch.get_default_dtype() if parameter is None else parameter.dtype


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _macs(number: int | None) -> str:
    return "not known" if number is None else f"{number:,}"


def _shortened(names: list[str], most: int = 8) -> list[str]:
    if len(names) <= most:
        return names
    return [*names[: most - 2], f"... {len(names) - most + 1} more", names[-1]]


def _grouped(skipped: list[tuple[str, str]]) -> list[str]:
    """Group modules with the same reason on one line."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped:
        by_reason.setdefault(reason, []).append(name)
    return [f"  {', '.join(_shortened(names, 4))}: {reason}" for reason, names in by_reason.items()]
