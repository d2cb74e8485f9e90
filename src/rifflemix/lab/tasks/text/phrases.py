"""A validation split of sentences from a training set of their phrases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rifflemix.lab.tasks.core.base import content_order
from rifflemix.lab.tasks.text.words import Row

_ONE_IN = 20
# Two sentences that share this many words in a row count as copies.
_RUN = 6


def cut_sentences(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Hold out one in 20 sentences, and drop from training what would give them away.

    A sentence is a phrase that no longer phrase contains. A training phrase stays if at least one
    sentence that contains it shares no six consecutive words with a held-out sentence. So nothing
    stays that only a held-out sentence, or a near copy of one, contains.

    Args:
        rows: phrases, their words parted by spaces, with labels.

    Returns:
        Rows to train on and rows to validate on, in the order of `rows`.
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
    """Phrase -> the sentences that contain it; a sentence contains itself."""
    holders: dict[str, list[str]] = {}
    for phrase in sorted(phrases, key=lambda phrase: (-phrase.count(" "), phrase)):
        if phrase not in holders:  # then no longer phrase contains it
            for part in phrases.intersection(_parts(phrase)):
                holders.setdefault(part, []).append(phrase)
    return holders


def _parts(phrase: str) -> Iterable[str]:
    """All runs of words in a phrase, the phrase included."""
    words = phrase.split(" ")
    ends = range(1, len(words) + 1)
    return (" ".join(words[start:end]) for end in ends for start in range(end))


def _runs(sentence: str) -> set[str]:
    """All runs of six words in a sentence, without punctuation."""
    words = [word for word in sentence.split(" ") if any(map(str.isalnum, word))]
    return {" ".join(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)}
