"""Files of analyses: numbers, arrays, figures, and one page for all analyses in a folder."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from rifflemix.files import damaged_run, read_json, write_bytes, write_json
from rifflemix.json_values import check_json
from rifflemix.lab.analysis.finding import Finding, Subject
from rifflemix.lab.report.figure import figure_png
from rifflemix.lab.report.page import render
from rifflemix.lab.runs.environment import environment

PAGE = "analysis.html"
_AGAIN = "remove it and make the analysis again"


class _Stored(TypedDict):
    kind: str
    title: str
    source: str
    seen: list[str]
    headers: list[str]
    rows: list[list[str]]
    caption: str
    subjects: list[dict[str, Any]]
    environment: dict[str, Any]


def write_finding(out: Path, finding: Finding, subjects: Sequence[Subject]) -> list[Path]:
    """Write KIND.png, KIND.npz (if the finding has arrays) and KIND.json.

    Each file is written atomically. The JSON file is the last one.

    Returns:
        Paths of the files.
    """
    picture = out / f"{finding.kind}.png"
    write_bytes(picture, figure_png(finding.figure))
    written = [picture]
    if finding.arrays:
        arrays = out / f"{finding.kind}.npz"
        target = io.BytesIO()
        arrays_by_name: dict[str, Any] = dict(finding.arrays)
        np.savez_compressed(target, **arrays_by_name)
        write_bytes(arrays, target.getvalue())
        written.append(arrays)
    numbers = out / f"{finding.kind}.json"
    write_json(
        numbers,
        {
            "kind": finding.kind,
            "title": finding.title,
            "source": finding.source,
            "seen": list(finding.seen),
            "headers": list(finding.headers),
            "rows": [list(row) for row in finding.rows],
            "caption": finding.caption,
            "subjects": [{"label": s.label, **s.about} for s in subjects],
            "data": dict(finding.data),
            "environment": environment(),
        },
    )
    return [*written, numbers]


def read_finding(path: Path) -> dict[str, Any]:
    """Read a KIND.json that `write_finding` wrote.

    Raises:
        InputError: the file cannot be read, or has another format.
    """
    stored = read_json(path, _AGAIN)
    try:
        check_json(stored, _Stored, path.stem)
    except ValueError as error:
        raise damaged_run(path, str(error), _AGAIN) from error
    return dict(stored)


def write_page(
    out: Path, kinds: Sequence[str], target: str, left_out: Mapping[str, str] | None = None
) -> Path:
    """Write the page, with a section for each kind with files.

    Args:
        out: folder of the files.
        kinds: analyses, in the order of the sections.
        target: name of the analyzed target, for the heading.
        left_out: kind -> reason if the analysis does not apply to the target.
    """
    found = [read_finding(out / f"{kind}.json") for kind in kinds if is_there(out, kind)]
    subjects = {
        str(subject["label"]): _described(subject) for f in found for subject in f["subjects"]
    }
    page = render(
        "analysis.html",
        title=f"rifflemix analyze: {target}",
        lead=f"{len(found)} analyses of {len(subjects)} models" if found else "nothing yet",
        subjects=list(subjects.values()),
        sections=[_section(out, stored) for stored in found],
        left_out=[f"{kind}: {why}" for kind, why in (left_out or {}).items()],
    )
    path = out / PAGE
    write_bytes(path, page.encode())
    return path


def is_there(out: Path, kind: str) -> bool:
    """Check for the numbers and the figure of an analysis."""
    return (out / f"{kind}.json").is_file() and (out / f"{kind}.png").is_file()


def _section(out: Path, stored: Mapping[str, Any]) -> dict[str, Any]:
    picture = (out / f"{stored['kind']}.png").read_bytes()
    return {
        **{name: stored[name] for name in ("kind", "title", "source", "seen", "caption")},
        "headers": stored["headers"],
        "rows": stored["rows"],
        "alt": " ".join(stored["seen"]),
        "picture": base64.b64encode(picture).decode("ascii"),
        "command": stored["environment"]["command"],
        "time": stored["environment"]["time"],
    }


def _described(subject: Mapping[str, Any]) -> str:
    """Describe a subject in one line: its label and its properties."""
    parts = [f"{name} {value}" for name, value in subject.items() if name != "label" and value]
    return f"{subject['label']}: {', '.join(parts) or 'a module of the caller'}"
