"""What surgery asks of a host: which modules are attention, how they are called, what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from rifflemix.compat import has_values, is_to_empty, values_can_be_read
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.label import LABEL, check_label, make_label
from rifflemix.surgery.offloading import load_at_once
from rifflemix.surgery.settings import MixerSettings
from rifflemix.surgery.weights import HostWeights, copy_weights

_T = TypeVar("_T")


@dataclass(frozen=True)
class HostAttention:
    """What an attention module of a host is.

    Attributes:
        dim: channels C that go in and come out.
        num_heads: heads of the queries.
        causal: True: it hides later tokens by itself; None: the call decides; False: it never does.
        dropout: probability with which attention weights are dropped.
        inner_dim: channels of the values of all heads, C where unset.
        max_length: most tokens the host takes, where it says so.
        usual_length: tokens that it is built for, where it takes more as well (larger images); only
            mixers that cannot be built without a length are given it.
        class_token: a classifier reads one token of the sequence.
        cross: it attends to another sequence; never replaced, and not counted among the layers.
        refusal: empty, or why it cannot be replaced.
        notes: what a replacement changes, each one sentence for the report.
        warnings: what it loses; in the report too, and warned of once.
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
    """An attribute of a module around the attention that must differ while it is replaced."""

    module: nn.Module
    attribute: str
    value: Any


class SwappedAttention(nn.Module):
    """A mixer with the call signature of the attention whose place it takes.

    A subclass writes `forward` as the host calls it. The replaced attention is kept for
    `restore_attention`, outside of parameters and `state_dict`; it follows to other devices and
    dtypes, and it is copied with the module.

    The state_dict has a label, the buffer `mixer_settings`. A state with a label is the whole state
    of its mixer: `load_state_dict` raises InputError if the label names another mixer, or if the
    state has unknown keys, even with `strict=False`. Keys that do not come raise at the first call,
    since the files of a sharded checkpoint are loaded one by one.

    Args:
        mixer: what computes the outputs.
        original: the attention that it replaces.
    """

    settings: MixerSettings | None = None
    """How the mixer was built, by which a file can say it."""
    adapter: str = ""
    """The name of the adapter that knew the attention."""
    batch_first: bool = True
    """False where the host's tokens are (N, B, C)."""
    _place: str = ""
    _awaited: frozenset[str] = frozenset()
    _came: frozenset[str] = frozenset()
    # Tensors that a labelled state lacked, and tensors that came without a label.

    def __init__(self, mixer: TokenMixer, original: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self._kept = (original,)
        super().train(original.training)
        self.register_forward_pre_hook(_load_offloaded)

    @property
    def original(self) -> nn.Module:
        """The replaced attention."""
        return self._kept[0]

    def train(self, mode: bool = True) -> Self:
        """As of any module; the replaced attention follows, since `forward` may use its parts."""
        self.original.train(mode)
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # What was loaded without its old attention has it without memory, which cannot move.
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
        """Set how the mixer was built, by which adapter and where, and add the label."""
        self.settings, self.adapter, self._place = settings, adapter, place
        label, where = make_label(settings), place_of(self.original)
        has_memory = where is None or where[0].type != "meta"
        self.register_buffer(LABEL, label.to(where[0]) if where and has_memory else label)
        if not has_memory:
            self._check_at_next_call()  # some loaders set tensors one by one

    def check_loaded(self) -> None:
        """Raise InputError unless all weights came, and they are weights of this mixer."""
        if self._awaited:
            raise bad_argument(
                f"weights at {self._place}",
                f"all weights of {self.mixer.card.name}",
                f"a state without mixer.{min(self._awaited)}",
                f"load the whole state, or remove {LABEL!r} from it to load a part on purpose",
            )
        if self.settings is not None:
            check_label(self._place, self.get_buffer(LABEL), self.settings)

    def _check_at_next_call(self) -> None:
        if _check_loaded not in self._forward_pre_hooks.values():
            self.register_forward_pre_hook(_check_loaded)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        # Files have one number in place of the replaced attention, for programs without rifflemix.
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
        else:  # the files of a sharded checkpoint come in any order
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
    """How attention of one kind of host is found, described, called and read.

    Write a subclass for a host of your own and pass an instance to `rifflemix.register_adapter`.
    """

    name: str = ""
    """Shown in reports, for example "timm"."""
    has_cache: bool = False
    """The host keeps keys and values of earlier calls (generation)."""

    def matches(self, module: nn.Module) -> bool:
        """Whether `module` is attention of this kind, by class name and attributes.

        The host's library is not imported for this.
        """
        raise NotImplementedError

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """What `module` is; `parents` are the modules around it, the model first."""
        raise NotImplementedError

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """A module that is called as `module` is, returns what it returns, and computes `mixer`."""
        raise NotImplementedError

    def weights(self, module: nn.Module) -> HostWeights | None:
        """Its query, key, value and output maps; None where they cannot be told."""
        return None

    def copy_weights(self, module: nn.Module, mixer: TokenMixer) -> list[str]:
        """Copy what `mixer` has a place for; the names of its parameters that were set."""
        weights = self.weights(module)
        return [] if weights is None else copy_weights(mixer, weights)

    def macs(self, module: nn.Module, host: HostAttention, length: int) -> int | None:
        """Multiply-accumulates for one sequence of `length` tokens; None where not known.

        The default is softmax attention's: the maps on every token, two products of N x N scores.
        """
        maps = sum(p.numel() for p in module.parameters() if p.dim() >= 2)
        return length * maps + 2 * length * length * (host.inner_dim or host.dim)

    def parent_changes(self, module: nn.Module, parents: Sequence[nn.Module]) -> list[ParentChange]:
        """Attributes of `parents` that must differ while `module` is replaced."""
        return []


def returned(adapter: Adapter, method: str, value: Any, kind: type[_T]) -> _T:
    """What a method of an adapter returned; InputError unless it is of a kind."""
    if not isinstance(value, kind):
        got = "None" if value is None else f"a {type(value).__name__}"
        raise InputError(
            f"the adapter {adapter.name!r}: expected a {kind.__name__} from {method}, got {got}"
        )
    return value


def class_names(module: nn.Module) -> set[str]:
    """Names of the module's class and of those that it is derived from."""
    return {cls.__name__ for cls in type(module).__mro__}


def forward_is_of(cls: type[nn.Module], library: str) -> bool:
    """Whether a class computes what `library` wrote: no subclass or patch with another forward."""
    return getattr(cls.forward, "__module__", "").partition(".")[0] == library


def forward_is_its_own(module: nn.Module) -> bool:
    """Whether this very module was given another forward than its class has.

    Hooks of accelerate are none: they call it.
    """
    return "forward" in vars(module) and not hasattr(module, "_hf_hook")


def is_linear(part: object) -> bool:
    """Whether it is a plain linear map: not one with adapters (LoRA) or quantised weights."""
    return isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward


def not_plain(name: str, part: object) -> str:
    """Why attention cannot be replaced whose map `name` is `part`, no plain linear map."""
    kind = type(part)
    return (
        f"its {name} is a {kind.__module__}.{kind.__qualname__}, no plain linear map; "
        "adapters can be merged into one first"
    )


def has_class_token(modules: Iterable[nn.Module]) -> bool:
    """Whether one of them holds a token that a classifier reads, under any of its names."""
    names = ("cls_token", "cls_token_0", "class_token", "class_embedding")
    owners = [owner for m in modules for owner in (m, getattr(m, "embeds", None))]  # NaFlexViT
    return any(isinstance(getattr(owner, name, None), Tensor) for owner in owners for name in names)


def place_of(module: nn.Module) -> tuple[torch.device, torch.dtype] | None:
    """Device and dtype of the first floating-point parameter; None if there is none."""
    found: Tensor | None = next((p for p in module.parameters() if p.is_floating_point()), None)
    return None if found is None else (found.device, found.dtype)
