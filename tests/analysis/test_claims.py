"""docs/claims.md says what its files say, and its files are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from document_scripts import load_script
from rifflemix.analysis import KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """docs/write_claims.py, which imports the list beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        return load_script("docs/write_claims.py")


def test_the_page_is_what_the_files_say(writer: ModuleType) -> None:
    written = (DOCS / "claims.md").read_text(encoding="utf-8")
    assert writer.page() == written, "run: python docs/write_claims.py"


def test_there_are_claims_of_five_papers_and_every_verdict_is_one_of_three(
    writer: ModuleType,
) -> None:
    assert len(writer.CLAIMS) >= 20
    assert len({claim.paper for claim in writer.CLAIMS}) == 5
    verdicts = {claim.judge(writer.stored(claim)["data"])[0] for claim in writer.CLAIMS}
    assert verdicts <= {writer.HOLDS, writer.PART, writer.FAILS}
    assert writer.FAILS in verdicts, "a page on which everything holds would be an advertisement"


def test_every_file_was_written_by_the_command_that_the_page_names(writer: ModuleType) -> None:
    for claim in writer.CLAIMS:
        assert claim.kind in KINDS
        command = writer.stored(claim)["environment"]["command"]
        assert re.match(rf"rifflemix analyze ({claim.kind}|all) ", command), command
        assert f"looks/{claim.look}" in command
        assert (writer.FILES / f"{claim.look}-{claim.kind}.png").is_file()


def test_no_file_is_left_over(writer: ModuleType) -> None:
    needed = {f"{claim.look}-{claim.kind}" for claim in writer.CLAIMS} | {"accuracy"}
    assert {path.stem for path in writer.FILES.iterdir()} == needed


def test_a_claim_is_judged_by_its_numbers(writer: ModuleType) -> None:
    """The issue's observation: the residual stays where the effective rank falls."""
    (claim,) = [c for c in writer.CLAIMS if c.judge.__name__ == "hidden_collapse"]
    data = writer.stored(claim)["data"]
    assert claim.judge(data)[0] == writer.PART
    changed = json.loads(json.dumps(data))
    changed["models"]["sliceformer"]["stacks"]["with norm"]["effective"][-1] = 60.0
    assert claim.judge(changed)[0] == writer.HOLDS
    changed = json.loads(json.dumps(data))
    changed["models"]["sliceformer"]["stacks"]["with norm"]["residual"][-1] = 0.01
    assert claim.judge(changed)[0] == writer.FAILS
