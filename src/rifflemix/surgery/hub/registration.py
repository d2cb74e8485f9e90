"""Register rifflemix in transformers."""

from __future__ import annotations

from rifflemix.errors import InputError


def register_hf() -> None:
    """Register mixers, models and swapped models of rifflemix in transformers.

    After the call:

    - `from_pretrained` loads models with replaced attention.
    - `attn_implementation="rifflemix_linear"` and similar names use a mixer between the projections
      of a host model.
    - The Auto classes support `model_type="rifflemix"`.

    Call the function once, before the first `from_pretrained`. The call is automatic only if
    `rifflemix.surgery` is imported (or first used) after transformers. rifflemix never imports a
    host library by itself.

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
