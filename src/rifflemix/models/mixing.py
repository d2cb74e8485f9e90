"""Construction of the mixers in a model's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rifflemix.checks import shown
from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer, create_mixer
from rifflemix.mixers.named import mixer_options


def block_mixer(
    mixer: str,
    options: Mapping[str, Any] | None,
    dim: int,
    *,
    of_host: Mapping[str, Any] | None = None,
    setting: str = "mixer_options",
    **shared: Any,
) -> TokenMixer:
    """Create the mixer of one block.

    Args:
        mixer: registry name.
        options: options of the mixer from the caller of the model.
        dim: channels C.
        of_host: default options from the model. Mixers without such an option ignore it, and
            `options` take precedence.
        setting: the name of `options` in error messages.
        shared: arguments that all mixers accept, see `create_mixer`.

    Raises:
        InputError: the mixer is unknown, `options` is not a mapping or contains an argument that
            the model sets, or a value is out of range.
    """
    known = mixer_options(mixer)
    if options is not None and not isinstance(options, Mapping):
        raise bad_argument(setting, f"a mapping with options of {mixer}", shown(options))
    if of_host is not None and not isinstance(of_host, Mapping):
        raise bad_argument("host_options", "a mapping", shown(of_host))
    own = {} if options is None else dict(options)
    for name in own:
        if not isinstance(name, str) or name in ("name", "dim", *shared):
            expected = f"options of {mixer} ({', '.join(known) or 'it has none'})"
            raise bad_argument(setting, expected, shown(name), "the rest is set by the model")
    hosted = {name: value for name, value in (of_host or {}).items() if name in known}
    return create_mixer(mixer, dim, **shared, **(hosted | own))
