"""verl's keys: each is ours, renamed, without effect, or refused; exactly one of these."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from cohort.config import build
from cohort.config.load import from_arguments, from_keywords
from cohort.config.translate import entry
from cohort.config.tree import keys
from cohort.config.verl import COHORT_ONLY, DEVIATIONS, INERT, REFUSED, REFUSED_VALUES, RENAMED
from cohort.errors import UserError

VERL_KEYS = (Path(__file__).parents[1] / "golden" / "verl_keys.txt").read_text().split()
ARR = "actor_rollout_ref"
GOOD = {f"{ARR}.model.path": "M", f"{ARR}.rollout.n": 8}


AGREES = (f"{ARR}.rollout.max_model_len", f"{ARR}.rollout.val_kwargs.do_sample")
"""Keys that do nothing as long as they agree with ours; their other values are among the broken inputs."""


def places(key: str) -> list[str]:
    """The tables that speak for a key; a pattern speaks where no exact name does, the longest first."""
    exact = [
        name
        for name, table in {"schema": keys(), "renamed": RENAMED, "inert": INERT, "refused": REFUSED}.items()
        if key in table
    ]
    if exact:
        return exact
    found = [(pattern, "inert") for pattern in INERT if fnmatchcase(key, pattern)]
    found += [(pattern, "refused") for pattern in REFUSED if fnmatchcase(key, pattern)]
    longest = max((len(pattern) for pattern, _ in found), default=0)
    return sorted({place for pattern, place in found if len(pattern) == longest})


def test_each_key_of_verl_is_in_exactly_one_place():
    assert {key: places(key) for key in VERL_KEYS if len(places(key)) != 1} == {}


@pytest.mark.parametrize(
    "key",
    [
        "data.cache_dir",
        f"{ARR}.actor.optim.override_optimizer_config.eps",
        f"{ARR}.actor.fsdp_config.mixed_precision.param_dtype",
        f"{ARR}.rollout.engine_kwargs.vllm.max_lora_rank",
        f"{ARR}.actor.megatron.tensor_model_parallel_size",
        f"{ARR}.actor.profiler.enable",
        f"{ARR}.actor.fsdp_config.qat.enable",
        "reward.reward_kwargs.max_resp_len",
        "algorithm.gdpo_reward_keys",
        "trainer.wandb_proxy",
        "async_training.staleness_threshold",
    ],
)
def test_keys_that_exist_only_through_a_plus_have_a_place(key):
    assert len(places(key)) == 1


def test_the_list_of_verls_keys_is_whole():
    assert len(VERL_KEYS) == len(set(VERL_KEYS)) == 610


def test_tables_name_our_keys():
    assert {renamed.to for renamed in RENAMED.values()} <= set(keys())
    assert set(REFUSED_VALUES) <= set(keys())
    assert set(DEVIATIONS) <= set(keys())


def test_the_table_of_our_own_keys_is_whole():
    known = {key.replace("reward.custom_reward_function", "custom_reward_function") for key in VERL_KEYS}
    known |= {"custom_reward_function.reward_kwargs", "reward.timeout"}  # read by verl, given with a +
    assert set(COHORT_ONLY) == set(keys()) - known


def test_a_key_without_effect_takes_any_value_and_changes_nothing():
    free = [key for key in VERL_KEYS if places(key) == ["inert"] and entry(key).safe is None and key not in AGREES]
    assert len(free) > 300
    for key in free:
        notes = []
        assert build({**GOOD, key: 3}, note=notes.append) == build(GOOD), key
        assert len(notes) == 1, key
        assert f"{key}=3" in notes[0]
        assert len(notes[0].split("(", 1)[1]) > 10


@pytest.mark.parametrize(("key", "value"), [(AGREES[0], 1024), (AGREES[1], False)])
def test_keys_that_agree_with_ours_are_accepted(key, value):
    notes = []
    assert build({**GOOD, key: value}, note=notes.append) == build(GOOD)
    assert len(notes) == 1


def guarded():
    """Keys that are accepted with some values alone."""
    return [key for key in VERL_KEYS if places(key) == ["inert"] and entry(key).safe is not None]


def test_safe_values_are_accepted_with_a_line():
    assert len(guarded()) > 60
    for key in guarded():
        for value in entry(key).safe:
            notes = []
            assert build({**GOOD, key: value}, note=notes.append) == build(GOOD), (key, value)
            assert len(notes) == 1, (key, value)


def test_other_values_would_change_the_run_and_are_refused():
    for key in guarded():
        with pytest.raises(UserError) as caught:
            build({**GOOD, key: "another"}, note=lambda line: None)
        assert f"{key}=another is not built" in str(caught.value)
        assert "instead: " in str(caught.value)


def test_true_is_not_one():
    with pytest.raises(UserError, match="algorithm.gamma=True"):
        build({**GOOD, "algorithm.gamma": True})


@pytest.mark.parametrize(
    ("old", "value", "path", "expected"),
    [
        (f"{ARR}.actor.grad_clip", 0.5, ("actor", "optim", "clip_grad"), 0.5),
        (f"{ARR}.actor.optim.warmup_style", "cosine", ("actor", "optim", "lr_scheduler_type"), "cosine"),
        (f"{ARR}.actor.ppo_micro_batch_size", 4, ("actor", "ppo_micro_batch_size_per_gpu"), 4),
        (f"{ARR}.actor.fsdp_config.dtype", "bf16", ("actor", "dtype"), "bfloat16"),
        (f"{ARR}.actor.use_prefix_grouper", False, ("actor", "share_prompt"), False),
        (f"{ARR}.model.lora.rank", 8, ("model", "lora_rank"), 8),
        ("data.tokenizer", "T", ("model", "tokenizer_path"), "T"),
    ],
)
def test_an_old_name_is_read_as_ours_with_a_line(old, value, path, expected):
    notes = []
    found = build({**GOOD, old: value}, note=notes.append).actor_rollout_ref
    for part in path:
        found = getattr(found, part)
    assert found == expected
    assert notes[0].startswith(f"renamed: {old} is read as ")


def test_rewards_of_the_newer_names():
    config = build(
        {**GOOD, "reward.custom_reward_function": {"path": "r.py", "reward_kwargs": {"x": 1}}}, note=lambda line: None
    )
    assert config.custom_reward_function.path == "r.py"
    assert config.custom_reward_function.reward_kwargs == {"x": 1}


def test_an_old_name_beats_the_preset_but_not_the_person():
    loaded = from_arguments(
        [f"{ARR}.actor.grad_clip=0.5", "data.task=arithmetic", f"{ARR}.model.path=M"], config_name="grpo"
    )
    assert loaded.config.actor_rollout_ref.actor.optim.clip_grad == 0.5
    with pytest.raises(UserError, match="give one of them"):
        from_keywords("grpo", **{f"{ARR}.actor.grad_clip": 0.5, "optim__clip_grad": 2.0, "model__path": "M"})


def test_keys_with_the_same_reason_share_a_line():
    notes = []
    build({**GOOD, "ray_init.num_cpus": 4, "ray_kwargs.timeline_json_file": "x"}, note=notes.append)
    assert len(notes) == 1
    assert "ray_init.num_cpus=4, ray_kwargs.timeline_json_file=x" in notes[0]


def test_reward_models_of_the_newer_names():
    notes = []
    config = build(
        {
            **GOOD,
            "reward.reward_model.enable": True,
            "reward.reward_model.model_path": "RM",
            "reward.reward_model.rollout.dtype": "bfloat16",
            "reward.reward_model.rollout.name": "vllm",
            "reward_model.model.input_tokenizer": "M",
        },
        note=notes.append,
    )
    section = config.reward_model
    assert (section.enable, section.model.path, section.dtype) == (True, "RM", "bfloat16")
    assert any("in its own tokenizer and chat template" in note for note in notes)


def test_keys_of_a_reward_model_that_does_nothing_are_said():
    def notes_of(**settings):
        notes = []
        build(
            {**GOOD, **{f"reward_model.{name.replace('__', '.')}": v for name, v in settings.items()}},
            note=notes.append,
        )
        return " ".join(notes)

    assert "reward_model.weight (reward_model.enable=False)" in notes_of(weight=2.0)
    assert "reward_model.judge.n (reward_model.kind=classifier)" in notes_of(enable=True, model__path="C", judge__n=2)
    assert "reward_model.label (reward_model.kind=judge)" in notes_of(enable=True, kind="judge", label="x")
    assert "reward_model.dtype (reward_model.model.path=null" in notes_of(enable=True, kind="judge", dtype="float32")
