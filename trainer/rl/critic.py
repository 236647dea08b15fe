"""Critic pretraining: values are fitted to GAE targets of collected trajectories, before any update
of the policy uses them.

    python -m rl.critic --config critic.json
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rl import checkpoint, estimate, losses, policy, saving, trajectories
from rl.batch import Batch, Row, number, rows_of
from rl.errors import BadInput
from rl.estimate import Estimator
from rl.guards import Bounds, Guard
from rl.learner import Learner
from rl.settings import Lora, Machine, Optimiser, Saving, require
from rl.stage import Stage
from rl.trajectories import Episode
from rl.update import value


@dataclass(frozen=True)
class Settings:
    """``policy`` gives the tokenizer, and the layers where ``critic`` names no folder. ``batch``
    counts episodes of an update, over all processes. ``held_out``: the share of episodes that are
    not trained on; explained variance is told of these.
    """

    policy: str
    out: str
    trajectories: list[str]
    critic: str = ""
    epochs: int = 1
    batch: int = 64
    held_out: float = 0.1
    seed: int = 0
    estimator: Estimator = field(default_factory=Estimator)
    lora: Lora = field(default_factory=Lora)
    optimiser: Optimiser = field(default_factory=lambda: Optimiser(lr=6e-6, warmup=10))
    machine: Machine = field(default_factory=Machine)
    saving: Saving = field(default_factory=lambda: Saving(every=50))
    bounds: Bounds = field(default_factory=lambda: Bounds(entropy_low=0.0, length_low=0.0))


def split(
    episodes: Sequence[Episode], share: float, seed: int
) -> tuple[list[Episode], list[Episode]]:
    """Returns episodes to train on, and those held out, which are of other tasks."""
    tasks = sorted({e.task for e in episodes})
    random.Random(seed).shuffle(tasks)
    out = set(tasks[: int(len(tasks) * share)])
    return [e for e in episodes if e.task not in out], [e for e in episodes if e.task in out]


def update(
    learner: Learner, episodes: Sequence[Episode], s: Settings, guard: Guard, step: int
) -> dict[str, Any]:
    """Fits values once to the targets of episodes and returns the metrics of that."""
    began = time.monotonic()
    world = learner.world
    mine = episodes[world.rank :: world.size]
    rows = [r for i, e in enumerate(mine) for r in rows_of(e, i)]
    n = number(rows)
    old, returns = targets(learner, mine, rows, n, s.estimator)
    tokens = float(world.sum(torch.tensor(float(n), dtype=torch.float64)))

    def loss_of(batch: Batch, got: tuple[Tensor, Tensor]) -> Tensor:
        values, aim = got[0], returns[batch.tokens].to(got[0].device)
        every = torch.ones_like(values, dtype=torch.bool)
        return losses.value_loss(values, values.detach(), aim, every, 0.0, tokens)

    share = torch.tensor(learner.accumulate(rows, loss_of), dtype=torch.float64)
    loss = float(world.sum(share))
    guard.check_loss(loss, step, "value")
    rate = learner.rate()
    norm, applied = learner.apply(guard)
    every = torch.ones(n, dtype=torch.bool)
    return {
        "value_loss": loss,
        "explained_variance": losses.explained_variance(old, returns, every, world.sum),
        "gradient_norm": norm,
        "skipped": 0 if applied else 1,
        "lr": rate,
        "tokens_per_second": tokens / max(time.monotonic() - began, 1e-9),
    }


def targets(
    learner: Learner, episodes: Sequence[Episode], rows: Sequence[Row], n: int, e: Estimator
) -> tuple[Tensor, Tensor]:
    """Returns the values that a critic gives now, and what GAE makes of rewards with them [n]."""
    values, ends = value(learner, rows, n)
    _, returns = estimate.by_gae(estimate.spans_of(episodes, rows), values, ends, e)
    return values, returns.float()


def explained(learner: Learner, episodes: Sequence[Episode], e: Estimator) -> float | None:
    """Returns the explained variance over episodes, None of none. All processes must call it."""
    if not episodes:
        return None
    world = learner.world
    mine = episodes[world.rank :: world.size]
    rows = [r for i, x in enumerate(mine) for r in rows_of(x, i)]
    n = number(rows)
    values, returns = targets(learner, mine, rows, n, e)
    every = torch.ones(n, dtype=torch.bool)
    return losses.explained_variance(values, returns, every, world.sum)


def run(settings: Settings, stage: Stage) -> dict[str, Any]:
    """Runs the stage and leaves the critic in ``out/critic``."""
    s = settings
    s.estimator.check()
    require(s.estimator.kind == "gae", "trloo needs no critic", "leave this stage out")
    require(s.epochs > 0 and s.batch > 0, "epochs and batch must be above 0")
    base = policy.resolve(s.policy, stage.out)
    tokenizer = policy.load_tokenizer(base)
    found, dropped, lost = estimate.usable(
        trajectories.read(s.trajectories, len(tokenizer)), s.estimator.truncated
    )
    if not found:
        raise BadInput("the trajectories hold no episode to train on", "collect more")
    train, held = split(found, s.held_out, s.seed)
    stage.tell(
        "start", stage="critic", episodes=len(train), held_out=len(held), dropped=dropped, lost=lost
    )
    at = checkpoint.latest(stage.out / saving.FOLDER, stage.note)
    own = policy.resolve(s.critic, stage.out) if s.critic else base
    model = policy.load_critic(at.folder / "critic" if at else own, s.lora, s.seed)
    policy.check_fit(model, tokenizer, own)
    plan = batches(train, s)
    learner = Learner("critic", policy.Critic(model), s.optimiser, s.machine, stage, len(plan))
    guard = Guard(s.bounds)
    saver = saving.Saver(stage, s.saving, [learner], tokenizer, guard)
    said: dict[str, Any] = {}
    for step in range(saver.resume(at), len(plan)):
        said = update(learner, [train[i] for i in plan[step]], s, guard, step + 1)
        stage.step(step + 1, len(plan), said)
        saver.after(step + 1, len(plan), {})
    variance = explained(learner, held, s.estimator)
    done = {"steps": len(plan), "metrics": said, "held_out_explained_variance": variance}
    return {**done, **saver.finish({"critic": "critic"})}


def batches(episodes: Sequence[Episode], s: Settings) -> list[list[int]]:
    """Returns the episodes of each update, in an order drawn by the seed."""
    rng, out = random.Random(s.seed), []
    for _ in range(s.epochs):
        order = list(range(len(episodes)))
        rng.shuffle(order)
        out += [order[i : i + s.batch] for i in range(0, len(order), s.batch)]
    return out


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
