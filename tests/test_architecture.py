"""The house's arrows: which room may import which (docs/design.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "rifflemix"
EXTRAS = (
    "accelerate",
    "datasets",
    "timm",
    "transformers",
    "triton",
    "scipy",
    "rdkit",
    "sklearn",
    "tokenizers",
)

# A room may import itself, `errors`, `files`, and the rooms named here. Nothing imports `cli`.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "ops": set(),
    "nn": {"ops"},
    "mixers": {"ops", "nn"},
    "testing": {"mixers", "nn", "ops"},
    "models": {"mixers", "nn", "ops"},
    "surgery": {"models", "mixers", "nn", "ops"},
    "tasks": set(),
    "train": set(),
    "recipes": {"ops", "mixers", "nn", "models", "surgery", "tasks", "train"},
    "bench": {"ops", "mixers", "nn", "models", "surgery", "tasks", "train", "recipes"},
    "analysis": {"ops", "mixers", "nn", "models", "surgery", "tasks", "train", "recipes"},
    "report": {"mixers", "models", "recipes", "bench", "analysis"},
}


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    """Every module a file imports anywhere in it, except under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found.add(node.module or "")
    return found


FILES = sorted(SOURCE.rglob("*.py"))


def test_arrows_between_rooms() -> None:
    wrong = {}
    for path in FILES:
        room = room_of(path)
        if room in MAY_IMPORT:
            allowed = MAY_IMPORT[room] | {room, "errors", "files", "__version__"}
            modules = [m for m in imported_modules(path) if m.startswith("rifflemix.")]
            if not_allowed := {module.split(".")[1] for module in modules} - allowed:
                wrong[str(path.relative_to(SOURCE))] = not_allowed
    assert not wrong, "these must not import those rooms"


def test_every_room_is_known() -> None:
    rooms = {room_of(p) for p in SOURCE.rglob("*.py")}
    assert rooms <= set(MAY_IMPORT) | {"__init__", "__main__", "cli"}


def test_files_stay_readable() -> None:
    lines = {str(p.relative_to(SOURCE)): p.read_text(encoding="utf-8").count("\n") for p in FILES}
    assert not {file: count for file, count in lines.items() if count > 500}


def test_no_assert_guards_an_argument() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert not found, "raise InputError instead of assert"


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in memory after a statement, in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_import_is_light() -> None:
    assert not loaded_by("import rifflemix") & {"torch", *EXTRAS}


def test_mixers_and_models_need_no_extras() -> None:
    everything = "import rifflemix as rm; rm.create_model; rm.create_mixer; rm.ops; rm.models"
    assert not loaded_by(everything) & set(EXTRAS)


def test_tasks_know_nothing_of_models() -> None:
    loaded = loaded_by("import rifflemix.tasks")
    assert not loaded & set(EXTRAS)
