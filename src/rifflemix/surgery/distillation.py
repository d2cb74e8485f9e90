"""Compare mixers with the attention that they replaced, and train them on its outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_positive
from rifflemix.errors import InputError, bad_argument
from rifflemix.models.base import call_model
from rifflemix.surgery.adapters import ParentChange
from rifflemix.surgery.hosts.transformers_swapped import CACHES
from rifflemix.surgery.sites import check_whole, find_sites
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.wrappers import without_wrappers

_OF_CLASS = object()
"""Marker for attributes that only the class defines."""


class LayerMatcher:
    """Error of each mixer against the attention at the same place of the original model.

    The error is the mean squared error divided by the mean square of the attention outputs. A
    perfect copy has an error of 0, and an output of zeros has an error of 1. Padding tokens do not
    count. If layers share the attention, the error is the mean over its calls.

    Args:
        model: model after `replace_attention`, without wrappers.
        original: the same model before the replacement, without wrappers.
        own_inputs: False gives each mixer the inputs of its layer in `original`. True gives it the
            inputs of its layer in `model`. They contain the errors of earlier layers.

    Raises:
        InputError: nothing in `model` was replaced. `original` has no attention of the same type at
            the same place.
    """

    def __init__(self, model: nn.Module, original: nn.Module, *, own_inputs: bool = False) -> None:
        self._pairs = _pairs(model, original, own_inputs)
        self._runs = model if own_inputs else original
        self._changes = _changes(self._runs, original, self._pairs)

    @property
    def names(self) -> list[str]:
        """Names of the replaced modules, in the order of the model."""
        return [pair.name for pair in self._pairs]

    def mixer_weights(self) -> list[nn.Parameter]:
        """Return the trainable weights of all mixers."""
        return [p for one in self._pairs for p in one.new.mixer.parameters() if p.requires_grad]

    def errors(self, batch: Any) -> dict[str, Tensor]:
        """Return the error of each mixer that the batch reaches.

        The errors have gradients with respect to their own mixer only. Dropout is off.

        Args:
            batch: inputs of the model, see `distil`.

        Raises:
            InputError: the batch is empty, or an error is not finite.
        """
        with ExitStack() as stack:
            stack.enter_context(_changed(self._changes))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for pair in self._pairs:
                stack.enter_context(pair.watching())
            with torch.no_grad():
                call_model(self._runs, batch, name="batches")
            return {one.name: torch.stack(one.errors).mean() for one in self._pairs if one.errors}


class _Pair:
    """A mixer and the attention that it replaced, compared at each call of one of them."""

    def __init__(self, name: str, new: SwappedAttention, old: nn.Module, own_inputs: bool) -> None:
        self.name, self.new, self.old = name, new, old
        self.own_inputs = own_inputs
        self.errors: list[Tensor] = []
        self._is_comparing = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.errors = []
        called = self.new if self.own_inputs else self.old
        with called.register_forward_hook(self._compare, with_kwargs=True):
            yield

    def _compare(self, _: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if self._is_comparing:
            return
        # The cache belongs to the attention. A second write would change it.
        kwargs = {k: None if k in CACHES else v for k, v in kwargs.items()}
        self._is_comparing = True
        try:
            with seen_padding(self.new) as padding, torch.enable_grad():
                found = _tokens(self.new(*args, **kwargs))
            wanted = _tokens(self.old(*args, **kwargs) if self.own_inputs else output)
        finally:
            self._is_comparing = False
        if found.numel() == 0:
            raise bad_argument("batches", "samples in every batch", "an empty one")
        with torch.enable_grad():
            error = relative_error(self._batched(found), self._batched(wanted), padding[-1])
        if not bool(torch.isfinite(error)):
            raise InputError(
                f"{self.name}: its loss is {error.item()}; use a smaller lr or float32"
            )
        self.errors.append(error)

    def _batched(self, tokens: Tensor) -> Tensor:
        """Return the output of the host module in batch-first order.

        The host module may return (N, B, ...), or (N, C) without a batch.
        """
        if tokens.dim() == 2:
            return tokens.unsqueeze(0)
        return tokens if self.new.batch_first else tokens.transpose(0, 1)


@contextmanager
def seen_padding(swapped: SwappedAttention) -> Iterator[list[Tensor | None]]:
    """Collect the padding mask of each call of a mixer, (B, N) bool or None."""
    seen: list[Tensor | None] = []

    def look(_: nn.Module, __: Any, named: dict[str, Any]) -> None:
        seen.append(named.get("key_padding_mask"))

    with swapped.mixer.register_forward_pre_hook(look, with_kwargs=True):
        yield seen


def relative_error(found: Tensor, wanted: Tensor, padding: Tensor | None = None) -> Tensor:
    """Return the squared error relative to the squares of `wanted`.

    Args:
        found: (B, ...) outputs of the new model.
        wanted: (B, ...) outputs of the original.
        padding: (B, N) bool for outputs (B, N, ...), True = padding, or None.
    """
    found, wanted = found.float(), wanted.detach().float()
    if padding is not None:
        hidden = padding.reshape(*padding.shape, *(1,) * (found.dim() - 2))
        found, wanted = found.masked_fill(hidden, 0.0), wanted.masked_fill(hidden, 0.0)
    return (found - wanted).square().sum() / wanted.square().sum().clamp_min(1e-12)


@contextmanager
def replaced_only(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Put the original attention back temporarily, except at `names`."""
    named = dict(model.named_modules(remove_duplicate=False))
    kept = {id(named[name]) for name in names}
    places = [
        (named[name.rpartition(".")[0]], name.rpartition(".")[2], module)
        for name, module in named.items()
        if isinstance(module, SwappedAttention) and id(module) not in kept
    ]
    try:
        for parent, attribute, module in places:
            setattr(parent, attribute, module.original)
        yield
    finally:
        for parent, attribute, module in places:
            setattr(parent, attribute, module)


def swapped_modules(model: nn.Module) -> dict[str, SwappedAttention]:
    """Return the replaced modules of a model by name, in model order."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, SwappedAttention)
    }


def _tokens(output: Any) -> Tensor:
    """Return the output, or the first element of several outputs."""
    first = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(first, Tensor):
        raise InputError(
            f"distil: expected attention that returns tokens first, got {type(first).__name__}"
        )
    return first


def _pairs(model: nn.Module, original: nn.Module, own_inputs: bool) -> list[_Pair]:
    """Pair each replaced module with the original attention of the same name."""
    pairs = []
    there = dict(original.named_modules())
    for name, new in swapped_modules(model).items():
        old = there.get(name)
        if old is None or type(old) is not type(new.original):
            got = "nothing" if old is None else f"a {type(old).__name__}"
            wanted = f"a {type(new.original).__name__} at {name}, as it was before the swap"
            raise bad_argument("original", wanted, got)
        pairs.append(_Pair(name, new, old, own_inputs))
    if not pairs:
        raise bad_argument("model", "replaced attention", "none", "see replace_attention")
    return pairs


def _changes(runs: nn.Module, original: nn.Module, pairs: Collection[_Pair]) -> list[ParentChange]:
    """Return the changes for evaluation mode and for replaced attention."""
    attention = {id(one.old) for one in pairs}
    changes = [
        change
        for site in find_sites(original)
        if id(site.module) in attention
        for change in site.adapter.parent_changes(site.module, site.parents)
    ]
    roots = [runs, *(module for one in pairs for module in (one.new, one.new.original, one.old))]
    return changes + [ParentChange(m, "training", False) for root in roots for m in root.modules()]


@contextmanager
def _changed(changes: Collection[ParentChange]) -> Iterator[None]:
    """Apply changes of attributes temporarily."""
    before = {(c.module, c.attribute): vars(c.module).get(c.attribute, _OF_CLASS) for c in changes}
    try:
        for change in changes:
            setattr(change.module, change.attribute, change.value)
        yield
    finally:
        for (module, attribute), value in before.items():
            if value is _OF_CLASS:
                delattr(module, attribute)
            else:
                setattr(module, attribute, value)


def distil(
    model: nn.Module, original: nn.Module, batches: Iterable[Any], *, lr: float = 1e-3
) -> dict[str, list[float]]:
    """Train each mixer to reproduce the output of the attention it replaced.

    This is layer-wise distillation: each mixer gets the inputs of its layer in `original`. All
    layers train at the same time, and errors of one layer do not reach the next. Padding tokens do
    not count. Only the weights of the mixers change, and dropout is off. Fine-tune the whole model
    afterwards.

    The loss is the mean squared error divided by the mean square of the attention outputs. A
    perfect copy has a loss of 0, and an output of zeros has a loss of 1. If layers share the
    attention, the loss is the mean over its calls.

    Args:
        model: model after `replace_attention`.
        original: the same model before the replacement, on the same device. Use a copy or load it
            again.
        batches: inputs of `original`, one optimizer step each. An input is a tensor, a tuple or
            list of positional arguments, or a dict of keyword arguments.
        lr: learning rate of Adam.

    Returns:
        Losses of each replaced module by name, one per batch, computed before the step.

    Raises:
        InputError: nothing in `model` was replaced. `original` has no attention of the same type at
            the same place, or was changed. Weights are sharded. There are no batches, or a loss is
            not finite.

    Example:
        >>> import copy, torch, rifflemix as rm
        >>> original = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> model = copy.deepcopy(original)
        >>> report = rm.replace_attention(model, "linear")
        >>> losses = rm.distil(model, original, [torch.randn(2, 32, 64) for _ in range(20)])
        >>> losses["self_attn"][0] > losses["self_attn"][-1]
        False
    """
    check_positive("lr", lr)
    if torch.is_inference_mode_enabled():
        raise InputError("distil: expected to take gradients, got torch.inference_mode around it")
    check_whole("model", model)
    check_whole("original", original)
    with without_wrappers(model) as new, without_wrappers(original) as old:
        losses = _teach(LayerMatcher(new, old), batches, lr)
    for name, values in losses.items():
        if not values:
            raise bad_argument(
                "batches", "inputs that reach every replaced layer", f"none at {name}"
            )
    return losses


def _teach(matcher: LayerMatcher, batches: Iterable[Any], lr: float) -> dict[str, list[float]]:
    weights = matcher.mixer_weights()
    if not weights:
        raise bad_argument("model", "mixers with weights that may change", "none that require grad")
    optimizer = torch.optim.Adam(weights, lr=lr)
    losses: dict[str, list[float]] = {name: [] for name in matcher.names}
    kept = [p.grad for p in weights]
    try:
        for batch in batches:
            optimizer.zero_grad()
            errors = matcher.errors(batch)
            taught = [error for error in errors.values() if error.requires_grad]
            if taught:  # a mixer may have no trainable weights
                torch.stack(taught).sum().backward()
            optimizer.step()
            for name, error in errors.items():
                losses[name].append(error.item())
    finally:
        for parameter, grad in zip(weights, kept, strict=True):
            parameter.grad = grad
    return losses
