"""Generation in transformers: a cache layer with the streaming state of a mixer.

This module is imported when a swapped layer receives a cache. transformers is then available.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from rifflemix.compat import values_can_be_read
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.hosts.transformers_masks import padding_of

State = dict[str, Tensor]


class StreamLayer(CacheLayerMixin):
    """Cache layer with the streaming state of a mixer instead of keys and values.

    Attributes:
        state: state of the mixer after the earlier tokens. None before the first token and for
            mixers without streaming.
        seen: number of earlier tokens, including padding.
        padding: (B, P) bool of the first prompt, True = padding, or None.
    """

    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self.seen = 0
        self.padding: Tensor | None = None
        self.is_initialized = True
        self.keys = self.values = torch.empty(0)  # some host models read their length

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the first prompt creates the state."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Raise InputError: only the replaced attention calls this method."""
        raise InputError(
            "past_key_values: expected keys and values of the attention, got the state of a token "
            "mixer; start from a new cache after restore_attention"
        )

    def get_seq_length(self) -> int:
        """Return the number of earlier tokens."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys in a mask, and their offset.

        Args:
            query_length: number of new tokens.
        """
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the mixer itself rejects tokens after its `max_length`."""
        return -1

    get_max_cache_shape = get_max_length
    """Name of `get_max_length` in earlier versions of transformers."""

    def reset(self) -> None:
        """Remove all tokens."""
        self.state, self.seen, self.padding = None, 0, None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace each sequence by the sequence that its beam selected."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select sequences in the given order."""
        self._change_rows(lambda part: part.index_select(0, indices.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        self._change_rows(lambda part: part.repeat_interleave(repeats, 0))

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = {name: change(part) for name, part in self.state.items()}
        if self.padding is not None:
            self.padding = change(self.padding)

    def crop(self, tokens_to_remove: int) -> None:
        """Raise InputError if tokens are removed.

        A state cannot go back to an earlier token.
        """
        if tokens_to_remove:
            raise InputError(
                "the state of a token mixer cannot go back to an earlier token: assisted decoding "
                "and prompt lookup need the host's attention"
            )

    def offload(self) -> None:
        """Do nothing: the state stays on the device of the mixer."""

    def prefetch(self) -> None:
        """Do nothing, as in `offload`."""


def continue_stream(
    mixer: TokenMixer,
    x: Tensor,
    mask: Any,
    past: Any,
    layer_index: int | None,
    hidden_anyway: bool = False,
) -> Tensor:
    """Compute outputs of new tokens after those in the cache.

    The function updates the cache.

    Args:
        mixer: causal mixer. A mixer without streaming accepts a whole prompt only. A mixer that is
            not causal ignores the cache.
        x: (B, N, C) new tokens.
        mask: mask of the host model for earlier and new tokens. The part for earlier tokens must
            not change.
        past: cache of transformers.
        layer_index: index of the layer in the model and in the cache.
        hidden_anyway: see `padding_of`.

    Returns:
        (B, N, C) outputs of the new tokens.

    Raises:
        InputError: the cache has a fixed size, contains keys and values, or shares the layer with
            another module (FalconH1). More tokens follow a prompt of a mixer without streaming.
            Tokens after the prompt contain padding, or the padding of earlier tokens changed.
    """
    if not mixer.causal:
        return mixer(x, key_padding_mask=padding_of(mask, x, causal=False))
    layer = _stream_layer(past, layer_index)
    padding = padding_of(mask, x, causal=True, seen=layer.seen, hidden_anyway=hidden_anyway)
    if not layer.seen:
        y, layer.state = _prompt(mixer, x, padding)
        layer.padding = padding
    elif layer.state is None:
        raise InputError(
            f"past_key_values: expected none, since {mixer.card.title} cannot go on token by "
            "token; pass use_cache=False"
        )
    else:
        if values_can_be_read():
            _check_earlier(layer, padding)
        outputs = []
        for x_t in x.unbind(1):
            y_t, layer.state = mixer.step(x_t, layer.state)
            outputs.append(y_t)
        y = torch.stack(outputs, 1)
    layer.seen += x.shape[1]
    return y


def _check_earlier(layer: StreamLayer, padding: Tensor | None) -> None:
    """Raise unless `padding` (B, K) matches the first prompt's, without later padding."""
    if padding is layer.padding is None:
        return
    if padding is None:
        raise _other_padding()
    before = padding.new_zeros(1, 1) if layer.padding is None else layer.padding
    length = before.shape[1]
    if padding[:, layer.seen :].any():
        raise bad_argument(
            "attention mask", "padding in the first tokens only", "padding after them"
        )
    if (padding[:, :length] != before).any() or padding[:, length:].any():
        raise _other_padding()


def _other_padding() -> InputError:
    return bad_argument(
        "attention mask",
        "the padding that the tokens in the cache had when they were read",
        "one that hides or shows others of them",
        "a token mixer's state cannot change them; pass use_cache=False",
    )


def _prompt(mixer: TokenMixer, x: Tensor, padding: Tensor | None) -> tuple[Tensor, State | None]:
    if mixer.card.streaming:
        return mixer.prefill(x, key_padding_mask=padding)
    return mixer(x, key_padding_mask=padding), None


def _stream_layer(past: Any, layer_index: int | None) -> StreamLayer:
    """Return the cache layer of this mixer; create it at first use."""
    past = getattr(past, "self_attention_cache", past)
    if layer_index is None:
        raise bad_argument("past_key_values", "None: the attention has no layer_idx", "a cache")
    layers = past.layers
    while len(layers) <= layer_index and past.layer_class_to_replicate is not None:
        layers.append(past.layer_class_to_replicate())
    layer = layers[layer_index] if layer_index < len(layers) else None
    if isinstance(layer, StreamLayer):
        return layer
    if isinstance(layer, DynamicLayer) and hasattr(layer, "update_conv_state"):
        raise bad_argument(
            "past_key_values",
            "a layer of keys and values alone",
            f"{type(layer).__name__}, with the state of another module next to the attention",
            "pass use_cache=False",
        )
    if not isinstance(layer, DynamicLayer):
        raise bad_argument(
            "past_key_values",
            "a cache that grows (DynamicCache, the default of generate)",
            f"{type(past).__name__} of {type(layer).__name__}",
        )
    if layer.get_seq_length():
        raise bad_argument(
            "past_key_values",
            "a new cache, or one that this model has filled",
            "keys and values of attention",
        )
    stream = StreamLayer()
    layers[layer_index] = stream
    return stream
