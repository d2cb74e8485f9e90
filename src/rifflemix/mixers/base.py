"""Base class of token mixers, modules that map (B, N, C) to (B, N, C)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    FLOATS,
    check_bool,
    check_divides,
    check_integer,
    check_layer,
    check_like_parameters,
    check_padding_mask,
    check_probability,
    check_room,
    check_tokens,
    shown,
)
from rifflemix.compat import outside_graphs, statically_known_true
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.packed import Segments, check_packed, packing_refused, segments_of
from rifflemix.mixers.stream_state import (
    Layout,
    fill_by_steps,
    foreign_state,
    layout_of,
    misfit,
    numbers_in,
)


class TokenMixer(nn.Module):
    """Base class of all mixers.

    `forward` checks the arguments, calls `mix` and sets padded outputs to zero. A subclass sets
    `card`, calls `super().__init__` and implements `mix(x, key_padding_mask)`.

    Args:
        dim: channels C.
        num_heads: heads H; must divide `dim`.
        max_length: maximum number of tokens; None if the mixer does not need a maximum.
        layer_index: 0-based position of this layer in the stack (schedules over depth use it).
        num_layers: layers in the stack.
        causal: output n may depend on tokens 0..n only.
        dropout: probability in [0, 1) of dropping a mixing weight, in mixers that have such
            weights. The block around the mixer applies dropout to the output.

    Raises:
        InputError: an argument is out of range, or the mixer does not support `causal=True`.

    Example:
        >>> import torch, rifflemix as rm
        >>> class Reverse(rm.TokenMixer):
        ...     '''Reverse the order of the tokens.'''
        ...     card = rm.MixerCard(
        ...         name="reverse", title="Reverse", paper="folklore", equations="y_n = x_(N-n+1)",
        ...         complexity="O(N C)", cost_exponent=1.0, padding=False,
        ...     )
        ...     def mix(self, x, key_padding_mask):
        ...         return x.flip(1)
        >>> Reverse(1)(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist()
        [3.0, 2.0, 1.0]
    """

    card: ClassVar[MixerCard]
    fixed_options: ClassVar[frozenset[str]] = frozenset()
    """Options of a base class that this class sets itself."""
    causal_class: ClassVar[type[TokenMixer] | None] = None
    """Class of the causal variant, if it is not this class."""
    _state_layout: tuple[torch.dtype, Layout] | None = None  # for the last streamed dtype

    def __new__(cls, *args: Any, causal: bool = False, **options: Any) -> Any:
        """Build `causal_class` if `causal` is True, else this class."""
        variant = vars(cls).get("causal_class")
        if causal is True and variant is not None:
            return variant(*args, causal=True, **options)
        return super().__new__(cls)

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 1,
        max_length: int | None = None,
        layer_index: int = 0,
        num_layers: int = 1,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.num_heads = check_divides("num_heads", num_heads, self.dim, "dim")
        self.max_length = None if max_length is None else check_integer("max_length", max_length, 1)
        self.layer_index, self.num_layers = check_layer(layer_index, num_layers)
        self.causal = check_bool("causal", causal)
        self.dropout = check_probability("dropout", dropout)
        if causal and (self.causal_class is not None or not self.card.causal):
            raise bad_argument("causal", f"False, since {self.card.title} is bidirectional", True)
        if max_length is None and self.card.needs_max_length:
            expected = f"a maximum number of tokens for {self.card.title}"
            raise bad_argument("max_length", expected, None)

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens.

        Args:
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding, as in torch.nn.MultiheadAttention.
            cu_seqlens: (S + 1,) int32 or int64, boundaries of S sequences in a packed batch
                (1, N, C) without padding: 0, then the end of each sequence; the last end is N.
                Sequences may be empty. The tensor is on the CPU or on the device of `x`. Reading
                it from a GPU synchronizes with the GPU.

        Returns:
            (B, N, C), zero at padded positions. With `cu_seqlens`, every sequence gets the
            outputs of a separate call for this sequence.

        Raises:
            InputError: a shape, dtype or device is wrong, or a sequence is longer than
                `max_length`. Also if both a mask and `cu_seqlens` are given, or if the mixer does
                not support the given argument.
        """
        if cu_seqlens is not None:
            return self._forward_packed(x, key_padding_mask, cu_seqlens)
        self._check_input(x, key_padding_mask)
        if statically_known_true(x.shape[0] == 0):
            # Some reshapes and transforms fail on an empty batch: mix one sample, then drop it.
            return self.mix(F.pad(x, (0, 0, 0, 0, 0, 1)), None)[:0]
        if key_padding_mask is None:
            return self.mix(x, None)
        # Zero the input too: NaN at a padded position must not reach other tokens.
        padded = key_padding_mask.unsqueeze(-1)
        y = self.mix(torch.where(padded, 0.0, x), key_padding_mask)
        return torch.where(padded, 0.0, y)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Mix tokens. The arguments are already checked.

        Args:
            x: (B, N, C) tokens, zero at padded positions.
            key_padding_mask: (B, N) bools, True = padding, or None.

        Returns:
            (B, N, C) mixed tokens, with any finite values at padded positions.
        """
        raise NotImplementedError

    @outside_graphs  # a graph would be valid for these lengths only
    def _forward_packed(
        self, x: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor
    ) -> Tensor:
        if not self.card.packed:
            raise packing_refused(self.card.title, cu_seqlens)
        check_packed(x, key_padding_mask)
        self._check_input(x, None, packed=True)
        segments = segments_of(cu_seqlens, x, self.max_length)
        return self.mix_packed(x, segments)

    @property
    def dropout_now(self) -> float:
        """Probability of dropping a mixing weight; 0 in evaluation mode."""
        return self.dropout if self.training else 0.0

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        """Run `mix` on each sequence of a packed batch (1, N, C).

        `forward` calls this method if the card sets `packed`. Override it if a part of the mixer,
        such as a linear layer, is cheaper on the whole batch.

        Args:
            x: (1, N, C) tokens of all sequences.
            segments: places of the sequences in the batch.

        Returns:
            (1, N, C) mixed tokens.
        """
        return segments.mix(self.mix, x)

    def init_state(
        self, batch_size: int, *, device: Any = None, dtype: Any = None
    ) -> dict[str, Tensor]:
        """Create the streaming state before the first token.

        Args:
            batch_size: number of sequences B to stream in parallel.
            device: device of the state. Default: the device of the parameters. `step` needs the
                state on this device.
            dtype: dtype of the tokens to stream. Default: the dtype of the parameters.

        Returns:
            Name -> tensor with the batch in its first dimension. Index all tensors with `t[rows]`
            to select, repeat or reorder sequences. `position`, (B,) int64, counts the tokens so
            far.

        Raises:
            InputError: the mixer does not stream or is not causal, or `dtype` is no float type.
        """
        self._check_streams()
        rows = check_integer("batch_size", batch_size, 1)
        like = next(self.parameters(), torch.empty(0))  # quantized layers may have no parameters
        device = like.device if device is None else torch.device(device)
        dtype = like.dtype if dtype is None else dtype
        if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
            raise bad_argument("dtype", "a floating-point dtype of torch", shown(dtype))
        position = torch.zeros(rows, device=device, dtype=torch.int64)
        return {**self.start_stream(rows, device, dtype), "position": position}

    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Mix the next token of each sequence.

        Args:
            x_t: (B, C) tokens at the next position.
            state: state from `init_state`, `prefill` or the last `step`. It is not modified.

        Returns:
            (B, C) outputs, equal to the outputs of `forward` at this position, and the next state.

        Raises:
            InputError: a shape or dtype is wrong, the state belongs to another mixer, the token
                exceeds `max_length`, or the mixer does not stream. Compiled graphs and vmap do
                not check `max_length`, since they cannot read the position.
        """
        self._check_streams()
        check_tokens("x_t", x_t, rank=2, layout="(B, C)")
        if x_t.shape[1] != self.dim:
            raise bad_argument("x_t", f"{self.dim} channels in shape (B, C)", tuple(x_t.shape))
        check_like_parameters("x_t", x_t, self)
        self._check_state(state, x_t)
        try:
            y, after = self.advance_stream(x_t, state)
        except KeyError as missing:
            raise foreign_state(self.card.name, f"one without {missing}") from missing
        return y, {**after, "position": state["position"] + 1}

    def prefill(
        self, x: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mix a whole prompt and return the state for the next `step`.

        Args:
            x: (B, N, C) first tokens of each sequence.
            key_padding_mask: (B, N) bool, True = padding, any pattern. Padding does not change the
                state, and positions count valid tokens only.

        Returns:
            (B, N, C) outputs of `forward`, zero at padded positions, and the state. The state is
            the same as after `init_state` and a `step` for every valid token.

        Raises:
            InputError: see `forward` and `init_state`.
        """
        self._check_streams()
        self._check_input(x, key_padding_mask)
        if x.shape[0] == 0:
            y, state = self.prefill(F.pad(x, (0, 0, 0, 0, 0, 1)))
            return y[:0], {name: part[:0] for name, part in state.items()}
        if key_padding_mask is None:
            y, state = self.fill_stream(x, None)
            position = torch.full((x.shape[0],), x.shape[1], device=x.device)
            return y, {**state, "position": position}
        padded = key_padding_mask.unsqueeze(-1)
        y, state = self.fill_stream(torch.where(padded, 0.0, x), key_padding_mask)
        return torch.where(padded, 0.0, y), {**state, "position": (~key_padding_mask).sum(1)}

    def state_size(self, length: int) -> int:
        """Count the numbers that a stream keeps per sequence after `length` tokens.

        The count includes all tensors of the streaming state except `position`. A mixer that does
        not stream needs all earlier tokens: `length` x C numbers. A bidirectional mixer needs all
        tokens too, C numbers per token in a forward pass.

        Args:
            length: number of tokens so far.

        Raises:
            InputError: `length` is below 0.

        Example:
            >>> from rifflemix import create_mixer
            >>> create_mixer("softmax", 8, causal=True).state_size(100)  # keys and values
            1600
        """
        length = check_integer("length", length, 0)
        if not (self.card.streaming and self.causal):
            return length * self.dim
        cached = length if self.most_cached is None else min(length, self.most_cached)
        return numbers_in(self.init_state(1), cached)

    @property
    def most_cached(self) -> int | None:
        """Maximum number of tokens in the growing part of a streaming state; None: no maximum."""
        return None

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create the state of `init_state` without `position`.

        Mixers that stream implement this method. `step` rejects states with other names, dtypes or
        sizes; only the batch size is free. A dimension of size 0 may grow with the tokens.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens.

        Returns:
            Name -> tensor with the batch in its first dimension.
        """
        raise NotImplementedError

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mix the next token of each sequence.

        Mixers that stream implement this method. `step` checks the arguments. It also updates
        `state["position"]` and ignores any value returned under this name.

        Args:
            x_t: (B, C) next tokens.
            state: state before these tokens.

        Returns:
            (B, C) mixed tokens, and the new state.
        """
        raise NotImplementedError

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mix a whole prompt.

        The default calls `step` for every token. Override this method if the mixer can process the
        prompt at once. The arguments are already checked.

        Args:
            x: (B, N, C) prompt, zero at padded positions.
            key_padding_mask: (B, N) bools, True = padding, or None.

        Returns:
            (B, N, C) mixed tokens, with any finite values at padded positions, and the state after
            the prompt. `position` is not needed.
        """
        state = self.init_state(len(x), device=x.device, dtype=x.dtype)
        return fill_by_steps(self.step, x, key_padding_mask, state, self.card.name)

    def _check_streams(self) -> None:
        if not self.card.streaming:
            raise InputError(f"mixer: expected a mixer that streams, got {self.card.name}")
        if not self.causal:
            raise bad_argument("causal", f"True to stream {self.card.name}", False)

    def _check_state(self, state: dict[str, Tensor], x_t: Tensor) -> None:
        """Raise unless the state fits the tokens and `max_length` allows another token."""
        if not isinstance(state, dict):
            raise foreign_state(self.card.name, type(state).__name__)
        if torch.compiler.is_compiling():  # a graph cannot read the position
            return
        if self._state_layout is None or self._state_layout[0] != x_t.dtype:
            with torch.no_grad():
                start = self.init_state(1, device=x_t.device, dtype=x_t.dtype)
            self._state_layout = x_t.dtype, layout_of(start)
        wrong = misfit(state, self._state_layout[1], x_t)
        if wrong is not None:
            raise foreign_state(self.card.name, wrong)
        check_room("x_t", state["position"], self.max_length, "mixer")

    def _check_input(
        self, x: Tensor, key_padding_mask: Tensor | None, *, packed: bool = False
    ) -> None:
        check_tokens("x", x)
        if x.shape[2] != self.dim:
            raise bad_argument("x", f"{self.dim} channels in shape (B, N, C)", tuple(x.shape))
        if x.shape[1] < 1:
            raise bad_argument("x", "at least one token in shape (B, N, C)", tuple(x.shape))
        if self.max_length is not None and x.shape[1] > self.max_length and not packed:
            expected = f"at most max_length = {self.max_length} tokens"
            advice = "build the mixer with a larger max_length"
            raise bad_argument("x", expected, x.shape[1], advice)
        check_like_parameters("x", x, self)
        if key_padding_mask is None:
            return
        check_padding_mask(key_padding_mask, x)
        if not self.card.padding:
            expected = f"None, since {self.card.title} does not support padding"
            raise bad_argument("key_padding_mask", expected, "a mask")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}, causal={self.causal}"
