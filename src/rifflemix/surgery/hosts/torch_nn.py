"""Adapter for torch.nn.MultiheadAttention, alone or in transformer layers of torch.nn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from rifflemix.compat import in_function_transform
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    Adapter,
    HostAttention,
    ParentChange,
    class_names,
    forward_is_its_own,
    has_class_token,
)
from rifflemix.surgery.hosts.transformers_properties import source_of, text_of
from rifflemix.surgery.masks import check_causality, key_padding_mask, merge_padding
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.weights import HostWeights, Projection

_OF_ANOTHER_SEQUENCE = ("cross", "encoder_attn", "multihead_attn")
"""Words in attribute names that identify cross-attention in decoders."""
_CROSS_AROUND = re.compile(r"cross_?att|encoder_attn", re.IGNORECASE)


class SwappedMultiheadAttention(SwappedAttention):
    """Mixer with the interface of `torch.nn.MultiheadAttention`.

    The encoder layers of torch.nn check the attributes below before they run a fused kernel on the
    attention weights. These values make the layers call the module instead.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.
    """

    _qkv_same_embed_dim = False
    in_proj_bias = None

    def __init__(self, mixer: TokenMixer, original: nn.MultiheadAttention) -> None:
        super().__init__(mixer, original)
        self.batch_first = original.batch_first
        self.embed_dim = original.embed_dim
        self.num_heads = original.num_heads

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool | None = None,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Mix the tokens and return them in the shape of `query`.

        The second return value is None instead of attention weights.

        Raises:
            InputError: `need_weights` is True, or tensors are nested. Keys or values differ from
                the queries. The mask expresses more than padding and causality.
        """
        if need_weights:
            raise bad_argument(
                "need_weights", f"False: {self.mixer.card.title} has no attention weights", True
            )
        if query.is_nested:
            raise bad_argument("query", "a dense tensor and key_padding_mask", "a nested tensor")
        if not (_is_same(query, key) and _is_same(query, value)):
            raise _others()
        check_causality(is_causal, self.mixer)
        x = query.unsqueeze(0) if query.dim() == 2 else query
        if query.dim() == 3 and not self.batch_first:
            x = x.transpose(0, 1)
        y = self.mixer(x, key_padding_mask=self._padding(x, key_padding_mask, attn_mask))
        if query.dim() == 2:
            return y.squeeze(0), None
        return (y if self.batch_first else y.transpose(0, 1)), None

    def _padding(
        self, x: Tensor, of_keys: Tensor | None, of_scores: Tensor | None
    ) -> Tensor | None:
        if of_keys is not None and of_keys.dim() == 1:
            of_keys = of_keys.unsqueeze(0)
        masks = [
            key_padding_mask(
                mask,
                batch=x.shape[0],
                length=x.shape[1],
                causal=self.mixer.causal,
                true_means="padding",
                per_query=per_query,
            )
            for mask, per_query in ((of_keys, False), (of_scores, True))
        ]
        return merge_padding(*masks)


class TorchMultiheadAttention(Adapter):
    """Adapter for `torch.nn.MultiheadAttention`.

    The fast path and nested tensors of the encoder are disabled.
    """

    name = "torch.nn"

    def matches(self, module: nn.Module) -> bool:
        """Return whether a module uses the original `MultiheadAttention.forward`."""
        return (
            isinstance(module, nn.MultiheadAttention)
            and type(module).forward is nn.MultiheadAttention.forward
            and not forward_is_its_own(module)
        )

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe the attention. Each call decides about causality.

        The attribute name identifies cross-attention.
        """
        attention = cast(nn.MultiheadAttention, module)
        names = [name for name, child in parents[-1].named_children() if child is module]
        is_second = any(word in name.lower() for name in names for word in _OF_ANOTHER_SEQUENCE)
        if not any("self" in name.lower() for name in names):
            is_second = is_second or _is_wrapped_for_another_sequence(module, parents)
        pools = "Pool" in type(parents[-1]).__name__  # learned queries attend to tokens (SigLIP)
        around: Any = type(parents[-1])
        refusal = ""
        if attention.bias_k is not None or attention.add_zero_attn:
            refusal = "some of its keys are not tokens (add_bias_kv or add_zero_attn)"
        elif "base_layer" in names:  # PEFT's name for a module with LoRA
            refusal = "adapters around it change its weights; merge them first"
        elif around.__module__.startswith("speechbrain."):
            refusal = (
                f"speechbrain's {around.__name__} around it requests attention weights in every "
                "call, but token mixers have none"
            )
        elif any(_only_reads_weights(around, name) for name in names):
            refusal = f"{around.__name__} around it does not call it, but computes with its weights"
        elif any(_hides_class_token(parent) for parent in parents):
            refusal = (
                "its mask hides the class token of a padded text from itself "
                "(correct_cls_mask=False), and a token mixer would take the token for padding"
            )
        return HostAttention(
            dim=attention.embed_dim,
            num_heads=attention.num_heads,
            dropout=float(attention.dropout),
            class_token=has_class_token(parents),
            cross=is_second or pools or not attention._qkv_same_embed_dim,
            refusal=refusal,
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a `SwappedMultiheadAttention`."""
        return SwappedMultiheadAttention(mixer, cast(nn.MultiheadAttention, module))

    def weights(self, module: nn.Module) -> HostWeights | None:
        """Read `in_proj_weight` in thirds, and `out_proj`."""
        attention = cast(nn.MultiheadAttention, module)
        if not attention._qkv_same_embed_dim:
            return None
        weights = attention.in_proj_weight.chunk(3)
        bias = attention.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        query, key, value = (Projection(w, b) for w, b in zip(weights, biases, strict=True))
        output = Projection(attention.out_proj.weight, attention.out_proj.bias)
        return HostWeights(query, key, value, output)

    def parent_changes(self, module: nn.Module, parents: Sequence[nn.Module]) -> list[ParentChange]:
        """Disable nested tensors in encoders around the module."""
        return [
            ParentChange(parent, "use_nested_tensor", False)
            for parent in parents
            if "TransformerEncoder" in class_names(parent)
            and getattr(parent, "use_nested_tensor", False)
        ]


def _is_wrapped_for_another_sequence(module: nn.Module, parents: Sequence[nn.Module]) -> bool:
    """Return whether a wrapper of this attention alone is named cross-attention."""
    *above, around = parents
    if sum(isinstance(part, nn.MultiheadAttention) for part in around.modules()) > 1:
        return False
    names = [name for name, child in above[-1].named_children() if child is around] if above else []
    return any(_CROSS_AROUND.search(name) for name in [type(around).__name__, *names])


def _hides_class_token(parent: nn.Module) -> bool:
    """Return whether an open_clip text model uses the old class-token mask."""
    has_token = isinstance(getattr(parent, "cls_emb", None), Tensor)
    return has_token and not getattr(parent, "correct_cls_mask", True)


@cache
def _only_reads_weights(cls: Any, name: str) -> bool:
    """Return whether a class reads attention weights without calling the module (WavLM)."""
    if f"self.{name}.in_proj_weight" not in source_of(cls):
        return False
    written = [
        base for base in cls.__mro__ if issubclass(base, nn.Module) and base is not nn.Module
    ]
    return not any(f"self.{name}(" in text_of(base) for base in written)


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors share values and gradients (same tensor or views)."""
    if a is b:
        return True
    if a.is_meta or b.is_meta or not _memory_is_known():
        return False
    forms = [(t.dtype, t.shape, t.stride(), t.data_ptr(), t.requires_grad) for t in (a, b)]
    if forms[0] != forms[1]:
        return False
    return not a.requires_grad or _base(a) is _base(b)


def _memory_is_known() -> bool:
    return not (torch.compiler.is_compiling() or in_function_transform())


def _base(x: Tensor) -> Tensor:
    """Return the tensor that `x` is a view of, or `x` itself."""
    return x if x._base is None else x._base


def _others() -> InputError:
    """Return the error for keys or values that differ from the queries."""
    if not _memory_is_known():
        return InputError(
            "key and value: expected the very tensor of query, got others; compiled graphs and "
            "torch.func cannot compare views, so write y = x.transpose(0, 1); attn(y, y, y)"
        )
    return InputError(
        "key and value: expected the very tensor of query, got others; a token mixer reads one "
        "sequence (cross-attention, keys with added positions and keys without the gradients of "
        "the queries cannot be replaced)"
    )
