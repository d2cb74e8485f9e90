"""Q/K/V/O projections of transformers attention: names, fused layouts and scale."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from rifflemix.surgery.adapters import class_names, is_linear, not_plain
from rifflemix.surgery.hosts.transformers_properties import has_gate
from rifflemix.surgery.weights import HostWeights, Projection


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
    parts: tuple[Tensor, ...] = t.split([len(t) - 2 * keys, keys, keys])
    return parts


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
