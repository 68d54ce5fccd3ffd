"""``docs/metrics.md``, written from ``meanings``: ``python -m cohort.tracking.metrics_page > docs/metrics.md``."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from cohort.tracking.meanings import SECTIONS

HEAD = """\
# Metrics

This page is written by `python -m cohort.tracking.metrics_page`; a test keeps it equal to the
code. `cohort explain NAME` prints one metric of it.

Every number of a step is a line of `metrics.jsonl` in the run folder, and goes to TensorBoard where
`trainer.logger` says so. Names are verl's wherever verl has one. In the names below, `<source>` is a `data_source`,
`<var>` a number that the reward gives (`reward` itself included), `<part>` an entry of the reward's dict, `N` the
answers per validation prompt and `n` a number up to it. `N` and `n` stand for numbers only after `@`.

"Healthy" is what a run that learns usually shows. Nothing acts on these ranges.

## First looks

1. `critic/score/mean` rises. It is the reward that is trained on, averaged over the answers of the step.
2. `training/groups_with_signal` is well above 0. Groups whose answers all score the same teach nothing; the other
   `training/groups_*` say why.
3. `response_length/clip_ratio` is small. Answers that the limit cuts off are graded as they are, and are usually
   wrong.
4. `training/rollout_probs_diff_mean` is near 0: the sampler and the trainer agree on what was drawn.
5. `actor/grad_norm` is finite and does not explode.
6. `actor/entropy` falls slowly, not at once.
7. The loss says little. With one update per step its value is near 0 whatever is learnt, because advantages average
   to 0.
"""


class Meaning(NamedTuple):
    """One logged number.

    Attributes:
        pattern: its name, with placeholders.
        meaning: what it counts.
        healthy: what a run that learns usually shows; may be empty.
        section: the heading it stands under.
        intro: what holds for all numbers under that heading, in Markdown.
    """

    pattern: str
    meaning: str
    healthy: str
    section: str
    intro: str

    def matches(self, name: str) -> bool:
        """Whether a run may log ``name`` as this number; the pattern itself counts too."""
        return name == self.pattern or expression(self.pattern).fullmatch(name) is not None


MEANINGS = tuple(Meaning(*line, section=s.title, intro=s.intro) for s in SECTIONS for line in s.metrics)
"""Every number, in the order of the page."""


def expression(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression: ``<word>`` is any word, ``N`` and ``n`` after ``@`` a number."""
    pieces = re.split(r"(<\w+>|(?<=@)[Nn]\b)", pattern)
    words = {True: r"[\w/.-]+?", False: r"\d+"}
    return re.compile("".join(words[p[0] == "<"] if i % 2 else re.escape(p) for i, p in enumerate(pieces)))


def meanings_of(name: str) -> list[Meaning]:
    """What a run means by ``name``; exact names come before those with placeholders."""
    found = [meaning for meaning in MEANINGS if meaning.matches(name)]
    return sorted(found, key=lambda meaning: meaning.pattern != name)


def markdown() -> str:
    """The whole page."""
    blocks = [HEAD]
    for section in SECTIONS:
        rows = [
            f"| `{name}` | {meaning} | {f'{healthy} ' if healthy else ''}|"
            for name, meaning, healthy in section.metrics
        ]
        intro = f"{section.intro}\n\n" if section.intro else ""
        blocks.append(
            f"## {section.title}\n\n{intro}| name | meaning | healthy |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(blocks)


def main() -> None:
    """Prints the page."""
    sys.stdout.write(markdown())


if __name__ == "__main__":
    main()
