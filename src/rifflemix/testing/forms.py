"""Variants of a mixer class for the checks, built with seeded parameters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard

DIM = 32
HEADS = 4
MAX_LENGTH = 64


@dataclass(frozen=True)
class Form:
    """A variant of a mixer class: bidirectional or causal.

    Attributes:
        mixer: the mixer class.
        causal: value of its `causal` argument.

    Example:
        >>> import rifflemix as rm
        >>> form = rm.testing.Form(rm.mixers.mixer_class("linear"), causal=True)
        >>> type(form.build()).__name__, form.build().causal
        ('LinearAttention', True)
    """

    mixer: type[TokenMixer]
    causal: bool = False

    @property
    def card(self) -> MixerCard:
        """Card of the mixer class."""
        return self.mixer.card

    def __str__(self) -> str:
        return f"{self.card.name}-causal" if self.causal else self.card.name

    def masks(self, key_padding_mask: Tensor) -> tuple[Tensor | None, ...]:
        """List the masks to test.

        Args:
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            None and, if the mixer supports masks, `key_padding_mask`.
        """
        return (None, key_padding_mask) if self.card.padding else (None,)

    def new(self, dim: int = DIM, *, num_heads: int = HEADS, **settings: Any) -> TokenMixer:
        """Build the mixer with its own initialization, for up to `MAX_LENGTH` tokens.

        Args:
            dim: channels C.
            num_heads: heads H.
            settings: options of the mixer.

        Returns:
            The mixer in training mode.
        """
        return self.mixer(
            dim, num_heads=num_heads, max_length=MAX_LENGTH, causal=self.causal, **settings
        )

    def build(
        self, dim: int = DIM, *, num_heads: int = HEADS, dtype: torch.dtype = torch.float64
    ) -> TokenMixer:
        """Build the mixer for evaluation, with noise added to all parameters.

        With the noise, parameters initialized to 0 or 1 also affect the results.

        Args:
            dim: channels C.
            num_heads: heads H.
            dtype: dtype of the parameters.

        Returns:
            The mixer in evaluation mode. It is the same in every call.
        """
        torch.manual_seed(7)
        mixer = self.new(dim, num_heads=num_heads)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return mixer.to(dtype).eval()


def forms_of(mixer: type[TokenMixer]) -> list[Form]:
    """Return all variants that the card of a class supports.

    Args:
        mixer: class of a mixer.

    Returns:
        The variants: bidirectional, causal and others.

    Example:
        >>> import rifflemix as rm
        >>> [form.causal for form in rm.testing.forms_of(rm.mixers.mixer_class("linear"))]
        [False, True]
    """
    return [Form(mixer, causal) for causal in ((False, True) if mixer.card.causal else (False,))]


def tokens(batch: int, length: int, dim: int = DIM) -> Tensor:
    """Return random float64 tokens, (B, N, C)."""
    return torch.randn(batch, length, dim, dtype=torch.float64)


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with `message` unless the condition is true."""
    if not condition:
        raise AssertionError(message)


def require_close(actual: Any, expected: Any, what: str, *, atol: float, rtol: float) -> None:
    """Raise AssertionError unless two tensors, or tuples of them, are close."""
    torch.testing.assert_close(
        actual, expected, atol=atol, rtol=rtol, msg=lambda found: f"{what}: {found}"
    )


def require_refusal(run: Callable[[], Any], *words: str) -> None:
    """Raise AssertionError unless `run` raises a ValueError that contains all words."""
    try:
        run()
    except ValueError as error:
        missing = [word for word in words if word not in str(error)]
        require(not missing, f"the error does not mention {missing}: {error}")
    else:
        raise AssertionError(f"no ValueError that mentions {list(words)}")


@contextmanager
def seeded() -> Any:
    """Fix the random seed in a context, and restore the state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
