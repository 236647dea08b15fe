"""Updates of a step, with an actor whose log-probabilities are written down."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl.batch import Row
from rl.guards import Bounds, Guard
from rl.losses import Clip
from rl.update import Ppo, Prepared, gap_of, update_policy


class Actor:
    """Says ``logs`` of the tokens, ``times`` over, as after a micro-batch that was too large."""

    def __init__(self, logs: torch.Tensor, times: int = 1) -> None:
        self.logs = logs
        self.times = times
        self.world = SimpleNamespace(device="cpu", sum=lambda x: x, gather=lambda x: [x])
        self.applied = 0

    def accumulate(self, rows: Sequence[Row], loss_of: Callable[..., torch.Tensor]) -> float:
        batch = SimpleNamespace(tokens=torch.arange(len(self.logs)))
        for _ in range(self.times):
            loss = loss_of(batch, (self.logs, torch.zeros_like(self.logs)))
        loss.backward()
        return float(loss.detach())

    def apply(self, guard: Guard) -> tuple[float, bool]:
        self.applied += 1
        return 1.0, True


def prepared(old: torch.Tensor, reference: torch.Tensor) -> Prepared:
    n = len(old)
    row = Row([5] * (n + 1), 1, [1] * n, old.tolist(), [0] * n)
    row.first = 0
    zeros = torch.zeros(n)
    ones = torch.ones(n)
    mask = torch.ones(n, dtype=torch.bool)
    return Prepared([row], old, old, zeros, reference, zeros, zeros, zeros, ones, mask)


def update(actor: Any, p: Prepared, settings: Ppo, bounds: Bounds) -> dict[str, Any]:
    return update_policy(p, actor, settings, Guard(bounds), 1, random.Random(0))


def test_the_penalty_is_of_the_policy_against_the_reference() -> None:
    # r = .005 / .5: r - 1 - log r is 3.615, and its gradient by the policy's log 1 - r.
    logs = torch.tensor([math.log(0.5)], requires_grad=True)
    p = prepared(logs.detach(), torch.tensor([math.log(0.005)]))
    said = update(Actor(logs), p, Ppo(minibatches=1, kl=1.0, clip=Clip()), Bounds(kl_skip=0))
    assert said["policy_loss"] == pytest.approx(0.01 - 1 + math.log(100), abs=1e-4)
    assert logs.grad is not None
    assert float(logs.grad) == pytest.approx(0.99, abs=1e-4)


@pytest.mark.parametrize(
    ("old", "sampler", "said"),
    [
        ([-1.0, -2.0], [-1.0, -2.5], (0.25, 0.5)),
        ([-1.0, -2.0], [-1.0, math.nan], (math.inf, math.inf)),
        ([-1.0, math.nan], [-1.5, math.nan], (0.5, 0.5)),  # which the loss will tell
        ([], [], (0.0, 0.0)),
    ],
)
def test_the_gap_of_a_sampler(
    old: list[float], sampler: list[float], said: tuple[float, float]
) -> None:
    p = prepared(torch.tensor(old), torch.tensor(old))
    p.sampler = torch.tensor(sampler)
    assert gap_of(p, Actor(p.old).world) == said


@pytest.mark.parametrize("times", [1, 2])
def test_what_went_through_twice_is_counted_once(times: int) -> None:
    logs = torch.full((4,), math.log(0.5), requires_grad=True)
    p = prepared(torch.full((4,), math.log(0.25)), torch.zeros(4))
    kl = 2 - 1 - math.log(2)  # a token
    for bound, applied in ((1.1 * kl, 1), (0.9 * kl, 0)):
        actor = Actor(logs, times)
        update(actor, p, Ppo(minibatches=1), Bounds(kl_skip=bound))
        assert actor.applied == applied
