"""Layers of the Dimension Mixer models, and their names and layout in the released code."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

from torch import Tensor, nn

from rifflemix.checks import check_floating, check_integer, check_integers, check_positive
from rifflemix.errors import bad_argument
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.token_parallel import TokenParallel
from rifflemix.models.official import OfficialTensor
from rifflemix.nn.butterfly import BlockLinear, ButterflyLinearMLP, ButterflyMLP
from rifflemix.nn.layers import FeedForward


class PatchMix(nn.Module):
    """x + fold(MLP(LN(unfold(x)))): one MLP shared by all non-overlapping p x p patches.

    Args:
        channels: channels C.
        patch_size: patch size p; a patch has C p^2 features in the order (channel, row, column).
        expansion: ratio of hidden features to patch features; there are int(expansion * C p^2).
        activation: module class of the activation function of the MLP.

    Source: Dimension Mixer, section 3.2.
    """

    def __init__(
        self,
        channels: int,
        patch_size: int,
        *,
        expansion: float = 2,
        activation: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        channels = check_integer("channels", channels, 1)
        patch_size = check_integer("patch_size", patch_size, 1)
        features = channels * patch_size**2
        hidden = int(check_positive("expansion", expansion) * features)
        if hidden < 1:
            raise bad_argument("expansion", f"at least 1/{features}", expansion)
        self.channels = channels
        self.patch_size = patch_size
        self.norm = nn.LayerNorm(features)
        self.fc1 = nn.Linear(features, hidden)
        self.act = activation()
        self.fc2 = nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each patch of (B, C, H, W); p divides H and W."""
        check_floating("x", x, "(B, C, H, W)")
        p = self.patch_size
        if x.dim() != 4 or x.shape[1] != self.channels or x.shape[2] % p or x.shape[3] % p:
            expected = f"shape (B, {self.channels}, H, W) with H and W multiples of {p}"
            raise bad_argument("x", expected, tuple(x.shape))
        rows, columns = x.shape[2] // p, x.shape[3] // p
        patches = x.unflatten(3, (columns, p)).unflatten(2, (rows, p)).permute(0, 2, 4, 1, 3, 5)
        y = self.fc2(self.act(self.fc1(self.norm(patches.flatten(3)))))
        y = y.unflatten(3, (self.channels, p, p)).permute(0, 3, 1, 4, 2, 5)
        return x + y.flatten(4, 5).flatten(2, 3)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, patch_size={self.patch_size}"


class PatchOnlyBlock(nn.Sequential):
    """Patch mixing with each patch size in turn.

    Patches of coprime sizes cut the image at different positions. A stack of blocks therefore mixes
    the whole image. Pixels in different runs of lcm(patch_sizes) never mix. A warning reports sizes
    that separate parts of the image or share a factor.

    Args:
        channels: channels C.
        image_size: height and width P; each patch size divides it.
        patch_sizes: sizes p, preferably pairwise coprime with product P, such as (5, 7) for 35.
        expansion: hidden features per feature of a patch.
        activation: module class of the activation function of the MLPs.

    Raises:
        InputError: `patch_sizes` is empty, or a size does not divide `image_size`.

    Source: Dimension Mixer, section 3.2.
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        patch_sizes: Sequence[int],
        *,
        expansion: float = 2,
        activation: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        sizes = _check_patches(image_size, patch_sizes)
        super().__init__(
            *(
                PatchMix(channels, size, expansion=expansion, activation=activation)
                for size in sizes
            )
        )


def _check_patches(image_size: int, patch_sizes: Sequence[int]) -> tuple[int, ...]:
    image_size = check_integer("image_size", image_size, 1)
    sizes = check_integers("patch_sizes", patch_sizes, 1)
    if not sizes:
        raise bad_argument("patch_sizes", "at least one size", sizes)
    if any(image_size % size for size in sizes):
        raise bad_argument("patch_sizes", f"divisors of image_size = {image_size}", sizes)
    mixed = math.lcm(*sizes)
    shared = any(math.gcd(p, q) > 1 for p, q in combinations(sizes, 2))
    if shared or mixed < image_size:
        warnings.warn(
            f"patch_sizes {sizes} on a {image_size}-pixel image: pixels mix only "
            f"within runs of {mixed}, the least common multiple; choose pairwise coprime sizes "
            "whose product is image_size",
            stacklevel=3,
        )
    return sizes


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
