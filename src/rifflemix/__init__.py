"""rifflemix: sub-quadratic token mixers for PyTorch, and the tools that compare them fairly.

Names are imported when first used, so that `import rifflemix` and `rifflemix --help` do not wait
for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rifflemix import models, ops
    from rifflemix.errors import InputError
    from rifflemix.mixers import MixerCard, TokenMixer, create_mixer, list_mixers, mixer_card
    from rifflemix.models import create_model, list_models
    from rifflemix.surgery import (
        SurgeryReport,
        register_adapter,
        replace_attention,
        restore_attention,
    )

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "MixerCard",
    "SurgeryReport",
    "TokenMixer",
    "__version__",
    "create_mixer",
    "create_model",
    "list_mixers",
    "list_models",
    "mixer_card",
    "models",
    "ops",
    "register_adapter",
    "replace_attention",
    "restore_attention",
]

_ROOMS = {"models", "ops"}
_HOMES = {
    "InputError": "errors",
    "MixerCard": "mixers",
    "SurgeryReport": "surgery",
    "TokenMixer": "mixers",
    "create_mixer": "mixers",
    "create_model": "models",
    "list_mixers": "mixers",
    "list_models": "models",
    "mixer_card": "mixers",
    "register_adapter": "surgery",
    "replace_attention": "surgery",
    "restore_attention": "surgery",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"rifflemix.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"rifflemix.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'rifflemix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
