"""From rewards and values to advantages and targets, over the policy's tokens of whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl import losses
from rl.batch import Row
from rl.settings import require
from rl.trajectories import Episode


@dataclass(frozen=True)
class Estimator:
    """``kind``: "gae" with a critic, or "trloo", leave-one-out per task and turn, without one.

    ``policy_lambda``: a number, or "length" for 1 - 1/(alpha l). ``truncated``, what becomes of an
    episode that a limit cut: "bootstrap" takes its reward, or the critic's value of what it left
    where the environment gave none; "drop" leaves it out; "keep" takes its reward, if any.
    """

    kind: str = "gae"
    gamma: float = 1.0
    critic_lambda: float = 1.0
    policy_lambda: float | str = "length"
    alpha: float = 0.05
    truncated: str = "bootstrap"
    whiten: bool = True

    def check(self) -> None:
        """Raises BadInput where a setting is none."""
        require(self.kind in ("gae", "trloo"), f"estimator.kind cannot be {self.kind}")
        known = ("bootstrap", "drop", "keep")
        require(self.truncated in known, f"estimator.truncated cannot be {self.truncated}")
        require(
            not (self.kind == "trloo" and self.truncated == "bootstrap"),
            "trloo has no critic whose value could stand for a reward",
            'set estimator.truncated to "drop" or "keep"',
        )
        lam = self.policy_lambda
        require(lam == "length" or isinstance(lam, float), f"policy_lambda cannot be {lam}")


def usable(episodes: Sequence[Episode], truncated: str) -> tuple[list[Episode], int, int]:
    """Returns the episodes to train on, how many were cut and are dropped, and how many met an
    infrastructure error.
    """
    kept: list[Episode] = []
    dropped = lost = 0
    for e in episodes:
        if e.cut:
            if e.tokens and (
                truncated == "bootstrap" or (truncated == "keep" and e.reward is not None)
            ):
                kept.append(e)
            else:
                dropped += 1
        elif e.reward is None or not e.tokens:
            lost += 1
        else:
            kept.append(e)
    return kept, dropped, lost


@dataclass
class Spans:
    """Where an episode's tokens lie in the batch, and the call of each."""

    episode: Episode
    begin: int
    calls: list[int]
    last_row: int


def spans_of(episodes: Sequence[Episode], rows: Sequence[Row]) -> list[Spans]:
    """Returns the spans of episodes, whose rows must follow each other."""
    out: list[Spans] = []
    for at, row in enumerate(rows):
        calls = [c for c, m in zip(row.calls, row.mask, strict=True) if m]
        if out and out[-1].episode is episodes[row.episode]:
            out[-1].calls += calls
            out[-1].last_row = at
        else:
            out.append(Spans(episodes[row.episode], row.first, calls, at))
    return out


def rewards_of(span: Spans) -> Tensor:
    """Returns the reward of each token, float64: the episode's, if any, is on its last one."""
    out = torch.zeros(len(span.calls), dtype=torch.float64)
    out[-1] = span.episode.reward or 0.0
    return out


def by_gae(
    spans: Sequence[Spans], values: Tensor, ends: Tensor, settings: Estimator
) -> tuple[Tensor, Tensor]:
    """Returns advantages and the critic's targets [n], float64. ``values`` [n] are of the state
    before each token, ``ends`` [rows] after each row.
    """
    advantages = torch.zeros(len(values), dtype=torch.float64)
    returns = torch.zeros(len(values), dtype=torch.float64)
    bootstrap = settings.truncated == "bootstrap"
    for span in spans:
        n = len(span.calls)
        here = slice(span.begin, span.begin + n)
        rewards, value = rewards_of(span), values[here].double()
        every = torch.ones(n, dtype=torch.bool)
        open_end = bootstrap and span.episode.cut and span.episode.reward is None
        last = float(ends[span.last_row]) if open_end else 0.0
        lam = settings.policy_lambda
        lam = losses.policy_lambda(n, settings.alpha) if isinstance(lam, str) else lam
        advantages[here] = losses.gae(rewards, value, every, settings.gamma, lam, last)
        aim = losses.gae(rewards, value, every, settings.gamma, settings.critic_lambda, last)
        returns[here] = aim + value
    return advantages, returns


def by_leave_one_out(
    spans: Sequence[Spans],
    tokens: int,
    settings: Estimator,
    gather: Callable[[Any], list[Any]],
) -> tuple[Tensor, Tensor]:
    """Returns advantages and returns [n], float64: a turn's return less the mean of the same turn
    in other episodes of the task, in all processes.
    """
    turns: list[tuple[str, int, float, str]] = []
    places: list[tuple[int, int, int]] = []  # which of turns, begin, end
    for span in spans:
        to_go = 0.0
        rewards = rewards_of(span)
        for call in sorted(set(span.calls), reverse=True):
            at = [i for i, c in enumerate(span.calls) if c == call]
            to_go = float(rewards[at].sum()) + settings.gamma * to_go
            places.append((len(turns), span.begin + at[0], span.begin + at[-1] + 1))
            turns.append((span.episode.task, call, to_go, span.episode.name))
    every = gather(turns)
    flat = [t for part in every for t in part]
    found = losses.leave_one_out(
        [t[2] for t in flat], [(t[0], t[1]) for t in flat], [t[3] for t in flat]
    )
    # Where this process's are among all: processes have the same order, and turns stay together.
    mine = _offset(every, turns)
    advantages = torch.zeros(tokens, dtype=torch.float64)
    returns = torch.zeros(tokens, dtype=torch.float64)
    for turn, begin, end in places:
        advantages[begin:end] = found[mine + turn]
        returns[begin:end] = turns[turn][2]
    return advantages, returns


def _offset(every: Sequence[Any], turns: Any) -> int:
    before = 0
    for part in every:
        if part == turns:
            return before
        before += len(part)
    return 0
