"""The imports between subpackages match docs/design.md."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "rifflemix"
EXTRAS = (
    "accelerate",
    "datasets",
    "jinja2",
    "matplotlib",
    "timm",
    "transformers",
    "triton",
    "scipy",
    "rdkit",
    "sklearn",
    "tokenizers",
)

# Base modules: every subpackage may import them. They depend on each other in this order only.
BASE = ("version", "text", "errors", "json_values", "locks", "files", "compat", "checks", "plugins")
_LAYERS = {"ops", "nn", "mixers", "models"}
_DATA = {"lab.tasks", "lab.train"}
_RUNS = {"lab.runs", "lab.experiments", "lab.report"}
# comparison, reproduction, bench and analysis do not import each other.
MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "nn": {"ops"},
    "mixers": {"ops", "nn"},
    "models": {"mixers", "nn", "ops"},
    "testing": {"mixers", "ops"},
    "surgery": _LAYERS,
    "parallel": _LAYERS,
    "lab": set(),
    "lab.tasks": set(),
    "lab.train": set(),
    "lab.recipes": _LAYERS | _DATA,
    "lab.report": {"lab.runs", "lab.experiments"},
    "lab.runs": _LAYERS | _DATA | {"parallel"},
    "lab.experiments": _DATA | {"lab.runs"},
    "lab.comparison": _LAYERS | _DATA | _RUNS,
    "lab.reproduction": _LAYERS | _DATA | _RUNS | {"lab.recipes"},
    "lab.trained": _LAYERS | _DATA | _RUNS | {"surgery"},
    "lab.bench": _LAYERS | _DATA | _RUNS | {"lab.recipes", "surgery", "parallel"},
    "lab.conversion": _LAYERS | _DATA | _RUNS | {"surgery", "lab.bench", "lab.trained"},
    "lab.analysis": _LAYERS | _DATA | _RUNS | {"lab.recipes"},
}
_TOP = {"__init__", "__main__", "cli"}
# Modules of a subpackage with a single user in another subpackage, and why they stay.
SHARED_EXCEPTIONS = {"rifflemix.nn.pooling": "CONTRIBUTING's example mixer takes its mean"}


def name_of(path: Path) -> str:
    """Return the dotted name of a file, such as rifflemix.ops.permutation.api."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def subpackage_of(module: str) -> str:
    """Return the subpackage of a module, such as "ops" or "lab.tasks"."""
    parts = module.split(".")
    if parts[1:2] == ["lab"]:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else "__init__"


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> set[tuple[str, str]]:
    """Return (module, name) for each import, also within functions and TYPE_CHECKING blocks.

    The name "" is the module itself.
    """
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = whole in MODULES
                found.add((whole, "") if is_module else (str(node.module), alias.name))
    return {pair for pair in found if pair[0].split(".")[0] == "rifflemix"}


@functools.cache
def imports() -> dict[str, set[tuple[str, str]]]:
    """Return the imports of every module, read on first use."""
    return {name: imported(path) for name, path in MODULES.items()}


def test_subpackages_depend_on_allowed_ones_only() -> None:
    wrong = []
    for module, pairs in imports().items():
        own = subpackage_of(module)
        if own in _TOP or own in BASE:
            continue
        allowed = MAY_IMPORT[own] | {own, *BASE}
        wrong += [
            f"{module} -> {target}" for target, _ in pairs if subpackage_of(target) not in allowed
        ]
    assert not wrong


def test_base_modules_depend_on_earlier_ones_only() -> None:
    for position, module in enumerate(BASE):
        files = [name for name in MODULES if subpackage_of(name) == module]
        targets = {subpackage_of(target) for name in files for target, _ in imports()[name]}
        assert targets <= set(BASE[:position]) | {module}, module


def test_every_subpackage_is_listed() -> None:
    assert {subpackage_of(module) for module in MODULES} <= set(MAY_IMPORT) | _TOP | set(BASE)


def test_the_library_never_imports_the_lab() -> None:
    wrong = [
        f"{module} -> {target}"
        for module, pairs in imports().items()
        for target, _ in pairs
        if subpackage_of(target).startswith("lab")
        and not subpackage_of(module).startswith("lab")
        and subpackage_of(module) not in _TOP
    ]
    assert not wrong


def test_no_module_imports_the_top_level() -> None:
    assert not [module for module, pairs in imports().items() if "rifflemix" in dict(pairs)]


def test_no_module_is_in_a_cycle_of_imports() -> None:
    """Check imports within functions and for types too: a cycle shows misplaced code."""
    graph = {m: {t for t, _ in pairs if t in MODULES and t != m} for m, pairs in imports().items()}
    state: dict[str, int] = {}

    def walk(module: str, way: tuple[str, ...]) -> None:
        state[module] = 1
        for target in sorted(graph[module]):
            assert state.get(target) != 1, " -> ".join((*way, module, target))
            if target not in state:
                walk(target, (*way, module))
        state[module] = 2

    for module in sorted(graph):
        if module not in state:
            walk(module, ())


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def private_attributes(path: Path) -> set[tuple[str, str]]:
    """Return (module, name) for each private attribute of a module that a file imports."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            modules |= {name: f"{node.module}.{target}" for name, target in names.items()}
    return {
        (modules[node.value.id], node.attr)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and modules.get(node.value.id) in MODULES
        and is_private(node.attr)
    }


def test_no_private_name_crosses_subpackages() -> None:
    wrong = [
        f"{module} imports {target}.{name}"
        for module, pairs in imports().items()
        for target, name in pairs | private_attributes(MODULES[module])
        if subpackage_of(target) != subpackage_of(module) and is_private(f"{target}.{name}")
    ]
    assert not wrong


def private_uses_of_torch(tree: ast.AST) -> set[str]:
    """Return private or experimental names of torch that a file uses."""
    whole_names: dict[str, str] = {}  # full names of the file's aliases
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
            found |= set(names.values())
        elif isinstance(node, ast.ImportFrom):
            names = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            found |= set(names.values())
        else:
            continue
        whole_names |= {n: n if whole.startswith(f"{n}.") else whole for n, whole in names.items()}
    for node in ast.walk(tree):
        # The prefix of a longer name that ends with the private part is a node too.
        if isinstance(node, ast.Attribute) and node.attr.startswith(("_", "experimental")):
            root, _, rest = ast.unparse(node).partition(".")
            found.add(f"{whole_names.get(root, root)}.{rest}")
            if node.attr.startswith("_dynamo"):
                found.add(f"torch.{node.attr}")
    return {
        name
        for name in found
        if name.startswith("torch.")
        and any(
            part == "experimental" or (part.startswith("_") and not part.endswith("__"))
            for part in name.split(".")
        )
    }


PRIVATE_USES = {
    "attribute": "import torch\ntorch._C._is_tracing()",
    "under another name": "import torch as t\nt._C",
    "name of a module": "from torch import _dynamo",
    "module of that name": "import torch.fx.experimental.symbolic_shapes",
    "of an imported module": "from torch.autograd import forward_ad\nforward_ad._current_level",
    "mark for the compiler": "def f(): ...\nf._dynamo_marked_constant = True",
}


@pytest.mark.parametrize("source", PRIVATE_USES.values(), ids=PRIVATE_USES)
def test_private_uses_of_torch_are_found(source: str) -> None:
    assert private_uses_of_torch(ast.parse(source))


def test_private_names_of_torch_are_used_in_compat_only() -> None:
    used = {module: private_uses_of_torch(tree(path)) for module, path in MODULES.items()}
    assert used.pop("rifflemix.compat")
    assert used.pop("rifflemix.parallel.compat")
    assert not {module: names for module, names in used.items() if names}


def test_a_module_with_one_user_is_in_the_subpackage_of_that_user() -> None:
    """Check modules with one user: both are in one subpackage.

    The command line is an exception.
    """
    users: dict[str, set[str]] = defaultdict(set)
    for module, pairs in imports().items():
        for target, _ in pairs:
            users[target].add(module)
    wrong = {
        target: modules
        for target, modules in users.items()
        if target in MODULES
        and MODULES[target].name != "__init__.py"
        and len(modules) == 1
        and target not in SHARED_EXCEPTIONS
        and subpackage_of(*modules) not in {subpackage_of(target), *_TOP}
    }
    assert not wrong


def test_files_have_at_most_500_lines() -> None:
    long = {m: len(path.read_text(encoding="utf-8").splitlines()) for m, path in MODULES.items()}
    assert not {module: lines for module, lines in long.items() if lines > 500}


def test_folders_have_at_most_20_files() -> None:
    files = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES.values())
    del files["mixers/baselines"]  # one file per mixer
    assert not {name: n for name, n in files.items() if n > 20}


def test_no_assert_guards_an_argument() -> None:
    """Check that `raise InputError` is used; only `testing` documents AssertionError."""
    found = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        if subpackage_of(module) != "testing"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assert)
    ]
    assert not found


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a statement loads in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_import_is_light() -> None:
    assert not loaded_by("import rifflemix") & {"torch", *EXTRAS}


def test_mixers_models_and_tasks_need_no_extras() -> None:
    everything = "import rifflemix as rm; rm.create_model; rm.create_mixer; rm.ops; rm.models"
    assert not loaded_by(f"{everything}; import rifflemix.lab.tasks") & set(EXTRAS)
