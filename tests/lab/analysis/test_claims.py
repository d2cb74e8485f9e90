"""Check that docs/claims.md agrees with its files, and the files with their commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from claims_modules import claims_module

from rifflemix.lab.analysis import list_analyses

base, script = claims_module("claims.base"), claims_module("run_claims")
writer, listed = claims_module("claims.page"), claims_module("claims.claims")
CLAIMS = writer.claims()
EVIDENCE = list(script.EVIDENCE.values())
MEASURED = [evidence for evidence in EVIDENCE if base.stored(evidence.name) is not None]


def test_claims_of_five_papers_have_one_of_the_verdicts() -> None:
    assert len({claim.paper for claim in CLAIMS}) == 5
    verdicts = {claim.found.verdict for claim in CLAIMS}
    assert verdicts <= set(base.VERDICTS)
    assert base.FAILS in verdicts
    assert base.DEPENDS in verdicts


def test_a_claim_without_a_run_has_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(base, "NUMBERS", tmp_path / "claims.csv")
    for claim in CLAIMS:
        assert claim.found.verdict == base.NOT_RUN


def test_claims_keep_their_numbers() -> None:
    numbers = {claim.number: claim.text for claim in CLAIMS}
    assert sorted(numbers) == sorted(listed.JUDGED) == list(range(1, len(CLAIMS) + 1))
    assert "all ones" in numbers[1]
    assert "decay more slowly" in numbers[2]
    assert "shifting alone" in numbers[3]
    assert "its own map" in numbers[10]
    assert "decay more slowly" in numbers[13]
    assert "quasi-global" in numbers[34]


def test_spectra_are_judged_before_the_output_projection() -> None:
    for number in (2, 3, 13):
        shows = base.judged(*listed.JUDGED[number]).shows
        assert shows.startswith("before the output projection")
        assert all(measure in shows for measure in ("ffective rank", "table rank", "s2/s1"))


@pytest.mark.parametrize("evidence", MEASURED, ids=lambda evidence: evidence.name)
def test_files_come_from_the_command_that_the_page_names(evidence: Any) -> None:
    found = base.stored(evidence.name)
    command = found["environment"]["command"]
    if isinstance(evidence, base.Analysis):
        assert evidence.parts[1] in list_analyses()
        plugin = "docs/build/claims/models.py"  # it was in docs/ when the analyses ran
        assert command.replace("docs/claims_models.py", plugin) == evidence.command
        assert found["data"]
        assert found["title"]
    else:
        assert re.search(rf"run_claims\.py .*\b{evidence.name}\b", command)
    if isinstance(evidence, base.Runs):
        size = found["data"]["size"]
        assert (size["steps"], size["scale"]) == (evidence.steps, evidence.scale)
        assert list(found["data"]["rows"]) == list(evidence.rows)


def test_no_file_is_left_over() -> None:
    needed = {evidence.name for evidence in EVIDENCE}
    found = base.measurements(base.NUMBERS).keys()
    unfinished = {name + base.UNFINISHED for name in needed - found}
    assert found <= needed | unfinished | {"accuracy"}


def test_measurements_survive_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "NUMBERS", tmp_path / "data" / "claims.csv")
    content = {
        "title": 'A, "b"\nc',
        "data": {
            "rows": {"tau 0.25": {"test": {"0": 1.5}, "curves": {"0": [[1, 0.1], [2, 1e-17]]}}},
            "models": {"csp": [{"map": None}, {"map": {"1": True}}]},
            "empty": [[], {}, ""],
            "plugins": {"a/b.py": "c"},
        },
    }
    base.keep("one", content)
    base.keep("two", {"data": {}})
    assert base.stored("one") == content
    assert base.stored("two") == {"data": {}}
    assert base.stored("three") is None


def test_every_claim_has_a_measurement() -> None:
    names = {evidence.name for evidence, _ in listed.JUDGED.values()}
    assert {name for name in names if base.stored(name) is None} == set()
