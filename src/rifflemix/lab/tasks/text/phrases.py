"""Validation split of sentences from a training set of phrases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rifflemix.lab.tasks.core.base import content_order
from rifflemix.lab.tasks.text.words import Row

_ONE_IN = 20
# Two sentences with this many consecutive words in common count as copies.
_RUN = 6


def cut_sentences(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Hold out 1 in 20 sentences and drop phrases that reveal them.

    A sentence is a phrase that is not part of a longer phrase. A training phrase is kept if some
    sentence contains it that shares no six consecutive words with held-out sentences. Phrases that
    occur only in held-out sentences or their near copies are therefore dropped.

    Args:
        rows: Phrases and labels. Words are separated by spaces.

    Returns:
        Training rows and validation rows, in the order of `rows`.
    """
    holders = _holders({phrase for (phrase,), _ in rows})
    sentences = sorted({holder for found in holders.values() for holder in found})
    runs = {sentence: _runs(sentence) for sentence in sentences}
    long = [sentence for sentence in sentences if runs[sentence]]
    order = content_order([sentence.encode() for sentence in long], "sst: split").tolist()
    held_out = {long[index] for index in order[: max(1, len(long) // _ONE_IN)]}
    given_away = set[str]().union(*(runs[sentence] for sentence in held_out))
    kept = {sentence for sentence in sentences if not runs[sentence] & given_away}
    train = [row for row in rows if not kept.isdisjoint(holders[row[0][0]])]
    return train, [row for row in rows if row[0][0] in held_out]


def _holders(phrases: set[str]) -> dict[str, list[str]]:
    """Map each phrase to the sentences that contain it.

    A sentence contains itself.
    """
    holders: dict[str, list[str]] = {}
    for phrase in sorted(phrases, key=lambda phrase: (-phrase.count(" "), phrase)):
        if phrase not in holders:  # not part of a longer phrase
            for part in phrases.intersection(_parts(phrase)):
                holders.setdefault(part, []).append(phrase)
    return holders


def _parts(phrase: str) -> Iterable[str]:
    """Return all runs of words of a phrase, including the phrase."""
    words = phrase.split(" ")
    ends = range(1, len(words) + 1)
    return (" ".join(words[start:end]) for end in ends for start in range(end))


def _runs(sentence: str) -> set[str]:
    """Return all runs of six words of a sentence, without punctuation."""
    words = [word for word in sentence.split(" ") if any(map(str.isalnum, word))]
    return {" ".join(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)}
