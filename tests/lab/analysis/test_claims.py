"""Check that docs/claims.md agrees with its files, and the files with their commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from claims_modules import DOCS, claims_module

from rifflemix.lab.analysis import KINDS

base, script = claims_module("claims_base"), claims_module("run_claims")
writer, CLAIMS = claims_module("write_claims"), script.CLAIMS
EVIDENCE = list(script.EVIDENCE.values())
MEASURED = [evidence for evidence in EVIDENCE if base.stored(evidence) is not None]


def test_the_page_is_what_the_files_say() -> None:
    written = (DOCS / "claims.md").read_text(encoding="utf-8")
    assert writer.page() == written, "run: python docs/write_claims.py"


def test_claims_of_five_papers_have_one_of_the_verdicts() -> None:
    assert len({claim.paper for claim in CLAIMS}) == 5
    verdicts = {base.judged(claim).verdict for claim in CLAIMS}
    assert verdicts <= set(base.VERDICTS)
    assert base.FAILS in verdicts
    assert base.DEPENDS in verdicts


def test_a_claim_without_a_run_has_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(base, "FILES", tmp_path)
    for claim in CLAIMS:
        assert base.judged(claim).verdict == base.NOT_RUN


def test_claims_keep_their_numbers() -> None:
    numbers = {number: claim.text for number, claim in enumerate(CLAIMS, start=1)}
    assert "all ones" in numbers[1]
    assert "decay more slowly" in numbers[2]
    assert "shifting alone" in numbers[3]
    assert "its own map" in numbers[10]
    assert "decay more slowly" in numbers[13]
    assert "quasi-global" in numbers[34]


def test_spectra_are_judged_before_the_output_projection() -> None:
    for number in (2, 3, 13):
        claim = CLAIMS[number - 1]
        shows = base.judged(claim).shows
        assert shows.startswith("before the output projection")
        assert all(measure in shows for measure in ("ffective rank", "table rank", "s2/s1"))


@pytest.mark.parametrize("evidence", MEASURED, ids=lambda evidence: evidence.name)
def test_files_come_from_the_command_that_the_page_names(evidence: Any) -> None:
    found = base.stored(evidence)
    assert found["title"]
    command = found["environment"]["command"]
    if isinstance(evidence, base.Analysis):
        assert evidence.kind in KINDS
        assert command == evidence.command
        assert found["data"]
        assert (base.FILES / f"{evidence.name}.png").is_file()
    else:
        assert re.search(rf"run_claims\.py .*\b{evidence.name}\b", command)
    if isinstance(evidence, base.Runs):
        size = found["data"]["size"]
        assert (size["steps"], size["scale"]) == (evidence.steps, evidence.scale)
        assert list(found["data"]["rows"]) == list(evidence.rows)
        assert (base.FILES / f"{evidence.name}.png").is_file()


def test_no_file_is_left_over() -> None:
    needed = {evidence.name for evidence in EVIDENCE} | {"accuracy"}
    assert {path.stem for path in base.FILES.iterdir()} <= needed


def test_a_claim_that_is_not_run_shows_its_command() -> None:
    page = writer.page()
    for claim in CLAIMS:
        if base.stored(claim.evidence) is None:
            assert f"`{claim.evidence.command}`" in page
