"""What stops a stage or skips an update before damage is done."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rl.errors import Stopped

FEWEST = 10  # gradient norms that are known before one is a spike
WINDOW = 100
WIDEST = 20  # of the mean gap that is allowed, at one token


@dataclass(frozen=True)
class Bounds:
    """What a healthy policy keeps to; 0 is no bound. A policy out of bounds for ``patience`` steps
    in a row has collapsed, and of those steps no checkpoint is made.

    ``entropy`` in nats a token, ``length`` in tokens of the policy an episode, ``kl`` by k3 of one
    step. ``kl_skip``: an update that moved so far is the step's last, and not applied.
    ``norm_skip``: an update whose gradient norm is so many times the median of the last hundred is
    not applied, unless as many as ``patience`` before it were not: large is what is usual now, and
    the norm is clipped anyway. ``sampler_gap``: the mean difference in nats, of log-probabilities
    that were sampled here from the trainer's, which no update is made beyond; one token may differ
    by 20 times that.
    """

    entropy_low: float = 0.001
    entropy_high: float = 0.0
    length_low: float = 1.0
    length_high: float = 0.0
    kl_high: float = 1.0
    patience: int = 3
    kl_skip: float = 0.5
    norm_skip: float = 30.0
    sampler_gap: float = 0.05


@dataclass
class Guard:
    """Watches a stage. Its state goes into the checkpoints."""

    bounds: Bounds
    norms: dict[str, list[float]] = field(default_factory=dict)
    spikes: dict[str, int] = field(default_factory=dict)  # in a row
    strikes: int = 0

    def spike(self, norm: float, name: str) -> bool:
        """Reports whether the gradient norm of a learner is a spike, and remembers it where it is
        none.
        """
        if not math.isfinite(norm):
            return True
        known = self.norms.get(name, [])
        median = sorted(known)[len(known) // 2] if known else 0.0
        limit = self.bounds.norm_skip
        if limit > 0 and len(known) >= FEWEST and norm > limit * median > 0:
            row = self.spikes.get(name, 0) + 1
            self.spikes[name] = row
            if row <= max(self.bounds.patience, 1):
                return True
            known = []
        self.spikes[name] = 0
        self.norms[name] = [*known, norm][-WINDOW:]
        return False

    def check_loss(self, loss: float, step: int, what: str) -> None:
        """Raises Stopped where a loss is not finite: nothing was applied of it."""
        if not math.isfinite(loss):
            raise Stopped(
                f"the {what} loss is {loss} in step {step}",
                "lower the learning rate, or look at the trajectories of that step; "
                "the last checkpoint is from before it",
            )

    def check_gap(self, mean: float, most: float, step: int) -> None:
        """Raises Stopped where the sampler and the trainer do not say the same of sampled tokens:
        ``mean`` and ``most`` of the differences of log-probabilities, in nats.
        """
        bound = self.bounds.sampler_gap
        if bound <= 0 or (mean <= bound and most <= WIDEST * bound):
            return
        raise Stopped(
            f"the sampler's log-probabilities in step {step} are {mean:.3g} nats a token from the "
            f"trainer's, at one token {most:.3g}, and may be {bound:g} and {WIDEST * bound:g}: "
            "nothing was updated",
            'set sampling.engine to "transformers", take the trajectories of that step away and '
            "start again; or widen bounds.sampler_gap",
        )

    def check(self, metrics: dict[str, Any], step: int) -> None:
        """Raises Stopped where the policy has collapsed."""
        said = self.out_of_bounds(metrics)
        self.strikes = self.strikes + 1 if said else 0
        if self.strikes >= max(self.bounds.patience, 1):
            raise Stopped(
                f"the policy has collapsed by step {step}: {said}",
                "the last good checkpoint is kept; lower the learning rate or widen the bounds",
            )

    def out_of_bounds(self, metrics: dict[str, Any]) -> str:
        """Returns which bound the metrics of a step break, empty where none is."""
        b = self.bounds
        for name, low, high in (
            ("entropy", b.entropy_low, b.entropy_high),
            ("length", b.length_low, b.length_high),
            ("kl_k3", 0.0, b.kl_high),
        ):
            value = metrics.get(name)
            if value is None:
                continue
            if not math.isfinite(value):
                return f"{name} is {value}"
            if low > 0 and value < low:
                return f"{name} is {value:.4g}, below {low:g}"
            if high > 0 and value > high:
                return f"{name} is {value:.4g}, above {high:g}"
        return ""

    def state(self) -> dict[str, Any]:
        """Returns what load takes, of JSON."""
        return {"norms": self.norms, "spikes": self.spikes, "strikes": self.strikes}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.norms, self.strikes = dict(state["norms"]), int(state["strikes"])
        self.spikes = dict(state.get("spikes") or {})  # of a checkpoint before there were any
