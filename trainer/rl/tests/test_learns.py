"""A whole: a tiny policy learns by PPO what a toy environment rewards, in one turn or several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doubles import Toy, of, run, serving, tiny_policy

from rl import ppo


def settings(folder: Path, url: str, **more: Any) -> dict[str, Any]:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("\n".join(json.dumps({"id": c, "reference": c}) for c in "abcd"))
    return {
        "policy": str(tiny_policy(folder / "base")),
        "out": str(folder / "out"),
        "tasks": str(tasks),
        "environment": {"url": url, "patience": 1},
        "sampling": {"tokens": 6, "batch": 64},
        "steps": 18,
        "tasks_per_step": 4,
        "samples_per_task": 8,
        "estimator": {"truncated": "keep", "policy_lambda": 1.0},
        "optimiser": {"lr": 1e-2},
        "critic_optimiser": {"lr": 1e-2},
        "machine": {"device": "cpu", "threads": 1},
        "saving": {"every": 100, "tensorboard": False},
        "bounds": {"kl_skip": 0, "kl_high": 0, "norm_skip": 0},
    } | more


@pytest.mark.parametrize(
    ("turns", "context", "estimator"),
    [(1, "append", "gae"), (2, "replace", "gae"), (2, "append", "trloo")],
)
def test_the_reward_rises(tmp_path: Path, turns: int, context: str, estimator: str) -> None:
    with serving(Toy(turns, context)) as url:
        given = settings(tmp_path, url)
        given["estimator"] |= {"kind": estimator}
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 0, lines[-1]
    rewards = [x["metrics"]["reward"] for x in of(lines, "step")]
    print([round(r, 2) for r in rewards])
    before, after = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert after > before + 0.5, rewards
