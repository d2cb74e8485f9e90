"""`rifflemix bench decode`: the cost of a decoding step for every streaming mixer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.lab.bench.gate import LAYER_TOLERANCE, Check, check
from rifflemix.lab.bench.layers import PROJECTIONS, SOFTMAX
from rifflemix.lab.bench.rows import LAYER, STEP, Row, Shape
from rifflemix.lab.bench.runner import Built, Candidate, Group, Hooks, Settings, run_benchmark
from rifflemix.mixers import TokenMixer, create_mixer, mixer_card, usable_mixers
from rifflemix.mixers.baselines.softmax import SoftmaxAttention

DEFAULT_CONTEXTS = (1024, 16_384, 262_144)
IN_PLACE = "softmax, cache in place"
_GATE_TOKENS = 256
_PROMPT = 256  # prompt length that shows which axes of a state grow

State = dict[str, Tensor]


def run(
    contexts: Sequence[int] = DEFAULT_CONTEXTS,
    *,
    batch: int = 1,
    dim: int = 512,
    heads: int = 8,
    mixers: Sequence[str] | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure a decoding step after contexts of several lengths.

    Softmax is measured twice. The mixer `softmax` never changes a state, so each step copies the
    cache. "softmax, cache in place" writes into a preallocated cache and is as fast as torch's
    attention allows. Ratios use the cache in place.

    Args:
        contexts: numbers of tokens before the step, each once.
        batch: batch size.
        dim: channels C.
        heads: number of heads, for layers with heads.
        mixers: registry names, by default all streaming mixers; softmax is always included.
        settings: data type, device, number of timings and limits.
        hooks: callbacks for progress, stopping and saving.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "layer" and the pass
        "step". Ratios are to "two linear maps" of one token and to softmax with its cache in
        place. "extra" contains state_bytes and tokens_per_second. `shape.tokens` is the length of
        the context.

    Raises:
        InputError: an unknown mixer, a mixer without streaming, or a setting out of range.
    """
    settings = settings or Settings()
    if not contexts or len(set(contexts)) != len(contexts):
        raise bad_argument("contexts", "at least one number, each only once", list(contexts))
    names = _streaming(mixers)
    candidates = [
        Candidate(LAYER, PROJECTIONS, None, partial(_build_maps, settings)),
        Candidate(
            LAYER,
            IN_PLACE,
            None,
            partial(_build_in_place, settings),
            partial(_gate_in_place, settings),
        ),
    ]
    for name in (SOFTMAX, *(name for name in names if name != SOFTMAX)):
        build, gate = partial(_build, name, settings), partial(_gate, name, settings)
        candidates.append(Candidate(LAYER, name, None, build, gate))
    groups = [
        Group(Shape(batch, n, dim, heads), candidates, ((LAYER, PROJECTIONS), (LAYER, IN_PLACE)))
        for n in sorted(contexts)
    ]
    details = {
        "contexts": sorted(contexts), "batch": batch, "dim": dim, "heads": heads, "mixers": names
    }  # fmt: skip
    return run_benchmark("decode", groups, settings, details, hooks=hooks)


def _streaming(names: Sequence[str] | None) -> list[str]:
    """Return the requested mixers, or all streaming mixers."""
    if names is None:
        return [name for name in usable_mixers() if mixer_card(name).streaming]
    cards = [mixer_card(name) for name in names]
    for card in cards:
        if not card.streaming:
            raise bad_argument("mixers", "mixers that stream", card.name)
    return [card.name for card in cards]


def state_after(mixer: TokenMixer, context: int, prompt: Tensor) -> State:
    """Build a state with the size for `context` tokens.

    The tokens are not read. Axes that grow with the prompt are filled by repetition, because the
    time of a step depends only on sizes.

    Args:
        mixer: mixer built with `causal=True` and a `max_length` above the context.
        context: number of tokens N.
        prompt: tokens (B, P, C), P > 1.
    """
    if context <= prompt.shape[1]:
        return mixer.prefill(prompt[:, :context])[1]
    shorter = mixer.prefill(prompt[:, 1:])[1]
    state = mixer.prefill(prompt)[1]
    for name, part in state.items():
        for axis, (long, short) in enumerate(zip(part.shape, shorter[name].shape, strict=True)):
            if long != short:
                times = [1] * part.ndim
                times[axis] = -(-context // long)
                state[name] = part.repeat(times).narrow(axis, 0, context).contiguous()
    return {**state, "position": torch.full_like(state["position"], context)}


class InPlaceAttention(nn.Module):
    """Softmax attention step that writes into a preallocated cache without a copy.

    Args:
        mixer: mixer that provides the projections.
        state: streaming state after the context.
    """

    def __init__(self, mixer: SoftmaxAttention, state: State) -> None:
        super().__init__()
        self.mixer = mixer
        self.keys, self.values = (F.pad(state[name], (0, 0, 0, 1)) for name in ("keys", "values"))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (B, C) for the next token x (B, C)."""
        q, k, v = self.mixer.split(self.mixer.qkv(x.unsqueeze(1)))
        self.keys[:, :, -1:], self.values[:, :, -1:] = k, v
        y = F.scaled_dot_product_attention(q, self.keys, self.values)
        return self.mixer.proj(y.flatten(1))


def _mixer(name: str, settings: Settings, shape: Shape) -> TokenMixer:
    mixer = create_mixer(
        name, shape.channels, num_heads=shape.heads, max_length=shape.tokens + 1, causal=True
    )
    return mixer.to(settings.torch_device, settings.torch_dtype).eval()


def _attention(settings: Settings, shape: Shape) -> SoftmaxAttention:
    attention = SoftmaxAttention(shape.channels, num_heads=shape.heads, causal=True)
    return attention.to(settings.torch_device, settings.torch_dtype).eval()


def _tokens(settings: Settings, shape: Shape, count: int) -> Tensor:
    x = torch.randn(shape.batch, count, shape.channels, device=settings.torch_device)
    return x.to(settings.torch_dtype)


def _built(step: Callable[[Tensor], Any], state: State, settings: Settings, shape: Shape) -> Built:
    x = _tokens(settings, shape, 1)[:, 0]

    def run_step() -> Any:
        with torch.no_grad():
            return step(x)

    def describe(row: Row) -> dict[str, float]:
        size = sum(part.numel() * part.element_size() for part in state.values())
        return {"state_bytes": size, "tokens_per_second": shape.batch / row.passes[STEP].p50}

    return Built({STEP: run_step}, describe)


@torch.no_grad()
def _build(name: str, settings: Settings, shape: Shape) -> Built:
    mixer = _mixer(name, settings, shape)
    state = state_after(mixer, shape.tokens, _tokens(settings, shape, _PROMPT))
    return _built(lambda x: mixer.step(x, state)[0], state, settings, shape)


@torch.no_grad()
def _build_in_place(settings: Settings, shape: Shape) -> Built:
    mixer = _attention(settings, shape)
    state = state_after(mixer, shape.tokens, _tokens(settings, shape, _PROMPT))
    return _built(InPlaceAttention(mixer, state), state, settings, shape)


def _build_maps(settings: Settings, shape: Shape) -> Built:
    maps = nn.Sequential(*(nn.Linear(shape.channels, shape.channels) for _ in range(2)))
    return _built(maps.to(settings.torch_device, settings.torch_dtype), {}, settings, shape)


@torch.no_grad()
def _gate(name: str, settings: Settings, shape: Shape) -> list[Check]:
    """Compare a decoding step with the last output of the parallel form."""
    small = replace(shape, batch=1, tokens=min(shape.tokens, _GATE_TOKENS))
    mixer = _mixer(name, settings, small)
    x = _tokens(settings, small, small.tokens + 1)
    y = mixer.step(x[:, -1], mixer.prefill(x[:, :-1])[1])[0]
    return [_check("the parallel form", small, settings, y, mixer(x)[:, -1])]


@torch.no_grad()
def _gate_in_place(settings: Settings, shape: Shape) -> list[Check]:
    """Compare the cache in place with the mixer's own step."""
    small = replace(shape, batch=1, tokens=min(shape.tokens, _GATE_TOKENS))
    mixer = _attention(settings, small)
    x = _tokens(settings, small, small.tokens + 1)
    state = mixer.prefill(x[:, :-1])[1]
    y = InPlaceAttention(mixer, state)(x[:, -1])
    return [_check("softmax", small, settings, y, mixer.step(x[:, -1], state)[0])]


def _check(against: str, at: Shape, settings: Settings, y: Tensor, expected: Tensor) -> Check:
    return check(against, at, [y], [expected], LAYER_TOLERANCE[settings.torch_dtype])
