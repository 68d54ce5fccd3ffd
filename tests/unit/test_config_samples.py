"""Keys about which samples train, in which order and how often: what they become, and what is refused."""

from dataclasses import dataclass, field

import pytest

from cohort.assemble.inputs import Inputs
from cohort.assemble.learner import build_advantage
from cohort.assemble.samples import build_filter, build_prompt_loader
from cohort.assemble.surroundings import build_plan
from cohort.config import build, describe_batch
from cohort.config.load import from_arguments
from cohort.data.curriculum import Adaptive, Curriculum, Mixed
from cohort.data.loader import Epochs
from cohort.errors import UserError
from cohort.trainer.screen import Screen
from cohort.trainer.trainer import Trainer
from cohort.types import Prompt
from tests.rig import build_parts, build_trainer

ARR = "actor_rollout_ref"
GOOD = {
    f"{ARR}.model.path": "M",
    f"{ARR}.rollout.n": 4,
    "data.train_batch_size": 8,
    f"{ARR}.actor.ppo_mini_batch_size": 8,
}
FILTER = "algorithm.filter_groups"


def quiet(changes, **options):
    notes = []
    return build({**GOOD, **changes}, note=notes.append, **options), notes


def inputs(n: int = 6) -> Inputs:
    made = [
        Prompt(row=i, ids=(i,), text=str(i), columns={"level": i % 3, "same": 1, "deep": {"level": i}})
        for i in range(n)
    ]
    return Inputs(training=made, validation=())


# --- what the keys become ---------------------------------------------------------------------


def test_dynamic_sampling_is_off_unless_it_is_asked_for():
    assert build_filter(build(GOOD), 100, Screen()) is None
    config, notes = quiet(
        {
            f"{FILTER}.enable": True,
            f"{FILTER}.metric": "acc",
            f"{FILTER}.max_num_gen_batches": 10,
            f"{FILTER}.on_exhausted": "train",
            "data.gen_batch_size": 12,
            "algorithm.overlong_filter": True,
        }
    )
    assert notes == []
    screen = Screen()
    found = build_filter(config, 100, screen)
    assert found is not None
    assert (found.prompts, found.metric, found.max_batches, found.batch_size) == (100, "acc", 10, 12)
    assert found.train_fewer and found.overlong_filter and found.screen is screen
    assert found.limit(8) == 120
    assert build_plan(config).overlong_filter and not build_plan(build(GOOD)).overlong_filter


def test_the_groups_of_the_advantage_follow_group_by():
    assert build_advantage(build(GOOD)).group_by is None
    assert build_advantage(build({**GOOD, "algorithm.group_by": "level"})).group_by == "level"


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({}, Epochs),
        ({"order": "easy_to_hard", "column": "level"}, Curriculum),
        ({"order": "hard_to_easy", "column": "deep.level", "steps": 2, "stages": 3}, Curriculum),
        ({"order": "mixed", "column": "level", "stages": 3}, Mixed),
        ({"order": "adaptive", "floor": 0.1, "discount": 0.9}, Adaptive),
    ],
)
def test_an_order_for_every_word(keys, kind):
    config, notes = quiet({f"data.curriculum.{name}": value for name, value in keys.items()})
    assert notes == []
    order = build_prompt_loader(config, inputs()).order
    assert type(order) is kind
    if isinstance(order, Curriculum):
        assert (order.length, order.stages) == ((16, 3) if "steps" in keys else (6, 4))
        assert (order.index(0) >= 4) == (keys["order"] == "hard_to_easy")  # the hardest two first
    if isinstance(order, Adaptive):
        assert (order.floor, order.discount) == (0.1, 0.9)


def test_columns_are_asked_for_at_the_start():
    for key in ("algorithm.group_by", "data.curriculum.column"):
        changes = {key: "size", **({"data.curriculum.order": "mixed"} if "curriculum" in key else {})}
        with pytest.raises(
            UserError, match=rf"{key}=size: data row 0 has no such column; it has: deep, deep.level, level"
        ):
            build_prompt_loader(build({**GOOD, **changes}), inputs())
    with pytest.raises(UserError, match="every row has 1, so there is nothing to order"):
        build_prompt_loader(
            build({**GOOD, "data.curriculum.order": "easy_to_hard", "data.curriculum.column": "same"}), inputs()
        )


def test_the_banner_says_what_is_left_out_and_in_which_order():
    config, _ = quiet({f"{FILTER}.enable": True, f"{FILTER}.max_num_gen_batches": 3, "algorithm.overlong_filter": True})
    text = "\n".join(describe_batch(config))
    assert "dynamic sampling: draws until 8 groups differ in score, at most 3 batches of up to 8 prompts" in text
    assert "answers that the token limit cuts do not train" in text
    text = "\n".join(describe_batch(quiet({"data.curriculum.order": "mixed", "data.curriculum.column": "level"})[0]))
    assert "prompts come mixed by the column level" in text


# --- contradictions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named", "remedy"),
    [
        ({"data.gen_batch_size": 12}, "data.gen_batch_size=12", "data.train_batch_size=8"),
        (
            {f"{FILTER}.enable": True, "algorithm.group_by": "level"},
            "algorithm.group_by=level",
            f"{FILTER}.enable=True",
        ),
        (
            {f"{FILTER}.enable": True, f"{FILTER}.max_num_gen_batches": 2, "data.gen_batch_size": 3},
            "max_num_gen_batches=2",
            "set it to 3 or more",
        ),
        (
            {f"{FILTER}.enable": True, f"{FILTER}.metric": "seq_final_reward", "algorithm.use_kl_in_reward": True},
            "seq_final_reward",
            "metric=score",
        ),
        ({"data.sampler.class_name": "Mine"}, "data.sampler.class_name=Mine", "data.sampler.class_path"),
        ({"data.sampler.class_path": "a.py"}, "data.sampler.class_path=a.py", "data.sampler.class_name"),
        ({"data.curriculum.order": "mixed"}, "data.curriculum.order=mixed", "data.curriculum.column"),
        ({"data.curriculum.order": "adaptive", "data.shuffle": False}, "data.shuffle=False", "data.shuffle=True"),
        (
            {"data.curriculum.order": "adaptive", "data.sampler.class_path": "a.py", "data.sampler.class_name": "A"},
            "data.sampler.class_path=a.py",
            "set one of them to null",
        ),
        ({"data.curriculum.order": "random"}, "data.curriculum.order=random", "easy_to_hard"),
        ({"data.curriculum.stages": 0}, "stages=0", "nearest is 1"),
        ({f"{FILTER}.on_exhausted": "stop"}, "on_exhausted=stop", "error, train"),
    ],
)
def test_what_contradicts_is_refused_in_one_line(changes, named, remedy):
    with pytest.raises(UserError) as caught:
        quiet(changes)
    line = str(caught.value)
    assert "\n" not in line and named in line and remedy in line


def test_one_answer_per_prompt_cannot_differ():
    with pytest.raises(UserError, match="rollout.n"):
        quiet({f"{FILTER}.enable": True, f"{ARR}.rollout.n": 1})
    assert quiet({"algorithm.group_by": "level", f"{ARR}.rollout.n": 1})[0].algorithm.group_by == "level"


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({f"{FILTER}.metric": "acc"}, f"{FILTER}.metric"),
        ({f"{FILTER}.max_num_gen_batches": 4}, "max_num_gen_batches"),
        ({f"{FILTER}.on_exhausted": "train"}, "on_exhausted"),
        ({"data.gen_batch_size": 8}, "data.gen_batch_size"),
        ({"data.curriculum.column": "level"}, "data.curriculum.column"),
        ({"data.curriculum.order": "adaptive", "data.curriculum.steps": 4}, "data.curriculum.steps"),
        ({"data.sampler.class_path": "a.py", "data.sampler.class_name": "A", "data.shuffle": True}, "data.shuffle"),
        ({f"{FILTER}.max_inflight_gen_batches": 2}, "max_inflight_gen_batches"),
    ],
)
def test_what_does_nothing_is_said(changes, idle):
    _, notes = quiet(changes)
    assert [note for note in notes if note.startswith("no effect: ") and idle in note]
    assert len(notes) == 1


# --- the words of TRL and ms-swift ------------------------------------------------------------


def sizes(config) -> tuple[int, int, int, int]:
    actor = config.actor_rollout_ref.actor
    return config.data.train_batch_size, config.actor_rollout_ref.rollout.n, actor.ppo_mini_batch_size, actor.ppo_epochs


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"num_iterations": 3}, (8, 4, 8, 3)),
        ({"steps_per_generation": 4}, (8, 4, 2, 1)),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_iterations": 2}, (8, 4, 4, 2)),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 4}, (8, 4, 8, 1)),
        ({"generation_batch_size": 64, "num_generations": 16, "steps_per_generation": 2}, (4, 16, 2, 1)),
    ],
)
def test_other_words_for_how_often_rollouts_are_used(words, expected):
    config, notes = quiet(words, given=words)
    assert sizes(config) == expected
    assert all(note.startswith("renamed: ") for note in notes)


def test_the_words_beat_a_preset_on_the_command_line():
    words = ["num_iterations=2", "steps_per_generation=2", "data.task=arithmetic", f"{ARR}.model.path=M"]
    config = from_arguments(words, config_name="grpo").config
    assert sizes(config) == (16, config.actor_rollout_ref.rollout.n, 8, 2)


def test_other_words_for_which_samples_train():
    config, _ = quiet({"dynamic_sample": True, "max_resample_times": 3, "mask_truncated_completions": True}, given=())
    assert config.algorithm.filter_groups.enable and config.algorithm.filter_groups.max_num_gen_batches == 3
    assert config.algorithm.overlong_filter


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            {"steps_per_generation": 2},
            f"steps_per_generation=2 means {ARR}.actor.ppo_mini_batch_size=4, but "
            f"{ARR}.actor.ppo_mini_batch_size=8 is given too; give one of them",
        ),
        (
            {"num_iterations": 2, f"{ARR}.actor.ppo_epochs": 3},
            f"num_iterations=2 is another name of {ARR}.actor.ppo_epochs=3; give one of them",
        ),
        (
            {"generation_batch_size": 64},
            "generation_batch_size=64 means data.train_batch_size=16, but data.train_batch_size=8 is given too; "
            "give one of them",
        ),
        (
            {"generation_batch_size": 30},
            f"generation_batch_size=30: does not divide by {ARR}.rollout.n=4 answers per prompt; "
            "the nearest is 28 or 32",
        ),
        (
            {"steps_per_generation": 3},
            "data.train_batch_size=8: does not divide by the 3 updates of steps_per_generation=3; "
            "the nearest is 6 or 9",
        ),
        (
            {"steps_per_generation": 3, "gradient_accumulation_steps": 2},
            "steps_per_generation=3: does not divide by gradient_accumulation_steps=2 per update; "
            "the nearest is 2 or 4",
        ),
        ({"steps_per_generation": 0}, "steps_per_generation=0: expects a whole number from 1 up; the nearest is 1"),
    ],
)
def test_numbers_that_contradict_are_one_line(words, line):
    with pytest.raises(UserError) as caught:
        quiet(words)
    assert str(caught.value) == line


def test_accumulation_alone_is_memory():
    config, notes = quiet({"gradient_accumulation_steps": 4})
    assert sizes(config) == sizes(build(GOOD))
    assert len(notes) == 1 and notes[0].startswith("no effect: gradient_accumulation_steps=4")


# --- the trace of ms-swift's documentation ----------------------------------------------------


@dataclass
class Trace:
    """What a run does, in order: ``gen``, and the data rows of each update."""

    events: list = field(default_factory=list)

    def follow(self, trainer: Trainer) -> None:
        collect, update = trainer.collect, trainer.actor.update

        def seen_collect(*args, **kwargs):
            self.events.append("gen")
            return collect(*args, **kwargs)

        def seen_update(minibatch, **options):
            width = minibatch.batch.prompt_lengths.max()
            asked = [tuple(row[:width].tolist()) for row in minibatch.batch.ids]
            answers = [tuple(row) for row in minibatch.batch.response_ids.tolist()]
            self.events.append(list(zip(asked, answers, strict=True)))
            return update(minibatch, **options)

        trainer.collect = seen_collect  # pyright: ignore[reportAttributeAccessIssue]
        trainer.actor.update = seen_update  # pyright: ignore[reportAttributeAccessIssue]


def test_mu_and_steps_per_generation_reuse_rollouts_as_ms_swift_does():
    """SPG 4, mu 2, accumulation 2: slices 0,1 | 2,3 | 0,1 | 2,3 at four updates, then the sampler is called again."""
    words = {"steps_per_generation": 4, "num_iterations": 2, "gradient_accumulation_steps": 2}
    config, _ = quiet(words, given=words)
    plan = build_plan(config)
    assert (plan.prompts, plan.minibatch, plan.epochs, plan.updates(plan.prompts)) == (8, 4, 2, 4)
    trainer, trace = build_trainer(build_parts(), prompts=8, minibatch=4, epochs=2, n=2), Trace()
    trace.follow(trainer)
    records = [trainer.step(), trainer.step()]
    trainer.close()
    assert [event if event == "gen" else len(event) for event in trace.events] == ["gen", 8, 8, 8, 8] * 2
    for start, record in zip((0, 5), records, strict=True):
        first, second, third, fourth = trace.events[start + 1 : start + 5]
        assert first == third and second == fourth and first != second
        assert [group.prompt.row for group in record.groups] == [
            p % 6 for p in range(start // 5 * 8, start // 5 * 8 + 8)
        ]
        assert record.metrics["training/updates"].read() == 4
    assert trace.events[1] != trace.events[6]  # new rollouts
    assert (
        records[0].experience.old_log_probs is not None
    )  # the ratio moves: old log-probs are those before the updates
