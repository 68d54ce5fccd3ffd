"""What every logged number means: the one table behind docs/metrics.md and ``cohort explain``. Pure data.

Placeholders: ``<source>`` a ``data_source``, ``<var>`` a number that the reward gives (``reward`` itself included),
``<part>`` an entry of the reward's dict; after ``@``, ``N`` the answers per validation prompt and ``n`` a number up to
it. ``cohort.tracking.metrics_page`` writes the page.
"""

from __future__ import annotations

from dataclasses import dataclass

LINES = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """Numbers of one kind.

    Attributes:
        title: its heading.
        intro: what they have in common, in Markdown.
        metrics: name with placeholders, meaning, and what a run that learns usually shows (may be empty).
    """

    title: str
    intro: str
    metrics: LINES


SECTIONS: tuple[Section, ...] = (
    Section(
        title="Rewards and advantages",
        intro="""\
Over the answers that trained. `critic/` is verl's prefix; there need be no critic.""",
        metrics=(
            ("critic/score/mean", "mean score", "rises"),
            ("critic/score/max", "best score", ""),
            ("critic/score/min", "worst score", "below max, or nothing can be learnt"),
            ("critic/rewards/mean", "mean of an answer's summed reward, after a KL in the reward", "near the score"),
            ("critic/rewards/max", "largest such sum", ""),
            ("critic/rewards/min", "smallest such sum", ""),
            (
                "critic/advantages/mean",
                "mean advantage over tokens; not 0 where good and bad answers differ in length",
                "near 0",
            ),
            ("critic/advantages/max", "largest advantage", "below the square root of the group size"),
            ("critic/advantages/min", "smallest advantage", "above minus that"),
            (
                "critic/values/mean",
                "mean value of a token, by the critic as the step began; with a critic alone, as are the next six",
                "near the mean return",
            ),
            ("critic/values/max", "largest value", "within the range of the scores"),
            ("critic/values/min", "smallest value", ""),
            ("critic/returns/mean", "mean return that the critic learns", "near the mean score"),
            ("critic/returns/max", "largest return", ""),
            ("critic/returns/min", "smallest return", ""),
            (
                "critic/vf_explained_var",
                "share of the returns' variance that the values explain",
                "from about 0 up towards 1; below 0 the critic is worse than a constant",
            ),
            ("reward/<part>/mean", "mean of an entry of the reward's dict, or of one of several rewards", ""),
            (
                "reward/reward_model/mean",
                "mean of what the reward model says, scaled, before its weight; with `reward_model.enable`",
                "rises; faster than the other rewards means it is being exploited",
            ),
            (
                "reward/reward_model/truncated/mean",
                "share of conversations that were longer than the classifier reads",
                "below 0.05",
            ),
            (
                "reward/reward_model/unparsed/mean",
                "share of judgements without a number, or with one out of range",
                "below 0.1",
            ),
            ("training/unscorable", "answers that could not be graded", "0"),
            ("training/dropped_rollouts", "answers that did not train: without a score, or without a token", "0"),
            (
                "training/filtered_rollouts",
                "answers that did not train because the token limit cut them; with `algorithm.overlong_filter` alone",
                "near 0",
            ),
        ),
    ),
    Section(
        title="Groups",
        intro="""\
Every group that was sampled is counted in exactly one of `training/groups_with_signal` and `training/groups_all_*`
([which_samples.md](which_samples.md#groups-without-a-signal)). `dynamic_sampling/*` is there with
`algorithm.filter_groups.enable` alone.""",
        metrics=(
            ("training/groups", "groups sampled; without dynamic sampling the batch size in prompts", ""),
            ("training/groups_with_signal", "groups whose scores differ", "more than a third of them"),
            (
                "training/groups_all_right",
                "equal scores, every answer right (`acc`, or else the score, 1 or more): too easy",
                "grows as the model learns",
            ),
            ("training/groups_all_wrong", "equal scores, every answer wrong (0 or less): too hard", ""),
            ("training/groups_all_truncated", "equal scores, and the token limit ended every answer", "0"),
            ("training/groups_all_unscorable", "groups with fewer than two answers that could be graded", "0"),
            (
                "training/groups_all_equal",
                "equal scores that are neither: partly right, or right and wrong at one price",
                "0",
            ),
            (
                "training/groups_of_one",
                "groups in which one answer was left to train: nothing to compare it with, so it teaches nothing",
                "0",
            ),
            ("dynamic_sampling/batches", "batches drawn for the step", "1 to 3"),
            ("dynamic_sampling/groups_sampled", "groups in them", ""),
            ("dynamic_sampling/groups_kept", "groups that train", "the batch size"),
            ("dynamic_sampling/kept_share", "their share", "above a third"),
            ("dynamic_sampling/dropped_valid", "groups with a signal beyond the batch size, dropped", "near 0"),
        ),
    ),
    Section(
        title="Answers",
        intro="""\
Over all answers that were sampled. Lengths count the tokens that the model wrote.""",
        metrics=(
            ("response_length/mean", "mean length", "follows the task; a jump to the limit is a warning"),
            ("response_length/max", "longest", ""),
            ("response_length/min", "shortest", "above 1"),
            ("response_length/clip_ratio", "share that the token limit ended", "below 0.1"),
            ("response/aborted_ratio", "share whose sampling failed", "0"),
            ("prompt_length/mean", "mean prompt length", ""),
            ("prompt_length/max", "longest prompt", ""),
            ("prompt_length/min", "shortest prompt", ""),
            ("num_turns/mean", "messages per conversation", "2 for a question and an answer"),
            ("num_turns/max", "most", ""),
            ("num_turns/min", "fewest", ""),
        ),
    ),
    Section(
        title="The update",
        intro="""\
Means over the minibatches of a step; token means are weighted by tokens.""",
        metrics=(
            (
                "actor/loss",
                (
                    "the whole loss: policy loss, less entropy bonus, plus KL; with CHORD (1 - mu) times that "
                    "plus mu times `actor/sft_loss`"
                ),
                "around 0",
            ),
            ("actor/pg_loss", "the policy loss", "around 0"),
            (
                "actor/pg_clipfrac",
                "share of tokens whose ratio the clip held",
                "0 with one update per step, else below 0.2",
            ),
            ("actor/pg_clipfrac_lower", "share of tokens that the dual clip held", "near 0"),
            (
                "actor/ppo_kl",
                "mean of old minus new log-prob: how far the update has gone",
                "0 with one update per step, else below 0.1",
            ),
            (
                "actor/entropy",
                "mean entropy of the next-token distribution, in nats",
                "falls slowly; near 0 means nothing is tried any more",
            ),
            ("actor/entropy_loss", "entropy as the bonus counts it; with `entropy_coeff` alone", ""),
            (
                "actor/kl_loss",
                "KL to the reference as the loss counts it; with `use_kl_loss` alone",
                "below 1, grows slowly",
            ),
            ("actor/kl_coef", "its weight", ""),
            (
                "actor/reward_kl_penalty",
                "mean KL per token in the reward; with `use_kl_in_reward` alone",
                "near `target_kl` if adaptive",
            ),
            ("actor/reward_kl_penalty_coeff", "its weight in this step", ""),
            (
                "actor/chord_mu",
                "mu, the weight of demonstrations; with `algorithm.chord.enable` alone, as the next four",
                "falls from `mu_peak` to `mu_valley`",
            ),
            (
                "actor/sft_loss",
                "loss on the demonstrations of an update, before its weight; missing where mu is 0",
                "falls",
            ),
            (
                "actor/sft_nll",
                "their cross-entropy per token, without phi",
                "falls; near 0 means they are known by heart",
            ),
            (
                "actor/sft_phi",
                "mean phi of their tokens; with `algorithm.chord.phi` alone",
                "0.01 to 0.25; near 0 means that nothing is learnt from them",
            ),
            ("actor/sft_tokens", "demonstrated tokens per update", ""),
            ("actor/grad_norm", "norm of the gradient before clipping", "finite; below 10 times `clip_grad`"),
            ("actor/lr", "learning rate of the step", ""),
            (
                "actor/weights_changed_share",
                "share of (sampled) weights that an update changed",
                "near 1; near 0 means the learning rate is lost in rounding",
            ),
            ("actor/skipped_updates", "updates skipped because loss or gradient was not finite", "0"),
            ("training/updates", "optimiser steps in this training step", ""),
        ),
    ),
    Section(
        title="The critic's update",
        intro="""\
With `algorithm.adv_estimator=gae` alone. Means over the minibatches of a step; token means are weighted by tokens.""",
        metrics=(
            (
                "critic/vf_loss",
                "half the squared error of the values, clipped",
                "falls at first, then follows the spread of the returns",
            ),
            ("critic/vf_clipfrac", "share of tokens whose value the clip held", "below 0.2"),
            ("critic/vpred_mean", "mean value of a token in the update", "near `critic/returns/mean`"),
            ("critic/grad_norm", "norm of the gradient before clipping", "finite; below 10 times `clip_grad`"),
            ("critic/lr", "learning rate of the step", ""),
            (
                "critic/weights_changed_share",
                "share of (sampled) weights that an update changed",
                "near 1; smaller in the first, where the head is 0",
            ),
            ("critic/skipped_updates", "updates skipped because loss or gradient was not finite", "0"),
        ),
    ),
    Section(
        title="Sampler against trainer",
        intro="""\
The same tokens, the log-probs of both sides. In float32 the differences are rounding; in bfloat16 they are some
thousandths.""",
        metrics=(
            (
                "training/rollout_probs_diff_mean",
                "mean difference of the probability",
                "below 1e-5 in float32, 0.01 in bfloat16",
            ),
            ("training/rollout_probs_diff_max", "largest", "below 1e-4 in float32, 0.5 in bfloat16"),
            ("training/rollout_probs_diff_std", "its spread", ""),
            ("training/rollout_actor_probs_pearson_corr", "correlation of the two", "above 0.99"),
            ("rollout_corr/training_ppl", "mean perplexity of an answer, by the trainer", "close to the sampler's"),
            ("rollout_corr/training_log_ppl", "mean of its logarithm", ""),
            ("rollout_corr/rollout_ppl", "mean perplexity, by the sampler", ""),
            ("rollout_corr/rollout_log_ppl", "mean of its logarithm", ""),
            ("rollout_corr/kl", "KL of sampler and trainer, by k1", "near 0"),
            ("rollout_corr/k3_kl", "the same by k3, never negative", "below 1e-3"),
            ("rollout_corr/log_ppl_diff", "trainer's log-perplexity less the sampler's", "near 0"),
            ("rollout_corr/log_ppl_abs_diff", "mean size of that", ""),
            ("rollout_corr/log_ppl_diff_max", "largest over answers", ""),
            ("rollout_corr/log_ppl_diff_min", "smallest over answers", ""),
            ("rollout_corr/ppl_ratio", "mean ratio of the perplexities", "near 1"),
            ("rollout_corr/chi2_token", "chi-squared distance of tokens", "near 0"),
            ("rollout_corr/chi2_seq", "chi-squared distance of whole answers", "below 1"),
        ),
    ),
    Section(
        title="Validation",
        intro="""\
Every row exactly once, with settings of its own (`actor_rollout_ref.rollout.val_kwargs`). The core variable of a
source is `acc` if the reward gives it, else `reward`. best, worst and maj are bootstrap estimates of what the best,
the worst and the commonest of `n` answers score.""",
        metrics=(
            (
                "val-core/<source>/<var>/mean@N",
                "mean of the core variable over the N answers to a prompt, then over prompts",
                "rises",
            ),
            ("val-core/<source>/<var>/best@N/mean", "best of N", "an upper limit for what more sampling can give"),
            ("val-core/<source>/<var>/best@N/std", "its spread over resamples", ""),
            (
                "val-core/<source>/<var>/maj@N/mean",
                "the commonest prediction of N; where the reward gives `pred`",
                "above the mean",
            ),
            ("val-core/<source>/<var>/maj@N/std", "its spread over resamples", ""),
            ("val-aux/<source>/<var>/mean@N", "the same for the other variables", ""),
            ("val-aux/<source>/<var>/std@N", "spread of the N answers to a prompt", ""),
            ("val-aux/<source>/<var>/best@n/mean", "best of n; of other variables N included", ""),
            ("val-aux/<source>/<var>/best@n/std", "its spread", ""),
            ("val-aux/<source>/<var>/worst@n/mean", "worst of n", ""),
            ("val-aux/<source>/<var>/worst@n/std", "its spread", ""),
            ("val-aux/<source>/<var>/maj@n/mean", "majority of n", ""),
            ("val-aux/<source>/<var>/maj@n/std", "its spread", ""),
            ("val-aux/<source>/<var>/ci95/low", "lower end of the 95% interval of the core mean", ""),
            ("val-aux/<source>/<var>/ci95/high", "upper end", ""),
            (
                "val-aux/<source>/greedy_<var>/mean",
                "greedy mean of the core variable; with `val_kwargs.also_greedy`",
                "",
            ),
            ("val-aux/<source>/greedy_<var>/mean/low", "lower end of its interval", ""),
            ("val-aux/<source>/greedy_<var>/mean/high", "upper end of its interval", ""),
            ("val-aux/<source>/unscorable", "answers that could not be graded", "0"),
            ("val-aux/<source>/response_length", "mean length", ""),
            ("val-aux/<source>/truncated", "share that the token limit ended", "below 0.1"),
            ("val-aux/num_turns/mean", "messages per conversation", ""),
            ("val-aux/num_turns/max", "most", ""),
            ("val-aux/num_turns/min", "fewest", ""),
        ),
    ),
    Section(
        title="Time and memory",
        intro="""\
Seconds of wall time. These are the numbers that differ between two runs of the same command.""",
        metrics=(
            ("timing_s/step", "the whole step", ""),
            ("timing_s/gen", "sampling, with the rewards that overlap it", "the largest part"),
            ("timing_s/reward/mean", "mean time to grade one answer", ""),
            ("timing_s/reward/max", "slowest", "far below `reward.timeout`"),
            (
                "timing_s/old_log_prob",
                "recomputing log-probs; only with several updates per step or a KL in the reward",
                "",
            ),
            ("timing_s/ref", "the reference model; only with a KL term", ""),
            ("timing_s/values", "values of the critic; with a critic alone", ""),
            ("timing_s/adv", "rewards and advantages", "near 0"),
            ("timing_s/update_critic", "the same for the critic: forward, backward, optimiser", ""),
            ("timing_s/update_actor", "forward, backward, optimiser", ""),
            ("timing_s/update_weights", "handing the weights to the sampler", "near 0"),
            ("timing_s/testing", "validation", ""),
            ("timing_per_token_ms/gen", "milliseconds per answer token", ""),
            ("timing_per_token_ms/ref", "milliseconds per token", ""),
            ("timing_per_token_ms/values", "milliseconds per token", ""),
            ("timing_per_token_ms/adv", "milliseconds per token", ""),
            ("timing_per_token_ms/update_critic", "milliseconds per token", ""),
            ("timing_per_token_ms/update_actor", "milliseconds per token", ""),
            ("perf/throughput", "tokens per second of the step, prompts included", "steady"),
            ("perf/total_num_tokens", "tokens of the step", ""),
            ("perf/time_per_step", "seconds of the step", ""),
            (
                "perf/cpu_memory_used_gb",
                "largest resident memory of the process so far, in GiB",
                "steady after a few steps",
            ),
            (
                "perf/max_memory_allocated_gb",
                "largest memory on the GPU so far, in GiB; on a GPU alone",
                "below the card's",
            ),
            ("training/global_step", "the step", ""),
            ("training/epoch", "passes over the data so far", ""),
        ),
    ),
)
