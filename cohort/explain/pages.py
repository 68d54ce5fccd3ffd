"""The pages of ``docs/algorithms/``, a section per method: ``python -m cohort.explain.pages docs/algorithms``.

What they say comes from the docstrings, the schema and the registries, as ``cohort explain`` has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from cohort.algorithms.kl import KL_KINDS
from cohort.config.convert import show
from cohort.explain.catalogue import KINDS
from cohort.explain.entries import Explanation, explain

PAGES: Mapping[str, tuple[str, str, str]] = {
    "advantages": (
        "advantage estimator",
        "Advantages",
        "How scores become the advantage of each token (`algorithm.adv_estimator`). An answer's score s_i is the sum "
        "of its rewards. `cohort explain advantage --rewards 1,0,1 --estimator NAME` works an example of each.",
    ),
    "policy_losses": (
        "policy loss",
        "Policy losses",
        "The loss of each token (`actor_rollout_ref.actor.policy_loss.loss_mode`). A is its advantage; sg stops the "
        "gradient. How token losses become one number is the [aggregation](aggregation.md).",
    ),
    "kl": (
        "KL kind",
        "KL terms",
        "Estimates of the KL to the reference from the log-probs of the sampled tokens, for the loss "
        "(`actor_rollout_ref.actor.kl_loss_type`) or the reward (`algorithm.kl_penalty`). Which estimate is right "
        "depends on where it sits: [the table](../algorithms.md#kl).",
    ),
    "aggregation": (
        "aggregation",
        "Aggregation",
        "How the token losses of an update become one number (`actor_rollout_ref.actor.loss_agg_mode`).",
    ),
    "correction": (
        "sampler correction",
        "Sampler corrections",
        "What is done where the sampler's log-probs are not the trainer's, by name "
        "(`algorithm.rollout_correction.preset`). The formulas are those of "
        "[importance weights](terms.md#importance_weights), [rejection](terms.md#rejection) and "
        "[bypass](terms.md#bypass).",
    ),
    "terms": (
        "term of the step",
        "Other terms of the step",
        "Reward shaping, the critic's loss, demonstrations, choices of tokens, and schedules.",
    ),
}
"""File -> kind, title, first paragraph."""

WRITTEN = "This page is written by `python -m cohort.explain.pages docs/algorithms`; a test keeps it equal to the code."


def main(folder: str) -> None:
    """Writes the pages."""
    for name in PAGES:
        (Path(folder) / f"{name}.md").write_text(page(name), encoding="utf-8")


def page(name: str) -> str:
    """One page."""
    kind, title, intro = PAGES[name]
    if kind == "sampler correction":
        return "\n".join([f"# {title}\n", f"{WRITTEN}\n", f"{intro}\n", _corrections()])
    groups = _grouped(KINDS[kind])
    contents = ", ".join(f"[{group[0]}](#{_anchor(group)})" for group in groups)
    sections = [_section(group, explain(kind, group[0])) for group in groups]
    return "\n".join([f"# {title}\n", f"{WRITTEN}\n", f"{intro}\n", f"{contents}\n", *sections])


def _grouped(names: Sequence[str]) -> list[list[str]]:
    """Names of the same thing stand under one heading, as kl and k1 do."""
    groups: dict[object, list[str]] = {}
    for name in names:
        function = KL_KINDS.get(name, name)
        same = (function.func, function.keywords["base"]) if isinstance(function, partial) else function
        groups.setdefault(same, []).append(name)
    return list(groups.values())


def _anchor(names: Sequence[str]) -> str:
    """The heading's anchor: a + is dropped, and what then stands twice is numbered."""
    return "-".join(names).replace("+", "") + ("-1" if names[0].endswith("+") else "")


def _section(names: Sequence[str], said: Explanation) -> str:
    lines = [f"## {', '.join(f'`{name}`' for name in names)}", "", _prose(said.summary), ""]
    if said.formula:
        lines += ["```text", said.formula, "```", ""]
    for paragraph in said.details:
        lines += [_prose(paragraph), ""]
    if said.settings:
        rows = ((f"`{s.key}`", _code(s.default), s.meaning) for s in said.settings)
        lines += [_table(("key", "default", "meaning"), rows), ""]
    if said.options:
        rows = ((f"`{name}`", _code(default), _prose(meaning)) for name, default, meaning in said.options)
        lines += [_table((f"in `{said.by}`", "default", "meaning"), rows), ""]
    if said.metrics:
        lines += [f"**Logged**: {', '.join(f'`{name}`' for name in said.metrics)}.", ""]
    if said.paper:
        lines += [f"**Paper**: {_prose(said.paper)}", ""]
    if said.wrong:
        lines += [f"**Wrong choice when**: {_prose(said.wrong)}", ""]
    return "\n".join(lines)


def _corrections() -> str:
    from cohort.algorithms.correction_settings import PRESETS

    rows = []
    for name, correction in PRESETS.items():
        rules = ", ".join(f"{rule.statistic} {rule.lower:g} to {rule.upper:g}" for rule in correction.rules)
        weights = ""
        if correction.is_level:
            bound = f"at most {correction.threshold}" if correction.threshold else f"within {show(correction.window)}"
            weights = f"{correction.is_level}, {bound}"
            weights += f", judged by {correction.window_level}" if correction.window_level else ""
        rows.append((f"`{name}`", weights, rules, correction.loss if correction.bypass else ""))
    return _table(("preset", "importance weights", "kept", "bypass, with loss"), rows) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _prose(text: str) -> str:
    return text.replace("``", "`")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1])
