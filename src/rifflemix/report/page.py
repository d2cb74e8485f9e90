"""Parts of a self-contained HTML page: nothing is fetched from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #595959; --line: #d5d5d5;
  --page: #ffffff; --band: #f4f4f4; --own: #0060a8; --other: #c4c4c4; --mark: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --soft: #b0b0b0; --line: #444444;
  --page: #161616; --band: #222222; --own: #6cb6ff; --other: #4d4d4d; --mark: #ffb454; } }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p.lead, caption, figcaption { color: var(--soft); }
p.partial { border-left: .3rem solid var(--mark); padding-left: .8rem; font-weight: 600; }
.scroll { overflow-x: auto; } .scroll + .scroll { margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; padding-top: .4rem; font-size: .9rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; } td.text { white-space: normal; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
thead th { background: var(--band); vertical-align: bottom; white-space: nowrap; }
tbody th { font-weight: 500; }
td.best { font-weight: 700; }
figure { margin: 0; } img { max-width: 100%; height: auto; background: #ffffff;
  border-radius: .4rem; border: 1px solid var(--line); }
.panels { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); }
.panels p { margin: 0; font-size: .8rem; font-weight: 600; line-height: 1.25; }
.panels > div { display: flex; flex-direction: column; justify-content: end; }
.bubbles { max-width: 40rem; } .bubbles ol { margin: .3rem 0; font-size: .9rem; }
.ours { display: block; color: var(--own); } .bubbles figcaption { font-size: .9rem; }
svg { width: 100%; height: auto; font: 10px system-ui, sans-serif; fill: var(--soft); }
svg .name { font-size: 12px; font-weight: 600; fill: var(--ink); }
svg .axis { fill: none; stroke: var(--soft); stroke-width: 1; }
svg polyline { fill: none; stroke-width: 1.1; }
svg .other { stroke: var(--other); stroke-width: .7; } svg .own { stroke: var(--own);
  stroke-width: 1.8; }
pre { overflow-x: auto; background: var(--band); padding: .8rem; border-radius: .4rem;
  font-size: .85rem; }
summary { cursor: pointer; }
"""


def page(title: str, sections: Iterable[str]) -> str:
    """The whole page around its sections."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, body: str) -> str:
    """A section under a heading that a link can name."""
    name = anchor(heading)
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(heading)}</h2>{body}</section>'
    )


def anchor(heading: str) -> str:
    """What a link to a section's heading names."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def table(
    headers: list[str], rows: list[str], caption: str, text_columns: Iterable[int] = ()
) -> str:
    """A table from its headers and rows of HTML; the first column and `text_columns` are texts."""
    texts = set(text_columns)
    head = "".join(
        f'<th scope="col"{cell_class(False, text=index in texts)}>{escape(header)}</th>'
        for index, header in enumerate(headers)
    )
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def cell_class(best: bool, *, text: bool) -> str:
    """The class attribute of a cell."""
    names = [name for name, on in (("best", best), ("text", text)) if on]
    return f' class="{" ".join(names)}"' if names else ""


def bullets(sentences: Iterable[str]) -> str:
    """A list of sentences, escaped."""
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"
