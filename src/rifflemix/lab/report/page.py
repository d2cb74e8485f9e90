"""Self-contained HTML pages from templates with escaped values.

All HTML is in `templates/`. Python code creates no HTML, and no template marks a value as safe.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rifflemix.errors import require_packages
from rifflemix.text import terminal_lines

if TYPE_CHECKING:
    from jinja2 import Environment

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
