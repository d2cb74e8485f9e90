"""Extension of griffe: show the `Example` of a docstring as highlighted code.

griffe knows the plural `Examples` only. It shows other titles as a note.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_TITLE = re.compile(r"^Example:$", re.MULTILINE)


class ExampleSections(Extension):
    """Rename the section before griffe parses the docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Keep the title of the section in the singular."""
        if obj.docstring:
            obj.docstring.value = _TITLE.sub("Examples: Example:", obj.docstring.value)
