"""What a preset is made of, and where it differs from the schema's defaults."""

from __future__ import annotations

from typing import Any

from cohort.config.convert import MISSING, convert, show
from cohort.config.family import ACTOR, ESTIMATOR, LOSS, LOSSES
from cohort.config.load import PRESETS, compose
from cohort.config.tree import keys, plain
from cohort.explain.entries import CORRECTION, Explanation, Setting, explain

NOTE = "A null follows"


def preset(name: str) -> Explanation:
    """Its header, its estimator, loss, aggregation and whatever else it switches on, and its own keys."""
    flat = compose([], config_name=name)
    parts = tuple((role, explain(kind, part)) for role, kind, part in _parts(flat))
    return Explanation(
        kind="preset",
        name=name,
        summary=header(name),
        formula="\n\n".join(f"{role}\n{_indented(part.formula)}" for role, part in parts if part.formula),
        wrong=" ".join(f"{part.name}: {part.wrong}" for _, part in parts if part.wrong),
        paper=" ".join(f"{part.name}: {part.paper}" for _, part in parts if part.paper),
        settings=(
            Setting(f"--config-name {name}", "", "Start from this preset; every key can still be given."),
            *differences(flat),
        ),
        parts=parts,
    )


def header(name: str) -> str:
    """The comment at the top of the preset's file, without what all of them say."""
    lines: list[str] = []
    for line in (PRESETS / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(" ".join(line for line in lines if not line.startswith(NOTE)).split())


def differences(flat: dict[str, Any]) -> list[Setting]:
    """The keys whose value is not the schema's default, with the preset's value."""
    found = []
    for name, key in keys().items():
        value = flat.get(name)
        if name not in flat or (value is None and (key.same_as is not None or key.default is None)):
            continue
        if value == MISSING:
            found.append(Setting(name, "must be given", key.doc))
        elif value is None or plain(convert(name, value, key.hint)) != plain(key.default):
            found.append(Setting(name, show(value), key.doc))
    return found


def _parts(flat: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Role, kind and name of what the preset uses."""
    loss = flat[LOSS]
    mode = flat[f"{ACTOR}.loss_agg_mode"] or LOSSES[loss].aggregation
    parts = [
        ("advantage", "advantage estimator", flat[ESTIMATOR]),
        ("loss of a token", "policy loss", loss),
        ("loss of an update", "aggregation", mode),
    ]
    if flat[f"{ACTOR}.use_kl_loss"]:
        parts.append(("KL in the loss", "KL kind", flat[f"{ACTOR}.kl_loss_type"]))
    if flat["algorithm.use_kl_in_reward"]:
        parts.append(("KL in the reward", "KL kind", flat["algorithm.kl_penalty"]))
    if flat["algorithm.chord.enable"]:
        parts += [
            ("demonstrations", "term of the step", "chord"),
            ("their weight mu", "term of the step", "chord_mu"),
        ]
    if flat[ESTIMATOR] == "gae":
        parts.append(("critic", "term of the step", "critic"))
    if flat[CORRECTION]:
        parts.append(("sampler correction", "sampler correction", flat[CORRECTION]))
    return parts


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
