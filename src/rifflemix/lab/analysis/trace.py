"""Record inputs and outputs of every mixer of a model, without changes to the model."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.seeds import rng_state, seed_everything, set_rng_state
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.cross_attention import CrossAttention
from rifflemix.models.base import call_model, on_device_of, without_fast_path


def arguments(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def is_cross(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Check whether a call attends from one sequence to another."""
    if isinstance(module, CrossAttention):
        return True
    if not isinstance(module, nn.MultiheadAttention):
        return False
    given = arguments(module, args, kwargs)
    return given["key"] is not given["query"]


class TorchAttention(nn.Module):
    """A `torch.nn.MultiheadAttention` with the interface of a mixer.

    The remaining arguments come from one recorded call of the layer.

    Args:
        attention: the layer.
        given: the arguments of the recorded call, by name.
    """

    def __init__(self, attention: nn.MultiheadAttention, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.attention = attention
        self.is_batched = given["query"].dim() == 3
        self.query = self.batch_first(given["query"]).clone()
        self.memory: Tensor | None = None
        if given["key"] is not given["query"]:
            self.memory = self.batch_first(given["key"]).clone()
        self.value: Tensor | None = None
        self.offset: Tensor | None = None
        self._hold_values(given)
        self.padding = _padding(given.get("key_padding_mask"))
        self.attn_mask: Tensor | None = _additive(given.get("attn_mask"), self.query)
        if self.attn_mask is not None and self.attn_mask.dim() == 3:
            self.attn_mask = self.attn_mask.unflatten(0, (len(self.query), -1))

    def _hold_values(self, given: Mapping[str, Any]) -> None:
        """Store values that differ from the keys.

        If keys and values come from the same tokens, only their difference is stored. This is the
        case if a model adds positions to the keys alone. Values from another sequence, or with
        another number of channels, are stored as they are.
        """
        if given["value"] is given["key"]:
            return
        key, value = self.batch_first(given["key"]), self.batch_first(given["value"])
        if self.memory is None and key.shape == value.shape:
            self.offset = (value - key).detach()
        else:
            self.value = value.clone()

    def of_sample(self, number: int) -> TorchAttention:
        """Return the layer for copies of one sample of the call.

        The number of copies is arbitrary.
        """
        layer = copy.copy(self)
        if layer.offset is not None:
            layer.offset = layer.offset[number : number + 1]
        if layer.attn_mask is not None and layer.attn_mask.dim() == 4:
            layer.attn_mask = layer.attn_mask[number : number + 1]
        return layer

    def batch_first(self, x: Tensor) -> Tensor:
        """Convert a tensor in the layer's layout to (B, N, C)."""
        if not self.is_batched:
            return x.unsqueeze(0)
        return x if self.attention.batch_first else x.transpose(0, 1)

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Mix tokens: (B, N, C) -> (B, N, C).

        The mask marks padding among the keys.
        """
        return self._call(x, key_padding_mask, need_weights=False)[0]

    def weights(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, first: int | None = None
    ) -> Tensor:
        """Return the weights (B, H, N, M) of queries (B, N, C).

        Padded rows are zero. `first` limits the output to the first N queries.
        """
        found: Tensor = self._call(
            x, key_padding_mask, first=first, need_weights=True, average_attn_weights=False
        )[1]
        if self.memory is None and key_padding_mask is not None:
            found = found.masked_fill(key_padding_mask[:, None, :first, None], 0.0)
        return found

    def _call(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None,
        *,
        first: int | None = None,
        **options: Any,
    ) -> Any:
        memory = x if self.memory is None else self.memory
        value = memory if self.value is None else self.value
        if self.offset is not None:
            value = memory + self.offset[:, : memory.shape[1]].to(memory.dtype)
        if value.shape[:2] != memory.shape[:2] or value.dtype != memory.dtype:
            expected = f"{memory.shape[-1]} channels, as the keys have,"
            raise bad_argument("values", expected, value.shape[-1])
        mask = self.attn_mask
        if mask is not None and self.memory is None:  # x may be shorter than the model's sequence
            mask = mask[..., : x.shape[1], : x.shape[1]]
        if mask is not None:
            mask = mask[..., :first, :]
            if mask.dim() == 4:
                mask = mask.expand(len(x), -1, -1, -1).flatten(0, 1)
        inputs = [x[:, :first], memory, value]
        if not self.attention.batch_first:
            inputs = [part.transpose(0, 1) for part in inputs]
        y, weights = self.attention(
            *inputs, key_padding_mask=_additive(key_padding_mask, x), attn_mask=mask, **options
        )
        return y if self.attention.batch_first else y.transpose(0, 1), weights


def _padding(mask: Tensor | None) -> Tensor | None:
    """Convert to a bool mask (B, N), True = padding.

    torch's layers convert the masks they get to additive masks.
    """
    if mask is None:
        return None
    mask = mask if mask.dtype == torch.bool else torch.isneginf(mask)
    return mask.unsqueeze(0) if mask.dim() == 1 else mask


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)


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

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("tssa", 64, num_heads=4)
        >>> ((call,),) = rm.analysis.trace(mixer, [torch.randn(2, 16, 64)])
        >>> type(call.module).__name__, call.x.shape, call.key_padding_mask
        ('TSSA', torch.Size([2, 16, 64]), None)
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
        cross: also record attention from one sequence to another, by rifflemix or torch. Such
            calls have a `memory`.

    Yields:
        The calls of one batch.

    Raises:
        InputError: the model has no such layer, or calls none.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("encoder", vocab_size=10, mixer="csp", num_layers=2)
        >>> for calls in rm.analysis.trace(model, [torch.randint(10, (4, 16))]):
        ...     print([(call.name, tuple(call.y.shape)) for call in calls])
        [('blocks.0.mixer', (4, 16, 64)), ('blocks.1.mixer', (4, 16, 64))]
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

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_cross(module, args, kwargs) and not cross:
            return
        counts[name] += 1
        again = f" ({counts[name]})" if counts[name] > 1 else ""
        calls.append(_call_of(name + again, module, args, kwargs, output))

    with contextlib.ExitStack() as stack:
        stack.enter_context(without_fast_path())
        for name, layer in layers.items():
            hook = functools.partial(note, name)
            stack.enter_context(layer.register_forward_hook(hook, with_kwargs=True))
            if isinstance(layer, TokenMixer):
                stack.enter_context(_prefill_noted(layer, hook))
        yield


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
