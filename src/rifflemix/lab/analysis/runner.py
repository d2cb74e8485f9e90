"""Run analyses by name on a target, and write their files."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import (
    check_same_settings,
    claimed_folder,
    damaged_run,
    read_json,
    write_bytes,
    write_json,
)
from rifflemix.json_values import check_json
from rifflemix.lab.analysis.finding import Finding, Subject, Tick, View, silent
from rifflemix.lab.analysis.registry import get_analysis, list_analyses
from rifflemix.lab.analysis.subjects import find_subjects, own_subject
from rifflemix.lab.report.page import figure_png, render
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.folder import check_folder

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
            "seen": list(finding.summary),
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
    others = sorted(path.stem for path in out.glob("*.png"))  # of plugins that are not loaded
    stored = [kind for kind in dict.fromkeys([*kinds, *others]) if has_files(out, kind)]
    found = [read_finding(out / f"{kind}.json") for kind in stored]
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


def has_files(out: Path, kind: str) -> bool:
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


FORMAT = "rifflemix.analysis/1"


def _silent(kind: str, text: str, done: int, total: int) -> None:
    """Ignore the progress."""


def analyze(
    kind: str,
    target: Any,
    batches: Sequence[Any] | None = None,
    *,
    view: View | None = None,
    tick: Tick = silent,
) -> Finding:
    """Run one analysis.

    Args:
        kind: name of an analysis, see `list_analyses`.
        target: folder of a run, name of a preset, or a module.
        batches: batches for `trace`, if the target is a module.
        view: number of samples, and mixers and settings of a preset.
        tick: progress callback.

    Returns:
        Sentences, table, numbers and figure.

    Raises:
        InputError: an unknown kind, an invalid target, or a target without suitable layers.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("encoder", vocab_size=10, mixer="csp")
        >>> finding = rm.analysis.analyze("collapse", model, [torch.randint(10, (4, 16))])
        >>> finding.headers
        ('Model', 'Layers', 'Depth', 'Rank residual', 'Effective rank', 'Stable rank', 's2/s1')
    """
    get_analysis(kind)
    return _find(kind, _subjects(target, batches, view), tick)


def _find(kind: str, subjects: Sequence[Subject], tick: Tick) -> Finding:
    analysis = get_analysis(kind)
    no_numbers = InputError(
        f"{kind}: expected finite numbers, got others; are the weights and inputs finite?"
    )
    try:
        finding = analysis.run(subjects, tick)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # of NaN
        raise no_numbers from error
    if not isinstance(finding, Finding):
        raise bad_argument(f"analysis {kind}", "a function that returns a Finding", repr(finding))
    try:
        json.dumps(finding.data, allow_nan=False)
    except ValueError as error:
        raise no_numbers from error
    return replace(finding, kind=kind, title=analysis.title, source=analysis.source)


def analyze_into(
    out: str | Path,
    kinds: Sequence[str],
    target: Any,
    view: View | None = None,
    *,
    batches: Sequence[Any] | None = None,
    tick: Callable[[str, str, int, int], None] = _silent,
) -> tuple[list[Path], dict[str, str]]:
    """Write the files of one or several analyses, and their page.

    If several kinds are requested, existing analyses are kept, so you can resume a gallery.

    Args:
        out: a new or empty folder, or the folder of an earlier start with the same target.
        kinds: names of analyses.
        target: folder of a run, name of a preset, or a module.
        view: samples and settings for a run or a preset.
        batches: batches for `trace`, if the target is a module.
        tick: progress callback, called with the kind and its progress.

    Returns:
        Paths of the written files, and kind -> reason if the analysis does not apply to the target.

    Raises:
        InputError: as in `analyze`. With several kinds, raised only if no kind applies to the
            target; then no file is written.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("encoder", vocab_size=10, mixer="csp")
        >>> files, skipped = rm.analysis.analyze_into(
        ...     "analysis", ["collapse"], model, batches=[torch.randint(10, (4, 16))]
        ... )
        >>> sorted(file.name for file in files)
        ['analysis.html', 'collapse.json', 'collapse.png']
    """
    for kind in kinds:
        get_analysis(kind)
    out, view = Path(out), view or View()
    check_folder(out)
    subjects = _subjects(target, batches, view)
    name = Path(target).name if isinstance(target, str | Path) else subjects[0].label
    settings = _settings(name, view, subjects)
    check_same_settings(out, settings)  # before the analysis, and before any file is written
    written: list[Path] = []
    left_out: dict[str, str] = {}
    several = len(kinds) > 1
    for kind in kinds:
        if several and has_files(out, kind):
            continue
        try:
            finding = _find(kind, subjects, _named(tick, kind))
        except InputError as error:
            if not several:
                raise
            left_out[kind] = str(error)
            continue
        with claimed_folder(out, settings):
            written += write_finding(out, finding, subjects)
            written.append(write_page(out, list_analyses(), name, left_out))
    if len(left_out) == len(kinds):
        raise bad_argument("target", "a model that can be looked into", f"{name}: {left_out}")
    if several:  # adds the kinds left out, and files of an earlier start
        with claimed_folder(out, settings):
            write_page(out, list_analyses(), name, left_out)
    return list(dict.fromkeys(written)), left_out


def _named(tick: Callable[[str, str, int, int], None], kind: str) -> Tick:
    return lambda text, done, total: tick(kind, text, done, total)


def _settings(name: str, view: View, subjects: Sequence[Subject]) -> dict[str, Any]:
    """Return the settings that a resumed analysis must share.

    They include the checksums of a run's weights.
    """
    told = [{"label": s.label, **s.about} for s in subjects]
    weights = [about.pop("weights") for about in told if "weights" in about]
    return {
        "format": FORMAT,
        "target": name,
        "samples": view.samples,
        "batch_size": view.batch_size,
        "seed": view.seed,
        "tokens": view.tokens,
        "mixers": list(view.mixers),
        "settings": dict(view.settings or {}),
        "subjects": told,
        **({"weights": weights} if weights else {}),
    }


def _subjects(target: Any, batches: Sequence[Any] | None, view: View | None) -> list[Subject]:
    if isinstance(target, Subject):
        return [target]
    if isinstance(target, nn.Module):
        return [own_subject(target, () if batches is None else batches)]
    if batches is not None:
        raise bad_argument("batches", "None with a run or a preset", "batches")
    return find_subjects(target, view)
