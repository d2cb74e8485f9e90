"""rifflemix: sub-quadratic token mixers for PyTorch, and the tools that compare them fairly."""

from rifflemix.errors import InputError
from rifflemix.mixers import MixerCard, TokenMixer, create_mixer, list_mixers, mixer_card

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "MixerCard",
    "TokenMixer",
    "__version__",
    "create_mixer",
    "list_mixers",
    "mixer_card",
]
