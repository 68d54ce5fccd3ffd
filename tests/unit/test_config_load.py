"""Presets, files and overrides: Hydra composes, our build judges."""

import warnings

import pytest
import yaml

from cohort.config import build
from cohort.config.document import markdown
from cohort.config.load import PRESETS, from_arguments, from_keywords, presets, read_yaml, to_yaml
from cohort.config.tree import flatten, keys, values
from cohort.errors import UserError
from tests.unit.verl_command import VERL_COMMAND

ARR = "actor_rollout_ref"


def load(*words, preset="grpo", **options):
    words = (f"{ARR}.model.path=M", "data.task=arithmetic", *words)
    return from_arguments(words, config_name=preset, **options).config


@pytest.mark.parametrize("preset", presets())
def test_a_preset_is_complete_and_hides_nothing(preset):
    flat = flatten(yaml.safe_load((PRESETS / f"{preset}.yaml").read_text()))
    assert set(flat) == set(keys())
    assert all(flat[name] is not None or _may_be_null(name) for name in flat)


def _may_be_null(name):
    return keys()[name].same_as is not None or keys()[name].default is None


@pytest.mark.parametrize("preset", presets())
def test_a_preset_builds_where_its_open_ends_are_given(preset):
    files = "algorithm.chord.files=[expert.jsonl]"
    config = load("algorithm.adv_estimator=grpo", f"{ARR}.rollout.n=8", files, preset=preset)
    assert config.actor_rollout_ref.model.path == "M"


def test_the_quickstart_needs_nothing():
    loaded = from_arguments([], config_name="quickstart")
    assert loaded.notes == ()
    assert loaded.config.actor_rollout_ref.model.path == "starter"
    assert loaded.config.data.task == "arithmetic"


def test_dr_grpo_is_what_the_paper_says():
    config = load(preset="dr_grpo")
    actor = config.actor_rollout_ref.actor
    assert not config.algorithm.norm_adv_by_std_in_grpo
    assert (actor.loss_agg_mode, actor.loss_scale_factor) == (
        "seq-mean-token-sum-norm",
        config.data.max_response_length,
    )
    assert not actor.use_kl_loss


def test_the_preset_verl_has_verls_algorithm():
    critic = load(f"{ARR}.model.path=M", preset="verl").critic
    assert (critic.optim.lr, critic.cliprange_value, critic.ppo_mini_batch_size) == (1e-5, 0.5, 256)
    assert (critic.model.path, critic.loss_agg_mode) == ("M", "token-mean")
    config = load("algorithm.adv_estimator=grpo", f"{ARR}.rollout.n=2", preset="verl")
    actor = config.actor_rollout_ref.actor
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_epochs) == (1024, 256, 1)
    assert (actor.optim.lr, actor.optim.weight_decay, actor.optim.clip_grad) == (1e-6, 0.01, 1.0)
    assert (actor.clip_ratio, actor.clip_ratio_c, actor.loss_agg_mode) == (0.2, 3.0, "token-mean")
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (False, 0.001, "low_var_kl")
    assert (config.algorithm.kl_penalty, config.algorithm.kl_ctrl.kl_coef) == ("kl", 0.001)


def test_the_command_of_a_verl_user_builds():
    loaded = from_arguments(VERL_COMMAND, config_name="verl")
    config, actor = loaded.config, loaded.config.actor_rollout_ref.actor
    assert len(loaded.notes) == 1
    assert "trainer.critic_warmup (algorithm.adv_estimator=grpo has no critic)" in loaded.notes[0]
    assert config.data.train_files == ("D/train.parquet",)
    assert config.trainer.logger == ("console", "tensorboard")
    assert (actor.optim.lr, actor.ppo_mini_batch_size, actor.ppo_micro_batch_size_per_gpu) == (1e-6, 8, 4)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.001, "low_var_kl")
    assert config.actor_rollout_ref.rollout.n == 5
    assert config.trainer.run_folder == "runs/p/e"
    assert config.trainer.total_training_steps == 2


@pytest.mark.parametrize("mark", ["", "+", "++"])
def test_any_mark_sets_a_key(mark):
    assert load(f"{mark}data.train_batch_size=40").data.train_batch_size == 40


def test_a_tilde_takes_the_schemas_default():
    assert load("~data.max_response_length").data.max_response_length == 512


@pytest.mark.parametrize(
    ("word", "path"),
    [
        (f"{ARR}.model.path=~/models/x", "~/models/x"),
        (f"{ARR}.model.path=/a/b=c (d)/ü", "/a/b=c (d)/ü"),
        (f"{ARR}.model.path='quoted, with comma'", "quoted, with comma"),
        (f"{ARR}.model.path=meta-llama/Llama-3.1:8B", "meta-llama/Llama-3.1:8B"),
        (f"{ARR}.model.path=it's", "it's"),
    ],
)
def test_paths_need_no_quotes(word, path):
    assert load(word).actor_rollout_ref.model.path == path


@pytest.mark.parametrize("text", ['["console","tensorboard"]', "[console,tensorboard]", "['console', 'tensorboard']"])
def test_lists_in_any_quotes(text):
    assert load(f"trainer.logger={text}").trainer.logger == ("console", "tensorboard")


def test_mappings_and_interpolations():
    config = load(
        "+custom_reward_function.reward_kwargs.alpha=0.5",
        "custom_reward_function.path=r.py",
        "data.apply_chat_template_kwargs={enable_thinking: false}",
        "trainer.experiment_name=seed${trainer.seed}",
    )
    assert config.custom_reward_function.reward_kwargs == {"alpha": 0.5}
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert config.trainer.experiment_name == "seed1"


def test_one_seed_names_the_run():
    config = load("trainer.seed=9")
    assert (config.data.seed, config.actor_rollout_ref.rollout.seed) == (9, 9)


def test_hydras_own_keys_are_said_to_do_nothing():
    loaded = from_arguments(["hydra.run.dir=out"], config_name="quickstart")
    assert "hydra.run.dir=out" in loaded.notes[0]


def test_a_file_may_start_from_a_preset(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults:\n  - grpo\n  - _self_\ndata:\n  task: arithmetic\n  train_batch_size: 20\n"
        f"{ARR}:\n  model: {{path: starter}}\n  actor: {{optim: {{lr: 1e-5}}}}\n"
    )
    by_path = from_arguments(["data.seed=3"], config_name=str(tmp_path / "mine.yaml")).config
    by_folder = from_arguments(["data.seed=3"], config_name="mine", config_dir=str(tmp_path)).config
    assert by_path == by_folder
    assert (by_path.data.train_batch_size, by_path.data.seed, by_path.actor_rollout_ref.rollout.n) == (20, 3, 64)
    assert by_path.actor_rollout_ref.actor.optim.lr == 1e-5


def test_keys_without_effect_in_a_file_are_said(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"{ARR}:\n  model: {{path: starter, lora_alpha: 64}}\n  rollout: {{n: 2}}\ndata: {{task: arithmetic}}\n"
        "ray_init: {num_cpus: 2}\n"
    )
    notes = from_arguments([], config_name=str(tmp_path / "mine.yaml")).notes
    assert len(notes) == 2
    assert "ray_init.num_cpus" in notes[0]
    assert "lora_alpha" in notes[1]


def test_the_resolved_config_round_trips(tmp_path):
    config = load("trainer.logger=[console]", "data.task_kwargs={digits: 3}", "reward.functions=[{name: gsm8k}]")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert read_yaml(path) == config
    assert build(yaml.safe_load(to_yaml(config)), given=()) == config


def test_keywords_may_be_dotted_nested_or_the_end_of_a_key():
    config = from_keywords(
        "grpo",
        data={"train_batch_size": 8},
        model__path="M",
        rollout__n=4,
        optim__lr=1e-4,
        ppo_mini_batch_size=8,
        rollout={"temperature": 0.8},
        **{"trainer.seed": 3},
    )
    assert config == from_keywords(
        *("grpo", {"data.train_batch_size": 8, "actor_rollout_ref": {"model.path": "M"}}),
        **dict(n=4, lr=1e-4, ppo_mini_batch_size=8, temperature=0.8, seed=3),
    )
    arr = config.actor_rollout_ref
    assert (config.data.train_batch_size, arr.rollout.n, arr.rollout.temperature) == (8, 4, 0.8)
    assert (arr.actor.optim.lr, arr.actor.ppo_mini_batch_size, config.data.seed) == (1e-4, 8, 3)


def test_an_ambiguous_keyword_lists_what_it_may_mean():
    with pytest.raises(UserError, match="path=M: path is the end of 2 keys.*actor_rollout_ref__model__path"):
        from_keywords("grpo", path="M")
    with pytest.raises(UserError, match=r"lerning_rate=1"):
        from_keywords("grpo", lerning_rate=1)


def test_keywords_of_python_say_what_does_nothing():
    with pytest.warns(UserWarning, match="no effect: actor_rollout_ref.model.lora_alpha"):
        from_keywords("grpo", model__path="M", lora_alpha=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_keywords("grpo", model__path="M")


def test_a_hydra_application_around_us_is_left_alone(tmp_path):
    from hydra import compose, initialize_config_dir

    (tmp_path / "app.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        load()
        assert compose("app").x == 1


def test_the_page_of_keys_is_up_to_date():
    page = (PRESETS.parents[2] / "docs" / "config.md").read_text()
    assert page == markdown(), "run: python -m cohort.config.document > docs/config.md"
    assert all(f"`{name.rpartition('.')[2]}`" in page for name in keys())
    assert len(values(load())) == len(keys())


@pytest.mark.parametrize(
    "text",
    [r"(\d)", r"Score:\s*(-?\d+(?:\.\d+)?)", r"a\'b (c)", "it's (x)", "ends with (\\", "(\\\\'", "(a''b)", "(\n)"],
)
def test_regular_expressions_and_quotes_arrive_as_they_were_typed(text):
    arguments = ["data.task=arithmetic", "actor_rollout_ref.model.path=M", f"data.prompt_key={text}"]
    assert from_arguments(arguments, config_name="grpo").config.data.prompt_key == text
