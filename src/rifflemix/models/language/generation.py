"""Sample from causal language models."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, is_number, shown
from rifflemix.compat import evaluation_mode
from rifflemix.errors import bad_argument
from rifflemix.models.base import check_ids
from rifflemix.nn.embeddings import number_of_ids
from rifflemix.nn.positions import last_valid

_MOST_PROMPTS = 64  # per batch


class CausalModel(Protocol):
    """The interface that `generate` requires of a model, such as `rifflemix.models.GPT`."""

    training: bool
    max_length: int
    embed: nn.Embedding

    @property
    def streams(self) -> bool:
        """True if the model supports `prefill` and `step`."""
        ...

    def __call__(self, tokens: Tensor, /, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Compute logits after each token: (B, N) ids -> (B, N, V)."""
        ...

    def prefill(
        self, tokens: Tensor, /, *, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, Any]:
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
    """Continue prompts of one length by sampling one token at a time, in evaluation mode.

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

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("gpt", mixer="tssa", vocab_size=10, max_length=16)
        >>> prompts = torch.tensor([[1, 2, 3], [4, 5, 6]])
        >>> rm.models.generate(model, prompts, max_new_tokens=5).shape
        torch.Size([2, 8])
    """
    count = check_integer("max_new_tokens", max_new_tokens, 0)
    if not isinstance(tokens, Tensor):
        raise bad_argument("tokens", "a tensor of shape (B, N)", type(tokens).__name__)
    if tokens.dim() != 2 or tokens.shape[1] < 1:
        raise bad_argument("tokens", "prompts of shape (B, N), N at least 1", tuple(tokens.shape))
    _check_prompt(model, tokens, count)
    if generator is not None and generator.device.type != tokens.device.type:
        expected = f"a generator on the tokens' device {tokens.device}"
        raise bad_argument("generator", expected, generator.device)
    probabilities = _probabilities(temperature, top_k, top_p)

    def choose(logits: Tensor) -> Tensor:
        if temperature < _TINY:
            return logits.argmax(dim=1)
        chosen = torch.multinomial(probabilities(logits), 1, generator=generator)
        return chosen.squeeze(1)

    with evaluation_mode(model):
        return torch.cat((tokens, _continue(model, tokens, None, count, choose)), dim=1)


@torch.no_grad()
def continue_prompts(
    model: CausalModel,
    prompts: Sequence[Tensor],
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    below: int | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Tensor]:
    """Continue prompts of different lengths, in evaluation mode.

    The noise of a prompt depends on the seed, on its tokens, and on the number of equal prompts
    before it. So a prompt has the same continuation alone and in a batch.

    Args:
        model: a model with the interface of `CausalModel`.
        prompts: (N,) int64 tokens of each prompt, N at least 1.
        max_new_tokens: number of tokens to add to each prompt. The model reads all tokens but the
            last one, at most `model.max_length`.
        temperature: divisor of the logits; 0 always chooses the most likely token.
        top_k: sample from the k most likely tokens only.
        top_p: see `generate`.
        seed: seed of the noise.
        below: add only ids below this number; None allows all ids.
        should_stop: called before each token; True ends all continuations.

    Returns:
        The prompts with their new tokens, in the order of the prompts.

    Raises:
        InputError: as `generate`.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("gpt", mixer="tssa", vocab_size=10, max_length=16)
        >>> prompts = [torch.tensor([1, 2, 3]), torch.tensor([4])]
        >>> [len(tokens) for tokens in rm.models.continue_prompts(model, prompts, 5)]
        [8, 6]
    """
    count = check_integer("max_new_tokens", max_new_tokens, 0)
    seed = check_integer("seed", seed, 0)
    for number, prompt in enumerate(prompts):
        if not isinstance(prompt, Tensor) or prompt.dim() != 1 or not len(prompt):
            got = tuple(prompt.shape) if isinstance(prompt, Tensor) else type(prompt).__name__
            raise bad_argument(f"prompts[{number}]", "a tensor (N,), N at least 1", got)
        _check_prompt(model, prompt.unsqueeze(0), max(count - 1, 0))
    probabilities = _probabilities(temperature, top_k, top_p)
    noise = _noise(prompts, count, seed)
    continued: list[Tensor] = [torch.empty(0)] * len(prompts)
    with evaluation_mode(model):
        for rows in _batches(prompts, any_length=model.streams):
            draws = iter(noise[rows].T)

            def choose(logits: Tensor, draws: Iterator[Tensor] = draws) -> Tensor:
                uniform, logits = next(draws), logits[:, :below]
                if temperature < _TINY:
                    return logits.argmax(dim=1)
                return _inverse_cdf(probabilities(logits), uniform)

            tokens, mask = _stack([prompts[row] for row in rows])
            new = _continue(model, tokens, mask, count, choose, should_stop)
            for row, added in zip(rows, new, strict=True):
                continued[row] = torch.cat((prompts[row], added))
    return continued


Choose = Callable[[Tensor], Tensor]
_TINY = torch.finfo(torch.float32).tiny  # a smaller temperature would underflow to 0 in float32


def _continue(
    model: CausalModel,
    tokens: Tensor,
    mask: Tensor | None,
    count: int,
    choose: Choose,
    should_stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Return the new tokens (B, count), or fewer after a stop."""
    after = _streamed(model, tokens, mask) if model.streams else _recomputed(model, tokens, mask)
    chosen: list[Tensor] = []
    while len(chosen) < count and not (should_stop is not None and should_stop()):
        chosen.append(choose(after(chosen)))
    return torch.stack(chosen, dim=1) if chosen else tokens[:, :0]


def _streamed(
    model: CausalModel, tokens: Tensor, mask: Tensor | None
) -> Callable[[list[Tensor]], Tensor]:
    """Build a function from all new tokens to the next logits; each call adds one token."""
    state: Any = None

    def after(chosen: list[Tensor]) -> Tensor:
        nonlocal state
        if not chosen:
            options = {} if mask is None else {"key_padding_mask": mask}
            logits, state = model.prefill(tokens, **options)
        else:
            logits, state = model.step(chosen[-1], state)
        return logits

    return after


def _recomputed(
    model: CausalModel, tokens: Tensor, mask: Tensor | None
) -> Callable[[list[Tensor]], Tensor]:
    """As `_streamed`, for models that do not stream."""

    def after(chosen: list[Tensor]) -> Tensor:
        whole = torch.cat((tokens, *(new.unsqueeze(1) for new in chosen)), dim=1)
        if mask is None:
            return model(whole)[:, -1]
        padding = torch.cat((mask, mask.new_zeros(len(mask), len(chosen))), dim=1)
        rows = torch.arange(len(whole), device=whole.device)
        return model(whole, key_padding_mask=padding)[rows, last_valid(padding)]

    return after


def _batches(prompts: Sequence[Tensor], *, any_length: bool) -> Iterator[list[int]]:
    """Yield the positions of prompts that are continued together.

    Models that do not stream get prompts of equal length: the outputs of some mixers change with
    the amount of padding.
    """
    groups: dict[int, list[int]] = {}
    for position, prompt in enumerate(prompts):
        groups.setdefault(0 if any_length else len(prompt), []).append(position)
    for group in groups.values():
        for start in range(0, len(group), _MOST_PROMPTS):
            yield group[start : start + _MOST_PROMPTS]


def _stack(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Stack prompts with padding at the end; the mask is None if their lengths are equal."""
    tokens = nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=tokens.device)
    mask = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
    return tokens, mask if bool(mask.any()) else None


def _noise(prompts: Sequence[Tensor], count: int, seed: int) -> Tensor:
    """Draw uniform numbers (prompts, count) in float64 on the CPU."""
    seen: Counter[bytes] = Counter()
    rows = []
    for prompt in prompts:
        content = prompt.cpu().numpy().tobytes()
        digest = hashlib.blake2b(content, key=f"{seed} {seen[content]}".encode(), digest_size=8)
        seen[content] += 1
        generator = torch.Generator().manual_seed(int.from_bytes(digest.digest(), "big") >> 1)
        rows.append(torch.rand(count, dtype=torch.float64, generator=generator))
    return torch.stack(rows) if rows else torch.empty(0, count)


def _inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Choose the id (B,) at which the cumulative probability exceeds a uniform number (B,)."""
    total = probabilities.double().cumsum(1)
    wanted = uniform.to(total.device).unsqueeze(1) * total[:, -1:]
    found = torch.searchsorted(total, wanted, right=True).squeeze(1)
    last = probabilities.shape[1] - 1 - (probabilities.flip(1) > 0).int().argmax(1)
    return torch.minimum(found, last)  # rounding may reach the end


def _check_prompt(model: CausalModel, tokens: Tensor, count: int) -> None:
    if not hasattr(model, "streams"):
        raise bad_argument("model", "a causal language model", type(model).__name__)
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


def _probabilities(
    temperature: float, top_k: int | None, top_p: float | None
) -> Callable[[Tensor], Tensor]:
    """Build a function from logits (B, V) to the probabilities of the next token (B, V)."""
    if not is_number(temperature) or not 0 <= temperature < float("inf"):
        raise bad_argument("temperature", "a finite number of at least 0", shown(temperature))
    if top_k is not None:
        check_integer("top_k", top_k, 1)
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise bad_argument("top_p", "a probability in (0, 1]", shown(top_p))

    def probabilities(logits: Tensor) -> Tensor:
        logits = logits.float() - logits.float().amax(dim=1, keepdim=True)
        return _keep_likeliest(logits / temperature, top_k, top_p).softmax(dim=1)

    return probabilities


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
