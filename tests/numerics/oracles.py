"""The papers, transcribed literally: plain Python floats, one loop per sum sign, no vector arithmetic.

Slow on purpose, and written without looking at how ``cohort.algorithms`` does it.
"""

import math

Matrix = list[list[float]]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def sample_std(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


# --- KL and aggregation ------------------------------------------------------------------------


def kl(log_prob: float, ref_log_prob: float, kind: str) -> float:
    x, y = log_prob, ref_log_prob
    match kind.removesuffix("+"):
        case "kl" | "k1":
            return x - y
        case "abs":
            return abs(x - y)
        case "mse" | "k2":
            return (x - y) ** 2 / 2
        case "low_var_kl" | "k3":
            d = min(max(y - x, -20.0), 20.0)
            return min(max(math.exp(d) - d - 1, -10.0), 10.0)
    raise KeyError(kind)


def aggregate(per_token: Matrix, mask: Matrix, mode: str, horizon: float) -> float:
    rows = [[x for x, m in zip(xs, ms, strict=True) if m] for xs, ms in zip(per_token, mask, strict=True)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    match mode:
        case "token-mean":
            return mean([x for row in rows for x in row])
        case "token-sum":
            return math.fsum(x for row in rows for x in row)
        case "seq-mean-token-sum":
            return mean([math.fsum(row) for row in rows])
        case "seq-mean-token-mean":
            return mean([mean(row) for row in rows])
        case "seq-mean-token-sum-norm":
            return mean([math.fsum(row) for row in rows]) / horizon
    raise KeyError(mode)


# --- shaping and mismatch -----------------------------------------------------------------------


def place(scores: list[float], mask: Matrix) -> Matrix:
    result = []
    for score, row in zip(scores, mask, strict=True):
        written = [t for t, m in enumerate(row) if m]
        result.append([score if written and t == written[-1] else 0.0 for t in range(len(row))])
    return result


def kl_in_reward(
    scores: Matrix, log_probs: Matrix, ref_log_probs: Matrix, mask: Matrix, coef: float, kind: str
) -> tuple[Matrix, list[float]]:
    rewards, per_row = [], []
    for i, row in enumerate(mask):
        kls = [kl(log_probs[i][t], ref_log_probs[i][t], kind) if m else 0.0 for t, m in enumerate(row)]
        rewards.append([scores[i][t] - coef * kls[t] for t in range(len(row))])
        per_row.append(math.fsum(kls) / sum(row) if sum(row) else 0.0)
    return rewards, per_row


def mismatch(log_probs: Matrix, rollout_log_probs: Matrix, mask: Matrix) -> dict[str, float]:
    trainer = [[x for x, m in zip(xs, ms, strict=True) if m] for xs, ms in zip(log_probs, mask, strict=True)]
    sampler = [[x for x, m in zip(xs, ms, strict=True) if m] for xs, ms in zip(rollout_log_probs, mask, strict=True)]
    rows = [(a, b) for a, b in zip(trainer, sampler, strict=True) if a]
    tokens = [(x, y) for a, b in rows for x, y in zip(a, b, strict=True)]
    p = [math.exp(x) for x, _ in tokens]
    q = [math.exp(y) for _, y in tokens]
    covariance = math.fsum((x - mean(p)) * (y - mean(q)) for x, y in zip(p, q, strict=True))
    spread = math.sqrt(math.fsum((x - mean(p)) ** 2 for x in p) * math.fsum((y - mean(q)) ** 2 for y in q))
    difference = [mean(b) - mean(a) for a, b in rows]
    return {
        "training/rollout_probs_diff_mean": mean([abs(x - y) for x, y in zip(p, q, strict=True)]),
        "training/rollout_probs_diff_max": max(abs(x - y) for x, y in zip(p, q, strict=True)),
        "training/rollout_probs_diff_std": sample_std([abs(x - y) for x, y in zip(p, q, strict=True)]),
        "training/rollout_actor_probs_pearson_corr": covariance / spread if spread else math.nan,
        "rollout_corr/training_ppl": mean([math.exp(-mean(a)) for a, _ in rows]),
        "rollout_corr/training_log_ppl": mean([-mean(a) for a, _ in rows]),
        "rollout_corr/rollout_ppl": mean([math.exp(-mean(b)) for _, b in rows]),
        "rollout_corr/rollout_log_ppl": mean([-mean(b) for _, b in rows]),
        "rollout_corr/kl": mean([y - x for x, y in tokens]),
        "rollout_corr/k3_kl": mean([math.exp(x - y) - (x - y) - 1 for x, y in tokens]),
        "rollout_corr/log_ppl_diff": mean(difference),
        "rollout_corr/log_ppl_abs_diff": mean([abs(d) for d in difference]),
        "rollout_corr/log_ppl_diff_max": max(difference),
        "rollout_corr/log_ppl_diff_min": min(difference),
        "rollout_corr/ppl_ratio": mean([math.exp(d) for d in difference]),
        "rollout_corr/chi2_token": mean([math.exp(2 * (x - y)) for x, y in tokens]) - 1,
        "rollout_corr/chi2_seq": mean([math.exp(2 * (math.fsum(a) - math.fsum(b))) for a, b in rows]) - 1,
    }
