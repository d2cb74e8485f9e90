"""Registry of analyses: the built-in kinds and third-party ones."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, overload

from rifflemix.errors import bad_argument, require_packages, unregistered_name
from rifflemix.lab.analysis.finding import Analysis, Kind
from rifflemix.plugins import EntryPoints, check_new_name

_PACKAGE = "rifflemix.lab.analysis.kinds"
_CSP, _SLICEFORMER = "CSP (Yuan and Xu)", "Sliceformer (Yuan and Xu)"
_TOST = "Wu et al. 2024 (ToST)"
_DIMENSION_MIXER = "Sapkota and Bhattarai 2025 (Dimension Mixer)"
# Name -> title and source. The module and the function of a kind have its name.
_BUILT_IN: dict[str, tuple[str, str]] = {
    "pattern": ("Which tokens reach which", f"{_DIMENSION_MIXER}, Figure 4"),
    "permutation": (
        "Permutations of the tokens",
        f"{_CSP}, equations (3) to (5); {_SLICEFORMER}, sections 3, 4",
    ),
    "spectrum": (
        "Spectrum of outputs before the output projection and after it, and of maps",
        f"{_CSP}, Figure 3; {_SLICEFORMER}, Figure 4",
    ),
    "collapse": (
        "Rank over depth",
        f"{_CSP}, theorem 1, its rank residual next to effective and stable rank",
    ),
    "rate": ("Coding rates by layer", f"{_TOST}, equations (1) and (4), Figure 4a"),
    "membership": ("Memberships of token statistics", f"{_TOST}, Figures 4b and 9"),
    "macs": (
        "Multiply-accumulates and parameters by layer",
        f"{_DIMENSION_MIXER}, Tables 3 and 7",
    ),
    "softmax-spread": (
        "Spread of attention weights",
        f"{_SLICEFORMER}, Figure 2; Sander et al. 2022, Figure 2",
    ),
    "coherence": ("Coherence of the heads' subspaces", f"{_TOST}, Figure 11"),
    "cls-attention": ("Attention of the class token", f"{_TOST}, Figures 5 and 10"),
    "sinkhorn": (
        "Sorting matrices",
        "Tay et al. 2020 (Sparse Sinkhorn Attention), section 3, Figures 3 and 4",
    ),
}
_ANALYSES: dict[str, Analysis] = {}
"""Third-party analyses by name."""


@overload
def register_analysis(run: Kind) -> Kind: ...
@overload
def register_analysis(*, title: str = "", source: str = "") -> Callable[[Kind], Kind]: ...
def register_analysis(
    run: Kind | None = None, *, title: str = "", source: str = ""
) -> Kind | Callable[[Kind], Kind]:
    """Register an analysis. Usable as a decorator, with or without arguments.

    `rifflemix analyze` then knows the analysis.

    Args:
        run: Function from the models of a target and a progress callback to a `Finding`. Its name,
            with hyphens instead of underscores, is the name of the analysis.
        title: Heading of its section. The default is the name.
        source: Figure or section of a paper. The default names the function.

    Returns:
        The function, unchanged.

    Raises:
        InputError: The argument is not a function, or its name is not valid or taken.

    Example:
        >>> import torch, rifflemix as rm
        >>> from rifflemix.lab.analysis import Column, Finding
        >>> from rifflemix.lab.analysis.drawing import new_figure
        >>> @rm.register_analysis(title="Number of parameters")
        ... def sizes(subjects, on_progress):
        ...     counts = {s.label: sum(p.numel() for p in s.model.parameters()) for s in subjects}
        ...     return Finding(
        ...         summary=tuple(f"{label} has {count:,}." for label, count in counts.items()),
        ...         headers=("Model", "Parameters"),
        ...         rows=tuple((label, f"{count:,}") for label, count in counts.items()),
        ...         caption="An empty figure.",
        ...         data=counts,
        ...         figure=new_figure(1.0),
        ...     )
        >>> model = rm.create_model("encoder", vocab_size=9, max_length=8, dim=8)
        >>> rm.analysis.analyze("sizes", model, [torch.ones(1, 8, dtype=torch.int64)]).title
        'Number of parameters'
    """
    if run is None:
        return lambda function: _register(function, title, source)
    return _register(run, title, source)


def _register(run: Kind, title: str, source: str) -> Kind:
    if not inspect.isfunction(run):
        raise bad_argument("analysis", "a function of models and a callback", repr(run))
    name = run.__name__.replace("_", "-")
    check_new_name("analysis", name, run, _functions())
    _ANALYSES[name] = Analysis(
        name,
        title or name.replace("-", " ").capitalize(),
        source or f"function {run.__name__} of {run.__module__}",
        run,
    )
    _ENTRY_POINTS.registered()
    return run


def _functions() -> dict[str, Any]:
    """Return the function of each analysis; for a built-in kind, only its names."""
    places = {name: name.replace("-", "_") for name in _BUILT_IN}
    built_in = {
        name: SimpleNamespace(__module__=f"{_PACKAGE}.{place}", __qualname__=place)
        for name, place in places.items()
    }
    return built_in | {name: analysis.run for name, analysis in _ANALYSES.items()}


_ENTRY_POINTS = EntryPoints("analysis", _functions, register_analysis)


def list_analyses() -> list[str]:
    """List the names of all analyses, without importing third-party packages.

    Returns:
        Names for `get_analysis`.

    Example:
        >>> import rifflemix as rm
        >>> "permutation" in rm.analysis.list_analyses()
        True
    """
    return _ENTRY_POINTS.names()


def usable_analyses() -> list[str]:
    """List analyses whose packages can be imported. Warn about the others.

    Returns:
        Names for `get_analysis`.

    Example:
        >>> import rifflemix as rm
        >>> "membership" in rm.analysis.usable_analyses()
        True
    """
    return _ENTRY_POINTS.usable()


def get_analysis(name: Any) -> Analysis:
    """Return an analysis by name.

    Args:
        name: name in `list_analyses()`.

    Returns:
        The analysis.

    Raises:
        InputError: the name is unknown, and the message suggests the nearest name; or a package
            that draws pictures is missing.

    Example:
        >>> import rifflemix as rm
        >>> rm.analysis.get_analysis("membership").title
        'Memberships of token statistics'
    """
    _ENTRY_POINTS.look_up(name)
    if not isinstance(name, str) or name not in _functions():
        raise unregistered_name("analysis", name, list_analyses())
    if name in _ANALYSES:
        return _ANALYSES[name]
    require_packages("a picture", "compare", "matplotlib", "jinja2")
    place = name.replace("-", "_")
    run = getattr(importlib.import_module(f"{_PACKAGE}.{place}"), place)
    return Analysis(name, *_BUILT_IN[name], run)
