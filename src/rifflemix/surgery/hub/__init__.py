"""Extensions of transformers, and the function that registers them."""

from __future__ import annotations

from rifflemix.errors import require_packages
from rifflemix.surgery.hub.saving import save_swaps


def register_hf() -> None:
    """Register mixers, models and swapped models of rifflemix in transformers.

    After the call:

    - `save_pretrained` and `from_pretrained` save and load replaced attention.
    - `attn_implementation="rifflemix_linear"` and similar names use a mixer between the projections
      of a host model.
    - The Auto classes support `model_type="rifflemix"`.

    Call the function once, before the first `from_pretrained`. The call is automatic only if
    `rifflemix.surgery` is imported (or first used) after transformers. rifflemix never imports a
    host library by itself.

    Raises:
        InputError: transformers is not installed.

    Example:
        >>> import rifflemix as rm, transformers
        >>> rm.register_hf()
        >>> config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4)
        >>> options = {"attn_implementation": "rifflemix_linear"}
        >>> model = transformers.AutoModel.from_config(config, **options)
        >>> model.config._attn_implementation
        'rifflemix_linear'
    """
    require_packages("register_hf", "hf", "transformers")
    import rifflemix.surgery.hub.swapped  # noqa: F401 (registers itself)
    from rifflemix.surgery.hub.attention import register_attention
    from rifflemix.surgery.hub.models import register_models

    register_attention()
    register_models()
    save_swaps()
