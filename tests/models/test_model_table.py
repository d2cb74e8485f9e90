"""The table of models and the page written from it."""

from __future__ import annotations

import pytest

from rifflemix.models.registry import count_parameters, difference_to


@pytest.mark.parametrize(
    ("printed", "parameters", "difference"),
    [
        ("", 5, ""),
        ("1148042", 1148042, "0"),
        ("1148042", 1148054, "+12"),
        ("1148042", 1146042, "-2,000"),
        ("9.52 M", 9_524_999, "0"),
        ("9.52 M", 9_525_001, "+0.01 M"),
        ("68.1 M", 71_480_000, "+3.4 M"),
        ("110 M", 109_600_000, "0"),
    ],
)
def test_difference_is_rounded_as_in_the_paper(
    printed: str, parameters: int, difference: str
) -> None:
    assert difference_to(printed, parameters) == difference


def test_counting_needs_no_memory_and_equals_the_model() -> None:
    assert count_parameters("encoder") is None
    small = {"vocab_size": 7, "dim": 16, "max_length": 8}
    from rifflemix.models import create_model

    assert count_parameters("encoder", **small) == create_model("encoder", **small).num_parameters()
