"""``algorithm.rollout_correction.*``: what to do where the sampler's log-probs are not the trainer's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cohort.config.schema.limits import Positive, Range


@dataclass(frozen=True, kw_only=True)
class RolloutCorrection:
    """Importance weights, rejection rules and bypass. The distance itself is always logged as ``rollout_corr/*``."""

    preset: str | None = None
    """A correction by name: decoupled_token_is, decoupled_token_icepop, decoupled_seq_is_rs, bypass_ppo_clip,
    bypass_pg_is, token_truncate, ... (a wrong name lists them all); the other keys then stay as they are."""
    rollout_is: Literal["token", "sequence", "sequence_geometric"] | None = None
    """Weigh each token's loss by trainer over sampler: of the token, of the whole answer, or of its geometric mean."""
    rollout_is_threshold: Positive | str = 2.0
    """A number cuts larger weights down to it; "0.5_5.0" sets weights outside to 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the batch."""
    rollout_rs: str | None = None
    """Rules that leave tokens or answers out, with commas between: token_k1, seq_sum_k1, seq_mean_k3, seq_max_k2."""
    rollout_rs_threshold: Positive | str | None = None
    """Their limits, with commas between: "0.5_2.0" or 2 for k1 (ratios), an upper bound for k2 and k3."""
    rollout_rs_inverted: bool = False
    """Read k1's limits as those of sampler over trainer, which is what verl computes; the same for symmetric limits."""
    rollout_rs_threshold_lower: Positive | None = None
    """verl 0.7: the lower limit of rules that have one number."""
    rollout_token_veto_threshold: Annotated[float, Range(low=0, high=1, above=True)] | None = None
    """Leave an answer out whose least likely token, trainer over sampler, is below this."""
    bypass_mode: bool = False
    """The sampler's log-probs stand in for the old ones, and the pass that computes those is saved."""
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """Under bypass: ppo_clip keeps the policy loss, its ratio against the sampler; reinforce is -A log pi, weighed."""
