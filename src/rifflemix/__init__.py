"""rifflemix: sub-quadratic token mixers for PyTorch, and the tools that compare them fairly.

Names are imported when first used, so that `import rifflemix` and `rifflemix --help` do not wait
for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rifflemix.version import VERSION as __version__

if TYPE_CHECKING:
    from rifflemix import mixers, models, ops, parallel, testing
    from rifflemix.errors import InputError
    from rifflemix.lab import analysis, bench, recipes, tasks, train
    from rifflemix.lab.analysis.registry import register_analysis
    from rifflemix.lab.bench.swap import measure_swap
    from rifflemix.lab.comparison import Comparison, SuiteComparison, compare, compare_suite
    from rifflemix.lab.conversion import ConversionReport, convert
    from rifflemix.lab.recipes import register_recipe
    from rifflemix.lab.tasks import Task, register_task
    from rifflemix.lab.trained import TrainedRun, load_run
    from rifflemix.mixers import (
        MixerCard,
        TokenMixer,
        create_mixer,
        list_mixers,
        mixer_card,
        register_mixer,
    )
    from rifflemix.models import create_model, list_models, register_model
    from rifflemix.surgery import (
        SurgeryReport,
        distil,
        load_swapped,
        register_adapter,
        register_hf,
        replace_attention,
        restore_attention,
        save_swapped,
    )

__all__ = [
    "Comparison",
    "ConversionReport",
    "InputError",
    "MixerCard",
    "SuiteComparison",
    "SurgeryReport",
    "Task",
    "TokenMixer",
    "TrainedRun",
    "__version__",
    "analysis",
    "bench",
    "compare",
    "compare_suite",
    "convert",
    "create_mixer",
    "create_model",
    "distil",
    "list_mixers",
    "list_models",
    "load_run",
    "load_swapped",
    "measure_swap",
    "mixer_card",
    "mixers",
    "models",
    "ops",
    "parallel",
    "recipes",
    "register_adapter",
    "register_analysis",
    "register_hf",
    "register_mixer",
    "register_model",
    "register_recipe",
    "register_task",
    "replace_attention",
    "restore_attention",
    "save_swapped",
    "tasks",
    "testing",
    "train",
]

_SUBPACKAGES = {
    "analysis": "lab.analysis",
    "bench": "lab.bench",
    "mixers": "mixers",
    "models": "models",
    "ops": "ops",
    "parallel": "parallel",
    "recipes": "lab.recipes",
    "tasks": "lab.tasks",
    "testing": "testing",
    "train": "lab.train",
}
_HOMES = {
    "Comparison": "lab.comparison",
    "ConversionReport": "lab.conversion",
    "InputError": "errors",
    "MixerCard": "mixers",
    "SuiteComparison": "lab.comparison",
    "SurgeryReport": "surgery",
    "Task": "lab.tasks",
    "TokenMixer": "mixers",
    "TrainedRun": "lab.trained",
    "compare": "lab.comparison",
    "compare_suite": "lab.comparison",
    "convert": "lab.conversion",
    "create_mixer": "mixers",
    "create_model": "models",
    "distil": "surgery",
    "list_mixers": "mixers",
    "list_models": "models",
    "load_run": "lab.trained",
    "load_swapped": "surgery",
    "measure_swap": "lab.bench.swap",
    "mixer_card": "mixers",
    "register_adapter": "surgery",
    "register_analysis": "lab.analysis",
    "register_hf": "surgery",
    "replace_attention": "surgery",
    "restore_attention": "surgery",
    "register_mixer": "mixers",
    "register_model": "models",
    "register_recipe": "lab.recipes",
    "register_task": "lab.tasks",
    "save_swapped": "surgery",
}


# Hidden from type checkers: with it they would take every misspelt name for one that exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _SUBPACKAGES:
            return importlib.import_module(f"rifflemix.{_SUBPACKAGES[name]}")
        if name in _HOMES:
            return getattr(importlib.import_module(f"rifflemix.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'rifflemix' has no attribute {name!r}{_hint(name)}")

    def _hint(name: str) -> str:
        """What may be meant by a name that is not there; empty for private names and modules."""
        from importlib.util import find_spec

        from rifflemix.errors import nearest_names, same_name

        if name.startswith("_") or find_spec(f"rifflemix.{name}"):
            return ""
        if same_name(name, __all__) is None:
            mixer = same_name(name, importlib.import_module("rifflemix.mixers").list_mixers())
            if mixer is not None:
                return f"; rifflemix.create_mixer({mixer!r}, dim) makes that mixer"
        near = nearest_names(name, __all__)
        return f"; did you mean {' or '.join(near)}?" if near else ""


def __dir__() -> list[str]:
    return __all__
