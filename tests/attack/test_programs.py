"""Randomly drawn mixers run as ONNX, or their card gives the reason why not."""

from __future__ import annotations

import random
from typing import Any

import rifflemix as rm
from rifflemix.mixers import mixer_class
from rifflemix.testing import forms_of
from rifflemix.testing.graphs import runs_as_onnx

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]


def test_drawn_mixers_in_onnxruntime(attack: Any) -> None:
    """Draws from all mixers. The package's contract tests only cover the first table."""

    def one(draw: random.Random) -> None:
        runs_as_onnx(draw.choice(FORMS))

    attack.each(1, one)
