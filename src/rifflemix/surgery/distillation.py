"""Train new mixers on the outputs of the attention that they replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_positive
from rifflemix.errors import InputError, bad_argument
from rifflemix.models.calling import call_model
from rifflemix.surgery.adapters import ParentChange, SwappedAttention
from rifflemix.surgery.hosts.transformers import CACHES
from rifflemix.surgery.sites import check_whole, find_sites
from rifflemix.surgery.wrappers import without_wrappers

_OF_CLASS = object()
"""Marker for attributes that only the class defines."""


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
    """
    check_positive("lr", lr)
    if torch.is_inference_mode_enabled():
        raise InputError("distil: expected to take gradients, got torch.inference_mode around it")
    check_whole("model", model)
    check_whole("original", original)
    with without_wrappers(model) as new, without_wrappers(original) as old:
        lessons = _lessons(new, old)
        _teach(lessons, old, batches, lr)
    losses = {lesson.name: lesson.losses for lesson in lessons}
    for name, values in losses.items():
        if not values:
            raise bad_argument(
                "batches", "inputs that reach every replaced layer", f"none at {name}"
            )
    return losses


def _teach(
    lessons: Sequence[_Lesson], original: nn.Module, batches: Iterable[Any], lr: float
) -> None:
    weights = [p for one in lessons for p in one.new.mixer.parameters() if p.requires_grad]
    if not weights:
        raise bad_argument("model", "mixers with weights that may change", "none that require grad")
    optimizer = torch.optim.Adam(weights, lr=lr)
    kept = [p.grad for p in weights]
    hooks = [one.old.register_forward_hook(one, with_kwargs=True) for one in lessons]
    try:
        with _ready(original, lessons):
            for batch in batches:
                optimizer.zero_grad()
                with torch.no_grad():
                    call_model(original, batch, name="batches")
                optimizer.step()
                for one in lessons:
                    one.end_batch()
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, grad in zip(weights, kept, strict=True):
            parameter.grad = grad


class _Lesson:
    """Forward hook of an attention module that trains the mixer in its place."""

    def __init__(self, name: str, new: SwappedAttention, old: nn.Module) -> None:
        self.name, self.new, self.old = name, new, old
        self.losses: list[float] = []
        self._of_batch: list[float] = []

    def end_batch(self) -> None:
        """Store the mean loss of all calls in the batch."""
        if self._of_batch:
            self.losses.append(sum(self._of_batch) / len(self._of_batch))
            self._of_batch.clear()

    def __call__(self, _: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        seen: list[Tensor | None] = []

        def look(_: nn.Module, __: Any, named: dict[str, Any]) -> None:
            seen.append(named.get("key_padding_mask"))

        # The cache belongs to the attention. A second write would change it.
        kwargs = {k: None if k in CACHES else v for k, v in kwargs.items()}
        handle = self.new.mixer.register_forward_pre_hook(look, with_kwargs=True)
        try:
            with torch.enable_grad():
                found = self.new(*args, **kwargs)
                if _tokens(found).numel() == 0:
                    raise bad_argument("batches", "samples in every batch", "an empty one")
                loss = _relative_error(self._batched(found), self._batched(output), seen[-1])
                if not bool(torch.isfinite(loss)):
                    raise InputError(
                        f"{self.name}: its loss is {loss.item()}; use a smaller lr or float32"
                    )
                if loss.requires_grad:  # a mixer may have no trainable weights
                    loss.backward()
        finally:
            handle.remove()
        self._of_batch.append(loss.item())

    def _batched(self, output: Any) -> Tensor:
        """Return the output of the host module in batch-first order.

        The host module may return (N, B, ...), or (N, C) without a batch.
        """
        tokens = _tokens(output)
        if tokens.dim() == 2:
            return tokens.unsqueeze(0)
        return tokens if self.new.batch_first else tokens.transpose(0, 1)


def _relative_error(found: Tensor, wanted: Tensor, padding: Tensor | None) -> Tensor:
    """Return the relative error, ignoring padding.

    Args:
        found: (B, N, ...) outputs of the mixer.
        wanted: (B, N, ...) outputs of the attention.
        padding: (B, N) bool, True = padding, or None.
    """
    found, wanted = found.float(), wanted.detach().float()
    if padding is not None:
        hidden = padding.unsqueeze(-1)
        found, wanted = found.masked_fill(hidden, 0.0), wanted.masked_fill(hidden, 0.0)
    return (found - wanted).square().sum() / wanted.square().sum().clamp_min(1e-12)


def _tokens(output: Any) -> Tensor:
    """Return the output, or the first element of several outputs."""
    first = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(first, Tensor):
        raise InputError(
            f"distil: expected attention that returns tokens first, got {type(first).__name__}"
        )
    return first


def _lessons(model: nn.Module, original: nn.Module) -> list[_Lesson]:
    """Pair each replaced module with the original attention of the same name."""
    lessons = []
    there = dict(original.named_modules())
    for name, new in model.named_modules():
        if not isinstance(new, SwappedAttention):
            continue
        old = there.get(name)
        if old is None or type(old) is not type(new.original):
            got = "nothing" if old is None else f"a {type(old).__name__}"
            wanted = f"a {type(new.original).__name__} at {name}, as it was before the swap"
            raise bad_argument("original", wanted, got)
        lessons.append(_Lesson(name, new, old))
    if not lessons:
        raise bad_argument("model", "replaced attention", "none", "see replace_attention")
    return lessons


@contextmanager
def _ready(original: nn.Module, lessons: Sequence[_Lesson]) -> Iterator[None]:
    """Switch to evaluation mode without compilation while mixers are trained.

    `original` also gets the attribute changes of a model with replaced attention. All changes are
    undone at the end.
    """
    attention = {id(one.old) for one in lessons}
    changes = [
        change
        for site in find_sites(original)
        if id(site.module) in attention
        for change in site.adapter.parent_changes(site.module, site.parents)
    ]
    roots = [original, *(module for one in lessons for module in (one.new, one.new.original))]
    changes += [ParentChange(m, "training", False) for root in roots for m in root.modules()]
    before = {(c.module, c.attribute): vars(c.module).get(c.attribute, _OF_CLASS) for c in changes}
    try:
        for change in changes:
            setattr(change.module, change.attribute, change.value)
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for (module, attribute), value in before.items():
            if value is _OF_CLASS:
                delattr(module, attribute)
            else:
                setattr(module, attribute, value)
