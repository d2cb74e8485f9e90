"""Token Statistics Transformer (ToST) for images, with any mixer."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer, check_positive, check_probability
from rifflemix.errors import bad_argument, check_choice
from rifflemix.models.initialisation import modules_to_draw
from rifflemix.models.mixing import block_mixer
from rifflemix.models.official import OfficialTensor
from rifflemix.models.vision.class_attention import ClassAttentionBlock
from rifflemix.models.vision.fourier_positions import FourierPositions
from rifflemix.models.vision.images import ImageModel, Size, size_pair
from rifflemix.models.vision.ista import ISTA
from rifflemix.nn.block import Block
from rifflemix.nn.class_token import ClassToken
from rifflemix.nn.dropout import Dropout
from rifflemix.nn.feed_forward import FeedForward
from rifflemix.nn.patches import ConvPatchEmbedding
from rifflemix.nn.resize import Resize

FEED_FORWARDS = ("mlp", "ista")
_EPS = 1e-6


class IstaBlock(Block):
    """Pre-norm block with an ISTA step instead of the feed-forward branch: x = ista(LN(x)).

    Source: Wu et al. 2024 (ToST), the ablation of Table 8, after CRATE.
    """

    def __init__(self, mixer: nn.Module, dim: int, **options: Any) -> None:
        super().__init__(mixer, ISTA(dim), dim, **options)
        self.scale2 = nn.Identity()

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Apply the block, see `Block.forward`; the ISTA step has no residual connection."""
        x = x + self._mixed(self.norm1(x), key_padding_mask, cu_seqlens)
        y: Tensor = self.mlp(self.norm2(x))
        return y


class ToST(ImageModel):
    """Vision model: convolutional patches, Fourier positions, blocks, class attention, linear head.

    The architecture is XCiT without local patch interaction. Mixer "tssa" gives ToST, mixer "xca"
    gives the XCiT baselines of the paper. The class token is added after the last block.

    Args:
        mixer: registry name of the token mixer.
        mixer_options: options of the mixer.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: heads H of the mixer and of class attention, a divisor of `dim`.
        mlp_ratio: hidden channels of the feed-forward branches divided by C.
        feed_forward: "mlp", or "ista" to replace the MLP of every block by a sparse coding step.
        num_classes: number of outputs.
        image_size: height and width, or one number for square images.
        resize: height and width after resizing, see `rifflemix.nn.resize.Resize`; None skips
            resizing.
        patch_size: a power of two of at least 2 that divides the (resized) image.
        in_channels: channels of the image.
        layer_scale: initial factor of every branch; in the paper 1 for 12 layers and 1e-5 for 24.
        drop_path: probability of dropping a branch in training, equal at all depths.
        num_class_layers: number of class attention blocks.
        tokens_norm: see `ClassAttentionBlock`.
        bias: add a bias to the input projections of the mixer and of class attention.
        dropout: dropout probability on the embedded patches, in the mixer and on all branches.

    Raises:
        InputError: a size is out of range, or the patch size does not divide the image.

    Source: Wu et al. 2024, "Token Statistics Transformer", appendix C.2 and the released code.
    """

    def __init__(
        self,
        *,
        mixer: str = "tssa",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 192,
        num_layers: int = 12,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        feed_forward: str = "mlp",
        num_classes: int = 1000,
        image_size: Size = 224,
        resize: Size | None = None,
        patch_size: int = 16,
        in_channels: int = 3,
        layer_scale: float = 1.0,
        drop_path: float = 0.0,
        num_class_layers: int = 2,
        tokens_norm: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        cut = image_size if resize is None else size_pair("resize", resize)
        super().__init__("tost", cut, check_integer("patch_size", patch_size), in_channels)
        self.resize = nn.Identity() if resize is None else Resize(self.image_size)
        self.image_size = size_pair("image_size", image_size)  # size before resizing
        dim, num_layers = check_integer("dim", dim, 1), check_integer("num_layers", num_layers, 1)
        num_class_layers = check_integer("num_class_layers", num_class_layers, 1)
        check_choice("feed_forward", feed_forward, FEED_FORWARDS)
        tokens_norm = check_bool("tokens_norm", tokens_norm)
        layer_scale = check_positive("layer_scale", layer_scale)
        drop_path = check_probability("drop_path", drop_path)
        hidden_dim = int(dim * check_positive("mlp_ratio", mlp_ratio))
        self.mixer_name, self.feed_forward = mixer, feed_forward
        self.patch_embed = ConvPatchEmbedding(self.in_channels, dim, patch_size)
        self.positions = FourierPositions(dim)
        self.drop = Dropout(check_probability("dropout", dropout))
        make_mixer = partial(
            block_mixer,
            mixer,
            mixer_options,
            dim,
            of_host={"bias": bias, "out_bias": True},
            num_heads=num_heads,
            max_length=self.num_patches,
            num_layers=num_layers,
            dropout=dropout,
        )
        options = {"dropout": dropout, "layer_scale": layer_scale, "drop_path": drop_path}
        self.blocks = nn.ModuleList(
            _block(make_mixer(layer_index=index), feed_forward, dim, hidden_dim, **options)
            for index in range(num_layers)
        )
        self.cls_token = ClassToken(dim, std=0.02)
        self.class_blocks = nn.ModuleList(
            ClassAttentionBlock(
                dim,
                num_heads,
                hidden_dim,
                layer_scale=layer_scale,
                tokens_norm=tokens_norm,
                bias=bias,
                dropout=dropout,
                eps=_EPS,
            )
            for _ in range(num_class_layers)
        )
        self.norm = nn.LayerNorm(dim, eps=_EPS)
        self.head = nn.Linear(dim, check_integer("num_classes", num_classes, 1))
        for _, part in modules_to_draw(self):
            _initialise(part)

    def forward(self, images: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Compute the logits of each image.

        Args:
            images: (B, in_channels, height, width).
            key_padding_mask: must be None, because images have no padding.

        Returns:
            (B, num_classes).
        """
        self.check_images(images, key_padding_mask)
        grid = self.patch_embed(self.resize(images)) + self.positions(*self.grid)
        x = self.drop(grid.flatten(2).transpose(1, 2))
        for block in self.blocks:
            x = self.run_block(block, x)
        x = self.cls_token(x)
        for block in self.class_blocks:
            x = self.run_block(block, x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits

    def official_tensors(self) -> dict[str, OfficialTensor]:
        """Map the keys of the released vision code to our tensors.

        Raises:
            InputError: the released code does not support the mixer or the feed-forward layer.
        """
        if self.feed_forward != "mlp" or self.mixer_name not in _OFFICIAL_MIXERS:
            raise bad_argument(
                "model",
                f"mixer {', '.join(_OFFICIAL_MIXERS)} with feed_forward mlp, which the official "
                "code has",
                f"mixer {self.mixer_name} with feed_forward {self.feed_forward}",
            )
        parts = (*_OFFICIAL_PARTS, *_OFFICIAL_MIXERS[self.mixer_name])
        layout = {}
        for name, tensor in self.state_dict().items():
            key = _renamed(name, parts)
            shape = (*tensor.shape, 1) if key.endswith(".temp") else None  # (H, 1) for our (H,)
            # Norms saved before PyTorch 0.4.1 have no batch count, and PyTorch loads them too.
            required = not key.endswith(".num_batches_tracked")
            layout[key] = OfficialTensor(name, shape, required)
        return layout


def _block(
    mixer: nn.Module, kind: str, dim: int, hidden_dim: int, *, dropout: float, **options: Any
) -> Block:
    """Build a block with one of `FEED_FORWARDS`."""
    if kind == "ista":
        return IstaBlock(mixer, dim, dropout=dropout, norm_eps=_EPS, **options)
    mlp = FeedForward(dim, hidden_dim, dropout=dropout)
    return Block(mixer, mlp, dim, dropout=dropout, norm_eps=_EPS, **options)


_OFFICIAL_PARTS = (
    ("positions.proj.", "pos_embeder.token_projection."),
    ("cls_token.token", "cls_token"),
    ("class_blocks.", "cls_attn_blocks."),
    (".attention.", ".attn."),
    (".mixer.", ".attn."),
    (".scale1.scale", ".gamma1"),
    (".scale2.scale", ".gamma2"),
)
_OFFICIAL_MIXERS: dict[str, tuple[tuple[str, str], ...]] = {
    "tssa": (
        (".attn.in_proj.", ".attn.qkv."),
        (".attn.out_proj.", ".attn.to_out.0."),
        (".attn.temperature", ".attn.temp"),
    ),
    "xca": (),
    "softmax": (),
}


def _renamed(name: str, parts: tuple[tuple[str, str], ...]) -> str:
    for ours, theirs in parts:
        name = name.replace(ours, theirs)
    return name


def _initialise(module: nn.Module) -> None:
    """Initialize linear layers with truncated normal weights and zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, ClassToken):
        nn.init.trunc_normal_(module.token, std=0.02)
