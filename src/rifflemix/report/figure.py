"""Figures of matplotlib as small PNG files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image


def figure_png(figure: Figure) -> bytes:
    """The figure in a palette of 256 colours, a third of the bytes; the same figure, the same."""
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib does not type all of its methods
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    target = io.BytesIO()
    image.quantize(256).save(target, format="png", optimize=True)
    return target.getvalue()
