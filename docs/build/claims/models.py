"""Plugin with the small image model that docs/claims.md analyzes."""

from __future__ import annotations

from typing import Any

from rifflemix.models import Model, ModelCard, ToST, register_model


@register_model(
    ModelCard(
        name="small_tost",
        title="ToST of 4 layers for images of 28 x 28, patches of 4",
        paper="Wu et al. 2024, Token Statistics Transformer",
        inputs="images",
    )
)
def small_tost(
    *,
    mixer: str = "tssa",
    mixer_options: dict[str, Any] | None = None,
    dim: int = 64,
    num_layers: int = 4,
    num_heads: int = 4,
    num_classes: int = 10,
    image_size: int = 28,
    in_channels: int = 1,
) -> Model:
    """Small enough to be trained on a CPU within minutes."""
    return ToST(
        mixer=mixer,
        mixer_options=mixer_options,
        dim=dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_classes=num_classes,
        image_size=image_size,
        in_channels=in_channels,
        patch_size=4,
    )
