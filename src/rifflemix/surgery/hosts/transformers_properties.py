"""Properties of transformers attention: projections, scale, features that are lost, and lengths.

Most of these classes are from transformers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn

from rifflemix.surgery.adapters import class_names, is_linear, not_plain
from rifflemix.surgery.weights import HostWeights, Projection

_TURNS = re.compile(r"rotary|(?<![a-z])rope", re.IGNORECASE)
_TURNS_BY_WINDOW = re.compile(r"if self\.sliding_window is (not None|None or self\.is_sliding)")
_TEMPERATURE = re.compile(r"query_states \* (attn_scales|get_llama_4_attn_scale\()")
_GATE = re.compile(r"query_states, gate = torch\.chunk\(\s*self\.q_proj\(")

_NORMED = re.compile(r"self\.LayerNorm\(hidden_states \+ attn_output\)")


@cache
def source_of(cls: Any) -> str:
    """Return the source code of `forward`, or an empty string."""
    return text_of(cls.forward)


def text_of(part: Any) -> str:
    """Return the source code of an object, or an empty string."""
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return ""


def is_rotary(cls: Any) -> bool:
    """Return whether queries and keys have rotary positions."""
    return _TURNS.search(source_of(cls)) is not None


def is_rotary_by_window(cls: Any) -> bool:
    """Return whether the window decides about rotary positions (Cohere 2, EXAONE 4)."""
    return _TURNS_BY_WINDOW.search(source_of(cls)) is not None


def adds_positions(cls: Any) -> bool:
    """Return whether positions are added before the Q/K projections (DETR)."""
    return "hidden_states + position_embeddings" in source_of(cls)


def grows_with_position(cls: Any) -> bool:
    """Return whether queries have a position-dependent factor (Llama 4)."""
    return _TEMPERATURE.search(source_of(cls)) is not None


def keeps_groups_apart(cls: Any) -> bool:
    """Return whether tokens are split into separate groups during training."""
    return "self.config.group_detr" in source_of(cls)


def has_gate(cls: Any) -> bool:
    """Return whether the query projection also computes a gate for each output."""
    return _GATE.search(source_of(cls)) is not None


def adds_and_norms(cls: Any) -> bool:
    """Return whether the residual connection and its LayerNorm are in the attention (ALBERT)."""
    return _NORMED.search(source_of(cls)) is not None


NORM = re.compile(r"(q|k|v|qk|query|key|value)_?(layer)?_?norm")
_ROTARY = (
    "{name}: the rotary positions of its queries and keys are lost; without other positions in the "
    "model, a permutation-equivariant mixer knows the order of tokens only if it is causal"
)
_ADDED = "{name}: the positions that it adds to its queries and keys are lost"
_NORMS = "{name}: the norms of its queries and keys are lost"
_VALUE_NORM = "{name}: the norm of its values is lost"
_CAP = "{name}: the cap on its scores (attn_logit_softcapping) is lost"
_TEMPERATURE_NOTE = "{name}: the factor of its queries that grows with their position is lost"
_GATE_NOTE = "{name}: the gate of its outputs, a part of its query projection, is lost"
_WIDTHS = "{name}: its queries and keys are wider or narrower than its values, and not copied"
_CLIP = "{name}: the bounds of its queries, keys and values (clip_qkv) are lost"
_NOTES = {
    "AutoformerAttention": "the host adds up values shifted by a few delays (AutoCorrelation); "
    "softmax attention with its weights is another function",
    "InformerProbSparseAttention": "in the host few queries attend, the others get a mean of the "
    "values (ProbSparse); softmax attention with its weights is another function",
}


def notes_of(module: nn.Module) -> tuple[str, ...]:
    """Describe features that are not softmax attention, one sentence each."""
    note = _NOTES.get(type(module).__name__)
    return () if note is None else (note,)


def warnings_of(module: nn.Module) -> tuple[str, ...]:
    """Describe features that a mixer does not replace, one sentence each."""
    norms = [
        name
        for name, part in module.named_children()
        if NORM.fullmatch(name) and not isinstance(part, nn.Identity)
    ]
    of_values = [name for name in norms if name.startswith("v")]
    clip = getattr(module, "clip_qkv", getattr(getattr(module, "config", None), "clip_qkv", None))
    found = {
        _ROTARY: _is_turned(module),
        _ADDED: adds_positions(type(module)),
        _NORMS: len(norms) > len(of_values),
        _VALUE_NORM: len(of_values) > 0,
        _CAP: getattr(module, "attn_logit_softcapping", None) is not None,
        _TEMPERATURE_NOTE: _has_temperature(module),
        _CLIP: clip is not None,
        _WIDTHS: _has_two_widths(module),
        _GATE_NOTE: has_gate(type(module)),
    }
    name = type(module).__name__
    return tuple(sentence.format(name=name) for sentence, is_so in found.items() if is_so)


def _has_two_widths(module: nn.Module) -> bool:
    """Return whether value heads have another width than query and key heads."""
    width = getattr(module, "head_dim", None)
    return getattr(module, "v_head_dim", width) != width


def _has_temperature(module: nn.Module) -> bool:
    """Return whether queries have a factor that grows with the position."""
    is_on = getattr(module, "attn_temperature_tuning", True) and not getattr(
        module, "use_rope", False
    )
    return bool(is_on) and grows_with_position(type(module))


def _is_turned(module: nn.Module) -> bool:
    """Return whether queries and keys have rotary positions."""
    cls, config = type(module), getattr(module, "config", None)
    if getattr(module, "position_embedding_type", "rotary") != "rotary" or not is_rotary(cls):
        return False
    if getattr(config, "position_embedding_type", "rope") in (None, "nope"):  # Granite 4
        return False
    if is_rotary_by_window(cls):
        return _is_turned_by_window(module)
    return bool(getattr(module, "use_rope", True))


def _is_turned_by_window(module: nn.Module) -> bool:
    has_window = getattr(module, "sliding_window", None) is not None
    is_sliding = getattr(module, "is_sliding", None)
    if is_sliding is None:
        return has_window or bool(getattr(module, "force_rope", False))
    return bool(is_sliding) or not has_window


# Time series models have positions for the past values and for the predicted values.
_OF_SERIES = ("context_length", "prediction_length")


def embeddings_around(parents: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the embeddings of the innermost model around the attention.

    The list is empty if no model has embeddings.
    """
    found = (getattr(parent, "embeddings", None) for parent in reversed(parents))
    return [part for part in found if isinstance(part, nn.Module)][:1]


def image_length(parents: Sequence[nn.Module]) -> int | None:
    """Return the number of tokens of a default-size image, or None."""
    for embeddings in embeddings_around(parents):
        table = getattr(embeddings, "position_embeddings", None)
        if isinstance(table, Tensor) and table.dim() == 3:
            registers = getattr(embeddings, "register_tokens", None)  # these have no position
            return table.shape[1] + (0 if registers is None else registers.shape[1])
    return None


def longest(parents: Sequence[nn.Module]) -> int | None:
    """Return the token limit of the innermost model that has one."""
    for embeddings in embeddings_around(parents):
        table = getattr(embeddings, "position_embeddings", None)
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
        found = (getattr(getattr(parent, "config", None), name, None) for name in _OF_SERIES)
        series = [length for length in found if isinstance(length, int)]
        if len(series) == len(_OF_SERIES):  # Informer, Autoformer
            return sum(series)
    return None


class Maps(NamedTuple):
    """Names of the query, key, value and output projections.

    If the three input names are equal, the projection is fused. Its rows contain all queries, then
    all keys, then all values. With `by_head`, each head has its query, key and value rows together.
    """

    query: str
    key: str
    value: str
    output: str | None
    by_head: bool = False

    @property
    def names(self) -> list[str]:
        """Return each name once."""
        return list(dict.fromkeys(name for name in self[:4] if name is not None))

    @property
    def fused(self) -> bool:
        """Return whether one projection computes queries, keys and values."""
        return self.query == self.key


_KNOWN = (
    Maps("query", "key", "value", "output"),
    Maps("query", "key", "value", "dense"),  # ALBERT
    Maps("query", "key", "value", None),
    Maps("q_proj", "k_proj", "v_proj", "o_proj"),
    Maps("q_proj", "k_proj", "v_proj", "out_proj"),
    Maps("q_proj", "k_proj", "v_proj", "dense"),
    Maps("q_proj", "k_proj", "v_proj", "projection_layer"),
    Maps("q_proj", "k_proj", "v_proj", "Wo"),
    Maps("q_lin", "k_lin", "v_lin", "out_lin"),
    Maps("c_attn", "c_attn", "c_attn", "c_proj"),
    Maps("qkv_proj", "qkv_proj", "qkv_proj", "o_proj"),
    Maps("qkv", "qkv", "qkv", "projection"),
    Maps("Wqkv", "Wqkv", "Wqkv", "Wo"),
    Maps("query_key_value", "query_key_value", "query_key_value", "dense", by_head=True),
)
# In these classes the attribute `scaling` is not the factor of the scores. _SCALED_BEFORE: the
# queries already have the usual factor. _UNSCALED: there is no factor.
_SCALED_BEFORE = {"EsmSelfAttention", "EvollaSaProtSelfAttention"}
_UNSCALED = {"GPTNeoSelfAttention"}


def maps_of(module: nn.Module) -> Maps | None:
    """Return the projection names of a module, or None if unknown."""
    for maps in _KNOWN:
        if all(isinstance(getattr(module, name, None), nn.Module) for name in maps.names):
            # StarCoder: with one key per head, the rows are grouped by head.
            by_head = maps.by_head or getattr(module, "multi_query", True) is False
            return maps._replace(by_head=by_head)
    return None


def unreadable(module: nn.Module, maps: Maps) -> str:
    """Return why the projections cannot be read, or an empty string."""
    parts = {name: getattr(module, name) for name in maps.names}
    return next((not_plain(name, part) for name, part in parts.items() if not _is_plain(part)), "")


def read_weights(module: nn.Module, maps: Maps) -> HostWeights:
    """Read the projections. Repeat shared keys and values.

    All factors of queries, keys and values are multiplied into the weights.
    """
    query, key, value = _separate(module, maps)
    heads = num_heads(module, maps)
    width = len(query.weight) // heads
    key = _scaled(key, float(getattr(module, "key_multiplier", 1.0)))  # FalconH1
    value = _scaled(value, float(getattr(module, "v_scale", 1.0)))  # MiMo-V2
    return HostWeights(
        _scaled(query, _scale(module, width) * width**0.5),
        _repeated(key, width, heads),
        _repeated(value, int(getattr(module, "v_head_dim", width)), heads),
        None if maps.output is None else _projection(module, maps.output),
    )


def num_heads(module: nn.Module, maps: Maps) -> int:
    """Return the number of query heads.

    If no attribute contains it, multiply the key heads by the queries per key head.
    """
    for name in ("num_heads", "num_attention_heads", "n_heads"):
        if isinstance(getattr(module, name, None), int):
            return int(getattr(module, name))
    query, key, _ = _separate(module, maps)
    groups = getattr(module, "num_key_value_groups", len(query.weight) // len(key.weight))
    return int(groups) * (len(key.weight) // _head_dim(module))


def _head_dim(module: nn.Module) -> int:
    names = ("head_dim", "head_size", "attention_head_size")
    return next(int(getattr(module, name)) for name in names if hasattr(module, name))


def misshapen(module: nn.Module, maps: Maps) -> str:
    """Return why query rows do not match heads, or an empty string."""
    rows, heads = len(_separate(module, maps)[0].weight), num_heads(module, maps)
    width = getattr(module, "head_dim", rows // max(heads, 1))
    if rows == heads * width:
        return ""
    return f"its {maps.query} gives {rows} channels instead of {heads} heads of {width}"


def _scale(module: nn.Module, width: int) -> float:
    """Return the factor of the scores."""
    names = class_names(module)
    if names & _UNSCALED:
        return 1.0
    usual = width**-0.5 if getattr(module, "scale_attn_weights", True) else 1.0
    if getattr(module, "scale_attn_by_inverse_layer_idx", False):
        usual /= int(getattr(module, "layer_idx", 0)) + 1
    return usual if names & _SCALED_BEFORE else float(getattr(module, "scaling", usual))


def _is_plain(part: Any) -> bool:
    return is_linear(part) or type(part).__name__ == "Conv1D"


def _projection(module: nn.Module, name: str) -> Projection:
    """Return a projection with weight (out, in), also for Conv1D (in, out)."""
    layer = getattr(module, name)
    weight = layer.weight if isinstance(layer, nn.Linear) else layer.weight.T
    return Projection(weight.detach(), None if layer.bias is None else layer.bias.detach())


def _separate(module: nn.Module, maps: Maps) -> list[Projection]:
    """Return the projections of queries, keys and values."""
    if not maps.fused:
        query, key, value = (_projection(module, name) for name in maps[:3])
        if has_gate(type(module)):
            query = _without_gate(query, _head_dim(module))
        return [query, key, value]
    fused = _projection(module, maps.query)
    weights = _rows(module, maps, fused.weight)
    biases = (None,) * 3 if fused.bias is None else _rows(module, maps, fused.bias)
    return [Projection(w, b) for w, b in zip(weights, biases, strict=True)]


def _without_gate(part: Projection, width: int) -> Projection:
    """Return the query rows of a projection with query and gate heads.

    Query and gate heads alternate.
    """

    def queries(t: Tensor) -> Tensor:
        heads: Tensor = t.unflatten(0, (-1, 2, width))
        return heads[:, 0].flatten(0, 1)

    return Projection(queries(part.weight), None if part.bias is None else queries(part.bias))


def _rows(module: nn.Module, maps: Maps, t: Tensor) -> tuple[Tensor, ...]:
    """Split a fused tensor into the rows of queries, keys and values."""
    if maps.by_head:
        heads = t.unflatten(0, (-1, 3, _head_dim(module)))
        return tuple(part.flatten(0, 1) for part in heads.unbind(1))
    names = ("num_key_value_heads", "kv_heads")
    shared = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    keys = len(t) // 3 if shared is None else int(shared) * _head_dim(module)
    return t.split([len(t) - 2 * keys, keys, keys])


def _scaled(part: Projection, factor: float) -> Projection:
    if abs(factor - 1.0) < 1e-12:
        return part
    return Projection(part.weight * factor, None if part.bias is None else part.bias * factor)


def _repeated(part: Projection, width: int, heads: int) -> Projection:
    """Repeat each head of `width` rows until there are `heads` heads."""
    groups = heads * width // len(part.weight)

    def repeat(t: Tensor) -> Tensor:
        by_head: Tensor = t.unflatten(0, (-1, width))
        return by_head.repeat_interleave(groups, 0).flatten(0, 1)

    if groups == 1:
        return part
    return Projection(repeat(part.weight), None if part.bias is None else repeat(part.bias))
