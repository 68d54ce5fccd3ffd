"""verl's keys that are not ours, as plain data: renamed, without effect, refused. Read by ``translate.py``.

A key of verl (v0.5 to 0.9) is in exactly one place: the schema, ``RENAMED``, ``INERT`` or ``REFUSED``; a test walks the
list. An exact name beats a pattern, a longer pattern beats a shorter one; ``*`` stands for anything, dots included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Renamed:
    """Another name for one of our keys.

    Attributes:
        to: our key.
        words: values that are spelt differently here.
    """

    to: str
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Inert:
    """A key that can do nothing here. Accepted with one printed line.

    Attributes:
        why: why it does nothing.
        safe: the values for which that is true; None means every value. Others would change what is
            trained and are refused.
        instead: the nearest thing that works, for a refused value.
    """

    why: str
    safe: tuple[object, ...] | None = None
    instead: str = "leave it out"


@dataclass(frozen=True)
class Refused:
    """A key or value that would change what is trained and is not built, or never will be.

    Attributes:
        why: the reason.
        instead: the nearest thing that works.
    """

    why: str
    instead: str


ARR = "actor_rollout_ref"
OFF: tuple[object, ...] = (None, False, 0, "", "null", {}, ())
"""The ways in which verl says that something is off."""

DTYPES = {"bf16": "bfloat16", "fp32": "float32", "float": "float32"}

RENAMED: Mapping[str, Renamed] = {
    "data.tokenizer": Renamed(f"{ARR}.model.tokenizer_path"),
    f"{ARR}.model.lora.rank": Renamed(f"{ARR}.model.lora_rank"),
    f"{ARR}.model.lora.alpha": Renamed(f"{ARR}.model.lora_alpha"),
    f"{ARR}.actor.grad_clip": Renamed(f"{ARR}.actor.optim.clip_grad"),
    f"{ARR}.actor.optim.warmup_style": Renamed(f"{ARR}.actor.optim.lr_scheduler_type"),
    f"{ARR}.actor.ppo_micro_batch_size": Renamed(f"{ARR}.actor.ppo_micro_batch_size_per_gpu"),
    f"{ARR}.actor.use_prefix_grouper": Renamed(f"{ARR}.actor.share_prompt"),
    f"{ARR}.actor.use_remove_padding": Renamed(f"{ARR}.model.use_remove_padding"),
    f"{ARR}.actor.rollout_n": Renamed(f"{ARR}.rollout.n"),
    f"{ARR}.actor.fsdp_config.dtype": Renamed(f"{ARR}.actor.dtype", DTYPES),
    f"{ARR}.ref.rollout_n": Renamed(f"{ARR}.rollout.n"),
    "critic.rollout_n": Renamed(f"{ARR}.rollout.n"),
    "critic.grad_clip": Renamed("critic.optim.clip_grad"),
    "critic.optim.warmup_style": Renamed("critic.optim.lr_scheduler_type"),
    "critic.ppo_micro_batch_size": Renamed("critic.ppo_micro_batch_size_per_gpu"),
    "critic.forward_micro_batch_size": Renamed("critic.forward_micro_batch_size_per_gpu"),
    f"{ARR}.ref.log_prob_micro_batch_size": Renamed(f"{ARR}.ref.log_prob_micro_batch_size_per_gpu"),
    f"{ARR}.rollout.log_prob_micro_batch_size": Renamed(f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu"),
    f"{ARR}.rollout.prompt_length": Renamed("data.max_prompt_length"),
    f"{ARR}.rollout.response_length": Renamed("data.max_response_length"),
    "reward.custom_reward_function.path": Renamed("custom_reward_function.path"),
    "reward.custom_reward_function.name": Renamed("custom_reward_function.name"),
    "reward.custom_reward_function.reward_kwargs": Renamed("custom_reward_function.reward_kwargs"),
    "reward.reward_model.enable": Renamed("reward_model.enable"),
    "reward.reward_model.model_path": Renamed("reward_model.model.path"),
    "reward.reward_model.rollout.dtype": Renamed("reward_model.dtype", DTYPES),
    "reward.reward_model.rollout.n": Renamed("reward_model.judge.n"),
    "reward.reward_model.rollout.temperature": Renamed("reward_model.judge.temperature"),
    "reward.reward_model.rollout.response_length": Renamed("reward_model.judge.max_tokens"),
    "reward_model.micro_batch_size": Renamed("reward_model.micro_batch_size_per_gpu"),
    "reward_model.num_workers": Renamed("reward.num_workers"),
    # words of TRL and ms-swift; those that need arithmetic are in reuse.py
    "num_iterations": Renamed(f"{ARR}.actor.ppo_epochs"),
    "num_generations": Renamed(f"{ARR}.rollout.n"),
    "max_completion_length": Renamed("data.max_response_length"),
    "dynamic_sample": Renamed("algorithm.filter_groups.enable"),
    "max_resample_times": Renamed("algorithm.filter_groups.max_num_gen_batches"),
    "overlong_filter": Renamed("algorithm.overlong_filter"),
    "mask_truncated_completions": Renamed("algorithm.overlong_filter"),
}
"""Old or other names of our keys. Giving both with different values is an error."""

_ENGINE = "it tunes the vLLM and SGLang engines; the native engine sizes its cache from max_num_seqs and the lengths"
_SHARDS = "it places shards of a model over GPUs; here each process holds the whole model"
_RAY = "it sets up a Ray cluster; this run is one process"
_KERNEL = "it picks kernels or padding; no number depends on it, and the head is always computed in chunks"
_IMAGES = "only text is read so far"
_CRITIC_TEXT = "the critic reads the actor's token ids"
_JUDGE = "the reward model runs in this process, on the device of the run"
_DISTILL = "on-policy distillation is not built"
_TURNS = "answers have one turn so far"
_STORE = "there is no transfer queue; rollouts stay in the process"
_PROFILE = "profilers attach from outside, for example py-spy"
_COPIES = "rows are read once, at the start"
_ASYNC = "steps are synchronous: sample, learn, publish"
_SKIP = "rollouts are never replayed from a cache"
_ROLLOUT_FUNCTION = "write a function and set custom_reward_function.path"

INERT: Mapping[str, Inert] = {
    "*._target_": Inert("it names a verl class"),
    "*.profiler.*": Inert(_PROFILE),
    "*.profiler": Inert(_PROFILE),
    "hydra.*": Inert("Hydra only composes the config here; the run folder is trainer.default_local_dir"),
    # data
    "data.use_shm": Inert(_COPIES),
    "data.cache_dir": Inert(_COPIES),
    "data.tool_config_path": Inert(_TURNS, OFF),
    "data.function_tool_path": Inert(_TURNS, OFF),
    "data.need_tools_kwargs": Inert(_TURNS, OFF),
    "data.filter_prompts": Inert("data.filter_overlong_prompts decides"),
    "data.reward_fn_key": Inert(
        "the column data_source routes rewards and groups validation", ("data_source",), "a column named data_source"
    ),
    "data.return_raw_input_ids": Inert("rewards and samples always see ids and text"),
    "data.return_raw_chat": Inert("rewards always see the messages"),
    "data.return_full_prompt": Inert("rollouts/*.parquet always holds the prompt's text"),
    "data.dataloader_num_workers": Inert(_COPIES),
    "data.filter_overlong_prompts_workers": Inert(_COPIES),
    "data.validation_shuffle": Inert("validation takes every row exactly once, in any order"),
    "data.image_patch_size": Inert(_IMAGES),
    "data.image_key": Inert(_IMAGES, ("images",)),
    "data.video_key": Inert(_IMAGES, ("videos",)),
    "data.audio_key": Inert(_IMAGES, ("audios",)),
    "data.return_multi_modal_inputs": Inert(_IMAGES),
    "data.mm_processor_kwargs": Inert(_IMAGES, OFF),
    "data.custom_cls.*": Inert(
        "rows come from data.train_files", OFF, "JSONL or Parquet rows, or a list of dicts from Python"
    ),
    "data.datagen.*": Inert("rows come from data.train_files or data.task", OFF, "data.task"),
    # model
    f"{ARR}.hybrid_engine": Inert("sampling and training share the process", (True,)),
    f"{ARR}.nccl_timeout": Inert(_SHARDS),
    f"{ARR}.model.hf_config_path": Inert("the model's folder has its config", OFF, f"{ARR}.model.override_config"),
    f"{ARR}.model.use_shm": Inert(_COPIES),
    f"{ARR}.model.external_lib": Inert("no extra module is imported", OFF, "a model class that Transformers knows"),
    f"{ARR}.model.enable_activation_offload": Inert(_KERNEL),
    f"{ARR}.model.use_liger": Inert(_KERNEL),
    f"{ARR}.model.use_fused_kernels": Inert(_KERNEL),
    f"{ARR}.model.fused_kernel_options.*": Inert(_KERNEL),
    f"{ARR}.model.tiled_mlp.*": Inert(_KERNEL),
    f"{ARR}.model.mtp.*": Inert("multi-token prediction is off"),
    f"{ARR}.model.mtp.enable*": Inert("multi-token prediction is off", OFF),
    f"{ARR}.model.lora_adapter_path": Inert(
        "adapters start at zero", OFF, "merge the adapter into the model folder first"
    ),
    f"{ARR}.model.lora.*": Inert("it belongs to Megatron's LoRA", None),
    f"{ARR}.model.lora.type": Inert("adapters are plain LoRA", ("lora",)),
    f"{ARR}.model.lora.merge": Inert("the sampler always gets merged weights"),
    f"{ARR}.model.lora.dropout": Inert("adapters have no dropout: old and new log-probs must agree", OFF),
    f"{ARR}.model.lora.adapter_path": Inert(
        "adapters start at zero", OFF, "merge the adapter into the model folder first"
    ),
    f"{ARR}.model.lora.exclude_modules": Inert("nothing is excluded", (*OFF, []), f"{ARR}.model.exclude_modules"),
    # actor
    f"{ARR}.actor.strategy": Inert(_SHARDS, ("fsdp", "fsdp2"), "leave it out"),
    f"{ARR}.actor.fsdp_config.*": Inert(_SHARDS),
    f"{ARR}.actor.fsdp_config.model_dtype": Inert(
        "master weights are float32", ("fp32", "float32", None), f"{ARR}.actor.dtype for the compute type"
    ),
    f"{ARR}.actor.fsdp_config.mixed_precision.*": Inert(
        "one type is chosen for all compute", ("fp32", "float32", None), f"{ARR}.actor.dtype"
    ),
    f"{ARR}.actor.fsdp_config.ulysses_sequence_parallel_size": Inert(_SHARDS, (1, None)),
    f"{ARR}.actor.ulysses_sequence_parallel_size": Inert(_SHARDS, (1, None)),
    f"{ARR}.actor.fsdp_config.forward_only": Inert(_SHARDS, (False,)),
    f"{ARR}.actor.optim.optimizer": Inert("the optimiser is AdamW", ("AdamW", "adamw")),
    f"{ARR}.actor.optim.optimizer_impl": Inert("the optimiser is torch.optim.AdamW", ("torch.optim",)),
    f"{ARR}.actor.optim.total_training_steps": Inert("the schedule always follows the run's own number of steps"),
    f"{ARR}.actor.optim.zero_indexed_step": Inert("the first warm-up step is step 0", (True,)),
    f"{ARR}.actor.optim.override_optimizer_config": Inert(
        "nothing is overridden", OFF, f"{ARR}.actor.optim.eps, betas or weight_decay"
    ),
    f"{ARR}.actor.optim.override_optimizer_config.*": Inert(
        "nothing is overridden", (), f"{ARR}.actor.optim.eps, betas or weight_decay"
    ),
    f"{ARR}.actor.freeze_vision_tower": Inert(_IMAGES),
    f"{ARR}.actor.calculate_sum_pi_squared": Inert("it is computed where the estimator reads it"),
    f"{ARR}.actor.use_torch_compile": Inert(_KERNEL),
    f"{ARR}.actor.use_fused_kernels": Inert(_KERNEL),
    f"{ARR}.actor.entropy_from_logits_*": Inert(_KERNEL),
    f"{ARR}.actor.entropy_checkpointing": Inert(_KERNEL),
    f"{ARR}.actor.pad_to_length*": Inert(_KERNEL),
    f"{ARR}.actor.checkpoint.save_contents": Inert(
        "a checkpoint always holds everything, a Hugging Face folder included"
    ),
    f"{ARR}.actor.checkpoint.load_contents": Inert(
        "a resumed run takes everything",
        (["model", "optimizer", "extra"], ["model", "optimizer", "extra", "hf_model"], None),
        f"{ARR}.model.path=CHECKPOINT/hf to start anew from its weights",
    ),
    f"{ARR}.actor.checkpoint.async_save": Inert("a checkpoint is written before the next step starts"),
    f"{ARR}.actor.checkpoint.strict": Inert("a checkpoint always fits exactly"),
    f"{ARR}.*.router_replay.mode": Inert("routers choose their experts anew in training", ("disabled",)),
    f"{ARR}.*.router_replay.*": Inert("router replay is off"),
    # ref
    f"{ARR}.ref.strategy": Inert(_SHARDS, ("fsdp", "fsdp2")),
    f"{ARR}.ref.use_torch_compile": Inert(_KERNEL),
    f"{ARR}.ref.fsdp_config.*": Inert(_SHARDS),
    f"{ARR}.ref.fsdp_config.dtype": Inert("the reference computes in the actor's type", None),
    f"{ARR}.ref.fsdp_config.ulysses_sequence_parallel_size": Inert(_SHARDS, (1, None)),
    f"{ARR}.ref.ulysses_sequence_parallel_size": Inert(_SHARDS, (1, None)),
    f"{ARR}.ref.entropy_*": Inert(_KERNEL),
    f"{ARR}.ref.pad_to_length": Inert(_KERNEL),
    # rollout
    f"{ARR}.rollout.mode": Inert("the engine runs inside the training process, whatever the mode"),
    f"{ARR}.rollout.nnodes": Inert(_RAY, OFF),
    f"{ARR}.rollout.n_gpus_per_node": Inert(_RAY),
    f"{ARR}.rollout.full_determinism": Inert("draws are always a function of the seed alone"),
    f"{ARR}.rollout.gpu_memory_utilization": Inert(_ENGINE),
    f"{ARR}.rollout.enforce_eager": Inert(_ENGINE),
    f"{ARR}.rollout.cudagraph_capture_sizes": Inert(_ENGINE),
    f"{ARR}.rollout.free_cache_engine": Inert(_ENGINE),
    f"{ARR}.rollout.max_num_batched_tokens": Inert(_ENGINE),
    f"{ARR}.rollout.max_model_len": Inert(_ENGINE),
    f"{ARR}.rollout.enable_chunked_prefill": Inert(_ENGINE),
    f"{ARR}.rollout.enable_prefix_caching": Inert("a prompt is always computed once per group"),
    f"{ARR}.rollout.scheduling_policy": Inert(_ENGINE),
    f"{ARR}.rollout.load_format": Inert(_ENGINE),
    f"{ARR}.rollout.layered_summon": Inert(_ENGINE),
    f"{ARR}.rollout.disable_log_stats": Inert(_ENGINE),
    f"{ARR}.rollout.multi_stage_wake_up": Inert(_ENGINE),
    f"{ARR}.rollout.engine_kwargs*": Inert(_ENGINE),
    f"{ARR}.rollout.skip_tokenizer_init": Inert(_ENGINE),
    f"{ARR}.rollout.checkpoint_engine*": Inert(_ENGINE),
    f"{ARR}.rollout.update_weights_bucket_megabytes": Inert(_ENGINE),
    f"{ARR}.rollout.prometheus.*": Inert(_ENGINE),
    f"{ARR}.rollout.limit_images": Inert(_IMAGES),
    f"{ARR}.rollout.*_parallel_size": Inert(_SHARDS, (1, None), f"{ARR}.rollout.tensor_model_parallel_size=1"),
    f"{ARR}.rollout.tensor_model_parallel_size": Inert(
        _SHARDS, (1, None), f"{ARR}.rollout.tensor_model_parallel_size=1"
    ),
    f"{ARR}.rollout.logprobs_mode": Inert(
        "log-probs are of the distribution that is drawn from", ("processed_logprobs",)
    ),
    f"{ARR}.rollout.calculate_log_probs": Inert("the sampler's log-probs are always recorded"),
    f"{ARR}.rollout.do_sample": Inert("training answers are drawn", (True,), f"{ARR}.rollout.temperature"),
    f"{ARR}.rollout.val_kwargs.do_sample": Inert("val_kwargs.temperature alone decides: 0 is greedy"),
    f"{ARR}.rollout.over_sample_rate": Inert("every answer is waited for", OFF),
    f"{ARR}.rollout.repetition_penalty": Inert("draws follow the model alone", (1, 1.0, None)),
    f"{ARR}.rollout.multi_turn.*": Inert(_TURNS),
    f"{ARR}.rollout.multi_turn.enable": Inert(_TURNS, OFF, f"{ARR}.rollout.multi_turn.enable=False"),
    f"{ARR}.rollout.multi_turn.*_path": Inert(_TURNS, OFF),
    f"{ARR}.rollout.multi_turn.completion_callback": Inert(_TURNS, OFF),
    f"{ARR}.rollout.agent.num_workers": Inert("all answers are coroutines of one event loop"),
    f"{ARR}.rollout.agent.default_agent_loop": Inert(_TURNS, ("single_turn_agent",)),
    f"{ARR}.rollout.agent.*": Inert(_TURNS, OFF),
    f"{ARR}.rollout.trace.*": Inert("every sample is in rollouts/*.parquet"),
    f"{ARR}.rollout.trace.backend": Inert("every sample is in rollouts/*.parquet", OFF, "cohort's rollouts/*.parquet"),
    f"{ARR}.rollout.enable_rollout_routing_replay": Inert("routers choose their experts anew in training", OFF),
    f"{ARR}.rollout.moe_load_balance_metrics_interval": Inert("expert load is not logged"),
    f"{ARR}.rollout.quantization*": Inert("the sampler holds the training weights as they are", OFF),
    f"{ARR}.rollout.mtp": Inert("multi-token prediction is off", OFF),
    f"{ARR}.rollout.qat": Inert("the sampler holds the training weights as they are", OFF),
    f"{ARR}.*.qat.*": Inert("quantisation-aware training is off"),
    f"{ARR}.*.qat.enable": Inert("quantisation-aware training is off", OFF),
    f"{ARR}.rollout.disaggregation.*": Inert(_ENGINE),
    # critic
    "critic.strategy": Inert(_SHARDS, ("fsdp", "fsdp2"), "leave it out"),
    "critic.fsdp.*": Inert(_SHARDS),
    "critic.fsdp.strategy": Inert(_SHARDS, ("fsdp", "fsdp2"), "leave it out"),
    "critic.fsdp.dtype": Inert("the critic computes in the actor's type"),
    "critic.fsdp.model_dtype": Inert(
        "master weights are float32", ("fp32", "float32", None), f"{ARR}.actor.dtype for the compute type"
    ),
    "critic.fsdp.forward_only": Inert(_SHARDS, (False,)),
    "critic.fsdp.ulysses_sequence_parallel_size": Inert(_SHARDS, (1, None)),
    "critic.ulysses_sequence_parallel_size": Inert(_SHARDS, (1, None)),
    "critic.optim.optimizer": Inert("the optimiser is AdamW", ("AdamW", "adamw")),
    "critic.optim.optimizer_impl": Inert("the optimiser is torch.optim.AdamW", ("torch.optim",)),
    "critic.optim.total_training_steps": Inert("the schedule always follows the run's own number of steps"),
    "critic.optim.zero_indexed_step": Inert("the first warm-up step is step 0", (True,)),
    "critic.optim.override_optimizer_config": Inert(
        "nothing is overridden", OFF, "critic.optim.eps, betas or weight_decay"
    ),
    "critic.optim.override_optimizer_config.*": Inert(
        "nothing is overridden", (), "critic.optim.eps, betas or weight_decay"
    ),
    "critic.data_loader_seed": Inert("the critic learns on the minibatches of the actor"),
    "critic.checkpoint.save_contents": Inert("a checkpoint always holds everything, a Hugging Face folder included"),
    "critic.checkpoint.load_contents": Inert(
        "a resumed run takes everything",
        (["model", "optimizer", "extra"], ["model", "optimizer", "extra", "hf_model"], None),
        "critic.model.path=CHECKPOINT/critic/hf to start anew from its weights",
    ),
    "critic.checkpoint.async_save": Inert("a checkpoint is written before the next step starts"),
    "critic.model.hf_config_path": Inert("the model's folder has its config", OFF, "critic.model.override_config"),
    "critic.model.tokenizer_path": Inert(_CRITIC_TEXT),
    "critic.model.custom_chat_template": Inert(_CRITIC_TEXT),
    "critic.model.use_shm": Inert(_COPIES),
    "critic.model.external_lib": Inert("no extra module is imported", OFF, "a model class that Transformers knows"),
    "critic.model.enable_activation_offload": Inert(_KERNEL),
    "critic.model.use_liger": Inert(_KERNEL),
    "critic.model.use_fused_kernels": Inert(_KERNEL),
    "critic.model.fused_kernel_options.*": Inert(_KERNEL),
    "critic.model.tiled_mlp.*": Inert(_KERNEL),
    "critic.model.lora_adapter_path": Inert(
        "adapters start at zero", OFF, "merge the adapter into the model folder first"
    ),
    "critic.model.fsdp_config.*": Inert(_SHARDS),
    "trainer.max_critic_ckpt_to_keep": Inert(
        "the critic is a part of the checkpoint, and trainer.max_actor_ckpt_to_keep counts both"
    ),
    # algorithm
    "algorithm.use_pf_ppo": Inert("rollouts are not resampled", OFF),
    "algorithm.pf_ppo.*": Inert("rollouts are not resampled"),
    "algorithm.filter_groups.max_inflight_gen_batches": Inert("a batch is judged before the next one is drawn"),
    # reward
    "reward_model.*": Inert(_JUDGE),
    "reward_model.model.input_tokenizer": Inert(
        "the reward model gets the answer's text, in its own tokenizer and chat template"
    ),
    "reward_model.model.external_lib": Inert(
        "no extra module is imported", OFF, "reward_model.model.trust_remote_code, or a class that Transformers knows"
    ),
    "reward_model.reward_manager": Inert(
        "each answer is graded alone, in worker processes", ("naive", None), _ROLLOUT_FUNCTION
    ),
    "reward_model.reward_kwargs*": Inert(
        "reward managers are not built", OFF, "custom_reward_function.reward_kwargs for the function's own arguments"
    ),
    "reward_model.overlong_buffer.*": Inert("long answers are not penalised", OFF, _ROLLOUT_FUNCTION),
    "reward_model.reward_loop_*": Inert("each answer is graded alone, in worker processes", OFF, _ROLLOUT_FUNCTION),
    "reward_model.launch_reward_fn_async": Inert("answers are always graded while others are still sampled"),
    "reward_model.sandbox_fusion.*": Inert("code runs in the local sandbox"),
    "reward_model.sandbox_fusion.url": Inert("code runs in the local sandbox", OFF, _ROLLOUT_FUNCTION),
    "sandbox_fusion.*": Inert("code runs in the local sandbox"),
    "sandbox_fusion.url": Inert("code runs in the local sandbox", OFF, _ROLLOUT_FUNCTION),
    "reward.sandbox_fusion.*": Inert("code runs in the local sandbox"),
    "reward.sandbox_fusion.url": Inert("code runs in the local sandbox", OFF, _ROLLOUT_FUNCTION),
    "reward.reward_manager.source": Inert(
        "each answer is graded alone, in worker processes", ("register",), _ROLLOUT_FUNCTION
    ),
    "reward.reward_manager.name": Inert(
        "each answer is graded alone, in worker processes", ("naive", "remote"), _ROLLOUT_FUNCTION
    ),
    "reward.reward_manager.module.*": Inert("no class is loaded while source is register"),
    "reward.reward_kwargs*": Inert("reward managers are not built", OFF, "custom_reward_function.reward_kwargs"),
    "reward.reward_model.*": Inert(_JUDGE),
    "reward.reward_model.rollout.top_k": Inert("a judge draws from all tokens", (None, -1, 0), "top_k=-1"),
    "reward.reward_model.rollout.top_p": Inert("a judge draws from all tokens", (None, 1, 1.0), "top_p=1"),
    "reward.reward_model.rollout.do_sample": Inert("reward_model.judge.temperature decides; 0 is greedy"),
    "reward.reward_model.rollout.prompt_length": Inert("reward_model.max_length limits what is read"),
    "reward.reward_model.rollout.seed": Inert("a judge's draws are named by actor_rollout_ref.rollout.seed"),
    "reward.reward_model.rollout.ignore_eos": Inert("a judge ends where its end token is", OFF, "ignore_eos=False"),
    "reward.max_concurrent": Inert("reward.num_workers says how many answers are graded at once"),
    # trainer
    "trainer.balance_batch": Inert("rows are always cut into passes of like length; no number depends on it"),
    "trainer.esi_redundant_time": Inert("there is no instance to expire"),
    "trainer.default_hdfs_dir": Inert("checkpoints stay in the run folder", OFF, "copy the run folder afterwards"),
    "trainer.del_local_ckpt_after_load": Inert("checkpoints are kept", OFF, "trainer.max_actor_ckpt_to_keep"),
    "trainer.remove_previous_ckpt_in_save": Inert("checkpoints are kept", OFF, "trainer.max_actor_ckpt_to_keep=1"),
    "trainer.ray_wait_register_center_timeout": Inert(_RAY),
    "trainer.use_v1": Inert("there is one trainer"),
    "trainer.use_legacy_worker_impl": Inert("there is one trainer"),
    "trainer.v1.*": Inert(_ASYNC),
    "trainer.v1.trainer_mode": Inert(_ASYNC, ("sync",), "trainer.v1.trainer_mode=sync"),
    "trainer.v1.sampler.custom_sampler.*": Inert(_ASYNC, OFF),
    "trainer.profile_steps": Inert(_PROFILE, OFF),
    "trainer.npu_profile.*": Inert(_PROFILE),
    "trainer.*_nsight_options.*": Inert(_PROFILE),
    "trainer.wandb_proxy": Inert("nothing is sent to Weights & Biases"),
    # everything else
    "ray_kwargs.*": Inert(_RAY),
    "ray_init.*": Inert(_RAY),
    "global_profiler.*": Inert(_PROFILE),
    "global_profiler.tool": Inert(_PROFILE, OFF),
    "global_profiler.steps": Inert(_PROFILE, (*OFF, [])),
    "distillation.*": Inert(_DISTILL),
    "distillation.enabled": Inert(_DISTILL, OFF, "distillation.enabled=False"),
    "transfer_queue.*": Inert(_STORE),
    "skip.*": Inert(_SKIP),
    "skip.*.enable": Inert(_SKIP, OFF),
    "model_engine": Inert(_SHARDS, ("dp",), "model_engine=dp"),
}
"""Keys that can do nothing here, each with the reason."""

REFUSED: Mapping[str, Refused] = {
    f"{ARR}.*.megatron.*": Refused("Megatron is not a back end of Cohort", "leave it out; PyTorch trains the model"),
    "critic.megatron.*": Refused("Megatron is not a back end of Cohort", "leave it out"),
    f"{ARR}.model.lora.target_modules": Refused(
        "these are Megatron's module names", f"{ARR}.model.target_modules, with the model's own names or all-linear"
    ),
    f"{ARR}.rollout.disaggregation.enabled": Refused("prefill and decode share the process", "leave it out"),
    f"{ARR}.actor.policy_loss.rollout_correction.*": Refused(
        "algorithm.rollout_correction reaches the loss by itself", "algorithm.rollout_correction"
    ),
    "async_training.*": Refused(_ASYNC, "leave it out"),
    "reward.max_rpm": Refused("rewards are not rate-limited", "an async def reward that waits by itself"),
    "reward.max_tpm": Refused("rewards are not rate-limited", "an async def reward that waits by itself"),
    "reward.estimated_tokens_per_request": Refused(
        "rewards are not rate-limited", "an async def reward that waits by itself"
    ),
}
"""Keys that would change what is trained, each with the reason and what works instead."""

_GRPO = "algorithm.adv_estimator=grpo"
_NATIVE = f"{ARR}.rollout.name=native (or hf)"
_JSONL = "trainer.logger=[console,jsonl,tensorboard]"

ALIASES: Mapping[str, Mapping[str, str]] = {
    "algorithm.adv_estimator": {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"},
}
"""Values of our own keys that verl spells in two ways."""

REFUSED_VALUES: Mapping[str, Mapping[object, Refused]] = {
    f"{ARR}.actor.policy_loss.loss_mode": {
        "bypass_mode": Refused("it is no loss", "algorithm.rollout_correction.bypass_mode=True beside any loss")
    },
    f"{ARR}.rollout.name": {
        name: Refused("this engine runs in a process of its own, which comes later", _NATIVE)
        for name in ("vllm", "sglang", "trtllm")
    },
    f"{ARR}.actor.kl_loss_type": {"full": Refused("verl never built it", "low_var_kl")},
    "algorithm.kl_penalty": {"full": Refused("verl never built it", "algorithm.kl_penalty=kl")},
    "trainer.logger": {
        **{
            name: Refused("this back end comes later", _JSONL)
            for name in ("wandb", "swanlab", "mlflow", "clearml", "vemlp_wandb", "trackio", "rl_insight", "tracking")
        },
    },
    "trainer.device": {"npu": Refused("Ascend devices are not supported", "trainer.device=auto")},
    f"{ARR}.rollout.dtype": {"float16": Refused("it overflows", "bfloat16, float32 or auto")},
    f"{ARR}.actor.dtype": {"float16": Refused("it overflows", "bfloat16, float32 or auto")},
}
"""Values of our own keys that verl knows and that are not built."""

COHORT_ONLY: tuple[str, ...] = (
    "data.task",
    "data.task_kwargs",
    "data.train_size",
    "data.val_size",
    "data.curriculum.order",
    "data.curriculum.column",
    "data.curriculum.steps",
    "data.curriculum.stages",
    "data.curriculum.floor",
    "data.curriculum.discount",
    f"{ARR}.actor.share_prompt",
    f"{ARR}.actor.dtype",
    f"{ARR}.actor.top_entropy_quantile",
    f"{ARR}.actor.policy_loss.kwargs",
    f"{ARR}.actor.policy_loss.delta",
    f"{ARR}.actor.optim.eps",
    f"{ARR}.rollout.min_p",
    f"{ARR}.rollout.stop",
    f"{ARR}.rollout.val_kwargs.min_p",
    f"{ARR}.rollout.val_kwargs.also_greedy",
    f"{ARR}.rollout.val_kwargs.stop",
    "critic.optim.eps",
    "algorithm.plugins",
    "algorithm.adv_kwargs",
    "algorithm.adv_scale",
    "algorithm.filter_groups.on_exhausted",
    "algorithm.overlong_filter",
    "algorithm.group_by",
    "algorithm.rollout_correction.preset",
    "algorithm.rollout_correction.rollout_rs_inverted",
    "algorithm.rollout_correction.rollout_rs_threshold_lower",
    "algorithm.rollout_correction.rollout_token_veto_threshold",
    "algorithm.ref_reward_blend.enable",
    "algorithm.ref_reward_blend.max_weight",
    "algorithm.ref_reward_blend.warmup_ratio",
    "algorithm.ref_reward_blend.warmup_steps",
    "algorithm.ref_reward_blend.schedule",
    "algorithm.ref_reward_blend.steps",
    "algorithm.ref_reward_blend.sigmoid_k",
    "algorithm.ref_reward_blend.sigmoid_center",
    "algorithm.ref_reward_blend.exp_k",
    "algorithm.ref_reward_blend.norm_scope",
    "algorithm.ref_reward_blend.distribute",
    "algorithm.ref_reward_blend.degenerate_value",
    "algorithm.ref_reward_blend.eps",
    "algorithm.repr_align.enable",
    "algorithm.repr_align.ref_alignment.enable",
    "algorithm.repr_align.ref_alignment.max_weight",
    "algorithm.repr_align.ref_alignment.warmup_ratio",
    "algorithm.repr_align.ref_alignment.warmup_steps",
    "algorithm.repr_align.ref_alignment.schedule",
    "algorithm.repr_align.ref_alignment.steps",
    "algorithm.repr_align.ref_alignment.sigmoid_k",
    "algorithm.repr_align.ref_alignment.sigmoid_center",
    "algorithm.repr_align.ref_alignment.exp_k",
    "algorithm.repr_align.ref_alignment.entropy_high_threshold",
    "algorithm.repr_align.ref_alignment.allocation",
    "algorithm.repr_align.ref_alignment.sim_transform",
    "algorithm.repr_align.ref_alignment.center",
    "algorithm.repr_align.ref_alignment.gold_key",
    "algorithm.repr_align.ref_alignment.encoder.path",
    "algorithm.repr_align.ref_alignment.encoder.max_length",
    "algorithm.chord.enable",
    "algorithm.chord.files",
    "algorithm.chord.prompt_key",
    "algorithm.chord.response_key",
    "algorithm.chord.max_length",
    "algorithm.chord.batch_size",
    "algorithm.chord.mu_warmup_steps",
    "algorithm.chord.mu_decay_steps",
    "algorithm.chord.mu_peak",
    "algorithm.chord.mu_valley",
    "algorithm.chord.phi",
    "reward.functions",
    "reward.max_unscorable_rate",
    "reward_model.kind",
    "reward_model.model.tokenizer_path",
    "reward_model.model.custom_chat_template",
    "reward_model.weight",
    "reward_model.scale",
    "reward_model.shift",
    "reward_model.label",
    "reward_model.activation",
    "reward_model.truncation",
    "reward_model.dtype",
    "reward_model.judge.template",
    "reward_model.judge.pattern",
    "reward_model.judge.worst",
    "reward_model.judge.best",
    "reward_model.judge.n",
    "reward_model.judge.temperature",
    "reward_model.judge.max_tokens",
    "reward_model.judge.apply_chat_template_kwargs",
    "trainer.threads",
    "trainer.seed",
    "trainer.max_minutes",
    "trainer.sample_freq",
)
"""Keys of the schema that are not in verl's own files."""

DEVIATIONS: Mapping[str, tuple[str, str]] = {
    f"{ARR}.rollout.name": ("vllm", "the engine that is built in; vllm comes later"),
    f"{ARR}.rollout.dtype": ("bfloat16", "sampler and trainer compute in one type, so that their log-probs agree"),
    f"{ARR}.rollout.max_num_seqs": ("1024", "a cache of 1024 answers is too much for a laptop; speed only"),
    f"{ARR}.model.path": ("~/models/deepseek-llm-7b-chat", "must be given"),
    f"{ARR}.model.use_remove_padding": ("False", "packed rows are faster and no number changes"),
    f"{ARR}.actor.clip_ratio_low": ("0.2", "follows clip_ratio; in verl setting clip_ratio alone changes nothing"),
    f"{ARR}.actor.clip_ratio_high": ("0.2", "follows clip_ratio; in verl setting clip_ratio alone changes nothing"),
    f"{ARR}.actor.loss_agg_mode": ("token-mean", "null takes that of the loss's paper: token-mean for vanilla"),
    "critic.model.path": ("~/models/deepseek-llm-7b-chat", "follows the actor's model"),
    "critic.model.trust_remote_code": ("False", "follows the actor's model"),
    "critic.model.use_remove_padding": ("False", "packed rows are faster and no number changes"),
    "data.train_files": ("~/data/rlhf/gsm8k/train.parquet", "must be given, or data.task"),
    "data.val_files": ("~/data/rlhf/gsm8k/test.parquet", "must be given where validation is asked for"),
    "reward_model.model.path": ("~/models/FsfairX-LLaMA3-RM-v0.1", "must be given where a classifier grades"),
    "reward_model.forward_max_token_len_per_gpu": ("32768", "follows the actor's budget; memory only"),
    "trainer.logger": ("[console, wandb]", "works offline, without an account"),
    "trainer.device": ("cuda", "takes the GPU where there is one"),
    "trainer.n_gpus_per_node": ("8", "counts replicas, on CPU cores too"),
    "trainer.default_local_dir": ("checkpoints/PROJECT/EXPERIMENT", "runs/PROJECT/EXPERIMENT; a run is one folder"),
}
"""Where the preset ``verl`` differs from verl v0.5: its value, and why ours is another."""
