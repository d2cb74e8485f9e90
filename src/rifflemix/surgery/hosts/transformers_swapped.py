"""Mixers with the interface of transformers attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.compat import values_can_be_read
from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.surgery.adapters import arguments_of
from rifflemix.surgery.hosts.transformers_masks import padding_of
from rifflemix.surgery.masks import causal_buffers, check_causality
from rifflemix.surgery.swapped import SwappedAttention

OF_ANOTHER_SEQUENCE = ("encoder_hidden_states", "key_value_states")
# Host models may pass the ends of packed sequences in these arguments instead of the mask.
_OF_PACKED_SEQUENCES = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
CACHES = ("past_key_values", "layer_past", "cache")
# A dropout after the output projection belongs to the host module, not to the mixer.
_DROPOUTS = (
    "resid_dropout",
    "residual_dropout",
    "out_drop",
    "output_dropout",
    "projection_dropout",
)


class SwappedTransformersAttention(SwappedAttention):
    """Mixer with the interface of transformers attention. It returns (outputs, None).

    During generation the cache of the host model contains the streaming state of the mixer instead
    of keys and values. See `rifflemix.surgery.hosts.transformers_cache`.

    Args:
        mixer: token mixer that computes the outputs.
        original: attention module to replace.
    """

    def __init__(self, mixer: TokenMixer, original: nn.Module) -> None:
        super().__init__(mixer, original)
        self.names = tuple(arguments_of(type(original)))[1:]
        self.layer_idx = getattr(original, "layer_idx", getattr(original, "layer_id", None))
        self.is_causal = mixer.causal
        self.hidden_anyway = bool(causal_buffers(original))
        found = (getattr(original, name, None) for name in _DROPOUTS)
        part = next((part for part in found if part is not None), None)
        if isinstance(part, int | float):
            part = nn.Dropout(part).train(original.training)
        self.output_dropout = part

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Mix the tokens (B, N, C); return None instead of attention weights.

        Raises:
            InputError: attention weights are requested, or another sequence is passed. The mask
                expresses more than padding and causality. The cache cannot store the state of the
                mixer.
        """
        arguments = {**dict(zip(self.names, args, strict=False)), **kwargs}
        self._check(arguments)
        mask = arguments.get("attention_mask")
        if mask is None and len(hidden_states) == 1 and reads_positions(self.original):
            check_one_sequence(arguments.get("position_ids"))
        caches = (arguments.get(name) for name in CACHES)
        past = next((cache for cache in caches if cache is not None), None)
        if past is None:
            padding = padding_of(
                mask, hidden_states, causal=self.mixer.causal, hidden_anyway=self.hidden_anyway
            )
            y = self.mixer(hidden_states, key_padding_mask=padding)
        else:
            from rifflemix.surgery.hosts.transformers_cache import continue_stream

            y = continue_stream(
                self.mixer, hidden_states, mask, past, self.layer_idx, self.hidden_anyway
            )
        return (y if self.output_dropout is None else self.output_dropout(y)), None

    def _check(self, arguments: dict[str, Any]) -> None:
        for name in OF_ANOTHER_SEQUENCE:
            if arguments.get(name) is not None:
                raise bad_argument(
                    name, "None: a token mixer reads one sequence", "another sequence"
                )
        check_not_packed(arguments)
        # CLIP's text encoder passes is_causal, and a mask only if there is padding.
        check_causality(arguments.get("is_causal"), self.mixer)
        if arguments.get("output_attentions") or weights_are_collected():
            raise bad_argument(
                "output_attentions",
                f"False: {self.mixer.card.title} has no attention weights",
                True,
            )


class SwappedNormedAttention(SwappedTransformersAttention):
    """Mixer with the residual connection and the LayerNorm of ALBERT's attention.

    The LayerNorm is the host's own module, under its own name.
    """

    def __init__(self, mixer: TokenMixer, original: nn.Module) -> None:
        super().__init__(mixer, original)
        self.LayerNorm = original.get_submodule("LayerNorm")

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Mix the tokens (B, N, C), add the input and normalize."""
        y, _ = super().forward(hidden_states, *args, **kwargs)
        normed: Tensor = self.LayerNorm(hidden_states + y)
        return normed, None


def check_not_packed(arguments: Mapping[str, Any]) -> None:
    """Raise if a host model passes the ends of packed sequences."""
    for name in _OF_PACKED_SEQUENCES:
        if arguments.get(name) is not None:
            raise bad_argument(
                name,
                "None, because packed sequences would mix",
                "the ends of packed sequences",
                "pad the sequences, or keep the host's attention",
            )


def reads_positions(module: Any) -> bool:
    """Return whether the host's flash attention detects packed sequences by positions."""
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return "flash" in str(implementation) and values_can_be_read()


def check_one_sequence(positions: Tensor | None) -> None:
    """Raise if positions (1, N) restart, since the sequence is then packed.

    Other attention implementations receive a mask in this case.
    """
    if positions is not None and positions.dim() == 2 and bool((positions.diff() != 1).any()):
        raise bad_argument(
            "position_ids",
            "the positions of one sequence, because packed sequences would mix",
            "positions that start again",
            "pad the sequences, or keep the host's attention",
        )


def weights_are_collected() -> bool:
    """Return whether a transformers model is collecting attention weights.

    Some host models collect weights by hooks and do not pass `output_attentions` to the attention.
    """
    if torch.compiler.is_compiling():
        return False
    from transformers.utils import output_capturing

    return "attentions" in (output_capturing._active_collector.get() or ())
