"""The page "State, update, read" has the state size of every mixer that streams."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import rifflemix as rm

PAGE = Path(__file__).parents[2] / "docs" / "recurrences.md"
ROW = re.compile(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", re.MULTILINE)
STREAMING = [
    name for name in rm.list_mixers() if (card := rm.mixer_card(name)).causal and card.streaming
]


@pytest.mark.parametrize("name", STREAMING)
def test_the_size_of_a_state_is_on_the_page(name: str) -> None:
    printed = dict(ROW.findall(PAGE.read_text(encoding="utf-8")))
    mixer = rm.create_mixer(name, 64, num_heads=4, max_length=512, causal=True).eval()
    with torch.no_grad():
        _, state = mixer.prefill(torch.randn(1, 256, 64))
    values = sum(x.numel() for key, x in state.items() if key != "position")
    assert int(printed[name].replace(",", "")) == values
