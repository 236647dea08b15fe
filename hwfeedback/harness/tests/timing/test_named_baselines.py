"""Programs that somebody registers as baselines of a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from evaluating import Evaluator, new_cache

from kwharness.timing import baselines
from kwharness.timing.known_baselines import KnownBaselines
from kwharness.timing.turns import Turns

pytestmark = pytest.mark.alone

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n))

    def forward(self, x):
        return torch.tanh(torch.exp(-x.abs()) * self.weight)


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return [512]
"""

NATIVE = """
import torch
import torch.nn as nn
from kernelwright import native

lib = native(source=r\"\"\"
#include <cmath>
extern "C" void f(const float* x, const float* w, float* y, long long n, long long m) {
    for (long long i = 0; i < n * m; i++)
        for (int again = 0; again < %d; again++)
            y[i] = std::tanh(std::exp(-std::fabs(x[i])) * w[i %% m]);
}
\"\"\")


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, self.weight, y, x.shape[0], x.shape[1])
        return y
"""


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    evaluator = Evaluator(new_cache(tmp_path_factory))
    yield evaluator
    evaluator.close()


def verdict(evaluator: Evaluator, known: dict, *named: tuple[str, str]) -> dict:
    """Returns the verdict on a slow candidate, and puts into ``known`` what was learned."""
    more = {"time": True, "want_baselines": ["eager"], "known": known, "require_custom": True}
    more["named"] = [{"name": n, "source": s, "language": ""} for n, s in named]
    more["specs"] = {"l3_bytes": 1 << 20}
    request = evaluator.request(TASK, NATIVE % 5, "quick", more)
    answer = evaluator.ask("evaluate", request)
    known |= answer["learned"]
    return answer["verdict"]


def test_a_named_baseline_is_measured_once_and_held_against(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or all would be measured again whenever the machine has changed.
    monkeypatch.setattr(KnownBaselines, "stands", lambda *_: (True, ""))
    known = dict(evaluator.calibration(TASK))
    slower = verdict(evaluator, known, ("expert", NATIVE % 1))
    assert slower["status"] == "correct", slower["reason"]
    assert set(slower["baselines"]) == {"eager", "expert"}
    # The candidate does the expert's work five times over.
    assert slower["candidate_ms"] > slower["baselines"]["expert"]
    assert set(known["baselines"]) == {"eager", "expert"}
    blocks = known["baselines"]["expert"]["blocks"]

    again = verdict(evaluator, known, ("expert", NATIVE % 1))
    assert again["timing"]["protocol"] == "cached baselines"
    assert known["baselines"]["expert"]["blocks"] == blocks, "it is not measured again"
    verdict(evaluator, known, ("expert", NATIVE % 2))
    assert known["baselines"]["expert"]["blocks"] != blocks, "another source is another program"
    without = verdict(evaluator, known)
    assert set(without["baselines"]) == {"eager"}


def test_one_that_does_not_start_is_left_out(evaluator: Evaluator) -> None:
    known = dict(evaluator.calibration(TASK))
    broken = NATIVE.replace("std::tanh", "std::no_such") % 1
    crashes = (
        NATIVE.replace("        super()", "        raise ValueError('no')\n        super()") % 1
    )
    v = verdict(evaluator, known, ("broken", broken), ("crashes", crashes))
    assert v["status"] == "correct", v["reason"]
    assert set(v["baselines"]) == {"eager"}
    notes = " ".join(v["timing"]["notes"])
    assert "baseline broken could not start" in notes and "no_such" in notes
    assert "baseline crashes could not start" in notes and "ValueError" in notes


def test_one_that_fails_while_it_takes_turns_is_left_out(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The candidate is not blamed for it."""
    hold = Turns._hold

    def fails(self: Turns, name: str, round_: int) -> Any:
        if name == "expert" and round_ == 1:
            raise ValueError("it died")
        return hold(self, name, round_)

    monkeypatch.setattr(Turns, "_hold", fails)
    monkeypatch.setattr(baselines, "contenders", list)  # however fast it is
    more = {"time": True, "want_baselines": ["eager"], "known": evaluator.calibration(TASK)}
    more |= {"named": [{"name": "expert", "source": NATIVE % 1}], "require_custom": True}
    request = evaluator.request(TASK, NATIVE % 1, "certify", {**more, "cold": False})
    v = evaluator.ask("evaluate", request)["verdict"]
    assert v["status"] == "certified", v["reason"]
    assert set(v["baselines"]) == {"eager"}
    said = "baseline expert failed while it was timed: it died, and is left out"
    assert said in v["timing"]["notes"]


# Forms in which somebody may keep the task's weight, and by what it is known then.
HALVED = NATIVE.replace("nn.Parameter(torch.randn(n))", "nn.Parameter(torch.randn(n)) / 2").replace(
    "w[i %% m]", "(w[i %% m] * 2)"
)
RENAMED = NATIVE.replace("self.weight", "self.gain")
OTHERS = HALVED.replace("torch.randn(n)", "torch.randn(n + 1)[1:]")
FORMS = {
    "halved": (HALVED.replace("self.weight", "self.halved"), True),
    "renamed": (RENAMED, True),
    "draws_others": (OTHERS.replace("self.weight", "self.halved"), False),
    "leaves_it_out": (NATIVE.replace("w[i %% m]", "1"), False),
}


@pytest.mark.parametrize(
    ("form", "by"),
    [
        ("halved", "by name"),
        ("halved", "by seed"),
        ("renamed", "by seed"),
        ("draws_others", "by name"),
        ("leaves_it_out", "by seed"),
    ],
)
def test_it_has_the_weights_or_is_left_out(evaluator: Evaluator, form: str, by: str) -> None:
    """However it keeps them, and however the candidate is known to have them."""
    text, right = FORMS[form]
    candidate = NATIVE % 5 if by == "by name" else FORMS["halved"][0] % 5
    more = {"time": True, "want_baselines": ["eager"], "known": evaluator.calibration(TASK)}
    more |= {"named": [{"name": "expert", "source": text % 1}], "require_custom": True}
    request = evaluator.request(TASK, candidate, "quick", {**more, "specs": {"l3_bytes": 1 << 20}})
    v = evaluator.ask("evaluate", request)["verdict"]
    assert (v["status"], v["weights"]) == ("correct", by), v["reason"]
    notes = " ".join(v["timing"]["notes"])
    assert ("expert" in v["baselines"]) is right, notes
    assert ("it is not right with the reference's weights" in notes) is not right


def test_names_may_contradict_values(evaluator: Evaluator) -> None:
    """Layers of one shape that are made in another order have the weights of their names."""
    task = TASK.replace("self.weight = nn.Parameter(torch.randn(n))", "PLACE")
    two = "self.a, self.b = (nn.Parameter(torch.randn(n)) for _ in range(2))"
    task = task.replace("PLACE", two).replace("* self.weight", "* (self.a - 2 * self.b)")
    text = NATIVE.replace("self.weight = nn.Parameter(torch.randn(n))", "PLACE")
    text = text.replace("self.weight", "self.a - 2 * self.b")
    other = "self.b, self.a = (nn.Parameter(torch.randn(n)) for _ in range(2))"
    more = {"time": True, "want_baselines": ["eager"], "known": evaluator.calibration(task)}
    more |= {"named": [{"name": "expert", "source": text.replace("PLACE", other) % 1}]}
    request = evaluator.request(task, text.replace("PLACE", two) % 1, "quick", more)
    v = evaluator.ask("evaluate", request)["verdict"]
    assert v["status"] == "correct", v["reason"]
    assert "expert" in v["baselines"], v["timing"]["notes"]
