"""The documentation is correct: its Python code runs and its links work."""

from __future__ import annotations

import doctest
import importlib
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import rifflemix as rm
from document_scripts import PAGES, REPOSITORY

FENCE = re.compile(
    r"^( *)```python\n(.*?)^\1```\n(?:\1```\n(.*?)^\1```)?", re.MULTILINE | re.DOTALL
)
ANY_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
FILE_SUFFIXES = {
    "bin",
    "csv",
    "gz",
    "html",
    "json",
    "jsonl",
    "mat",
    "md",
    "onnx",
    "png",
    "py",
    "safetensors",
    "so",
    "toml",
    "txt",
    "xz",
}
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


# The snippets of these pages train for seconds.
TRAINING = {"comparing.md", "use-a-model.md", "your-data.md"}


def python_blocks() -> list[object]:
    return [
        pytest.param(
            textwrap.dedent(code),
            output,
            id=f"{page.name}-{number}",
            marks=[pytest.mark.slow] if page.name in TRAINING else [],
        )
        for page in PAGES
        for number, (_, code, output) in enumerate(
            FENCE.findall(page.read_text(encoding="utf-8")), 1
        )
    ]


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's ONNX exporter
@pytest.mark.parametrize(("code", "output"), python_blocks())
def test_python_in_the_documents_runs(
    code: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run an example; an output below the example is what it prints, except for "..."."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "document", "exec", dont_inherit=True), {"__name__": "document"})
    printed = capsys.readouterr().out
    assert not output or doctest.OutputChecker().check_output(output, printed, doctest.ELLIPSIS)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        link
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert not missing


def dotted_names(text: str) -> list[str]:
    """Return dotted names in backticks outside code blocks.

    Call arguments and file names are left out.
    """
    names = DOTTED.findall(ANY_FENCE.sub("", text))
    return [name for name in names if name.rsplit(".", 1)[1] not in FILE_SUFFIXES]


def resolve(name: str) -> Any:
    """Return the object of a name as in the documentation.

    The name follows `import rifflemix as rm` and `import torch`. A name relative to a public name,
    such as `TokenMixer.forward`, is resolved from there.
    """
    import rifflemix

    first, *parts = name.split(".")
    roots = {"rm": rifflemix, "rifflemix": rifflemix, "torch": importlib.import_module("torch")}
    value = roots.get(first, rifflemix)
    for part in parts if first in roots else (first, *parts):
        if isinstance(value, ModuleType) and not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_dotted_names_resolve(page: Path) -> None:
    unknown = []
    for name in dotted_names(page.read_text(encoding="utf-8")):
        try:
            resolve(name)
        except (AttributeError, ImportError):
            unknown.append(name)
    assert not unknown


def test_what_counts_as_a_dotted_name() -> None:
    text = (
        "`rm.ops.sinkhorn(x)` and `rm.ops.no_such` in `a.json`, `x = rm.a`\n"
        "```python\n`rm.in_code`\n```"
    )
    assert dotted_names(text) == ["rm.ops.sinkhorn", "rm.ops.no_such"]
    # The function hides the module of the same name, so nothing in the module is reachable.
    for wrong in ("ops.sinkhorn.sinkhorn_attention", "rm.ops.sinkhorn.sinkhorn_attention"):
        with pytest.raises(AttributeError):
            resolve(wrong)
    with pytest.raises(ImportError):
        resolve("rifflemix.no_room.name")
    assert callable(resolve("rifflemix.mixers.SinkhornCrossAttention"))


TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
WRITTEN = re.compile(
    r"<!-- (results|comparison|demo|speed-up|limits|reproduced|choose|gpu-layers)\b"
    r".*?<!-- /\1 -->",
    re.DOTALL,
)
MEASURED = re.compile(r"\d ?(?:%|ms\b|µs\b|steps/s|times\b|x (?:faster|slower|less|more))")


def prose(page: Path) -> str:
    return ANY_FENCE.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_have_as_many_cells_as_headers(page: Path) -> None:
    for table in TABLE.findall(prose(page)):
        header, rule, *rows = table.splitlines()
        cells = [len(re.split(r"(?<!\\)\|", line.rstrip())) for line in (header, rule, *rows)]
        assert set(rule) <= set("|-: "), f"no table: {header}"
        assert set(cells) == {cells[0]}, rows[cells[2:].index(max(cells[2:]))]


MEASURED_PAGES = [page for page in PAGES if WRITTEN.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", MEASURED_PAGES, ids=lambda p: p.name)
def test_no_measured_number_is_typed(page: Path) -> None:
    """Check pages that cite result files: generated blocks contain all measured numbers."""
    assert not MEASURED.findall(WRITTEN.sub("", prose(page)))


def test_pages_with_measurements_are_known() -> None:
    names = {page.name for page in MEASURED_PAGES}
    assert names >= {"README.md", "performance.md", "choose.md"}


MIXER_PAGES = REPOSITORY / "docs" / "mixers"
CARDS = [
    (page.stem, name)
    for page in sorted(MIXER_PAGES.glob("*.md"))
    for block in re.findall(r"<!-- card: ([\w, ]+) -->", page.read_text(encoding="utf-8"))
    for name in block.split(", ")
]


@pytest.mark.parametrize(("page", "name"), CARDS)
def test_mixer_pages_tell_what_permuted_tokens_do(page: str, name: str) -> None:
    """Check the page's table against the layer, without the card."""
    text = (MIXER_PAGES / f"{page}.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
    header = next(line for line in lines if f"`{name}`" in line)
    (told,) = (line[1:] for line in lines if line[0] == "outputs of permuted tokens")
    mixer = rm.create_mixer(name, 16, num_heads=2, max_length=16).double().eval()
    x, order = torch.randn(2, 16, 16).double(), torch.randperm(16)
    y, permuted = mixer(x), mixer(x[:, order])
    found = "different"
    if torch.allclose(permuted, y):
        found = "unchanged"
    elif torch.allclose(permuted, y[:, order]):
        found = "permuted in the same way"
    assert told[header.index(f"`{name}`")] == found
