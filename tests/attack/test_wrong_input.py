"""Grammar of invalid command lines and calls: exit code 2 and one line, no traceback."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from attack_operators import CLOSE, EXACT
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import rifflemix as rm
import rifflemix.cli
from rifflemix.cli.app import app
from rifflemix.errors import InputError
from rifflemix.lab.tasks import list_tasks
from rifflemix.mixers import list_mixers

Words = list[str]
BENCHES = ("ops", "decode", "layers", "models", "parallel", "published", "scaling", "lra")
# Words that no command accepts. The option or position of a word is drawn.
JUNK = st.one_of(
    st.sampled_from(
        ["", " ", "-", "--", "---", "=", "a=", "=a", "a=b=c", ".", "..", "/", "~nosuchuser/x", "\\",
         "%s", "{}", "None", "null", "nan", "inf", "-inf", "1e400", "0x10", "1_000", "٣", "½", "-0",
         "9" * 30, "-" + "9" * 30, "[" * 200, '{"a":' * 200, "a" * 5000, "\U0001f600", "\udc80",
         "$(id)", ";", "a,b,,c", ",", "true", "1.5", "--help=1", "-x", "@file", "*", "\n", "\t"]
    ),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12),
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=True).map(str),
)  # fmt: skip
# Required arguments of each command. OUT is replaced by a writable folder.
NEEDED: dict[str, Words] = {
    "compare": ["--task", "digits", "--mixers", "average", "--out", "OUT"],
    "train": ["--task", "digits", "--mixer", "average", "--out", "OUT"],
    "reproduce": ["sinkhorn/table1-sort-b32", "--out", "OUT"],
    "sweep": ["sinkhorn/table1-sort-b32", "--set", "lr=1e-3,1e-4", "--out", "OUT"],
    "merge": ["OUT", "OUT", "--out", "OUT"],
    "report": ["OUT"],
    "analyze": ["spectrum", "encoder", "--out", "OUT"],
    "predict": ["OUT", "--data", "OUT", "--out", "OUT"],
    "export": ["OUT", "--out", "OUT"],
    "convert": ["OUT", "--mixer", "csp", "--data", "OUT", "--out", "OUT"],
    "generate": ["OUT", "--prompt", "a"],
    "work": ["OUT"],
    "doctor": [],
    "list analyses": [],
    "list mixers": [],
    "list models": [],
    "list recipes": [],
    "list tasks": [],
    "data list": [],
    "data prepare": ["digits"],
    **{f"bench {kind}": ["--out", "OUT"] for kind in BENCHES},
}


def options_of_commands() -> dict[str, list[str]]:
    """Return every command with the names of its options."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, list[str]]]:
        if hasattr(command, "commands"):
            for part, inner in command.commands.items():
                yield from walk(inner, f"{name} {part}".strip())
        else:
            yield name, [o for p in command.params for o in p.opts if o.startswith("--")]

    return dict(walk(typer.main.get_command(app), ""))


OPTIONS = options_of_commands()


def test_no_command_is_left_out() -> None:
    assert set(OPTIONS) == set(NEEDED)
    assert "--plugin" in OPTIONS["compare"]


@st.composite
def command_lines(draw: st.DrawFn) -> Words:
    """Draw words after `rifflemix`, with OUT for a writable folder."""
    name = draw(st.sampled_from(list(OPTIONS)))
    words = [*name.split(), *NEEDED[name]]
    for _ in range(draw(st.integers(1, 3))):
        option = draw(st.sampled_from(OPTIONS[name]))
        match draw(st.sampled_from(("value", "value", "value", "bare", "unknown", "word", "cut"))):
            case "value":
                words += [option, draw(JUNK)]
            case "bare":
                words += [option]
            case "unknown":
                words += [option + draw(st.sampled_from(("x", "=", "-", "--")))]
            case "word":
                words.insert(draw(st.integers(0, len(words))), draw(JUNK))
            case "cut":
                words = words[: draw(st.integers(0, len(words)))]
    return words


class WouldRun(BaseException):
    """The command is well-formed, as far as rifflemix can check without running it."""


@contextmanager
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stop commands before they train, measure or generate data."""

    def stop(*_: Any, **__: Any) -> Any:
        raise WouldRun

    with monkeypatch.context() as patch:
        for target in (
            "rifflemix.lab.comparison.run_comparison", "rifflemix.lab.comparison.train_single",
            "rifflemix.lab.comparison.check_model", "rifflemix.lab.tasks.prepare_task",
            "rifflemix.lab.reproduction.run_reproduction",
            "rifflemix.lab.reproduction.plan_reproduction",
            "rifflemix.models.registry.count_parameters", "rifflemix.cli.listing.show_costs",
            "rifflemix.lab.runs.doctor.examine", "rifflemix.lab.analysis.analyze_into",
            "rifflemix.lab.reproduction.sweep.plan_sweep",
            *(f"rifflemix.lab.bench.{kind}.run" for kind in BENCHES),
        ):  # fmt: skip
            patch.setattr(target, stop)
        yield


def run_line(words: Words, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Return the exit code of a command line, or None if it would have run."""
    monkeypatch.setattr(sys, "argv", ["rifflemix", *words])
    try:
        return rifflemix.cli.main()
    except WouldRun:
        return None


def hypothesis_settings(attack: Any, number: int) -> Callable[[Any], Any]:
    """Configure hypothesis: scaled examples, the attack's seed, no database."""

    def decorate(test: Any) -> Any:
        chosen = settings(
            max_examples=attack.scaled(number),
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        return seed(attack.seed)(chosen(test))

    return decorate


def test_wrong_command_lines(
    attack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("OMP_WAIT_POLICY", "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, "99"))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"

    @hypothesis_settings(attack, 250)
    @given(line=command_lines())
    def one(line: Words) -> None:
        words = [str(out) if word == "OUT" else word for word in line]
        shutil.rmtree(out, ignore_errors=True)  # of a line that would have run
        capfd.readouterr()
        code = run_line(words, monkeypatch)
        said = capfd.readouterr()
        attack.count("cases")
        assert "Traceback" not in said.err
        if code == 2:
            attack.count("refused")
            lines = said.err.splitlines()
            errors = [text for text in lines if text.startswith("error: ")]
            assert len(errors) == 1, (words, said.err)
            assert lines[-1] == errors[0], (words, said.err)
            assert not out.exists(), words
        else:
            assert code in (None, 0), (words, code, said.err)

    with nothing_runs(monkeypatch):
        one()


# Invalid calls.

VALUES = st.one_of(
    st.sampled_from(
        [None, True, False, 0, -1, 1.5, float("nan"), float("inf"), 10**40, -(10**40), "", "csp",
         "yes", b"x", [], {}, (), [[1]], {"a": 1}, object, len, ..., 1j, Path("/nowhere"),
         np.int8(3), np.float32("nan"), np.array([]), np.array(["a"])]
    ),
    st.builds(
        lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        st.lists(st.integers(0, 5), max_size=5).map(tuple),
        st.sampled_from(
            [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool,
             torch.complex64]
        ),
    ),
    st.sampled_from(
        [torch.zeros(2, 8, 4, device="meta"), torch.zeros(2, 8, 4).to_sparse(), torch.tensor(3)]
    ),
)  # fmt: skip


def test_wrong_calls_of_operators(attack: Any) -> None:
    """A call with one random argument raises InputError, or the value was valid."""
    names = [*EXACT, *CLOSE]

    @hypothesis_settings(attack, 300)
    @given(
        name=st.sampled_from(names),
        number=st.integers(0, 40),
        where=st.integers(0, 20),
        value=VALUES,
        backend=st.sampled_from(("auto", "eager")),
    )
    def one(name: str, number: int, where: int, value: Any, backend: str) -> None:
        call = (EXACT | CLOSE)[name](random.Random(f"{name}/{number}"))
        if sum(x.numel() for x in call.tensors) > 3000:
            return
        arguments: list[Any] = list(call.tensors)
        options: dict[str, Any] = {**call.settings, "backend": backend}
        place = where % (len(arguments) + len(options))
        if place < len(arguments):
            arguments[place] = value
        else:
            options[list(options)[place - len(arguments)]] = value
        attack.count("cases")
        try:
            call.function(*arguments, **options)
        except InputError as error:
            attack.refused(error)

    one()


CALLS: dict[str, Callable[[Any], Any]] = {
    "mixer": lambda v: rm.create_mixer(v, 8),
    "dim": lambda v: rm.create_mixer("csp", v),
    "heads": lambda v: rm.create_mixer("tssa", 8, num_heads=v),
    "length": lambda v: rm.create_mixer("tssa", 8, max_length=v, causal=True),
    "dropout": lambda v: rm.create_mixer("softmax", 8, dropout=v),
    "groups": lambda v: rm.create_mixer("csp", 8, num_groups=v),
    "forward": lambda v: rm.create_mixer("csp", 4)(v),
    "maps": lambda v: rm.ops.block_mlp(torch.zeros(2, 4), v),
    "map": lambda v: rm.ops.block_mlp(torch.zeros(2, 4), [v]),
    "padding": lambda v: rm.create_mixer("tssa", 4)(torch.zeros(2, 8, 4), key_padding_mask=v),
    "step": lambda v: rm.create_mixer("tssa", 4, causal=True).step(torch.zeros(2, 4), v),
    "batch": lambda v: rm.create_mixer("tssa", 4, causal=True).init_state(v),
    "model": lambda v: rm.create_model(v),
    "card": lambda v: rm.mixer_card(v),
    "task": lambda v: rm.tasks.load_task(v),
    "data_dir": lambda v: rm.tasks.load_task("text", data_dir=v),
    "arrays": lambda v: rm.Task.from_arrays(v, [0, 1]),
    "labels": lambda v: rm.Task.from_arrays(np.zeros((40, 3)), v),
    "replace": lambda v: rm.replace_attention(v, "tssa"),
    "compare": lambda v: rm.compare(v, ["csp"]),
    "mixers": lambda v: rm.compare("digits", v, seeds=0),
    "steps": lambda v: rm.train.TrainConfig(max_steps=v),
    "lr": lambda v: rm.train.TrainConfig(lr=v),
}


def test_wrong_calls_of_the_package(attack: Any) -> None:
    @hypothesis_settings(attack, 250)
    @given(name=st.sampled_from(list(CALLS)), value=VALUES)
    def one(name: str, value: Any) -> None:
        if name == "mixers" and isinstance(value, str) and value in list_mixers():
            return
        if name == "compare" and isinstance(value, str) and value in list_tasks():
            return
        attack.count("cases")
        try:
            CALLS[name](value)
        except InputError as error:
            attack.refused(error)

    one()
