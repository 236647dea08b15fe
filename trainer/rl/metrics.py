"""What is said of the episodes of a step: rewards, rates, speedups, lengths.

Metrics of losses and updates are losses.policy_metrics'. All names are in docs/trainer-rl.md.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

import torch

from rl.losses import quantile
from rl.trajectories import Episode

MILESTONES = (-1, 1, 2, 3)
BUILT = ("crashed", "timed_out", "wrong", "cheated", "correct", "certified")
CORRECT = ("correct", "certified")
FASTER = 1.05  # training.md's "more than 5 % faster", of an interval's lower end
# The longest period of a loop, in tokens, and how often it is seen before it is one.
PERIOD, TIMES, LOOP_TOKENS = 64, 4, 32


def of_episodes(episodes: Sequence[Episode], dropped: int, infrastructure: int) -> dict[str, Any]:
    """Returns the metrics of a step's episodes. ``dropped``: cut by a limit and left out;
    ``infrastructure``: lost by no fault of the policy's.
    """
    n = len(episodes)
    every = n + dropped + infrastructure
    out: dict[str, Any] = {
        "episodes": n,
        "infrastructure_rate": infrastructure / max(every, 1),
        "dropped_rate": dropped / max(every, 1),
    }
    if not n:
        return out
    rewards = [e.reward for e in episodes if e.reward is not None]  # one that was cut may have none
    if rewards:
        out["reward"] = math.fsum(rewards) / len(rewards)
        for m in MILESTONES:
            out[f"reward_is_{m}"] = sum(r == m for r in rewards) / len(rewards)
    samples = [s for e in episodes for s in e.samples]
    latency = torch.tensor([s.seconds for s in samples if s.verdict is not None])
    out |= {
        "turns": len(samples) / n,
        "length": sum(e.tokens for e in episodes) / n,
        "length_longest": max(e.tokens for e in episodes),
        "truncated_rate": sum(e.cut for e in episodes) / n,
        "invalid_rate": sum(s.invalid for s in samples) / max(len(samples), 1),
        "looping_rate": sum(looping(s.response_ids) for s in samples) / max(len(samples), 1),
        "distinct_rate": len({answers(e) for e in episodes}) / n,
        "evaluation_seconds_p50": quantile(latency, 0.5),
        "evaluation_seconds_p90": quantile(latency, 0.9),
    }
    verdicts = [e.samples[-1].verdict for e in episodes]
    return out | of_verdicts([v for v in verdicts if isinstance(v, dict)])


def of_verdicts(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns rates and speedups over verdicts, empty of none."""
    if not verdicts:
        return {}
    n = len(verdicts)
    right = [v for v in verdicts if v.get("status") in CORRECT]
    speedups = torch.tensor([x for v in right if (x := _number(v.get("speedup"), "value"))])
    return {
        "compiled_rate": sum(v.get("status") in BUILT for v in verdicts) / n,
        "correct_rate": len(right) / n,
        "faster_eager_rate": sum(_beats(v, "eager") for v in right) / n,
        "faster_compile_rate": sum(_beats(v, "compile") for v in right) / n,
        "speedup_p50": quantile(speedups, 0.5),
        "speedup_p90": quantile(speedups, 0.9),
        "cached_rate": sum(bool(v.get("cached")) for v in verdicts) / n,
    }


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Returns Spearman's correlation of pairs, ties having their mean rank; NaN where one side is
    all the same.
    """
    first, second = (_ranks([p[i] for p in pairs]) for i in (0, 1))
    mean = (len(pairs) - 1) / 2
    product = math.fsum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    squares = [math.fsum((a - mean) ** 2 for a in side) for side in (first, second)]
    return product / math.sqrt(squares[0] * squares[1]) if min(squares) > 0 else math.nan


def _ranks(x: Sequence[float]) -> list[float]:
    ordered = sorted(x)
    return [
        bisect.bisect_left(ordered, v) / 2 + (bisect.bisect_right(ordered, v) - 1) / 2 for v in x
    ]


def speedup_of(episode: Episode) -> float | None:
    """Returns the speedup of the last verdict, None where it was not correct or not timed."""
    verdict = episode.samples[-1].verdict
    if not isinstance(verdict, dict) or verdict.get("status") not in CORRECT:
        return None
    return _number(verdict.get("speedup"), "value")


def _beats(verdict: dict[str, Any], baseline: str) -> bool:
    found = verdict.get("speedups")
    against = found.get(baseline) if isinstance(found, dict) else None
    low = _number(against, "low")
    return low is not None and low > FASTER


def _number(found: Any, key: str) -> float | None:
    value = found.get(key) if isinstance(found, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def answers(episode: Episode) -> tuple[Any, ...]:
    """Returns what an episode's task and answers are told apart by."""
    return (episode.task, *(tuple(s.response_ids) for s in episode.samples))


def looping(ids: Sequence[int]) -> bool:
    """Reports whether a response ends in the same run of tokens over and over."""
    for period in range(1, PERIOD + 1):
        span = period * max(TIMES, math.ceil(LOOP_TOKENS / period))
        if len(ids) < span:
            continue
        tail = list(ids[-span:])
        if tail[period:] == tail[:-period]:
            return True
    return False
