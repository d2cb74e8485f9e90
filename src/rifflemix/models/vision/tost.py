"""The vision form of the Token Statistics Transformer, and its peers in the same host."""

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
    """A pre-norm block with one ISTA step for the feed-forward branch: x = ista(LN(x)).

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
        """See `Block.forward`; the step holds its input already: it is no branch."""
        x = x + self._mixed(self.norm1(x), key_padding_mask, cu_seqlens)
        y: Tensor = self.mlp(self.norm2(x))
        return y


class ToST(ImageModel):
    """Convolutional patches, Fourier positions, blocks, class attention, LayerNorm, linear head.

    This is XCiT without its local patch interaction; the paper's own models have the mixer "tssa",
    their XCiT peers "xca". The class token joins after the last block.

    Args:
        mixer: registry name of the token mixer.
        mixer_options: the mixer's own options.
        dim: channels C.
        num_layers: blocks.
        num_heads: heads H, a divisor of `dim`, of the mixer and of class attention.
        mlp_ratio: hidden channels of the feed-forward branches over C.
        feed_forward: "mlp", or "ista" for a sparse coding step in its position in every block.
        num_classes: outputs.
        image_size: height and width, one number where they are equal.
        resize: height and width that images are brought to before they are cut into patches, see
            `rifflemix.nn.resize.Resize`; None leaves them as they are.
        patch_size: a power of two of at least 2 that divides the image, as it then is.
        in_channels: channels of the image.
        layer_scale: factor of every branch at the start; the paper has 1 for 12 layers and 1e-5
            for 24.
        drop_path: probability of dropping a block's branch in training, the same at all depths.
        num_class_layers: class attention blocks.
        tokens_norm: see `ClassAttentionBlock`.
        bias: add a bias to the mixer's input maps and to those of class attention.
        dropout: probability, on the embedded patches, in the mixer and on all branches.

    Raises:
        InputError: a size out of range, or patches that do not fill the image.

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
        self.image_size = size_pair("image_size", image_size)  # what comes in, not what is cut
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
        """Logits of each image.

        Args:
            images: (B, in_channels, height, width).
            key_padding_mask: None; images have no padding.

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
        """The released vision code's key of every tensor of this model.

        Raises:
            InputError: a mixer or feed-forward layer that the released code does not have.
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
            # PyTorch counts batches since 0.4.1 and loads older norms without; so do we.
            required = not key.endswith(".num_batches_tracked")
            layout[key] = OfficialTensor(name, shape, required)
        return layout


def _block(
    mixer: nn.Module, kind: str, dim: int, hidden_dim: int, *, dropout: float, **options: Any
) -> Block:
    """A block whose feed-forward branch is one of `FEED_FORWARDS`."""
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
    """Linear maps are truncated normal without bias; norms, convolutions stay as PyTorch's."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, ClassToken):
        nn.init.trunc_normal_(module.token, std=0.02)
