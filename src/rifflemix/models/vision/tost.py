"""Token Statistics Transformer (ToST) for images, with any mixer, and its named sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer, check_positive, check_probability
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers import Stack
from rifflemix.models.official import OfficialTensor
from rifflemix.models.parts import block_mixer, modules_to_draw
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.vision.images import PatchModel, Size, size_pair
from rifflemix.models.vision.tost_layers import ISTA, ClassAttentionBlock, FourierPositions
from rifflemix.nn.block import Block
from rifflemix.nn.embeddings import ConvPatchEmbedding, Resize
from rifflemix.nn.layers import ClassToken, Dropout, FeedForward

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
        return self.mlp(self.norm2(x))


class ToST(PatchModel):
    """Vision model: convolutional patches, Fourier positions, blocks, class attention, linear head.

    The architecture is XCiT without local patch interaction. Mixer "tssa" gives ToST, mixer "xca"
    gives the XCiT baselines of the paper. The class token is added after the last block.

    Args:
        mixer: registry name of the token mixer, or a stack.
        mixer_options: options of the mixer.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: heads H of the mixer and of class attention, a divisor of `dim`.
        mlp_ratio: hidden channels of the feed-forward branches divided by C.
        feed_forward: "mlp", or "ista" to replace the MLP of every block by a sparse coding step.
        num_classes: number of outputs.
        image_size: height and width, or one number for square images.
        resize: height and width after resizing, see `rifflemix.nn.embeddings.Resize`; None skips
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

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.ToST(dim=32, num_layers=2, num_classes=10, image_size=64)
        >>> model(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        mixer: Stack = "tssa",
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
        patch_size = check_integer("patch_size", patch_size)
        super().__init__("tost", image_size, patch_size, in_channels, resize)
        self.resize = nn.Identity() if resize is None else Resize(size_pair("resize", resize))
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

    def embed(self, images: Tensor) -> Tensor:
        grid = self.patch_embed(self.resize(images)) + self.positions(*self.grid)
        return self.drop(grid.flatten(2).transpose(1, 2))

    def classify(self, x: Tensor) -> Tensor:
        x = self.cls_token(x)
        for block in self.class_blocks:
            x = self.run_block(block, x)
        return super().classify(self.norm(x[:, 0]))

    def official_tensors(self) -> dict[str, OfficialTensor]:
        """Map the keys of the released vision code to our tensors.

        Returns:
            Official key -> `OfficialTensor`.

        Raises:
            InputError: the released code does not support the mixer or the feed-forward layer.
        """
        if self.feed_forward != "mlp" or self.mixer_name not in _OFFICIAL_MIXERS:
            raise bad_argument(
                "model",
                f"mixer {', '.join(_OFFICIAL_MIXERS)} with feed_forward mlp, as in the official "
                "code",
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


_PAPER = (
    "Wu et al. 2024, Token Statistics Transformer: Linear-Time Attention via Variational Rate "
    "Reduction"
)
_XCIT_PAPER = "El-Nouby et al. 2021, XCiT: Cross-Covariance Image Transformers"
_CRATE_PAPER = "Yu et al. 2023, White-Box Transformers via Sparse Rate Reduction"
_TINY: dict[str, Any] = {"dim": 192, "num_heads": 4}
_SMALL: dict[str, Any] = {"dim": 384, "num_heads": 8}
_MEDIUM: dict[str, Any] = {"dim": 512, "num_heads": 8}
_LARGE: dict[str, Any] = {"dim": 768, "num_heads": 16}
_SHALLOW: dict[str, Any] = {"num_layers": 12, "layer_scale": 1.0}
_DEEP: dict[str, Any] = {"num_layers": 24, "layer_scale": 1e-5}
_UNPRINTED = "registered in the released code; the paper trains no such size"


def _tost(name: str, title: str, patch_size: int, settings: dict[str, Any], **card: Any) -> Preset:
    about = {"note": _UNPRINTED} | card
    return Preset(
        ModelCard(
            name=name,
            title=f"{title}, patches of {patch_size}",
            inputs="images",
            **({"paper": _PAPER} | about),
        ),
        ToST,
        {"mixer": "tssa", "patch_size": patch_size, **settings},
    )


def _family(patch_size: int) -> tuple[Preset, ...]:
    """Return all ToST sizes with one patch size.

    The paper reports three sizes, with patch size 16.
    """
    sizes: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("tiny", "ToST-T", {**_TINY, **_SHALLOW}),
        ("small", "ToST-S", {**_SMALL, **_SHALLOW, "drop_path": 0.05}),
        ("medium", "ToST-M", {**_MEDIUM, **_DEEP, "drop_path": 0.15}),
        ("tiny_24", "ToST-T of 24 layers", {**_TINY, **_DEEP}),
        ("small_24", "ToST-S of 24 layers", {**_SMALL, **_DEEP}),
        ("large", "ToST-L", {**_LARGE, **_DEEP}),
    )
    cards = _PRINTED if patch_size == 16 else {}
    return tuple(
        _tost(f"tost_{size}_{patch_size}", title, patch_size, settings, **cards.get(size, {}))
        for size, title, settings in sizes
    )


_PRINTED: dict[str, dict[str, Any]] = {
    "tiny": {"printed": "5.8 M", "printed_in": "Table 2", "note": ""},
    "small": {"printed": "22.6 M", "printed_in": "Table 2", "note": ""},
    "medium": {
        "printed": "68.1 M",
        "printed_in": "Table 2",
        "note": "the released code also builds 71.48 M",
    },
}


def _xcit(size: str, title: str, settings: dict[str, Any], printed: str, built: str) -> Preset:
    return _tost(
        f"xcit_{size}_16",
        f"{title} without local patch interaction",
        16,
        {**settings, "mixer": "xca"},
        paper=_XCIT_PAPER,
        printed=printed,
        printed_in="Wu et al. 2024 (ToST), Table 2",
        note=f"the released code of ToST also builds {built}",
    )


PRESETS = (
    *_family(16),
    *_family(8),
    _xcit("small", "XCiT-S", {**_SMALL, **_SHALLOW, "drop_path": 0.05}, "24.9 M", "26.14 M"),
    _xcit("medium", "XCiT-M", {**_MEDIUM, **_DEEP, "drop_path": 0.15}, "80.2 M", "84.09 M"),
    _tost(
        "tost_ista_tiny_16",
        "ToST-T with a sparse coding step (ISTA) for the feed-forward branch",
        16,
        {**_TINY, **_SHALLOW, "feed_forward": "ista"},
        note="the variant of the ablation in Table 8; the paper reports no size",
    ),
    _tost(
        "crate_tiny_16",
        "CRATE-style: subspace attention and ISTA in the model of ToST-T",
        16,
        {**_TINY, **_SHALLOW, "mixer": "crate", "feed_forward": "ista"},
        paper=_CRATE_PAPER,
        note="CRATE's two operators between the patch embedding and class attention of ToST",
    ),
)
