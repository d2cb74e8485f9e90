"""Base class of all models, and calls of models with tensors or named arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from rifflemix.compat import BatchNorm, values_can_be_read
from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.packed import packing_refused
from rifflemix.models import pretrained
from rifflemix.models.presets import NamedModel
from rifflemix.nn.block import ShortConvolution
from rifflemix.ops.dispatch import prefer_backend, preferred_backend


def contexts_of_passes(
    module: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts for both passes of gradient checkpointing.

    Call this function before the first pass. Only the first pass updates the statistics of batch
    norms. The second pass uses the same backends as the first. On a GPU it runs on an autograd
    thread without a preferred backend.
    """
    return nullcontext(), _second_pass(module, preferred_backend() or "auto")


@contextmanager
def _second_pass(module: nn.Module, backend: str) -> Iterator[None]:
    with prefer_backend(backend), kept_running_statistics(module):
        yield


@contextmanager
def kept_running_statistics(module: nn.Module) -> Iterator[None]:
    """Keep the running statistics and counts of batch norms unchanged during training."""
    norms = [part for part in module.modules() if isinstance(part, BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


def call_model(model: nn.Module, inputs: Any, *, name: str = "inputs") -> Any:
    """Call a model with a batch, on the device of the model.

    Args:
        model: any module.
        inputs: a tensor, a tuple or list of arguments, or a mapping of named arguments.
        name: the name of the inputs in the error message.

    Raises:
        InputError: `inputs` has another type.
    """
    there = on_device_of(model, inputs)
    if isinstance(there, Tensor):
        return model(there)
    if isinstance(there, Mapping):
        return model(**there)
    if isinstance(there, tuple | list):
        return model(*there)
    expected = "tensors, tuples of arguments, or mappings of named ones"
    raise bad_argument(name, expected, type(inputs).__name__)


def on_device_of(model: nn.Module, inputs: Any) -> Any:
    """Move all tensors to the device of the model's first parameter."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        return inputs

    def moved(value: Any) -> Any:
        return value.to(parameter.device) if isinstance(value, Tensor) else value

    if isinstance(inputs, Mapping):
        return {name: moved(value) for name, value in inputs.items()}
    return [moved(part) for part in inputs] if isinstance(inputs, tuple | list) else moved(inputs)


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Disable the fast path of torch's attention and encoder layers.

    In evaluation mode the fast path is a single operator. Hooks and counters then do not see the
    layers and operators that it replaces.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class Model(NamedModel):
    """Base class of all models.

    `create_model` sets the name and the settings of a model. `save_pretrained` writes them to disk.
    A subclass calls its blocks through `run_block` to support gradient checkpointing.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("gpt", mixer="tssa", vocab_size=10, max_length=16).eval()
        >>> model.save_pretrained("my-gpt")
        >>> copy = rm.models.from_pretrained("my-gpt")
        >>> tokens = torch.randint(10, (1, 16))
        >>> torch.equal(copy(tokens), model(tokens))
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call `forward`; reject packed sequences if it has no argument `cu_seqlens`.

        Raises:
            InputError: `forward` does not support packed sequences, or rejects its inputs.
        """
        if "cu_seqlens" in options and not _takes_packed(self.forward):
            cu_seqlens = options.pop("cu_seqlens")
            if cu_seqlens is not None:
                raise packing_refused(f"this {type(self).__name__}", cu_seqlens)
        return super().__call__(*args, **options)

    def run_block(self, block: nn.Module, *inputs: Any, **options: Any) -> Any:
        """Call `block`; recompute it in the backward pass if `gradient_checkpointing` is set.

        Args:
            block: module to call.
            inputs: its positional arguments.
            options: its keyword arguments.

        Returns:
            The output of the block.
        """
        if self.gradient_checkpointing and self.training and is_grad_enabled():
            # While compiling, checkpoint rejects context_fn and recomputes without calling `block`.
            if not torch.compiler.is_compiling():
                options["context_fn"] = partial(contexts_of_passes, block)
            return checkpoint(block, *inputs, use_reentrant=False, **options)
        return block(*inputs, **options)

    def num_parameters(self) -> int:
        """Count the learned numbers, each shared parameter once.

        Returns:
            Number of parameters.
        """
        return sum(parameter.numel() for parameter in self.parameters())

    def state_size(self, length: int) -> int:
        """Count the numbers that the mixers keep per sequence after `length` tokens, in all layers.

        See `TokenMixer.state_size`. Causal short convolutions count too.

        Args:
            length: number of tokens so far.

        Returns:
            Number of values.

        Raises:
            InputError: `length` is below 0.
        """
        return sum(layer.state_size(length) for layer in _stateful_layers(self))

    def no_weight_decay(self) -> set[str]:
        """List the parameters that the submodules exclude from weight decay.

        Returns:
            Names of the parameters, as in `named_parameters`.
        """
        return {
            f"{position}.{name}" if position else name
            for position, module in self.named_modules()
            if module is not self and hasattr(module, "no_weight_decay")
            for name in module.no_weight_decay()
        }

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` (name and settings) and `model.safetensors` to `folder`.

        Args:
            folder: folder to write.

        Raises:
            InputError: `create_model` did not build the model, or the folder cannot be written.
        """
        pretrained.save_pretrained(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Build the model that `save_pretrained` wrote to `folder`, with its weights.

        Args:
            folder: folder with config.json and model.safetensors.

        Returns:
            The model.

        Raises:
            InputError: the folder is missing, a file is damaged, or the model has another class.
        """
        model = from_pretrained(folder)
        if not isinstance(model, cls):
            raise bad_argument(
                f"model in {folder}",
                f"a {cls.__name__}",
                f"a {type(model).__name__} ({model.name})",
                "use rifflemix.models.from_pretrained",
            )
        return model


def from_pretrained(folder: str | Path) -> Model:
    """Build the model that `save_pretrained` wrote, in evaluation mode, on the CPU.

    Args:
        folder: folder with config.json and model.safetensors.

    Returns:
        The model.

    Raises:
        InputError: the folder or a file is missing or damaged.

    Example:
        >>> import rifflemix as rm
        >>> rm.create_model("encoder", vocab_size=10, mixer="csp").save_pretrained("my-model")
        >>> type(rm.models.from_pretrained("my-model")).__name__
        'Encoder'
    """
    return pretrained.from_pretrained(folder, Model)


def _stateful_layers(module: nn.Module) -> Iterator[TokenMixer | ShortConvolution]:
    """Yield mixers and short convolutions, without the mixers inside mixers."""
    for child in module.children():
        if isinstance(child, TokenMixer | ShortConvolution):
            yield child
        else:
            yield from _stateful_layers(child)


def _takes_packed(forward: Callable[..., Any]) -> bool:
    try:
        signature(forward).bind_partial(cu_seqlens=None)
    except TypeError:
        return False
    return True


def check_ids(name: str, ids: Tensor, layout: str, *, below: int, rank: int = 2) -> None:
    """Raise InputError unless `ids` is an integer tensor of the given rank.

    On the CPU, all ids must also be in 0 ... `below` - 1. This check is skipped on a GPU, because
    it would synchronize. It is also skipped if values cannot be read, as in traced graphs and
    transforms of torch.func. In these cases torch fails at the embedding.

    Args:
        name: the name of the argument in the message.
        ids: token ids, int64 or int32.
        layout: the expected shape in the message, such as "(B, N)".
        below: number of valid ids.
        rank: expected number of dimensions.
    """
    if not isinstance(ids, Tensor):
        raise bad_argument(name, f"ids of shape {layout}", type(ids).__name__)
    if ids.dim() != rank:
        raise bad_argument(name, f"ids of shape {layout}", tuple(ids.shape))
    if ids.dtype not in (torch.int64, torch.int32):
        raise bad_argument(name, f"int64 ids of shape {layout}", ids.dtype)
    if ids.device.type == "cpu" and ids.numel() and values_can_be_read():
        least, largest = (int(bound) for bound in torch.aminmax(ids))
        if least < 0 or largest >= below:
            got = least if least < 0 else largest
            raise bad_argument(name, f"ids from 0 to {below - 1}", got)
