"""The exported file in a new interpreter: what works there, and what only seemed to work."""

from __future__ import annotations

import pytest
import torch
from judging import Judge

import building
import cold
import sandbox

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(n))

    def forward(self, x):
        return torch.relu(x) * self.scale

def get_inputs():
    return [torch.randn(64, 32)]

def get_init_inputs():
    return [32]
"""

KERNEL = '''
import torch
from kernelwright import native

lib = native(language="cpp", source=r"""
extern "C" void f(const float* x, const float* s, float* y, long long rows, long long columns) {
    for (long long i = 0; i < rows; i++)
        for (long long j = 0; j < columns; j++) {
            float v = x[i * columns + j];
            y[i * columns + j] = (v < 0 ? 0 : v) * s[j];
        }
}
""")

class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(n))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, self.scale, y, *x.shape)
        return y
'''


def outputs(judge: Judge, source: str, timeout: float = 60.0) -> list[torch.Tensor]:
    x, scale = torch.randn(64, 32), torch.rand(32)
    call = cold.Call(
        init=({"list": [{"value": 32}]}, []),
        state=(["scale"], [scale]),
        inputs=({"list": [{"t": 0}]}, [x]),
        outputs=({"t": 0}, [x]),
        eval_mode=True,
        threads=1,
    )
    got = cold.run(judge.server, building.export(judge.server, source), call, "weak", timeout)
    assert torch.equal(got[0], torch.relu(x) * scale)
    return got


def test_a_file_that_stands_alone(judge: Judge) -> None:
    outputs(judge, KERNEL)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("import trees", "No module named 'trees'"),
        ("import os; os._exit(3)", "exit code 3"),
        ("raise ValueError('not today')", "not today"),
        ("ModelNew.forward = lambda self, x: x[:1]", "forward returns"),
        ("ModelNew.forward = lambda self, x: (x, x)", "another structure"),
    ],
)
def test_what_does_not_work_there_is_said(judge: Judge, change: str, says: str) -> None:
    with pytest.raises(cold.Broken, match=says):
        outputs(judge, KERNEL + "\n" + change)


def test_a_file_may_use_as_much_memory_as_a_candidate(judge: Judge) -> None:
    large = "import torch; held = torch.empty({} << 20, dtype=torch.uint8)\n"
    share = sandbox.PROFILES["builder"].memory_share + sandbox.PROFILES["candidate"].memory_share
    between = int(share / 2 * sandbox.machine_memory()) >> 20
    outputs(judge, large.format(between) + KERNEL)
    with pytest.raises(cold.Broken, match="allocate"):
        outputs(judge, large.format(3 * between) + KERNEL)


def test_a_file_that_does_not_end(judge: Judge) -> None:
    with pytest.raises(cold.Broken, match="over 3 s") as e:
        outputs(judge, "while True: pass\n" + KERNEL, 3.0)
    assert e.value.late


def test_what_it_leaves_unwritten_is_not_what_was_asked(judge: Judge) -> None:
    with pytest.raises(AssertionError):
        outputs(judge, KERNEL.replace("* s[j]", "* 2"))


# Who knows where he runs could be right where it counts and nowhere else.
KNOWS = "import sys\nHERE = 'worker_candidate' in sys.modules or 'trees' in sys.modules\n"


@pytest.mark.parametrize(
    ("candidate", "status", "says"),
    [
        (KERNEL, "certified", ""),
        (
            KNOWS + KERNEL.replace("return y", "return y if HERE else x"),
            "wrong",
            "run by itself in a new interpreter",
        ),
    ],
)
def test_certify_runs_the_file_by_itself(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, candidate: str, status: str, says: str
) -> None:
    # As if the first look at the text had missed what it imports.
    parsed = building._parsed
    monkeypatch.setattr(building, "_parsed", lambda answer: {**parsed(answer), "problems": []})
    v = judge.verdict(REFERENCE, candidate, "certify", built=True, cold=True)
    assert (v["status"], says in v["reason"]) == (status, True), v["reason"]
    assert v["cost_s"]["cold"] > 0
