"""Self-attention of Hugging Face transformers, recognised by its structure.

Since version 5 nearly all of its attention is written alike: `forward(hidden_states, ...)` returns
`attn_output, attn_weights`, and four linear maps have one of a few sets of names. What is written
so, and has no other parameters, can be replaced.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    Adapter,
    HostAttention,
    ParentChange,
    SwappedAttention,
    class_names,
    is_linear,
    not_plain,
)
from rifflemix.surgery.hosts.transformers_masks import padding_of
from rifflemix.surgery.hosts.transformers_saving import PushToHub, SavePretrained
from rifflemix.surgery.masks import check_causality
from rifflemix.surgery.weights import HostWeights, Projection


class _Maps(NamedTuple):
    """Names of the query, key, value and output maps; one name for the three is a fused map."""

    query: str
    key: str
    value: str
    output: str | None


_MAPS = (
    _Maps("query", "key", "value", None),
    _Maps("q_proj", "k_proj", "v_proj", "o_proj"),
    _Maps("q_proj", "k_proj", "v_proj", "out_proj"),
    _Maps("q_lin", "k_lin", "v_lin", "out_lin"),
    _Maps("c_attn", "c_attn", "c_attn", "c_proj"),
)
# Some return a third value, which a mixer has not.
_ENDS_IN = re.compile(r"return attn_output, attn_weights(_reshaped)?$", re.MULTILINE)
_OF_ANOTHER_SEQUENCE = ("encoder_hidden_states", "key_value_states")
# What hosts hand on beside the mask, which then does not say it.
_OF_PACKED_SEQUENCES = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
_KNOWN_ARGUMENTS = {
    "self",
    "hidden_states",
    "attention_mask",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "cache_position",
    "output_attentions",
    "use_cache",
    "encoder_attention_mask",
    *_OF_ANOTHER_SEQUENCE,
}
_QUERY_NORMS = ("q_norm", "k_norm")
_BIASED = "it adds a bias of relative positions to its scores, and a token mixer has no scores"
_REFUSED = {
    "DisentangledSelfAttention": "its attention is disentangled: relative positions are part of "
    "its scores, and a token mixer has no scores",
    "T5Attention": _BIASED,
    "MT5Attention": _BIASED,
}
_ROTARY = (
    "{name}: the rotary positions of its queries and keys are lost, and nothing else in the model "
    "tells positions; a mixer that knows no order by itself only has causality to tell it"
)
_NORMS = "{name}: the norms of its queries and keys are lost"
_CAP = "{name}: the cap on its scores (attn_logit_softcapping) is lost"


class SwappedTransformersAttention(SwappedAttention):
    """A mixer that is called as attention of transformers is, and returns (outputs, None).

    In generation the cache of the host holds the state of the mixer's stream in place of keys and
    values; see `rifflemix.surgery.hosts.transformers_cache`.

    Args:
        mixer: what computes the outputs.
        original: the attention that it replaces.
    """

    def __init__(self, mixer: TokenMixer, original: nn.Module) -> None:
        super().__init__(mixer, original)
        self.names = tuple(inspect.signature(type(original).forward).parameters)[2:]
        self.layer_idx = getattr(original, "layer_idx", None)
        self.is_causal = mixer.causal
        # A dropout after the output map is the host's, not the mixer's.
        self.resid_dropout = getattr(original, "resid_dropout", None)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """(B, N, C) tokens of the host -> the mixed tokens, and None in place of weights.

        Raises:
            InputError: attention weights are asked for, or another sequence is given; a mask that
                says more than padding and causality; a cache that cannot hold the mixer's state.
        """
        arguments = {**dict(zip(self.names, args, strict=False)), **kwargs}
        self._check(arguments)
        mask, past = arguments.get("attention_mask"), arguments.get("past_key_values")
        if past is None:
            y = self.mixer(hidden_states, key_padding_mask=self._padding(hidden_states, mask))
        else:
            from rifflemix.surgery.hosts.transformers_cache import continue_stream

            y = continue_stream(self.mixer, hidden_states, mask, past, self.layer_idx)
        return (y if self.resid_dropout is None else self.resid_dropout(y)), None

    def _padding(self, x: Tensor, mask: Any) -> Tensor | None:
        return padding_of(mask, x, causal=self.mixer.causal)

    def _check(self, arguments: dict[str, Any]) -> None:
        for name in _OF_ANOTHER_SEQUENCE:
            if arguments.get(name) is not None:
                raise bad_argument(
                    name, "None: a token mixer reads one sequence", "another sequence"
                )
        for name in _OF_PACKED_SEQUENCES:
            if arguments.get(name) is not None:
                raise bad_argument(
                    name,
                    "None: sequences packed into one row would mix",
                    "the ends of packed sequences",
                    "pad them, or keep the host's attention",
                )
        # CLIP's encoder of text says so by the call, and gives a mask only where there is padding.
        check_causality(arguments.get("is_causal"), self.mixer)
        if arguments.get("output_attentions") or weights_are_collected():
            raise bad_argument(
                "output_attentions",
                f"False: {self.mixer.card.title} has no attention weights",
                True,
            )


class TransformersAttention(Adapter):
    """Self-attention of transformers: BERT, ViT, GPT-2, Llama and what is written like them."""

    name = "transformers"
    has_cache = True

    def matches(self, module: nn.Module) -> bool:
        """A class of transformers, or derived from one, whose forward is written as it knows."""
        return _is_attention(_class(module)) and (
            _refusal(module) != "" or _maps(module) is not None
        )

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """See `HostAttention`; positions that are lost are warned of."""
        if _is_cross(module, parents):
            return HostAttention(dim=1, num_heads=1, cross=True)
        refusal = _refusal(module) or _unknown_arguments(module) or _unknown_parts(module)
        name = type(module).__name__
        weights = None if refusal else self.weights(module)
        if weights is None:
            reason = refusal or "its maps cannot be read"
            return HostAttention(dim=1, num_heads=1, refusal=reason)
        lost = [_ROTARY] if "position_embeddings" in _arguments(_class(module)) else []
        lost += [_NORMS] if _has_query_norms(module) else []
        lost += [_CAP] if getattr(module, "attn_logit_softcapping", None) is not None else []
        inner, dim = weights.value.weight.shape
        return HostAttention(
            dim=dim,
            num_heads=_num_heads(module, inner),
            causal=bool(getattr(module, "is_causal", False)),
            dropout=_dropout(module),
            inner_dim=inner,
            max_length=_longest(parents),
            class_token=any(hasattr(part, "cls_token") for part in _embeddings(parents)),
            warnings=tuple(sentence.format(name=name) for sentence in lost),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """See `SwappedTransformersAttention`."""
        return SwappedTransformersAttention(mixer, module)

    def weights(self, module: nn.Module) -> HostWeights | None:
        """Its maps; shared keys and values are repeated, and its scale is in the queries."""
        maps = _maps(module)
        if maps is None:
            return None
        if maps.query == maps.key:
            fused = _projection(module, maps.query)
            query, key, value = _thirds(fused)
        else:
            query, key, value = (_projection(module, name) for name in maps[:3])
        width = len(query.weight) // _num_heads(module, len(query.weight))
        groups = len(query.weight) // len(key.weight)
        scale = float(getattr(module, "scaling", width**-0.5)) * width**0.5
        return HostWeights(
            _scaled(query, scale),
            _repeated(key, width, groups),
            _repeated(value, width, groups),
            None if maps.output is None else _projection(module, maps.output),
        )

    def parent_changes(self, module: nn.Module, parents: Sequence[nn.Module]) -> list[ParentChange]:
        """Models that hold it write the swap where they save themselves."""
        return [
            ParentChange(parent, name, method(parent))
            for parent in parents
            if "PreTrainedModel" in class_names(parent)
            for name, method in (("save_pretrained", SavePretrained), ("push_to_hub", PushToHub))
        ]


def weights_are_collected() -> bool:
    """Whether a model of transformers is collecting attention weights right now.

    Not every host tells its attention of `output_attentions`; hooks would collect them.
    """
    if torch.compiler.is_compiling():
        return False
    from transformers.utils import output_capturing

    return "attentions" in (output_capturing._active_collector.get() or ())


def _class(module: nn.Module) -> Any:
    return type(module)


@cache
def _is_attention(cls: Any) -> bool:
    """Whether a class of modules is written as attention of transformers is."""
    if not any(base.__module__.startswith("transformers.models.") for base in cls.__mro__):
        return False
    if any(base.__name__ in _REFUSED for base in cls.__mro__):
        return True
    arguments = _arguments(cls)
    if arguments[:1] != ("hidden_states",):
        return False
    try:
        return _ENDS_IN.search(inspect.getsource(cls.forward)) is not None
    except (OSError, TypeError):
        return False


@cache
def _arguments(cls: Any) -> tuple[str, ...]:
    """Names of the arguments of its `forward`, but for the catch-all."""
    parameters = inspect.signature(cls.forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)[1:]


def _refusal(module: nn.Module) -> str:
    """Why attention of this class cannot be replaced; empty if nothing is known against it."""
    names = class_names(module)
    return next((reason for name, reason in _REFUSED.items() if name in names), "")


def _unknown_arguments(module: nn.Module) -> str:
    unknown = sorted(set(_arguments(_class(module))) - _KNOWN_ARGUMENTS)
    return f"its forward takes {', '.join(unknown)}, which a token mixer has no use for" * bool(
        unknown
    )


def _unknown_parts(module: nn.Module) -> str:
    """A reason if it has parameters beside the four maps, a window, or weights elsewhere."""
    maps = [name for name in _maps(module) or () if name is not None]
    for name in maps:
        if not _is_plain(getattr(module, name)):
            return not_plain(name, getattr(module, name))
    known = {*maps, *_QUERY_NORMS}
    others = {name.partition(".")[0] for name, _ in module.named_parameters()} - known
    if others:
        return f"a token mixer has no place for its {', '.join(sorted(others))}"
    of_model = getattr(getattr(module, "config", None), "sliding_window", None)
    window = getattr(module, "sliding_window", of_model)
    if window is not None:
        return (
            f"it sees a sliding window of {window} tokens; set sliding_window=None in the model's "
            "config if it need not"
        )
    hooks = (getattr(part, "_hf_hook", None) for part in module.modules())
    if any(getattr(hook, "offload", False) for hook in hooks):
        return "its weights are offloaded (device_map); load the model into memory first"
    return ""


def _has_query_norms(module: nn.Module) -> bool:
    norms = (getattr(module, name, None) for name in _QUERY_NORMS)
    return any(part is not None and not isinstance(part, nn.Identity) for part in norms)


def _maps(module: nn.Module) -> _Maps | None:
    """The names of its maps, None where they are none that is known."""
    for names in _MAPS:
        parts = [getattr(module, name, None) for name in names if name is not None]
        if all(isinstance(part, nn.Module) for part in parts):
            return names
    return None


def _is_plain(part: Any) -> bool:
    return is_linear(part) or type(part).__name__ == "Conv1D"


def _projection(module: nn.Module, name: str) -> Projection:
    """A map as (out, in); transformers' own Conv1D has it the other way round."""
    layer = getattr(module, name)
    weight = layer.weight if isinstance(layer, nn.Linear) else layer.weight.T
    return Projection(weight.detach(), None if layer.bias is None else layer.bias.detach())


def _thirds(fused: Projection) -> list[Projection]:
    biases = (None,) * 3 if fused.bias is None else fused.bias.chunk(3)
    return [Projection(w, b) for w, b in zip(fused.weight.chunk(3), biases, strict=True)]


def _scaled(part: Projection, factor: float) -> Projection:
    if abs(factor - 1.0) < 1e-12:
        return part
    return Projection(part.weight * factor, None if part.bias is None else part.bias * factor)


def _repeated(part: Projection, width: int, groups: int) -> Projection:
    """Each head of `width` rows as often as queries share it."""

    def repeat(t: Tensor) -> Tensor:
        heads: Tensor = t.unflatten(0, (-1, width))
        return heads.repeat_interleave(groups, 0).flatten(0, 1)

    if groups == 1:
        return part
    return Projection(repeat(part.weight), None if part.bias is None else repeat(part.bias))


def _num_heads(module: nn.Module, rows: int) -> int:
    """Heads of the queries, whose map has so many rows."""
    for name in ("num_heads", "num_attention_heads", "n_heads"):
        if isinstance(getattr(module, name, None), int):
            return int(getattr(module, name))
    head_dim: Any = module.head_dim
    return rows // int(head_dim)


def _dropout(module: nn.Module) -> float:
    """The probability with which it drops attention weights, under any of its names."""
    for name in ("attention_dropout", "attn_dropout", "dropout"):
        value = getattr(module, name, None)
        if value is not None:
            return float(value.p if isinstance(value, nn.Dropout) else value)
    return 0.0


def _is_cross(module: nn.Module, parents: Sequence[nn.Module]) -> bool:
    if getattr(module, "is_cross_attention", False):
        return True
    place = next((n for n, child in parents[-1].named_children() if child is module), "")
    words = f"{type(module).__name__} {place}".lower()
    return "cross" in words or "encoder_attn" in words


def _embeddings(parents: Sequence[nn.Module]) -> list[nn.Module]:
    """The embeddings of the innermost model around the attention, where it has any."""
    found = (getattr(parent, "embeddings", None) for parent in reversed(parents))
    return [part for part in found if isinstance(part, nn.Module)][:1]


def _longest(parents: Sequence[nn.Module]) -> int | None:
    """The most tokens of the innermost model that says so."""
    for embeddings in _embeddings(parents):
        table = getattr(embeddings, "position_embeddings", None)
        if isinstance(table, Tensor) and table.dim() == 3:
            registers = getattr(embeddings, "register_tokens", None)  # which have no position
            return table.shape[1] + (0 if registers is None else registers.shape[1])
        if isinstance(table, nn.Embedding):
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - first
    for parent in reversed(parents):
        for owner, name in (
            (parent, "max_target_positions"),
            (parent, "max_source_positions"),
            (getattr(parent, "config", None), "max_position_embeddings"),
        ):
            limit = getattr(owner, name, None)
            if isinstance(limit, int):
                return limit
    return None
