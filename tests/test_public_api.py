"""The frozen public names."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rifflemix as rm

MIXER_ARGUMENTS = [
    "name",
    "dim",
    "num_heads",
    "max_length",
    "layer_index",
    "num_layers",
    "causal",
    "dropout",
    "options",
]


def test_every_exported_name_exists() -> None:
    for name in rm.__all__:
        assert getattr(rm, name) is not None
    assert set(rm.__all__) <= set(dir(rm))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="attribute 'wings'"):
        _ = rm.wings


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("create_mixr", r"\bcreate_mixer\b"),
        ("Compare", r"\bcompare\?"),
        ("TSSA", r"rifflemix\.create_mixer\('tssa', dim\)"),
        ("attention", r"rifflemix\.create_mixer\('softmax', dim\)"),
    ],
)
def test_misspelt_names_suggest_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"attribute {name!r}.*{hint}"):
        getattr(rm, name)


def test_modules_and_private_names_get_no_hint() -> None:
    """Check `from rifflemix import cli`: a name lookup must not import torch."""
    for name in ("cli", "_private", "__path_of_wings__"):
        with pytest.raises(AttributeError, match=f"attribute {name!r}$"):
            rm.__getattr__(name)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"name": "TSSA"}, r"'TSSA'.*\btssa\?"),
        ({"name": "attention"}, r"'attention'.*\bsoftmax\?"),
        ({"name": "token-parallel"}, r"'token-parallel'.*\btoken_parallel\?"),
        ({"heads": 2}, r"got 'heads'.*\bnum_heads\?"),
        ({"is_causal": True}, r"got 'is_causal'.*\bcausal\?"),
        ({"max_seq_len": 64}, r"got 'max_seq_len'.*\bmax_length\?"),
        ({"temprature": 1.0}, r"\btssa: .*got 'temprature'"),
    ],
    ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else "",
)
def test_names_of_other_libraries_suggest_the_rifflemix_name(
    arguments: dict[str, object], hint: str
) -> None:
    with pytest.raises(rm.InputError, match=hint):
        rm.create_mixer(**{"name": "tssa", "dim": 8} | arguments)


PROBE = """
import rifflemix as rm
rm.create_mixer("tssa", 8)
rm.crate_mixer("tssa", 8)
rm.train
rm.trian
"""


@pytest.mark.slow
def test_type_checkers_find_misspelt_names(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    options = ["--config-file=", "--follow-imports=skip", f"--cache-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(probe), str(Path(rm.__file__))],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [re.findall(r"probe.py:(\d+)", line) for line in errors] == [["4"], ["6"]], done.stdout
    assert all('Module has no attribute "' in line for line in errors)


def test_create_mixer_signature() -> None:
    parameters = inspect.signature(rm.create_mixer).parameters
    assert list(parameters) == MIXER_ARGUMENTS
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "num_heads": 1,
        "max_length": None,
        "layer_index": 0,
        "num_layers": 1,
        "causal": False,
        "dropout": 0.0,
    }


SIGNATURES = {
    "circular_shift": "x, steps, *, key_padding_mask=None",
    "shift_steps": "kind, num_tokens, num_channels, *, layer_index=0, num_layers=1",
    # order=None means "reference", or "ascending" together with `descending`
    "group_sort": "x, num_groups=1, *, order=None, descending=None, key_padding_mask=None",
    "interleave_columns": "num_channels, layer_index, *, heads=1, reverse=False, num_layers=None",
    "max_exchange": "x, *, key_padding_mask=None",
    "channel_permute": "x, steps, num_groups, *, order='reference', key_padding_mask=None",
    "token_statistics": (
        "w, temperature, *, normalize=True, key_padding_mask=None, return_membership=False"
    ),
    "causal_token_statistics": (
        "w, temperature, denominator_bias=None, *, initial_state=None, return_state=False"
    ),
    "sinkhorn": "log_scores, num_iterations, *, causal=False",
    "butterfly_strides": "length, block",
    "butterfly_split": "x, block, stride, dim=1",
    "butterfly_merge": "y, stride, dim=1",
    "block_mlp": "x, maps",
    "block_linear": "x, weight, bias=None, *, in_stride=1, out_stride=1",
    "linear_recurrence": (
        "q, k, v, *, log_decay=None, beta=None, erase=None, initial_state=None, "
        "return_state=False, key_padding_mask=None, cu_seqlens=None"
    ),
}
NO_BACKEND = {"shift_steps", "interleave_columns", "butterfly_strides"}
INDEXED = {"circular_shift", "group_sort", "max_exchange", "channel_permute"}


@pytest.mark.parametrize(("name", "signature"), SIGNATURES.items(), ids=SIGNATURES)
def test_operator_signatures(name: str, signature: str) -> None:
    """Check that the frozen arguments come first, in order, with their defaults."""
    operator = getattr(rm.ops, name)
    frozen = inspect.signature(eval(f"lambda {signature}: None")).parameters
    actual = inspect.signature(operator).parameters
    for argument, parameter in frozen.items():
        assert argument in actual
        assert actual[argument].kind == parameter.kind
        assert actual[argument].default == parameter.default
    positional = [n for n, p in frozen.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(actual)[: len(positional)] == positional
    if name not in NO_BACKEND:
        assert actual["backend"].default == "auto"
    if name in INDEXED:
        assert actual["return_indices"].default is False
