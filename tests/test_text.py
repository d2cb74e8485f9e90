"""Untrusted texts cannot control a terminal or a Markdown page."""

from __future__ import annotations

import re
import unicodedata
from html import unescape

import pytest
from markdown_it import MarkdownIt

from rifflemix.errors import InputError
from rifflemix.text import (
    Markdown,
    bold,
    bullet_lines,
    code,
    link,
    markdown_text,
    plot_text,
    table_lines,
    terminal_text,
)

HOSTILE = (
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\rb", "a\nb\n\n# c", "\u202etxt.exe", "\u2066x",
    "\x9b2J", "a\u2028b", "\x00", "tab\tbed", "\udc80", "\ufeffx", "a|b", "a\\|b", "\\", "`code`",
    "``", "[bold]x[/bold]", "[a](https://example.org)", "![i](x.png)", "**b**", "_i_", "__b__",
    "a_b_c", "~~s~~", "<script>alert(1)</script>", "<!-- x", "&lt;", "$x$ and $y$", "# heading",
    "> quote", ">quote", "- item", "+ item", "* item", "1. item", "1) item", "---", "===", "",
    "***", "a\n---", "    indented", "[x]: https://example.org", "[^1]", "C:\\dir\\*",
    "50 % < 60 %", "x ]( y", "日本語 🙂",
)  # fmt: skip


def is_unsafe(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_terminal_text_is_one_line_without_control(text: str) -> None:
    shown = terminal_text(text)
    assert not any(map(is_unsafe, shown))
    shown.encode()
    assert terminal_text(shown) == shown
    assert not any(map(is_unsafe, str(InputError(text))))


def test_no_unsafe_character_is_printed() -> None:
    text = "".join(map(chr, range(0x11_0000)))
    assert not [
        hex(ord(c)) for c in terminal_text(text) if is_unsafe(c) and c not in "\u200c\u200d"
    ]


def test_readable_texts_are_not_changed() -> None:
    for text in ("softmax, 3 heads", "日本語 🙂", "naïve café", "100 % ± 2", "a[0] | b"):
        assert terminal_text(text) == text


def visible(html: str) -> str:
    """Return the text of HTML without tags except block tags."""
    assert not re.search(r"<(?!/?(?:p|h1|li|ul|table|thead|tbody|tr|th|td)\b)", html), html
    return unescape(re.sub(r"<[^>]*>", "", html)).strip("\n")


@pytest.fixture(scope="module")
def reader() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_markdown_shows_the_text_itself(text: str, reader: MarkdownIt) -> None:
    """Check headings, lists and tables: text is never markup."""
    shown = terminal_text(" ".join(text.split()))
    heading = reader.render(f"# x {markdown_text(text)} x")
    assert visible(heading).split() == f"x {shown} x".split()
    assert heading.count("<h1") == 1
    items = reader.render("\n".join(bullet_lines(["first", text, "last"])))
    assert items.count("<li>") == 3
    assert " ".join(visible(items).split()) == " ".join(f"first {shown} last".split())
    table = reader.render("\n".join(table_lines(["a", "b"], [[text, "1"], [bold("c"), "2"]])))
    assert table.count("<td>") == 4
    assert table.count("<tr>") == 3
    assert "<strong>c</strong>" in table
    cell = table.replace("<strong>c</strong>", "c").split("<td>")[1].split("</td>")[0]
    assert visible(cell).strip() == shown


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.strip()], ids=ascii)
def test_code_and_links_keep_the_text(text: str, reader: MarkdownIt) -> None:
    written = reader.render(f"x {code(text)} x")
    assert written.count("<code>") == 1
    inside = written.split("<code>")[1].split("</code>")[0]
    assert visible(inside).strip() == terminal_text(text).strip()
    target = reader.render(link(text, "a%20b"))
    assert target.startswith('<p><a href="a%20b">')
    assert target.endswith("</a></p>\n")


def test_markdown_is_escaped_once() -> None:
    assert markdown_text(markdown_text("*")) == "\\*"
    assert bold(Markdown("`x`")) == "**`x`**"


def test_lines_of_a_table() -> None:
    assert table_lines(["Name", "ms"], [["a|b", "1"], ("c", "2")], range(1, 2)) == [
        "| Name | ms |",
        "| --- | ---: |",
        "| a\\|b | 1 |",
        "| c | 2 |",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert table_lines(["Row", "Ours"], []) == ["| Row | Ours |", "| --- | --- |"]


def test_plots_do_not_parse_formulas() -> None:
    from matplotlib.figure import Figure

    from rifflemix.lab.report.page import figure_png

    figure = Figure()
    axes = figure.subplots()
    axes.set_title("$x$ costs $\\frac")
    axes.plot([1, 2], label="$\\notacommand$ \x1b")
    axes.legend()
    assert figure_png(figure) == figure_png(figure)
    assert plot_text(plot_text("$a\n$b\x1b")) == "\\$a\n\\$b\\x1b"
