"""Interface between surgery and host models: adapters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.weights import HostWeights, copy_weights

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
