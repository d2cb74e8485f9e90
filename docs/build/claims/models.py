"""Plugin with the small image model that docs/claims.md analyzes: minutes of training on a CPU."""

from rifflemix.models import ModelCard, ToST, register_model

CARD = ModelCard(
    name="small_tost",
    title="ToST of 4 layers for images of 28 x 28, patches of 4",
    paper="Wu et al. 2024, Token Statistics Transformer",
    inputs="images",
)
register_model(
    CARD, dim=64, num_layers=4, num_classes=10, image_size=28, in_channels=1, patch_size=4
)(ToST)
