"""Teaching new mixers the outputs of the attention that they replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_positive
from rifflemix.errors import InputError, bad_argument
from rifflemix.models.calling import call_model
from rifflemix.surgery.adapters import SwappedAttention


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
        of the outputs over their mean square; 0 is the attention itself, 1 what zeros get.

    Raises:
        InputError: nothing in `model` was replaced, `original` has no such attention or was itself
            changed, there are no batches, or a loss is not finite.
    """
    check_positive("lr", lr)
    if torch.is_inference_mode_enabled():
        raise InputError("distil: expected to take gradients, got torch.inference_mode around it")
    pairs = _pairs(model, original)
    weights = [p for new, _ in pairs.values() for p in new.mixer.parameters() if p.requires_grad]
    if not weights:
        raise bad_argument("model", "mixers with weights that may change", "none that require grad")
    optimizer = torch.optim.Adam(weights, lr=lr)
    losses: dict[str, list[float]] = {name: [] for name in pairs}
    hooks = [
        old.register_forward_hook(_Lesson(name, new, losses[name]), with_kwargs=True)
        for name, (new, old) in pairs.items()
    ]
    kept = [p.grad for p in weights]
    try:
        with _evaluating(original, *(new for new, _ in pairs.values())):
            for batch in batches:
                optimizer.zero_grad()
                with torch.no_grad():
                    call_model(original, batch, name="batches")
                optimizer.step()
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, grad in zip(weights, kept, strict=True):
            parameter.grad = grad
    if not all(losses.values()):
        missing = next(name for name, values in losses.items() if not values)
        raise bad_argument(
            "batches", "inputs that reach every replaced layer", f"none at {missing}"
        )
    return losses


class _Lesson:
    """A hook on an attention: the mixer in its place answers the same call, and is corrected."""

    def __init__(self, name: str, new: SwappedAttention, losses: list[float]) -> None:
        self.name, self.new, self.losses = name, new, losses

    def __call__(self, _: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        seen: list[Tensor | None] = []

        def look(_: nn.Module, __: Any, named: dict[str, Any]) -> None:
            seen.append(named.get("key_padding_mask"))

        # Keys and values of earlier calls are the attention's, and not to be written twice.
        kwargs = {k: None if k.startswith("past_key_value") else v for k, v in kwargs.items()}
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
                loss.backward()
        finally:
            handle.remove()
        self.losses.append(loss.item())

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


def _pairs(model: nn.Module, original: nn.Module) -> dict[str, tuple[SwappedAttention, nn.Module]]:
    """The replaced modules by name, each with what stands there in the original."""
    pairs = {}
    there = dict(original.named_modules())
    for name, new in model.named_modules():
        if not isinstance(new, SwappedAttention):
            continue
        old = there.get(name)
        if type(old) is not type(new.original):
            got = "nothing" if old is None else f"a {type(old).__name__}"
            wanted = f"a {type(new.original).__name__} at {name}, as it was before the swap"
            raise bad_argument("original", wanted, got)
        pairs[name] = (new, old)
    if not pairs:
        raise bad_argument("model", "replaced attention", "none", "see replace_attention")
    return pairs


@contextmanager
def _evaluating(*modules: nn.Module) -> Iterator[None]:
    """All in evaluation mode, and each as it was afterwards."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, training in modes:
            part.training = training
