"""Classes for the argument `attn_layer` of timm models."""

from __future__ import annotations

import copyreg
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers import create_mixer
from rifflemix.surgery.hosts.timm import mixed


class MixerAttention(nn.Module):
    """Token mixer with the constructor and call of timm's `Attention`.

    `attn_layer` derives classes from it.
    """

    settings: ClassVar[dict[str, Any]]
    num_layers: ClassVar[int]
    built: ClassVar[int]

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,
        device: Any = None,
        dtype: Any = None,
        **others: Any,
    ) -> None:
        super().__init__()
        cls = type(self)
        for name, wanted in {"qk_norm": qk_norm, "scale_norm": scale_norm, **others}.items():
            if wanted:
                mixer = cls.settings["name"]
                raise bad_argument(name, f"none: {mixer} has no such part", repr(wanted))
        layer_index = cls.built % cls.num_layers
        cls.built += 1
        self.mixer = create_mixer(
            dim=dim,
            num_heads=num_heads,
            layer_index=layer_index,
            num_layers=cls.num_layers,
            dropout=attn_drop,
            **cls.settings,
        ).to(device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Mix the tokens (B, N, C)."""
        return self.proj_drop(mixed(self.mixer, x, attn_mask, is_causal))


class _PicklableClass(type):
    """Metaclass of the classes from `attn_layer`; it makes their settings picklable.

    timm stores its arguments in the model, including this class.
    """

    settings: dict[str, Any]
    num_layers: int


def _layer_class(settings: dict[str, Any], num_layers: int) -> _PicklableClass:
    values = {"settings": settings, "num_layers": num_layers, "built": 0}
    return _PicklableClass("MixerAttention", (MixerAttention,), {"__module__": __name__, **values})


copyreg.pickle(_PicklableClass, lambda cls: (_layer_class, (cls.settings, cls.num_layers)))


def attn_layer(
    mixer: str, *, num_layers: int = 1, max_length: int | None = None, **options: Any
) -> type[nn.Module]:
    """Create a class for the argument `attn_layer` of timm models.

    Use it as `timm.create_model(name, attn_layer=attn_layer("tssa"))`.

    The class accepts the arguments of timm's `Attention`. timm does not pass the layer index. The
    class therefore counts its instances and restarts after `num_layers`. You can pickle models that
    contain the class.

    Args:
        mixer: name in `list_mixers()`.
        num_layers: number of layers in the model, for mixers that depend on the depth.
        max_length: maximum number of tokens per sequence.
        options: options of the mixer.

    Returns:
        A subclass of nn.Module.

    Raises:
        InputError: the error occurs when timm builds a layer. `qk_norm` or `scale_norm` is set,
            which mixers do not support, or the arguments do not suit the mixer.

    Example:
        >>> import torch, rifflemix as rm
        >>> Attention = rm.surgery.attn_layer("tssa")
        >>> Attention(64, num_heads=4)(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """
    made = _layer_class({"name": mixer, "max_length": max_length, **options}, num_layers)
    return cast(type[nn.Module], made)
