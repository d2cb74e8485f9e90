"""Replace and restore the attention of a model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from rifflemix.checks import check_bool
from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import ParentChange, SwappedAttention, place_of, returned
from rifflemix.surgery.hosts.hub_mixin import mixin_changes
from rifflemix.surgery.hosts.transformers_saving import saving_changes
from rifflemix.surgery.lost import not_taken_over, parameters_beside
from rifflemix.surgery.report import DEFAULT_LENGTH, SurgeryReport, mixer_macs
from rifflemix.surgery.settings import SORTING, MixerSettings, class_of, name_of, takes_option
from rifflemix.surgery.sites import Layers, Site, depths, find_sites, select
from rifflemix.surgery.unknown import unknown_attention
from rifflemix.surgery.weights import HostWeights, compute_weights
from rifflemix.surgery.wrappers import inside, is_compiled

INITS = ("copy", "fresh")
_BEFORE = "_before_surgery"
_CLASS_TOKEN = (
    "a sort moves the class token's channels to other tokens: let the classifier read the mean of "
    "all tokens (timm: global_pool='avg'), or keep attention in the last layers"
)
_NOT_CHOSEN = "not among layers"
_UNKNOWN = "which is written in another way"


class Swap(NamedTuple):
    """A replacement that is prepared but not yet applied."""

    site: Site
    settings: MixerSettings
    module: SwappedAttention
    copied: list[str]


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
    host model. The function changes this model only, never a class. If an error occurs, no layer is
    replaced.

    Args:
        model: host model with attention of torch.nn, timm, transformers or x-transformers. Call
            `register_adapter` to support other attention modules.
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
    wishes = _Wishes(mixer, dict(mixer_options or {}), max_length, causal, init)
    position = depths(sites)
    with torch.random.fork_rng(enabled=dry_run):
        swaps = [_prepare(site, wishes, *position[site.name]) for site in chosen]
    report = _report(model, mixer, swaps, skipped, max_length)
    report.dry_run = dry_run
    if not dry_run:
        commit(swaps)
        for warning in dict.fromkeys(w for swap in swaps for w in swap.site.host.warnings):
            warnings.warn(warning, stacklevel=2)
    return report


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
            changes = site.adapter.parent_changes(site.module, site.parents)
            of_saving = saving_changes(site.parents) + mixin_changes(site.parents)
            for change in [*changes, *of_saving]:
                _change(change)
    except BaseException:
        for parent, attribute, original in reversed(done):
            setattr(parent, attribute, original)
        _unchange(parent for swap in swaps for parent in swap.site.parents)
        raise


class _Wishes(NamedTuple):
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
            "model: expected attention of torch.nn, timm, transformers or x-transformers, got "
            f"{got}; tell of other hosts with register_adapter"
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
        return "cross-attention: it reads another sequence, which a token mixer cannot"
    hooks = (getattr(part, "_hf_hook", None) for part in site.module.modules())
    if any(getattr(hook, "offload", False) for hook in hooks):
        return "its weights are offloaded (device_map); load the model into memory first"
    place = place_of(site.module)
    if place is None and any(True for _ in site.module.parameters()):
        return "its weights are not floating-point (quantised)"
    return ""


def _prepare(site: Site, wishes: _Wishes, layer_index: int, num_layers: int) -> Swap:
    host = site.host
    settings = MixerSettings(
        mixer=name_of(wishes.mixer),
        dim=host.dim,
        num_heads=host.num_heads,
        max_length=_max_length(site, wishes),
        layer_index=layer_index,
        num_layers=num_layers,
        causal=_causal(site, wishes),
        dropout=host.dropout,
        options=_options(site, wishes),
    )
    return prepare(site, settings, wishes.init)


def _max_length(site: Site, wishes: _Wishes) -> int | None:
    """Return the limit of the caller or host, or the usual length.

    The usual length is only for mixers that need a limit.
    """
    host = site.host
    if wishes.max_length is not None:
        return wishes.max_length
    if host.max_length is None and class_of(wishes.mixer).card.needs_max_length:
        return host.usual_length
    return host.max_length


def _causal(site: Site, wishes: _Wishes) -> bool:
    """Return whether the mixer must be causal. Raise on conflicting settings."""
    host, card = site.host, class_of(wishes.mixer).card
    if host.causal and wishes.causal is False:
        raise bad_argument("causal", f"True: {site.name} hides later tokens", False)
    causal = bool(host.causal) if wishes.causal is None else wishes.causal
    if causal and not card.causal:
        raise bad_argument(
            "mixer",
            f"one that can be causal for {site.name}",
            f"{card.name}, which sees later tokens",
            "rifflemix.list_mixers() and mixer_card(name).causal tell which can",
        )
    return causal


def _options(site: Site, wishes: _Wishes) -> dict[str, Any]:
    """Return the caller's options, completed so that all weights can be copied."""
    options = dict(wishes.options)
    weights = site.adapter.weights(site.module) if wishes.init == "copy" else None
    if weights is None:
        return options
    returned(site.adapter, "weights", weights, HostWeights)
    cls = class_of(wishes.mixer)
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
    after = parameters_beside(model, sites)
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
    report.notes += not_taken_over(model, sites)
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


def _change(change: ParentChange) -> None:
    before = vars(change.module).setdefault(_BEFORE, {})
    before.setdefault(change.attribute, getattr(change.module, change.attribute))
    setattr(change.module, change.attribute, change.value)


def _unchange(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        for attribute, value in vars(module).pop(_BEFORE, {}).items():
            setattr(module, attribute, value)
