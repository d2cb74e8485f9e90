"""Sample from causal language models."""

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
    """The interface that `generate` requires of a model, such as `rifflemix.models.GPT`."""

    training: bool
    max_length: int
    embed: nn.Embedding

    @property
    def streams(self) -> bool:
        """True if the model supports `prefill` and `step`."""
        ...

    def __call__(self, tokens: Tensor, /) -> Tensor:
        """Compute logits after each token: (B, N) ids -> (B, N, V)."""
        ...

    def prefill(self, tokens: Tensor, /) -> tuple[Tensor, Any]:
        """Process prompts: (B, N) ids -> (B, V) logits, state."""
        ...

    def step(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """Process one token: (B,) ids -> (B, V) logits, next state."""
        ...

    def eval(self) -> Any:
        """Switch to evaluation mode."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """Iterate over all modules; `generate` restores their modes."""
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
    """Continue prompts by sampling one token at a time, in evaluation mode.

    A model that supports streaming processes the prompt at once, and then each new token once.
    Token statistics need constant memory. Softmax attention needs a growing cache of keys and
    values. With any other mixer, every new token recomputes the whole sequence. Equal seeds give
    equal tokens.

    Args:
        model: a model with the interface of `CausalModel`.
        tokens: (B, N) int64 prompts of one length, N at least 1.
        max_new_tokens: number of tokens to add. Prompt and new tokens must not exceed
            `model.max_length`.
        temperature: divisor of the logits; 0 always chooses the most likely token.
        top_k: sample from the k most likely tokens only.
        top_p: sample from the smallest set of most likely tokens with total probability of at
            least p; applied after `top_k`.
        generator: random number generator on the device of the tokens; None uses torch's
            default generator.

    Returns:
        (B, N + max_new_tokens) int64, including the prompts.

    Raises:
        InputError: an argument is out of range, an id has no embedding, or there are more tokens
            than the model supports.
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
    """Build a function from logits (B, V) to ids (B,)."""
    if not is_number(temperature) or not 0 <= temperature < float("inf"):
        raise bad_argument("temperature", "a finite number of at least 0", shown(temperature))
    if top_k is not None:
        check_integer("top_k", top_k, 1)
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise bad_argument("top_p", "a probability in (0, 1]", shown(top_p))
    if generator is not None and generator.device.type != device.type:
        raise bad_argument("generator", f"one on the tokens' device {device}", generator.device)

    def choose(logits: Tensor) -> Tensor:
        if temperature < torch.finfo(torch.float32).tiny:  # would underflow to 0 in float32
            return logits.argmax(dim=1)
        logits = logits.float() - logits.float().amax(dim=1, keepdim=True)
        kept = _keep_likeliest(logits / temperature, top_k, top_p)
        return torch.multinomial(kept.softmax(dim=1), 1, generator=generator).squeeze(1)

    return choose


def _keep_likeliest(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set the logits of excluded tokens to minus infinity."""
    if top_k is not None and top_k < logits.shape[1]:
        # Select by rank: ties keep the lower ids, so that at most k tokens remain.
        order = logits.argsort(dim=1, descending=True, stable=True)
        logits = logits.scatter(1, order[:, top_k:], -torch.inf)
    if top_p is not None and top_p < 1:
        order = logits.argsort(dim=1, descending=True, stable=True)
        mass = logits.gather(1, order).softmax(dim=1)
        # Keep a token while the more likely tokens sum to less than p. The first always stays.
        done = mass.cumsum(1) - mass >= top_p
        logits = logits.masked_fill(done.gather(1, order.argsort(1)), -torch.inf)
    return logits
