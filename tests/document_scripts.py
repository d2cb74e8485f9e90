"""Load the scripts that write the pages and the benchmarks, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[1]
for folder in ("docs/build", "benchmarks"):  # scripts import their neighbors by name
    if str(REPOSITORY / folder) not in sys.path:
        sys.path.append(str(REPOSITORY / folder))
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "benchmarks").glob("*.md"),
    ]
)


def load_script(path: str) -> ModuleType:
    """Load a script by its path in the repository, such as "docs/build/charts.py"."""
    loaded = sys.modules.get(Path(path).stem)
    if loaded is not None and loaded.__file__ == str(REPOSITORY / path):
        return loaded
    spec = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses looks up its module there
    spec.loader.exec_module(module)
    return module
