"""Sampling from causal language models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, is_number, shown
from rifflemix.compat import evaluation_mode
from rifflemix.errors import bad_argument
from rifflemix.models.base import check_ids
from rifflemix.nn.embeddings import number_of_ids


class CausalModel(Protocol):
    """The interface that `generate` needs of a model; `rifflemix.models.GPT` is one."""

    training: bool
    max_length: int
    embed: nn.Embedding

    @property
    def streams(self) -> bool:
        """Whether there are `prefill` and `step`."""
        ...

    def __call__(self, tokens: Tensor, /) -> Tensor:
        """(B, N) ids -> (B, N, V) logits of the token after each."""
        ...

    def prefill(self, tokens: Tensor, /) -> tuple[Tensor, Any]:
        """(B, N) ids -> (B, V) logits of the next token, and the state after these."""
        ...

    def step(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """(B,) ids -> (B, V) logits of the next token, and the next state."""
        ...

    def eval(self) -> Any:
        """Into evaluation mode."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """The model and all parts of it, whose modes are put back behind."""
        ...


@torch.no_grad()
def generate(
    model: CausalModel,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue prompts by sampling token after token, in evaluation mode.

    A model that streams reads the prompt at once, and every token once: with token statistics in
    memory that does not grow, with softmax attention beside a growing cache of keys and values. Any
    other mixer computes the whole sequence anew for every token. Equal seeds give equal tokens.

    Args:
        model: see `CausalModel`.
        tokens: (B, N) int64 prompts of one length, N at least 1.
        max_new_tokens: tokens to add; together with the prompt at most `model.max_length`.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: sample from the k likeliest tokens only.
        top_p: sample from the fewest likeliest tokens whose probabilities reach p in sum; after
            `top_k`.
        generator: source of randomness, on the device of the tokens; torch's own where unset.

    Returns:
        (B, N + max_new_tokens) int64, the prompts in front.

    Raises:
        InputError: an argument out of range, an id that the model has no embedding for, or more
            tokens than it takes.
    """
    _check_prompt(model, tokens, check_integer("max_new_tokens", max_new_tokens, 0))
    choose = _chooser(temperature, top_k, top_p, generator, tokens.device)
    if not max_new_tokens:
        return tokens
    with evaluation_mode(model):
        extend = _stream if model.streams else _recompute
        return extend(model, tokens, max_new_tokens, choose)


Choose = Callable[[Tensor], Tensor]


def _stream(model: CausalModel, tokens: Tensor, count: int, choose: Choose) -> Tensor:
    logits, state = model.prefill(tokens)
    chosen = [choose(logits)]
    while len(chosen) < count:
        logits, state = model.step(chosen[-1], state)
        chosen.append(choose(logits))
    return torch.cat((tokens, torch.stack(chosen, dim=1)), dim=1)


def _recompute(model: CausalModel, tokens: Tensor, count: int, choose: Choose) -> Tensor:
    for _ in range(count):
        chosen = choose(model(tokens)[:, -1])
        tokens = torch.cat((tokens, chosen.unsqueeze(1)), dim=1)
    return tokens


def _check_prompt(model: CausalModel, tokens: Tensor, count: int) -> None:
    if not hasattr(model, "streams"):
        raise bad_argument("model", "a causal language model", type(model).__name__)
    if not isinstance(tokens, Tensor):
        raise bad_argument("tokens", "a tensor of shape (B, N)", type(tokens).__name__)
    if tokens.dim() != 2 or tokens.shape[1] < 1:
        raise bad_argument("tokens", "prompts of shape (B, N), N at least 1", tuple(tokens.shape))
    last = number_of_ids(model.embed) - 1
    check_ids("tokens", tokens, "(B, N)", below=last + 1)
    unknown = tokens[(tokens < 0) | (tokens > last)]
    if unknown.numel():
        raise bad_argument("tokens", f"ids from 0 to {last}", int(unknown[0]))
    total = tokens.shape[1] + count
    if total > model.max_length:
        raise bad_argument(
            "max_new_tokens",
            f"at most max_length = {model.max_length} tokens with the prompt",
            f"{tokens.shape[1]} + {count}",
            "build the model with a larger max_length",
        )


def _chooser(
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
    device: torch.device,
) -> Choose:
    """A function from logits (B, V) to ids (B,)."""
    if not is_number(temperature) or not 0 <= temperature < float("inf"):
        raise bad_argument("temperature", "a finite number of at least 0", shown(temperature))
    if top_k is not None:
        check_integer("top_k", top_k, 1)
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise bad_argument("top_p", "a probability in (0, 1]", shown(top_p))
    if generator is not None and generator.device.type != device.type:
        raise bad_argument("generator", f"one on the tokens' device {device}", generator.device)

    def choose(logits: Tensor) -> Tensor:
        if temperature < torch.finfo(torch.float32).tiny:  # as good as 0, and 0 in float32
            return logits.argmax(dim=1)
        logits = logits.float() - logits.float().amax(dim=1, keepdim=True)
        kept = _keep_likeliest(logits / temperature, top_k, top_p)
        return torch.multinomial(kept.softmax(dim=1), 1, generator=generator).squeeze(1)

    return choose


def _keep_likeliest(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """The logits, those that must not be chosen at minus infinity."""
    if top_k is not None and top_k < logits.shape[1]:
        # By rank, not by value: of equal logits the earlier ids stay, never more than k.
        order = logits.argsort(dim=1, descending=True, stable=True)
        logits = logits.scatter(1, order[:, top_k:], -torch.inf)
    if top_p is not None and top_p < 1:
        order = logits.argsort(dim=1, descending=True, stable=True)
        mass = logits.gather(1, order).softmax(dim=1)
        # A token stays while the likelier ones have not reached p without it; the first always.
        done = mass.cumsum(1) - mass >= top_p
        logits = logits.masked_fill(done.gather(1, order.argsort(1)), -torch.inf)
    return logits
