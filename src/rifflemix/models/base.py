"""Base class of all models: a module with a name and settings that can be saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from rifflemix.compat import values_can_be_read
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers.packed import packing_refused
from rifflemix.models import pretrained
from rifflemix.models.batch_statistics import contexts_of_passes


class Model(nn.Module):
    """Base class of all models.

    `create_model` sets the name and the settings of a model. `save_pretrained` writes them to disk.
    A subclass calls its blocks through `run_block` to support gradient checkpointing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None
        self.settings: dict[str, Any] = {}
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
        """Call `block`; recompute it in the backward pass if `gradient_checkpointing` is set."""
        if self.gradient_checkpointing and self.training and is_grad_enabled():
            # While compiling, checkpoint rejects context_fn and recomputes without calling `block`.
            if not torch.compiler.is_compiling():
                options["context_fn"] = partial(contexts_of_passes, block)
            return checkpoint(block, *inputs, use_reentrant=False, **options)
        return block(*inputs, **options)

    def num_parameters(self) -> int:
        """Count the learned numbers, each shared parameter once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that the submodules exclude from weight decay."""
        return {
            f"{position}.{name}" if position else name
            for position, module in self.named_modules()
            if module is not self and hasattr(module, "no_weight_decay")
            for name in module.no_weight_decay()
        }

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` (name and settings) and `model.safetensors` to `folder`.

        Raises:
            InputError: `create_model` did not build the model, or the folder cannot be written.
        """
        pretrained.save_pretrained(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Build the model that `save_pretrained` wrote to `folder`, with its weights.

        Raises:
            InputError: the folder is missing, a file is damaged, or the model has another class.
        """
        model = pretrained.from_pretrained(folder)
        if not isinstance(model, cls):
            raise InputError(
                f"{folder} holds a {type(model).__name__} ({model.name}), not a {cls.__name__}; "
                "use rifflemix.models.from_pretrained"
            )
        return model


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


def check_size(name: str, images: Tensor, expected: tuple[int, ...]) -> None:
    """Raise InputError unless images (B, channels, height, width) have the expected sizes."""
    if images.dim() != 4 or tuple(images.shape[1:]) != expected:
        layout = ", ".join(map(str, expected))
        raise InputError(
            f"{name}: expected images of shape (B, {layout}), got {tuple(images.shape)}"
        )
