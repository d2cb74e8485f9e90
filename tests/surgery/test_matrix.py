"""Every property of a swapped model: a few mixers at once, all of them in the slow set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from matrix import PROPERTIES, Host, all_hosts, applies

import rifflemix as rm

FEW = ("softmax", "tssa", "csp", "linear")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "hosts.md"


def cases() -> Iterator[object]:
    for host in all_hosts():
        for mixer in rm.list_mixers():
            for name in PROPERTIES:
                if not applies(name, host, mixer):
                    continue
                is_fast = mixer in FEW and name != "compile"
                marks = () if is_fast else (pytest.mark.slow,)
                yield pytest.param(host, mixer, name, id=f"{host.name}-{mixer}-{name}", marks=marks)


@pytest.mark.parametrize(("host", "mixer", "name"), list(cases()))
def test_property(host: Host, mixer: str, name: str) -> None:
    PROPERTIES[name](host, mixer)


def test_the_page_has_every_host_and_property() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| {host.name} |" in text for host in all_hosts())
    assert all(f" {name} |" in text for name in PROPERTIES)
