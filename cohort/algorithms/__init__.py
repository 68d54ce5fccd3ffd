"""The mathematics of the training step: pure functions of tensors and numbers.

    shaping      scores, KL, reference, gold answer -> rewards (B, T)
    group        rewards -> advantages (GRPO, Dr. GRPO, RLOO, OPO, GPG, MaxRL); beside it pass_at_k, gdpo,
                 reinforce (REINFORCE++, ReMax), gae, token_baseline; grouping has the sums over groups
    ppo_loss     log-probs and advantages -> loss per token
    kl           log-probs -> KL estimate per token
    masking      per token -> one number: ``aggregate`` is the only place that divides a loss
    schedules    learning-rate factors, KL coefficients, weights of shaping terms
    mismatch     how far the sampler's log-probs are from the trainer's
    correction   what is done about it: importance weights, rejection, bypass (settings in correction_settings)
    registry     the names that a configuration may use

Shapes: **B** rollouts, **T** response tokens, as in ``cohort/types.py``. Masks are float, 1 where
the model wrote the token. Whatever stands outside the mask, NaN included, changes no result and
no gradient. Nothing here knows of devices, configuration, logging or processes, and nothing
reads a number out of a tensor.
"""
