"""Rules about which samples train and in which order: what must hold, what does nothing, and words for the banner."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.config.convert import show
from cohort.config.family import ESTIMATORS
from cohort.config.schema import Config
from cohort.errors import UserError

N = "actor_rollout_ref.rollout.n"
UNGROUPED = tuple(name for name, entry in ESTIMATORS.items() if not entry.group_baseline)
"""Estimators that compare an answer with something else than its group."""


def check(config: Config) -> None:
    """Cross-checks of the keys about samples.

    Raises:
        UserError: naming the keys, their values and what would be legal.
    """
    _filter(config)
    _order(config)


def _filter(config: Config) -> None:
    data, chosen = config.data, config.algorithm.filter_groups
    if not chosen.enable:
        if data.gen_batch_size not in (None, data.train_batch_size):
            raise UserError(
                f"data.gen_batch_size={data.gen_batch_size}: without algorithm.filter_groups.enable=True a step "
                f"samples data.train_batch_size={data.train_batch_size} prompts; set that one instead"
            )
        return
    if config.actor_rollout_ref.rollout.n == 1:
        raise UserError(
            f"algorithm.filter_groups.enable=True: with {N}=1 there are no two answers that could differ; "
            f"set {N} to 2 or more, or algorithm.filter_groups.enable=False"
        )
    if config.algorithm.group_by is not None:
        raise UserError(
            f"algorithm.group_by={config.algorithm.group_by}: algorithm.filter_groups.enable=True judges the answers "
            "to one prompt, which are not what is compared then; set one of the two to its default"
        )
    if chosen.metric == "seq_final_reward" and (shaped := _shaped(config)):
        raise UserError(
            f"algorithm.filter_groups.metric=seq_final_reward: with {shaped}=True it always differs, so nothing "
            "would be filtered; instead: algorithm.filter_groups.metric=score"
        )
    most = chosen.max_num_gen_batches * (data.gen_batch_size or data.train_batch_size)
    if 0 < most < data.train_batch_size:
        raise UserError(
            f"algorithm.filter_groups.max_num_gen_batches={chosen.max_num_gen_batches}: batches of data.gen_batch_size="
            f"{data.gen_batch_size} make {most} prompts, fewer than data.train_batch_size={data.train_batch_size}; "
            f"set it to {-(-data.train_batch_size // (data.gen_batch_size or 1))} or more"
        )


def _shaped(config: Config) -> str | None:
    """What makes a final reward another number than the score."""
    algorithm = config.algorithm
    if algorithm.use_kl_in_reward:
        return "algorithm.use_kl_in_reward"
    if algorithm.ref_reward_blend.enable:
        return "algorithm.ref_reward_blend.enable"
    return "algorithm.repr_align.enable" if algorithm.repr_align.enable else None


def _order(config: Config) -> None:
    data, wanted, own = config.data, config.data.curriculum, config.data.sampler
    if own.class_path is None and own.class_name is not None:
        raise UserError(f"data.sampler.class_name={own.class_name}: which file is it in? Set data.sampler.class_path")
    if own.class_path is not None and own.class_name is None:
        raise UserError(f"data.sampler.class_path={show(own.class_path)}: which class? Set data.sampler.class_name")
    if wanted.order is None:
        return
    if own.class_path is not None:
        raise UserError(
            f"data.curriculum.order={wanted.order}: data.sampler.class_path={show(own.class_path)} orders the prompts; "
            "set one of them to null"
        )
    if wanted.order != "adaptive" and wanted.column is None:
        raise UserError(
            f"data.curriculum.order={wanted.order}: by what? Set data.curriculum.column to a column of numbers, "
            "or data.curriculum.order=adaptive, which measures"
        )
    if not data.shuffle:
        raise UserError(
            f"data.shuffle=False: data.curriculum.order={wanted.order} draws at random; set data.curriculum.order=null "
            "to keep the order of the file, or data.shuffle=True"
        )


def idle(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that do nothing beside the others, and why."""
    data, wanted = config.data, config.data.curriculum
    if not config.algorithm.filter_groups.enable:
        off = "algorithm.filter_groups.enable=False"
        names = ("metric", "max_num_gen_batches", "on_exhausted")
        yield from ((f"algorithm.filter_groups.{name}", off) for name in names)
        yield "data.gen_batch_size", off
    if config.algorithm.adv_estimator in UNGROUPED:
        yield "algorithm.group_by", f"adv_estimator={config.algorithm.adv_estimator} compares nothing within groups"
    used = {
        None: (),
        "easy_to_hard": ("column", "steps", "stages"),
        "hard_to_easy": ("column", "steps", "stages"),
        "mixed": ("column", "stages"),
        "adaptive": ("floor", "discount"),
    }[wanted.order]
    for name in ("column", "steps", "stages", "floor", "discount"):
        if name not in used:
            yield f"data.curriculum.{name}", f"data.curriculum.order={show(wanted.order)}"
    if data.sampler.class_path is not None:
        yield "data.shuffle", f"data.sampler.class_name={data.sampler.class_name} orders the prompts"


def describe(config: Config) -> list[str]:
    """What the start banner says about samples that are left out, and about the order."""
    data, chosen, wanted = config.data, config.algorithm.filter_groups, config.data.curriculum
    lines = []
    if chosen.enable:
        batch = (
            f"of {data.gen_batch_size} prompts" if data.gen_batch_size else f"of up to {data.train_batch_size} prompts"
        )
        most = (
            f"at most {chosen.max_num_gen_batches} batches {batch}"
            if chosen.max_num_gen_batches > 0
            else f"in batches {batch}"
        )
        lines.append(
            f"dynamic sampling: draws until {data.train_batch_size} groups differ in {chosen.metric or 'score'}, {most}"
        )
    if config.algorithm.overlong_filter:
        lines.append("answers that the token limit cuts do not train")
    if config.algorithm.group_by is not None:
        lines.append(f"answers are compared with all of the step whose {config.algorithm.group_by} is the same")
    if data.sampler.class_path is not None:
        lines.append(f"prompts come in the order of {data.sampler.class_name} ({data.sampler.class_path})")
    if wanted.order == "adaptive":
        lines.append("prompts that are answered right sometimes come more often")
    elif wanted.order is not None:
        lines.append(f"prompts come {wanted.order.replace('_', ' ')} by the column {wanted.column}")
    return lines
