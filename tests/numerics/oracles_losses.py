"""The papers' losses, transcribed literally: plain Python floats, one loop per sum sign, no vector arithmetic.

``stopped`` holds the log-probs at which everything behind a stop-gradient is evaluated. Left out it is the current
log-probs, and the result is the loss; held fixed while ``log_probs`` move, differences of the result are what the
gradient of the loss must be.
"""

import math

from tests.numerics.oracles import Matrix, mean


def hold(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def ratio_of(x: float, y: float) -> float:
    return math.exp(hold(x - y, -20.0, 20.0))


def per_token(mask: Matrix, loss_at) -> Matrix:
    """A table of ``loss_at(row, token)``, 0 off the mask."""
    return [[loss_at(i, t) if m else 0.0 for t, m in enumerate(row)] for i, row in enumerate(mask)]


def written(row: list[float]) -> list[int]:
    return [t for t, m in enumerate(row) if m]


def clipped(
    log_probs, old, advantages, mask, stopped=None, clip_low=0.2, clip_high=0.2, dual_clip=3.0, delta=None
) -> Matrix:
    def loss(i: int, t: int) -> float:
        A, ratio = advantages[i][t], ratio_of(log_probs[i][t], old[i][t])
        objective = min((min(ratio, delta) if delta else ratio) * A, hold(ratio, 1 - clip_low, 1 + clip_high) * A)
        if A < 0 and dual_clip is not None:
            objective = max(objective, dual_clip * A)
        return -objective

    return per_token(mask, loss)


def gspo(log_probs, old, advantages, mask, stopped=None, clip_low=3e-4, clip_high=4e-4) -> Matrix:
    def loss(i: int, t: int) -> float:
        A = advantages[i][t]
        s = math.exp(min(mean([log_probs[i][k] - old[i][k] for k in written(mask[i])]), 10.0))
        return -min(s * A, hold(s, 1 - clip_low, 1 + clip_high) * A)

    return per_token(mask, loss)


def gspo_token(log_probs, old, advantages, mask, stopped=None, clip_low=3e-4, clip_high=4e-4) -> Matrix:
    stopped = stopped or log_probs

    def loss(i: int, t: int) -> float:
        A = advantages[i][t]
        s_of_answer = mean([stopped[i][k] - old[i][k] for k in written(mask[i])])
        s = math.exp(min(s_of_answer + log_probs[i][t] - stopped[i][t], 10.0))
        return -min(s * A, hold(s, 1 - clip_low, 1 + clip_high) * A)

    return per_token(mask, loss)


def geo_mean(log_probs, old, advantages, mask, stopped=None, clip_low=0.4, clip_high=0.4) -> Matrix:
    def loss(i: int, t: int) -> float:
        tokens, product = written(mask[i]), 1.0
        for k in tokens:
            A, ratio = advantages[i][k], math.exp(log_probs[i][k] - old[i][k])
            if A > 0:
                factor = min(ratio, math.exp(clip_high))
            elif A < 0:
                factor = max(ratio, math.exp(-clip_low))
            else:
                factor = 1.0
            product *= factor ** (1 / len(tokens))
        return -product * mean([advantages[i][k] for k in tokens])

    return per_token(mask, loss)


def cispo(log_probs, old, advantages, mask, stopped=None, clip_low=None, clip_high=4.0, ratio_cap=None) -> Matrix:
    stopped = stopped or log_probs

    def loss(i: int, t: int) -> float:
        weight = min(ratio_of(stopped[i][t], old[i][t]), ratio_cap or 1 + clip_high)
        if clip_low is not None:
            weight = max(weight, 1 - clip_low)
        return -weight * advantages[i][t] * log_probs[i][t]

    return per_token(mask, loss)


def reinforce(log_probs, old, advantages, mask, stopped=None) -> Matrix:
    return per_token(mask, lambda i, t: -advantages[i][t] * log_probs[i][t])


def dro(log_probs, old, advantages, mask, stopped=None, beta=1.0) -> Matrix:
    def loss(i: int, t: int) -> float:
        return -advantages[i][t] * log_probs[i][t] + beta / 2 * (log_probs[i][t] - old[i][t]) ** 2

    return per_token(mask, loss)


def sapo(log_probs, old, advantages, mask, stopped=None, tau_pos=1.0, tau_neg=1.05) -> Matrix:
    def loss(i: int, t: int) -> float:
        tau = tau_pos if advantages[i][t] > 0 else tau_neg
        x = tau * (ratio_of(log_probs[i][t], old[i][t]) - 1)
        return -advantages[i][t] * 4 / tau * (1 / (1 + math.exp(-x)))

    return per_token(mask, loss)


def dppo_tv(log_probs, old, advantages, mask, stopped=None, clip_low=0.15, clip_high=0.15, ratio_cap=None) -> Matrix:
    stopped = stopped or log_probs

    def loss(i: int, t: int) -> float:
        A, p, q = advantages[i][t], math.exp(stopped[i][t]), math.exp(old[i][t])
        divergence = abs(p - q)
        left = (A > 0 and p > q and divergence > clip_high) or (A <= 0 and p < q and divergence > clip_low)
        weight = min(ratio_of(stopped[i][t], old[i][t]), ratio_cap or math.inf)
        return 0.0 if left else -A * weight * log_probs[i][t]

    return per_token(mask, loss)


def dppo_kl(log_probs, old, advantages, mask, stopped=None, clip_low=0.05, clip_high=0.05, ratio_cap=None) -> Matrix:
    stopped = stopped or log_probs

    def loss(i: int, t: int) -> float:
        A, p, q = advantages[i][t], math.exp(stopped[i][t]), math.exp(old[i][t])
        kl = q * (old[i][t] - stopped[i][t]) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
        left = (A > 0 and p > q and kl > clip_high) or (A <= 0 and p < q and kl > clip_low)
        weight = min(ratio_of(stopped[i][t], old[i][t]), ratio_cap or math.inf)
        return 0.0 if left else -A * weight * log_probs[i][t]

    return per_token(mask, loss)


def clip_cov(log_probs, old, advantages, mask, stopped=None, selected=None, clip_low=0.2, clip_high=0.2) -> Matrix:
    losses = clipped(log_probs, old, advantages, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=None)
    return per_token(mask, lambda i, t: 0.0 if selected[i][t] else losses[i][t])


def kl_cov(log_probs, old, advantages, mask, stopped=None, selected=None, ppo_kl_coef=1.0) -> Matrix:
    def loss(i: int, t: int) -> float:
        x, y = log_probs[i][t], old[i][t]
        return -advantages[i][t] * ratio_of(x, y) + (ppo_kl_coef * abs(x - y) if selected[i][t] else 0.0)

    return per_token(mask, loss)


POLICY_LOSSES = {
    "vanilla": clipped,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "geo_mean": geo_mean,
    "cispo": cispo,
    "gpg": reinforce,
    "reinforce": reinforce,
    "dro": dro,
    "sapo": sapo,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}


# --- choices over the whole minibatch -----------------------------------------------------------------


def covariances(log_probs: Matrix, advantages: Matrix, mask: Matrix) -> dict[tuple[int, int], float]:
    tokens = [(i, t) for i, row in enumerate(mask) for t in written(row)]
    if not tokens:
        return {}
    mean_lp = mean([log_probs[i][t] for i, t in tokens])
    mean_a = mean([advantages[i][t] for i, t in tokens])
    return {(i, t): (log_probs[i][t] - mean_lp) * (advantages[i][t] - mean_a) for i, t in tokens}


def marked(mask: Matrix, picks: list[tuple[int, int]]) -> Matrix:
    return [[float((i, t) in picks) for t in range(len(row))] for i, row in enumerate(mask)]


def select_clip_cov(
    log_probs, old, advantages, mask, uniforms, clip_low=0.2, clip_high=0.2, ratio=2e-4, lower=1.0, upper=5.0
) -> Matrix:
    cov = covariances(log_probs, advantages, mask)
    candidates = []
    for (i, t), value in cov.items():
        A, r = advantages[i][t], ratio_of(log_probs[i][t], old[i][t])
        already = -A * hold(r, 1 - clip_low, 1 + clip_high) > -A * r
        if lower < value < upper and not already:
            candidates.append((i, t))
    wanted = min(max(int(ratio * len(cov)), 1), len(candidates))
    return marked(mask, sorted(candidates, key=lambda at: uniforms[at[0]][at[1]])[:wanted])


def select_kl_cov(log_probs, old, advantages, mask, uniforms, ratio=2e-4) -> Matrix:
    cov = covariances(log_probs, advantages, mask)
    order = sorted(cov, key=lambda at: (-cov[at], uniforms[at[0]][at[1]]))
    return marked(mask, order[: max(1, int(len(cov) * ratio))])


def top_entropy_mask(entropy: Matrix, mask: Matrix, quantile: float) -> Matrix:
    values = sorted(entropy[i][t] for i, row in enumerate(mask) for t in written(row))
    if not values:
        return [[0.0] * len(row) for row in mask]
    position = (1 - quantile) * (len(values) - 1)
    below, above = math.floor(position + 1e-9), math.ceil(position - 1e-9)
    threshold = values[below] + max(position - below, 0.0) * (values[above] - values[below])
    return per_token(mask, lambda i, t: float(entropy[i][t] >= threshold))


def off_policy_rows(log_probs, behaviour, advantages, mask, delta: float) -> Matrix:
    def keep(i: int, t: int) -> float:
        distance = mean([behaviour[i][k] - log_probs[i][k] for k in written(mask[i])])
        return 0.0 if advantages[i][t] < 0 and distance > delta else 1.0

    return per_token(mask, keep)


def clipped_value_loss(values, old, returns, mask, clip=0.5) -> Matrix:
    def loss(i: int, t: int) -> float:
        v, v_old, R = values[i][t], old[i][t], returns[i][t]
        moved = v if clip is None else v_old + hold(v - v_old, -clip, clip)
        return max((v - R) ** 2, (moved - R) ** 2) / 2

    return per_token(mask, loss)
