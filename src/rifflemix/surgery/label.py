"""Label of a swapped attention: a buffer with the name and options of the mixer.

Different mixers can have parameters of the same names and shapes. Loading compares labels to reject
weights of another mixer. A label contains small integers as floats. It survives conversion to other
dtypes and moving averages of weights and buffers.
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
"""Name of the buffer in `SwappedAttention`."""


def make_label(settings: MixerSettings) -> Tensor:
    """Encode a mixer's settings as hexadecimal digits of JSON text.

    The settings are name, heads, causality and options.
    """
    text = json.dumps(_values(settings), sort_keys=True)
    digits = [int(digit, 16) for digit in text.encode().hex()]
    return torch.tensor(digits, dtype=torch.float32, device="cpu")


def check_label(place: str, label: Tensor, settings: MixerSettings) -> None:
    """Raise unless the label matches the settings of the mixer.

    Args:
        place: name of the swapped attention, for the message.
        label: label from `make_label`. It is ignored if its values cannot be read (meta device,
            traced graphs).
        settings: settings of the mixer in the model.

    Raises:
        InputError: the label is damaged, or belongs to another mixer or other options.
    """
    if not (has_values(label) and values_can_be_read()):
        return
    own = _values(settings)
    try:
        text = "".join(f"{round(digit):x}" for digit in label.tolist())
        found = dict(parse_json(bytes.fromhex(text).decode()))
    except (ValueError, TypeError, OverflowError):  # OverflowError: infinite digits
        found = {"mixer": "a damaged label"}
    for name in ("mixer", *sorted({*own, *found})):
        wanted, got = (values.get(name, "the default") for values in (own, found))
        if wanted != got:
            raise bad_argument(
                f"weights at {place}",
                f"weights of {own['mixer']} with {name} = {wanted!r}",
                f"{name} = {got!r}",
                f"load them into the swap that saved them, or remove {LABEL!r} from the state to "
                "load them on purpose",
            )


def _values(settings: MixerSettings) -> dict[str, Any]:
    """Return the mixer and all settings that change the computed function.

    Options with default values are left out.
    """
    cls = class_of(settings.mixer)
    defaults = default_options(cls)
    changed = {
        name: _plain(value)
        for name, value in settings.options.items()
        if not name.endswith("dropout") and _plain(value) != _plain(defaults.get(name))
    }
    mixer = settings.mixer if isinstance(settings.mixer, str) else cls.__qualname__
    return {**changed, "mixer": mixer, "num_heads": settings.num_heads, "causal": settings.causal}


def _plain(value: Any) -> Any:
    try:
        return as_json(value)
    except ValueError:
        return type(value).__qualname__
