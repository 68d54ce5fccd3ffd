"""Broken configurations: one line each, naming the key, the value and what would be legal; exit code 2."""

import pytest

from cohort.config import build
from cohort.errors import UserError
from cohort.main_ppo import main

ARR = "actor_rollout_ref"
GOOD = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": ["train.parquet"],
    "data.train_batch_size": 16,
    f"{ARR}.model.path": "M",
    f"{ARR}.actor.ppo_mini_batch_size": 8,
    f"{ARR}.rollout.n": 5,
}

GAE = {"algorithm.adv_estimator": "gae"}
RM = {"reward_model.enable": True, "reward_model.model.path": "RM"}
JUDGE = {"reward_model.enable": True, "reward_model.kind": "judge"}

# key, value, and what the line must hold beside them: the remedy
BROKEN = [
    # unknown keys
    ("data.trian_files", "x", "data.train_files"),
    ("data.train_batchsize", 8, "data.train_batch_size"),
    ("trainer.train_batch_size", 8, "data.train_batch_size"),
    ("rollout.n", 8, f"{ARR}.rollout.n"),
    ("lr", 1e-6, f"{ARR}.actor.optim.lr"),
    ("actor.optim.lr", 1e-6, f"{ARR}.actor.optim.lr"),
    (f"{ARR}.actor.optim.learning_rate", 1e-6, f"--keys {ARR}.actor.optim."),
    (f"{ARR}.actor.kl_coef", 0.1, f"{ARR}.actor.kl_loss_coef"),
    (f"{ARR}.actor.lora_rank", 8, f"{ARR}.model.lora_rank"),
    (f"{ARR}.rollout.gpu_memory_utilisation", 0.5, f"{ARR}.rollout.gpu_memory_utilization"),
    ("data.nonsense", 1, "--keys data."),
    ("nonsense", 1, "--keys"),
    ("nonsense.deep.key", 1, "--keys"),
    ("data", 3, "data.train_files"),
    (f"{ARR}.actor", "x", f"{ARR}.actor.ppo_mini_batch_size"),
    ("data.seed.value", 3, "set data.seed itself"),
    # wrong types
    ("data.train_batch_size", "many", "whole number"),
    ("data.train_batch_size", "8", "write 8 without quotes"),
    ("data.train_batch_size", 8.0, "write 8"),
    ("data.train_batch_size", 8.5, "whole number"),
    ("data.train_batch_size", True, "whole number"),
    ("data.train_batch_size", None, "whole number"),
    ("data.train_batch_size", [8], "whole number"),
    ("data.val_batch_size", "all", "null leaves it out"),
    ("data.shuffle", "True", "without quotes"),
    ("data.shuffle", "yes", "True or False"),
    ("data.shuffle", 1, "True or False"),
    ("data.train_files", 3.5, "list"),
    ("data.train_files", {"a": 1}, "list"),
    ("data.train_files", ["a", None], "text"),
    ("data.prompt_key", None, "prompt"),
    ("data.prompt_key", True, "prompt"),
    ("data.apply_chat_template_kwargs", "x", "mapping"),
    ("data.seed", "abc", "whole number"),
    (f"{ARR}.model.path", 3.5, "text"),
    (f"{ARR}.model.target_modules", 3.5, "all-linear"),
    (f"{ARR}.actor.optim.lr", "fast", "1e-06"),
    (f"{ARR}.actor.optim.lr", "1e-4", "write 0.0001 without quotes"),
    (f"{ARR}.actor.optim.betas", [0.9], "list of 2"),
    (f"{ARR}.actor.optim.betas", 0.9, "list"),
    (f"{ARR}.actor.use_kl_loss", "on", "True or False"),
    ("reward.functions", "gsm8k", "list"),
    ("reward.functions", [{"nam": "gsm8k"}], "name"),
    ("reward.functions", [{"weight": 2}], "gsm8k"),
    ("reward.functions", [{"name": "gsm8k", "weight": "x"}], "number"),
    ("reward.functions", ["gsm8k"], "mapping with name"),
    # out of range
    ("data.train_batch_size", 0, "nearest is 1"),
    ("data.max_response_length", -5, "nearest is 1"),
    (f"{ARR}.actor.optim.lr", 0, "above 0"),
    (f"{ARR}.actor.optim.lr", float("nan"), "finite"),
    (f"{ARR}.actor.optim.betas", [0.9, 1.5], "nearest is 0.999999"),
    (f"{ARR}.actor.clip_ratio", 1.5, "nearest is 1"),
    (f"{ARR}.actor.clip_ratio_c", 1.0, "above 1"),
    (f"{ARR}.rollout.val_kwargs.top_p", 0, "above 0"),
    (f"{ARR}.rollout.temperature", -1, "nearest is 0"),
    (f"{ARR}.model.lora_rank", -1, "nearest is 0"),
    ("reward.max_unscorable_rate", 7, "nearest is 1"),
    ("reward.timeout", 0, "above 0"),
    ("reward.num_workers", -1, "nearest is 0"),
    ("trainer.total_epochs", 0, "nearest is 1"),
    ("trainer.nnodes", 2, "nearest is 1"),
    ("trainer.n_gpus_per_node", 0, "nearest is 1"),
    ("trainer.max_actor_ckpt_to_keep", 0, "null"),
    ("trainer.save_freq", -7, "nearest is -1"),
    # bad choices
    ("data.truncation", "rigth", "did you mean right?"),
    ("algorithm.adv_estimator", "grop", "did you mean"),
    ("algorithm.adv_estimator", "ppo", "grpo"),
    (f"{ARR}.actor.loss_agg_mode", "token_mean", "did you mean token-mean?"),
    (f"{ARR}.actor.kl_loss_type", "low_var", "low_var_kl"),
    (f"{ARR}.actor.optim.lr_scheduler_type", "linear", "constant, cosine"),
    (f"{ARR}.actor.dtype", "fp16", "bfloat16"),
    (f"{ARR}.rollout.name", "natve", "did you mean native?"),
    ("trainer.logger", ["console", "tensorbord"], "did you mean tensorboard?"),
    ("trainer.device", "gpu", "cuda"),
    ("trainer.resume_mode", "always", "auto, disable, resume_path"),
    ("data.task", "arithmatic", "did you mean arithmetic?"),
    # verl's, not built
    ("data.reward_fn_key", "source", "data_source"),
    ("algorithm.adv_estimator", "rlo", "did you mean rloo?"),
    ("algorithm.adv_estimator", "my_own_thing", "algorithm.plugins"),
    ("algorithm.adv_estimator", "gdpo", "gdpo_reward_keys=[accuracy,format]"),
    ("algorithm.gdpo_reward_weights", [1.0, 2.0], "2 weights for 0"),
    ("algorithm.adv_scale", "batches", "did you mean batch?"),
    (f"{ARR}.actor.policy_loss.delta", 1.1, "clip_ratio_high"),
    (f"{ARR}.actor.policy_loss.delta", 4.0, "clip_ratio_c=null"),
    (f"{ARR}.actor.policy_loss.clip_cov_lb", 7.0, "clip_cov_ub=5"),
    (f"{ARR}.actor.top_entropy_quantile", 0, "above 0"),
    (f"{ARR}.rollout.name", "vllm", f"{ARR}.rollout.name=native"),
    (f"{ARR}.rollout.name", "sglang", f"{ARR}.rollout.name=native"),
    (f"{ARR}.actor.policy_loss.loss_mode", "gsop", "did you mean gspo?"),
    (f"{ARR}.actor.policy_loss.loss_mode", "bypass_mode", "algorithm.rollout_correction.bypass_mode=True"),
    (f"{ARR}.actor.kl_loss_type", "full", "low_var_kl"),
    (f"{ARR}.actor.strategy", "megatron", "instead"),
    (f"{ARR}.actor.megatron.param_offload", True, "instead"),
    (f"{ARR}.actor.ulysses_sequence_parallel_size", 2, "instead"),
    (f"{ARR}.rollout.tensor_model_parallel_size", 2, "tensor_model_parallel_size=1"),
    (f"{ARR}.rollout.multi_turn.enable", True, "multi_turn.enable=False"),
    (f"{ARR}.rollout.max_model_len", 64, "1024"),
    (f"{ARR}.rollout.val_kwargs.do_sample", True, "val_kwargs.temperature"),
    (f"{ARR}.rollout.repetition_penalty", 1.1, "instead"),
    ("algorithm.gamma", 1.5, "from 0 to 1"),
    ("critic.enable", True, "algorithm.adv_estimator=gae"),
    ("critic.optim.learning_rate", 1e-6, "--keys critic.optim."),
    ("critic.optim.lr", 0, "above 0"),
    ("critic.strategy", "megatron", "instead"),
    ("critic.cliprange_value", 0, "above 0"),
    ("critic.loss_agg_mode", "token-maen", "did you mean token-mean?"),
    ("algorithm.filter_groups.enable", "yes", "True or False"),
    ("data.gen_batch_size", 24, "data.train_batch_size"),
    ("algorithm.rollout_correction.rollout_is", "tokens", "did you mean token?"),
    ("algorithm.rollout_correction.preset", "bypass_ppo_clp", "did you mean bypass_ppo_clip?"),
    ("algorithm.rollout_correction.rollout_rs", "token_k1", "needs rollout_rs_threshold"),
    ("algorithm.ref_reward_blend.max_weight", 1.5, "the nearest is 1"),
    ("algorithm.repr_align.ref_alignment.schedule", "cosin", "did you mean cosine?"),
    ("reward_model.enable", True, "reward_model.kind=judge"),
    ("reward_model.kind", "generative", "classifier, judge"),
    ("reward_model.judge.n", 0, "from 1"),
    ("reward.reward_model.rollout.top_p", 0.9, "top_p=1"),
    ("reward_model.reward_manager", "dapo", "custom_reward_function.path"),
    ("trainer.logger", ["console", "wandb"], "[console,jsonl,tensorboard]"),
    ("trainer.default_hdfs_dir", "hdfs://x", "instead"),
    ("trainer.critic_warmup", -1, "from 0"),
    ("data.custom_cls.path", "my.py", "instead"),
    ("trainer.v1.trainer_mode", "separate_async", "trainer.v1.trainer_mode=sync"),
    # one key against another
    (f"{ARR}.actor.ppo_mini_batch_size", 32, "make it 16 or less"),
    (f"{ARR}.rollout.n", 1, "2 or more"),
    (f"{ARR}.rollout.temperature", 0, "val_kwargs.temperature=0"),
    (f"{ARR}.rollout.top_k", 50, f"{ARR}.rollout.val_kwargs.top_k"),
    (f"{ARR}.rollout.top_p", 0.9, f"{ARR}.rollout.val_kwargs.top_p"),
    (f"{ARR}.rollout.min_p", 0.1, f"{ARR}.rollout.val_kwargs.min_p"),
    ("trainer.resume_mode", "resume_path", "trainer.resume_from_path"),
    ("trainer.resume_from_path", "runs/x", "trainer.resume_mode=resume_path"),
    ("custom_reward_function.name", "my_score", "custom_reward_function.path"),
    ("data.task", "arithmetic", "data.task=null"),
    (f"{ARR}.actor.grad_clip", "x", "number"),
]


@pytest.mark.parametrize(("key", "value", "remedy"), BROKEN, ids=[f"{key}={value}" for key, value, _ in BROKEN])
def test_a_broken_value_is_one_line_with_key_value_and_remedy(key, value, remedy):
    with pytest.raises(UserError) as caught:
        build({**GOOD, key: value}, note=lambda line: None)
    line = str(caught.value)
    shown = {None: "null"}.get(value, value) if not isinstance(value, list | dict) else ""
    assert "\n" not in line
    assert key.rpartition(".")[2] in line or "clip_grad" in line
    assert str(shown) in line
    assert remedy in line


TWO_KEYS = [
    ({f"{ARR}.actor.kl_loss_coef": 0.01}, "kl_loss_coef=0.01", "use_kl_loss=False"),
    ({f"{ARR}.actor.kl_loss_type": "k2"}, "kl_loss_type=k2", "leave this out"),
    ({"algorithm.kl_penalty": "k3"}, "kl_penalty=k3", "use_kl_in_reward=False"),
    ({"algorithm.kl_ctrl.kl_coef": 0.01}, "kl_coef=0.01", "use_kl_in_reward=False"),
    ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.target_kl": 0.2}, "target_kl=0.2", "kl_ctrl.type=fixed"),
    ({f"{ARR}.actor.use_kl_loss": True, f"{ARR}.actor.kl_loss_type": "k1"}, "kl_loss_type=k1", "low_var_kl"),
    (
        {
            "algorithm.adv_estimator": "gdpo",
            "algorithm.gdpo_reward_keys": ["a"],
            "algorithm.use_kl_in_reward": True,
        },
        "algorithm.use_kl_in_reward=True",
        "use_kl_loss=True",
    ),
    ({f"{ARR}.actor.use_kl_loss": True, f"{ARR}.actor.kl_loss_coef": 0}, "kl_loss_coef=0", "0.001"),
    ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.0}, "kl_coef=0", "0.001"),
    ({"custom_reward_function.path": "r.py", "reward.functions": [{"name": "gsm8k"}]}, "r.py", "reward.functions"),
    ({"reward.functions": [{"name": "gsm8k", "weight": 0}]}, "weight=0", "leave it out"),
    ({**RM, "reward_model.weight": 0}, "reward_model.weight=0", "enable=False"),
    ({**RM, "reward_model.scale": 0}, "reward_model.scale=0", "enable=False"),
    ({**RM, "reward_model.activation": "softmax"}, "reward_model.activation=softmax", "sigmoid"),
    ({**JUDGE, "reward_model.judge.worst": 10}, "reward_model.judge.worst=10", "make them differ"),
    ({**JUDGE, "reward_model.judge.pattern": "Score"}, "reward_model.judge.pattern=Score", "brackets"),
    ({**JUDGE, "reward_model.judge.pattern": "("}, "reward_model.judge.pattern=(", "not a regular expression"),
    ({**JUDGE, "reward_model.judge.n": 2, "reward_model.judge.temperature": 0}, "reward_model.judge.n=2", "n=1"),
    ({"trainer.total_training_steps": 5, f"{ARR}.actor.optim.lr_warmup_steps": 5}, "lr_warmup_steps=5", "less than 5"),
    ({f"{ARR}.rollout.prompt_length": 64, "data.max_prompt_length": 32}, "prompt_length=64", "one of them"),
    ({**GAE, "critic.enable": False}, "critic.enable=False", "leave it out"),
    ({**GAE, "critic.ppo_mini_batch_size": 4}, "critic.ppo_mini_batch_size=4", "leave critic.ppo_mini_batch_size out"),
    ({**GAE, "critic.ppo_epochs": 2}, "critic.ppo_epochs=2", "leave critic.ppo_epochs out"),
    ({**GAE, "critic.shuffle": True}, "critic.shuffle=True", "leave critic.shuffle out"),
    ({**GAE, "trainer.critic_warmup": 5, "trainer.total_training_steps": 5}, "critic_warmup=5", "less than 5"),
    (
        {**GAE, "trainer.total_training_steps": 5, "critic.optim.lr_warmup_steps": 5},
        "critic.optim.lr_warmup_steps=5",
        "less than 5",
    ),
    ({"data": {"seed": 3}, "data.seed": 4}, "data.seed=3", "give it once"),
    ({f"{ARR}.rollout.val_kwargs": {"do_sample": False, "temperature": 0.6}}, "do_sample=False", "temperature to 0"),
]


@pytest.mark.parametrize(("changes", "named", "remedy"), TWO_KEYS)
def test_keys_that_contradict_each_other(changes, named, remedy):
    with pytest.raises(UserError) as caught:
        build({**GOOD, **changes}, note=lambda line: None)
    assert "\n" not in str(caught.value)
    assert named in str(caught.value)
    assert remedy in str(caught.value)


def test_the_model_has_no_default():
    with pytest.raises(UserError, match=r"actor_rollout_ref\.model\.path must be given.*starter"):
        build({f"{ARR}.rollout.n": 2})


# words of the command line, and what the line must hold
COMMANDS = [
    (["data.prompt_key=[a,"], ["data.prompt_key=[a,", "[a,b]"]),
    (["data.task_kwargs={a:1"], ["data.task_kwargs", "{a: 1}"]),
    (["data.prompt_key='a"], ["data.prompt_key='a", "quotes"]),
    (["data.train_files=a.parquet,b.parquet"], ["data.train_files=a.parquet,b.parquet", "data.train_files=[a,b]"]),
    (["data.train_batch_size"], ["data.train_batch_size", "key=value"]),
    (["=3"], ["=3", "key=value"]),
    (["data.seed =3", "data .seed=3"], ["data .seed", "without spaces"]),
    (["~data.sed"], ["~data.sed", "~data.seed"]),
    (["~data.whatever"], ["~data.whatever", "--keys"]),
    (["data.seed=${data.sed}"], ["${data.sed}", "${data.seed}"]),
    (["data.seed=${nope}"], ["${nope}", "exists"]),
    (["data.seed=${oc.env:COHORT_NO_SUCH_VARIABLE}"], ["data.seed", "COHORT_NO_SUCH_VARIABLE"]),
    (["+data.trian_files=x"], ["data.trian_files=x", "data.train_files"]),
    (["++data.seed=x"], ["data.seed=x", "whole number"]),
    (["--config-name", "grop"], ["grop", "grpo"]),
    (["--config-name", "no/such/file.yaml"], ["no/such/file.yaml", "presets:"]),
    (["--config-dir", "no/such/folder", "--config-name", "mine"], ["mine", "no/such/folder"]),
    (["--multirun"], ["--multirun", "--help"]),
    (["--keys", "nonsense"], ["nonsense", "--keys lists all"]),
    (["trainer.logger=[console,wandb]"], ["wandb", "jsonl"]),
    (["data.train_files=[]"], ["data.train_files=[]", "data.task=arithmetic"]),
    (["trainer.test_freq=5"], ["data.val_files=[]", "trainer.test_freq=5"]),
    (["trainer.val_only=True"], ["data.val_files=[]", "trainer.val_only=True"]),
    (["trainer.device=tpu"], ["trainer.device=tpu", "auto"]),
]


@pytest.mark.parametrize(("words", "parts"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_a_broken_command_line_is_one_line_and_exit_code_2(words, parts, capsys):
    base = [f"{key}={value}".replace("'", "").replace(" ", "") for key, value in GOOD.items()]
    assert main([*base, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert all(part in lines[0] for part in parts), lines[0]


BROKEN_FILES = [
    ("a: [1,\n", "not a YAML file"),
    ("- 1\n- 2\n", "file"),
    ("defaults:\n  - nopreset\n  - _self_\n", "nopreset"),
    ("data:\n  trian_files: x\n", "data.train_files"),
    ("data:\n  seed: x\n", "data.seed=x"),
]


@pytest.mark.parametrize(("text", "named"), BROKEN_FILES)
def test_a_broken_yaml_file_is_one_line(text, named, tmp_path, capsys):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    assert main(["--config-name", str(path)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert named in err[0]


def test_there_are_at_least_sixty_broken_inputs():
    assert len(BROKEN) + len(TWO_KEYS) + len(COMMANDS) + len(BROKEN_FILES) >= 100
    assert len({(key, str(value)) for key, value, _ in BROKEN}) == len(BROKEN)
