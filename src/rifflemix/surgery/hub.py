"""Telling transformers of us."""

from __future__ import annotations

from rifflemix.errors import InputError


def register_hf() -> None:
    """Let `from_pretrained` of transformers make the swap that a model was saved with.

    A program that swaps a model itself need not call this, unless it imported `rifflemix.surgery`
    before transformers; one that only loads a swapped model does, once.

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
