"""Interface between surgery and host models: adapters and swapped attention modules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from rifflemix.compat import has_values, is_to_empty, values_can_be_read
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.settings import LABEL, MixerSettings, check_label, make_label
from rifflemix.surgery.weights import HostWeights, copy_weights
from rifflemix.surgery.wrappers import load_at_once

_T = TypeVar("_T")


@dataclass(frozen=True)
class HostAttention:
    """Properties of an attention module in a host model.

    Attributes:
        dim: number of input and output channels C.
        num_heads: number of query heads.
        causal: True if the module always hides later tokens, False if never. None if each call
            decides.
        dropout: dropout probability of the attention weights.
        inner_dim: number of value channels of all heads together. Default: C.
        max_length: maximum number of tokens, or None if the host model defines no limit.
        usual_length: default number of tokens of host models that also accept more (larger images).
            Only mixers that need a maximum length use it.
        class_token: whether a classifier reads a single token of the sequence.
        cross: whether the module attends to another sequence. Cross-attention is never replaced,
            and layer indices skip it.
        refusal: reason why the module cannot be replaced, or an empty string.
        notes: effects of a replacement for the report, one sentence each.
        warnings: features that a replacement loses. They appear in the report and as one warning
            each.

    Example:
        >>> import rifflemix as rm
        >>> host = rm.surgery.HostAttention(dim=64, num_heads=4, causal=True)
        >>> host.dim, host.inner_dim, host.refusal
        (64, None, '')
    """

    dim: int
    num_heads: int
    causal: bool | None = None
    dropout: float = 0.0
    inner_dim: int | None = None
    max_length: int | None = None
    usual_length: int | None = None
    class_token: bool = False
    cross: bool = False
    refusal: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class ParentChange(NamedTuple):
    """Attribute that a module around the attention needs while it is replaced.

    Attributes:
        module: the module around the attention.
        attribute: name of the attribute.
        value: value of the attribute during the replacement.

    Example:
        >>> import torch, rifflemix as rm
        >>> layer = torch.nn.TransformerEncoderLayer(64, 4)
        >>> rm.surgery.ParentChange(layer, attribute="norm_first", value=True).attribute
        'norm_first'
    """

    module: nn.Module
    attribute: str
    value: Any


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


class Adapter:
    """Interface to find, describe, call and read the attention of a host library.

    Subclass it for your own attention modules. Pass an instance to `rifflemix.register_adapter`.

    Example:
        The example of `rifflemix.register_adapter` has all methods.

        >>> from rifflemix.surgery import Adapter
        >>> class LinearAdapter(Adapter):
        ...     name = "linear"
        ...     def matches(self, module):
        ...         return type(module).__name__ == "LinearAttention"
        >>> LinearAdapter().matches("a text")
        False
    """

    name: str = ""
    """Name for reports, such as "timm"."""
    has_cache: bool = False
    """Whether the host model keeps keys and values of earlier calls (generation)."""

    def matches(self, module: nn.Module) -> bool:
        """Return whether the adapter supports `module`.

        Check class names and attributes. Do not import the library of the host model.

        Args:
            module: any module of the model.

        Returns:
            True if the adapter can replace the module.
        """
        raise NotImplementedError

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe an attention module.

        Args:
            module: attention module.
            parents: modules around it, starting with the model.

        Returns:
            Width, heads and other properties of the attention.
        """
        raise NotImplementedError

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a module that computes `mixer` with the interface of `module`.

        Args:
            module: the attention module.
            mixer: the new mixer.

        Returns:
            The module that replaces the attention.
        """
        raise NotImplementedError

    def weights(self, module: nn.Module) -> HostWeights | None:
        """Return the Q/K/V/O projections, or None if they cannot be read.

        Args:
            module: the attention module.

        Returns:
            The projections, or None.
        """
        return None

    def copy_weights(self, module: nn.Module, mixer: TokenMixer) -> list[str]:
        """Copy matching weights to `mixer` and return the parameters' names.

        Args:
            module: the attention module.
            mixer: the new mixer.

        Returns:
            Names of the parameters of the mixer that were copied.
        """
        weights = self.weights(module)
        return [] if weights is None else copy_weights(mixer, weights)

    def macs(self, module: nn.Module, host: HostAttention, length: int) -> int | None:
        """Count multiply-accumulates for one sequence; None if unknown.

        The default counts softmax attention: all projections, and two products with N x N scores.

        Args:
            module: the attention module.
            host: its description.
            length: number of tokens.

        Returns:
            Number of multiply-accumulates, or None.
        """
        maps = sum(p.numel() for p in module.parameters() if p.dim() >= 2)
        return length * maps + 2 * length * length * (host.inner_dim or host.dim)

    def parent_changes(self, module: nn.Module, parents: Sequence[nn.Module]) -> list[ParentChange]:
        """Return attributes of `parents` that must change while `module` is replaced.

        Args:
            module: the attention module.
            parents: modules around it, starting with the model.

        Returns:
            The changes; none by default.
        """
        return []


def returned(adapter: Adapter, method: str, value: Any, kind: type[_T]) -> _T:
    """Return `value`, or raise InputError if it has the wrong type."""
    if not isinstance(value, kind):
        got = "None" if value is None else f"a {type(value).__name__}"
        raise InputError(
            f"the adapter {adapter.name!r}: expected a {kind.__name__} from {method}, got {got}"
        )
    return value


def class_names(module: nn.Module) -> set[str]:
    """Return the names of the module's class and its base classes."""
    return {cls.__name__ for cls in type(module).__mro__}


def forward_is_of(cls: type[nn.Module], library: str) -> bool:
    """Return whether `library` defines the `forward` of a class, without patches."""
    return getattr(cls.forward, "__module__", "").partition(".")[0] == library


def forward_is_its_own(module: nn.Module) -> bool:
    """Return whether `forward` was replaced on the instance.

    Hooks of accelerate do not count, since they call the original `forward`.
    """
    return "forward" in vars(module) and not hasattr(module, "_hf_hook")


def is_linear(part: object) -> bool:
    """Return whether `part` is a plain linear layer (not quantized, no LoRA)."""
    return isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward


def not_plain(name: str, part: object) -> str:
    """Return a refusal: projection `name` is not a plain linear layer."""
    kind = type(part)
    return (
        f"its {name} is a {kind.__module__}.{kind.__qualname__}, no plain linear map; "
        "adapters can be merged into one first"
    )


def has_class_token(modules: Iterable[nn.Module]) -> bool:
    """Return whether a module has a class token, under any known name."""
    names = ("cls_token", "cls_token_0", "class_token", "class_embedding")
    owners = [owner for m in modules for owner in (m, getattr(m, "embeds", None))]  # NaFlexViT
    return any(isinstance(getattr(owner, name, None), Tensor) for owner in owners for name in names)


def place_of(module: nn.Module) -> tuple[torch.device, torch.dtype] | None:
    """Return device and dtype of the first floating-point parameter, or None."""
    found: Tensor | None = next((p for p in module.parameters() if p.is_floating_point()), None)
    return None if found is None else (found.device, found.dtype)


def arguments_of(cls: Any) -> dict[str, Any]:
    """Return the arguments of the `forward` of a class with their defaults.

    Arguments without a default have the value `inspect.Parameter.empty`.
    """
    _, *parameters = inspect.signature(cls.forward).parameters.values()
    return {
        p.name: p.default for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


_ATTENTION = re.compile("attention|attn|(?-i:MHS?A|MLA)", re.IGNORECASE)


def looks_like_attention(module: nn.Module) -> bool:
    """Return whether the name of a class or base class suggests attention."""
    return any(_ATTENTION.search(name) for name in class_names(module))
