"""What a misspelt key or value was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

FAR = 5


def edits(a: str, b: str, most: int = FAR) -> int:
    """Edit distance (insert, delete, replace, swap of neighbours), or ``most + 1`` if it is more than ``most``."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    # Letters that agree at both ends cannot make the distance smaller; one is kept for a swap across the border.
    a, b = a[max(start - 1, 0) : len(a) - max(end - 1, 0)], b[max(start - 1, 0) : len(b) - max(end - 1, 0)]
    if abs(len(a) - len(b)) > most:
        return most + 1
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > most and min(before) > most:
            return most + 1
    return min(row[-1], most + 1)


def nearest_words(word: str, legal: Iterable[str], *, most: int = 3) -> list[str]:
    """The legal words within a few edits of ``word``, nearest first; ties keep their order."""
    allowed = max(1, min(FAR, len(word) // 3))
    words = list(legal)
    for cap in (1, allowed):  # most mistakes are one edit, and a low cap is quick
        found = [(edits(word.lower(), candidate.lower(), cap), candidate) for candidate in words]
        if close := sorted((pair for pair in found if pair[0] <= cap), key=lambda pair: pair[0]):
            return [candidate for _, candidate in close][:most]
    return []


def nearest_keys(name: str, legal: Sequence[str], *, most: int = 3) -> list[str]:
    """The dotted keys that ``name`` may have been meant as, likeliest first.

    In order: keys that end in ``name`` (a section was left out), keys a few edits away, keys with the same last part
    in another section, keys whose last part is a few edits away.
    """
    ending = [key for key in legal if key.endswith("." + name)]
    if ending:
        return ending[:most]
    close = nearest_words(name, legal, most=most)
    if close:
        distances = {key: edits(name, key) for key in close}
        return [key for key in close if distances[key] <= distances[close[0]] + (distances[close[0]] > 1)]
    last = name.rpartition(".")[2]
    section = name.rpartition(".")[0]
    same = [key for key in legal if key.rpartition(".")[2] == last]
    if not same and len(last) > 2:
        parts = nearest_words(last, dict.fromkeys(key.rpartition(".")[2] for key in legal), most=1)
        same = [key for key in legal if key.rpartition(".")[2] in parts]
    return sorted(same, key=lambda key: -SequenceMatcher(None, section, key.rpartition(".")[0]).ratio())[:most]
