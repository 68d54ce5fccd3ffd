"""Addition problems with an answer key, made from a seed. Imports no torch.

    rows("train", 4096, seed=1)    # what reinforcement learning trains on
    rows("test", 256, seed=1)      # held out: neither these nor their commutations occur anywhere else
    rows("starter", 4096, seed=1)  # what the starter model learnt from

Every problem belongs to exactly one split, whatever the seed and the size: a hash of the operands in sorted
order decides, so ``a+b`` and ``b+a`` are always on the same side.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any

from cohort.errors import UserError

DATA_SOURCE = "cohort/arithmetic"
SHARES = {"test": 10, "train": 40, "starter": 50}
"""Percentage of all problems in each split."""
DIGITS = 2
"""Of each operand, unless said otherwise; what the starter model learns."""
MAX_DIGITS = 9


def split_of(a: int, b: int) -> str:
    """The one split that ``a+b`` and ``b+a`` belong to."""
    digest = blake2b(f"{min(a, b)}+{max(a, b)}".encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") % 100
    for name, share in SHARES.items():
        if place < share:
            return name
        place -= share
    raise AssertionError("the shares add up to 100")


def problems(split: str, seed: int, *, digits: int = DIGITS) -> Iterator[tuple[int, int]]:
    """Endless operands of ``split``, each of exactly ``digits`` digits; a pure function of its arguments.

    A pair may come again; ``rows`` drops repetitions.
    """
    generator = random.Random(f"{DATA_SOURCE}/{split}/{digits}/{seed}")
    low, high = 10 ** (digits - 1), 10**digits - 1
    while True:
        a, b = generator.randint(low, high), generator.randint(low, high)
        if split_of(a, b) == split:
            yield a, b


def rows(split: str, size: int, seed: int, *, digits: int = DIGITS) -> list[dict[str, Any]]:
    """``size`` different problems of ``split`` in verl's schema.

    Args:
        split: "train", "test", or "starter" (the starter model's own training problems).
        size: how many.
        seed: names the draw. A problem's split does not depend on it.
        digits: digits of each operand, 1 to 9. The starter model knows two.

    Raises:
        UserError: for a split that does not exist, or more problems than there are.
    """
    if split not in SHARES:
        raise UserError(f"arithmetic has no split {split!r}; there are {', '.join(SHARES)}")
    if not 1 <= digits <= MAX_DIGITS:
        raise UserError(f"arithmetic: digits={digits} is out of range; give 1 to {MAX_DIGITS}")
    most = available(split, digits)
    if not 1 <= size <= most:
        raise UserError(f"arithmetic: size={size} is out of range; split {split} of {digits} digits gives 1 to {most}")
    drawn: dict[tuple[int, int], None] = {}
    for pair in problems(split, seed, digits=digits):
        drawn[pair] = None
        if len(drawn) == size:
            break
    return [_row(split, index, a, b) for index, (a, b) in enumerate(drawn)]


def available(split: str, digits: int) -> int:
    """How many problems ``split`` can give: all of them up to two digits, then half of the expected number."""
    low, high = 10 ** (digits - 1), 10**digits
    if digits > 2:
        return (high - low) ** 2 * SHARES[split] // 200
    return sum(split_of(a, b) == split for a in range(low, high) for b in range(low, high))


def question(a: int, b: int) -> str:
    """What the user writes: ``47+85=``."""
    return f"{a}+{b}="


def worked_answer(a: int, b: int) -> str:
    """Addition by columns from the right, carries written out: ``7+5=12 4+8+1=13 #### 132``.

    After the mark stands the answer, as in GSM8K. The starter model was shown such answers; the reward does
    not look at the working.
    """
    left, right = str(a)[::-1], str(b)[::-1]
    columns: list[str] = []
    carry = 0
    for place in range(max(len(left), len(right))):
        parts = [number[place] for number in (left, right) if place < len(number)] + (["1"] if carry else [])
        total = sum(map(int, parts))
        columns.append(f"{'+'.join(parts)}={total}")
        carry = total // 10
    return f"{' '.join(columns)} #### {a + b}"


def direct_answer(a: int, b: int) -> str:
    """The answer alone: ``#### 132``."""
    return f"#### {a + b}"


def demonstrations(seed: int, size: int, *, worked: float) -> Iterator[list[tuple[str, str]]]:
    """Endless batches of ``size`` (question, right answer) pairs from the starter's own split.

    Args:
        seed: names the draw.
        size: pairs per batch.
        worked: share of worked answers, drawn at random; the others are direct ones.
    """
    source = problems("starter", seed)
    style = random.Random(f"{DATA_SOURCE}/style/{seed}")
    while True:
        yield [
            (question(a, b), (worked_answer if style.random() < worked else direct_answer)(a, b))
            for a, b in islice(source, size)
        ]


def _row(split: str, index: int, a: int, b: int) -> dict[str, Any]:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": question(a, b)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"split": split, "index": index},
    }
