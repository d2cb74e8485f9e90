"""Conversion of matplotlib figures to small PNG files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from rifflemix.text import plot_text


def clean_texts(figure: Figure) -> None:
    """Replace formulas in all texts of a figure by plain text."""
    texts: list[Any] = figure.findobj(Text)  # typed as a list of Artist in matplotlib
    for text in texts:
        text.set_text(plot_text(text.get_text()))


def figure_png(figure: Figure) -> bytes:
    """Convert the figure to a PNG with a palette of 256 colors.

    The palette reduces the size to about a third. Equal figures give equal bytes.
    """
    clean_texts(figure)
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib does not type all of its methods
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    target = io.BytesIO()
    image.quantize(256).save(target, format="png", optimize=True)
    return target.getvalue()
