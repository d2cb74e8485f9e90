"""Vision transformer with any mixer, as in the CSP and Sliceformer papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive, check_probability
from rifflemix.errors import check_choice
from rifflemix.mixers import Stack, list_mixers, mixer_card, stack_name
from rifflemix.models.parts import block_mixer
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.vision.images import PatchModel, Size
from rifflemix.nn.block import Block
from rifflemix.nn.embeddings import PatchEmbedding
from rifflemix.nn.layers import ClassToken, Dropout, FeedForward
from rifflemix.nn.positions import PositionEmbedding

POOLS = ("cls", "mean")


class ViT(PatchModel):
    """Vision transformer: patches, learned positions, pre-norm blocks, pooling, linear head.

    Positions and class token are initialized from N(0, 1), all other parameters as in PyTorch.

    Args:
        mixer: registry name of the token mixer, or a stack.
        mixer_options: options of the mixer.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: heads H, for mixers that have heads.
        head_dim: channels of a head; None uses C / H. Mixers with the option `inner_dim` then
            work on H * head_dim channels, all others on C.
        mlp_ratio: hidden channels of the feed-forward branch divided by C.
        num_classes: number of outputs.
        image_size: height and width, or one number for square images.
        patch_size: height and width of a patch, or one number; must divide the image.
        in_channels: channels of the image.
        pool: "cls" adds a class token before the patches and pools it. "mean" averages the
            patches, without a class token. A mapping selects one of them for each mixer by name,
            and for all other mixers under "default".
        bias: add a bias to the input projections of the mixer if it has this option.
        dropout: dropout probability in the mixer and on both branches.
        embedding_dropout: dropout probability on the embedded patches.

    Raises:
        InputError: a size is out of range, or the patch size does not divide the image.

    Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words". The presets use the sizes and
    the pooling of the CSP and Sliceformer papers and their code.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.ViT(mixer="sliceformer", dim=32, num_layers=2, num_heads=4)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        mixer: Stack = "softmax",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 512,
        num_layers: int = 6,
        num_heads: int = 8,
        head_dim: int | None = None,
        mlp_ratio: float = 1.0,
        num_classes: int = 10,
        image_size: Size = 32,
        patch_size: Size = 4,
        in_channels: int = 3,
        pool: str | Mapping[str, str] = "cls",
        bias: bool = False,
        dropout: float = 0.1,
        embedding_dropout: float = 0.1,
    ) -> None:
        super().__init__("vit", image_size, patch_size, in_channels)
        dim, num_heads = check_integer("dim", dim, 1), check_integer("num_heads", num_heads, 1)
        num_layers = check_integer("num_layers", num_layers, 1)
        self.pool = _pool_kind(mixer, pool)
        self.patch_embed = PatchEmbedding(self.in_channels, dim, self.patch_size)
        self.cls_token = ClassToken(dim, std=1.0) if self.pool == "cls" else nn.Identity()
        num_tokens = self.num_patches + (self.pool == "cls")
        self.positions = PositionEmbedding(num_tokens, dim, std=1.0)
        self.drop = Dropout(check_probability("embedding_dropout", embedding_dropout))
        inner = dim if head_dim is None else num_heads * check_integer("head_dim", head_dim, 1)
        of_host = {
            "bias": bias,
            "out_bias": True,
            "inner_dim": inner,
        }
        hidden_dim = round(dim * check_positive("mlp_ratio", mlp_ratio))
        self.blocks = nn.ModuleList(
            Block(
                block_mixer(
                    mixer,
                    mixer_options,
                    dim,
                    of_host=of_host,
                    num_heads=num_heads,
                    max_length=num_tokens,
                    layer_index=index,
                    num_layers=num_layers,
                    dropout=dropout,
                ),
                FeedForward(dim, hidden_dim, dropout=dropout),
                dim,
                dropout=dropout,
            )
            for index in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, check_integer("num_classes", num_classes, 1))

    def embed(self, images: Tensor) -> Tensor:
        return self.drop(self.positions(self.cls_token(self.patch_embed(images))))

    def classify(self, x: Tensor) -> Tensor:
        return super().classify(self.norm(self.pooled(x)))

    def pooled(self, x: Tensor) -> Tensor:
        """Pool the tokens: the class token or the mean.

        Args:
            x: (B, N, C) output of the last block.

        Returns:
            (B, C).
        """
        return x[:, 0] if self.pool == "cls" else x.mean(dim=1)


def _pool_kind(mixer: Stack, pool: str | Mapping[str, str]) -> str:
    if isinstance(pool, Mapping):
        for name, kind in pool.items():
            check_choice("pool", name, (*list_mixers(), "default"))
            check_choice(f"pool of {name}", kind, POOLS)
        pool = pool.get(mixer_card(stack_name(mixer)).name, pool.get("default", "cls"))
    check_choice("pool", pool, POOLS)
    return pool


_PAPER = (
    "Yuan and Xu, Towards Better Multi-head Attention via Channel-wise Sample Permutation; "
    "Yuan and Xu, Sliceformer: Make Multi-head Attention as Simple as Sorting in Discriminative "
    "Tasks"
)
# A class token would be one token too many for the groups of CSP. Sliceformer pools through it.
_CSP_TABLE = {"default": "mean", "sliceformer": "cls"}
_SLICEFORMER_TABLE = {"default": "cls", "csp": "mean"}
_DEIT_SMALL = {
    "dim": 384,
    "num_layers": 12,
    "num_heads": 6,
    "mlp_ratio": 4.0,
    "num_classes": 1000,
    "image_size": 224,
    "patch_size": 16,
    "bias": True,
}


def _preset(
    name: str, data: str, printed: str, table: str, note: str, settings: dict[str, Any]
) -> Preset:
    card = ModelCard(
        name=name,
        title=f"Vision transformer for {data}, with any mixer",
        paper=_PAPER,
        inputs="images",
        printed=printed,
        printed_in=table,
        note=note,
    )
    return Preset(card, ViT, settings)


PRESETS = (
    _preset(
        "vit_mnist",
        "MNIST",
        "9.60 M",
        "Sliceformer, Table IV",
        "the paper reports 9.60 M, and 6.50 M for Sliceformer; images of 28 pixels in patches of "
        "2, as in its code, give 9.57 M and 6.42 M; no size gives both reported counts",
        {
            "image_size": 28,
            "patch_size": 2,
            "in_channels": 1,
            "num_classes": 10,
            "pool": _SLICEFORMER_TABLE,
        },
    ),
    _preset(
        "vit_cifar10",
        "CIFAR-10",
        "9.52 M",
        "CSP, Table 3",
        'mixer="csp" has 6.38 M as in Table 3 (Table 5 has 6.46 M); patch_size=2 gives the 9.60 M '
        "and 6.46 M of Sliceformer's Table IV",
        {"image_size": 32, "patch_size": 4, "num_classes": 10, "pool": _CSP_TABLE},
    ),
    _preset(
        "vit_cifar100",
        "CIFAR-100",
        "9.65 M",
        "CSP, Table 3; Sliceformer, Table IV",
        'mixer="csp" and mixer="sliceformer" have 6.50 M, as reported',
        {"image_size": 32, "patch_size": 2, "num_classes": 100, "pool": _CSP_TABLE},
    ),
    _preset(
        "vit_dogs_vs_cats",
        "Dogs-vs-Cats",
        "1.90 M",
        "Sliceformer, Table IV",
        'mixer="sliceformer" has 1.11 M, as reported; mixers have 512 inner channels',
        {
            "dim": 128,
            "head_dim": 64,
            "num_classes": 2,
            "image_size": 224,
            "patch_size": 16,
            "pool": _SLICEFORMER_TABLE,
            "dropout": 0.0,
            "embedding_dropout": 0.0,
        },
    ),
    _preset(
        "vit_tiny_imagenet",
        "Tiny-ImageNet",
        "22.05 M",
        "Sliceformer, Table IV",
        'mixer="sliceformer" has 18.50 M, as reported; both counts include a head of 1000 classes, '
        "but the data has 200 classes (21.74 M)",
        {**_DEIT_SMALL, "pool": _SLICEFORMER_TABLE},
    ),
    _preset(
        "vit_imagenet",
        "ImageNet-1k",
        "22.05 M",
        "CSP, Table 3",
        'mixer="csp" has 18.50 M, as reported; the width of 386 in the paper is a misprint of 384, '
        "and the count needs a bias in Q, K and V",
        {**_DEIT_SMALL, "pool": _CSP_TABLE},
    ),
)
