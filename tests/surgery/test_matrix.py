"""Every property of a swapped model, for a few mixers of different kinds in every host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from matrix import PROPERTIES, Host, all_hosts, applies

FEW = ("softmax", "tssa", "csp", "linear")


def cases() -> Iterator[object]:
    for host in all_hosts():
        for mixer in FEW:
            for name in PROPERTIES:
                if not applies(name, host, mixer):
                    continue
                marks = (pytest.mark.slow,) if name == "compile" else ()
                yield pytest.param(host, mixer, name, id=f"{host.name}-{mixer}-{name}", marks=marks)


@pytest.mark.parametrize(("host", "mixer", "name"), list(cases()))
def test_property(host: Host, mixer: str, name: str) -> None:
    PROPERTIES[name](host, mixer)
