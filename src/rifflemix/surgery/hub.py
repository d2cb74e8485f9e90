"""Telling transformers of us."""

from __future__ import annotations

from rifflemix.errors import InputError


def register_hf() -> None:
    """Let `from_pretrained` of transformers make the swap that a model was saved with.

    Call it once, before the first `from_pretrained` of a swapped model. It is done by itself only
    where `rifflemix.surgery` is imported, or the first name of it used, after transformers: we
    import nothing of a host, and so cannot tell transformers of us before it is there.

    Raises:
        InputError: transformers is not installed.
    """
    try:
        import rifflemix.surgery.pretrained  # noqa: F401 (registers itself)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise InputError(
            "register_hf needs transformers, which is not installed; pip install 'rifflemix[hf]'"
        ) from None
