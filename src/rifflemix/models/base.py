"""The base of all models: a module that knows its name and settings and can save itself."""

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
    """Base of all models.

    `create_model` tells a model its name and settings, which `save_pretrained` writes down.
    A subclass sends its blocks through `run_block`, so that every model can trade time for memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None
        self.settings: dict[str, Any] = {}
        self.gradient_checkpointing = False

    def __call__(self, *args: Any, **options: Any) -> Any:
        """`forward`; a model whose own has no `cu_seqlens` refuses packed sequences.

        Raises:
            InputError: as `forward`, and for such sequences.
        """
        if "cu_seqlens" in options and not _takes_packed(self.forward):
            cu_seqlens = options.pop("cu_seqlens")
            if cu_seqlens is not None:
                raise packing_refused(f"this {type(self).__name__}", cu_seqlens)
        return super().__call__(*args, **options)

    def run_block(self, block: nn.Module, *inputs: Any, **options: Any) -> Any:
        """Call `block`; with `gradient_checkpointing`, keep only its inputs for the backward."""
        if self.gradient_checkpointing and self.training and is_grad_enabled():
            # In a compiled graph the second pass is no call of the block, and contexts are refused.
            if not torch.compiler.is_compiling():
                options["context_fn"] = partial(contexts_of_passes, block)
            return checkpoint(block, *inputs, use_reentrant=False, **options)
        return block(*inputs, **options)

    def num_parameters(self) -> int:
        """Learned numbers, each counted once however many layers share it."""
        return sum(parameter.numel() for parameter in self.parameters())

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay should leave alone, as its mixers say."""
        return {
            f"{position}.{name}" if position else name
            for position, module in self.named_modules()
            if module is not self and hasattr(module, "no_weight_decay")
            for name in module.no_weight_decay()
        }

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` (name and settings) and `model.safetensors` into `folder`.

        Raises:
            InputError: the model was not built by `create_model`, or the folder is unwritable.
        """
        pretrained.save_pretrained(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Build the model that `save_pretrained` wrote into `folder`, with its weights.

        Raises:
            InputError: no such folder, a damaged file, or a model of another class.
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
    """Raise unless `ids` is a tensor of integers of the given rank; `layout` says its shape.

    On the CPU they must be 0 to `below` - 1, too. A GPU would have to be waited for, and a traced
    graph or a transform of torch.func cannot ask: there torch itself stops at an id that has no
    embedding.
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
    """Raise unless images (B, channels, height, width) have the sizes a model was built for."""
    if images.dim() != 4 or tuple(images.shape[1:]) != expected:
        layout = ", ".join(map(str, expected))
        raise InputError(
            f"{name}: expected images of shape (B, {layout}), got {tuple(images.shape)}"
        )
