"""Run analyses by name on a target."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.files import check_same_settings, claimed_folder
from rifflemix.lab.analysis.cls_attention import cls_attention
from rifflemix.lab.analysis.coherence import coherence
from rifflemix.lab.analysis.collapse import collapse
from rifflemix.lab.analysis.finding import Finding, Subject, Tick, silent
from rifflemix.lab.analysis.gallery import is_there, write_finding, write_page
from rifflemix.lab.analysis.macs import macs
from rifflemix.lab.analysis.membership import membership
from rifflemix.lab.analysis.pattern import pattern
from rifflemix.lab.analysis.permutation import permutation
from rifflemix.lab.analysis.rate import rate
from rifflemix.lab.analysis.sinkhorn import sinkhorn
from rifflemix.lab.analysis.softmax_spread import softmax_spread
from rifflemix.lab.analysis.spectrum import spectrum
from rifflemix.lab.analysis.subjects import find_subjects, own_subject
from rifflemix.lab.analysis.view import View
from rifflemix.lab.runs.folder import check_folder

Kind = Callable[[Sequence[Subject], Tick], Finding]

KINDS: Mapping[str, Kind] = {
    "pattern": pattern,
    "permutation": permutation,
    "spectrum": spectrum,
    "collapse": collapse,
    "rate": rate,
    "membership": membership,
    "macs": macs,
    "softmax-spread": softmax_spread,
    "coherence": coherence,
    "cls-attention": cls_attention,
    "sinkhorn": sinkhorn,
}
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
        kind: one of `rifflemix.lab.analysis.KINDS`.
        target: folder of a run, name of a preset, or a module.
        batches: batches for `trace`, if the target is a module.
        view: number of samples, and mixers and settings of a preset.
        tick: progress callback.

    Returns:
        Sentences, table, numbers and figure.

    Raises:
        InputError: an unknown kind, an invalid target, or a target without suitable layers.
    """
    check_choice("kind", kind, KINDS)
    return _find(kind, _subjects(target, batches, view), tick)


def _find(kind: str, subjects: Sequence[Subject], tick: Tick) -> Finding:
    no_numbers = InputError(
        f"{kind}: expected finite numbers, got others; are the weights and inputs finite?"
    )
    try:
        finding = KINDS[kind](subjects, tick)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # of NaN
        raise no_numbers from error
    try:
        json.dumps(finding.data, allow_nan=False)
    except ValueError as error:
        raise no_numbers from error
    return finding


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
    """
    for kind in kinds:
        check_choice("kind", kind, KINDS)
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
        if several and is_there(out, kind):
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
            written.append(write_page(out, tuple(KINDS), name, left_out))
    if len(left_out) == len(kinds):
        raise bad_argument("target", "a model that can be looked into", f"{name}: {left_out}")
    if several:  # adds the kinds left out, and files of an earlier start
        with claimed_folder(out, settings):
            write_page(out, tuple(KINDS), name, left_out)
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
        raise bad_argument("batches", "None beside a run or a preset", "batches")
    return find_subjects(target, view)
