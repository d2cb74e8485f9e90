"""What attention computes that nobody wrote for this library: a copy is run on random tokens.

The copy has random weights of the size that tells scores apart, since a layer may be new (its
output map all zero, its scores all alike), or without memory.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.surgery.adapters import place_of
from rifflemix.surgery.triangles import triangles
from rifflemix.surgery.weights import HostWeights, Projection

_BATCH, _LENGTH = 2, 67  # unlike each other; a window of up to 64 tokens shows
_SEED = 20


class Trial(NamedTuple):
    """What came of running attention.

    Attributes:
        refusal: empty, or what it does that softmax attention of its maps does not.
        causal: True: it hides later tokens; None: the argument `is_causal` decides.
        understood: those of the arguments `attn_mask` and `is_causal` that mean to it what they
            mean to `scaled_dot_product_attention`, bool masks and floats that are added alike.
    """

    refusal: str
    causal: bool | None = False
    understood: frozenset[str] = frozenset()


class _Sample(NamedTuple):
    """A copy of attention, tokens for it, and what these are through its maps."""

    twin: Any
    x: Tensor
    heads: list[Tensor]
    output: Projection

    def gives(self, expected: Tensor, **arguments: Any) -> bool:
        """Whether the copy, called with `arguments`, returns what is expected."""
        try:
            found = self.twin.forward(self.x, **arguments)
        except Exception:  # whatever a mask makes of another's code
            return False
        return isinstance(found, Tensor) and _is_close(found, expected)

    def softmax(self, *, causal: bool = False, keep: Tensor | None = None) -> Tensor:
        """(B, N, C) outputs of softmax attention; `keep` (B, 1, 1, N), True = attend."""
        length = self.x.shape[1]
        attend = torch.ones(length, length, dtype=torch.bool, device=self.x.device)
        attend = (attend.tril() if causal else attend)[None, None]
        mask = attend if keep is None else attend & keep
        query, key, value = self.heads
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        inner = heads.transpose(1, 2).flatten(2)
        norm = getattr(self.twin, "norm", None)
        return functional.linear(inner if norm is None else norm(inner), *self.output)


def try_out(module: nn.Module, weights_of: Callable[[nn.Module], HostWeights]) -> Trial:
    """Run a copy of attention that takes tokens (B, N, C), and say what it computes.

    Nothing of the module changes: not its mode, gradients, hooks' counts or random numbers.

    Args:
        module: attention with `num_heads`, in floating point. Norms of queries and keys
            (`q_norm`, `k_norm`) are taken out of the copy; `norm` may stand before the output map.
        weights_of: reads its maps.
    """
    place = place_of(module)
    if place is None:
        raise ValueError("a trial needs weights in floating point")
    device = torch.device("cpu") if place[0].type == "meta" else place[0]
    with _aside(device), device:  # whatever the default device
        try:
            sample = _sample(module, weights_of, device, place[1])
            found = sample.twin.forward(sample.x)
        except Exception as error:  # another's code may raise anything
            first = (str(error).splitlines() or [""])[0]
            return Trial(f"run on random tokens, it raises {type(error).__name__}: {first}")
        return _judge(sample, found)


def _judge(sample: _Sample, found: object) -> Trial:
    if not isinstance(found, Tensor):
        return Trial(f"it returns a {type(found).__name__}, no tensor of tokens (B, N, C)")
    two_sided, causal = sample.softmax(), sample.softmax(causal=True)
    is_causal = _is_close(found, causal)
    if not is_causal and not _is_close(found, two_sided):
        return Trial(
            "on random tokens (B, N, C) it does not give what softmax attention through its qkv "
            "(all queries, then all keys, then all values) and its proj gives"
        )
    understood = set()
    if _reads_masks(sample, is_causal):
        understood.add("attn_mask")
    if sample.gives(causal, is_causal=True):
        understood.add("is_causal")
    decides = "is_causal" in understood and not is_causal
    return Trial("", None if decides else is_causal, frozenset(understood))


def _reads_masks(sample: _Sample, causal: bool) -> bool:
    """Whether True in `attn_mask` is to attend, and floats are added to scores."""
    if "attn_mask" not in arguments_of(sample.twin):
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
    # What an earlier call has left behind, attention weights for instance, cannot be copied.
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
        raise ValueError("a trial needs an output map")
    length = min([_LENGTH, *(t.shape[-1] for t in triangles(module).values())])
    shape = (_BATCH, length, weights.query.weight.shape[1])
    x = torch.randn(shape, generator=generator, device="cpu").to(device, dtype)
    heads = [
        functional.linear(x, *part).unflatten(-1, (twin.num_heads, -1)).transpose(1, 2)
        for part in weights[:3]
    ]
    return _Sample(twin, x, heads, weights.output)


def _is_close(found: Tensor, expected: Tensor) -> bool:
    """Within the noise of the dtype, of outputs near 1; TF32 counts as noise, and NaN as far."""
    if found.shape != expected.shape:
        return False
    noise = 0.1 if torch.finfo(expected.dtype).bits < 32 else 0.01
    size = expected.float().std()
    return bool((found.float() - expected.float()).abs().max() < noise * size)


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    """Without gradients, autocast, and effect on the random numbers of others."""
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


def arguments_of(module: nn.Module) -> dict[str, Any]:
    """Arguments of its forward by name, with their defaults; `inspect.Parameter.empty` for none."""
    parameters = inspect.signature(module.forward).parameters.values()
    return {
        p.name: p.default for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
