"""The maths of PPO over tokens: losses, advantages, and what is said of them.

Tensors are float and of one shape, any shape, unless a docstring says otherwise; masks are boolean:
True is a token that the policy wrote. What is masked out may hold anything, NaN included: it is
replaced before anything is computed of it, so that neither a value nor a gradient leaks.

Sources: PPO (1707.06347), dual clip (1912.09729), asymmetric clip and token-mean (DAPO,
2503.14476), GAE (1506.02438), lambda by length (VAPO, 2504.05118), critic's lambda 1 (VC-PPO,
2503.01491), leave-one-out per turn (Dr.Kernel, 2602.05885), KL estimators (Schulman 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Adds a tensor over all processes; the identity in one process.
Reduce = Callable[[Tensor], Tensor]

# A log-ratio beyond this is cut: exp(20) is 5e8, far past every clip, and finite in float32.
LOG_RATIO_LIMIT = 20.0
# Below this standard deviation there is nothing to whiten by.
LEAST_DEVIATION = 1e-8


@dataclass(frozen=True)
class Clip:
    """Bounds of the policy's ratio: ``1 - low`` to ``1 + high``, and ``dual`` times a negative
    advantage at most.
    """

    low: float = 0.2
    high: float = 0.28
    dual: float = 3.0


def alone(x: Tensor) -> Tensor:
    """The sum over one process."""
    return x


def keep(x: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """Returns x where mask is True and ``fill`` elsewhere; no gradient flows elsewhere."""
    return torch.where(mask, x, torch.full_like(x, fill))


def masked_mean(x: Tensor, mask: Tensor, tokens: float | None = None) -> Tensor:
    """Returns the sum of x under the mask, divided by ``tokens`` or the mask's own count; 0 of
    nothing.
    """
    count = float(mask.sum()) if tokens is None else tokens
    return keep(x, mask).sum() / max(count, 1.0)


def log_ratio(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Returns ``new - old`` of log-probabilities, cut at LOG_RATIO_LIMIT; 0 where masked."""
    difference = keep(new, mask) - keep(old, mask)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def importance_weights(trainer: Tensor, sampler: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Returns the weight of each token for being sampled by another engine: the trainer's
    probability over the sampler's, at most ``cap``; 1 where masked. No gradient.
    """
    return log_ratio(trainer, sampler, mask).exp().clamp(max=cap).detach()


def impossible(old: Tensor, advantages: Tensor, mask: Tensor, least: float) -> Tensor:
    """Returns where a token of probability below ``least`` has a negative advantage: pushing it
    down further only makes the gradient wild.
    """
    unlikely = keep(old, mask) < math.log(least) if least > 0 else torch.zeros_like(mask)
    return unlikely & (keep(advantages, mask) < 0) & mask


def policy_loss(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip: Clip,
    tokens: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns PPO's clipped loss, a scalar: the sum over the mask divided by ``tokens``, the number
    of the policy's tokens in the whole batch, of which this may be a part.

    ``weights`` are constants a token is weighed by (importance_weights).
    """
    advantage = keep(advantages, mask)
    ratio = log_ratio(new, old, mask).exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip.low, 1 + clip.high)
    loss = torch.maximum(plain, clipped)
    bounded = torch.minimum(loss, -advantage * clip.dual)
    loss = torch.where(advantage < 0, bounded, loss)
    if weights is not None:
        loss = loss * keep(weights, mask, 1.0)
    return masked_mean(loss, mask, tokens)


def value_loss(
    values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float, tokens: float
) -> Tensor:
    """Returns half the squared error of values, a scalar: the larger of the plain one and that of
    values held within ``clip`` of the old ones; ``clip`` 0 holds nothing.
    """
    value, before, target = keep(values, mask), keep(old, mask), keep(returns, mask)
    error = (value - target).square()
    if clip > 0:
        held = before + (value - before).clamp(-clip, clip)
        error = torch.maximum(error, (held - target).square())
    return 0.5 * masked_mean(error, mask, tokens)


def entropy_of(logs: Tensor) -> Tensor:
    """Returns the entropy in nats of log-probabilities over the last dimension."""
    return -(logs.exp() * logs).sum(dim=-1)


def kl_k1(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Returns for each token of ``old``'s the estimate old - new of KL(old, new): unbiased, of any
    sign.
    """
    return -log_ratio(new, old, mask)


def kl_k3(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Returns for each token of ``old``'s the estimate r - 1 - log r of KL(old, new), r being new
    over old: unbiased, never negative.
    """
    difference = log_ratio(new, old, mask)
    return torch.expm1(difference) - difference


def policy_lambda(length: int, alpha: float) -> float:
    """Returns VAPO's lambda of an episode of ``length`` tokens of the policy: 1 - 1/(alpha l), and
    0 where that is negative.
    """
    return max(0.0, 1.0 - 1.0 / (alpha * length)) if length > 0 else 0.0


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, last: float = 0.0
) -> Tensor:
    """Returns the generalised advantages of one episode, float64.

    Tensors are 1-D: the tokens of all its samples in the order of calls. Tokens of the environment
    are passed over as if they were not there: their advantage is 0 and no other changes. ``values``
    are of the state before each token; ``last`` is that after the last one, 0 where the episode
    ended by itself.
    """
    out = torch.zeros(rewards.shape, dtype=torch.float64)
    where = mask.nonzero().flatten()
    reward = rewards.double()[where].tolist()
    value = values.double()[where].tolist()
    found = [0.0] * len(reward)
    after, advantage = last, 0.0
    for t in range(len(reward) - 1, -1, -1):
        advantage = reward[t] + gamma * after - value[t] + gamma * lam * advantage
        found[t], after = advantage, value[t]
    out[where] = torch.tensor(found, dtype=torch.float64)
    return out


def leave_one_out(
    returns: Sequence[float], groups: Sequence[Hashable], minus: Sequence[Hashable] | None = None
) -> list[float]:
    """Returns each return less the mean of the others of its group; 0 where there is none.

    For TRLOO a group is a task and a turn. ``minus``, where given, is the episode of each: others
    are those of other episodes.
    """
    owner = list(minus) if minus is not None else list(range(len(returns)))
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    out = []
    for i, group in enumerate(groups):
        others = [returns[j] for j in members[group] if owner[j] != owner[i]]
        out.append(returns[i] - math.fsum(others) / len(others) if others else 0.0)
    return out


def moments(x: Tensor, mask: Tensor, reduce: Reduce = alone) -> tuple[float, float, float]:
    """Returns count, mean and variance (of the population) under the mask, over all processes."""
    x = keep(x.double(), mask)
    count, total = reduce(torch.stack([mask.sum().double(), x.sum()])).tolist()
    if count == 0:
        return 0.0, 0.0, 0.0
    mean = total / count
    squares = reduce(keep((x - mean).square(), mask).sum()).item()
    return count, mean, squares / count


def whiten(x: Tensor, mask: Tensor, reduce: Reduce = alone) -> Tensor:
    """Returns x with mean 0 and variance 1 under the mask over all processes, 0 where masked. What
    does not vary becomes 0.
    """
    _, mean, variance = moments(x, mask, reduce)
    deviation = math.sqrt(variance)
    if deviation < LEAST_DEVIATION:
        return torch.zeros_like(x)
    return keep((x.double() - mean) / deviation, mask).to(x.dtype)


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce = alone
) -> float:
    """Returns 1 - var(returns - values) / var(returns) under the mask; 0 where returns are all the
    same.
    """
    target = keep(returns.double(), mask)
    _, _, variance = moments(target, mask, reduce)
    _, _, unexplained = moments(target - keep(values.double(), mask), mask, reduce)
    return 1.0 - unexplained / variance if variance > LEAST_DEVIATION**2 else 0.0


def policy_metrics(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip: Clip
) -> dict[str, float]:
    """Returns what one update did to the policy, over the tokens of the mask: approximate KL, the
    shares that a clip bound, and the ratio.
    """
    kept = mask.flatten()
    if not bool(kept.any()):
        return {}
    new, old, advantage = (x.flatten()[kept].double() for x in (new, old, advantages))
    every = torch.ones_like(advantage, dtype=torch.bool)
    ratio = log_ratio(new, old, every).exp()
    low = (advantage < 0) & (ratio < 1 - clip.low)
    high = (advantage > 0) & (ratio > 1 + clip.high)
    dual = (advantage < 0) & (ratio > clip.dual)
    return {
        "kl_k1": float(kl_k1(new, old, every).mean()),
        "kl_k3": float(kl_k3(new, old, every).mean()),
        "clip_low": float(low.double().mean()),
        "clip_high": float(high.double().mean()),
        "clip_dual": float(dual.double().mean()),
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "ratio_p99": quantile(ratio, 0.99),
    }


def quantile(x: Tensor, q: float) -> float:
    """Returns the q-quantile of a 1-D tensor of any length, between neighbours; NaN of nothing."""
    if not x.numel():
        return math.nan
    ordered = x.double().sort().values
    at = q * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (at - below) * (ordered[above] - ordered[below]))
