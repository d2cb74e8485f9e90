"""Third-party mixers, tasks and models from decorators, and the checks of a comparison."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
import rifflemix.cli
import rifflemix.mixers.registry as mixers
from rifflemix.lab.runs.build_for_task import checked_mixers
from rifflemix.lab.tasks import TaskCard, card_of, load_task, task_card
from rifflemix.models import ModelCard
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


class Shift(rm.TokenMixer):
    """Replaces each token by a projection of the previous token."""

    card = CARD

    def __init__(self, dim: int, *, gain: float = 1.0, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.proj = nn.Linear(dim, dim)
        self.gain = gain

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if key_padding_mask is not None:  # the previous valid token, across padding
            order = key_padding_mask.int().argsort(dim=1, stable=True).unsqueeze(2).expand_as(x)
            moved = self._moved(x.gather(1, order))
            return torch.zeros_like(moved).scatter(1, order, moved)
        return self._moved(x)

    def _moved(self, x: Tensor) -> Tensor:
        return self.gain * self.proj(nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])


def test_a_registered_mixer_fulfils_the_contract_and_is_listed() -> None:
    check_mixer(Shift)  # unregistered mixers can be checked too
    assert rm.register_mixer(Shift) is Shift
    assert mixers.mixer_class("shift") is Shift
    assert rm.list_mixers()[-1] == "shift"
    assert rm.mixer_card("shift") is CARD
    model = rm.create_model("encoder", vocab_size=9, max_length=8, dim=8, mixer="shift")
    assert any(isinstance(module, Shift) for module in model.modules())
    with pytest.raises(rm.InputError, match=r"\bshift: .*gain, got 'gian'"):
        rm.create_mixer("shift", 8, gian=2.0)


def with_card(**changes: Any) -> Any:
    return type("Other", (Shift,), {"card": replace(CARD, **changes)})


class NoShared(Shift):
    card = replace(CARD, name="no_shared")

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


WRONG_MIXERS: dict[str, tuple[Any, str]] = {
    "no mixer": (nn.Linear, "mixer: .*TokenMixer, got Linear"),
    "an instance": (Shift(4), "TokenMixer, got a Shift"),
    "no card": (type("Bare", (rm.TokenMixer,), {}), "Bare: .*MixerCard, got None"),
    "no mix": (type("Bare", (rm.TokenMixer,), {"card": CARD}), r"\bmix\b"),
    "space": (with_card(name="my mixer"), "name.*'my mixer'"),
    "dot": (with_card(name="a.b"), r"name.*'a\.b'"),
    "comma": (with_card(name="a,b"), "name.*'a,b'"),
    "number": (with_card(name=3), "Other, name: .*got 3"),
    "taken": (with_card(name="csp"), r"'csp'.*rifflemix\.mixers\.csp\.CSP"),
    "no title": (with_card(title=""), "Other, title: "),
    "cost": (with_card(cost_exponent=float("nan")), "cost_exponent: .*got nan"),
    "text cost": (with_card(cost_exponent="1"), "cost_exponent: .*got '1'"),
    "causal": (with_card(causal=1), "causal: .*got 1"),
    "stream": (with_card(causal=False, streaming=True), "streaming: .*False.*causal"),
    "arguments": (NoShared, r"NoShared\.__init__: .*num_heads.*\*\*shared"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG_MIXERS.values(), ids=WRONG_MIXERS)
def test_wrong_mixers_are_refused_in_one_sentence(wrong: Any, message: str) -> None:
    before = rm.list_mixers()
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.register_mixer(wrong)
    assert "\n" not in str(caught.value)
    assert rm.list_mixers() == before


def test_redefined_class_replaces_only_itself() -> None:
    def cell(gain: float) -> type[rm.TokenMixer]:
        class Again(Shift):
            card = replace(CARD, name="again")

            def __init__(self, dim: int, **shared: Any) -> None:
                super().__init__(dim, gain=gain, **shared)

        return Again

    for gain in (2.0, 3.0):  # like a notebook cell that runs twice
        rm.register_mixer(cell(gain))
        assert rm.create_mixer("again", 4).gain == gain
    assert rm.list_mixers().count("again") == 1
    with pytest.raises(rm.InputError, match=r"'again'.*test_plugins"):
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
            return self.head(self.mixer(self.into(x)).mean(1))

    model = rm.create_model("pooled", in_channels=3)
    assert model.into.out_features == 6
    assert "pooled" in rm.list_models()
    model.save_pretrained(tmp_path)
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(from_pretrained(tmp_path)(x), model(x))

    with pytest.raises(rm.InputError, match=r"wide: .*'width'"):
        rm.register_model(replace(card, name="wide"), width=3)(Pooled)
    with pytest.raises(rm.InputError, match=r"'encoder'.*rifflemix"):
        rm.register_model(replace(card, name="encoder"))(Pooled)
    with pytest.raises(rm.InputError, match=r"model: .*ModelCard"):
        rm.register_model(Pooled)  # type: ignore[arg-type] # the mistake
    with pytest.raises(rm.InputError, match=r"printed: .*got nine"):
        rm.register_model(replace(card, printed="nine"))
    with pytest.raises(rm.InputError, match=r"printed_macs: .*got 20\.73"):
        rm.register_model(replace(card, printed_macs="20.73"))
    rm.register_model(replace(card, name="bare"))(lambda: nn.Linear(2, 2))
    with pytest.raises(rm.InputError, match=r"bare: .*rifflemix\.models\.Model"):
        rm.create_model("bare")


def test_tasks_are_registered_as_class_instance_or_function() -> None:
    from rifflemix.lab.tasks.images.digits import Digits

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
    assert dict(task_card("bands").options) == {"count": 40, "seed": 0, "max_samples": None}
    task = load_task("bands", count=20, seed=3)
    assert (task.name, task.options) == ("bands", {"count": 20, "seed": 3})
    assert len(task.split("test")) == 23
    assert task.fingerprint() != load_task("bands", count=20, seed=4).fingerprint()


def test_function_that_returns_a_registered_task_keeps_its_outputs() -> None:
    @rm.register_task
    def sums(count: int = 4) -> rm.Task:
        return load_task("sort", num_train=count, num_validation=count, num_test=count)

    card = card_of(load_task("sums"))
    assert (card.name, card.output, card.backbone) == ("sums", "sequence", "seq2seq")


def test_a_function_names_its_arrays() -> None:
    """Check that the card uses the function's name, not the arrays' name."""

    @rm.register_task
    def my_arrays(called: str = "arrays") -> rm.Task:
        x = np.arange(40.0, dtype=np.float32).reshape(20, 2)
        return rm.Task.from_arrays(x, np.arange(20) % 2, name=called)

    for options in ({}, {"called": "other"}):
        card = card_of(load_task("my_arrays", **options))
        assert (card.name, card.title) == ("my_arrays", "My arrays")


def test_function_defaults_are_used_for_missing_options(tmp_path: Path) -> None:
    @rm.register_task
    def few(seed: int = 7, data_dir: str | Path = "digits") -> rm.Task:
        return load_task(Path(data_dir).name, max_samples=seed)

    assert load_task("few").options == {"seed": 7}
    assert len(load_task("few").split("test")) == 7
    (tmp_path / "given").mkdir()
    with pytest.raises(rm.InputError, match="task 'given'"):
        load_task("few", data_dir=tmp_path / "given")


def needs_one(x: int) -> None: ...


WRONG_TASKS: dict[str, tuple[Any, str]] = {
    "no task": (7, "card, load, status and prepared"),
    "argument": (needs_one, "needs_one"),
    "no card": (
        SimpleNamespace(load=print, status=print, prepared=print),
        "SimpleNamespace.*TaskCard.*got None",
    ),
    "output": (
        SimpleNamespace(
            load=print, status=print, prepared=print,
            card=TaskCard("t", "T", "s", "l", "d", False, output="numbers"),  # type: ignore[arg-type]
        ),
        "task t, output: .*number",
    ),
    "options": (
        SimpleNamespace(
            load=print, status=print, prepared=print,
            card=TaskCard("t", "T", "s", "l", "d", False, options={"at": Path()}),
        ),
        "task t, options: .*JSON",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG_TASKS.values(), ids=WRONG_TASKS)
def test_wrong_tasks_are_refused_in_one_sentence(wrong: Any, message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.register_task(wrong)


def test_function_that_returns_no_task_is_refused() -> None:
    rm.register_task(lambda_named := _named(lambda: 3, "three"))
    assert lambda_named() == 3
    with pytest.raises(rm.InputError, match=r"three: .*Task, got 3"):
        load_task("three")


def _named(function: Callable[[], Any], name: str) -> Callable[[], Any]:
    function.__name__ = function.__qualname__ = name
    return function


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
    "tuple": (lambda self, x, mask: (x, x), "shape .*, got tuple"),
    "broadcast": (lambda self, x, mask: self.proj(x).mean(1, keepdim=True), r"got \(2, 1, 16\)"),
    "batch": (lambda self, x, mask: self.proj(x) + x.mean(0), "batch"),
    "scale": (
        lambda self, x, mask: self.proj(x) / (1 + x.square().mean(0)),
        "batch",
    ),
    "type": (
        lambda self, x, mask: self.proj(x).double(),
        r"torch\.float32, got torch\.float64",
    ),
    "nan": (lambda self, x, mask: self.proj(x) * torch.nan, "got NaN"),
    "wrong": (lambda self, x, mask: self.missing, r"test_plugins\.py, line \d+: AttributeError"),
    "leaves": (_leave, r"test_plugins\.py, line \d+: SystemExit: 3"),
}


@pytest.mark.parametrize("kind", UNTRUE)
def test_mixer_with_invalid_scores_is_not_compared(kind: str, tmp_path: Path) -> None:
    mix, message = UNTRUE[kind]
    _mixing(f"bad-{kind}", mix)
    out = tmp_path / "out"
    with pytest.raises(rm.InputError, match=f"(?s)bad-{kind}: .*{message}"):
        rm.compare("digits", [f"bad-{kind}"], dim=16, max_steps=1, out=out)
    assert not out.exists()


@pytest.mark.parametrize("reach", [-1, 1])
def test_causal_mixer_that_uses_later_tokens_is_not_compared(reach: int) -> None:
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
        with pytest.raises(rm.InputError, match="causal outputs"):
            model(tokens)


def test_a_causal_mixer_scaled_by_all_tokens_is_not_compared() -> None:
    def scaled(self: Any, x: Tensor, mask: Any) -> Tensor:
        return self.proj(x) / (1 + x.square().mean(1, keepdim=True))

    _mixing("scaled", scaled, causal=True)
    settings = {"dim": 16, "num_layers": 1, "num_heads": 2, "mixer": "scaled"}
    model = rm.create_model("gpt", vocab_size=9, max_length=12, **settings).eval()
    refused = pytest.raises(rm.InputError, match="causal outputs")
    with torch.no_grad(), checked_mixers(model), refused:
        model(torch.randint(1, 9, (2, 12)))


class Pairs(rm.TokenMixer):
    """Has a tuple option."""

    card = replace(CARD, name="pairs", causal=False)

    def __init__(self, dim: int, *, sizes: tuple[int, ...] = (1,), **shared: Any) -> None:
        super().__init__(dim, **shared)
        assert type(sizes) is tuple
        self.proj = nn.Linear(dim, dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self.proj(x)


def test_tuple_option_stays_a_tuple_after_storage(tmp_path: Path) -> None:
    rm.register_mixer(Pairs)
    settings: dict[str, Any] = {"dim": 16, "num_layers": 1, "max_steps": 1, "out": tmp_path / "out"}
    mixers = {"two": ("pairs", {"sizes": (1, np.int64(2))})}
    first = rm.compare("digits", mixers, **settings)
    assert rm.compare("digits", mixers, **settings).results["runs"] == first.results["runs"]
    with pytest.raises(rm.InputError, match="sizes of two"):
        rm.compare("digits", {"two": ("pairs", {"sizes": len})}, **settings)


def test_redefined_class_does_not_resume_old_runs(
    tmp_path: Path,
) -> None:
    def define(gain: float) -> None:
        exec(  # like a notebook cell without a file
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
