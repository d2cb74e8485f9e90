"""Self-contained HTML pages, learning curves as SVG, figures as PNG, parts of Markdown pages.

All HTML is in `templates/`. Python code creates no HTML, and no template marks a value as safe.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rifflemix.errors import InputError, require_packages
from rifflemix.files import write_bytes
from rifflemix.text import plot_text, terminal_lines

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure


_WIDTH, _HEIGHT = 240, 136
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 10, 22

Curve = Sequence[tuple[float, float]]
"""Step and value of each point."""


@dataclass(frozen=True)
class Panel:
    """Panel with a title, a text alternative for screen readers, and lines as SVG points."""

    title: str
    label: str
    others: tuple[str, ...]
    own: tuple[str, ...]


@dataclass(frozen=True)
class Panels:
    """Panels with a shared scale: tick texts of the axes, and sizes in pixels."""

    panels: tuple[Panel, ...]
    low: str
    high: str
    last: str
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    top: int = _TOP
    right: int = _WIDTH - _RIGHT
    bottom: int = _HEIGHT - _BOTTOM


def panels(titles: Mapping[str, str], curves: Mapping[str, Sequence[Curve]]) -> Panels:
    """Build a panel for each name of `titles`.

    A panel also shows all other curves in gray, behind its own curves.
    """
    scale = _Scale([line for lines in curves.values() for line in lines])
    drawn = tuple(_panel(title, name, curves, scale) for name, title in titles.items())
    last = f"{scale.last_step:g}"
    return Panels(drawn, f"{scale.low:.3g}", f"{scale.high:.3g}", last)


class _Scale:
    """Conversion from data to panel coordinates, shared by all panels."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        steps = [step for curve in curves for step, _ in curve] or [1.0]
        values = [value for curve in curves for _, value in curve] or [0.0]
        self.last_step = max(steps)
        self.low, self.high = min(values), max(values)

    def points(self, curve: Curve) -> str:
        """Return SVG points "x,y x,y ..."."""
        return " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in curve)

    def x(self, step: float) -> float:
        """Return the horizontal coordinate; the axis starts at step 0."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / max(self.last_step, 1.0)

    def y(self, value: float) -> float:
        """Return the vertical coordinate; the axis spans all curves."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _panel(title: str, name: str, curves: Mapping[str, Sequence[Curve]], scale: _Scale) -> Panel:
    behind = [c for other, of_other in curves.items() if other != name for c in of_other]
    ends = ", ".join(f"{curve[-1][1]:.3g}" for curve in curves[name] if curve)
    return Panel(
        title,
        f"{title}: last value {ends or 'none'}",
        tuple(map(scale.points, behind)),
        tuple(map(scale.points, curves[name])),
    )


def marked_text(page: Path, mark: str) -> str:
    """Read the text between `<!-- mark -->` and `<!-- /mark -->`.

    Raises:
        InputError: the page does not contain these lines.
    """
    return _around_marks(page, mark)[1].strip("\n")


def write_marked_text(page: Path, mark: str, text: str) -> None:
    """Replace the text that `marked_text` returns; raise InputError in the same cases."""
    before, _, after = _around_marks(page, mark)
    write_bytes(page, f"{before}\n{text}\n\n{after}".encode())


def _around_marks(page: Path, mark: str) -> tuple[str, str, str]:
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    before, starts, rest = page.read_text(encoding="utf-8").partition(start)
    text, ends, after = rest.partition(end)
    if not (starts and ends):
        raise InputError(f"{page}: expected the lines {start.strip()} and {end.strip()}, got none")
    return before + start, text, end + after


_TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """Render a page of `templates/`; the page loads no external files."""
    return _environment().get_template(template).render(**values)


def anchor(heading: str) -> str:
    """Return the HTML anchor of a section heading."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def _shown(value: Any) -> Any:
    """Remove control characters from plain strings; leave HTML from templates unchanged."""
    return terminal_lines(value) if type(value) is str else value


@functools.cache
def _environment() -> Environment:
    require_packages("a page", "compare", "jinja2")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    environment.filters["anchor"] = anchor
    return environment


def figure_png(figure: Figure) -> bytes:
    """Convert the figure to a PNG with a palette of 256 colors.

    The palette reduces the size to about a third. Equal figures give equal bytes. Plain text
    replaces formulas in all texts of the figure.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text
    from PIL import Image

    texts: list[Any] = figure.findobj(Text)  # typed as a list of Artist in matplotlib
    for text in texts:
        text.set_text(plot_text(text.get_text()))
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib does not type all of its methods
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    target = io.BytesIO()
    image.quantize(256).save(target, format="png", optimize=True)
    return target.getvalue()
