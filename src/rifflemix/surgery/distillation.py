"""Teaching new mixers the outputs of the attention that they replaced."""

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
"""In place of an attribute that a module has from its class alone."""


def distil(
    model: nn.Module, original: nn.Module, batches: Iterable[Any], *, lr: float = 1e-3
) -> dict[str, list[float]]:
    """Train each new mixer to put out what the attention in its place does, layer by layer.

    Every mixer sees the inputs that its layer has in `original`, so that the layers learn at once
    and none waits for another's errors to go away. Padded tokens do not count. Only the mixers
    change; dropout is off meanwhile. Fine-tune the whole model afterwards.

    Args:
        model: with attention replaced by `replace_attention`.
        original: the same model before that, on the same device; a copy, or loaded anew.
        batches: inputs of `original`, one optimiser step each: a tensor, a tuple or list of
            positional arguments, or a dict of named ones.
        lr: learning rate of Adam.

    Returns:
        For each replaced module the loss of every batch before its step: the mean squared error
        of the outputs over their mean square; 0 is the attention itself, 1 what zeros get. Of
        attention that several layers share, the mean.

    Raises:
        InputError: nothing in `model` was replaced, `original` has no such attention or was itself
            changed, weights are sharded, there are no batches, or a loss is not finite.
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
    """A hook on an attention: the mixer in its place answers the same call, and is corrected."""

    def __init__(self, name: str, new: SwappedAttention, old: nn.Module) -> None:
        self.name, self.new, self.old = name, new, old
        self.losses: list[float] = []
        self._of_batch: list[float] = []

    def end_batch(self) -> None:
        """Note the loss, the mean of all calls where layers share the attention."""
        if self._of_batch:
            self.losses.append(sum(self._of_batch) / len(self._of_batch))
            self._of_batch.clear()

    def __call__(self, _: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        seen: list[Tensor | None] = []

        def look(_: nn.Module, __: Any, named: dict[str, Any]) -> None:
            seen.append(named.get("key_padding_mask"))

        # Keys and values of earlier calls are the attention's, and not to be written twice.
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
                if loss.requires_grad:  # a mixer may have no weights, or none that may change
                    loss.backward()
        finally:
            handle.remove()
        self._of_batch.append(loss.item())

    def _batched(self, output: Any) -> Tensor:
        """(B, N, ...) of what the host returns, where the batch may be second or missing."""
        tokens = _tokens(output)
        if tokens.dim() == 2:
            return tokens.unsqueeze(0)
        return tokens if self.new.batch_first else tokens.transpose(0, 1)


def _relative_error(found: Tensor, wanted: Tensor, padding: Tensor | None) -> Tensor:
    """Of outputs (B, N, ...), but for padded tokens (B, N)."""
    found, wanted = found.float(), wanted.detach().float()
    if padding is not None:
        hidden = padding.unsqueeze(-1)
        found, wanted = found.masked_fill(hidden, 0.0), wanted.masked_fill(hidden, 0.0)
    return (found - wanted).square().sum() / wanted.square().sum().clamp_min(1e-12)


def _tokens(output: Any) -> Tensor:
    """The tokens among what an attention returns: itself, or the first of several."""
    first = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(first, Tensor):
        raise InputError(
            f"distil: expected attention that returns tokens first, got {type(first).__name__}"
        )
    return first


def _lessons(model: nn.Module, original: nn.Module) -> list[_Lesson]:
    """One for each replaced module, with what stands there in the original."""
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
    """All in evaluation mode and uncompiled, `original` as models are while layers are replaced.

    Afterwards each is as it was.
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
