"""Key names of the released code of Dimension Mixer, for each type of layer."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.token_parallel import TokenParallel
from rifflemix.models.official import OfficialTensor
from rifflemix.models.vision.patch_only_block import PatchMix
from rifflemix.nn.butterfly import BlockLinear, ButterflyLinearMLP, ButterflyMLP
from rifflemix.nn.layers import FeedForward

Layout = dict[str, OfficialTensor]

_HIDDEN_MAPS = (("fc1", "mlp.0"), ("fc2", "mlp.2"))
_MONARCH_MAPS = (
    ("expand_blocks", "linear0_0"),
    ("expand_across", "linear0_1"),
    ("reduce_blocks", "linear1_0"),
    ("reduce_across", "linear1_1"),
)
_ATTENTION_MAPS = ("queries", "keys", "values")


def official_layer(layer: nn.Module, ours: str, theirs: str) -> Layout:
    """Map the released keys of one layer to our tensors.

    Args:
        layer: our layer.
        ours: name of the layer in our model.
        theirs: name of the layer in the released model.

    Returns:
        An entry for each saved tensor, under its key in the released code.

    Raises:
        InputError: the released code has no such layer.
    """
    match layer:
        case FeedForward():
            return _parts(layer, ours, theirs, _HIDDEN_MAPS)
        case ButterflyLinearMLP():
            return _parts(layer, ours, theirs, _MONARCH_MAPS)
        case PatchMix():
            names = (("norm", "ln0"), *((our, f"mlp_patch.{their}") for our, their in _HIDDEN_MAPS))
            return _parts(layer, ours, theirs, names)
        case ButterflyMLP():
            names = tuple(
                (f"layers.{i}.layers.{k}", f"facto_nets.{i}.mlp.{k}")
                for i in range(len(layer.strides))
                for k in (0, 2)
            )
            return _parts(layer, ours, theirs, names)
        case Butterfly():
            return official_layer(layer.attention, f"{ours}.attention", theirs)
        case SoftmaxAttention():
            return _dense_attention(layer, ours, theirs)
        case TokenParallel():
            return _token_parallel(layer, ours, theirs)
        case BlockLinear():
            return _block_linear(layer, ours, theirs)
        case nn.Linear() | nn.LayerNorm() | nn.Conv2d():
            own = [name for name, _ in layer.named_parameters()]
            return {f"{theirs}.{name}": OfficialTensor(f"{ours}.{name}") for name in own}
    raise bad_argument("model", "layers that its official code has", type(layer).__name__)


def _parts(layer: nn.Module, ours: str, theirs: str, names: tuple[tuple[str, str], ...]) -> Layout:
    layout: Layout = {}
    for our, their in names:
        layout |= official_layer(layer.get_submodule(our), f"{ours}.{our}", f"{theirs}.{their}")
    return layout


def _dense_attention(layer: SoftmaxAttention, ours: str, theirs: str) -> Layout:
    """Map three separate linear layers to our fused layer."""
    layout = official_layer(layer.proj, f"{ours}.proj", f"{theirs}.fc_out")
    for index, their in enumerate(_ATTENTION_MAPS):
        for name, _ in layer.qkv.named_parameters():
            layout[f"{theirs}.{their}.{name}"] = OfficialTensor(
                f"{ours}.qkv.{name}", part=partial(_third_of_rows, index=index)
            )
    return layout


def _block_linear(layer: BlockLinear, ours: str, theirs: str) -> Layout:
    """Map a grouped 1x1 convolution (blocks * out, in, 1, 1) to our layer."""
    blocks, width, out = layer.weight.shape
    layout = {
        f"{theirs}.conv.weight": OfficialTensor(
            f"{ours}.weight", (blocks * out, width, 1, 1), part=_out_first
        )
    }
    if layer.bias is not None:
        layout[f"{theirs}.conv.bias"] = OfficialTensor(f"{ours}.bias", (blocks * out,))
    return layout


def _token_parallel(layer: TokenParallel, ours: str, theirs: str) -> Layout:
    """Map three grouped convolutions to our block-diagonal layer."""
    layout: Layout = {}
    if layer.proj is not None:
        layout = _block_linear(layer.proj, f"{ours}.proj", f"{theirs}.fc_out")
    width = layer.dim // layer.num_groups
    for index, their in enumerate(_ATTENTION_MAPS):
        layout[f"{theirs}.{their}.conv.weight"] = OfficialTensor(
            f"{ours}.qkv.weight",
            (layer.dim, width, 1, 1),
            part=partial(_third_of_outputs, index=index),
        )
        if layer.qkv.bias is not None:
            layout[f"{theirs}.{their}.conv.bias"] = OfficialTensor(
                f"{ours}.qkv.bias", (layer.dim,), part=partial(_third_of_columns, index=index)
            )
    return layout


def _third_of_rows(tensor: Tensor, index: int) -> Tensor:
    return tensor.chunk(3, dim=0)[index]


def _third_of_columns(tensor: Tensor, index: int) -> Tensor:
    return tensor.chunk(3, dim=-1)[index]


def _third_of_outputs(weight: Tensor, index: int) -> Tensor:
    return _out_first(_third_of_columns(weight, index))


def _out_first(weight: Tensor) -> Tensor:
    """Transpose (blocks, in, out) -> (blocks, out, in)."""
    return weight.mT
