"""The pages are enough to add a mixer, a task, a model, a recipe and a section.

The pages are CONTRIBUTING.md and docs/extending.md.

The examples of that page become files of a new package. The registry lines that the page names are
patched in, and the command line must find the rest.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import rifflemix as rm
import rifflemix.cli
import rifflemix.lab.recipes.registry
import rifflemix.lab.report.page
import rifflemix.lab.tasks.registry
import rifflemix.mixers.registry
import rifflemix.models.presets
from rifflemix.lab.comparison.pages import files
from rifflemix.lab.recipes import get_recipe
from rifflemix.testing import check_mixer
from small_recipes import made_up, write

REPOSITORY = Path(__file__).resolve().parents[1]
TEXT = "".join(
    (REPOSITORY / page).read_text(encoding="utf-8")
    for page in ("CONTRIBUTING.md", "docs/extending.md")
)
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
Cli = Callable[..., str]
Load = Callable[[str], ModuleType]


def example(heading: str, language: str = "python") -> str:
    """Return the only code block of a language under a heading."""
    body = dict(SECTION.findall(TEXT))[heading]
    (code,) = [code for _, found, code in BLOCK.findall(body) if found == language]
    return textwrap.dedent(code)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Write a section's example to a file of a package; import it."""
    package = tmp_path / "newcomers"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_and_import(heading: str) -> ModuleType:
        name = heading.split()[-1]
        (package / f"{name}.py").write_text(example(heading), encoding="utf-8")
        module = f"newcomers.{name}"
        for old in ("newcomers", module):  # left by another test in a deleted folder
            monkeypatch.delitem(sys.modules, old, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module(module)

    return write_and_import


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process; return its stdout."""

    def run(*arguments: str) -> str:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["rifflemix", *arguments])
        code = rifflemix.cli.main()
        out, err = capfd.readouterr()
        assert code == 0, err
        return out

    return run


def listed(cli: Cli, what: str) -> dict[str, Any]:
    return {entry["name"]: entry for entry in json.loads(cli("list", what, "--json"))}


def compared(cli: Cli, out: Path, **options: object) -> dict[str, Any]:
    """Return results.json of a comparison with one or two steps."""
    given = {"max-steps": 2, "batch-size": 8, "dim": 8, "layers": 1, "heads": 2, **options}
    words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    cli("compare", *words, "--threads", "1", "--out", str(out))
    results: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["status"] == "complete"
    assert not results["failed_runs"]
    return results


@pytest.fixture
def mean(load: Load, monkeypatch: pytest.MonkeyPatch) -> Any:
    mixer = load("Add a mixer").Mean
    mixers = rifflemix.mixers.registry._MIXERS
    monkeypatch.setitem(mixers, mixer.card.name, mixer)
    return mixer


def test_a_mixer_that_fulfils_the_contract(load: Load) -> None:
    check_mixer(load("Add a mixer").Mean)


def test_every_command_accepts_the_new_mixer(mean: Any, cli: Cli) -> None:
    assert "mean" in rm.list_mixers()
    assert listed(cli, "mixers")["mean"]["complexity"] == "O(N C)"
    assert isinstance(rm.create_mixer("mean", 8), mean)
    backbone = rm.create_model("encoder", vocab_size=5, max_length=8, mixer="mean")
    assert any(isinstance(module, mean) for module in backbone.modules())
    from rifflemix.mixers.registry import mixers_markdown

    assert "| `mean` |" in mixers_markdown()


def test_a_mixer_on_a_task_and_a_section_of_its_page(
    mean: Any, load: Load, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load("Add a task").Majority()
    monkeypatch.setitem(rifflemix.lab.tasks.registry._TASKS, task.card.name, task)
    options = listed(cli, "tasks")["majority"]["options"]
    assert options == {"seed": 0, "length": 15, "max_samples": None}
    loaded = rifflemix.lab.tasks.load_task("majority", length=7)
    bits, label = loaded.split("train")[3]
    assert (len(bits), label) == (7, int(bits.sum() > 3))
    assert loaded.fingerprint() == rifflemix.lab.tasks.load_task("majority", length=7).fingerprint()

    add_section(load, tmp_path, monkeypatch)
    results = compared(cli, tmp_path / "run", task="majority", mixers="mean,softmax")
    assert [mixer["name"] for mixer in results["mixers"]] == ["mean", "softmax"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '<h2 id="size-of-the-models">' in page
    count = results["mixers"][0]["parameters"]
    assert f"<li>Mean: {count:,} parameters</li>" in page


def add_section(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the function, the keyword and the section as the page describes."""
    sizes = load("Add a section to a report").sizes
    templates = tmp_path / "templates"
    shutil.copytree(rifflemix.lab.report.page._TEMPLATES, templates)
    path = templates / "comparison.html"
    before, end = path.read_text(encoding="utf-8").rsplit("{% endblock %}", 1)
    section = example("Add a section to a report", "jinja")
    path.write_text(f"{before}{section}{{% endblock %}}{end}", encoding="utf-8")
    monkeypatch.setattr(rifflemix.lab.report.page, "_TEMPLATES", templates)
    whole, render = files.html_report, files.render

    def html_report(table: Any, *others: Any) -> str:
        def with_sizes(template: str, **values: Any) -> str:
            return render(template, **values, sizes=sizes(table))

        monkeypatch.setattr(files, "render", with_sizes)
        return whole(table, *others)

    monkeypatch.setattr("rifflemix.lab.comparison.pages.files.html_report", html_report)
    rifflemix.lab.report.page._environment.cache_clear()
    # Other tests must not find the templates of this folder.
    monkeypatch.setattr(
        rifflemix.lab.report.page,
        "_environment",
        rifflemix.lab.report.page._environment.__wrapped__,
    )


def test_a_model_that_is_listed_built_and_saved(
    load: Load, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"encoder": rifflemix.models.presets.find_preset("encoder")}  # listing builds every model
    monkeypatch.setattr(rifflemix.models.presets, "_PRESETS", few)
    rifflemix.models.presets.add_presets(load("Add a model").PRESETS)

    entry = listed(cli, "models")["one_layer"]
    model = rm.create_model("one_layer")
    count = sum(p.numel() for p in model.parameters())
    assert entry["parameters"] == count == int(entry["printed"])
    assert (entry["printed_in"], entry["difference"]) == ("Table 1", "0")
    model.save_pretrained(tmp_path / "saved")
    again = rm.models.from_pretrained(tmp_path / "saved")
    tokens = torch.randint(2, (3, 5))
    torch.testing.assert_close(again.eval()(tokens), model.eval()(tokens))


def test_a_recipe_that_is_listed_run_and_reported(
    load: Load, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "example/table1-digits"
    for key, make in load("Add a recipe").RECIPES.items():
        monkeypatch.setitem(rifflemix.lab.recipes.registry._RECIPES, key, make)
    assert listed(cli, "recipes")[name]["printed"] == 98.5

    run = ("reproduce", name, "--max-steps", "2", "--scale", "0.25", "--threads", "1")
    cli(*run, "--out", str(tmp_path / "run"))
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert results["printed"] == 98.5
    assert results["is_reduced"]

    write(tmp_path / "other" / "results.json", made_up(recipe=get_recipe(name), ours=97.0))
    cli("report", str(tmp_path / "other"), "--out", str(tmp_path / "report"))
    page = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "## Author 2026, A paper: Table 1" in page
    assert "| TSSA | 98.50 / **97.00**" in page
