"""From a mapping to a Config: what is accepted, what follows what, and the batch arithmetic."""

import dataclasses
import subprocess
import sys
import typing

import pytest

from cohort.config import Config, amend, build, describe_batch
from cohort.config.schema.limits import Range
from cohort.config.tree import field_docs, flatten, keys, nest, values
from cohort.errors import UserError

ARR = "actor_rollout_ref"
GOOD = {f"{ARR}.model.path": "M", f"{ARR}.rollout.n": 8}


def quiet(changes, **options):
    notes = []
    return build({**GOOD, **changes}, note=notes.append, **options), notes


def test_nested_and_dotted_keys_are_the_same():
    nested = {"actor_rollout_ref": {"model": {"path": "M"}, "rollout": {"n": 8}}}
    assert build(nested) == build(GOOD) == build({ARR: {"model.path": "M", "rollout.n": 8}})


def test_a_config_is_frozen_and_mirrors_the_dotted_keys():
    config = build(GOOD)
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 256
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.data.seed = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("key", "value", "result"),
    [
        ("data.train_files", "one.parquet", ("one.parquet",)),
        ("data.train_files", ["a.jsonl", "b.parquet"], ("a.jsonl", "b.parquet")),
        ("data.val_batch_size", None, None),
        ("data.val_batch_size", 4, 4),
        ("trainer.experiment_name", 42, "42"),
        ("trainer.logger", "console", ("console",)),
        ("trainer.device", "cuda:1", "cuda:1"),
        (f"{ARR}.actor.optim.lr", 1, 1.0),
        (f"{ARR}.actor.optim.betas", [0.9, 0.95], (0.9, 0.95)),
        (f"{ARR}.actor.entropy_coeff", -0.1, -0.1),
        (f"{ARR}.model.target_modules", ["q_proj", "v_proj"], ("q_proj", "v_proj")),
        (f"{ARR}.model.override_config", {"rope": {"theta": 1e6}}, {"rope": {"theta": 1e6}}),
        (f"{ARR}.rollout.stop", ["</answer>"], ("</answer>",)),
        ("data.task", "reasoning-gym/chain_sum", "reasoning-gym/chain_sum"),
    ],
)
def test_what_a_value_becomes(key, value, result):
    config, _ = quiet({key: value})
    found = flatten({key: found_at(config, key)})[key]
    assert found == result
    assert type(found) is type(result)


def found_at(config, key):
    for part in key.split("."):
        config = getattr(config, part)
    return config


def test_reward_functions_are_dataclasses():
    config, _ = quiet({"reward.functions": [{"name": "gsm8k"}, {"name": "f", "path": "r.py", "weight": 0.1}]})
    assert [(f.name, f.path, f.weight) for f in config.reward.functions] == [("gsm8k", None, 1.0), ("f", "r.py", 0.1)]


@pytest.mark.parametrize(("key", "source"), [(key.name, key.same_as) for key in keys().values() if key.same_as])
def test_a_key_follows_another_until_it_is_set(key, source):
    hint = keys()[source].hint
    new = {"trainer.seed": 7, "data.trust_remote_code": True, f"{ARR}.rollout.stop": ["x"], "data.prompt_key": "q"}.get(
        source
    )
    if new is None:
        new = {bool: True, str: "new"}.get(hint, 0.25 if source.endswith("clip_ratio") else 96)
    if source.endswith("loss_agg_mode"):
        new = "token-sum"
    config, _ = quiet({source: new})
    expected = tuple(new) if isinstance(new, list) else new
    assert found_at(config, key) == expected
    assert found_at(quiet({source: new, key: None})[0], key) == expected
    default = found_at(build(GOOD), key)
    own = list(default) if isinstance(default, tuple) else default
    assert own is None or found_at(quiet({source: new, key: own})[0], key) == default


def test_every_default_is_legal_and_the_config_survives_a_round_trip():
    config = build(GOOD)
    assert build(values(config), given=()) == config
    assert build(nest(values(config)), given=()) == config


def test_amend_changes_one_key():
    config = amend(build(GOOD), {f"{ARR}.actor.dtype": "float32"})
    assert config.actor_rollout_ref.actor.dtype == "float32"
    with pytest.raises(UserError, match="dtype=float8"):
        amend(config, {f"{ARR}.actor.dtype": "float8"})


def test_every_field_of_the_schema_has_a_docstring_of_one_sentence_or_more():
    for key in keys().values():
        assert key.doc.endswith("."), key.name
        assert len(key.doc) > 15, key.name


def test_a_field_without_a_docstring_is_found():
    with pytest.raises(TypeError, match=r"Bare\.x has no docstring"):
        field_docs(Bare)


@dataclasses.dataclass
class Bare:
    x: int = 3
    y: int = 4
    """Documented."""


def sections_of(cls):
    yield cls
    for hint in typing.get_type_hints(cls).values():
        if dataclasses.is_dataclass(hint):
            yield from sections_of(hint)


def test_all_sections_are_frozen_and_keyword_only():
    for cls in sections_of(Config):
        assert cls.__dataclass_params__.frozen, cls  # pyright: ignore[reportAttributeAccessIssue]
        assert all(field.kw_only for field in dataclasses.fields(cls)), cls


def test_a_range_says_where_the_nearest_legal_number_is():
    assert Range(low=0, high=1).words() == "from 0 to 1"
    assert Range(low=0, above=True).words() == "above 0"
    assert Range(low=0, high=1, above=True).words() == "above 0 up to 1"
    assert Range(low=1).nearest(-3) == 1
    assert Range(low=0, high=1).nearest(3) == 1


# --- keys that do nothing beside others -------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({f"{ARR}.ref.log_prob_micro_batch_size_per_gpu": 4}, "ref.log_prob_micro_batch_size_per_gpu"),
        ({f"{ARR}.actor.use_dynamic_bsz": True, f"{ARR}.actor.ppo_micro_batch_size_per_gpu": 4}, "ppo_micro_batch"),
        ({f"{ARR}.actor.data_loader_seed": 4}, "data_loader_seed"),
        ({f"{ARR}.actor.loss_scale_factor": 100}, "loss_scale_factor"),
        ({f"{ARR}.actor.optim.min_lr_ratio": 0.1}, "min_lr_ratio"),
        ({f"{ARR}.actor.optim.lr_warmup_steps": 5, f"{ARR}.actor.optim.lr_warmup_steps_ratio": 0.1}, "steps_ratio"),
        ({f"{ARR}.model.lora_alpha": 32}, "lora_alpha"),
        ({"data.train_size": 10}, "train_size"),
        ({f"{ARR}.rollout.val_kwargs.top_p": 0.9}, "val_kwargs.top_p"),
        ({"trainer.max_actor_ckpt_to_keep": 2}, "max_actor_ckpt_to_keep"),
    ],
)
def test_a_key_without_effect_is_said_in_one_line(changes, idle):
    _, notes = quiet(changes, given=changes)
    assert len(notes) == 1
    assert notes[0].startswith("no effect: ")
    assert idle in notes[0]


def test_keys_of_a_preset_are_not_complained_about():
    _, notes = quiet({f"{ARR}.actor.kl_loss_coef": 0.01}, given=())
    assert notes == []


def test_a_kl_coefficient_of_nothing_is_no_contradiction():
    off = {f"{ARR}.actor.use_kl_loss": False, f"{ARR}.actor.kl_loss_coef": 0.0, "algorithm.kl_ctrl.kl_coef": 0.0}
    assert quiet(off, given=off)[1] == []


def test_from_python_notes_are_warnings():
    with pytest.warns(UserWarning, match="no effect: trainer.use_v1=True"):
        build({**GOOD, "trainer.use_v1": True})


# --- the batch arithmetic ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"data.train_batch_size": 16, f"{ARR}.actor.ppo_mini_batch_size": 8},
            ["16 prompts x 8 answers = 128 rollouts a step", "2 updates a step: 2 of 8 prompts (64 rollouts)"],
        ),
        (
            {"data.train_batch_size": 32, f"{ARR}.actor.ppo_mini_batch_size": 32},
            ["32 prompts x 8 answers = 256 rollouts a step", "1 update a step, of all 256 rollouts"],
        ),
        (
            {"data.train_batch_size": 7, f"{ARR}.actor.ppo_mini_batch_size": 3, f"{ARR}.actor.ppo_epochs": 2},
            ["6 updates a step: 2 passes over 2 of 3 prompts (24 rollouts) and 1 of 1 prompt (8 rollouts)"],
        ),
        (
            {f"{ARR}.actor.ppo_micro_batch_size_per_gpu": 4},
            ["training passes of at most 16384 tokens and 4 answers (memory only)"],
        ),
        (
            {f"{ARR}.actor.ppo_micro_batch_size_per_gpu": 4, f"{ARR}.actor.use_dynamic_bsz": True},
            ["training passes of at most 16384 tokens (memory only)"],
        ),
        ({"trainer.n_gpus_per_node": 2}, ["every update is shared by 2 replicas"]),
        ({"trainer.total_training_steps": 1, "trainer.max_minutes": 2.5}, ["1 step in all, at most 2.5 minutes"]),
    ],
)
def test_the_batch_arithmetic_in_words(changes, lines):
    text = "\n".join(describe_batch(quiet(changes)[0]))
    for line in lines:
        assert line in text


def test_building_a_config_imports_neither_torch_nor_hydra():
    code = (
        "import sys; from cohort.config import build, describe_batch;"
        "describe_batch(build({'actor_rollout_ref.model.path': 'M', 'actor_rollout_ref.rollout.n': 2}));"
        "bad = {'torch', 'transformers', 'hydra', 'omegaconf', 'numpy', 'ray'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
