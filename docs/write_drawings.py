"""Draws docs/drawings/*.svg: what each family does to tokens, computed by its own operators.

A panel shows real tokens before and after: where every value came from and how large it is are
the operators' own answers, not a sketch. Colours are those of Okabe and Ito, which the colour-blind
tell apart, and a number stands wherever a colour does. Every picture has its own ground, light or
dark as the reader's system, and so is legible on any page.

    python docs/write_drawings.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import torch
from torch import Tensor

import rifflemix as rm

FOLDER = Path(__file__).resolve().parent / "drawings"
TOKENS, CHANNELS, BLOCK = 8, 4, 3
_COLOURS = ("e69f00", "56b4e9", "009e73", "f0e442", "0072b2", "d55e00", "cc79a7", "999999")
_WIDTH, _HEIGHT, _GAP = 290, 210, 10
_TOP, _CELL_WIDTH, _CELL_HEIGHT = 58, 18, 15


@dataclass(frozen=True)
class Panel:
    """One family: its heading, a line of words, the drawing, and the drawing in words."""

    title: str
    words: str
    draw: Callable[[], str]
    alt: str


def _tokens() -> Tensor:
    """(1, N, C) values between 0.1 and 1, the same in every panel and on every machine."""
    draws = torch.Generator().manual_seed(7)
    return 0.1 + 0.9 * torch.rand(1, TOKENS, CHANNELS, generator=draws)


def _colour(token: int) -> str:
    return f"#{_COLOURS[token % len(_COLOURS)]}"


def _text(x: float, y: float, words: object, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(str(words))}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, width: float = 1.0) -> str:
    return (
        f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
        f'stroke-width="{width:.2f}"/>'
    )


def _arrow(x: float, width: float = 18) -> str:
    """Between two grids, at the middle of their height."""
    y = _TOP + TOKENS * _CELL_HEIGHT / 2
    return (
        f'<path class="arrow" d="M {x:g} {y:g} h {width:g} m -5 -4 l 5 4 l -5 4" fill="none" '
        'stroke-width="1.6"/>'
    )


def _grid(x: float, values: Tensor, sources: Tensor, words: str) -> str:
    """Tokens down, channels across. The bar is the value; colour and number are its first token."""
    parts = []
    for n in range(len(values)):
        for c in range(values.shape[1]):
            token, left, y = int(sources[n, c]), x + c * _CELL_WIDTH, _TOP + n * _CELL_HEIGHT
            width = (_CELL_WIDTH - 2) * float(values[n, c])
            parts.append(
                f'<rect class="cell" x="{left:g}" y="{y:g}" width="{_CELL_WIDTH - 2}" '
                f'height="{_CELL_HEIGHT - 2}"/><rect x="{left:g}" y="{y:g}" width="{width:.1f}" '
                f'height="{_CELL_HEIGHT - 2}" fill="{_colour(token)}"/>'
                + _text(left + 8, y + 10, token, "number")
            )
    middle = x + values.shape[1] * _CELL_WIDTH / 2 - 1
    parts.append(_text(middle, _TOP + TOKENS * _CELL_HEIGHT + 15, words, "note"))
    return "".join(parts)


def _own(values: Tensor) -> Tensor:
    """Every value comes from its own token."""
    return torch.arange(len(values))[:, None].expand_as(values)


def _rules(x: float, every: int) -> str:
    """Lines between groups of tokens."""
    right = x + CHANNELS * _CELL_WIDTH
    return "".join(
        _line(x - 3, y, right + 1, y, "rule", 1.5)
        for n in range(every, TOKENS, every)
        for y in [_TOP + n * _CELL_HEIGHT - 1]
    )


def _csp() -> str:
    x = _tokens()
    steps = rm.ops.shift_steps("linear", TOKENS, CHANNELS)
    shifted, first = rm.ops.circular_shift(x, steps, return_indices=True)
    y, then = rm.ops.channel_permute(x, steps, TOKENS // 2, return_indices=True)
    return (
        _grid(8, x[0], _own(x[0]), "tokens")
        + _arrow(83)
        + _grid(108, shifted[0], first[0], "shifted")
        + _arrow(183)
        + _grid(208, y[0], then[0], "pairs sorted")
        + _rules(208, 2)
    )


def _sliceformer() -> str:
    x = _tokens()
    y, index = rm.ops.group_sort(x, order="ascending", return_indices=True)
    return (
        _grid(40, x[0], _own(x[0]), "tokens")
        + _arrow(127, 36)
        + _grid(178, y[0], index[0], "channels sorted")
    )


def _tssa() -> str:
    heads, x = 2, _tokens()
    w = x.unflatten(2, (heads, -1)).transpose(1, 2)
    y, membership = rm.ops.token_statistics(w, torch.ones(heads), return_membership=True)
    damped = -y.transpose(1, 2).flatten(2)
    shares = membership[0].T
    return (
        _grid(8, x[0], _own(x[0]), "tokens")
        + _arrow(84)
        + _grid(126, shares, _own(shares), "share of 2 heads")
        + _arrow(182)
        + _grid(208, damped[0] / damped.max(), _own(x[0]), "scaled")
    )


def _node(x: float, y: float, token: int, *, ringed: bool = False) -> str:
    kind = "ring" if ringed else "node"
    return (
        f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="6.5" fill="{_colour(token)}"/>'
        + _text(x, y + 3.5, token, "number")
    )


def _butterfly() -> str:
    """Who attends to whom in each layer; the ways of token 4 stand out."""
    length, places = BLOCK**2, (50.0, 145.0, 240.0)
    heights = [_TOP + 2 + 14 * n for n in range(length)]
    reached, parts, nodes = {length // 2}, [], []
    for layer, stride in enumerate(rm.ops.butterfly_strides(length, BLOCK)):
        tokens = torch.arange(length)[None]
        groups = rm.ops.butterfly_split(tokens, BLOCK, stride)[0].tolist()
        left, right = places[layer], places[layer + 1]
        ways = [(a, b) for group in groups for a in group for b in group]
        for a, b in sorted(ways, key=lambda way: way[0] in reached):
            shown = ("way", 2.0) if a in reached else ("faint", 1.0)
            parts.append(_line(left, heights[a], right, heights[b], *shown))
        parts.append(_text((left + right) / 2, _TOP + 135, f"groups, stride {stride}", "note"))
        nodes += [_node(left, heights[n], n, ringed=n in reached) for n in range(length)]
        reached |= {b for a, b in ways if a in reached}
    nodes += [_node(places[-1], heights[n], n, ringed=n in reached) for n in range(length)]
    return "".join(parts + nodes)


def _sinkhorn() -> str:
    """Four blocks, the balanced matrix that sorts them, and what every block attends to."""
    draws = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 4, generator=draws)
    matrix = rm.ops.gumbel_sinkhorn(scores, 8, temperature=0.25)
    tall, parts = 2 * _CELL_HEIGHT, []
    for block in range(4):
        y = _TOP + block * tall
        parts.append(_box(14, y, block, f"block {block}") + _box(174, y, block, f"{block}"))
        taken = int(matrix[block].argmax())
        share = float(matrix[block, taken])
        parts.append(_box(230, y, taken, f"{taken}", opacity=0.35 + 0.65 * share))
        parts.append(_text(225, y + 18, "+"))
        for source in range(4):
            x, weight = 86 + 16 * source, float(matrix[block, source])
            parts.append(
                f'<rect class="cell" x="{x}" y="{y + 6}" width="14" height="16"/>'
                f'<rect class="ink" x="{x}" y="{y + 6}" width="14" height="16" '
                f'opacity="{weight:.2f}"/>'
            )
    below = _TOP + TOKENS * _CELL_HEIGHT + 15
    words = {40: "tokens", 118: "sorting matrix", 226: "own + sorted block"}
    return "".join(parts) + "".join(_text(x, below, word, "note") for x, word in words.items())


def _box(x: float, y: float, block: int, words: str, opacity: float = 1.0) -> str:
    width = 52 if len(words) > 1 else 44
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{2 * _CELL_HEIGHT - 4}" rx="3" '
        f'fill="{_colour(block)}" opacity="{opacity:.2f}"/>'
        + _text(x + width / 2, y + 17, words, "number")
    )


def _softmax() -> str:
    """Every token with every other; the line's width is the weight."""
    x = _tokens()[0]
    weights = torch.softmax(4 * x @ x.T, dim=-1)
    heights = [_TOP + 4 + 16 * n for n in range(TOKENS)]
    lines = [
        _line(230, heights[n], 60, heights[m], "way" if n == 4 else "faint", 0.4 + 6 * float(w))
        for n in sorted(range(TOKENS), key=lambda n: n == 4)
        for m, w in enumerate(weights[n])
    ]
    nodes = [_node(p, heights[n], n, ringed=n == 4 and p > 60) for p in (60, 230) for n in range(8)]
    notes = _text(60, _TOP + 135, "tokens", "note") + _text(230, _TOP + 135, "mixed", "note")
    return "".join(lines + nodes) + notes


PANELS: Mapping[str, Panel] = {
    "csp": Panel(
        "CSP: shift, then sort groups",
        "each channel moves by its own step",
        _csp,
        "Eight tokens of four channels. Each channel is shifted in a circle by its own step; then "
        "the values of each pair of neighbours are put into the order of the first channel.",
    ),
    "sliceformer": Panel(
        "Sliceformer: sort",
        "every channel, over all tokens",
        _sliceformer,
        "Eight tokens of four channels. Every channel is sorted by its values over all tokens, so "
        "that a new token holds values of several old ones.",
    ),
    "tssa": Panel(
        "TSSA: token statistics",
        "no token meets another, only their sums",
        _tssa,
        "Eight tokens of four channels. Two heads share every token; each value stays in its "
        "place and is scaled by its head's share and second moment over the tokens. The "
        "output's minus sign is left out.",
    ),
    "butterfly": Panel(
        "Butterfly: groups with strides",
        "few to attend to; two layers reach all",
        _butterfly,
        "Nine tokens in groups of three. In the first layer the groups are neighbours, in the "
        "second they are three apart: token 4 has then reached every token.",
    ),
    "sinkhorn": Panel(
        "Sinkhorn: sort blocks, softly",
        "attend to the own and one sorted block",
        _sinkhorn,
        "Eight tokens in four blocks. A balanced matrix sorts the blocks; "
        "each block attends to itself and to the block that was sorted beside it.",
    ),
    "softmax": Panel(
        "Softmax: what they replace",
        "every token with every other: N x N",
        _softmax,
        "Eight tokens before and after. Every new token is a weighted sum of all old ones, with "
        "one weight for each of the 64 pairs.",
    ),
}
_SHEET = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
 width="{shown_width}" height="{shown_height}" aria-label={alt}>
<style>
 .ground {{ fill: #ffffff; }} .panel {{ fill: #f6f8fa; stroke: #d0d7de; }}
 text {{ font: 12px system-ui, sans-serif; fill: #1f2328; text-anchor: middle; }}
 .title {{ font-weight: 600; font-size: 14px; text-anchor: start; }}
 .words {{ text-anchor: start; }}
 .note {{ font-size: 11px; }}
 .number {{ fill: #000000; font-size: 9px; font-weight: 600; }}
 .cell {{ fill: #dde3ea; }} .ink {{ fill: #24292f; }} .arrow, .rule {{ stroke: #57606a; }}
 .faint {{ stroke: #c3cad2; }} .way {{ stroke: #0072b2; }}
 .ring {{ stroke: #1f2328; stroke-width: 2; }}
 @media (prefers-color-scheme: dark) {{
  .ground {{ fill: #0d1117; }} .panel {{ fill: #161b22; stroke: #30363d; }}
  text {{ fill: #e6edf3; }}
  .cell {{ fill: #d0d7de; }} .ink {{ fill: #0d1117; }} .arrow, .rule {{ stroke: #b1bac4; }}
  .faint {{ stroke: #3d444d; }} .way {{ stroke: #56b4e9; }} .ring {{ stroke: #ffffff; }}
  .number {{ fill: #000000; }}
 }}
</style>
<rect class="ground" width="{width}" height="{height}" rx="8"/>
{body}
</svg>
"""


def drawing(names: Sequence[str], columns: int, scale: float = 1.0) -> str:
    """Panels side by side, as SVG text; the same operators give the same text."""
    rows = -(-len(names) // columns)
    parts = []
    for place, name in enumerate(names):
        row, column = divmod(place, columns)
        x, y = _GAP + column * (_WIDTH + _GAP), _GAP + row * (_HEIGHT + _GAP)
        panel = PANELS[name]
        parts.append(
            f'<g transform="translate({x} {y})"><rect class="panel" width="{_WIDTH}" '
            f'height="{_HEIGHT}" rx="6"/>{_text(12, 24, panel.title, "title")}'
            f"{_text(12, 43, panel.words, 'words')}{panel.draw()}</g>"
        )
    width, height = _GAP + columns * (_WIDTH + _GAP), _GAP + rows * (_HEIGHT + _GAP)
    return _SHEET.format(
        width=width,
        height=height,
        shown_width=round(scale * width),
        shown_height=round(scale * height),
        alt=quoteattr(" ".join(f"{PANELS[name].title}. {PANELS[name].alt}" for name in names)),
        body="\n".join(parts),
    )


def drawings() -> dict[str, str]:
    """File name -> text."""
    return {
        "families.svg": drawing(list(PANELS), 3),
        "families-narrow.svg": drawing(list(PANELS), 1),
        **{f"{name}.svg": drawing([name], 1, scale=1.6) for name in PANELS},
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
