"""Third-party mixers, tasks and models from files and entry points."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rifflemix as rm
import rifflemix.cli
import rifflemix.mixers.registry as mixers
import rifflemix.models.presets as presets
from rifflemix.errors import InputWarning
from rifflemix.lab.runs.build_for_task import code_by_name, outside_code
from rifflemix.lab.tasks import load_task
from rifflemix.plugins import code_hash, load_plugin, loading, plugin_files

pytestmark = pytest.mark.usefixtures("registries")

PLUGIN = '''
import rifflemix as rm
from torch import nn

@rm.register_mixer
class Turn(rm.TokenMixer):
    """The tokens in turn, the last first."""

    card = rm.MixerCard(
        name="turn", title="Turn", paper="nobody", equations="y_n = W x_(N-n)",
        complexity="O(N C)", cost_exponent=1.0, padding=False,
    )

    def __init__(self, dim, *, gain=1.0, **shared):
        super().__init__(dim, **shared)
        self.proj, self.gain = nn.Linear(dim, dim), gain

    def mix(self, x, key_padding_mask):
        return self.gain * self.proj(x.flip(1))


@rm.register_task
def halves(count=60, seed=0):
    """Handwritten digits, some of them."""
    return rm.tasks.load_task("digits", patch_size=4, max_samples=count + seed)
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my-turn.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


# Files


def test_a_file_is_loaded_once_and_again_when_it_changes(plugin: Path) -> None:
    load_plugin(plugin)
    first = mixers.mixer_class("turn")
    load_plugin(str(plugin))
    assert mixers.mixer_class("turn") is first
    digest = plugin_files()["my-turn.py"]
    plugin.write_text(PLUGIN.replace("Turn", "Turn"[::1]).replace("x.flip(1)", "-x.flip(1)"))
    load_plugin(plugin)
    assert mixers.mixer_class("turn") is not first
    assert plugin_files()["my-turn.py"] != digest
    assert not list(plugin.parent.glob("__pycache__"))


WRONG_FILES = {
    "past exceptions": ("raise BaseException('no')", r"my-turn\.py, line 1: BaseException: no"),
    "mute": ("class E(Exception):\n    __str__ = 1\nraise E", "line 3: E: no message"),
    "syntax": ("x = (", r"line 1: SyntaxError: '\('"),
    "raises": ("import os\n\nos.environs", "line 3: AttributeError: .*'os'"),
    "exits": ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
    "nothing": ("x = 1", r"my-turn\.py: "),
    "taken": (PLUGIN.replace('"turn"', '"tssa"'), "'tssa'.*rifflemix"),
    "bytes": ("x = '\udcff'", "my-turn.py: SyntaxError|line 1: SyntaxError"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_wrong_files_are_refused_in_one_sentence(plugin: Path, text: str, message: str) -> None:
    plugin.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(rm.InputError, match=message) as caught:
        load_plugin(plugin)
    assert str(plugin) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.environ[loading._VARIABLE] == ""
    plugin.write_text(PLUGIN)
    load_plugin(plugin)  # after the correction


def test_non_python_files_are_refused(tmp_path: Path, plugin: Path) -> None:
    for path in (tmp_path, tmp_path / "none.py", plugin.rename(tmp_path / "turn.txt")):
        with pytest.raises(rm.InputError, match=r"^plugin: .*NAME\.py, got "):
            load_plugin(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nosuchuser/mine.py", "got ~nosuchuser"),
        (5, "got 5"),
    ],
)
def test_non_paths_are_refused(path: Any, words: str) -> None:
    with pytest.raises(rm.InputError, match=f"^plugin: .*{words}"):
        load_plugin(path)


def test_two_files_of_one_name_are_refused(tmp_path: Path, plugin: Path) -> None:
    load_plugin(plugin)
    (tmp_path / "more").mkdir()
    other = tmp_path / "more" / "my_turn.py"
    other.write_text(PLUGIN.replace("turn", "turn2"))
    with pytest.raises(rm.InputError, match=r"^plugin: .*my_turn\.py"):
        load_plugin(other)


def test_every_command_has_the_option(cli: Any, plugin: Path) -> None:
    for what, name in (("mixers", "turn"), ("tasks", "halves")):
        code, out, err = cli("list", what, "--json", "--plugin", plugin)
        assert code == 0, err
        assert name in [entry["name"] for entry in json.loads(out)]
    commands = ("compare", "train", "reproduce", "report", "bench layers", "data prepare")
    for command in commands:
        assert "--plugin FILE.py" in cli(*command.split(), "--help")[1], command
    code, _, err = cli("list", "mixers", "--plugin", "gone.py")
    assert (code, err.count("\n")) == (2, 1)
    assert "gone.py" in err


def test_output_of_a_file_is_not_in_the_results(cli: Any, plugin: Path) -> None:
    plugin.write_text(plugin.read_text() + "\nprint('loaded')\n")
    code, out, err = cli("list", "--json", "--plugin", plugin)
    assert (code, "loaded" in err) == (0, True)
    assert "turn" in json.loads(out)["mixers"]


MODEL = """
import rifflemix as rm
from rifflemix.models import ModelCard

@rm.register_model(ModelCard(name="mine", title="Mine", paper="nobody", inputs="tokens"))
def mine(mixer: str = "softmax", dim: int = 8):
    return rm.create_model("encoder", vocab_size=5, num_classes=2, mixer=mixer, dim=dim)
"""


def test_code_used_by_a_run_is_hashed(plugin: Path, tmp_path: Path) -> None:
    """Check models and mixers, hashed by file or by notebook cell."""
    assert outside_code(["softmax", "tssa"], ["encoder", "vit_mnist"]) == {}
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    load_plugin(plugin)
    load_plugin(tmp_path / "model.py")
    found = outside_code(["turn"], ["mine"])
    files = plugin_files()
    assert found == files | {"mixer turn": "my-turn.py", "model mine": "model.py"}
    assert code_by_name(found)["model mine"] == files["model.py"]

    def cell(name: str, factor: int) -> str:
        made: dict[str, Any] = {"__name__": "a_cell"}
        exec(f"def build(): return {factor}", made)
        card = presets.ModelCard(name=name, title="Mine", paper="nobody", inputs="tokens")
        rm.register_model(card)(made["build"])
        return outside_code([], [name])[f"model {name}"]

    assert cell("one", 1) == cell("same", 1) != cell("other", 2)


USED_CODE = {  # what build() uses, and its definition with a number to change
    "function": ("double(1)", "def double(x): return ONE * x"),
    "class": ("Layer().size", "class Layer:\n    size = ONE"),
    "method": ("Layer()(1)", "class Layer:\n    def __call__(self, x): return ONE * x"),
    "base": ("Layer()(1)", "class B:\n    def __call__(self, x): return ONE\nclass Layer(B): ..."),
    "number": ("SIZE", "SIZE = ONE"),
    "table": ("SIZES['a']", "SIZES = {'a': (ONE, 2)}"),
    "closure": ("times(1)", "def make(k): return lambda x: k * x\ntimes = make(ONE)"),
    "wrapped": (
        "double(1)",
        "from functools import lru_cache\n@lru_cache\ndef double(x): return ONE * x",
    ),
    "default": ("double(1)", "def double(x, *, sizes=(ONE, 2)): return sizes"),
}


@pytest.mark.parametrize("use", USED_CODE)
def test_code_hash_includes_used_code(use: str) -> None:
    """Check that a changed layer in another notebook cell changes the hash."""
    expression, definition = USED_CODE[use]

    def hashed(number: int) -> str:
        cells: dict[str, Any] = {"__name__": "a_cell"}
        exec(definition.replace("ONE", str(number)), cells)
        exec(f"class Mine:\n    def mix(self): return [{expression} for _ in range(2)]", cells)
        return code_hash(cells["Mine"])

    assert hashed(1) == hashed(1) != hashed(3)


@pytest.mark.slow
def test_comparison_with_a_file_stores_its_sha256(cli: Any, plugin: Path, tmp_path: Path) -> None:
    run = (
        *("compare", "--task", "halves", "--mixers", "turn,softmax", "--max-steps", 2),
        *("--batch-size", 8, "--dim", 8, "--layers", 1, "--heads", 2, "--threads", 1),
        *("--mixer-option", "turn.gain=0.5", "--plugin", plugin, "--out", tmp_path / "run"),
    )
    assert cli(*run)[0] == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert results["environment"]["plugins"] == plugin_files()
    assert list(plugin_files()) == ["my-turn.py"]
    assert [mixer["title"] for mixer in results["mixers"]] == ["Turn", "Softmax attention"]
    assert results["task"]["title"] == "Halves"

    plugin.write_text(PLUGIN + "\n# another\n", encoding="utf-8")
    code, _, err = cli(*run)
    assert code == 2
    assert "plugins.my-turn.py = " in err
    look = ("analyze", "spectrum", tmp_path / "run", "--plugin", plugin, "--out", tmp_path / "look")
    code, _, err = cli(*look)
    assert (code, "my-turn.py" in err) == (2, True), err
    plugin.write_text(PLUGIN, encoding="utf-8")
    assert cli(*look)[0] == 0


@pytest.mark.parametrize(
    "command",
    ["list mixers", "train --task digits --mixer turn --out", "analyze macs encoder --out"],
)
def test_error_in_a_file_is_reported_with_its_line(
    cli: Any, plugin: Path, tmp_path: Path, command: str
) -> None:
    plugin.write_text(PLUGIN.replace("self.proj, self.gain =", "raise ValueError('no')\n        #"))
    words = command.split()
    words += [str(tmp_path / "out")] if words[-1] == "--out" else []
    words += ["--mixers", "turn", "--set", "dim=8"] if words[0] == "analyze" else []
    code, _, err = cli(*words, "--plugin", plugin)
    assert code == 2
    assert err == f"error: plugin {plugin}, line 16: ValueError: no\n"
    assert not (tmp_path / "out").exists()


FAILING = """
import numpy as np
import rifflemix as rm
from dataclasses import replace

class Failing:
    def __init__(self, rows):
        self.rows, self.digest = rows, rows.digest
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        raise KeyError("none")

@rm.register_task
def failing() -> rm.Task:
    task = rm.Task.from_arrays(np.eye(20, dtype=np.float32)[:, :, None], np.arange(20) % 2)
    return replace(task, splits={**task.splits, "train": Failing(task.split("train"))})
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_error_in_a_sample_is_reported_with_its_line(
    cli: Any, tmp_path: Path, workers: int
) -> None:
    plugin = tmp_path / "failing.py"
    plugin.write_text(FAILING, encoding="utf-8")
    code, _, err = cli(
        *("train", "--task", "failing", "--mixer", "csp", "--max-steps", 2, "--batch-size", 4),
        *("--dim", 8, "--layers", 1, "--heads", 1, "--train-option", f"num_workers={workers}"),
        *("--plugin", plugin, "--out", tmp_path / "run"),
    )
    assert code == 2
    assert f"error: plugin {plugin}, line 12: KeyError: 'none'\n" in err


@pytest.mark.slow
def test_child_processes_load_the_file(plugin: Path) -> None:
    load_plugin(plugin)
    pickled = pickle.dumps(mixers.mixer_class("turn"))
    code = (
        "import pickle, sys, rifflemix as rm\n"
        f"cls = pickle.loads({pickled!r})\n"
        "assert rm.mixers.mixer_class('turn') is cls and 'turn' in rm.list_mixers()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    lists = "import rifflemix as rm; assert rm.create_mixer('turn', 8).card.title == 'Turn'"
    subprocess.run([sys.executable, "-c", lists], check=True, timeout=120)


# Entry points


def test_entry_points_are_listed_without_an_import(install: Any) -> None:
    undecorated = PLUGIN.replace("@rm.register_mixer\n", "")
    install("turns", undecorated, {"mixers": "turn = turns:Turn", "tasks": "halves = turns:halves"})
    assert rm.list_mixers()[-1] == "turn"
    assert rm.tasks.list_tasks()[-1] == "halves"
    assert "turns" not in sys.modules
    assert rm.mixer_card("turn").title == "Turn"
    assert "turns" in sys.modules
    assert len(load_task("halves", count=7).split("train")) == 7


def test_broken_package_warns_once(install: Any, cli: Any) -> None:
    install("broken", "import nothing_of_this_name", {"mixers": "gone = broken:Gone"})
    assert "gone" in rm.list_mixers()
    message = r"mixer 'gone'.*\bbroken\b.*ModuleNotFoundError"
    with pytest.warns(InputWarning, match=message):
        assert "gone" not in mixers.usable_mixers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "gone" not in mixers.usable_mixers()
        assert "gone" not in rm.list_mixers()
    with pytest.raises(rm.InputError, match=message):
        rm.create_mixer("gone", 8)

    mixers._ENTRY_POINTS.forget()
    code, out, err = cli("list", "mixers", "--json")
    assert code == 0
    assert len(json.loads(out)) == len(rm.list_mixers())
    assert re.match(r"warning: mixer 'gone'.*\bbroken\b", err)
    assert err.count("\n") == 1
    code, _, err = cli("bench", "layers", "--mixers", "gone")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"'gone'.*\bbroken\b", err)


WRONG_POINTS = {
    "another name": ("turns", PLUGIN, "spin = turns:Turn", "turns:Turn"),
    "no attribute": ("turns", "x = 1", "spin = turns:Turn", "AttributeError: .*'turns'"),
    "no mixer": ("turns", "x = 1", "spin = turns:x", "mixer: .*TokenMixer"),
}


@pytest.mark.parametrize(
    ("package", "code", "point", "message"), WRONG_POINTS.values(), ids=WRONG_POINTS
)
def test_wrong_entry_points_name_their_package(
    install: Any, package: str, code: str, point: str, message: str
) -> None:
    install(package, code, {"mixers": point})
    with pytest.raises(rm.InputError, match=rf"'spin'.*\bturns\b.*{message}"):
        rm.mixer_card("spin")


def test_duplicate_name_is_skipped_with_a_warning(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("rival", PLUGIN, {"mixers": "softmax = rival:Turn"})
    with pytest.warns(InputWarning, match=r"'softmax'.*\brival\b.*rifflemix\.mix"):
        assert rm.list_mixers()[0] == "softmax"
    assert rm.mixer_card("softmax").title == "Softmax attention"
    two = [
        EntryPoint("spin", "first:A", "rifflemix.mixers")._for(SimpleNamespace(name="first")),
        EntryPoint("spin", "second:A", "rifflemix.mixers")._for(SimpleNamespace(name="second")),
    ]  # type: ignore[attr-defined]
    monkeypatch.setattr(loading, "entry_points", lambda group: two)
    mixers._ENTRY_POINTS.forget()
    with pytest.warns(InputWarning, match=r"'spin'.*\bsecond\b.*\bfirst\b"):
        assert rm.list_mixers().count("spin") == 1
