"""Drawings of the mixer families on eight or nine tokens, computed by the operators.

The operators compute every value and its source token; no drawing is a sketch. Colors are from
Okabe and Ito, and a number repeats each color.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import matplotlib as mpl
import torch
from charts import BLUE, CELL, FAINT, GRAY, GRID, INK, PANEL, STYLE, svg
from common import ASSETS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from torch import Tensor, nn

import rifflemix as rm

TOKENS, CHANNELS, BLOCK = 8, 4, 3
# Some differ by one from the colors of charts, which change in the dark form.
COLORS = ("#e69f00", "#56b4e9", "#009e74", "#f0e442", "#0073b2", "#d55e01", "#cc79a8", "#999999")
_WIDTH, _GAP = 290, 10  # points
_TOP, _CELL_WIDTH, _CELL_HEIGHT = 58, 18, 15


@dataclass(frozen=True)
class Panel:
    """One family: heading, a line of words, the drawing, and its text alternative."""

    title: str
    words: str
    draw: Callable[[Axes], None]
    alt: str
    height: float  # points


PANELS: dict[str, Panel] = {}
FAMILIES = ("csp", "sliceformer", "tssa", "butterfly", "sinkhorn", "softmax")


def panel(
    title: str, words: str, height: float = 210
) -> Callable[[Callable[[Axes], None]], Callable[[Axes], None]]:
    """Register a drawing under the name of its function; its docstring is the alternative."""

    def register(draw: Callable[[Axes], None]) -> Callable[[Axes], None]:
        alt = " ".join((draw.__doc__ or "").split())
        PANELS[draw.__name__] = Panel(title, words, draw, alt, height)
        return draw

    return register


def _tokens() -> Tensor:
    """Draw (1, N, C) values between 0.1 and 1, the same on every machine."""
    draws = torch.Generator().manual_seed(7)
    return 0.1 + 0.9 * torch.rand(1, TOKENS, CHANNELS, generator=draws)


def _text(axes: Axes, x: float, y: float, words: str) -> None:
    axes.text(x, y, words, size=8.5, ha="center", va="center")


def _number(axes: Axes, x: float, y: float, number: object) -> None:
    """Write a token's number in black, in the light and the dark form."""
    axes.text(x, y, str(number), size=8, ha="center", va="center_baseline", color="#000000",
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


@panel("CSP: shift, then sort groups", "each channel moves by its own step")
def csp(axes: Axes) -> None:
    """Eight tokens of four channels. Each channel is shifted in a circle by its own step;
    then the values of each pair of neighbors are put into the order of the first channel.
    """
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


@panel("Sliceformer: sort", "every channel, over all tokens")
def sliceformer(axes: Axes) -> None:
    """Eight tokens of four channels. Every channel is sorted by its values over all tokens,
    so that a new token has values of several old tokens.
    """
    x = _tokens()
    y, index = rm.ops.group_sort(x, order="ascending", return_indices=True)
    _grid(axes, 40, x[0], _own(x[0]), "tokens")
    _arrow(axes, 127, 36)
    _grid(axes, 178, y[0], index[0], "channels sorted")


@panel("TSSA: token statistics", "tokens exchange sums only")
def tssa(axes: Axes) -> None:
    """Eight tokens of four channels. Two heads share every token; each value stays in its
    place and is scaled by its head's share and second moment over the tokens. The minus
    sign of the output is left out.
    """
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


@panel("Butterfly: groups with strides", "small groups; two layers reach all tokens")
def butterfly(axes: Axes) -> None:
    """Nine tokens in groups of three. In the first layer the groups are neighbors, in the
    second they are three apart: token 4 has then reached every token.
    """
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


@panel("Sinkhorn: sort blocks, softly", "attend to the own and one sorted block")
def sinkhorn(axes: Axes) -> None:
    """Eight tokens in four blocks. A balanced matrix sorts the blocks; each block attends
    to itself and to the block that the matrix sorts next to it.
    """
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


@panel("Softmax: the baseline", "every token with every other: N x N")
def softmax(axes: Axes) -> None:
    """Eight tokens before and after. Every new token is a weighted sum of all old tokens,
    with one weight for each of the 64 pairs.
    """
    x = _tokens()[0]
    weights = torch.softmax(4 * x @ x.T, dim=-1)
    heights = [_TOP + 4 + 16 * n for n in range(TOKENS)]
    ways = [(n, m, 0.4 + 6 * float(w)) for n in range(TOKENS) for m, w in enumerate(weights[n])]
    _ways(axes, (230, 60), heights, ways, {4})
    for place, words in ((60, "tokens"), (230, "mixed")):
        _text(axes, place, _TOP + 131, words)
        for n in range(TOKENS):
            _node(axes, place, heights[n], n, ringed=n == 4 and words == "mixed")


_ROW, _BOX = 28, 17  # points
_BLOCK = (
    "tokens: (B, N, C)", "norm", "token mixer", "+", "norm", "MLP", "+", "tokens: (B, N, C)"
)  # fmt: skip


def _stack(axes: Axes, x: float, width: float, words: Sequence[str], mixer: str) -> None:
    """Draw boxes with words downwards, joined by arrows; the box of the mixer has a color."""
    for row, text in enumerate(words):
        y = _TOP + row * _ROW
        color = COLORS[1] if text == mixer else CELL
        left, wide = (x + width / 2 - 10, 20.0) if text == "+" else (x, width)
        _cell(axes, left, y, wide, _BOX, facecolor=color)
        axes.text(x + width / 2, y + _BOX / 2, text, size=8.5, ha="center", va="center_baseline",
                  color="#000000")  # fmt: skip
        if row:
            ends = (x + width / 2, y), (x + width / 2, y - _ROW + _BOX)
            axes.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": GRAY})


@panel(
    "A mixer in a transformer block",
    "it takes the place of the attention",
    _TOP + len(_BLOCK) * _ROW,
)
def block(axes: Axes) -> None:
    """Tokens pass a norm, the token mixer and a sum with the skip connection, then a norm,
    an MLP and another sum. Only the mixer moves values between tokens; all other parts
    process each token alone.
    """
    _stack(axes, 75, 120, _BLOCK, "token mixer")
    for first, last, words in ((0, 3, "between\ntokens"), (3, 6, "each token\nalone")):
        top, bottom = (_TOP + row * _ROW + _BOX / 2 for row in (first, last))
        start = 75 if first == 0 else 125
        axes.plot([start, 50, 50], [top, top, bottom], color=GRAY, linewidth=1)
        axes.annotate("", (125, bottom), (50, bottom), arrowprops={"arrowstyle": "->",
                                                                   "color": GRAY})  # fmt: skip
        axes.text(205, (top + bottom) / 2, words, va="center")


def _sizes(model: nn.Module, words: str) -> list[str]:
    """Return the parts of the first layer and their numbers of parameters."""
    found = {name: sum(p.numel() for p in part.parameters())
             for name, part in model.get_submodule("layers.0").named_children()}  # fmt: skip
    found = {words: found.pop("self_attn"), "MLP": found["linear1"] + found["linear2"]}
    return [f"{name}: {count:,}" for name, count in found.items()]


@panel(
    'replace_attention(model, "tssa")',
    "one of 4 layers, before and after; 1,024 tokens",
    _TOP + 6 * _ROW + 8,
)
def swap(axes: Axes) -> None:
    """A layer before and after. The attention is replaced by a mixer with fewer parameters
    and fewer products; the norms, the MLP and the skip connections stay.
    """
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
    before = _sizes(model, "attention")
    report = rm.replace_attention(model, "tssa")
    after = _sizes(model, "tssa")
    counts = (report.parameters_before, report.macs_before), (report.parameters_after,
                                                              report.macs_after)  # fmt: skip
    for x, boxes, (parameters, macs) in zip((10, 155), (before, after), counts, strict=True):
        stack = ["tokens", boxes[0], "+ and norm", boxes[1], "+ and norm"]
        _stack(axes, x, 125, stack, after[0])
        words = f"model: {parameters:,} parameters\nmixing: {macs / 1e6:,.0f} M products"
        axes.text(x + 62, _TOP + 5 * _ROW + 8, words, ha="center", va="center", size=8)


def figure_of(names: Sequence[str], columns: int) -> Figure:
    """Draw panels side by side."""
    panels = [PANELS[name] for name in names]
    rows, high = -(-len(names) // columns), max(panel.height for panel in panels)
    width, height = _GAP + columns * (_WIDTH + _GAP), _GAP + rows * (high + _GAP)
    figure = Figure((width / 72, height / 72))
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        left, top = _GAP + column * (_WIDTH + _GAP), _GAP + row * (high + _GAP)
        bottom = height - top - high
        axes = figure.add_axes((left / width, bottom / height, _WIDTH / width, high / height))
        axes.set(xlim=(0, _WIDTH), ylim=(high, 0), xticks=[], yticks=[], facecolor=PANEL)
        axes.spines[:].set_color(GRID)
        axes.text(12, 19, panel.title, size=11, fontweight="bold", va="center")
        axes.text(12, 39, panel.words, va="center")
        panel.draw(axes)
    return figure


@mpl.rc_context(STYLE)
def drawing(names: Sequence[str], columns: int, scale: float = 1.0) -> str:
    """Draw panels as SVG."""
    panels = [PANELS[name] for name in names]
    alt = " ".join(f"{panel.title}. {panel.alt}" for panel in panels)
    return svg(figure_of(names, columns), alt, scale)


def files() -> dict[pathlib.Path, str]:
    """Return the drawings as SVG."""
    return {
        ASSETS / "families.svg": drawing(FAMILIES, 2),
        ASSETS / "families-narrow.svg": drawing(FAMILIES, 1),
        **{ASSETS / f"{name}.svg": drawing([name], 1, scale=1.6) for name in PANELS},
    }
