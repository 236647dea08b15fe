"""What "5 % faster" means, tried: identical code does not win, code that is 10 % faster does, and a
disturbed machine widens intervals and invents nothing.

A win is an interval whose lower end clears 5 %. Real processes, the whole verdict.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from evaluating import Evaluator

pytestmark = pytest.mark.alone

WIN = 1.05
CALM = 1.3  # an interval no wider than this was measured on a machine that nobody disturbed
HEAD = "import time\n\nimport torch\nimport torch.nn as nn\n\n\n"
# Small enough that an evaluation is short, and of the two kinds that are timed in different ways:
# many calls a window, and outputs so large that a window is one call.
TASKS = {
    "softmax": HEAD
    + """class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(128, 1024)]


def get_init_inputs():
    return []
""",
    "gelu": HEAD
    + """class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x)


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return []
""",
}
# A reference of a known time: what is 10 % faster is so by construction.
SPINNING = (
    HEAD
    + """class Model(nn.Module):
    def forward(self, x):
        end = time.perf_counter() + 0.00110
        y = x * 2
        while time.perf_counter() < end:
            pass
        return y


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
)
QUICKER = SPINNING.replace("class Model(", "class ModelNew(").replace("0.00110", "0.00100")


def same(task: str) -> str:
    """Returns the reference as its own candidate."""
    return task.replace("class Model(", "class ModelNew(")


def trial(evaluator: Evaluator, task: str, candidate: str, level: str = "quick") -> dict[str, Any]:
    """Returns the verdict of one evaluation, baselines of earlier ones being known."""
    threads = len(os.sched_getaffinity(0))
    v = evaluator.verdict(
        task, candidate, level, time=True, want_baselines=["eager"], threads=threads
    )
    assert v["status"] in ("correct", "certified"), v["reason"]
    return v


def width(v: dict[str, Any]) -> float:
    """Returns the ratio of the ends of a speedup's interval."""
    return float(v["speedup"]["high"] / max(v["speedup"]["low"], 1e-9))


def wins(
    evaluator: Evaluator, task: str, candidate: str, trials: int, level: str
) -> list[dict[str, Any]]:
    found = []
    for _ in range(trials):
        v = trial(evaluator, task, candidate, level)
        if v["speedup"]["low"] >= WIN:
            found.append({**v["speedup"], "notes": v["timing"]["notes"]})
    return found


@contextmanager
def disturbed(cores: list[int]) -> Iterator[None]:
    """Keeps these cores busy with somebody else's work."""
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_burn, args=(c,), daemon=True) for c in cores]
    for p in others:
        p.start()
    try:
        yield
    finally:
        for p in others:
            p.kill()
            p.join()


def _burn(core: int) -> None:
    os.sched_setaffinity(0, [core])
    while True:
        math.sqrt(2.0)


@pytest.mark.parametrize("name", TASKS)
def test_identical_code_does_not_win(evaluator: Evaluator, name: str) -> None:
    """Where one in a hundred wins, two of three happen once in 3,300 runs; 300 by ``make soak``."""
    found = wins(evaluator, TASKS[name], same(TASKS[name]), 3, "quick")
    assert len(found) <= 1, found


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_disturbed_machine_invents_no_win(evaluator: Evaluator, every: bool) -> None:
    """Every day one core is busy, so that one thread of several waits for it: the others are left
    to those who are tested beside this. By ``make soak`` all are.
    """
    cores = sorted(os.sched_getaffinity(0))
    task = TASKS["softmax"]
    calm = [trial(evaluator, task, same(task)) for _ in range(3)]
    with disturbed(cores if every else cores[-1:]):
        loud = [trial(evaluator, task, same(task)) for _ in range(3)]
    won = [v["speedup"] for v in loud if v["speedup"]["low"] >= WIN]
    assert not won
    middle = sorted(width(v) for v in calm)[1]
    print(f"\nwidths: calm {[width(v) for v in calm]}, loud {[width(v) for v in loud]}")
    if middle >= CALM:
        pytest.skip(f"not measured, the machine is busy: intervals are {middle:.2f} wide without")
    assert sorted(width(v) for v in loud)[1] > middle, "the interval does not show it"


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "certify"])
def test_no_win_of_three_hundred(evaluator: Evaluator, level: str) -> None:
    trials = 150 if level == "quick" else 30
    found = [w for t in TASKS.values() for w in wins(evaluator, t, same(t), trials, level)]
    print(f"\nidentical code, {level}: {len(found)} wins of {trials * len(TASKS)}")
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "certify"])
def test_ten_per_cent_are_seen(evaluator: Evaluator, level: str) -> None:
    trials = 100 if level == "certify" else 50
    won = len(wins(evaluator, SPINNING, QUICKER, trials, level))
    print(f"\n10 % faster, {level}: {won} wins of {trials}")
    assert won >= 0.9 * trials
