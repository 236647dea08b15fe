"""The verdict with real processes: what passes, what does not, and what its author reads."""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import os
import pathlib
import select
import signal
import threading
import types
import weakref
from typing import Any

import pytest
import torch
from evaluating import Evaluator, busy

from kwharness.attribution import trace
from kwharness.base import paths, process_memory
from kwharness.base.carried import NOTHING
from kwharness.base.for_candidate import Spent, Traced
from kwharness.base.operations import Failure
from kwharness.base.protocol import Channel, Closed
from kwharness.base.requests import Candidate, Request, Task
from kwharness.base.verdicts import CorrectnessReport, Measurement, Speedup, TimingReport, Verdict
from kwharness.build import builder_client, reports
from kwharness.clients import candidate_client, client, errors
from kwharness.machine import device, toolchain
from kwharness.referee import (
    context,
    custom_code,
    evaluation,
    faults,
    figures,
    measuring,
    opponents,
    trial,
    warm_pool,
)
from kwharness.referee import main as referee
from kwharness.task import invalid
from kwharness.timing import stopped, timing, visit, window_session, windows_cuda
from kwharness.timing.baselines import BaselineFailed

HEAD = "import torch\nimport torch.nn as nn\n\n\n"

SOFTMAX = (
    HEAD
    + """class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(32, 512)]

def get_init_inputs():
    return []
"""
)

SCALED = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return torch.relu(x * self.weight + self.bias)

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return [64]
"""
)

SEVERAL = (
    HEAD
    + """class Model(nn.Module):
    def forward(self, x, mask):
        values, indices = torch.max(x, -1)
        return {"sum": x.sum(-1), "top": (values, indices), "over": x.mean(-1) > 0, "where":
        x.masked_fill(mask, -1.0)}

def get_inputs():
    return [torch.randn(16, 40), torch.rand(16, 40) < 0.3]

def get_init_inputs():
    return []
"""
)

NATIVE = '''import torch
import torch.nn as nn
from kernelwright import native

lib = native(source=r"""
extern "C" void affine(const float* x, const float* w, const float* b, float* y, long long rows,
long long n) { for (long long i = 0; i < rows; i++) for (long long j = 0; j < n; j++) { float v =
x[i * n + j] * w[j] + b[j]; y[i * n + j] = v < 0 ? 0 : v; } }
""")

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.affine(x, self.weight, self.bias, y, x.shape[0], x.shape[1])
        return y
'''


def model_new(body: str, init: str = "") -> str:
    lines = "\n".join("        " + line for line in body.splitlines())
    return HEAD + f"class ModelNew(nn.Module):\n{init}    def forward(self, x):\n{lines}\n"


AFFINE_INIT = """    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

"""


def eager(source: str) -> str:
    return source + "\n\nclass ModelNew(Model):\n    pass\n"


@pytest.mark.parametrize("level", ["quick", "certify"])
@pytest.mark.parametrize("source", [SOFTMAX, SCALED, SEVERAL], ids=["softmax", "scaled", "several"])
def test_eager_passes(evaluator: Evaluator, source: str, level: str) -> None:
    v = evaluator.verdict(source, eager(source), level)
    assert v["status"] == ("certified" if level == "certify" else "correct"), v["reason"]
    names = [f["name"] for f in v["correctness"]["families"]]
    assert names[0] == "base" and "heavy_tails" in names and "one_element" in names
    assert v["correctness"]["kernelbench"] and v["correctness"]["deterministic"]
    json.dumps(v, allow_nan=False)
    if level == "certify" and source is SCALED:
        assert v["correctness"]["follows_weights"] is True


def test_other_algorithms_pass(evaluator: Evaluator) -> None:
    online = model_new(
        "top = x.new_full((x.shape[0], 1), -torch.inf)\ntotal = x.new_zeros((x.shape[0], 1))\n"
        "for part in x.chunk(4, -1):\n"
        "    higher = torch.maximum(top, part.amax(-1, keepdim=True))\n"
        "    total = total * torch.exp(top - higher)\n"
        "    total = total + torch.exp(part - higher).sum(-1, keepdim=True)\n"
        "    top = higher\nreturn torch.exp(x - top) / total"
    )
    v = evaluator.verdict(SOFTMAX, online, "certify")
    assert v["status"] == "certified", v["reason"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return torch.zeros_like(x)", "element ["),
        ("return torch.softmax(x.bfloat16(), -1).float()", "element ["),
        ("return torch.softmax(x.half(), -1).float()", "element ["),
        ("return torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)", "scaled_up"),
        ("return torch.softmax(x, -1).double()", "float64, the reference's is float32"),
        ("return torch.softmax(x, -1)[:-1]", "has shape"),
        ("return (torch.softmax(x, -1),) * 2", "another structure"),
        ("y = torch.softmax(x, -1)\nx.zero_()\nreturn y", "writes into its input x"),
        ("return x.copy_(torch.softmax(x, -1))", "input"),
        ("x = x.clone()\nx[:, 100] = 0\nreturn torch.softmax(x, -1)", "element ["),
    ],
    ids=[
        "zeros",
        "bfloat16",
        "half",
        "unstable",
        "dtype",
        "shape",
        "structure",
        "writes",
        "in_place",
        "skips",
    ],
)
def test_wrong_says_why(evaluator: Evaluator, body: str, said: str) -> None:
    v = evaluator.verdict(SOFTMAX, model_new(body))
    assert v["status"] == "wrong"
    assert said in v["reason"]
    assert v["correctness"]["precision"] == "float32"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("import sys\nsys.exit(0)", "crashed", "sys.exit"),
        ("import os\nos._exit(0)", "crashed", "exit code 0"),
        ("raise ValueError('no such luck')", "crashed", "raised ValueError (line 7): no such luck"),
        ("import ctypes\nctypes.string_at(0)", "crashed", "segmentation fault"),
        ("while True:\n    pass", "timed_out", "a forward took over"),
    ],
    ids=["sys_exit", "os_exit", "raises", "segfault", "loop"],
)
def test_processes_that_fail(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, body: str, status: str, said: str
) -> None:
    monkeypatch.setattr(trial, "FORWARD_S", 2.0)
    monkeypatch.setattr(trial, "FORWARD_EAGERS", 1.0)
    v = evaluator.verdict(SOFTMAX, model_new(body))
    assert v["status"] == status
    assert said in v["reason"]


def test_weights_baked_in_at_construction_are_wrong(evaluator: Evaluator) -> None:
    v = evaluator.verdict(SCALED, model_new("return torch.relu(x)", AFFINE_INIT))
    assert v["status"] == "wrong"


PACKS = model_new(
    "if not hasattr(self, 'packed'):\n"
    "    self.packed = (self.weight.clone(), self.bias.clone())\n"
    "w, b = self.packed\nreturn torch.relu(x * w + b)",
    AFFINE_INIT,
)
HALVES = model_new("return torch.relu(2 * (x * self.w + self.b))", AFFINE_INIT).replace(
    "        self.weight = nn.Parameter(torch.ones(n))\n"
    "        self.bias = nn.Parameter(torch.zeros(n))\n",
    "        self.w = nn.Parameter(nn.Parameter(torch.ones(n)) / 2)\n"
    "        self.b = nn.Parameter(nn.Parameter(torch.zeros(n)) / 2)\n",
)
ONCE = PACKS.replace(
    "        super().__init__()\n",
    "        super().__init__()\n        assert not hasattr(ModelNew, 'made')\n"
    "        ModelNew.made = True\n",
)
# It packs anew where a weight's version counter has moved, which takes as long as a large packing.
FOLLOWS = model_new(
    "import time\n"
    "now = (self.weight._version, self.bias._version)\n"
    "if getattr(self, 'seen', None) != now:\n"
    "    self.seen, self.packed = now, (self.weight.clone(), self.bias.clone())\n"
    "    time.sleep(0.4)\n"
    "w, b = self.packed\nreturn torch.relu(x * w + b)",
    AFFINE_INIT,
)
PLAIN = model_new("return torch.relu(x * self.weight + self.bias)", AFFINE_INIT)
PACKED, NOT_TIMED = "packing its weights takes", "when it is constructed is not in its time"


def test_packed_weights_are_honest_and_said(evaluator: Evaluator) -> None:
    v = evaluator.verdict(SCALED, PACKS, "quick")
    assert v["status"] == "correct", v["reason"]
    v = evaluator.verdict(SCALED, PACKS, "certify")
    assert v["status"] == "certified", v["reason"]
    assert v["correctness"]["caches_weights"] is True
    assert v["correctness"]["follows_weights"] is False
    assert v["weights"] == "by name" and "stay as they are once it has run" in v["assumes"][0]


@pytest.mark.parametrize("times", [2.0, 3.0], ids=["right as constructed", "wrong anyway"])
def test_what_a_constructor_computes_of_a_weight_that_it_keeps_is_stale(
    evaluator: Evaluator, times: float
) -> None:
    """KernelBench's comparison sees the weights of the construction alone."""
    kept = f"        self.register_buffer('doubled', self.weight.detach() * {times})\n\n"
    body = "return torch.relu(x * self.doubled / 2 + self.bias)"
    text = model_new(body, AFFINE_INIT.removesuffix("\n") + kept)
    v = evaluator.verdict(SCALED, text, "quick")
    as_constructed = times == 2.0
    assert v["status"] == "wrong" and v["weights"] == "by name"
    starts = "right with the weights that it is constructed with, wrong with others: its own"
    assert v["reason"].startswith(f"{starts} doubled") is as_constructed, v["reason"]
    assert v["correctness"]["kernelbench"] is as_constructed
    assert v["correctness"].get("follows_weights") is (False if as_constructed else None)
    assert ("not both" in v["hint"]) is as_constructed


@pytest.mark.alone
@pytest.mark.parametrize(
    ("text", "says"),
    [(PACKS, PACKED), (FOLLOWS, PACKED), (PLAIN, ""), (HALVES, NOT_TIMED), (ONCE, "")],
    ids=["", "follows", "plain", "seed", "once"],
)
def test_what_packing_takes_is_noted(evaluator: Evaluator, text: str, says: str) -> None:
    """Where it is constructed anew in one process, or its weights change in place, or said that
    construction is not timed.
    """
    v = evaluator.verdict(SCALED, text, "certify", time=True, want_baselines=["eager"])
    assert v["status"] == "certified", v["reason"]
    assert [w for w in (PACKED, NOT_TIMED) if any(w in n for n in v["timing"]["notes"])] == (
        [says] if says else []
    )
    assert ("packing" in v["cost_s"]) is (says != NOT_TIMED)
    if text in (FOLLOWS, PLAIN):
        assert v["correctness"]["follows_weights"] is True and v["assumes"] == []
    s = v["speedup"]
    said = f"\nSpeedup: {s['value']:.2f}x [{s['low']:.2f}, {s['high']:.2f}] against eager, "
    assert said in (ast.get_docstring(ast.parse(v["exported"])) or "")
    assert v["exported_sha256"] == hashlib.sha256(v["exported"].encode()).hexdigest()


def test_other_parameter_names_are_known_by_value_or_a_loader(evaluator: Evaluator) -> None:
    init = AFFINE_INIT.replace("self.weight", "self.scale").replace("self.bias", "self.shift")
    body = "return torch.relu(x * self.scale + self.shift)"
    v = evaluator.verdict(SCALED, model_new(body, init), "certify")
    assert v["status"] == "certified" and v["weights"] == "by value", v["reason"]
    assert v["correctness"]["follows_weights"] is True and v["assumes"] == []
    loader = (
        "    def load_reference_state(self, state):\n"
        "        self.scale.data = state['weight']\n        self.shift.data = state['bias']\n\n"
    )
    v = evaluator.verdict(SCALED, model_new(body, init + loader), "certify")
    assert v["status"] == "certified" and v["weights"] == "by name", v["reason"]
    # A hook packs, as PyTorch has it.
    hook = (
        "    def _load_from_state_dict(self, state, prefix, *_):\n"
        "        self.scale.data = state[prefix + 'weight']\n"
        "        self.shift.data = state[prefix + 'bias']\n\n"
    )
    packed = init.replace("torch.ones(n)", "torch.full((n,), 3.0)")
    v = evaluator.verdict(SCALED, model_new(body, packed + hook))
    assert v["status"] == "correct" and v["weights"] == "by name", v["reason"]
    unread = loader.replace("state['bias']", "state['b']")
    v = evaluator.verdict(SCALED, model_new(body, init + unread))
    assert v["status"] == "crashed" and "load_reference_state" in v["hint"]


def test_nan_that_comes_of_infinity_is_no_gate(evaluator: Evaluator) -> None:
    source = (
        HEAD
        + """class Model(nn.Module):
    def forward(self, x):
        return nn.functional.hardswish(x)

def get_inputs():
    return [2 * torch.randn(64, 96)]

def get_init_inputs():
    return []
"""
    )
    # Eager's hardswish of -Inf is -Inf * 0, NaN.
    cases = "y = torch.where(x >= 3, x, torch.where(x <= -3, torch.zeros_like(x), x * (x + 3) / 6))"
    v = evaluator.verdict(source, model_new(f"{cases}\nreturn y"))
    assert v["status"] == "correct", v["reason"]
    # With indices the reference computes everything for every family, in memory taken again.
    more = "x.argmax(-1), (x > 0).sum(-1)"
    both = source.replace("hardswish(x)", f"hardswish(x), {more}")
    for level, status in (("quick", "correct"), ("certify", "certified")):
        v = evaluator.verdict(both, model_new(f"{cases}\nreturn y, {more}"), level)
        assert v["status"] == status, v["reason"]
    # What comes of a NaN is asked for, or what a number far below in its place gives.
    dropped = model_new(f"{cases}\nreturn torch.nan_to_num(y, posinf=torch.inf)")
    v = evaluator.verdict(source, dropped)
    assert v["status"] == "correct" and "no input is NaN" in v["assumes"][0]
    assert evaluator.verdict(source, dropped, strict_inputs=True)["status"] == "wrong"
    v = evaluator.verdict(source, model_new(f"{cases}\nreturn torch.nan_to_num(y, 1.0, torch.inf)"))
    assert v["status"] == "wrong" and "expected NaN" in v["reason"]
    lost = model_new(f"{cases}\nreturn y + (x - x)")
    v = evaluator.verdict(source, lost)
    assert v["status"] == "correct" and "no input is infinite" in v["assumes"][0]
    v = evaluator.verdict(source, lost, strict_inputs=True)
    assert v["status"] == "wrong" and "loses infinity" in v["reason"]
    v = evaluator.verdict(source, model_new(f"{cases}\nreturn torch.nan_to_num(y, torch.nan, 1.0)"))
    assert v["status"] == "wrong" and "expected +Inf" in v["reason"]


def test_an_output_in_an_inputs_memory_is_found(evaluator: Evaluator) -> None:
    source = HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return x * 1.0\n"
    source += "\ndef get_inputs():\n    return [torch.randn(64, 96)]\n"
    source += "\ndef get_init_inputs():\n    return []\n"
    assert evaluator.verdict(source, model_new("return x + 0.0"))["status"] == "correct"
    v = evaluator.verdict(source, model_new("return x"))
    assert v["status"] == "wrong" and "memory of input 0" in v["reason"]


def test_ties_of_argmax_may_break_either_way(evaluator: Evaluator) -> None:
    source = SEVERAL.replace("torch.randn(16, 40)", "torch.randint(0, 3, (16, 40)).float()")
    last = HEAD + (
        "class ModelNew(nn.Module):\n    def forward(self, x, mask):\n        values = x.amax(-1)\n"
        "        indices = x.shape[-1] - 1 - torch.argmax(x.flip(-1), -1)\n        {}\n"
        "        return {{'over': x.mean(-1) > 0, 'sum': x.sum(-1), 'top': [values, indices],\n"
        "            'where': torch.where(mask, -1.0, x)}}\n"
    )
    v = evaluator.verdict(source, last.format("pass"))
    assert v["status"] == "correct", v["reason"]
    v = evaluator.verdict(source, last.format("indices = (indices + 1) % 40"))
    assert v["status"] == "wrong" and "indices are wrong" in v["reason"]


def test_native_code_is_built_traced_and_certified_as_exported(evaluator: Evaluator) -> None:
    v = evaluator.verdict(SCALED, NATIVE, built=True)
    assert v["status"] == "correct", v["reason"]
    assert v["metrics"]["custom_calls"] == 1 and v["work"]["custom"] > 0
    v = evaluator.verdict(SCALED, NATIVE, "certify", built=True)
    assert v["status"] == "certified", v["reason"]
    assert "class _native:" in v["exported"]
    assert v["exported_sha256"] == hashlib.sha256(v["exported"].encode()).hexdigest()
    assert "\nSpeedup: not measured.\n" in v["exported"]


def test_what_compilers_make_of_a_candidate(evaluator: Evaluator) -> None:
    def built(text: str, *archs: str, **more: Any) -> list[dict[str, Any]]:
        msg = {"candidate": {"source": text}, "archs": list(archs), "cache_dir": evaluator.cache}
        return evaluator.ask("build", msg | more)["builds"]

    (one,) = built(NATIVE, "")
    assert (one["arch"], one["status"], one["build"]["form"]) == ("", "built", "native")
    (one,) = built(NATIVE.replace("i < rows", "i < row", 1), "")
    assert one["status"] == "build_failed" and "row" in one["reason"]
    if not toolchain.nvcc():
        pytest.skip(toolchain.NO_NVCC)
    examples = pathlib.Path(__file__).parents[4] / "examples"
    text = (examples / "candidates" / "softmax_cuda.py").read_text()
    both = built(text, "sm_80", "sm_90a")
    assert [b["status"] for b in both] == ["built", "built"]
    assert [b["build"]["kernels"][0]["arch"] for b in both] == ["sm_80", "sm_90a"]
    assert all(b["build"]["kernels"][0]["registers"] > 8 for b in both)

    (refused,) = built(text, "")
    assert refused["status"] == "rejected" and reports.FOR_A_GPU in refused["reason"]
    (meant,) = built(text, "", otherwise=["sm_80"])
    assert (meant["arch"], meant["status"]) == ("sm_80", "built")


def test_a_candidate_that_does_not_build_is_told_ahead_as_its_evaluation_tells_it(
    evaluator: Evaluator,
) -> None:
    def ahead(text: str, **more: Any) -> dict[str, Any]:
        msg = {
            "candidate": {"source": text},
            "cache_dir": evaluator.cache,
            "custom_code": "required",
        }
        return evaluator.ask("build_ahead", msg | {"device": "cpu", "arch": ""} | more)

    broken = NATIVE.replace("i < rows", "i < no_rows", 1)
    no_class = NATIVE.replace("ModelNew", "Other")
    for text, status in ((broken, "build_failed"), (no_class, "rejected")):
        said = ahead(text, reference=SCALED)
        assert said["status"] == status and said["reason"] and len(said["fingerprint"]) == 64
        assert not said["build"]["cached"] and ahead(text)["build"]["cached"]
        v = evaluator.verdict(SCALED, text, built=True)
        same = ("status", "reason", "language", "build")
        v["build"] |= {n: said["build"][n] for n in ("seconds", "cached")}
        assert {n: v[n] for n in same} == {n: said[n] for n in same}
        assert v["sandbox"]["missing"] == said["missing"]
    assert ahead(NATIVE, reference=SCALED)["status"] == ""
    v = evaluator.verdict(SCALED, NATIVE, built=True)
    assert v["status"] == "correct" and v["build"]["cached"]
    # Whoever gives the two files in the wrong order is told so by the inspection.
    assert ahead(broken, reference=NATIVE) == {"status": ""}
    with pytest.raises(invalid.Invalid, match="not valid Python"):
        ahead(NATIVE, reference="class Model(:")
    raises = NATIVE + "\nraise KeyError('here')\n"
    said = ahead(raises)
    assert said["status"] == "build_failed" and "KeyError" in said["reason"]


@pytest.mark.parametrize("load", [0.0, 1e6])
def test_what_does_not_compile_has_nothing_drawn_for_it_where_cores_are_short(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    prepared: list[str] = []
    inner = trial.Trial.draw
    monkeypatch.setattr(
        trial.Trial, "draw", lambda t, *more: (prepared.append("x"), inner(t, *more))[1]
    )
    broken = NATIVE.replace("i < rows", f"i < no_rows_{load:.0f}", 1)
    v = evaluator.verdict(SCALED, broken, built=True)
    assert v["status"] == "build_failed" and (not prepared or not load)
    good = NATIVE.replace("i < rows", f"i < rows + {load:.0f} * 0", 1)
    v = evaluator.verdict(SCALED, good, built=True)
    assert v["status"] == "correct" and prepared


def test_code_for_a_gpu_is_built_ahead_without_one(evaluator: Evaluator) -> None:
    if not toolchain.nvcc():
        pytest.skip(toolchain.NO_NVCC)
    examples = pathlib.Path(__file__).parents[4] / "examples"
    text = (examples / "candidates" / "softmax_cuda.py").read_text()
    msg = {"device": "cuda:0", "arch": "sm_90a", "cache_dir": evaluator.cache}
    for source, status in ((text, ""), (text.replace("return v;", "return v", 1), "build_failed")):
        body = msg | {"candidate": {"source": source}, "custom_code": "required"}
        said = evaluator.ask("build_ahead", body)
        assert said["status"] == status and said["language"] == "cuda", said["reason"]
        again = builder_client.build(
            evaluator.server,
            Candidate(source),
            evaluator.cache,
            "cuda:0",
            arch="sm_90a",
            forbids=True,
        )
        assert again.build.cached and again.status == status


@pytest.mark.alone
def test_what_comes_next_is_built_before_this_one_is_timed(evaluator: Evaluator) -> None:
    following = NATIVE.replace("i < rows; i++", "i < rows; ++i", 1)
    broken = NATIVE.replace("i < rows; i++", "i < rows; i++ +", 1)
    upcoming = [{"source": s, "language": "cpp"} for s in (following, broken)]
    v = evaluator.verdict(
        SCALED,
        NATIVE,
        built=True,
        time=True,
        want_baselines=["eager"],
        upcoming=upcoming,
        batch="some",
    )
    assert v["status"] == "correct", v["reason"]
    assert "upcoming" in v["cost_s"]  # what timing waited for them
    more = {"want_baselines": ["eager"], "batch": "some"}
    v = evaluator.verdict(SCALED, following, built=True, time=True, **more)
    assert v["build"]["cached"] and "upcoming" not in v["cost_s"]
    v = evaluator.verdict(SCALED, broken, built=True, **more)
    assert v["status"] == "build_failed" and v["build"]["cached"]


@pytest.mark.alone
def test_candidates_of_a_batch_share_what_they_are_timed_with(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: one sentinel, the same contents and weights, processes that are started ahead,
    which get the device when it is theirs.
    """
    monkeypatch.setattr(device.Cpu, "outlasts_candidates", True)
    monkeypatch.setattr(warm_pool, "SENTINEL_S", 3600.0)
    disturb = context.Context.compilers_disturb
    monkeypatch.setattr(context.Context, "compilers_disturb", lambda _: False)
    following = NATIVE.replace("i < rows; i++", "i < rows; ++i", 1)
    # Right for as long as it is not timed: it counts its calls.
    late = NATIVE.replace(
        "        return y",
        "        self.calls = getattr(self, 'calls', 0) + 1\n"
        "        return y if self.calls < 40 else y * 1.01",
    )
    broken = NATIVE.replace("i < rows; i++", "i < rows; i++ +", 1)
    handed_in = [NATIVE, following, broken, late, following + "\n# again\n"]
    prepare, sentinels = timing.Timing.prepare, []

    def noted(self: timing.Timing) -> None:
        sentinels.append(self)
        prepare(self)

    monkeypatch.setattr(timing.Timing, "prepare", noted)
    verdicts: list[dict[str, Any]] = []
    ours, theirs = os.pipe()
    for i, text in enumerate(handed_in):
        known = evaluator.calibration(SCALED)
        more = {"known": known, "time": True, "batch": "b", "want_baselines": ["eager"]}
        more["upcoming"] = [{"source": s, "language": "cpp"} for s in handed_in[i + 1 :]]
        answer = evaluator.ask("evaluate", evaluator.request(SCALED, text, "quick", more), [theirs])
        evaluator.known[SCALED] |= answer["learned"]
        verdicts.append(answer["verdict"])
        if i == 2:
            batch = evaluator.referee._warm._batch
            assert batch is not None and batch.timed is not None
            monkeypatch.setattr(context.Context, "compilers_disturb", disturb)
        if i == 3:  # what was read of it, as far as it was: the text that Go would ask about
            assert all(p is None or p["language"] == "cpp" for p in answer["parsed"])
    said = [(v["status"], v["reason"]) for v in verdicts]
    notes = verdicts[3]["timing"].get("notes", ())
    if said[3][0] == "correct" and busy(notes) and verdicts[3]["speedup"]["low"] <= 1:
        pytest.skip(f"not measured, the machine is busy: {said[3]}, {notes}")  # too few calls
    assert [s for s, _ in said] == ["correct", "correct", "build_failed", "cheated", "correct"], (
        said
    )
    assert len(sentinels) == 1, "each had a sentinel of its own"
    assert all(v["baselines"]["eager"] > 0 for v in verdicts if v["status"] == "correct")
    last = verdicts[-1]["timing"]
    assert not last["marked"] or busy(last["notes"]), last["notes"]
    # An old sentinel is timed again, on the same contents; another task has its own.
    monkeypatch.setattr(warm_pool, "SENTINEL_S", 0.0)
    more = {"time": True, "batch": "b", "want_baselines": ["eager"]}
    again = evaluator.verdict(SCALED, NATIVE, built=True, **more)
    assert again["status"] == "correct", again["reason"]
    assert [t.contents for t in sentinels] == 2 * [sentinels[0].contents]
    other = evaluator.verdict(SOFTMAX, model_new("return torch.softmax(x, -1)"), **more)
    assert other["status"] == "correct", other["reason"]
    # Nothing of the batch outlives it, and nobody has the device.
    evaluator.verdict(SCALED, NATIVE, built=True)
    assert evaluator.referee._warm._batch is None
    evaluator.referee._warm.close()
    os.close(theirs)
    assert select.select([ours], [], [], 120)[0] and os.read(ours, 1) == b""
    os.close(ours)


@pytest.mark.alone
def test_who_is_judged_by_the_seed_shares_no_weights(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: it has a sentinel of its own, also where that is a process that waits, and the
    others of the batch have theirs.
    """
    monkeypatch.setattr(device.Cpu, "outlasts_candidates", True)
    monkeypatch.setattr(context.Context, "compilers_disturb", lambda _: False)
    halves = NATIVE.replace("torch.ones(n))", "nn.Parameter(torch.ones(n)) / 2)")
    halves = halves.replace("x[i * n + j] * w[j]", "2 * x[i * n + j] * w[j]")
    halves = halves.replace("self.weight", "self.halved")
    states: list[list[torch.Tensor]] = []
    begin = opponents.Opponents._timing

    def noted(self: opponents.Opponents, calls: Any) -> timing.Timing:
        states.append([t.clone() for t in calls.trial.made.state])
        return begin(self, calls)

    monkeypatch.setattr(opponents.Opponents, "_timing", noted)
    more = {"time": True, "batch": "b", "want_baselines": ["eager"], "built": True}
    following = NATIVE.replace("i < rows; i++", "i < rows; ++i", 1)
    verdicts = [evaluator.verdict(SCALED, text, **more) for text in (NATIVE, halves, following)]
    said = [v["status"] for v in verdicts]
    assert said == 3 * ["correct"], [v["reason"][:150] for v in verdicts if v["speedup"] is None]
    assert [v["weights"] for v in verdicts] == ["by name", "by seed", "by name"]
    first, second, third = states
    assert all(torch.equal(a, b) for a, b in zip(first, third, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    last = verdicts[-1]["timing"]
    assert not last["marked"] or busy(last["notes"]), last["notes"]
    evaluator.referee._warm.close()


@pytest.mark.alone
def test_processes_are_started_for_the_next_candidate(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU. They have no device until it is theirs, and eager's is of one task."""
    monkeypatch.setattr(device.Cpu, "outlasts_candidates", True)
    monkeypatch.setattr(context.Context, "compilers_disturb", lambda _: False)
    timed: list[int] = []
    begin = window_session.Session.__init__

    def noted(self: window_session.Session, worker: Any, *more: Any, **named: Any) -> None:
        timed.append(worker.pid)
        begin(self, worker, *more, **named)

    monkeypatch.setattr(window_session.Session, "__init__", noted)
    more = {"built": True, "time": True, "want_baselines": ["eager"]}
    spares = evaluator.referee._warm.processes

    def pids() -> set[int]:
        spares.wait()
        return {
            f.result().worker.pid if "eager" in k else f.result().pid
            for k, f in spares._begun.items()
        }

    ours, theirs = os.pipe()
    request = evaluator.request(
        SCALED, NATIVE, "quick", {"time": True, "want_baselines": ["eager"]}
    )
    request["known"] = evaluator.calibration(SCALED)
    assert evaluator.ask("evaluate", request, [theirs])["verdict"]["status"] == "correct"
    ahead = pids()
    assert len(ahead) == 3 and not ahead & set(timed)
    evaluator.referee._warm.take(
        ""
    )  # the reference's process, which lets go of the device when kept
    os.close(theirs)
    assert select.select([ours], [], [], 120)[0] and os.read(ours, 1) == b""
    os.close(ours)

    timed.clear()
    following = NATIVE.replace("i < rows; i++", "i < rows; ++i", 1)
    v = evaluator.verdict(SCALED, following, **more)
    assert v["status"] == "correct", v["reason"]
    assert len(set(timed) & ahead) == 2, "eager's and the candidate's that is timed"
    new = pids()
    assert len(new) == 3 and not new & ahead

    # One that has ended since is not missed.
    os.kill(next(iter(new)), signal.SIGKILL)
    v = evaluator.verdict(SCALED, NATIVE, **more)
    assert v["status"] == "correct", v["reason"]

    (eager_of,) = [f.result().worker for k, f in spares._begun.items() if "eager" in k]
    same = model_new("return torch.softmax(x, -1)")
    v = evaluator.verdict(SOFTMAX, same, time=True, want_baselines=["eager"])
    assert v["status"] == "correct", v["reason"]
    assert eager_of.wait(120) is not None, "eager of another task was kept"
    evaluator.referee._warm.close()
    assert not spares


def test_work_that_custom_code_does_not_do_is_rejected(evaluator: Evaluator) -> None:
    idle = NATIVE.replace(
        "lib.affine(x, self.weight, self.bias, y, x.shape[0], x.shape[1])\n        return y",
        "return torch.relu(x * self.weight + self.bias)",
    )
    v = evaluator.verdict(SCALED, idle, built=True)
    assert v["status"] == "rejected" and "aten.mul" in v["reason"]
    v = evaluator.verdict(SCALED, eager(SCALED), built=True)
    assert v["status"] == "rejected"


def test_seconds_by_part_add_up(evaluator: Evaluator) -> None:
    took = evaluator.verdict(SCALED, NATIVE, built=True)["cost_s"]
    whole = took.pop("total")
    assert min(took.values()) >= 0 and 0.5 * whole < sum(took.values()) <= whole + 1e-3
    assert {"verify", "verify reference", "verify candidate"} <= took.keys()


@pytest.mark.parametrize("calibrated", [False, True], ids=["new task", "known task"])
def test_what_does_not_compile_is_the_candidates_fault(
    evaluator: Evaluator, calibrated: bool
) -> None:
    bad = NATIVE.replace("i < rows; i++", "i < rows; i++ +", 1)
    known = evaluator.calibration(SCALED) if calibrated else {}
    v = evaluator.verdict(SCALED, bad, built=True, known=known)
    assert v["status"] == "build_failed" and v["build"]["errors"][0]["line"] == 7
    assert v["candidate"] and v["language"] == "cpp" and v["build"]["form"] == "native"
    parts = {k: s for k, s in v["cost_s"].items() if k != "total"}
    assert "build" in parts and sum(parts.values()) <= v["cost_s"]["total"] + 1e-3
    assert calibrated or "verify" not in parts  # calibrating waits for what compiles


def test_out_of_bounds_beside_the_input_is_found(evaluator: Evaluator) -> None:
    bad = NATIVE.replace("= v < 0 ? 0 : v;", "= v < 0 ? 0 : v; ((float*)x)[rows * n] = 1;")
    v = evaluator.verdict(SCALED, bad, built=True)
    assert v["status"] == "wrong" and "outside" in v["reason"]


@pytest.mark.alone
def test_timed(evaluator: Evaluator) -> None:
    ceilings = {"memory_gbs": 10.0, "cache_gbs": 20.0, "fp32_gflops": 50.0, "call_us": 1.0}
    more = {
        "known": evaluator.calibration(SCALED),
        "want_baselines": ["eager"],
        "ceilings": ceilings,
        "specs": {"l3_bytes": 8 << 20},
    }
    answer = evaluator.ask("evaluate", evaluator.request(SCALED, NATIVE, "quick", more))
    v = answer["verdict"]
    assert v["status"] == "correct", v["reason"]
    assert v["candidate_ms"] > 0 and v["baselines"]["eager"] > 0
    s = v["speedup"]
    assert s["against"] == "eager" and s["low"] <= s["value"] <= s["high"]
    assert 0 < v["headroom"] <= 1 and v["floor"]["bound"] in ("memory", "cache")
    wanted = {"achieved_gbs", "memory_share", "custom_share", "threads"}
    assert wanted <= set(v["metrics"])
    assert "eager" in answer["learned"]["baselines"]


@pytest.mark.alone
def test_where_no_memory_can_be_read_a_verdict_says_so(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "fetch", lambda *_: errno.EPERM)
    v = evaluator.verdict(SCALED, NATIVE, built=True, time=True, want_baselines=["eager"])
    assert v["status"] == "correct", v["reason"]
    assert "reads of a worker's memory" in v["sandbox"]["missing"]
    assert v["speedup"]["value"] > 0


@pytest.mark.alone
def test_a_references_process_serves_the_next_candidate(evaluator: Evaluator) -> None:
    # It keeps the first weights that it meets, which are other ones in each evaluation.
    packs = SCALED.replace(
        "        return torch.relu(x * self.weight",
        "        self.packed = getattr(self, 'packed', self.weight.detach().clone())\n"
        "        return torch.relu(x * self.packed",
    )
    body = "return torch.relu(x * self.weight + self.bias)"

    def judged(source: str, candidate: str) -> int:
        v = evaluator.verdict(source, candidate)
        assert v["status"] == "correct", v["reason"]
        return evaluator.referee._warm._client.pid

    first = judged(packs, model_new(body, AFFINE_INIT))
    assert judged(packs, model_new(body, AFFINE_INIT)) == first
    wrong = evaluator.verdict(packs, model_new("return x * self.weight", AFFINE_INIT))
    assert wrong["status"] == "wrong"  # the reference may be at work then
    assert judged(packs, model_new(body, AFFINE_INIT)) == first
    os.kill(first, signal.SIGKILL)
    assert judged(packs, model_new(body, AFFINE_INIT)) != first
    assert judged(SOFTMAX, model_new("return torch.softmax(x, -1)")) != first
    # Who waits does not hold the device.
    ours, theirs = os.pipe()
    more = {"known": evaluator.calibration(SOFTMAX), "time": False, "require_custom": False}
    request = evaluator.request(SOFTMAX, model_new("return torch.softmax(x, -1)"), "quick", more)
    for _ in range(2):
        assert evaluator.ask("evaluate", dict(request), [theirs])["verdict"]["status"] == "correct"
    os.close(theirs)
    assert evaluator.referee._warm
    assert select.select([ours], [], [], 120)[0] and os.read(ours, 1) == b""
    os.close(ours)
    evaluator.referee._warm.close()


@pytest.mark.parametrize(
    "where, needed, operators, says",
    [
        ("cuda", True, [], ""),  # all of it is in the graph
        ("cuda", False, [], "none of its custom code ran"),
        ("cpu", True, [], "none of its custom code ran"),
        ("cuda", True, ["_softmax"], "covers no operator"),  # custom code made a constant, say
    ],
)
def test_custom_code_that_only_a_graph_calls(
    monkeypatch: pytest.MonkeyPatch, where: str, needed: bool, operators: list[str], says: str
) -> None:
    """Played without a GPU: the trace shows no call of custom code."""
    monkeypatch.setattr(custom_code, "right_without", lambda _: not needed)
    seen = Traced(1e-3, {o: Spent(1e-3, 1) for o in operators}, {}, {}, 0.0, {})
    work, calls = trace.report(seen, True)
    evidence: list[str] = []
    played: Any = types.SimpleNamespace(
        context=types.SimpleNamespace(
            device=types.SimpleNamespace(replays=where == "cuda"),
            task=Task("", operators=["aten._softmax" if operators else "aten.softmax"]),
            level="quick",
        ),
        verification=types.SimpleNamespace(
            report=types.SimpleNamespace(evidence=evidence),
            oracle=types.SimpleNamespace(inputs=[torch.ones(4)]),
        ),
    )
    if says:
        with pytest.raises(faults.Fault, match=says):
            custom_code.does_the_work(played, seen, work, calls)
    else:
        custom_code.does_the_work(played, seen, work, calls)
        assert "a CUDA graph replays it" in evidence[0]


@pytest.mark.parametrize(
    "after, gone, ends",
    [
        ([False], True, "cheated"),  # what was at work there has ended with it
        ([True], True, "busy"),
        ([False, False, True], True, "busy"),  # a stranger that pauses
        ([True], False, "cheated"),  # it is still there, and so is its work
    ],
)
def test_a_strangers_work_convicts_nobody(
    monkeypatch: pytest.MonkeyPatch, after: list[bool], gone: bool, ends: str
) -> None:
    """Played without a GPU: one that is at work while a worker is stopped, and what it does after
    the candidate's end.
    """
    told: list[str] = []
    looks = iter([True, *after])
    monkeypatch.setattr(windows_cuda, "at_work", lambda: next(looks, after[-1]))
    monkeypatch.setattr(windows_cuda, "REST_S", 0.0)
    monkeypatch.setattr(windows_cuda, "STRANGER_S", 0.2)
    sensors = types.SimpleNamespace(strangers=lambda: ["4711 (python3)"])
    monkeypatch.setattr(windows_cuda, "sensors", lambda: sensors)

    def measure(*_: object) -> None:
        windows_cuda.GpuSession._idle(None, "after it")  # type: ignore[arg-type]

    def wait(timeout: float) -> object:
        told.append("waited")
        return object() if gone else None

    worker = types.SimpleNamespace(wait=wait)
    candidate = types.SimpleNamespace(kill=lambda: told.append("killed"), worker=worker)
    on_gpu: Any = types.SimpleNamespace(
        context=types.SimpleNamespace(device=types.SimpleNamespace(has_driver=True))
    )
    candidates = measuring.Candidates(on_gpu)
    candidates.started = [candidate]  # type: ignore[list-item]
    times: Any = types.SimpleNamespace(measure=measure)
    raised = faults.Busy if ends == "busy" else faults.Fault
    with pytest.raises(raised) as caught:
        candidates.measure(times, 0.0)
    assert told == ["killed", "waited"]
    said = str(caught.value)
    if ends == "busy":
        assert isinstance(caught.value, faults.Infrastructure)
        assert "another process was at work on the GPU" in said and "4711 (python3)" in said
        assert "NVML names none" in str(faults.Busy([]))
    else:
        assert caught.value.status == ends and "the GPU is at work after it" in said


@pytest.mark.parametrize("busy", [True, False])
def test_a_strangers_work_beside_a_baseline(monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    monkeypatch.setattr(windows_cuda, "strangers_at_work", lambda: busy)
    sensors = types.SimpleNamespace(strangers=list)
    monkeypatch.setattr(windows_cuda, "sensors", lambda: sensors)
    failed = BaselineFailed("eager could not be timed")
    failed.__cause__ = windows_cuda._at_work("the GPU is at work after it")
    assert isinstance(faults.of_baseline(failed), faults.Busy) == busy
    failed.__cause__ = stopped._ran_on("its threads run")
    assert not isinstance(faults.of_baseline(failed), faults.Busy)


@pytest.mark.parametrize(
    "message, hint",
    [
        ("CUDA error: an illegal memory access was encountered", "every index"),
        ("CUDA error: misaligned address", "multiple of that"),
        ("CUDA error: no kernel image is available for execution on the device", "architecture"),
        ("CUDA error: too many resources requested for launch", "__launch_bounds__"),
        ("CUDA error: device-side assert triggered", "an assert"),
        ("softmax: invalid configuration argument", "empty or too large"),
        ("CUDA error: unspecified launch failure", "every thread of a block"),
        ("uncorrectable ECC error, says nobody", ""),
    ],
)
def test_what_a_kernel_does_wrong_has_a_hint(message: str, hint: str) -> None:
    error = Failure("AcceleratorError", message, stage="forward", lines=[7])
    failed = faults._fault(errors.WorkerError(error), "being timed")
    assert isinstance(failed, faults.Fault)
    assert (failed.status, hint in failed.hint) == ("crashed", True)
    said = f"ModelNew's forward raised AcceleratorError (line 7): {message}"
    assert str(failed) == said


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (1.1, 4.0, "families; 2.00x the speed of eager (1.10 to 4.00)"),
        (0.2, 0.9, "families; slower than the baseline: "),
        (0.9, 1.2, "families; no measurable difference: "),
        (0.5, 4.0, "families; too wide an interval to tell: "),
        (0.0, 1.2, "families; too wide an interval to tell: "),
    ],
)
def test_what_is_said_of_a_speedup(low: float, high: float, says: str) -> None:
    assert says in figures.success(14, Speedup(2.0, low, high, "eager"))


PICKED = SOFTMAX.replace("torch.softmax(x, -1)", "torch.relu(x[:, :8])")
BANDED = SOFTMAX.replace("torch.randn(32, 512)", "torch.tril(torch.randn(32, 512))")


@pytest.mark.parametrize(
    ("task", "pins", "measured", "l2_bytes", "status"),
    [
        (SOFTMAX, 1e-4, 5e-5, 0, "cheated"),
        (SOFTMAX, 1e-4, 2e-4, 0, "correct"),  # it is another memory's
        (SOFTMAX, 1e-4, 5e-5, 64 << 10, "correct"),  # it may all lie in the L2
        (SOFTMAX, 1e-4, 0.0, 0, "correct"),
        (SOFTMAX, 0.0, 5e-5, 0, "correct"),
        (PICKED, 1e-4, 5e-5, 0, "correct"),  # not all of it has to be read
        (BANDED, 1e-4, 5e-5, 0, "correct"),  # nor of what is known to be zero
    ],
)
def test_no_memory_moves_more_than_its_pins(
    evaluator: Evaluator, task: str, pins: float, measured: float, l2_bytes: int, status: str
) -> None:
    """128 KiB by 100 kB/s take 1.3 s, and a softmax of them does not. GPUs alone have such pins."""
    v = evaluator.verdict(
        task,
        task.replace("class Model(", "class ModelNew("),
        time=True,
        want_baselines=["eager"],
        specs={"l3_bytes": 8 << 20, "l2_bytes": l2_bytes, "memory_gbs": pins},
        ceilings={"memory_gbs": measured},
    )
    assert v["status"] == status, v["reason"]
    assert ("cannot move what has to be read" in v["reason"]) == (status == "cheated")


@pytest.mark.alone
@pytest.mark.parametrize("when", ["verified", "timed"])
def test_who_takes_all_memory_is_at_fault(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The referee runs out of it while a candidate lives. Played by the CPU: it has no such end."""
    free = [100]
    monkeypatch.setattr(type(device.CPU), "free_bytes", lambda _: free[0])

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore.")

    more = {"time": True, "want_baselines": ["eager"]}
    run = visit.Visit.run

    def visited(self: visit.Visit, *args: Any) -> Any:
        # Not eager's, which is timed anew where the machine is no longer as it was.
        return run(self, *args) if self._trusted else out_of_memory()

    def judged() -> dict[str, Any]:
        if when == "verified":
            monkeypatch.setattr(candidate_client.CandidateClient, "answer", out_of_memory)
        else:
            monkeypatch.setattr(visit.Visit, "run", visited)
        return evaluator.verdict(SOFTMAX, model_new("return torch.softmax(x, -1)"), **more)

    evaluator.verdict(SOFTMAX, model_new("return torch.softmax(x, -1)"), **more)
    with pytest.raises(
        faults.Infrastructure,
        match=r"more memory than the device has free: .*out of memory. Tried to allocate 2 GiB\.$",
    ):
        judged()
    took = candidate_client.CandidateClient.took_memory

    def later(self: candidate_client.CandidateClient) -> bool:
        free[0], kill = 49, self.worker.kill

        def killed() -> None:
            kill()
            free[0] = 100

        self.worker.kill = killed
        return took(self)

    monkeypatch.setattr(candidate_client.CandidateClient, "took_memory", later)
    v = judged()
    assert (v["status"], v["reason"]) == ("crashed", "it leaves the GPU without memory")


@pytest.mark.parametrize(("had", "took"), [(9, False), (11, True), (60, True)])
def test_a_candidates_fair_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, had: int, took: bool
) -> None:
    free = [100 - had]
    monkeypatch.setattr(type(device.CPU), "free_bytes", lambda _: free[0])

    class Worker:
        def kill(self) -> None:
            free[0] = 100

        def wait(self, _: float) -> None: ...

    one = client.Client(Worker())
    one.free_before, one.fair_bytes = 100, 10
    assert one.took_memory() is took


def test_a_referee_that_its_user_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """It forgets what nobody can ask for any more, and what may be installed otherwise since."""
    old, theirs = Channel.pair()
    alone = referee.Referee(Channel(theirs), None)
    batch = weakref.ref(alone._warm.batch("its own"))
    serving = threading.Thread(target=alone.serve)
    serving.start()
    monkeypatch.setenv("PATH", str(tmp_path))
    toolchain.forget()
    try:
        before = toolchain.compiler()
        (tmp_path / "g++").write_text("#!/bin/sh\n")
        (tmp_path / "g++").chmod(0o755)
        old.send({"type": "left"})
        new, socket = Channel.pair()
        old.send({"type": "taken"}, [socket.fileno()])
        socket.close()
        new.send({"type": "nonsense", "id": 3})
        answer, _ = new.recv(120)
        assert answer["id"] == 3 and answer["error"]["kind"] == "protocol"
        with pytest.raises(Closed):
            old.recv(120)
        assert batch() is None
        assert before != toolchain.compiler() == str(tmp_path / "g++")
        new.close()
        serving.join(120)
        assert not serving.is_alive()
    finally:
        monkeypatch.undo()
        toolchain.forget()


# Inspection.


def test_the_golden_request_is_an_evaluation() -> None:
    """What Go sends is read under the names that it is sent by."""
    golden = pathlib.Path(paths.ROOT).parent / "testdata" / "protocol" / "evaluate.json"
    request = Request.from_json(json.loads(golden.read_text()))
    e = evaluation.Evaluation(context.Context(None, request))
    place = request.workplace
    assert (e.context.level, e.context.threads, place.sandbox) == ("quick", 2, "strict")
    assert e.program.source == "class ModelNew: ...\n"
    assert request.known.baselines is not None and request.known.baselines["eager"].threads == 2
    assert [t.dtype for t in [*request.task.inputs, *request.task.outputs]] == ["float32"] * 2
    assert request.candidate.language == "cpp" and place.cache_dir
    assert request.rules.precision and request.timed.want_baselines and request.harness
    assert request.ceilings.memory_gbs and request.specs.model


def test_operations_that_nobody_did_are_no_floor() -> None:
    """A kernel that needs fewer of them than the reference is bound by its bytes."""
    golden = pathlib.Path(paths.ROOT).parent / "testdata" / "protocol" / "evaluate.json"
    request = json.loads(golden.read_text())
    request["ceilings"] = {"memory_gbs": 100.0, "fp32_gflops": 50.0}
    request["task"] |= {"least_bytes": 10**8, "operations": 10**9}
    roofline = figures.Roofline.of(Request.from_json(request), NOTHING, None)

    def measured(ms: float) -> dict[str, Any]:
        v = Verdict("quick", "", "", CorrectnessReport("float32"), roofline.floor())
        report = TimingReport(Measurement(median_ms=ms))
        timed = types.SimpleNamespace(report=report, speedup=None, speedups={}, metrics={})
        figures.fill(v, timed, roofline, 1)
        return v.to_json()

    at_peak, fewer = measured(19.0), measured(4.0)
    assert (at_peak["floor"]["bound"], at_peak["floor"]["ms"]) == ("compute", 20.0)
    assert at_peak["headroom"] == 1 and at_peak["metrics"]["compute_share"] > 1
    assert fewer["floor"] == {"ms": 1.0, "bound": "memory", "bytes": 10**8, "operations": 0}
    assert fewer["headroom"] == 0.25 and fewer["metrics"]["memory_share"] == 0.25
    assert not {"compute_share", "achieved_gflops"} & set(fewer["metrics"])


@pytest.mark.parametrize(
    ("inputs", "weights", "ms"),
    [
        ("float16", "float16", 5.0),
        ("float16", "bfloat16", 4.0),
        ("int64", "float16", 5.0),
        ("float32", "float16", 20.0),
        ("float16", "float64", 20.0),
        ("int64", "int64", 20.0),
    ],
)
def test_operations_on_short_types_have_the_tensor_cores_ceiling(
    inputs: str, weights: str, ms: float
) -> None:
    golden = pathlib.Path(paths.ROOT).parent / "testdata" / "protocol" / "evaluate.json"
    request = json.loads(golden.read_text())
    cores = {"tf32": 400.0, "float16": 200.0, "bfloat16": 250.0}
    request["ceilings"] = {"fp32_gflops": 50.0, "tensor_gflops": cores}
    request["task"] |= {"least_bytes": 1, "operations": 10**9}
    request["task"] |= {"inputs": [{"dtype": inputs}], "parameters": [{"dtype": weights}]}
    request["task"]["outputs"] = []
    roofline = figures.Roofline.of(Request.from_json(request), NOTHING, None)
    assert roofline.floor().ms == ms


@pytest.mark.parametrize(
    ("reading", "written", "ms"),
    # 80 MB, of which as much is read as written at 100 GB/s and the rest at 125 GB/s.
    [(0.0, 0, 0.8), (125.0, 0, 0.64), (125.0, 20, 0.72), (125.0, 40, 0.8), (125.0, 60, 0.8)],
)
def test_the_floor_of_what_mostly_reads(reading: float, written: int, ms: float) -> None:
    golden = pathlib.Path(paths.ROOT).parent / "testdata" / "protocol" / "evaluate.json"
    request = json.loads(golden.read_text())
    request["ceilings"] = {"memory_gbs": 100.0, "read_gbs": reading}
    request["task"] |= {"least_bytes": 80 * 10**6, "operations": 0}
    outputs = [torch.empty(written * 10**6 // 4, device="meta")]
    oracle = types.SimpleNamespace(inputs=[], outputs=outputs)
    verified: Any = types.SimpleNamespace(oracle=oracle)
    roofline = figures.Roofline.of(Request.from_json(request), NOTHING, verified)
    assert roofline.floor().ms == pytest.approx(ms)


def test_a_task_is_described(evaluator: Evaluator) -> None:
    t = evaluator.task(SCALED)
    assert t["inputs"] == [{"name": "x", "dtype": "float32", "shape": [16, 64]}]
    assert t["outputs"] == [{"dtype": "float32", "shape": [16, 64]}]
    assert [p["name"] for p in t["parameters"]] == ["weight", "bias"]
    assert t["operators"] == ["aten.mul", "aten.add", "aten.relu"]
    assert t["operations"] == 3 * 1024 and t["least_bytes"] == 4 * (1024 + 128 + 1024)
    assert t["flags"] == [] and t["eager_ms"] > 0 and len(t["fingerprint"]) == 64
    assert t["graph"] is not None


def task_of(
    forward: str, inputs: str = "[torch.randn(8, 8)]", init: str = "[]", more: str = ""
) -> str:
    return HEAD + (
        f"class Model(nn.Module):\n{more}    def forward(self, x):\n        {forward}\n\n"
        f"def get_inputs():\n    return {inputs}\n\ndef get_init_inputs():\n    return {init}\n"
    )


BATCH_NORM = (
    "    def __init__(self):\n        super().__init__()\n        self.n = nn.BatchNorm1d(8)\n\n"
)
FLAGGED = {
    "dropout": (task_of("return torch.dropout(x, 0.5, self.training)"), "train_mode_dependent"),
    "constant": (task_of("return torch.ones_like(x)"), "constant_output"),
    "input": (task_of("return torch.arange(8.0) * 2"), "ignores_input"),
    "weights": (SCALED.replace("x * self.weight + self.bias", "x"), "ignores_weights"),
    "log": (task_of("return torch.log(x)"), "non_finite_reference"),
    "sine": (task_of("return torch.sin(x * 1e6)"), "ill_conditioned"),
    "batch_norm": (task_of("return self.n(x)", more=BATCH_NORM), "train_mode_dependent"),
}


@pytest.mark.parametrize("kind", FLAGGED)
def test_flags(evaluator: Evaluator, kind: str) -> None:
    source, flag = FLAGGED[kind]
    t = evaluator.task(source)
    assert flag in t["flags"] and t["notes"]


@pytest.mark.parametrize("has", [5, 7])
def test_a_task_that_does_not_fit_the_device_is_flagged(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, has: int
) -> None:
    """What is free at the moment is no matter: others may have it, and give it back."""
    call = 2 << 20  # half of it goes in
    source = task_of("return x * 2", "[torch.randn(1 << 10, 1 << 8)]")
    monkeypatch.setattr(device.Cpu, "room", lambda _: (1, has * call))
    monkeypatch.setattr(evaluator, "tasks", {})
    t = evaluator.task(source)
    assert ("too_large" in t["flags"]) == (has == 5)
    said = (
        "A call has 2 MiB of inputs and outputs. Evaluating it takes about 12 MiB, one thing after "
        "the other, and the device has 10 MiB: it may not fit."
    )
    assert (said in t["notes"]) == (has == 5)


def test_what_is_averaged_over_much_does_not_ignore_its_input(evaluator: Evaluator) -> None:
    t = evaluator.task(task_of("return 100 + x.mean()", "[torch.rand(1000, 1000)]"))
    assert "ignores_input" not in t["flags"]
    assert "nearly the same in every draw" in " ".join(t["notes"])


def test_a_sum_in_any_order_of_which_little_is_left_is_not_stochastic(evaluator: Evaluator) -> None:
    """Float32 differs from run to run by a hundredth of what is left, float64 does not."""
    forward = "return x[:, torch.randperm(1 << 14)].sum(1) - (1 << 14)"
    source = task_of(forward, "[1 + 1e-3 * torch.randn(16, 1 << 14)]")
    assert evaluator.task(source)["eager_ms"] > 0
    v = evaluator.verdict(source, source.replace("Model(", "ModelNew("), require_custom=False)
    assert v["status"] == "correct", v["reason"]


def test_an_integer_input_that_never_changes_is_noted(evaluator: Evaluator) -> None:
    forward = "return x * (mask > 0)"
    for mask, noted in (("torch.arange(8)", True), ("torch.randint(0, 9, (8,))", False)):
        source = task_of(forward, f"[torch.randn(8, 8), {mask}]").replace(
            "(self, x)", "(self, x, mask)"
        )
        notes = " ".join(evaluator.task(source)["notes"])
        assert ("Input mask is the same in every draw" in notes) == noted
        assert "Input x" not in notes
