"""Replace and restore the attention of a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from rifflemix.checks import check_bool
from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import returned
from rifflemix.surgery.report import (
    DEFAULT_LENGTH,
    SurgeryReport,
    mixer_macs,
    parameters_outside,
    untransferred,
)
from rifflemix.surgery.settings import SORTING, MixerSettings, class_of, name_of, takes_option
from rifflemix.surgery.sites import Layers, Site, depths, find_sites, select, unknown_attention
from rifflemix.surgery.swapped import SwappedAttention, place_of
from rifflemix.surgery.swaps import Swap, commit, prepare
from rifflemix.surgery.weights import HostWeights

INITS = ("copy", "fresh")
_CLASS_TOKEN = (
    "a sort moves the class token's channels to other tokens: let the classifier read the mean of "
    "all tokens (timm: global_pool='avg'), or keep attention in the last layers"
)
_NOT_CHOSEN = "not among layers"
_UNKNOWN = "which is written in another way"


def replace_attention(
    model: nn.Module,
    mixer: str | type[TokenMixer],
    *,
    layers: Layers = "all",
    init: str = "copy",
    mixer_options: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    causal: bool | None = None,
    dry_run: bool = False,
) -> SurgeryReport:
    """Replace the self-attention of a model by a token mixer, in place.

    The mixers take dtype, device, training mode, heads, dropout, layer index and depth from the
    host model. Other models compute and save as before. If an error occurs, no layer is replaced.

    Args:
        model: host model with attention of torch.nn, timm, transformers, x-transformers or
            rifflemix. Call `register_adapter` to support other attention modules.
        mixer: name in `list_mixers()`, or a subclass of `TokenMixer`.
        layers: "all"; indices of self-attention layers in the order of the model, from 0; or a
            callable (index) or (index, name) -> bool.
        init: "copy" copies the value and output projections of the host model. It also copies the
            query and key projections if the mixer has them. "fresh" keeps the initialization of the
            mixer.
        mixer_options: options of the mixer. With init="copy", `bias`, `out_bias` and `inner_dim`
            follow the host model unless they are set here.
        max_length: maximum number of tokens per sequence. Default: the limit of the host model.
            Image models that accept several image sizes have no limit. For these, mixers that need
            a limit use the length of the default image size.
        causal: whether the mixers are causal. Default: same as the host model. Set it if the host
            model decides at each call.
        dry_run: whether to create the report without changing the model.

    Returns:
        Report of the replaced and skipped modules, the reasons, and the costs.

    Raises:
        InputError: nothing can be replaced, or a chosen layer cannot be replaced. A bidirectional
            mixer would replace causal attention. The arguments do not suit the mixer.
            `torch.inference_mode` is active. An attention module was compiled on its own. The model
            is unchanged in all these cases.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> report = rm.replace_attention(model, "csp", max_length=1024)
        >>> report.replaced
        ['self_attn']
        >>> model(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """
    check_choice("init", init, INITS)
    check_bool("dry_run", dry_run)
    class_of(mixer)
    if mixer_options is not None and not isinstance(mixer_options, Mapping):
        raise bad_argument("mixer_options", "a dict of the mixer's own options", mixer_options)
    if torch.is_inference_mode_enabled() and not dry_run:
        raise InputError(
            "replace_attention: expected to make weights that can be trained, got "
            "torch.inference_mode around it; use torch.no_grad"
        )
    if causal is not None:
        check_bool("causal", causal)
    sites = find_sites(model)
    chosen, skipped = _choose(model, sites, layers, dry_run)
    request = _Request(mixer, dict(mixer_options or {}), max_length, causal, init)
    position = depths(sites)
    with torch.random.fork_rng(enabled=dry_run):
        swaps = [_prepare(site, request, *position[site.name]) for site in chosen]
    report = _report(model, mixer, swaps, skipped, max_length)
    report.dry_run = dry_run
    if not dry_run:
        commit(swaps)
        for warning in dict.fromkeys(w for swap in swaps for w in swap.site.host.warnings):
            warnings.warn(warning, stacklevel=2)
    return report


class _Request(NamedTuple):
    mixer: str | type[TokenMixer]
    options: dict[str, Any]
    max_length: int | None
    causal: bool | None
    init: str


def _choose(
    model: nn.Module, sites: Sequence[Site], layers: Layers, dry_run: bool
) -> tuple[list[Site], list[tuple[str, str]]]:
    """Return the sites to replace, and the other modules with reasons."""
    unknown = unknown_attention(model, [site.name for site in sites])
    if not sites:
        got = f"{unknown[0][0]} ({unknown[0][1]}), {_UNKNOWN}" if unknown else "none"
        raise InputError(
            "model: expected attention of torch.nn, timm, transformers, x-transformers or "
            f"rifflemix, got {got}; use register_adapter for other modules"
        )
    chosen: list[Site] = []
    skipped: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for site, wanted in zip(sites, select(sites, layers), strict=True):
        reason = _why_not(site)
        if wanted and reason and layers != "all" and not callable(layers):
            raise bad_argument("layers", "attention that can be replaced", site.name, reason)
        if wanted and not reason:
            chosen.append(site)
        else:
            skipped.append((site.name, reason or _NOT_CHOSEN))
            refused += [(site.name, reason)] * wanted
    if not chosen and not dry_run:
        name, reason = (refused or skipped)[0]
        raise InputError(f"model: nothing can be replaced; {name}: {reason}")
    skipped += [(name, f"a {kind}, {_UNKNOWN} (register_adapter)") for name, kind in unknown]
    return chosen, skipped


def _why_not(site: Site) -> str:
    if site.host.refusal:
        return site.host.refusal
    if isinstance(site.module, SwappedAttention):
        title = site.module.mixer.card.name
        return f"already replaced by {title}; restore_attention puts it back"
    if site.host.cross:
        return "cross-attention: it reads another sequence, but token mixers read one sequence"
    hooks = (getattr(part, "_hf_hook", None) for part in site.module.modules())
    if any(getattr(hook, "offload", False) for hook in hooks):
        return "its weights are offloaded (device_map); load the model into memory first"
    place = place_of(site.module)
    if place is None and any(True for _ in site.module.parameters()):
        return "its weights are not floating-point (quantised)"
    return ""


def _prepare(site: Site, request: _Request, layer_index: int, num_layers: int) -> Swap:
    host = site.host
    settings = MixerSettings(
        mixer=name_of(request.mixer),
        dim=host.dim,
        num_heads=host.num_heads,
        max_length=_max_length(site, request),
        layer_index=layer_index,
        num_layers=num_layers,
        causal=_causal(site, request),
        dropout=host.dropout,
        options=_options(site, request),
    )
    return prepare(site, settings, request.init)


def _max_length(site: Site, request: _Request) -> int | None:
    """Return the limit of the caller or host, or the usual length.

    The usual length is only for mixers that need a limit.
    """
    host = site.host
    if request.max_length is not None:
        return request.max_length
    if host.max_length is None and class_of(request.mixer).card.needs_max_length:
        return host.usual_length
    return host.max_length


def _causal(site: Site, request: _Request) -> bool:
    """Return whether the mixer must be causal. Raise on conflicting settings."""
    host, card = site.host, class_of(request.mixer).card
    if host.causal and request.causal is False:
        raise bad_argument("causal", f"True: {site.name} hides later tokens", False)
    causal = bool(host.causal) if request.causal is None else request.causal
    if causal and not card.causal:
        raise bad_argument(
            "mixer",
            f"a mixer that can be causal for {site.name}",
            f"{card.name}, a bidirectional mixer",
            "choose a mixer with mixer_card(name).causal",
        )
    return causal


def _options(site: Site, request: _Request) -> dict[str, Any]:
    """Return the caller's options, completed so that all weights can be copied."""
    options = dict(request.options)
    weights = site.adapter.weights(site.module) if request.init == "copy" else None
    if weights is None:
        return options
    returned(site.adapter, "weights", weights, HostWeights)
    cls = class_of(request.mixer)
    maps = (weights.query, weights.key, weights.value)
    follows = {"bias": any(part.bias is not None for part in maps)}
    if weights.output is not None:
        follows["out_bias"] = weights.output.bias is not None
    inner = weights.value.weight.shape[0]
    for name, value in follows.items():
        if name not in options and takes_option(cls, name):
            options[name] = value
    if inner != site.host.dim and "inner_dim" not in options and takes_option(cls, "inner_dim"):
        options["inner_dim"] = inner
    return options


def _report(
    model: nn.Module,
    mixer: str | type[TokenMixer],
    swaps: Sequence[Swap],
    skipped: list[tuple[str, str]],
    max_length: int | None,
) -> SurgeryReport:
    hosts = [swap.site.host for swap in swaps]
    limits = [n for host in hosts if (n := host.max_length or host.usual_length) is not None]
    length = max_length or min(limits, default=DEFAULT_LENGTH)
    sites = [swap.site for swap in swaps]
    after = parameters_outside(model, sites)
    after |= {id(p): p.numel() for s in swaps for p in s.module.parameters()}
    report = SurgeryReport(
        class_of(mixer).card.name,
        replaced=[s.site.name for s in swaps],
        skipped=skipped,
        length=length,
        parameters_before=sum(p.numel() for p in model.parameters()),
        parameters_after=sum(after.values()),
    )
    report.macs_before = _total(
        [s.site.adapter.macs(s.site.module, s.site.host, length) for s in swaps]
    )
    report.macs_after = _total([mixer_macs(s.module.mixer, length) for s in swaps])
    for swap in swaps:
        prefix = f"{swap.site.name}.mixer"
        report.copied += [f"{prefix}.{name}" for name in swap.copied]
        report.no_weight_decay += [f"{prefix}.{name}" for name in _undecayed(swap.module.mixer)]
        notes = [*swap.site.host.warnings, *swap.site.host.notes]
        if swap.site.host.class_token and isinstance(swap.module.mixer, SORTING):
            notes.append(_CLASS_TOKEN)
        report.notes += [note for note in notes if note not in report.notes]
    report.notes += untransferred(model, sites)
    return report


def _total(numbers: Sequence[int | None]) -> int | None:
    """Return the sum, or None if a number is unknown or missing."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def _undecayed(mixer: nn.Module) -> list[str]:
    """Return the parameters that should have no weight decay."""
    names = []
    for prefix, module in mixer.named_modules():
        own = getattr(module, "no_weight_decay", None)
        if own is not None:
            names += [f"{prefix}.{name}" if prefix else name for name in sorted(own())]
    return names
