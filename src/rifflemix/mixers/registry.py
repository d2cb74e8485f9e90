"""The one list of mixers. A new mixer is one file and one line here."""

from __future__ import annotations

import inspect
from typing import Any

from rifflemix.checks import check_bool
from rifflemix.errors import bad_argument, unknown_name
from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.mixers.baselines.average import AveragePooling
from rifflemix.mixers.baselines.bigbird import BigBird
from rifflemix.mixers.baselines.cosformer import CosFormer
from rifflemix.mixers.baselines.crate import Crate
from rifflemix.mixers.baselines.exp_smoothing import ExpSmoothing
from rifflemix.mixers.baselines.fnet import FNet
from rifflemix.mixers.baselines.identity import Identity
from rifflemix.mixers.baselines.linear import LinearAttention
from rifflemix.mixers.baselines.linformer import Linformer
from rifflemix.mixers.baselines.local import LocalAttention
from rifflemix.mixers.baselines.long_conv import LongConv
from rifflemix.mixers.baselines.longformer import Longformer
from rifflemix.mixers.baselines.mega import Mega
from rifflemix.mixers.baselines.mega_chunk import MegaChunk
from rifflemix.mixers.baselines.mlp_mixer import TokenMLP
from rifflemix.mixers.baselines.nystromformer import Nystromformer
from rifflemix.mixers.baselines.performer import Performer
from rifflemix.mixers.baselines.reformer import Reformer
from rifflemix.mixers.baselines.s4 import S4
from rifflemix.mixers.baselines.s5 import S5
from rifflemix.mixers.baselines.sinkformer import Sinkformer
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.baselines.spade import Spade
from rifflemix.mixers.baselines.sparse_transformer import SparseTransformer
from rifflemix.mixers.baselines.synthesizer import Synthesizer
from rifflemix.mixers.baselines.xca import XCA
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.mixers.sliceformer import Sliceformer
from rifflemix.mixers.token_parallel import TokenParallel
from rifflemix.mixers.tssa import TSSA

_MIXERS: dict[str, type[TokenMixer]] = {
    mixer.card.name: mixer
    for mixer in (
        SoftmaxAttention,
        CSP,
        Sliceformer,
        TSSA,
        Butterfly,
        TokenParallel,
        Sinkhorn,
        LocalAttention,
        LinearAttention,
        Sinkformer,
        Linformer,
        Performer,
        Synthesizer,
        CosFormer,
        Nystromformer,
        XCA,
        Crate,
        SparseTransformer,
        Longformer,
        Reformer,
        BigBird,
        FNet,
        TokenMLP,
        AveragePooling,
        Identity,
        Mega,
        MegaChunk,
        S4,
        S5,
        ExpSmoothing,
        LongConv,
        Spade,
    )
}


def list_mixers() -> list[str]:
    """Names of all registered mixers, in the order of the tables."""
    return list(_MIXERS)


def mixer_class(name: str) -> type[TokenMixer]:
    """The class behind a registry name; an unknown name suggests the nearest."""
    if not isinstance(name, str) or name not in _MIXERS:
        raise unknown_name("mixer", name, _MIXERS)
    return _MIXERS[name]


def mixer_card(name: str) -> MixerCard:
    """The card of a registered mixer."""
    return mixer_class(name).card


def create_mixer(
    name: str,
    dim: int,
    *,
    num_heads: int = 1,
    max_length: int | None = None,
    layer_index: int = 0,
    num_layers: int = 1,
    causal: bool = False,
    dropout: float = 0.0,
    **options: Any,
) -> TokenMixer:
    """Build a mixer by name.

    Args:
        name: one of `list_mixers()`.
        dim: channels C.
        num_heads: heads H, a divisor of `dim`.
        max_length: most tokens the layer will see.
        layer_index: 0-based position of the layer in its stack.
        num_layers: layers in the stack.
        causal: output n depends on tokens 0..n only.
        dropout: probability in [0, 1).
        options: the mixer's own options (see its class).

    Raises:
        InputError: unknown name or option, or a value out of range.
    """
    cls = mixer_class(name)
    _check_options(cls, options)
    return cls(
        dim,
        num_heads=num_heads,
        max_length=max_length,
        layer_index=layer_index,
        num_layers=num_layers,
        causal=causal,
        dropout=dropout,
        **options,
    )


def mixer_options(name: str) -> dict[str, Any]:
    """Names and defaults of a mixer's own options."""
    return _own_options(mixer_class(name))


def _own_options(cls: type[TokenMixer]) -> dict[str, Any]:
    """Of the class and of those between it and `TokenMixer`, whose options it passes on."""
    shared = inspect.signature(TokenMixer.__init__).parameters
    options: dict[str, Any] = {}
    for base in cls.__mro__[: cls.__mro__.index(TokenMixer)]:
        if "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if name not in shared and parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    options.setdefault(name, parameter.default)
    return {name: value for name, value in options.items() if name not in cls.fixed_options}


def _check_options(cls: type[TokenMixer], options: dict[str, Any]) -> None:
    known = _own_options(cls)
    for name, value in options.items():
        if name not in known:
            expected = ", ".join(known) if known else "no options"
            raise bad_argument(f"options of {cls.card.name}", expected, repr(name))
        if isinstance(known[name], bool):
            check_bool(name, value)
