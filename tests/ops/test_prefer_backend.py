from __future__ import annotations

import pytest

from rifflemix.errors import InputError
from rifflemix.ops.dispatch import choose, prefer_backend

AVAILABLE = ("reference", "eager", "cpu")


@pytest.mark.parametrize(
    ("preferred", "asked", "chosen"),
    [
        ("eager", "auto", "eager"),
        ("reference", "auto", "reference"),
        ("triton", "auto", "cpu"),  # not there: the fastest that is
        ("auto", "auto", "cpu"),
        ("eager", "cpu", "cpu"),  # an explicit choice stands
    ],
)
def test_auto_means_the_preferred_backend_inside(preferred: str, asked: str, chosen: str) -> None:
    with prefer_backend(preferred):
        assert choose(asked, AVAILABLE) == chosen
    assert choose("auto", AVAILABLE) == "cpu"


def test_preferences_nest_and_end_with_an_error() -> None:
    with prefer_backend("eager"):
        with pytest.raises(InputError), prefer_backend("reference"):
            choose("triton", AVAILABLE)
        assert choose("auto", AVAILABLE) == "eager"
    assert choose("auto", AVAILABLE) == "cpu"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="backend"), prefer_backend("gpu"):
        pass
