"""Drawings of the mixer families on eight or nine tokens, computed by the operators.

The operators compute every value and its source token; no drawing is a sketch. Colors are from
Okabe and Ito, and a number repeats each color.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import matplotlib as mpl
import torch
from charts import BLUE, CELL, FAINT, GRAY, GRID, INK, PANEL, STYLE, svg
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from paths import ASSETS
from torch import Tensor

import rifflemix as rm

TOKENS, CHANNELS, BLOCK = 8, 4, 3
# Some differ by one from the colors of charts, which change in the dark form.
COLORS = ("#e69f00", "#56b4e9", "#009e74", "#f0e442", "#0073b2", "#d55e01", "#cc79a8", "#999999")
_WIDTH, _HEIGHT, _GAP = 290, 210, 10  # points
_TOP, _CELL_WIDTH, _CELL_HEIGHT = 58, 18, 15


@dataclass(frozen=True)
class Panel:
    """One family: heading, a line of words, the drawing, and its text alternative."""

    title: str
    words: str
    draw: Callable[[Axes], None]
    alt: str


def _tokens() -> Tensor:
    """Draw (1, N, C) values between 0.1 and 1, the same on every machine."""
    draws = torch.Generator().manual_seed(7)
    return 0.1 + 0.9 * torch.rand(1, TOKENS, CHANNELS, generator=draws)


def _text(axes: Axes, x: float, y: float, words: object, size: float = 8.5) -> None:
    axes.text(x, y, str(words), size=size, ha="center", va="center")


def _number(axes: Axes, x: float, y: float, number: object) -> None:
    """Write a token's number in black, in the light and the dark form."""
    axes.text(x, y, str(number), size=7, ha="center", va="center_baseline", color="#000000",
              fontweight="bold", gid="number")  # fmt: skip


def _arrow(axes: Axes, x: float, width: float = 18) -> None:
    """Draw an arrow between two grids."""
    y = _TOP + TOKENS * _CELL_HEIGHT / 2
    axes.annotate("", (x + width, y), (x, y), arrowprops={"arrowstyle": "->", "color": GRAY})


def _cell(axes: Axes, x: float, y: float, width: float, height: float, **style: object) -> None:
    axes.add_patch(Rectangle((x, y), width, height, linewidth=0, clip_on=False, **style))


def _grid(axes: Axes, x: float, values: Tensor, sources: Tensor, words: str) -> None:
    """Draw tokens (N, C) downwards: a bar per value, with the color and number of its source."""
    width, height = _CELL_WIDTH - 2, _CELL_HEIGHT - 2
    cells: dict[str, list[Path]] = {CELL: []}
    for n, c in product(range(len(values)), range(values.shape[1])):
        token, left, y = int(sources[n, c]), x + c * _CELL_WIDTH, _TOP + n * _CELL_HEIGHT
        for color, share in ((CELL, 1.0), (COLORS[token], float(values[n, c]))):
            place = Affine2D().scale(width * share, height).translate(left, y)
            cells.setdefault(color, []).append(Path.unit_rectangle().transformed(place))
        _number(axes, left + width / 2, y + height / 2, token)
    for color, paths in cells.items():
        shape = Path.make_compound_path(*paths)
        axes.add_patch(PathPatch(shape, facecolor=color, linewidth=0, clip_on=False))
    middle = x + values.shape[1] * _CELL_WIDTH / 2 - 1
    _text(axes, middle, _TOP + TOKENS * _CELL_HEIGHT + 11, words)


def _own(values: Tensor) -> Tensor:
    """Return the sources of values that stay at their tokens."""
    return torch.arange(len(values))[:, None].expand_as(values)


def _csp(axes: Axes) -> None:
    x = _tokens()
    steps = rm.ops.shift_steps("linear", TOKENS, CHANNELS)
    shifted, first = rm.ops.circular_shift(x, steps, return_indices=True)
    y, then = rm.ops.channel_permute(x, steps, TOKENS // 2, return_indices=True)
    _grid(axes, 8, x[0], _own(x[0]), "tokens")
    _arrow(axes, 83)
    _grid(axes, 108, shifted[0], first[0], "shifted")
    _arrow(axes, 183)
    _grid(axes, 208, y[0], then[0], "pairs sorted")
    for n in range(2, TOKENS, 2):
        height = _TOP + n * _CELL_HEIGHT - 1
        axes.plot([205, 209 + CHANNELS * _CELL_WIDTH], [height] * 2, color=GRAY, linewidth=1.5)


def _sliceformer(axes: Axes) -> None:
    x = _tokens()
    y, index = rm.ops.group_sort(x, order="ascending", return_indices=True)
    _grid(axes, 40, x[0], _own(x[0]), "tokens")
    _arrow(axes, 127, 36)
    _grid(axes, 178, y[0], index[0], "channels sorted")


def _tssa(axes: Axes) -> None:
    heads, x = 2, _tokens()
    w = x.unflatten(2, (heads, -1)).transpose(1, 2)
    y, membership = rm.ops.token_statistics(w, torch.ones(heads), return_membership=True)
    scaled = -y.transpose(1, 2).flatten(2)
    shares = membership[0].T
    _grid(axes, 8, x[0], _own(x[0]), "tokens")
    _arrow(axes, 84)
    _grid(axes, 126, shares, _own(shares), "share of 2 heads")
    _arrow(axes, 182)
    _grid(axes, 208, scaled[0] / scaled.max(), _own(x[0]), "scaled")


def _node(axes: Axes, x: float, y: float, token: int, *, ringed: bool = False) -> None:
    style = {"edgecolor": INK, "linewidth": 2} if ringed else {"linewidth": 0}
    axes.add_patch(
        Circle((x, y), 6.5, facecolor=COLORS[token % len(COLORS)], zorder=3, clip_on=False, **style)
    )
    _number(axes, x, y, token)


def _ways(axes: Axes, ends: tuple[float, float], heights: Sequence[float],
          ways: Sequence[tuple[int, int, float]], reached: set[int]) -> None:  # fmt: skip
    """Draw lines (token, token, width) between two columns; lines of reached tokens on top."""
    for a, b, width in sorted(ways, key=lambda way: way[0] in reached):
        color = BLUE if a in reached else FAINT
        axes.plot(ends, [heights[a], heights[b]], color=color, linewidth=width, zorder=1)


def _butterfly(axes: Axes) -> None:
    """Draw the groups of two layers and the tokens that token 4 reaches."""
    length, places = BLOCK**2, (50.0, 145.0, 240.0)
    heights = [_TOP + 2 + 14 * n for n in range(length)]
    reached = {length // 2}
    columns = [set(reached)]
    for layer, stride in enumerate(rm.ops.butterfly_strides(length, BLOCK)):
        groups = rm.ops.butterfly_split(torch.arange(length)[None], BLOCK, stride)[0].tolist()
        pairs = [(a, b) for group in groups for a in group for b in group]
        ways = [(a, b, 2.0 if a in reached else 1.0) for a, b in pairs]
        ends = places[layer], places[layer + 1]
        _ways(axes, ends, heights, ways, reached)
        _text(axes, sum(ends) / 2, _TOP + 131, f"groups, stride {stride}")
        reached |= {b for a, b in pairs if a in reached}
        columns.append(set(reached))
    for place, marked in zip(places, columns, strict=True):
        for n in range(length):
            _node(axes, place, heights[n], n, ringed=n in marked)


def _sinkhorn(axes: Axes) -> None:
    """Draw four blocks, the balanced matrix that sorts them, and the attended blocks."""
    draws = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 4, generator=draws)
    matrix = rm.ops.gumbel_sinkhorn(scores, 8, temperature=0.25)
    for block in range(4):
        y = _TOP + block * 2 * _CELL_HEIGHT
        taken = int(matrix[block].argmax())
        _box(axes, 14, y, block, f"block {block}")
        _box(axes, 174, y, block, f"{block}")
        _text(axes, 224, y + 13, "+")
        _box(axes, 230, y, taken, f"{taken}", opacity=0.35 + 0.65 * float(matrix[block, taken]))
        for source in range(4):
            x = 86 + 16 * source
            _cell(axes, x, y + 6, 14, 16, facecolor=CELL)
            _cell(axes, x, y + 6, 14, 16, facecolor="#24292f", alpha=float(matrix[block, source]))
    below = _TOP + TOKENS * _CELL_HEIGHT + 11
    for x, words in {40: "tokens", 118: "sorting matrix", 226: "own + sorted block"}.items():
        _text(axes, x, below, words)


def _box(axes: Axes, x: float, y: float, block: int, words: str, opacity: float = 1.0) -> None:
    width, height = 52 if len(words) > 1 else 44, 2 * _CELL_HEIGHT - 4
    _cell(axes, x, y, width, height, facecolor=COLORS[block], alpha=opacity)
    _number(axes, x + width / 2, y + height / 2, words)


def _softmax(axes: Axes) -> None:
    """Draw a line between every two tokens; its width is the weight."""
    x = _tokens()[0]
    weights = torch.softmax(4 * x @ x.T, dim=-1)
    heights = [_TOP + 4 + 16 * n for n in range(TOKENS)]
    ways = [(n, m, 0.4 + 6 * float(w)) for n in range(TOKENS) for m, w in enumerate(weights[n])]
    _ways(axes, (230, 60), heights, ways, {4})
    for place, words in ((60, "tokens"), (230, "mixed")):
        _text(axes, place, _TOP + 131, words)
        for n in range(TOKENS):
            _node(axes, place, heights[n], n, ringed=n == 4 and words == "mixed")


PANELS: Mapping[str, Panel] = {
    "csp": Panel(
        "CSP: shift, then sort groups",
        "each channel moves by its own step",
        _csp,
        "Eight tokens of four channels. Each channel is shifted in a circle by its own step; then "
        "the values of each pair of neighbors are put into the order of the first channel.",
    ),
    "sliceformer": Panel(
        "Sliceformer: sort",
        "every channel, over all tokens",
        _sliceformer,
        "Eight tokens of four channels. Every channel is sorted by its values over all tokens, so "
        "that a new token has values of several old tokens.",
    ),
    "tssa": Panel(
        "TSSA: token statistics",
        "tokens exchange sums only",
        _tssa,
        "Eight tokens of four channels. Two heads share every token; each value stays in its "
        "place and is scaled by its head's share and second moment over the tokens. The minus "
        "sign of the output is left out.",
    ),
    "butterfly": Panel(
        "Butterfly: groups with strides",
        "small groups; two layers reach all tokens",
        _butterfly,
        "Nine tokens in groups of three. In the first layer the groups are neighbors, in the "
        "second they are three apart: token 4 has then reached every token.",
    ),
    "sinkhorn": Panel(
        "Sinkhorn: sort blocks, softly",
        "attend to the own and one sorted block",
        _sinkhorn,
        "Eight tokens in four blocks. A balanced matrix sorts the blocks; "
        "each block attends to itself and to the block that the matrix sorts next to it.",
    ),
    "softmax": Panel(
        "Softmax: the baseline",
        "every token with every other: N x N",
        _softmax,
        "Eight tokens before and after. Every new token is a weighted sum of all old tokens, with "
        "one weight for each of the 64 pairs.",
    ),
}


def figure_of(names: Sequence[str], columns: int) -> Figure:
    """Draw panels side by side."""
    rows = -(-len(names) // columns)
    width, height = _GAP + columns * (_WIDTH + _GAP), _GAP + rows * (_HEIGHT + _GAP)
    figure = Figure((width / 72, height / 72))
    for place, name in enumerate(names):
        row, column = divmod(place, columns)
        left, top = _GAP + column * (_WIDTH + _GAP), _GAP + row * (_HEIGHT + _GAP)
        bottom = height - top - _HEIGHT
        axes = figure.add_axes(
            (left / width, bottom / height, _WIDTH / width, _HEIGHT / height), facecolor=PANEL
        )
        axes.set(xlim=(0, _WIDTH), ylim=(_HEIGHT, 0), xticks=[], yticks=[])
        axes.spines[:].set_color(GRID)
        axes.text(12, 19, PANELS[name].title, size=11, fontweight="bold", va="center")
        axes.text(12, 39, PANELS[name].words, va="center")
        PANELS[name].draw(axes)
    return figure


def drawing(names: Sequence[str], columns: int, scale: float = 1.0) -> str:
    """Draw panels as SVG."""
    alt = " ".join(f"{PANELS[name].title}. {PANELS[name].alt}" for name in names)
    with mpl.rc_context(STYLE):
        return svg(figure_of(names, columns), alt, scale)


def files() -> dict[pathlib.Path, str]:
    """Return the drawings as SVG."""
    return {
        ASSETS / "families.svg": drawing(list(PANELS), 3),
        ASSETS / "families-narrow.svg": drawing(list(PANELS), 1),
        **{ASSETS / f"{name}.svg": drawing([name], 1, scale=1.6) for name in PANELS},
    }
