"""The interactive page (docs/try.html) in a real browser shows the operators' patterns."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from document_scripts import load_script

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    return load_script("docs/build/try_page.py")


def test_the_page_loads_nothing() -> None:
    text = (DOCS / "try.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script src|<link", text)


def permuted(writer: ModuleType, n: int, group: int, kind: str, layers: int) -> Tensor:
    """Return (N, N) bool: the source tokens after `layers` layers.

    Sources are collected over many random inputs.
    """
    reached = torch.eye(n, dtype=torch.bool)
    for index in range(layers):
        x = torch.rand(300, n, writer.CHANNELS, generator=torch.Generator().manual_seed(index))
        steps = rm.ops.shift_steps(
            kind, n, writer.CHANNELS, layer_index=index, num_layers=writer.LAYERS
        )
        _, sources = rm.ops.channel_permute(x, steps, n // group, return_indices=True)
        layer = torch.eye(n, dtype=torch.bool)
        layer[torch.arange(n)[None, :, None].expand_as(sources), sources] = True
        reached = layer.float() @ reached.float() > 0
    return reached


def grouped(n: int, group: int, layers: int) -> Tensor:
    """Return (N, N) bool: tokens that `layers` layers of groups connect."""
    strides: Sequence[int] = rm.ops.butterfly_strides(n, group)
    reached = torch.eye(n, dtype=torch.bool)
    for index in range(layers):
        groups = rm.ops.butterfly_split(torch.arange(n)[None], group, strides[index % len(strides)])
        layer = torch.zeros(n, n, dtype=torch.bool)
        for members in groups[0]:
            layer[members[:, None], members] = True
        reached = layer.float() @ reached.float() > 0
    return reached


@pytest.mark.slow
def test_a_browser_shows_the_patterns_of_the_operators(writer: ModuleType, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed")
    options = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run "
        "--disable-sync --disable-component-update"
    )
    page = f"{(DOCS / 'try.html').as_uri()}#all"
    done = subprocess.run(
        [chromium, *options.split(), f"--user-data-dir={tmp_path}", "--dump-dom", page],
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    shown = re.search(r'<p id="share" role="status">(.*?)</p>', done.stdout)
    assert shown is not None
    assert re.search(r"\d+ ?%.*\b1 layer", shown[1])
    drawn = re.sub(r"<script>.*?</script>", "", done.stdout, flags=re.DOTALL)
    assert drawn.count("<svg") == 3
    listed = re.search(r'<pre id="all">(.*?)</pre>', done.stdout, re.DOTALL)
    assert listed is not None
    lines = listed[1].splitlines()
    each = len(writer.LENGTHS) * len(writer.GROUPS) * len(writer.KINDS) * 3
    assert len(lines) == 2 * each
    for line in lines:
        mixer, n, group, kind, layers, bits = line.split()
        size, count = int(n), int(layers)
        if mixer == "csp":
            expected = permuted(writer, size, int(group), kind, count)
        else:
            expected = grouped(size, int(group), count)
        ours = torch.tensor([bit == "1" for bit in bits]).view(size, size)
        assert torch.equal(ours, expected), line[:40]
