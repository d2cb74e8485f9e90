"""Attention modules that hold a token mixer, and the check of their loaded weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from rifflemix.compat import has_values, is_to_empty, values_can_be_read
from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.settings import LABEL, MixerSettings, check_label, make_label
from rifflemix.surgery.wrappers import load_at_once


class SwappedAttention(nn.Module):
    """Token mixer with the call signature of the attention that it replaces.

    Each subclass implements `forward` with the arguments of the host module. The module keeps the
    replaced attention for `restore_attention`, outside of `parameters()` and `state_dict`. The
    replaced attention moves to other devices and dtypes with the module, and copies contain it.

    The state_dict contains a label: the buffer `mixer_settings`. A state with a label must contain
    the whole state of the mixer. `load_state_dict` raises InputError if the label names another
    mixer or if the state has unknown keys, even with `strict=False`. Missing keys raise at the
    first call, since the files of a sharded checkpoint are loaded one by one.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> report = rm.replace_attention(model, "tssa")
        >>> isinstance(model.self_attn, rm.surgery.SwappedAttention)
        True
        >>> type(model.self_attn.mixer).__name__, type(model.self_attn.original).__name__
        ('TSSA', 'MultiheadAttention')
    """

    settings: MixerSettings | None = None
    """Arguments that rebuild the mixer from a file."""
    adapter: str = ""
    """Name of the adapter that matched the attention."""
    batch_first: bool = True
    """False if the host module expects tokens of shape (N, B, C)."""
    on_unpickling: ClassVar[list[Callable[[], object]]] = []
    """Called when a module is unpickled: its library may be imported only now."""
    _place: str = ""
    _awaited: frozenset[str] = frozenset()
    _came: frozenset[str] = frozenset()
    # _awaited: tensors missing from a state with a label. _came: tensors loaded without a label.

    def __init__(self, mixer: TokenMixer, original: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self._kept = (original,)
        super().train(original.training)
        self.register_forward_pre_hook(_load_offloaded)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for act in self.on_unpickling:
            act()

    @property
    def original(self) -> nn.Module:
        """The replaced attention module."""
        return self._kept[0]

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, also of the replaced attention.

        `forward` may use parts of the replaced attention.

        Args:
            mode: True for training, False for evaluation.
        """
        self.original.train(mode)
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # If the old attention was not loaded, it is on the meta device and cannot move.
        if not any(parameter.is_meta for parameter in self.original.parameters()):
            self.original._apply(fn, recurse)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        label = self._buffers.get(LABEL)
        if is_to_empty(fn) and self.settings is not None and label is not None:
            label.copy_(make_label(self.settings))
            if not label.is_meta:
                self.settings.fill_constants(self.mixer)
        return self

    def name_mixer(self, settings: MixerSettings, adapter: str, place: str) -> None:
        """Store settings, adapter and location of the mixer, and add the label.

        Args:
            settings: arguments that rebuild the mixer.
            adapter: name of the adapter that matched the attention.
            place: name of the module in the model.
        """
        self.settings, self.adapter, self._place = settings, adapter, place
        label, where = make_label(settings), place_of(self.original)
        has_memory = where is None or where[0].type != "meta"
        self.register_buffer(LABEL, label.to(where[0]) if where and has_memory else label)
        if not has_memory:
            self._check_at_next_call()  # some loaders set tensors one by one

    def check_loaded(self) -> None:
        """Check the weights after loading.

        Raises:
            InputError: weights are missing, or belong to another mixer.
        """
        if self._awaited:
            raise bad_argument(
                f"weights at {self._place}",
                f"all weights of {self.mixer.card.name}",
                f"a state without mixer.{min(self._awaited)}",
                f"load the whole state, or remove {LABEL!r} from it to load a part on purpose",
            )
        for name, buffer in self.mixer.named_buffers():
            if has_values(buffer) and buffer.isnan().any():
                raise bad_argument(
                    f"buffer mixer.{name} at {self._place}",
                    "the values of the file",
                    "none",
                    "pass offload_buffers=True to accelerate",
                )
        if self.settings is not None:
            check_label(self._place, self.get_buffer(LABEL), self.settings)

    def _check_at_next_call(self) -> None:
        if _check_loaded not in self._forward_pre_hooks.values():
            self.register_forward_pre_hook(_check_loaded)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        # Remove the tensors of shape (1,) that make loading fail in programs without rifflemix.
        for name, _ in self.original.named_parameters():
            if getattr(state_dict.get(prefix + name), "shape", None) == (1,):
                del state_dict[prefix + name]
        label, place = state_dict.get(prefix + LABEL), prefix + "mixer."
        there = {key.removeprefix(place) for key in state_dict if key.startswith(place)}
        own = self.mixer.state_dict().keys()
        if isinstance(label, Tensor) and self.settings is not None:
            check_label(self._place, label, self.settings)
            if there - own:
                raise bad_argument(
                    f"weights at {self._place}",
                    f"weights of {self.mixer.card.name}",
                    f"a state with mixer.{min(there - own)}",
                    "load the state that was saved from this swap",
                )
            self._awaited, self._came = frozenset(own - there - self._came), frozenset()
        else:  # the files of a sharded checkpoint are loaded in any order
            self._awaited, self._came = self._awaited - there, self._came | there
        if self._awaited:
            self._check_at_next_call()
        super()._load_from_state_dict(state_dict, prefix, *others)


def _load_offloaded(module: SwappedAttention, _: Any) -> None:
    if "_hf_hook" in vars(module):  # accelerate hooks every module that has a buffer
        load_at_once(module)


def _check_loaded(module: SwappedAttention, _: Any) -> None:
    if not (values_can_be_read() and has_values(module.get_buffer(LABEL))):
        return
    module.check_loaded()
    hooks = module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _check_loaded]:
        del hooks[key]


def place_of(module: nn.Module) -> tuple[torch.device, torch.dtype] | None:
    """Return device and dtype of the first floating-point parameter, or None."""
    found: Tensor | None = next((p for p in module.parameters() if p.is_floating_point()), None)
    return None if found is None else (found.device, found.dtype)
