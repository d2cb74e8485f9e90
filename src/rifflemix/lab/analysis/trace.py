"""What every mixer of a model gets and gives, batch by batch; the model stays as it is."""

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
    """One call of a layer within a forward pass of its model.

    Attributes:
        name: of the layer in the model; of a shared layer's later calls with " (2)" and so on.
        module: the layer itself; a `torch.nn.MultiheadAttention` as a `TorchAttention`, which is
            called as mixers are and holds the layer as `attention`.
        x: (B, N, C) its input, a copy; of attention to another sequence the queries.
        y: its output, a copy; of several the first.
        key_padding_mask: (B, N) bool, True = padding; None where there is none. Of the memory,
            (B, M), where there is one.
        memory: (B, M, C) the other sequence that is attended to, a copy; else None.
    """

    name: str
    module: Any
    x: Tensor
    y: Tensor
    key_padding_mask: Tensor | None
    memory: Tensor | None = None


MIXERS = (TokenMixer, nn.MultiheadAttention)
"""The layers that mix the tokens of a sequence: ours, and torch's."""


def trace(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    of: type[nn.Module] | tuple[type[nn.Module], ...] = MIXERS,
    cross: bool = False,
) -> Iterator[tuple[Call, ...]]:
    """The calls of the layers of some kind, in the order in which a model makes them.

    The model runs in evaluation mode without gradients. Between two batches, after the last one,
    and where the caller stops in between, it is as it was: weights, buffers, mode, hooks and
    the state of all random generators. Only the calls of one batch are held.

    Args:
        model: any module, or one layer alone.
        batches: each a tensor, the model's only argument; a tuple, its arguments; a task's batch
            with "inputs"; or any other mapping, its keyword arguments.
        of: the kinds of layers; of layers inside each other the outermost.
        cross: also attention from one sequence to another, ours (`mixers.cross`) and torch's;
            such calls have a `memory`.

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
    """Those of a model's calls, with `cross`, that mix one sequence layer after layer.

    Where attention to a memory comes after others, those up to the one before it made the memory:
    that one is the decoder's own.

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
    """The layers of some kind by their first names, of layers inside each other the outermost.

    Raises:
        InputError: the model has none.
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
    """Inside, a model is in evaluation mode without gradients; afterwards all is as it was.

    Noise that it draws in evaluation mode is the same each time.
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
    """Inside, every call of these layers is noted, and torch's layers do call theirs."""
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
    """Inside, a prompt is a call too: language models with a cache call no `forward`."""
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
    """A call with copies of its tensors: what comes after may write into the very ones."""
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
    """Call a model with a batch in one of the forms that `trace` takes."""
    if isinstance(batch, Mapping) and "inputs" in batch:
        run_model(model, on_device_of(model, batch))
    else:
        call_model(model, batch, name="batches")


def _words(of: type[nn.Module] | tuple[type[nn.Module], ...]) -> str:
    kinds = of if isinstance(of, tuple) else (of,)
    if TokenMixer in kinds:
        return "token mixer"
    return " or ".join(kind.__name__ for kind in kinds)
