"""Check that bold, sentences and ranks follow the same decision rule."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from fake_comparison import table_of
from test_suite import with_accuracies

from document_scripts import load_script
from rifflemix.lab.comparison.decisions import Decisions, unbeaten
from rifflemix.lab.comparison.pages.notes import softmax_note
from rifflemix.lab.comparison.pages.table import table_cells, table_headers
from rifflemix.lab.comparison.rows import ranking
from rifflemix.lab.comparison.statistics import LEVEL, Score, holm

store = load_script("benchmarks/store.py")
STORED = [
    name
    for name in store.names()
    if re.search(r"(demo|compare-.*six|lra-small/(image|pathfinder|pairs))", name)
]
NAMES = ("softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn")


def drawn(seed: int, seeds: int = 3) -> dict[str, Any]:
    """Build a comparison with small random differences between mixers and seeds."""
    draws = np.random.default_rng(seed)
    means = 0.5 + 0.03 * draws.normal(size=len(NAMES))
    return with_accuracies(
        {
            name: (mean + 0.01 * draws.normal(size=seeds)).tolist()
            for name, mean in zip(NAMES, means, strict=True)
        }
    )


def assert_consistent(results: dict[str, Any]) -> bool:
    """Check all statements about test scores; return whether any pair differs."""
    table = table_of(results)
    rows, found, ranks, note = table.rows, table.decisions, ranking(table), softmax_note(table)
    column = next(n for n, title in enumerate(table_headers(table)) if title.startswith("Test"))
    titles = {row.name: row.title for row in rows}
    bold = {row.name for row, cells in zip(rows, table_cells(table), strict=True)
            if cells[column].best}  # fmt: skip
    losers = {loser for _, loser in found.ahead}
    assert bold == ({row.name for row in rows} - losers if losers else set())
    assert ranks is not None
    assert ranks.ahead == found.ahead
    for of in table.differences:
        name, decision = of.row.name, of.decision
        if decision.is_loss:
            assert ("softmax", name) in found.ahead
            assert name not in bold
            assert titles[name] in note.partition("than ")[2]
        elif decision.is_shown:
            assert (name, "softmax") in found.ahead
            assert "softmax" not in bold
    alike = [of.row.name for of in table.differences if not of.decision.is_shown]
    for name in alike:
        assert {("softmax", name), (name, "softmax")}.isdisjoint(found.ahead)
    return bool(losers)


def test_bold_sentences_and_ranks_agree_on_drawn_tables() -> None:
    said = [assert_consistent(drawn(seed)) for seed in range(40)]
    assert 10 < sum(said) < 40


@pytest.mark.parametrize("name", STORED)
def test_bold_sentences_and_ranks_agree_on_stored_results(name: str) -> None:
    results = store.load(name).content
    assert not table_of(results).nothing_learned
    assert_consistent(results)


def scores_of(values: dict[str, list[float]]) -> dict[str, Score | None]:
    return {
        name: Score(float(np.mean(of)), None, len(of), "rmse", values=dict(enumerate(of)))
        for name, of in values.items()
    }


def test_differences_from_the_baseline_and_between_others_are_two_families() -> None:
    draws = np.random.default_rng(3)
    values = {name: (place + draws.normal(size=4)).tolist() for place, name in enumerate(NAMES)}
    scores = scores_of(values)
    found = Decisions(scores, higher_is_better=True)
    others = [name for name in NAMES if name != "softmax"]
    alone = {}
    for one, other in combinations(NAMES, 2):
        first, second = scores[other], scores[one]
        assert first is not None
        assert second is not None
        difference = first.difference(second)
        assert difference is not None
        alone[one, other] = difference.probability
    of_softmax = holm([alone["softmax", name] for name in others])
    decided = [found.from_baseline(name) for name in others]
    assert [of.probability for of in decided if of is not None] == pytest.approx(of_softmax)
    rest = list(combinations(others, 2))
    shown = {("softmax", name): p for name, p in zip(others, of_softmax, strict=True)}
    shown |= dict(zip(rest, holm([alone[pair] for pair in rest]), strict=True))
    apart = {frozenset(pair) for pair, p in shown.items() if p < LEVEL}
    assert {frozenset(pair) for pair in found.ahead} == apart
    assert 0 < len(apart) < len(shown)


def test_unbeaten_is_empty_without_a_decision() -> None:
    assert unbeaten(["a", "b"], frozenset()) == []
    assert unbeaten(["a", "b", "c"], frozenset({("a", "b")})) == ["a", "c"]


def test_a_mixer_that_loses_to_softmax_is_not_bold_though_it_is_near_the_best() -> None:
    """Check that CSP loses with every seed, while the best mean, TSSA, is too noisy to beat CSP."""
    values = {
        "softmax": [0.800, 0.810, 0.790, 0.805],
        "csp": [0.790, 0.800, 0.780, 0.795],
        "tssa": [0.70, 0.95, 0.88, 0.76],
    }
    found = Decisions(scores_of(values), higher_is_better=True)
    assert found.ahead == {("softmax", "csp")}
    assert unbeaten(values, found.ahead) == ["softmax", "tssa"]
