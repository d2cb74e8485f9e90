"""The label of a swapped attention: a buffer that names its mixer and the options of the mixer.

Different mixers can have parameters of the same names and shapes. Loading compares labels, so that
the weights of one mixer cannot end up in another.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import has_values, values_can_be_read
from rifflemix.errors import bad_argument
from rifflemix.json_values import parse_json
from rifflemix.models.pretrained import as_json
from rifflemix.surgery.settings import MixerSettings, class_of, default_options

LABEL = "mixer_settings"
"""Name of the buffer in a `SwappedAttention`."""


def make_label(settings: MixerSettings) -> Tensor:
    """Encode a mixer's name, heads, causality and options as (bytes,) uint8 JSON text."""
    text = json.dumps(_values(settings), sort_keys=True)
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")


def check_label(place: str, label: Tensor, settings: MixerSettings) -> None:
    """Raise unless a label names the mixer of these settings.

    Options that only one of the two has are from another version of rifflemix, and are ignored.

    Args:
        place: name of the swapped attention, for the message.
        label: (bytes,) uint8; ignored if it has no values (meta device, traced graphs).
        settings: of the mixer that is there.

    Raises:
        InputError: another mixer, another setting, or no label.
    """
    if not (has_values(label) and values_can_be_read()):
        return
    own = _values(settings)
    try:
        found = {**own, **parse_json(bytes(label.tolist()).decode())}
    except (ValueError, TypeError):
        found = {**own, "mixer": "a damaged label"}
    for name in ("mixer", *own):
        if found[name] != own[name]:
            raise bad_argument(
                f"weights at {place}",
                f"weights of {own['mixer']} with {name} = {own[name]!r}",
                f"{name} = {found[name]!r}",
                f"load them into the swap that saved them, or remove {LABEL!r} from the state to "
                "load them on purpose",
            )


def _values(settings: MixerSettings) -> dict[str, Any]:
    cls = class_of(settings.mixer)
    name = settings.mixer if isinstance(settings.mixer, str) else cls.__qualname__
    options = {**default_options(cls), **settings.options}
    return {
        **{key: _plain(value) for key, value in options.items() if not key.endswith("dropout")},
        "mixer": name,
        "num_heads": settings.num_heads,
        "causal": settings.causal,
    }


def _plain(value: Any) -> Any:
    try:
        return as_json(value)
    except ValueError:
        return type(value).__qualname__
