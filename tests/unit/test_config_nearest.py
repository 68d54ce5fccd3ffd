"""Misspelt keys: every key of the schema, one edit away, is recognised."""

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.config import build
from cohort.config.nearest import edits, nearest_keys, nearest_words
from cohort.config.translate import known
from cohort.config.tree import keys
from cohort.errors import UserError

words = st.text("abc_", max_size=8)


def slow_edits(a: str, b: str) -> int:
    """Edit distance with swaps of neighbours, straight from its recursion."""
    if not a or not b:
        return len(a) + len(b)
    best = min(slow_edits(a[1:], b) + 1, slow_edits(a, b[1:]) + 1, slow_edits(a[1:], b[1:]) + (a[0] != b[0]))
    if len(a) > 1 and len(b) > 1 and a[0] == b[1] and a[1] == b[0]:
        best = min(best, slow_edits(a[2:], b[2:]) + 1)
    return best


@given(st.text("ab_", max_size=5), st.text("ab_", max_size=5))
def test_edits_is_the_distance(a, b):
    assert edits(a, b) == slow_edits(a, b)


@given(words, words)
def test_edits_is_symmetric_and_capped(a, b):
    assert edits(a, b) == edits(b, a)
    assert edits(a, b, 2) == min(edits(a, b), 3)


def misspelt(key: str, draw: random.Random) -> list[str]:
    """One word each with a letter too many, too few, wrong, or two swapped, anywhere but at the dots."""
    places = [i for i, letter in enumerate(key) if letter != "."]
    swaps = [i for i in places[:-1] if key[i + 1] not in (".", key[i])]
    i, j, k, m = draw.choice(places), draw.choice(places), draw.choice(places), draw.choice(swaps or places[:1])
    other = draw.choice([letter for letter in string.ascii_lowercase if letter != key[k]])
    return [
        key[:i] + draw.choice(string.ascii_lowercase) + key[i:],
        key[:j] + key[j + 1 :],
        key[:k] + other + key[k + 1 :],
        key[:m] + key[m + 1] + key[m] + key[m + 2 :] if swaps else key + "s",
    ]


@pytest.mark.parametrize("section", sorted({name.rpartition(".")[0] for name in keys()}))
def test_one_edit_away_from_a_key_suggests_it(section):
    draw = random.Random(section)
    for key in (name for name in keys() if name.rpartition(".")[0] == section):
        for wrong in misspelt(key, draw):
            if wrong in known():
                continue
            suggested = nearest_keys(wrong, known())
            rivals = [other for other in keys() if other != key and edits(wrong, other, 1) <= 1]
            assert key in suggested if rivals else suggested[0] == key, (wrong, suggested)


def test_the_suggestion_reaches_the_message():
    with pytest.raises(
        UserError, match=r"data\.trian_batch_size=3: unknown key; did you mean data\.train_batch_size\?"
    ):
        build({"data.trian_batch_size": 3})


def test_words_too_far_away_are_not_suggested():
    assert nearest_words("completely", ["grpo", "gae"]) == []
    assert nearest_words("GRPO", ["gae", "grpo"]) == ["grpo"]
