"""Hooks of mkdocs: copy every file of the repository that a page links to into the site.

The copy has the path of the file in the repository. A link to a folder becomes plain words, and a
link to a notebook leads to the page of the notebook.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

WORKER = "assets/iframe-worker.js"  # as in mkdocs.yml
REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = "docs/"
ALONG = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_EQUATION = re.compile(r"```math\n(.*)```", re.DOTALL)
_FENCE = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add pages from outside docs/, and all files that pages link to there."""
    worker = Path(__file__).parent / "theme" / "iframe-worker.js"
    files.append(File.generated(config, WORKER, abs_src_path=str(worker)))
    for path in ALONG:
        files.append(_along(config, path))
    for notebook in sorted((REPOSITORY / DOCS).glob("notebooks/*.ipynb")):
        place = _in_site(notebook.relative_to(REPOSITORY).as_posix())
        files.append(File.generated(config, place, content=page_of(notebook)))
    for page in list(files.documentation_pages()):
        source = _in_repository(page.src_uri)
        for _, _, link, _ in _LINK.findall(_FENCE.sub("", page.content_string)):
            target = _target(source, link)
            is_new = files.get_file_from_path(_in_site(target)) is None
            if is_new and (REPOSITORY / target).is_file():
                files.append(_along(config, target))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of a page for its place in the site."""
    source = _in_repository(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        mark, words, link, anchor = match.groups(default="")
        target = _target(source, link)
        if (REPOSITORY / target).is_dir():
            return words
        return f"{mark}[{words}]({posixpath.relpath(_in_site(target), here or '.')}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(_drawn(part) if i % 2 else _LINK.sub(led, part) for i, part in enumerate(parts))


def _drawn(fence: str) -> str:
    """Convert an equation to MathML, since browsers draw it without a script."""
    equation = _EQUATION.fullmatch(fence)
    if equation is None:
        return fence
    return f'<div class="equation">{convert(equation[1], display="block")}</div>'


def _target(source: str, link: str) -> str:
    """Return the path in the repository that a link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _in_repository(page: str) -> str:
    return page if page in ALONG else DOCS + page


def _in_site(path: str) -> str:
    return re.sub(r"\.ipynb$", ".md", path.removeprefix(DOCS))


def _along(config: Any, path: str) -> File:
    return File.generated(config, path, abs_src_path=str(REPOSITORY / path))


# Notebooks as Markdown pages: text, code and outputs.


def page_of(path: Path) -> str:
    """Convert a notebook to a page with a link to download it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    title, *rest = (part for cell in cells for part in _parts(cell))
    download = (
        f'<a href="{path.name}" download>Download this notebook</a> to run and change it. '
        "Its cells computed all outputs of this page."
    )
    heading, _, words = title.partition("\n")
    return "\n\n".join([heading, download, words.strip(), *rest]) + "\n"


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the text or code of a cell, and its outputs; pictures with their text alternative."""
    source = _text(cell["source"])
    yield source if cell["cell_type"] == "markdown" else _fence(source, ".python")
    for output in cell.get("outputs", ()):
        if output["output_type"] == "stream":
            yield _fence(_text(output["text"]), ".text .output")
        elif "image/png" in output["data"]:
            words = escape(output["metadata"]["image/png"]["alt"])
            picture = _text(output["data"]["image/png"]).strip()
            yield f'<img alt="{words}" src="data:image/png;base64,{picture}">'
        else:
            yield _text(output["data"]["text/markdown"])


def _fence(text: str, classes: str) -> str:
    return f"```{{{classes}}}\n{text.rstrip()}\n```"


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
