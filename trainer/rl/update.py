"""One step of PPO on episodes: what the old policy said, then updates of critic and policy."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rl import estimate, losses
from rl.batch import Batch, Row, number, rows_of
from rl.estimate import Estimator
from rl.guards import Guard
from rl.learner import Learner
from rl.trajectories import Episode
from rl.world import World


@dataclass(frozen=True)
class Ppo:
    """``epochs`` over a step's episodes, each in ``minibatches`` updates. ``importance_cap``: of
    the weights for another engine's sampling. ``least_probability``: below it a token with a
    negative advantage is masked. ``entropy`` and ``kl`` weigh a bonus and a penalty (k3, against
    the policy that the stage began with).
    """

    epochs: int = 1
    minibatches: int = 1
    clip: losses.Clip = field(default_factory=losses.Clip)
    value_clip: float = 0.5
    critic_updates: int = 2
    importance_cap: float = 2.0
    least_probability: float = 1e-4
    entropy: float = 0.0
    kl: float = 0.0


@dataclass
class Prepared:
    """A step's rows in this process, and what is known of their n policy tokens before an update:
    flat tensors [n] on the CPU, float32.
    """

    rows: list[Row]
    sampler: Tensor
    old: Tensor
    entropy: Tensor
    reference: Tensor
    values: Tensor
    returns: Tensor
    advantages: Tensor
    weights: Tensor
    mask: Tensor


def score(learner: Learner, rows: Sequence[Row], tokens: int) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and entropies [n] by an actor."""
    logs, entropies = torch.zeros(tokens), torch.zeros(tokens)
    for batch, got in learner.forward_all(rows):
        logs[batch.tokens], entropies[batch.tokens] = got
    return logs, entropies


def value(learner: Learner, rows: Sequence[Row], tokens: int) -> tuple[Tensor, Tensor]:
    """Returns the values before each token [n] and after each row [rows] by a critic."""
    values, ends = torch.zeros(tokens), torch.zeros(len(rows))
    where = {row.first: i for i, row in enumerate(rows)}
    for batch, got in learner.forward_all(rows):
        values[batch.tokens] = got[0]
        # A row is known by its first token's number; batches keep the order of their rows.
        firsts = [int(t) for t in batch.tokens if int(t) in where]
        ends[[where[t] for t in firsts]] = got[1]
    return values, ends


def prepare(
    episodes: Sequence[Episode],
    actor: Learner,
    critic: Learner | None,
    reference: Learner | None,
    estimator: Estimator,
    settings: Ppo,
) -> Prepared:
    """Returns what a step's updates need. All processes must call it."""
    rows = [r for i, e in enumerate(episodes) for r in rows_of(e, i)]
    n = number(rows)
    world = actor.world
    said = [x for r in rows for x, m in zip(r.sampler, r.mask, strict=True) if m]
    sampler = torch.tensor(said, dtype=torch.float32)
    old, entropy = score(actor, rows, n)
    against = score(reference, rows, n)[0] if reference is not None else old
    spans = estimate.spans_of(episodes, rows)
    values = torch.zeros(n)
    if critic is not None:
        values, ends = value(critic, rows, n)
        advantages, returns = estimate.by_gae(spans, values, ends, estimator)
    else:
        advantages, returns = estimate.by_leave_one_out(spans, n, estimator, world.gather)
    every = torch.ones(n, dtype=torch.bool)
    if estimator.whiten:
        advantages = losses.whiten(advantages, every, world.sum)
    weights = losses.importance_weights(old, sampler, every, settings.importance_cap)
    mask = ~losses.impossible(old, advantages, every, settings.least_probability)
    return Prepared(
        rows,
        sampler,
        old,
        entropy,
        against,
        values,
        returns.float(),
        advantages.float(),
        weights,
        mask,
    )


def gap_of(p: Prepared, world: World) -> tuple[float, float]:
    """Returns mean and maximum of the differences of the sampler's log-probabilities from the
    trainer's, in nats, over the tokens of all processes, which must all call it. Where the
    sampler's is no number the difference is infinite. Where the trainer's is none, its loss will
    be none either, which says more.
    """
    old, sampler = torch.cat(world.gather(torch.stack([p.old, p.sampler])), dim=1).double()
    there = old.isfinite()
    gap = (old - sampler)[there].abs().nan_to_num(math.inf, posinf=math.inf)
    return (float(gap.mean()), float(gap.max())) if len(gap) else (0.0, 0.0)


def minibatches(rows: Sequence[Row], n: int, rng: random.Random) -> list[list[Row]]:
    """Returns rows in n lots of like numbers; rows of one episode stay together. Each process has
    n, be they empty.
    """
    episodes = sorted({r.episode for r in rows})
    rng.shuffle(episodes)
    lot = {e: i % n for i, e in enumerate(episodes)}
    return [[r for r in rows if lot[r.episode] == i] for i in range(n)]


def update_policy(
    p: Prepared, actor: Learner, settings: Ppo, guard: Guard, step: int, rng: random.Random
) -> dict[str, Any]:
    """Updates the policy and returns the metrics of that. All processes must call it."""
    world, device = actor.world, actor.world.device
    new = p.old.clone()
    loss_sum, norms, skipped = 0.0, [], 0
    for lot in (
        x for _ in range(settings.epochs) for x in minibatches(p.rows, settings.minibatches, rng)
    ):
        count = torch.tensor(float(sum(r.count for r in lot)), dtype=torch.float64)
        tokens = float(world.sum(count))
        seen: list[Tensor] = []

        def loss_of(batch: Batch, got: tuple[Tensor, Tensor], seen=seen, tokens=tokens) -> Tensor:  # type: ignore[no-untyped-def]
            at, (logs, entropies) = batch.tokens, got
            seen.append(at)
            new[at] = logs.detach().cpu()
            old, advantages, weights, against, mask = (
                x[at].to(device) for x in (p.old, p.advantages, p.weights, p.reference, p.mask)
            )
            loss = losses.policy_loss(logs, old, advantages, mask, settings.clip, tokens, weights)
            every = torch.ones_like(mask)
            if settings.entropy:
                loss = loss - settings.entropy * losses.masked_mean(entropies, every, tokens)
            if settings.kl:
                # Of KL(policy, reference): the tokens are the policy's.
                moved = losses.kl_k3(against, logs, every)
                loss = loss + settings.kl * losses.masked_mean(moved, every, tokens)
            return loss

        share = actor.accumulate(lot, loss_of)
        # Rows may have gone through twice, where memory was short.
        at = torch.cat(seen).unique() if seen else torch.zeros(0, dtype=torch.long)
        moved = losses.kl_k3(new[at].double(), p.old[at].double(), torch.ones(len(at)) > 0).sum()
        both = torch.stack([torch.tensor(share, dtype=torch.float64), moved])
        loss, kl = world.sum(both).tolist()
        guard.check_loss(loss, step, "policy")
        loss_sum += loss
        if 0 < guard.bounds.kl_skip < kl / max(tokens, 1.0):
            skipped += 1
            break
        norm, applied = actor.apply(guard)
        norms.append(norm)
        skipped += not applied
    return {
        "policy_loss": loss_sum,
        "skipped": skipped,
        "gradient_norm": max(norms, default=0.0),
    } | (_of_tokens(p, new, actor, settings.clip))


def _of_tokens(p: Prepared, new: Tensor, actor: Learner, clip: losses.Clip) -> dict[str, Any]:
    """Returns metrics over the tokens of all processes."""
    mine = torch.stack([new, p.old, p.advantages, p.sampler, p.entropy, p.weights, p.mask.float()])
    world = actor.world
    new, old, advantages, sampler, entropy, weights, mask = torch.cat(world.gather(mine), dim=1)
    every = torch.ones_like(mask, dtype=torch.bool)
    if not len(mask):
        return {}
    gap = (old - sampler).abs()
    _, _, spread = losses.moments(advantages, every)
    return losses.policy_metrics(new, old, advantages, every, clip) | {
        "entropy": float(entropy.double().mean()),
        "masked_rate": 1.0 - float(mask.mean()),
        "sampler_gap_mean": float(gap.double().mean()),
        "sampler_gap_max": float(gap.max()),
        "sampler_kl": float(losses.kl_k3(old, sampler, every).double().mean()),
        "importance_mean": float(weights.double().mean()),
        "advantage_max": float(advantages.max()),
        "advantage_min": float(advantages.min()),
        "advantage_deviation": math.sqrt(spread),
        "tokens": len(mask),
    }


def update_critic(
    p: Prepared, critic: Learner, settings: Ppo, guard: Guard, step: int, rng: random.Random
) -> dict[str, Any]:
    """Fits the critic to the step's targets, ``critic_updates`` times for each update of the
    policy. All processes must call it.
    """
    world, device = critic.world, critic.world.device
    every = torch.ones(len(p.values), dtype=torch.bool)
    variance = losses.explained_variance(p.values, p.returns, every, world.sum)
    total, norms = 0.0, []
    for _ in range(settings.critic_updates):
        for lot in minibatches(p.rows, settings.minibatches, rng):
            count = torch.tensor(float(sum(r.count for r in lot)), dtype=torch.float64)
            tokens = float(world.sum(count))

            def loss_of(batch: Batch, got: tuple[Tensor, Tensor], tokens=tokens) -> Tensor:  # type: ignore[no-untyped-def]
                values, at = got[0], batch.tokens
                old, returns = p.values[at].to(device), p.returns[at].to(device)
                mask = torch.ones_like(values, dtype=torch.bool)
                return losses.value_loss(values, old, returns, mask, settings.value_clip, tokens)

            share = torch.tensor(critic.accumulate(lot, loss_of), dtype=torch.float64)
            loss = float(world.sum(share))
            guard.check_loss(loss, step, "value")
            norm, _ = critic.apply(guard)
            norms.append(norm)
            total += loss
    _, mean, spread = losses.moments(p.returns, every, world.sum)
    made = max(settings.critic_updates * settings.minibatches, 1)
    return {
        "value_loss": total / made,
        "explained_variance": variance,
        "return_mean": mean,
        "return_deviation": math.sqrt(spread),
        "value_mean": losses.moments(p.values, every, world.sum)[1],
        "critic_gradient_norm": max(norms, default=0.0),
    }
