"""Record inputs and outputs of every mixer of a model, without changes to the model."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.lab.analysis.attention import TorchAttention, arguments, is_cross
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.seeds import rng_state, seed_everything, set_rng_state
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.cross.base import CrossAttention
from rifflemix.models.calling import call_model, on_device_of, without_fast_path


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer in a forward pass of its model.

    Attributes:
        name: name of the layer in the model. Repeated calls of a layer add " (2)" and so on.
        module: the layer. A `torch.nn.MultiheadAttention` is wrapped in a `TorchAttention` with the
            interface of a mixer; the layer is its `attention`.
        x: (B, N, C) copy of the input; for attention to another sequence, the queries.
        y: copy of the output; for several outputs, the first.
        key_padding_mask: (B, N) bool, True = padding, or None. For attention to a memory, (B, M).
        memory: (B, M, C) copy of the attended sequence, or None for self-attention.
    """

    name: str
    module: Any
    x: Tensor
    y: Tensor
    key_padding_mask: Tensor | None
    memory: Tensor | None = None


MIXERS = (TokenMixer, nn.MultiheadAttention)
"""Layers that mix the tokens of a sequence: rifflemix mixers and torch's attention."""


def trace(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    of: type[nn.Module] | tuple[type[nn.Module], ...] = MIXERS,
    cross: bool = False,
) -> Iterator[tuple[Call, ...]]:
    """Record calls of layers of a kind, in order.

    The model runs in evaluation mode without gradients. Between batches and at the end, or if you
    stop early, the model is restored: weights, buffers, mode and hooks. The state of all random
    generators is restored too. Only the calls of one batch are kept in memory.

    Args:
        model: any module, or a single layer.
        batches: each batch is a tensor (the only argument of the model), a tuple of arguments, a
            task's batch with "inputs", or another mapping of keyword arguments.
        of: kinds of layers; for nested layers, only the outermost counts.
        cross: also record attention from one sequence to another, by `mixers.cross` or torch. Such
            calls have a `memory`.

    Yields:
        The calls of one batch.

    Raises:
        InputError: the model has no such layer, or calls none.
    """
    kinds = of if isinstance(of, tuple) else (of,)
    layers = find_layers(model, (*kinds, CrossAttention) if cross else kinds)
    for batch in batches:
        calls: list[Call] = []
        with undisturbed(model), _hooked(layers, calls, cross=cross):
            run_batch(model, batch)
        if not calls:
            raise InputError(f"model {type(model).__name__} has {_words(of)} but never calls one")
        yield tuple(calls)


def one_stream(calls: Sequence[Call]) -> list[Call]:
    """Select the calls that mix a single sequence layer after layer.

    The calls must be recorded with `cross`. In an encoder-decoder model, these are the calls of the
    encoder: all calls before the first attention to a memory, except the last call. The last call
    is the decoder's self-attention. If no call has a memory, all calls are returned.

    Raises:
        InputError: all calls are attention to a memory.
    """
    own = [call for call in calls if call.memory is None]
    if not own:
        raise InputError("expected mixers of one sequence, got attention to a memory alone")
    cross = next((n for n, call in enumerate(calls) if call.memory is not None), 0)
    return own[: cross - 1] if cross > 1 else own


def find_layers(
    model: nn.Module, of: type[nn.Module] | tuple[type[nn.Module], ...] = MIXERS
) -> dict[str, nn.Module]:
    """Find layers of a kind by their first name.

    For nested layers, only the outermost counts.

    Raises:
        InputError: the model has no such layer.
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") or not outer for outer in found)
        if isinstance(module, of) and not inside:
            found[name] = module
    if not found:
        raise InputError(f"model {type(model).__name__} has no {_words(of)} to look into")
    return found


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode without gradients.

    Modes, buffers and random generators are restored afterwards. In the block, random generators
    start from the same seed each time.
    """
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    noise = rng_state(device)
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        model.eval()
        seed_everything(0)
        with torch.no_grad():
            yield
    finally:
        for module, is_training in modes:
            module.training = is_training
        for module, name, buffer, before in buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
            setattr(module, name, buffer)
        set_rng_state(noise, device)


@contextlib.contextmanager
def _hooked(layers: Mapping[str, nn.Module], calls: list[Call], *, cross: bool) -> Iterator[None]:
    """Record every call of these layers in the block.

    torch's fast path is disabled.
    """
    counts: Counter[str] = Counter()

    def hook_of(name: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if is_cross(module, args, kwargs) and not cross:
                return
            counts[name] += 1
            again = f" ({counts[name]})" if counts[name] > 1 else ""
            calls.append(_call_of(name + again, module, args, kwargs, output))

        return note

    notes = {name: hook_of(name) for name in layers}
    hooks = [
        layer.register_forward_hook(notes[name], with_kwargs=True) for name, layer in layers.items()
    ]
    streams = {name: layer for name, layer in layers.items() if isinstance(layer, TokenMixer)}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_fast_path())
            for name, layer in streams.items():
                stack.enter_context(_prefill_noted(layer, notes[name]))
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _prefill_noted(layer: TokenMixer, note: Any) -> Iterator[None]:
    """Record calls of `prefill` too.

    Language models with a cache do not call `forward`.
    """
    prefill = layer.prefill

    def noted(x: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = prefill(x, **options)
        note(layer, (x,), options, y)
        return y, state

    layer.__dict__["prefill"] = noted
    try:
        yield
    finally:
        del layer.__dict__["prefill"]


def _call_of(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Call:
    """Copy the tensors of a call, because later operations may overwrite them."""
    y = output[0] if isinstance(output, tuple | list) else output
    if isinstance(module, nn.MultiheadAttention):
        layer = TorchAttention(module, arguments(module, args, kwargs))
        y = layer.batch_first(y).clone()
        return Call(name, layer, layer.query, y, layer.padding, layer.memory)
    if isinstance(module, CrossAttention):
        given = arguments(module, args, kwargs)
        x, memory = given["x"].clone(), given["memory"].clone()
        return Call(name, module, x, y.clone(), given.get("key_padding_mask"), memory)
    x = args[0] if args else kwargs["x"]
    return Call(name, module, x.clone(), y.clone(), kwargs.get("key_padding_mask"))


def run_batch(model: nn.Module, batch: Any) -> None:
    """Call a model with a batch, in any form that `trace` accepts."""
    if isinstance(batch, Mapping) and "inputs" in batch:
        run_model(model, on_device_of(model, batch))
    else:
        call_model(model, batch, name="batches")


def _words(of: type[nn.Module] | tuple[type[nn.Module], ...]) -> str:
    kinds = of if isinstance(of, tuple) else (of,)
    if TokenMixer in kinds:
        return "token mixer"
    return " or ".join(kind.__name__ for kind in kinds)
