"""Untrusted JSON: invalid files and options raise an error of one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest

from rifflemix.cli.options import parse_value
from rifflemix.errors import InputError
from rifflemix.files import read_json, read_json_lines
from rifflemix.json_values import check_json, parse_json
from rifflemix.lab.reproduction import load_results
from rifflemix.models import from_pretrained

DEEP = {"list": "[" * 100_000, "closed": "[" * 65 + "]" * 65, "object": '{"a":' * 100_000}
INVALID_JSON = {**DEEP, "surrogate": '{"\\ud800": 1}', "": ""}


@pytest.mark.parametrize("text", INVALID_JSON.values(), ids=INVALID_JSON.keys())
def test_invalid_json_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the parser's own words)
        parse_json(text)
    path = tmp_path / "x.json"
    path.write_text(text + "\n")
    for read in (read_json, read_json_lines):
        with pytest.raises(InputError, match=r"x\.json\b.*damaged"):
            read(path)


def test_json_as_deep_as_allowed() -> None:
    assert parse_json("[" * 64 + "]" * 64) is not None
    assert parse_json('{"a": [1, "\\ud83d\\ude00", null]}') == {"a": [1, "\U0001f600", None]}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_option_with_deeply_nested_json_is_a_text(text: str) -> None:
    assert parse_value(text, None, "--task-option x") == text


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_report_skips_files_with_deeply_nested_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    assert load_results([tmp_path]) == []
    with pytest.raises(InputError, match=r"x\.json\b.*`rifflemix reproduce`"):
        load_results([tmp_path / "x.json"])


def test_saved_model_with_a_deeply_nested_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP["list"])
    with pytest.raises(InputError, match=r"config\.json\b.*JSON"):
        from_pretrained(tmp_path)


class Place(TypedDict):
    x: int
    note: str | None


@dataclass
class Route:
    places: list[Place]
    lengths: dict[str, float]
    anything: Any


GOOD = {"places": [{"x": 1, "note": None}], "lengths": {"a": 1, "b": 0.5}, "anything": []}


def test_json_of_a_type() -> None:
    check_json(GOOD, Route, "route")
    check_json({**GOOD, "more": 1}, Route, "route")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"places": 5}, r"route\.places\b.*got 5"),
        ({"places": [{}]}, r"route\.places\[0\]\.x\b.*got none"),
        ({"places": [{"x": True, "note": ""}]}, r"places\[0\]\.x\b.*got True"),
        ({"places": [{"x": 1.0, "note": ""}]}, r"places\[0\]\.x\b.*got 1\.0"),
        ({"places": [{"x": 1, "note": 3}]}, "note .*got 3"),
        ({"lengths": {"a": float("nan")}}, r"lengths\.a\b.*got nan"),
        ({"lengths": {"a": 10**400}}, r"lengths\.a\b.*got 1000"),
        ({"lengths": []}, r"lengths\b.*got \[\]"),
    ],
)
def test_json_of_another_type(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_json({**GOOD, **changes}, Route, "route")
