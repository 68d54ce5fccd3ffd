"""The papers' advantages, transcribed literally: plain Python floats, one loop per sum sign.

Each takes lists and returns ``(advantages, returns)``. Where the papers are silent (groups of one, empty means), the
rule of the house is written out.
"""

import math
from collections.abc import Sequence

from tests.numerics.oracles import Matrix, mean, sample_std

Pair = tuple[Matrix, Matrix]


def spread_over(values: list[float], mask: Matrix) -> Pair:
    advantages = [[value if m else 0.0 for m in row] for value, row in zip(values, mask, strict=True)]
    return advantages, advantages


def siblings_of(i: int, group: list[int]) -> list[int]:
    return [j for j in range(len(group)) if group[j] == group[i]]


def totals(rewards: Matrix) -> list[float]:
    return [math.fsum(row) for row in rewards]


def centred(scores: list[float], group: list[int]) -> list[float]:
    result = []
    for i, score in enumerate(scores):
        others = [scores[j] for j in siblings_of(i, group)]
        result.append(0.0 if max(others) == min(others) else score - mean(others))
    return result


def whitened(x: Matrix, mask: Matrix) -> Matrix:
    inside = [x[i][t] for i, row in enumerate(mask) for t, m in enumerate(row) if m]
    if len(inside) < 2:
        return [[0.0 for _ in row] for row in mask]
    middle, variance = mean(inside), sample_std(inside) ** 2
    return [
        [(x[i][t] - middle) / math.sqrt(variance + 1e-8) if m else 0.0 for t, m in enumerate(row)]
        for i, row in enumerate(mask)
    ]


def whitened_with_siblings(values: list[float], mask: Matrix, group: list[int]) -> Pair:
    compared = [[m if len(siblings_of(i, group)) > 1 else 0.0 for m in row] for i, row in enumerate(mask)]
    advantages = whitened([[value] * len(row) for value, row in zip(values, mask, strict=True)], compared)
    return advantages, advantages


# --- relative to the group ---------------------------------------------------------------------------


def grpo(rewards: Matrix, mask: Matrix, group: list[int], scale: str = "group", epsilon: float = 1e-6) -> Pair:
    scores = totals(rewards)
    values = []
    for i, deviation in enumerate(centred(scores, group)):
        std = {
            "group": sample_std([scores[j] for j in siblings_of(i, group)]) + epsilon,
            "batch": sample_std(scores) + epsilon,
            "none": 1.0,
        }
        values.append(deviation / std[scale])
    return spread_over(values, mask)


def dr_grpo(rewards: Matrix, mask: Matrix, group: list[int]) -> Pair:
    return grpo(rewards, mask, group, scale="none")


def rloo(rewards: Matrix, mask: Matrix, group: list[int], scale: str = "none", epsilon: float = 1e-6) -> Pair:
    scores = totals(rewards)
    values = []
    for i, score in enumerate(scores):
        siblings = siblings_of(i, group)
        others = [scores[j] for j in siblings if j != i]
        value = score - mean(others) if others else 0.0
        if scale == "group":
            value /= sample_std([scores[j] for j in siblings]) + epsilon
        if scale == "batch":
            value /= sample_std(scores) + epsilon
        values.append(value)
    return spread_over(values, mask)


def opo(rewards: Matrix, mask: Matrix, group: list[int]) -> Pair:
    scores, lengths = totals(rewards), [sum(row) for row in mask]
    values = []
    for i, score in enumerate(scores):
        siblings = siblings_of(i, group)
        tokens = math.fsum(lengths[j] for j in siblings)
        weighted = math.fsum(lengths[j] * scores[j] for j in siblings)
        values.append(score - weighted / tokens if tokens and len(siblings) > 1 else 0.0)
    return spread_over(values, mask)


def gpg(rewards: Matrix, mask: Matrix, group: list[int], count: str = "scores", f_norm: float = 1.0) -> Pair:
    scores = totals(rewards)
    deviations = centred(scores, group)
    speaks = sum(1 for x in (scores if count == "scores" else deviations) if x != 0)
    alpha = len(scores) / max(speaks, 1)
    return spread_over([alpha * deviation / f_norm for deviation in deviations], mask)


def max_rl(rewards: Matrix, mask: Matrix, group: list[int]) -> Pair:
    scores = totals(rewards)
    values = []
    for i, deviation in enumerate(centred(scores, group)):
        middle = mean([scores[j] for j in siblings_of(i, group)])
        values.append(deviation / middle if middle > 0 else 0.0)
    return spread_over(values, mask)


def grpo_passk(rewards: Matrix, mask: Matrix, group: list[int], scale: str = "group", epsilon: float = 1e-6) -> Pair:
    scores = totals(rewards)
    values = []
    for i in range(len(scores)):
        siblings = siblings_of(i, group)
        others = [scores[j] for j in siblings if j != i]
        # The best of the group with answer i, less the best without it.
        value = max(scores[j] for j in siblings) - max(others) if others else 0.0
        std = {"group": sample_std([scores[j] for j in siblings]), "batch": sample_std(scores)}
        values.append(value / (std[scale] + epsilon) if scale in std else value)
    return spread_over(values, mask)


def gdpo(
    rewards: Matrix,
    mask: Matrix,
    group: list[int],
    parts: Matrix,
    weights: Sequence[float] | None = None,
    whiten: str = "rows",
    epsilon: float = 1e-6,
) -> Pair:
    values = [0.0] * len(mask)
    for k in range(len(parts[0])):
        for i, row in enumerate(parts):
            if math.isnan(row[k]):
                continue
            apply = [parts[j][k] for j in siblings_of(i, group) if not math.isnan(parts[j][k])]
            z = (row[k] - mean(apply)) / (sample_std(apply) + epsilon)
            values[i] += (1.0 if weights is None else weights[k]) * z
    if whiten == "none":
        return spread_over(values, mask)
    if whiten == "tokens":
        return whitened_with_siblings(values, mask, group)
    compared = [value for i, value in enumerate(values) if len(siblings_of(i, group)) > 1]
    if not compared:
        return spread_over([0.0] * len(mask), mask)
    middle, std = mean(compared), sample_std(compared)
    lonely = [len(siblings_of(i, group)) == 1 for i in range(len(mask))]
    return spread_over(
        [0.0 if one else (v - middle) / (std + epsilon) for v, one in zip(values, lonely, strict=True)], mask
    )


# --- token by token ------------------------------------------------------------------------------------


def written(row: list[float]) -> list[int]:
    return [t for t, m in enumerate(row) if m]


def gae(
    rewards: Matrix,
    mask: Matrix,
    group: list[int],
    values: Matrix,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
) -> Pair:
    """Equation 16: sum_l (gamma lam)^l delta_{t+l}, over the tokens that the model wrote."""
    advantages = [[0.0 for _ in row] for row in mask]
    returns = [[0.0 for _ in row] for row in mask]
    for i, row in enumerate(mask):
        steps = written(row)
        deltas = []
        for k, t in enumerate(steps):
            after = values[i][steps[k + 1]] if k + 1 < len(steps) else 0.0
            deltas.append(rewards[i][t] + gamma * after - values[i][t])
        for k, t in enumerate(steps):
            terms = [(gamma * lam) ** later * deltas[k + later] for later in range(len(steps) - k)]
            advantages[i][t] = math.fsum(terms)
            returns[i][t] = advantages[i][t] + values[i][t]
    return (whitened(advantages, mask) if whiten else advantages), returns


def to_go(rewards: Matrix, mask: Matrix, gamma: float) -> Matrix:
    result = [[0.0 for _ in row] for row in mask]
    for i, row in enumerate(mask):
        steps = written(row)
        for k, t in enumerate(steps):
            result[i][t] = math.fsum(gamma**later * rewards[i][s] for later, s in enumerate(steps[k:]))
    return result


def reinforce_plus_plus(
    rewards: Matrix, mask: Matrix, group: list[int], gamma: float = 1.0, whiten: bool = True
) -> Pair:
    returns = to_go(rewards, mask, gamma)
    return (whitened(returns, mask) if whiten else returns), returns


def reinforce_plus_plus_baseline(
    rewards: Matrix, mask: Matrix, group: list[int], scale: str = "tokens", epsilon: float = 1e-6
) -> Pair:
    values = centred(totals(rewards), group)
    if scale == "tokens":
        return whitened_with_siblings(values, mask, group)
    if scale == "none":
        return spread_over(values, mask)
    compared = [value for i, value in enumerate(values) if len(siblings_of(i, group)) > 1]
    result = []
    for i, value in enumerate(values):
        rows = [values[j] for j in siblings_of(i, group)] if scale == "group" else compared
        result.append(value / (sample_std(rows) + epsilon))
    return spread_over(result, mask)


def remax(rewards: Matrix, mask: Matrix, group: list[int], baseline: list[float]) -> Pair:
    returns = to_go(rewards, mask, 1.0)
    advantages = [[returns[i][t] - baseline[i] if m else 0.0 for t, m in enumerate(row)] for i, row in enumerate(mask)]
    return advantages, returns


def optimal_token_baseline(
    rewards: Matrix,
    mask: Matrix,
    group: list[int],
    old_log_probs: Matrix,
    sum_pi_squared: Matrix,
    rollout_is_weights: Matrix | None = None,
    handle_zero_tail: bool = True,
) -> Pair:
    returns = to_go(rewards, mask, 1.0)
    energy = [[0.0 for _ in row] for row in mask]
    for i, row in enumerate(mask):
        so_far = 0.0
        for t in written(row):
            w = 1 - 2 * math.exp(old_log_probs[i][t]) + sum_pi_squared[i][t]
            so_far += w if rollout_is_weights is None else w * rollout_is_weights[i][t] ** 2
            energy[i][t] = so_far
    ends = [max(written(row), default=-1) + 1 for row in mask]
    advantages = [[0.0 for _ in row] for row in mask]
    for i, row in enumerate(mask):
        siblings = siblings_of(i, group)
        for t in written(row):
            if len(siblings) == 1:
                continue
            above = math.fsum(returns[j][t] * energy[j][t] for j in siblings if mask[j][t])
            below = math.fsum(energy[j][t] for j in siblings if mask[j][t])
            alone = t >= max(ends[j] for j in siblings if j != i)
            baseline = 0.0 if handle_zero_tail and alone else above / (below + 1e-8)
            advantages[i][t] = returns[i][t] - baseline
    return advantages, returns


def tir_optimal_token_baseline(
    rewards: Matrix,
    mask: Matrix,
    group: list[int],
    old_log_probs: Matrix,
    sum_pi_squared: Matrix,
    rollout_is_weights: Matrix | None = None,
    handle_zero_tail: bool = True,
) -> Pair:
    """Take the other columns out, compute, put the results back."""
    width = len(mask[0])

    def packed(x: Matrix) -> Matrix:
        return [[x[i][t] for t in written(row)] + [0.0] * (width - len(written(row))) for i, row in enumerate(mask)]

    weights = None if rollout_is_weights is None else packed(rollout_is_weights)
    dense, _ = optimal_token_baseline(
        packed(rewards), packed(mask), group, packed(old_log_probs), packed(sum_pi_squared), weights, handle_zero_tail
    )
    advantages = [[0.0 for _ in row] for row in mask]
    for i, row in enumerate(mask):
        for k, t in enumerate(written(row)):
            advantages[i][t] = dense[i][k]
    return advantages, to_go(rewards, mask, 1.0)


ADVANTAGES = {
    "gae": gae,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "grpo_passk": grpo_passk,
    "gdpo": gdpo,
    "rloo": rloo,
    "opo": opo,
    "gpg": gpg,
    "max_rl": max_rl,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "optimal_token_baseline": optimal_token_baseline,
    "tir_optimal_token_baseline": tir_optimal_token_baseline,
}
