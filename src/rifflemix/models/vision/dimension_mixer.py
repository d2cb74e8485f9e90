"""Vision transformer of Dimension Mixer: butterfly, dense or token-parallel attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive, check_probability
from rifflemix.errors import bad_argument
from rifflemix.mixers import Stack
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.token_parallel import TokenParallel
from rifflemix.models.official import OfficialTensor
from rifflemix.models.parts import block_mixer
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.vision.dimension_mixer_layers import official_layer
from rifflemix.models.vision.images import PatchModel, Size
from rifflemix.nn.embeddings import PatchEmbedding
from rifflemix.nn.layers import Dropout, FeedForward


class PostNormBlock(nn.Module):
    """Post-norm block: x = drop(LN(mixer(x) + x)); x = drop(LN(mlp(x) + x)).

    Args:
        mixer: a module (B, N, C) -> (B, N, C).
        dim: channels C.
        hidden_dim: hidden channels of the feed-forward branch.
        dropout: dropout probability in [0, 1) after both norms.

    Source: Dimension Mixer, section 3.1; dropout as in the released code.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("butterfly", 32, num_heads=4, block_size=8)
        >>> block = rm.models.PostNormBlock(mixer, dim=32, hidden_dim=64, dropout=0.0)
        >>> block(torch.randn(2, 64, 32)).shape
        torch.Size([2, 64, 32])
    """

    def __init__(self, mixer: nn.Module, dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = FeedForward(dim, hidden_dim)
        self.norm2 = nn.LayerNorm(dim)
        self.drop = Dropout(check_probability("dropout", dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Apply mixer and feed-forward branch.

        Args:
            x: (B, N, C) tokens.

        Returns:
            (B, N, C).
        """
        x = self.drop(self.norm1(self.mixer(x) + x))
        return self.drop(self.norm2(self.mlp(x) + x))


class DimensionMixerViT(PatchModel):
    """Vision transformer: patches, post-norm blocks, one linear layer over all tokens.

    The model has no positions and no pooling. With `mixer="butterfly"` a layer attends within the
    groups of one stride. Successive layers cycle through the strides. Two layers form a complete
    butterfly if the block size is the square root of the number of patches. The rest of a block
    works on each token separately, so only the attention forms groups.

    Args:
        mixer: registry name of the token mixer, or a stack.
        mixer_options: options of the mixer.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: heads H, for mixers that have heads.
        mlp_ratio: hidden channels of the feed-forward branch divided by C, rounded down.
        num_classes: number of outputs.
        image_size: height and width, or one number for square images.
        patch_size: height and width of a patch, or one number; must divide the image.
        in_channels: channels of the image.
        bias: add a bias to the linear layers of the mixer if it has this option.
        dropout: dropout probability after the norms.

    Raises:
        InputError: a size is out of range, or the patch size does not divide the image.

    Source: Dimension Mixer, sections 3.1 and 4 (Butterfly Attention), appendix D.1.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.DimensionMixerViT(mixer="butterfly", dim=32, num_layers=2)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        mixer: Stack = "butterfly",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 128,
        num_layers: int = 8,
        num_heads: int = 8,
        mlp_ratio: float = 2.0,
        num_classes: int = 10,
        image_size: Size = 32,
        patch_size: Size = 4,
        in_channels: int = 3,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__("dimmixer_vit", image_size, patch_size, in_channels)
        dim, num_layers = check_integer("dim", dim, 1), check_integer("num_layers", num_layers, 1)
        hidden_dim = int(dim * check_positive("mlp_ratio", mlp_ratio))
        self.patch_embed = PatchEmbedding(self.in_channels, dim, self.patch_size, order="chw")
        self.blocks = nn.ModuleList(
            PostNormBlock(
                block_mixer(
                    mixer,
                    mixer_options,
                    dim,
                    of_host={"bias": bias},
                    num_heads=num_heads,
                    max_length=self.num_patches,
                    layer_index=index,
                    num_layers=num_layers,
                ),
                dim,
                hidden_dim,
                dropout,
            )
            for index in range(num_layers)
        )
        num_classes = check_integer("num_classes", num_classes, 1)
        self.head = nn.Linear(self.num_patches * dim, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        return self.patch_embed(images)

    def official_tensors(self) -> dict[str, OfficialTensor]:
        """Map the keys of the released code to our tensors.

        The released code nests the blocks in encoders. One encoder is one complete butterfly.

        Returns:
            Official key -> `OfficialTensor`.

        Raises:
            InputError: the released code does not support the mixer, or does not save its random
                token order.
        """
        layout = official_layer(self.patch_embed.proj, "patch_embed.proj", "channel_change")
        per_encoder = self._blocks_per_encoder()
        for index, block in enumerate(self.blocks):
            encoder, position = divmod(index, per_encoder)
            theirs = f"transformer_blocks.{encoder}.sparse_transformers.{position}"
            for our, their in _OFFICIAL_PARTS:
                part = block.get_submodule(our)
                layout |= official_layer(part, f"blocks.{index}.{our}", f"{theirs}.{their}")
        return layout | official_layer(self.head, "head", "linear")

    def _blocks_per_encoder(self) -> int:
        mixer = self.blocks[0].mixer
        if isinstance(mixer, Butterfly):
            if mixer.token_rank is not None:
                raise bad_argument(
                    "model", "the natural order of tokens in official weights", "a random one"
                )
            return len(mixer.strides(self.num_patches))
        if isinstance(mixer, TokenParallel):
            return _layers_to_cover(mixer.dim, mixer.dim // mixer.num_groups)
        return 1


_OFFICIAL_PARTS = (
    ("mixer", "attention"),
    ("norm1", "norm1"),
    ("mlp", "feed_forward"),
    ("norm2", "norm2"),
)


def _layers_to_cover(length: int, block: int) -> int:
    """Return the smallest k with block^k >= length."""
    layers, covered = 1, block
    while covered < length and block > 1:
        layers, covered = layers + 1, covered * block
    return layers


_PAPER = "Sapkota and Bhattarai 2025, Dimension Mixer"
_CLASSES = {"cifar10": 10, "cifar100": 100}
_DIMS = {4: 128, 2: 64, 1: 64}
_PRINTED = {
    ("cifar10", 4, 8): "1.148 M",
    ("cifar10", 4, 4): "0.618 M",
    ("cifar10", 2, 4): "0.299 M",
    ("cifar10", 1, 4): "0.79 M",
    ("cifar100", 4, 4): "1.355 M",
    ("cifar100", 2, 4): "1.773 M",
}
_AS_RUN = (
    "as in the code of the paper: with an output projection for one head per group, without it for "
    "two, the reverse of the text, and weights sum to one over the queries"
)
# Table 9: title, options of the token-parallel mixer, note, and the reported counts by size.
_VARIANTS: dict[str, tuple[str, dict[str, Any], str, dict[tuple[int, int], str]]] = {
    "no_wout": (
        "dense attention without an output projection",
        {"num_groups": 1, "use_wout": False},
        "",
        {(4, 8): "1.06 M", (4, 4): "0.552 M", (2, 4): "0.282 M"},
    ),
    "tp2": (
        "token-parallel attention, 2 heads in each of 4 groups",
        {"num_groups": 4, "use_wout": False, "softmax_over": "queries"},
        _AS_RUN,
        {(4, 8): "0.721 M", (4, 4): "0.405 M", (2, 4): "0.245 M"},
    ),
    "tp1": (
        "token-parallel attention, 1 head in each of 8 groups",
        {"num_groups": 8, "use_wout": True, "softmax_over": "queries"},
        _AS_RUN,
        {(4, 8): "0.689 M", (4, 4): "0.389 M", (2, 4): "0.241 M"},
    ),
}
_MISPRINT = (
    "8 output projections of 16,512 parameters less than the baseline's 1,148,042 are 1,015,946; "
    "the paper prints 1.06 M"
)


def _preset(data: str, patch: int, layers: int) -> Preset:
    printed = _PRINTED.get((data, patch, layers), "")
    return Preset(
        ModelCard(
            name=f"dimmixer_vit_{data}_p{patch}_l{layers}",
            title=f"Vision transformer with butterfly attention, {layers} layers, patch {patch}",
            paper=_PAPER,
            inputs="images",
            printed=printed,
            printed_in="Table 4" if printed else "",
            note="dense and butterfly attention have the same parameters",
        ),
        DimensionMixerViT,
        _settings(data, patch, layers),
    )


def _settings(data: str, patch: int, layers: int) -> dict[str, Any]:
    return {
        "num_classes": _CLASSES[data],
        "patch_size": patch,
        "dim": _DIMS[patch],
        "num_layers": layers,
    }


def _variants(name: str) -> list[Preset]:
    title, options, note, printed = _VARIANTS[name]
    return [
        Preset(
            ModelCard(
                name=f"dimmixer_vit_cifar10_p{patch}_l{layers}_{name}",
                title=f"Vision transformer with {title}, {layers} layers, patch {patch}",
                paper=_PAPER,
                inputs="images",
                printed=count,
                printed_in="Table 9",
                note=_MISPRINT if count == "1.06 M" else note,
            ),
            DimensionMixerViT,
            _settings("cifar10", patch, layers)
            | {"mixer": "token_parallel", "mixer_options": options},
        )
        for (patch, layers), count in printed.items()
    ]


PRESETS = (
    *(_preset(d, p, n) for d in _CLASSES for p in _DIMS for n in (8, 4)),
    *(preset for name in _VARIANTS for preset in _variants(name)),
)
