"""Presets and verl's strings for what is done about a sampler that disagrees with the trainer."""

import pytest
import torch

from cohort.algorithms.correction import importance_weights
from cohort.algorithms.correction_settings import (
    PRESETS,
    Correction,
    Rule,
    parse_correction,
    parse_rules,
    parse_weight_bound,
)


def test_presets_are_the_field_s():
    names = """disabled decoupled_token_is decoupled_seq_is decoupled_token_icepop decoupled_seq_is_rs decoupled_geo_rs
        decoupled_geo_rs_seq_tis decoupled_geo_rs_token_tis decoupled_k3_rs decoupled_k3_rs_seq_tis
        decoupled_k3_rs_token_tis bypass_ppo_clip bypass_ppo_clip_geo_rs bypass_ppo_clip_k3_rs bypass_pg_is
        bypass_pg_token_icepop bypass_pg_geo_rs bypass_pg_geo_rs_seq_tis bypass_pg_geo_rs_token_tis
        token_truncate token_mask sequence_truncate sequence_mask"""
    assert list(PRESETS) == names.split()
    assert [name for name, preset in PRESETS.items() if not preset.active] == ["disabled"]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("decoupled_token_is", dict(rollout_is="token")),
        ("decoupled_seq_is_rs", dict(rollout_is="sequence", rollout_rs="seq_sum_k1", rollout_rs_threshold="0.5_2.0")),
        ("decoupled_token_icepop", dict(rollout_is="token", rollout_is_threshold="0.5_5.0")),
        (
            "decoupled_geo_rs_seq_tis",
            dict(rollout_is="sequence", rollout_rs="seq_mean_k1", rollout_rs_threshold="0.999_1.001"),
        ),
        ("decoupled_k3_rs", dict(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.01)),
        ("bypass_pg_is", dict(rollout_is="sequence", bypass_mode=True, loss_type="reinforce")),
        ("disabled", dict()),
    ],
)
def test_presets_are_what_verl_s_keys_say(name, keys):
    assert parse_correction(**keys) == PRESETS[name]


def test_verl_07_is_read():
    correction = parse_correction(
        rollout_rs="geometric",
        rollout_rs_threshold=1.01,
        rollout_rs_threshold_lower=0.98,
        rollout_token_veto_threshold=1e-3,
    )
    rules = (Rule(statistic="seq_mean_k1", lower=0.98, upper=1.01), Rule(statistic="seq_min_k1", lower=1e-3))
    assert correction == Correction(rules=rules)
    assert parse_rules("token", 2) == (Rule(statistic="token_k1", lower=0.5, upper=2.0),)
    assert parse_rules(None, None) == ()
    assert parse_weight_bound("2.0") == (2.0, None)
    assert parse_weight_bound("0.5_5.0") == (None, (0.5, 5.0))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (dict(rollout_is="tokens"), "level 'tokens': not one of token, sequence, sequence_geometric"),
        (
            dict(rollout_is="token", rollout_is_threshold="two"),
            "rollout_is_threshold='two': a positive number, or \"LO",
        ),
        (dict(rollout_is="token", rollout_is_threshold="5_0.5"), "the lower bound comes first"),
        (dict(rollout_is="token", rollout_is_threshold=-1), "a positive number"),
        (dict(rollout_is_batch_normalize=True), "need importance weights: set is_level"),
        (dict(rollout_rs="token_k1"), "rollout_rs=token_k1 needs rollout_rs_threshold"),
        (dict(rollout_rs_threshold=2), "rollout_rs_threshold=2 without a rule: set rollout_rs"),
        (dict(rollout_rs="token_k4", rollout_rs_threshold=2), "'token_k4' is not one of token_k1, token_k2"),
        (dict(rollout_rs="seq_max_k1", rollout_rs_threshold=2), "'seq_max_k1' is not one of"),
        (
            dict(rollout_rs="token_k2,token_k3", rollout_rs_threshold="1,2,3"),
            "2 rules and rollout_rs_threshold 3 values",
        ),
        (dict(rollout_rs="token_k2", rollout_rs_threshold="0.1_2"), "token_k2 takes one upper bound"),
        (dict(rollout_rs="token_k1", rollout_rs_threshold=0.5), "one number u means ratios from 1/u to u"),
        (dict(rollout_rs="token_k2,token_k2", rollout_rs_threshold=1), "each rejection rule may stand once"),
        (dict(bypass_mode=True, loss_type="gspo"), "'gspo' is not one of ppo_clip, reinforce"),
        (dict(loss_type="reinforce"), "belongs to bypass mode"),
        (dict(bypass_mode=True, rollout_is="token"), "bypass with ppo_clip has no importance weights"),
        (
            dict(bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_batch_normalize=True),
            "no mean over the batch to divide by",
        ),
    ],
)
def test_impossible_keys(keys, message):
    with pytest.raises(ValueError, match=message):
        parse_correction(**keys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(statistic="token_k1", lower=2, upper=1), "needs 0 <= lower <= upper"),
        (dict(statistic="token_k3", lower=1, upper=2), "has an upper bound alone"),
        (dict(statistic="token_k3", upper=2, inverted=True), "no ratio that could be inverted"),
    ],
)
def test_impossible_rules(options, message):
    with pytest.raises(ValueError, match=message):
        Rule(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(threshold=2.0, window=(0.5, 2.0)), "not both"),
        (dict(threshold=0.0), "must be above 0"),
        (dict(window=(2.0, 2.0)), "needs 0 <= lower < upper"),
        (dict(threshold=2.0, window_level="sequence"), "set window"),
    ],
)
def test_impossible_weights(options, message):
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=message):
        importance_weights(x, x, torch.ones(1, 2), **options)
    with pytest.raises(ValueError, match=message):
        Correction(is_level="token", **options)
