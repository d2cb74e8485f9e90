from __future__ import annotations

import io

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from rifflemix.lab.report.page import figure_png


def drawn() -> bytes:
    figure = Figure(figsize=(2, 1), dpi=50)
    figure.add_axes((0, 0, 1, 1)).plot([0, 1], color="#0072B2", linewidth=9)
    return figure_png(figure)


def test_palette_keeps_colours_and_size() -> None:
    image = Image.open(io.BytesIO(drawn()))
    assert (image.mode, image.size) == ("P", (100, 50))
    pixels = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
    for colour in ((0, 0x72, 0xB2), (255, 255, 255)):
        assert (np.abs(pixels - colour).max(1) <= 2).any()


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert drawn() == drawn()
