"""The drawings of the mixers (docs/assets) match the operators and are accessible."""

from __future__ import annotations

from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch

import rifflemix as rm
from document_scripts import load_script


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    return load_script("docs/build/drawings.py")


def test_the_numbers_in_the_cells_are_the_operators_answer(writer: ModuleType) -> None:
    """Check the numbers in the picture: before, shifted and sorted."""
    (axes,) = writer.figure_of(["csp"], 1).axes
    cells = [int(text.get_text()) for text in axes.texts if text.get_gid() == "number"]
    before, shifted, paired = torch.tensor(cells).view(3, writer.TOKENS, writer.CHANNELS)
    tokens = torch.arange(writer.TOKENS)[:, None].expand(-1, writer.CHANNELS)
    assert torch.equal(before, tokens)
    steps = rm.ops.shift_steps("linear", writer.TOKENS, writer.CHANNELS)
    assert torch.equal(shifted, rm.ops.circular_shift(tokens[None].float(), steps)[0].long())
    pairs = [sorted(pair) for pair in shifted.T.reshape(-1, 2).tolist()]
    assert pairs == [sorted(pair) for pair in paired.T.reshape(-1, 2).tolist()]
    assert not torch.equal(shifted, paired)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_number_can_be_read_on_every_colour(writer: ModuleType) -> None:
    assert len(set(writer.COLORS)) == writer.TOKENS
    assert all((luminance(c) + 0.05) / 0.05 >= 4 for c in writer.COLORS)


def test_every_picture_has_words_and_a_dark_form(writer: ModuleType) -> None:
    for text in writer.files().values():
        assert len(ElementTree.fromstring(text).get("aria-label") or "") > 100
        assert "prefers-color-scheme: dark" in text
