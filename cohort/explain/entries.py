"""From a name to its explanation. Algorithms are imported, and torch with them, by the functions that read them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from cohort.config.convert import show
from cohort.config.document import default_of
from cohort.config.family import ACTOR, ESTIMATOR, ESTIMATORS, LOSS, LOSSES
from cohort.config.schema import Actor, Algorithm
from cohort.config.tree import keys
from cohort.explain.catalogue import TERMS
from cohort.explain.docstring import clause, parse
from cohort.tracking.metrics_page import MEANINGS, meanings_of

CORRECTION = "algorithm.rollout_correction.preset"
GIVEN_BY_RUN = ("data_source", "solution_str", "ground_truth", "extra_info", "response_length", "text")
NEEDS = {
    "values": "the critic's value of each token",
    "baseline": "the score of a greedy answer to the prompt, which is sampled beside the others",
    "parts": "the parts of the reward that gdpo_reward_keys names",
    "old_log_probs": "log-probs of the policy that sampled",
    "sum_pi_squared": "sum of squared probabilities at each token, from the actor's own pass",
    "rollout_is_weights": "importance weights against the sampler, where there are any",
}


@dataclass(frozen=True)
class Setting:
    """A key of the configuration.

    Attributes:
        key: its dotted name; with ``=value`` where that value selects what is explained.
        default: what it is if nobody gives it; in a preset, the preset's value.
        meaning: what it does.
    """

    key: str
    default: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What there is to say about one name.

    Attributes:
        kind: see ``catalogue.KINDS``.
        name: as a configuration or a log writes it.
        summary: one sentence.
        formula: line by line; empty where there is none.
        details: paragraphs.
        paper: where it comes from.
        wrong: when it is the wrong choice.
        settings: the keys that select and tune it.
        options: further arguments: name, default, meaning.
        by: the key through which ``options`` are given.
        metrics: names of what it logs.
        healthy: of a metric: what a run that learns usually shows.
        parts: of a preset: what it is made of, by role.
    """

    kind: str
    name: str
    summary: str
    formula: str = ""
    details: tuple[str, ...] = ()
    paper: str = ""
    wrong: str = ""
    settings: tuple[Setting, ...] = ()
    options: tuple[tuple[str, str, str], ...] = ()
    by: str = ""
    metrics: tuple[str, ...] = ()
    healthy: str = ""
    parts: tuple[tuple[str, Explanation], ...] = ()


def explain(kind: str, name: str) -> Explanation:
    """The explanation of a name that ``catalogue.find`` has found."""
    if kind == "preset":
        from cohort.explain.presets import preset

        return preset(name)
    readers: dict[str, Callable[[str], Explanation]] = {
        "advantage estimator": _estimator,
        "policy loss": _loss,
        "KL kind": _kl,
        "aggregation": _aggregation,
        "term of the step": _term,
        "sampler correction": _correction,
        "reward": _reward,
        "metric": _metric,
    }
    return readers[kind](name)


def setting(key: str, value: object = None) -> Setting:
    """A key with its default and its meaning; with ``value``, as the assignment that selects it."""
    known = keys()[key]
    default = default_of(known).replace(f"= {key.rpartition('.')[0]}.", "= ")
    return Setting(key if value is None else f"{key}={show(value)}", default, known.doc)


def _of(function: Callable[..., Any], kind: str, name: str, **more: Any) -> Explanation:
    said = parse(function.__doc__)
    fields = {
        "summary": said.summary,
        "formula": said.formula,
        "details": said.paragraphs,
        "paper": said.paper,
        "wrong": said.wrong,
    }
    return Explanation(kind=kind, name=name, **{**fields, **more})


def _estimator(name: str) -> Explanation:
    from cohort.algorithms.registry import ADVANTAGES
    from cohort.assemble.options import ADVANTAGE_OPTIONS

    by_key = ADVANTAGE_OPTIONS[name](Algorithm()) if name in ADVANTAGE_OPTIONS else ()
    entry = ADVANTAGES[name]
    said = parse(entry.function.__doc__)
    settings = [setting(ESTIMATOR, name), *(setting(f"algorithm.{key}") for key in ESTIMATORS[name].keys)]
    if entry.group_baseline:
        settings.append(setting("actor_rollout_ref.rollout.n"))
        settings.append(setting("algorithm.group_by"))
    if "values" in entry.needs:
        settings.append(setting("critic.model.path"))
    needs = tuple(f"Needs ``{need}``: {NEEDS[need]}." for need in entry.needs)
    metrics = ["critic/advantages/mean", "critic/advantages/max", "critic/advantages/min"]
    metrics += ["training/groups_with_signal", "training/groups_of_one"] if entry.group_baseline else []
    metrics += ["critic/vf_explained_var", "critic/returns/mean"] if "values" in entry.needs else []
    return _of(
        entry.function,
        "advantage estimator",
        name,
        details=(*said.paragraphs, *needs),
        settings=tuple(settings),
        options=_options(entry.function, said.arguments, besides=(*entry.needs, *by_key)),
        by="algorithm.adv_kwargs",
        metrics=tuple(metrics),
    )


def _loss(name: str) -> Explanation:
    from cohort.algorithms.registry import POLICY_LOSSES
    from cohort.assemble.options import LOSS_OPTIONS

    by_key = (*(LOSS_OPTIONS[name](Actor()) if name in LOSS_OPTIONS else ()), "dual_clip", "selected")
    entry = POLICY_LOSSES[name]
    said = parse(entry.function.__doc__)
    known = LOSSES[name]
    details = [*said.paragraphs, *([f"Diagnostics: {d}"] if (d := said.sections.get("Diagnostics")) else [])]
    if known.ranges:
        details.append(f"Clip range: {known.ranges}.")
    if entry.select is not None:
        details.append("Chosen on the whole minibatch, before it is split: " + parse(entry.select.__doc__).summary)
    return _of(
        entry.function,
        "policy loss",
        name,
        details=tuple(details),
        settings=(
            setting(LOSS, name),
            *(setting(f"{ACTOR}.{key}") for key in known.keys),
            Setting(f"{ACTOR}.loss_agg_mode", f"null: {entry.aggregation}", "How token losses become one number."),
        ),
        options=_options(entry.function, said.arguments, besides=by_key),
        by=f"{ACTOR}.policy_loss.kwargs",
        metrics=("actor/pg_loss", *_diagnostics(entry)),
    )


def _diagnostics(entry: Any) -> tuple[str, ...]:
    """What the loss logs, by asking it for the loss of one token."""
    import torch

    token = torch.zeros(1, 1)
    extra = {"selected": token} if entry.select is not None else {}
    return tuple(f"actor/{name}" for name in entry.function(token, token, token, token + 1, **extra).diagnostics)


def _kl(name: str) -> Explanation:
    from cohort.algorithms.kl import KL_KINDS

    function = KL_KINDS[name]
    in_loss = (
        setting(f"{ACTOR}.use_kl_loss"),
        setting(f"{ACTOR}.kl_loss_type", name),
        setting(f"{ACTOR}.kl_loss_coef"),
    )
    in_reward = (setting("algorithm.use_kl_in_reward"), setting("algorithm.kl_penalty", name))
    more: dict[str, Any] = {
        "settings": (*in_loss, *in_reward, setting("algorithm.kl_ctrl.kl_coef")),
        "metrics": ("actor/kl_loss", "actor/reward_kl_penalty"),
    }
    if isinstance(function, partial):
        base = parse(function.keywords["base"].__doc__)
        more["formula"] = (
            f"value     {base.formula.replace(chr(10), ', ')}\ngradient  (log pi - log pi_ref) grad log pi"
        )
        more["summary"] = f"The value of {name.removesuffix('+')} with the gradient of k2, log pi - log pi_ref."
        return _of(function.func, "KL kind", name, **more)
    return _of(function, "KL kind", name, **more)


def _aggregation(name: str) -> Explanation:
    from cohort.algorithms.masking import aggregate

    said = parse(aggregate.__doc__)
    (line,) = [line for line in said.formula.splitlines() if line.split()[0] == name]
    settings = [setting(f"{ACTOR}.loss_agg_mode", name)]
    if name.endswith("-norm"):
        settings.append(setting(f"{ACTOR}.loss_scale_factor"))
    return Explanation(
        kind="aggregation",
        name=name,
        summary=said.summary,
        formula=line.split(maxsplit=1)[1],
        details=(
            "N is the number of tokens and G of answers in the whole update minibatch, S_i the sum over the tokens of "
            "answer i and n_i their number.",
            *said.paragraphs[1:],
        ),
        paper=clause(said.paper, name).removeprefix(f"{name} is "),
        wrong=clause(said.wrong, name).removeprefix(f"{name} and "),
        settings=tuple(settings),
        metrics=("actor/loss", "actor/pg_loss"),
    )


def _term(name: str) -> Explanation:
    term = TERMS[name]
    module, _, function = term.target.partition(":")
    matching = tuple(key for key in keys() if key.startswith(term.keys))
    metrics = tuple(m.pattern for m in MEANINGS if m.pattern.startswith(term.metrics)) if term.metrics else ()
    return _of(
        vars(import_module(module))[function],
        "term of the step",
        name,
        settings=tuple(setting(key) for key in matching),
        metrics=metrics,
    )


def _correction(name: str) -> Explanation:
    from cohort.algorithms.correction import Bypass, importance_weights, rejection
    from cohort.algorithms.correction_settings import PRESETS

    correction = PRESETS[name]
    uses: list[Callable[..., Any]] = [importance_weights] if correction.is_level else []
    uses += [rejection] if correction.rules else []
    uses += [Bypass] if correction.bypass else []
    said = [parse(part.__doc__) for part in uses]
    facts = []
    if correction.is_level:
        bound = f"cut down to {correction.threshold}" if correction.threshold else f"kept within {correction.window}"
        judged = f", judged by {correction.window_level}" if correction.window_level else ""
        facts.append(f"Each policy loss is weighed by the {correction.is_level} ratio, {bound}{judged}.")
    for rule in correction.rules:
        low = f"{rule.lower:g} to " if rule.lower else "at most "
        facts.append(f"Left out is what does not have {rule.statistic} at {low}{rule.upper:g}.")
    if correction.bypass:
        facts.append(f"Bypass: the sampler's log-probs are the old ones; the loss is {correction.loss}.")
    return Explanation(
        kind="sampler correction",
        name=name,
        summary=" ".join(facts) or "Nothing is done; the distance between sampler and trainer is logged all the same.",
        formula="\n\n".join(part.formula for part in said if part.formula) or "weight = 1",
        details=tuple(part.summary for part in said),
        paper=" ".join(part.paper for part in said if part.paper) or "none; verl's configuration",
        wrong=" ".join(part.wrong for part in said if part.wrong)
        or "sampler and trainer disagree by more than rounding: rollout_corr/k3_kl says so.",
        settings=(setting(CORRECTION, name),),
        metrics=tuple(m.pattern for m in MEANINGS if m.pattern.startswith("rollout_corr/")),
    )


def _reward(name: str) -> Explanation:
    from cohort.rewards.registry import DATA_SOURCES, REWARDS

    module, _, function = REWARDS[name].partition(":")
    target = vars(import_module(module))[function]
    said = parse(target.__doc__)
    sources = [source for source, reward in DATA_SOURCES.items() if reward == name]
    routed = (f"Grades rows whose data_source is {', '.join(sources)}.",) if sources else ()
    chosen = Setting(f"reward.functions=[{{name: {name}}}]", "", "Grade with it; weight and kwargs stand beside name.")
    return _of(
        target,
        "reward",
        name,
        details=(*said.paragraphs, *routed),
        settings=(chosen,),
        options=_options(target, said.arguments, besides=GIVEN_BY_RUN),
        by="kwargs",
        metrics=("critic/score/mean", "reward/<part>/mean"),
    )


def _metric(name: str) -> Explanation:
    found = meanings_of(name)[0]
    return Explanation(
        kind="metric",
        name=found.pattern,
        summary=found.meaning[0].upper() + found.meaning[1:] + ".",
        healthy=found.healthy,
        details=(f"{found.section}: {' '.join(found.intro.split())}" if found.intro else found.section,),
    )


def _options(
    function: Callable[..., Any], meanings: Mapping[str, str], *, besides: Iterable[str]
) -> tuple[tuple[str, str, str], ...]:
    """Arguments with a default, without those that have a key: name, default, meaning."""
    return tuple(
        (p.name, show(p.default), meanings.get(p.name, ""))
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty and p.name not in besides
    )
