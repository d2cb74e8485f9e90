"""Attention classes of any library that are derived or copied from timm's `Attention`.

The probe uses a copy with random weights of a suitable scale. The weights of a new layer may be
unsuitable (zero output projection, equal scores) or have no memory.

The names of the parts do not prove what a class computes. rifflemix therefore runs a copy before
the replacement.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import (
    HostAttention,
    arguments_of,
    has_class_token,
    looks_like_attention,
)
from rifflemix.surgery.hosts.timm import (
    RELATIVE,
    RELATIVE_BIAS,
    ROTARY,
    SwappedTimmAttention,
    TimmAttention,
    has_maps,
    is_set,
    misshapen,
    notes_of,
    probability,
)
from rifflemix.surgery.masks import causal_buffers
from rifflemix.surgery.swapped import SwappedAttention, place_of
from rifflemix.surgery.weights import HostWeights, Projection

_BATCH, _LENGTH = 2, 67  # different numbers; long enough to detect windows of up to 64 tokens
_SEED = 20


class AttentionProbe(NamedTuple):
    """Result of a probe.

    Attributes:
        refusal: difference from softmax attention with the same projections, or an empty string.
        causal: True if the module hides later tokens, False if not. None if the argument
            `is_causal` decides.
        understood: arguments with the same meaning as in `scaled_dot_product_attention`. Possible
            values are `attn_mask` (both bool masks and additive floats) and `is_causal`.
    """

    refusal: str
    causal: bool | None = False
    understood: frozenset[str] = frozenset()


class _Sample(NamedTuple):
    """Copy of an attention module, with input tokens and their Q/K/V heads."""

    twin: Any
    x: Tensor
    heads: list[Tensor]
    output: Projection

    def gives(self, expected: Tensor, **arguments: Any) -> bool:
        """Return whether the copy returns `expected` for `arguments`."""
        try:
            found = self.twin.forward(self.x, **arguments)
        except Exception:  # third-party code may raise anything for a mask
            return False
        return isinstance(found, Tensor) and _is_close(found, expected)

    def softmax(self, *, causal: bool = False, keep: Tensor | None = None) -> Tensor:
        """Compute softmax attention (B, N, C) as a reference.

        Args:
            causal: whether to hide later tokens.
            keep: (B, 1, 1, N) bool, True = attend, or None.
        """
        length = self.x.shape[1]
        attend = torch.ones(length, length, dtype=torch.bool, device=self.x.device)
        attend = (attend.tril() if causal else attend)[None, None]
        mask = attend if keep is None else attend & keep
        query, key, value = self.heads
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        inner = heads.transpose(1, 2).flatten(2)
        norm = getattr(self.twin, "norm", None)
        return functional.linear(inner if norm is None else norm(inner), *self.output)


def probe_attention(
    module: nn.Module, weights_of: Callable[[nn.Module], HostWeights]
) -> AttentionProbe:
    """Run a copy of an attention module and determine what it computes.

    The module keeps its mode, gradients and hook counters, and the random state does not change.

    Args:
        module: attention with `num_heads` and floating-point weights, for tokens (B, N, C). The
            copy has no query and key norms (`q_norm`, `k_norm`). A module `norm` may precede the
            output projection.
        weights_of: function that reads the projections.
    """
    place = place_of(module)
    if place is None:
        raise ValueError("a probe needs weights in floating point")
    device = torch.device("cpu") if place[0].type == "meta" else place[0]
    with _aside(device), device:  # ignore the default device
        try:
            sample = _sample(module, weights_of, device, place[1])
            found = sample.twin.forward(sample.x)
        except Exception as error:  # third-party code may raise anything
            first = (str(error).splitlines() or [""])[0]
            return AttentionProbe(
                f"run on random tokens, it raises {type(error).__name__}: {first}"
            )
        return _judge(sample, found)


def _judge(sample: _Sample, found: object) -> AttentionProbe:
    if not isinstance(found, Tensor):
        return AttentionProbe(f"it returns a {type(found).__name__}, no tensor of tokens (B, N, C)")
    two_sided, causal = sample.softmax(), sample.softmax(causal=True)
    is_causal = _is_close(found, causal)
    if not is_causal and not _is_close(found, two_sided):
        return AttentionProbe(
            "on random tokens (B, N, C) it does not give what softmax attention through its qkv "
            "(all queries, then all keys, then all values) and its proj gives"
        )
    understood = set()
    if _reads_masks(sample, is_causal):
        understood.add("attn_mask")
    if sample.gives(causal, is_causal=True):
        understood.add("is_causal")
    decides = "is_causal" in understood and not is_causal
    return AttentionProbe("", None if decides else is_causal, frozenset(understood))


def _reads_masks(sample: _Sample, causal: bool) -> bool:
    """Return whether `attn_mask` has the usual meaning.

    True must mean attend, and floats must be added to the scores.
    """
    if "attn_mask" not in arguments_of(type(sample.twin)):
        return False
    length = sample.x.shape[1]
    lengths = torch.tensor([[length - length // 2], [1]])
    keep = (torch.arange(length) < lengths)[:, None, None].to(sample.x.device)
    expected = sample.softmax(causal=causal, keep=keep)
    added = torch.zeros_like(keep, dtype=sample.x.dtype).masked_fill(~keep, float("-inf"))
    return sample.gives(expected, attn_mask=keep) and sample.gives(expected, attn_mask=added)


def _sample(
    module: nn.Module,
    weights_of: Callable[[nn.Module], HostWeights],
    device: torch.device,
    dtype: torch.dtype,
) -> _Sample:
    generator = torch.Generator("cpu").manual_seed(_SEED)
    # Non-leaf tensors of an earlier call, such as attention weights, cannot be copied.
    left = (value for part in module.modules() for value in vars(part).values())
    memo: dict[int, Any] = {
        id(t): t.detach() for t in left if isinstance(t, Tensor) and not t.is_leaf
    }
    for parameter in module.parameters():
        if parameter.is_floating_point():
            size = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5
            values = size * torch.randn(parameter.shape, generator=generator, device="cpu")
            memo[id(parameter)] = nn.Parameter(values.to(device, parameter.dtype), False)
    twin: Any = copy.deepcopy(module, memo).eval()
    for part in twin.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    for name in ("q_norm", "k_norm"):
        if isinstance(getattr(twin, name, None), nn.Module):
            setattr(twin, name, nn.Identity())
    weights = weights_of(twin)
    if weights.output is None:
        raise ValueError("a probe needs an output map")
    length = min([_LENGTH, *(t.shape[-1] for t in causal_buffers(module).values())])
    shape = (_BATCH, length, weights.query.weight.shape[1])
    x = torch.randn(shape, generator=generator, device="cpu").to(device, dtype)
    heads = [
        functional.linear(x, *part).unflatten(-1, (twin.num_heads, -1)).transpose(1, 2)
        for part in weights[:3]
    ]
    return _Sample(twin, x, heads, weights.output)


def _is_close(found: Tensor, expected: Tensor) -> bool:
    """Return whether outputs are equal up to the noise of the dtype.

    The outputs must have values near 1. TF32 differences count as noise. NaN is never close.
    """
    if found.shape != expected.shape:
        return False
    noise = 0.1 if torch.finfo(expected.dtype).bits < 32 else 0.01
    size = expected.float().std()
    return bool((found.float() - expected.float()).abs().max() < noise * size)


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    """Disable gradients and autocast, and keep the global random state."""
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


_PARTS = {
    *("qkv", "q_proj", "k_proj", "v_proj", "q_bias", "k_bias", "v_bias", "proj"),
    *("q_norm", "k_norm", "norm"),
}
_ADAPTER = "; write an adapter that describes it (register_adapter)"


class CopiedTimmAttention(TimmAttention):
    """Adapter for attention with `qkv` and `proj` that passes a probe."""

    name = "copy of timm"

    def matches(self, module: nn.Module) -> bool:
        """Return whether a module looks like attention and has timm's projections."""
        is_mixer = isinstance(module, TokenMixer)  # `RifflemixAttention` has matched softmax
        return looks_like_attention(module) and has_maps(module) and not is_mixer

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        """Describe softmax attention, causal or not, or why it differs."""
        host: Any = module
        probe = _probe(module)
        if probe.refusal:
            return HostAttention(dim=1, num_heads=1, refusal=probe.refusal)
        sizes = (buffer.shape[-1] for buffer in causal_buffers(module).values())
        return HostAttention(
            dim=host.proj.out_features,
            num_heads=host.num_heads,
            causal=probe.causal,
            dropout=probability(module, "attn_drop"),
            inner_dim=host.proj.in_features,
            max_length=min(sizes, default=None),
            class_token=has_class_token(parents),
            notes=(*notes_of(module), *_lost_dropouts(module)),
            warnings=(ROTARY,) if "rope" in arguments_of(type(module)) else (),
        )

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        """Return a wrapper that passes on the arguments which the probe understood."""
        return SwappedTimmAttention(mixer, module, _probe(module).understood)


def _probe(module: nn.Module) -> AttentionProbe:
    """Run a probe unless the structure already rules out a replacement."""
    reason = _refusal(module)
    if reason or place_of(module) is None:  # quantized modules are rejected elsewhere
        return AttentionProbe(reason)
    adapter = CopiedTimmAttention()
    probe = probe_attention(module, adapter.weights)
    return probe._replace(refusal=probe.refusal + _ADAPTER) if probe.refusal else probe


def _refusal(module: nn.Module) -> str:
    if any(is_set(module, name) for name in RELATIVE):
        return RELATIVE_BIAS
    weights = [*module.named_parameters(), *module.named_buffers()]
    parts = {name.partition(".")[0] for name, _ in weights} - _PARTS - causal_buffers(module).keys()
    if parts:
        return f"a token mixer has no place for its {', '.join(sorted(parts))}{_ADAPTER}"
    if any(buffer.is_meta for buffer in module.buffers()):
        return "its buffers are on the meta device; replace it when they have memory"
    others = list(arguments_of(type(module)).items())[1:]
    needed = [name for name, default in others if default is inspect.Parameter.empty]
    if needed:
        return (
            f"its forward needs {', '.join(needed)} besides the tokens, but token mixers "
            f"cannot use these arguments{_ADAPTER}"
        )
    return misshapen(module)


def _lost_dropouts(module: nn.Module) -> list[str]:
    return [
        f"the host's dropout {name} is lost: the mixer knows attn_drop and proj_drop"
        for name, part in module.named_children()
        if isinstance(part, nn.Dropout) and part.p and name not in ("attn_drop", "proj_drop")
    ]
