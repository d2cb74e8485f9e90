"""Token mixers, modules that map (B, N, C) to (B, N, C), with their cards and registry.

To add a mixer, write a module and add its class here. Third-party mixers use `register_mixer` or
the entry points `rifflemix.mixers`.
"""

from rifflemix.mixers.base import TokenMixer
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
from rifflemix.mixers.baselines.mega import Mega, MegaChunk
from rifflemix.mixers.baselines.mlp_mixer import TokenMLP
from rifflemix.mixers.baselines.nystromformer import Nystromformer
from rifflemix.mixers.baselines.performer import Performer
from rifflemix.mixers.baselines.recurrent.based import Based
from rifflemix.mixers.baselines.recurrent.deltanet import DeltaNet
from rifflemix.mixers.baselines.recurrent.gated_deltanet import GatedDeltaNet
from rifflemix.mixers.baselines.recurrent.gla import GatedLinearAttention
from rifflemix.mixers.baselines.recurrent.hyena import Hyena
from rifflemix.mixers.baselines.recurrent.mamba2 import Mamba2
from rifflemix.mixers.baselines.recurrent.retention import Retention
from rifflemix.mixers.baselines.recurrent.rwkv7 import RWKV7
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
from rifflemix.mixers.cards import MixerCard, Stack, stack_name
from rifflemix.mixers.cross_attention import SinkhornCrossAttention, SoftmaxCrossAttention
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.grouped import Grouped
from rifflemix.mixers.registry import (
    add_mixers,
    create_mixer,
    list_mixers,
    mixer_card,
    mixer_class,
    mixer_classes,
    mixer_options,
    register_mixer,
    usable_mixers,
)
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.mixers.sliceformer import Sliceformer
from rifflemix.mixers.token_parallel import TokenParallel
from rifflemix.mixers.tssa import TSSA

_HEADLINE: tuple[type[TokenMixer], ...] = (
    SoftmaxAttention,
    CSP,
    Sliceformer,
    TSSA,
    Butterfly,
    TokenParallel,
    Sinkhorn,
)
HEADLINE = tuple(mixer.card.name for mixer in _HEADLINE)
"""Names of softmax attention and of the mixers of the five papers, the default comparison."""

_MIXERS: tuple[type[TokenMixer], ...] = (
    *_HEADLINE,
    Grouped,
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
    Hyena,
    Based,
    Retention,
    Mamba2,
    GatedLinearAttention,
    DeltaNet,
    GatedDeltaNet,
    RWKV7,
)

add_mixers(_MIXERS)

__all__ = [
    "HEADLINE",
    "MixerCard",
    "SinkhornCrossAttention",
    "SoftmaxCrossAttention",
    "Stack",
    "TokenMixer",
    "create_mixer",
    "list_mixers",
    "mixer_card",
    "mixer_class",
    "mixer_classes",
    "mixer_options",
    "register_mixer",
    "stack_name",
    "usable_mixers",
]
