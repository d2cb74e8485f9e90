"""Generation in transformers: a layer of the host's cache that holds the state of a stream.

Imported when a swapped layer is given a cache, so that transformers is there already.
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
    """The state of one mixer's stream, which one layer has instead of keys and values.

    Attributes:
        state: of the mixer after the tokens so far; None before the first, and for a mixer that
            does not stream.
        seen: tokens so far, padding counted.
        padding: (B, P) bool of the first prompt, True = padding; None without any.
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
        self.keys = self.values = torch.empty(0)  # some hosts ask how many there are

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the first prompt makes the state."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: the replaced attention alone would call it."""
        raise InputError(
            "past_key_values: expected keys and values of the attention, got the state of a token "
            "mixer; start from a new cache after restore_attention"
        )

    def get_seq_length(self) -> int:
        """Tokens so far."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a mask for so many new tokens has, and where they start."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """Return -1, no maximum: the mixer itself refuses tokens past its `max_length`."""
        return -1

    get_max_cache_shape = get_max_length
    """Name of `get_max_length` in earlier versions of transformers."""

    def reset(self) -> None:
        """Forget all tokens."""
        self.state, self.seen, self.padding = None, 0, None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Of each sequence, go on from the one that a beam chose."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sequences, in this order."""
        self._change_rows(lambda part: part.index_select(0, indices.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence so often."""
        self._change_rows(lambda part: part.repeat_interleave(repeats, 0))

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = {name: change(part) for name, part in self.state.items()}
        if self.padding is not None:
            self.padding = change(self.padding)

    def crop(self, tokens_to_remove: int) -> None:
        """Raise unless nothing is removed: a state cannot go back."""
        if tokens_to_remove:
            raise InputError(
                "the state of a token mixer cannot go back to an earlier token: assisted decoding "
                "and prompt lookup need the host's attention"
            )

    def offload(self) -> None:
        """Nothing: a state stays where the mixer is."""

    def prefetch(self) -> None:
        """Nothing, as `offload`."""


def continue_stream(
    mixer: TokenMixer,
    x: Tensor,
    mask: Any,
    past: Any,
    layer_index: int | None,
    hidden_anyway: bool = False,
) -> Tensor:
    """Outputs (B, N, C) of the tokens x after those in the cache `past`, which takes them up.

    Args:
        mixer: causal; one that does not stream takes a whole prompt only.
        x: (B, N, C) new tokens.
        mask: of the host, for the tokens so far and these; earlier ones must be as they were.
        past: a cache of transformers.
        layer_index: index of the layer in the model, and so in the cache.
        hidden_anyway: see `padding_of`.

    Raises:
        InputError: a cache of fixed size, one that attention has filled, or one whose layer is
            another module's too (FalconH1); more tokens for a mixer that does not stream; padding
            among tokens after the prompt, or other padding than earlier calls had.
    """
    if not mixer.causal:
        mixed: Tensor = mixer(x, key_padding_mask=padding_of(mask, x, causal=False))
        return mixed
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
    """Raise unless `padding` (B, K) is that of the first prompt, and none after it."""
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
    """The layer of a cache that is this mixer's, put there at its first use."""
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
            f"{type(layer).__name__}, which also holds the state of a module beside the attention",
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
