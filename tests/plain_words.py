"""Count phrases that make sentences hard to read; the numbers may only fall.

    python tests/plain_words.py            compare with the limits, as `make lint` does
    python tests/plain_words.py --list     also print every phrase with its file and line
    python tests/plain_words.py --update   lower the limits to the numbers of today

CONTRIBUTING.md has the rules of style. The limits are phrases per folder, in plain_words.json.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_suffix(".json")
FOLDERS = ("src", "tests", "docs", "benchmarks", ".")
"""Folders with a limit each; "." has the pages next to README.md."""

PHRASES = {
    "what as a noun": r"(?:^|[.;:,(] ?)[Ww]hat (?:is|was|are|were|a|an|the|it|they|one|every|other"
    r"|may|people|comes?|goes|has|have|had|else|differs?|no)\b",
    "where for if or when": r"\bwhere (?:there|it|they|that|this|a|an|the|no|nothing|one|none"
    r"|these|those|either|such|some|many|not|nobody)\b",
    "things that speak": r"\b(?:says?|said|tells?|told|speaks?|(?:is|are) asked|knows? of)\b",
    "stand, lie, meet": r"\b(?:stands?|stood|lies|lay|meets?|lying|standing)\b",
    "that of": r"\b(?:that of|those of|of (?:its|their|one's) own|of ours|of theirs|of his|of hers"
    r"|one of (?:no|such))\b",
    "none as a noun": r"\b(?:is none|are none|none is|none are|nothing is|for none|of none|nobody"
    r"|none that|none of (?:its|them|these|those))\b",
    "old words": r"\b(?:anew|beside|but for|(?:so|as) many|likewise|commonest"
    r"|hand(?:s|ed)? (?:on|over)|puts? out|mend(?:s|ed)?|want of"
    r"|reckon(?:s|ed)?|whatever|alike|whose|wherever)\b",
    "which at the end": r", (?:(?:of|to|in|from) )?which\b",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each sentence-like string, comment or page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, re.sub(r"```.*?```|^\s*\|.*?$", _blank, source, flags=re.DOTALL | re.MULTILINE)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = (str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
            text = "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if text.count(" ") > 2:
            yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _blank(match: re.Match[str]) -> str:
    """Remove a block of code or a row of a table, and keep the numbers of the lines."""
    return "\n" * match.group().count("\n")


def found(folder: str) -> Iterator[str]:
    """Yield "FILE:LINE: KIND: phrase" for every phrase in a folder."""
    top = folder == "."
    files = ROOT.glob("*.md") if top else (ROOT / folder).rglob("*.[pm][yd]")
    for path in sorted(files):
        if path.name == "CHANGELOG.md" or path == Path(__file__).resolve():
            continue
        for line, text in texts(path):
            for kind, pattern in PHRASES.items():
                for match in re.finditer(pattern, text):
                    at = line + text.count("\n", 0, match.start())
                    yield f"{path.relative_to(ROOT)}:{at}: {kind}: {match.group().strip()}"


def main() -> int:
    """Compare the number of phrases with the limits; return the exit code."""
    parser = argparse.ArgumentParser(description="Count phrases that are hard to read.")
    parser.add_argument("--list", action="store_true", help="print every phrase")
    parser.add_argument("--update", action="store_true", help="lower the limits")
    options = parser.parse_args()
    limits = json.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}
    phrases = {folder: list(found(folder)) for folder in FOLDERS}
    if options.list:
        print("\n".join(line for lines in phrases.values() for line in lines))
    if options.update:
        lower = {k: min(len(v), limits.get(k, len(v))) for k, v in phrases.items()}
        LIMITS.write_text(json.dumps(lower, indent=2) + "\n", encoding="utf-8")
        return 0
    code = 0
    for folder, lines in phrases.items():
        if len(lines) > limits[folder]:
            code = 1
            print(
                f"{folder}: expected at most {limits[folder]} phrases that are hard to read, got "
                f"{len(lines)}. `python tests/plain_words.py --list` prints them.",
                file=sys.stderr,
            )
    return code


if __name__ == "__main__":
    sys.exit(main())
