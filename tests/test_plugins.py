"""Mixers, tasks and models from outside: decorators, files and entry points."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
import rifflemix.cli
import rifflemix.mixers.named as mixers
import rifflemix.models.presets as presets
import rifflemix.tasks.registry as tasks
from rifflemix.errors import InputWarning
from rifflemix.models import ModelCard
from rifflemix.plugins import load_plugin, loading, outside, plugin_files
from rifflemix.runs.outside import checked_mixers
from rifflemix.tasks import TaskCard, load_task, task_card
from rifflemix.testing import check_mixer

pytestmark = pytest.mark.usefixtures("registries")

CARD = rm.MixerCard(
    name="shift",
    title="Shift",
    paper="nobody, never",
    equations="y_n = g W x_(n-1)",
    complexity="O(N C)",
    cost_exponent=1.0,
    causal=True,
)

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


class Shift(rm.TokenMixer):
    """Every token becomes a map of the one before it."""

    card = CARD

    def __init__(self, dim: int, *, gain: float = 1.0, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.proj = nn.Linear(dim, dim)
        self.gain = gain

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if key_padding_mask is not None:  # the valid token before, whatever stands between
            order = key_padding_mask.int().argsort(dim=1, stable=True).unsqueeze(2).expand_as(x)
            moved = self._moved(x.gather(1, order))
            return torch.zeros_like(moved).scatter(1, order, moved)
        return self._moved(x)

    def _moved(self, x: Tensor) -> Tensor:
        y: Tensor = self.gain * self.proj(nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])
        return y


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my-turn.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


# Decorators


def test_a_registered_mixer_fulfils_the_contract_and_is_listed() -> None:
    check_mixer(Shift)  # what is not registered can be checked, too
    assert rm.register_mixer(Shift) is Shift
    assert mixers.mixer_class("shift") is Shift
    assert rm.list_mixers()[-1] == "shift"
    assert rm.mixer_card("shift") is CARD
    model = rm.create_model("encoder", vocab_size=9, max_length=8, dim=8, mixer="shift")
    assert any(isinstance(module, Shift) for module in model.modules())
    with pytest.raises(rm.InputError, match="options of shift: expected gain, got 'gian'"):
        rm.create_mixer("shift", 8, gian=2.0)


def with_card(**changes: Any) -> Any:
    return type("Other", (Shift,), {"card": replace(CARD, **changes)})


class NoShared(Shift):
    card = replace(CARD, name="no_shared")

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


WRONG_MIXERS: dict[str, tuple[Any, str]] = {
    "no mixer": (nn.Linear, "mixer: expected a subclass of TokenMixer, got Linear"),
    "an instance": (Shift(4), "expected a subclass of TokenMixer, got a Shift"),
    "no card": (type("Bare", (rm.TokenMixer,), {}), "card of Bare: expected a MixerCard, got None"),
    "no mix": (type("Bare", (rm.TokenMixer,), {"card": CARD}), "expected a method mix"),
    "space": (with_card(name="my mixer"), "name of the mixer: expected a letter.*'my mixer'"),
    "dot": (with_card(name="a.b"), "name of the mixer"),
    "comma": (with_card(name="a,b"), "name of the mixer"),
    "number": (with_card(name=3), "card of Other, name: expected a str, got 3"),
    "taken": (with_card(name="csp"), "'csp' is registered already, by rifflemix.mixers.csp.CSP"),
    "no title": (with_card(title=""), "card of Other, title: expected a text, got an empty one"),
    "cost": (with_card(cost_exponent=float("nan")), "cost_exponent: expected a number above 0"),
    "text cost": (with_card(cost_exponent="1"), "cost_exponent: expected a float, got '1'"),
    "causal": (with_card(causal=1), "causal: expected a bool, got 1"),
    "stream": (with_card(causal=False, streaming=True), "streaming: expected False where causal"),
    "arguments": (NoShared, "NoShared.__init__: expected dim and num_heads, .*pass \\*\\*shared"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG_MIXERS.values(), ids=WRONG_MIXERS)
def test_wrong_mixers_are_refused_in_one_sentence(wrong: Any, message: str) -> None:
    before = rm.list_mixers()
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.register_mixer(wrong)
    assert "\n" not in str(caught.value)
    assert rm.list_mixers() == before


def test_a_class_defined_again_takes_its_own_place_and_no_other() -> None:
    def cell(gain: float) -> type[rm.TokenMixer]:
        class Again(Shift):
            card = replace(CARD, name="again")

            def __init__(self, dim: int, **shared: Any) -> None:
                super().__init__(dim, gain=gain, **shared)

        return Again

    for gain in (2.0, 3.0):  # as a cell of a notebook that is run twice
        rm.register_mixer(cell(gain))
        assert rm.create_mixer("again", 4).gain == gain
    assert rm.list_mixers().count("again") == 1
    with pytest.raises(rm.InputError, match="'again' is registered already, by test_plugins"):
        rm.register_mixer(with_card(name="again"))


def test_a_registered_model_is_built_compared_and_saved(tmp_path: Path) -> None:
    from rifflemix.models import Model, from_pretrained

    card = ModelCard(name="pooled", title="A mean", paper="nobody", inputs="vectors")

    @rm.register_model(card, dim=6)
    class Pooled(Model):
        def __init__(
            self, in_channels: int = 2, num_classes: int = 2, dim: int = 4, mixer: str = "softmax"
        ) -> None:
            super().__init__()
            self.into, self.mixer = nn.Linear(in_channels, dim), rm.create_mixer(mixer, dim)
            self.head = nn.Linear(dim, num_classes)

        def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
            y: Tensor = self.head(self.mixer(self.into(x)).mean(1))
            return y

    model = rm.create_model("pooled", in_channels=3)
    assert model.into.out_features == 6
    assert "pooled" in rm.list_models()
    model.save_pretrained(tmp_path)
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(from_pretrained(tmp_path)(x), model(x))

    with pytest.raises(rm.InputError, match=r"settings of wide: expected .*'width'"):
        rm.register_model(replace(card, name="wide"), width=3)(Pooled)
    with pytest.raises(rm.InputError, match="'encoder' is registered already"):
        rm.register_model(replace(card, name="encoder"))(Pooled)
    with pytest.raises(rm.InputError, match="card of the model: expected a ModelCard"):
        rm.register_model(Pooled)  # type: ignore[arg-type] # the mistake
    with pytest.raises(rm.InputError, match="printed: expected a count"):
        rm.register_model(replace(card, printed="nine"))
    with pytest.raises(rm.InputError, match="printed_macs: expected a count"):
        rm.register_model(replace(card, printed_macs="20.73"))
    rm.register_model(replace(card, name="bare"))(lambda: nn.Linear(2, 2))
    with pytest.raises(
        rm.InputError, match=r"what builds bare: expected a rifflemix\.models\.Model"
    ):
        rm.create_model("bare")


def test_tasks_are_registered_as_class_instance_or_function() -> None:
    from rifflemix.tasks.images.digits import Digits

    card = replace(Digits.card, name="my_digits")
    cls: Any = type("MyDigits", (Digits,), {"card": card})
    assert rm.register_task(cls) is cls
    assert task_card("my_digits").title == "Handwritten digits"
    other = cls()
    other.card = replace(card, name="other_digits")
    rm.register_task(other)
    assert load_task("other_digits", patch_size=4).name == "other_digits"

    @rm.register_task
    def bands(count: int = 40, *, seed: int = 0) -> rm.Task:
        """Which half
        is brighter?"""
        return load_task("digits", patch_size=4, max_samples=count + seed)

    assert task_card("bands").description == "Which half is brighter?"
    assert dict(task_card("bands").options) == {"count": 40, "max_samples": None}
    task = load_task("bands", count=20, seed=3)
    assert (task.name, task.options["count"]) == ("bands", 20)
    assert len(task.split("test")) == 23
    assert task.fingerprint() != load_task("bands", count=20, seed=4).fingerprint()


def needs_one(x: int) -> None: ...


WRONG_TASKS: dict[str, tuple[Any, str]] = {
    "no task": (7, "expected a task with a card, load, status and prepared.*without load"),
    "argument": (needs_one, "function needs_one: expected arguments with defaults, got x"),
    "no card": (
        SimpleNamespace(load=print, status=print, prepared=print),
        "card of SimpleNamespace: expected a TaskCard, got None",
    ),
    "output": (
        SimpleNamespace(
            load=print, status=print, prepared=print,
            card=TaskCard("t", "T", "s", "l", "d", False, output="numbers"),  # type: ignore[arg-type]
        ),
        "card of task t, output: expected one of classes, .*did you mean number",
    ),
    "options": (
        SimpleNamespace(
            load=print, status=print, prepared=print,
            card=TaskCard("t", "T", "s", "l", "d", False, options={"at": Path()}),
        ),
        "card of task t, options: expected values that JSON has",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG_TASKS.values(), ids=WRONG_TASKS)
def test_wrong_tasks_are_refused_in_one_sentence(wrong: Any, message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.register_task(wrong)


def test_a_function_that_returns_no_task_is_told_so() -> None:
    rm.register_task(lambda_named := _named(lambda: 3, "three"))
    assert lambda_named() == 3
    with pytest.raises(rm.InputError, match="function three: expected it to return a Task, got 3"):
        load_task("three")


def _named(function: Callable[[], Any], name: str) -> Callable[[], Any]:
    function.__name__ = function.__qualname__ = name
    return function


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
    "past exceptions": ("raise BaseException('no')", "my-turn.py, line 1: BaseException: no"),
    "mute": ("class E(Exception):\n    __str__ = 1\nraise E", "line 3: E: no message"),
    "syntax": ("x = (", "line 1: SyntaxError: '\\(' was never closed"),
    "raises": ("import os\n\nos.environs", "line 3: AttributeError: module 'os' has no"),
    "exits": ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
    "nothing": ("x = 1", "expected it to register a mixer, task or model, it registers none"),
    "taken": (PLUGIN.replace('"turn"', '"tssa"'), "'tssa' is registered already"),
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
    load_plugin(plugin)  # once mended


def test_what_is_no_python_file_is_refused(tmp_path: Path, plugin: Path) -> None:
    for path in (tmp_path, tmp_path / "none.py", plugin.rename(tmp_path / "turn.txt")):
        with pytest.raises(rm.InputError, match=r"plugin: expected a Python file, NAME\.py, got"):
            load_plugin(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nosuchuser/mine.py", "a path whose ~ stands for a user's folder, got ~nosuchuser"),
        (5, "a path, got 5"),
    ],
)
def test_what_is_no_path_is_refused(path: Any, words: str) -> None:
    with pytest.raises(rm.InputError, match=f"plugin: expected {words}"):
        load_plugin(path)


def test_two_files_of_one_name_are_refused(tmp_path: Path, plugin: Path) -> None:
    load_plugin(plugin)
    (tmp_path / "more").mkdir()
    other = tmp_path / "more" / "my_turn.py"
    other.write_text(PLUGIN.replace("turn", "turn2"))
    with pytest.raises(rm.InputError, match="plugin: expected files of different names"):
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
    assert "which is not there" in err


@pytest.mark.slow
def test_a_comparison_with_a_file_holds_its_sha256(cli: Any, plugin: Path, tmp_path: Path) -> None:
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
    assert "was started with plugins.my-turn.py = " in err


@pytest.mark.slow
def test_processes_started_from_here_know_the_file(plugin: Path) -> None:
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


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, dict[str, str]], None]:
    """Packages with entry points, as an installer leaves them."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(package: str, code: str, points: dict[str, str]) -> None:
        (tmp_path / f"{package}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[rifflemix.{group}]\n{point}\n" for group, point in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, package, raising=False)
        for registry in (mixers, tasks, presets):
            registry._OUTSIDE.forget()

    return write


def test_entry_points_are_listed_without_an_import(install: Any) -> None:
    undecorated = PLUGIN.replace("@rm.register_mixer\n", "")
    install("turns", undecorated, {"mixers": "turn = turns:Turn", "tasks": "halves = turns:halves"})
    assert rm.list_mixers()[-1] == "turn"
    assert rm.tasks.list_tasks()[-1] == "halves"
    assert "turns" not in sys.modules
    assert rm.mixer_card("turn").title == "Turn"
    assert "turns" in sys.modules
    assert len(load_task("halves", count=7).split("train")) == 7


def test_a_broken_package_warns_once_and_stops_nothing(install: Any, cli: Any) -> None:
    install("broken", "import nothing_of_this_name", {"mixers": "gone = broken:Gone"})
    assert "gone" in rm.list_mixers()
    message = "mixer 'gone' of package broken cannot be used: ModuleNotFoundError: No module"
    with pytest.warns(InputWarning, match=message):
        assert "gone" not in mixers.usable_mixers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "gone" not in mixers.usable_mixers()
        assert "gone" not in rm.list_mixers()
    with pytest.raises(rm.InputError, match=message):
        rm.create_mixer("gone", 8)

    mixers._OUTSIDE.forget()
    code, out, err = cli("list", "mixers", "--json")
    assert code == 0
    assert len(json.loads(out)) == len(rm.list_mixers())
    assert err.startswith("warning: mixer 'gone' of package broken")
    assert err.count("\n") == 1
    code, _, err = cli("bench", "layers", "--mixers", "gone")
    assert (code, err.count("\n")) == (2, 1)
    assert "package broken" in err


WRONG_POINTS = {
    "another name": ("turns", PLUGIN, "spin = turns:Turn", "turns:Turn registers another name"),
    "no attribute": ("turns", "x = 1", "spin = turns:Turn", "AttributeError: module 'turns' has"),
    "no mixer": ("turns", "x = 1", "spin = turns:x", "mixer: expected a subclass of TokenMixer"),
}


@pytest.mark.parametrize(
    ("package", "code", "point", "message"), WRONG_POINTS.values(), ids=WRONG_POINTS
)
def test_wrong_entry_points_name_their_package(
    install: Any, package: str, code: str, point: str, message: str
) -> None:
    install(package, code, {"mixers": point})
    with pytest.raises(rm.InputError, match=f"'spin' of package turns cannot be used: .*{message}"):
        rm.mixer_card("spin")


def test_a_name_that_is_taken_is_left_out_with_a_warning(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("rival", PLUGIN, {"mixers": "softmax = rival:Turn"})
    with pytest.warns(InputWarning, match="'softmax' of package rival is left out: rifflemix.mix"):
        assert rm.list_mixers()[0] == "softmax"
    assert rm.mixer_card("softmax").title == "Softmax attention"
    two = [
        EntryPoint("spin", "first:A", "rifflemix.mixers")._for(SimpleNamespace(name="first")),
        EntryPoint("spin", "second:A", "rifflemix.mixers")._for(SimpleNamespace(name="second")),
    ]  # type: ignore[attr-defined]
    monkeypatch.setattr(outside, "entry_points", lambda group: two)
    mixers._OUTSIDE.forget()
    with pytest.warns(InputWarning, match="'spin' of package second .* package first has the name"):
        assert rm.list_mixers().count("spin") == 1


def _mixing(name: str, mix: Callable[..., Any], *, causal: bool = False) -> type[rm.TokenMixer]:
    card = replace(CARD, name=name, title=name.title(), causal=causal)

    def build(self: Any, dim: int, **shared: Any) -> None:
        rm.TokenMixer.__init__(self, dim, **shared)
        self.proj = nn.Linear(dim, dim)

    return rm.register_mixer(
        type(name.title(), (rm.TokenMixer,), {"card": card, "__init__": build, "mix": mix})
    )


def _leave(self: Any, x: Tensor, mask: Any) -> Tensor:
    sys.exit(3)


UNTRUE = {
    "tuple": (lambda self, x, mask: (x, x), "tokens' shape .*, got tuple"),
    "broadcast": (lambda self, x, mask: self.proj(x).mean(1, keepdim=True), r"got \(2, 1, 16\)"),
    "batch": (lambda self, x, mask: self.proj(x) + x.mean(0), "whatever the others of its batch"),
    "wrong": (lambda self, x, mask: self.missing, r"test_plugins\.py, line \d+: AttributeError"),
    "leaves": (_leave, r"test_plugins\.py, line \d+: SystemExit: 3"),
}


@pytest.mark.parametrize("kind", UNTRUE)
def test_a_mixer_whose_scores_would_be_worthless_is_not_compared(kind: str, tmp_path: Path) -> None:
    mix, message = UNTRUE[kind]
    _mixing(f"bad-{kind}", mix)
    out = tmp_path / "out"
    with pytest.raises(rm.InputError, match=f"(?s)mixer bad-{kind}: .*{message}"):
        rm.compare("digits", [f"bad-{kind}"], dim=16, max_steps=1, out=out)
    assert not out.exists()


@pytest.mark.parametrize("reach", [-1, 1])
def test_a_causal_mixer_that_looks_ahead_is_not_compared(reach: int) -> None:
    def shifted(self: Any, x: Tensor, mask: Any) -> Tensor:
        return self.proj(x) + nn.functional.pad(x, (0, 0, reach, -reach))

    _mixing("shifted", shifted, causal=True)
    model = rm.create_model(
        "gpt", vocab_size=9, max_length=12, dim=16, num_layers=1, num_heads=2, mixer="shifted"
    ).eval()
    tokens = torch.randint(1, 9, (2, 12))
    with torch.no_grad(), checked_mixers(model):
        if reach == 1:
            model(tokens)
            return
        with pytest.raises(rm.InputError, match="expected causal outputs, got some that change"):
            model(tokens)


def test_a_class_that_is_defined_anew_does_not_go_on_with_the_runs_of_the_old_one(
    tmp_path: Path,
) -> None:
    def define(gain: float) -> None:
        exec(  # as a notebook's cell, which has no file
            "@rm.register_mixer\nclass Cell(rm.TokenMixer):\n"
            "    card = replace(CARD, name='cell', title='Cell', causal=False)\n"
            "    def __init__(self, dim, **shared):\n"
            "        super().__init__(dim, **shared)\n"
            "        self.proj = nn.Linear(dim, dim)\n"
            f"    def mix(self, x, mask):\n        return {gain} * self.proj(x)\n",
            {"rm": rm, "nn": nn, "replace": replace, "CARD": CARD, "__name__": "__main__"},
        )

    settings: dict[str, Any] = {"dim": 16, "num_layers": 1, "max_steps": 1, "out": tmp_path / "out"}
    define(1.0)
    first = rm.compare("digits", ["cell"], **settings)
    define(1.0)
    assert rm.compare("digits", ["cell"], **settings).results["runs"] == first.results["runs"]
    define(50.0)
    with pytest.raises(rm.InputError, match="mixer cell"):
        rm.compare("digits", ["cell"], **settings)
