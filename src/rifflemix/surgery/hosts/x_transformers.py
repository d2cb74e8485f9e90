"""Plain attention of x-transformers, recognized by its parts.

rifflemix never imports the library. Its class `Attention` has switches for dozens of variants.
rifflemix can replace modules with only the four projections and without active switches. Otherwise,
the refusal names each active switch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    Adapter,
    HostAttention,
    ParentChange,
    class_names,
    forward_is_its_own,
    forward_is_of,
)
from rifflemix.surgery.masks import check_causality, key_padding_mask, merge_padding
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.weights import HostWeights, Projection

_MAPS = ("to_q", "to_k", "to_v", "to_out")
_SIZES = {"heads", "kv_heads", "groups", "scale", "rotate_num_heads", "causal", "training"}
# Attributes that `_switches` does not report. They reshape heads, or they have no effect while
# all switches are off.
_IDLE = {
    "laser_softclamp_value",
    "logit_softclamp_value",
    "qk_norm_groups",
    "qk_norm_scale",
    "qk_norm_q_scale",
    "qk_norm_k_scale",
    "can_cache_kv",
    "merge_heads",
    "split_q_heads",
    "split_k_heads",
    "split_v_heads",
    "to_head_space_headwise",
    "to_head_space_dimwise",
    "to_v_gate_head_space",
    "to_output_gate_head_space",
    "to_v_gate_activation",
    "to_value_residual_mix",
}
_OF_SCORES = {
    "attn_fn",
    "attn_dropout",
    "create_causal_mask",
    "dropout",
    "flash",
    "sdp_context_manager",
}
_OF_LAYERS = ("rel_pos", "polar_pos_emb", "residual_attn", "add_value_residual")
_ROTARY = (
    "rotary positions are lost: a token mixer takes none; without other positions in the model, "
    "a permutation-equivariant mixer cannot know the order of the tokens"
)
_IGNORED = ("rotary_pos_emb", "context_rotary_pos_emb", "pos")


class SwappedXAttention(SwappedAttention):
    """Mixer with the interface of attention in x-transformers.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.
    """

    can_cache_kv = False

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        return_intermediates: bool = False,
        causal: bool | None = None,
        **others: Any,
    ) -> Any:
        """Mix the tokens (B, N, C).

        With `return_intermediates`, also return empty intermediates.

        Raises:
            InputError: an argument is a context sequence or a cache, or changes the scores. The
                mask expresses more than padding and causality.
        """
        for name, value in {"context": context, **others}.items():
            if value is not None and name not in _IGNORED:
                raise bad_argument(
                    name, f"None: {self.mixer.card.title} has no use for it", "a value"
                )
        check_causality(causal, self.mixer)
        if causal is False and self.mixer.causal:
            raise bad_argument("causal", "True, as the mixer is", False)
        y = self.mixer(x, key_padding_mask=self._padding(x, mask, context_mask, attn_mask))
        if not return_intermediates:
            return y
        return y, sys.modules[type(self.original.attend).__module__].Intermediates()

    def _padding(
        self, x: Tensor, mask: Tensor | None, of_keys: Tensor | None, of_scores: Tensor | None
    ) -> Tensor | None:
        if of_scores is not None and of_scores.dim() == 3:
            of_scores = of_scores.unsqueeze(0)  # the first dimension is heads, not sequences
        return merge_padding(
            *(
                key_padding_mask(
                    part,
                    batch=x.shape[0],
                    length=x.shape[1],
                    causal=self.mixer.causal,
                    per_query=per_query,
                )
                for part, per_query in ((mask, False), (of_keys, False), (of_scores, True))
            )
        )


class XTransformersAttention(Adapter):
    """Adapter for `Attention` of x-transformers with plain softmax scores."""

    name = "x-transformers"

    def matches(self, module: nn.Module) -> bool:
        """Return whether a module is the library's own `Attention` with unchanged `forward`."""
        if not forward_is_of(type(module), "x_transformers") or forward_is_its_own(module):
            return False  # other libraries use the same names for the parts
        parts = (*_MAPS, "attend")
        return "Attention" in class_names(module) and all(hasattr(module, part) for part in parts)

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe the attention; active switches are reasons for refusal."""
        host: Any = module
        layers = next((part for part in reversed(parents) if hasattr(part, "layer_types")), None)
        if _is_cross(module, layers):
            return HostAttention(dim=1, num_heads=1, cross=True)
        refusal = _refusal(host, layers)
        if refusal:
            return HostAttention(dim=1, num_heads=1, refusal=refusal)
        lengths = (getattr(part, "max_seq_len", None) for part in reversed(parents))
        return HostAttention(
            dim=host.to_q.in_features,
            num_heads=host.heads,
            causal=bool(host.causal),
            dropout=float(host.attend.dropout),
            inner_dim=host.to_q.out_features,
            max_length=next((n for n in lengths if isinstance(n, int) and n > 0), None),
            class_token=any(getattr(part, "has_cls_token", False) for part in parents),
            warnings=(_ROTARY,) if getattr(layers, "rotary_pos_emb", None) is not None else (),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a `SwappedXAttention`."""
        return SwappedXAttention(mixer, module)

    def weights(self, module: nn.Module) -> HostWeights | None:
        """Read the four projections; repeat keys and values that queries share."""
        host: Any = module
        query, key, value = (getattr(host, name).weight for name in _MAPS[:3])
        if host.groups > 1:
            key, value = (_tiled(part, host.kv_heads, host.groups) for part in (key, value))
        output = host.to_out
        return HostWeights(
            Projection(query, None),
            Projection(key, None),
            Projection(value, None),
            Projection(output.weight, None) if isinstance(output, nn.Linear) else None,
        )

    def parent_changes(self, module: nn.Module, parents: Sequence[nn.Module]) -> list[ParentChange]:
        """Disable the cache: `generate` computes every token from the whole sequence."""
        return [
            ParentChange(parent, "can_cache_kv", False)
            for parent in parents
            if "can_cache_kv" in vars(parent)
        ]


def _is_cross(module: nn.Module, layers: Any) -> bool:
    """Return whether a module belongs to a layer of type "c"."""
    if layers is None:
        return False
    kinds = zip(layers.layers, layers.layer_types, strict=False)
    return any(kind == "c" and module in list(parts) for parts, kind in kinds)


def _refusal(host: Any, layers: Any) -> str:
    switches = _switches(host, _SIZES | _IDLE | {*_MAPS, "attend"})
    switches += _switches(host.attend, _SIZES | _IDLE | _OF_SCORES)
    switches += [name for name in _OF_LAYERS if getattr(layers, name, None) not in (None, False)]
    if switches:
        return f"a token mixer has no place for its {', '.join(switches)}"
    kind = host.attend.attn_fn
    if not (isinstance(kind, partial) and kind.func is functional.softmax):
        return "its scores go through something else than a softmax"
    maps = [getattr(host, name) for name in _MAPS]
    if not all(type(part) is nn.Linear and part.bias is None for part in maps[:3]):
        return "its maps cannot be read"
    if not (isinstance(maps[3], nn.Identity) or type(maps[3]) is nn.Linear):
        return "its output map is no linear one"
    same = maps[1].out_features == maps[2].out_features
    if not same or getattr(maps[3], "out_features", maps[0].in_features) != maps[0].in_features:
        return "its values or outputs have another width"
    return ""


def _switches(part: nn.Module, known: set[str]) -> list[str]:
    """Return the names of active attributes that are not in `known`."""
    values = {k: v for k, v in vars(part).items() if not k.startswith("_")}
    values |= dict(part.named_children()) | dict(part.named_parameters(recurse=False))
    return [k for k, v in values.items() if k not in known and not _is_off(v)]


def _is_off(value: Any) -> bool:
    return value is None or (isinstance(value, int) and value == 0)


def _tiled(weight: Tensor, heads: int, groups: int) -> Tensor:
    """Repeat the heads in the order 0, 1, 0, 1, ...

    Query head h uses key head h modulo `heads`.
    """
    by_head: Tensor = weight.unflatten(0, (heads, -1))
    return by_head.repeat(groups, 1, 1).flatten(0, 1)
