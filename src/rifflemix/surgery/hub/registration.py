"""Telling transformers of us."""

from __future__ import annotations

from rifflemix.errors import InputError


def register_hf() -> None:
    """Tell transformers of us: swapped models, mixers as attention implementations, our models.

    `from_pretrained` then makes the swap that a model was saved with;
    `attn_implementation="rifflemix_linear"` and the like run a mixer between the maps of a host;
    the Auto classes know `model_type="rifflemix"`.

    Call it once, before the first `from_pretrained`. It is done by itself only where
    `rifflemix.surgery` is imported, or the first name of it used, after transformers: we import
    nothing of a host, and so cannot tell transformers of us before it is there.

    Raises:
        InputError: transformers is not installed.
    """
    try:
        import rifflemix.surgery.hub.swapped  # noqa: F401 (registers itself)
        from rifflemix.surgery.hub.attention import register_attention
        from rifflemix.surgery.hub.models import register_models
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise InputError(
            "register_hf needs transformers, which is not installed; pip install 'rifflemix[hf]'"
        ) from None
    register_attention()
    register_models()
