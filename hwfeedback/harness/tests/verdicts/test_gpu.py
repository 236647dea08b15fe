"""Whole verdicts on a GPU. Skipped where there is none."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import test_headers
from evaluating import Evaluator, new_cache, of_work_folder, processes_of
from test_cuda_driver import ABSENT, SEES
from test_exploits import FOLDER, head_of, stopped

import kernelwright
from kwharness.base.verdicts import Profile
from kwharness.machine import device, gpu, toolchain
from kwharness.numerics import families
from kwharness.profile import kernel_work, ncu, profile_forward
from kwharness.referee import doctor, faults, measuring
from kwharness.standalone import interpreter
from kwharness.timing import ceilings_cuda, timing
from kwharness.timing.candidate_visits import CandidateVisits
from kwharness.timing.known_baselines import KnownBaselines
from kwharness.verify import secret_draws
from kwharness.workers import profiler as worker_profiler

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(bool(ABSENT), reason=f"no GPU here: {ABSENT}"),
]
EXAMPLES = pathlib.Path(__file__).parents[4] / "examples"
EAGER = ["eager"]
SCATTERED = {"lstm"}


def _for_gpus(path: pathlib.Path) -> bool:
    """Whether an exploit is one for GPUs, or knows nothing of devices."""
    head = head_of(path.read_text())
    return path.parent.name == "cuda" or not {"native", "device"} & set(head)


EXPLOITS = [p for p in sorted(FOLDER.rglob("*.py")) if _for_gpus(p)]

TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(SHAPE)]


def get_init_inputs():
    return []
"""
SMALL, LARGE = TASK.replace("SHAPE", "2048, 1024"), TASK.replace("SHAPE", "4096, 65536")
KERNEL, LAUNCHED, INLINE, TRITON, CUTE = (
    (EXAMPLES / "candidates" / f"softmax_{name}.py").read_text()
    for name in ("cuda", "cuda_kernel", "cuda_load_inline", "triton", "cute")
)
WORK_FOLDER = of_work_folder(EXAMPLES / "candidates" / "softmax_work_folder_cuda")
WITH_CUTLASS = pytest.mark.skipif(
    not kernelwright.cutlass_folders(), reason="CUTLASS_PATH names no checkout of CUTLASS"
)
NATIVE = pytest.mark.parametrize("candidate", [KERNEL, LAUNCHED], ids=["nvcc", "launched"])
# A stream beside torch's, which nobody waits for.
BESIDE = KERNEL.replace("<<<r, 256, 0, stream>>>", "<<<r, 256, 0, beside()>>>").replace(
    'extern "C"',
    "static cudaStream_t beside() {\n  static cudaStream_t s = 0;\n"
    "  if (!s) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);\n  return s;\n}\n"
    'extern "C"',
)
# By the address of an input: the content behind it is new each time.
REMEMBERS = KERNEL.replace(
    "        y = torch.empty_like(x)\n",
    "        if x.data_ptr() in known:\n            return known[x.data_ptr()]\n"
    "        y = known[x.data_ptr()] = torch.empty_like(x)\n",
).replace("class ModelNew", "known = {}\n\n\nclass ModelNew")
HALF = KERNEL.replace(
    "= expf(x[i] - m) / s", "= __half2float(__float2half(expf(x[i] - m) / s))"
).replace("__device__ float all", "#include <cuda_fp16.h>\n__device__ float all")

ENDLESS = KERNEL.replace("float m = -INFINITY", "while (n) __nanosleep(99); float m = -INFINITY")
# Two bytes off where a float may lie.
OFF = "((volatile float*)((char*)y + 2))[i] = expf"
MISALIGNED, LAUNCHED_MISALIGNED = (t.replace("y[i] = expf", OFF) for t in (KERNEL, LAUNCHED))
FOR_ANOTHER = KERNEL.replace('language="cuda",', 'language="cuda", flags=("-arch=sm_75",),')
INLINE_FOR_ANOTHER = INLINE.replace('["-O3"]', '["-O3", "-arch=sm_75"]')


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    j = Evaluator(new_cache(tmp_path_factory), {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]})
    yield j
    j.close()


def verdict(
    evaluator: Evaluator, task: str, candidate: str, level: str = "quick", **more: Any
) -> Any:
    more = {"want_baselines": EAGER, "threads": 4, **more}
    return evaluator.verdict(task, candidate, level, built=True, time=True, **more)


@NATIVE
@pytest.mark.parametrize("task", [SMALL, LARGE], ids=["small", "large"])
def test_an_honest_kernel(evaluator: Evaluator, task: str, candidate: str) -> None:
    v = verdict(evaluator, task, candidate)
    assert v["status"] == "correct", v["reason"]
    assert not [e for e in v["evidence"] if "the sandbox refuses" in e]
    assert v["language"] == "cuda"
    assert v["candidate_ms"] > 0 and v["baselines"]["eager"] > 0
    assert v["speedup"]["low"] < v["speedup"]["value"] < v["speedup"]["high"]
    assert v["work"]["custom"] > 0.9
    (kernel,) = v["build"]["kernels"]
    assert kernel["arch"].startswith("sm_") and kernel["registers"] > 8
    assert kernel["shared_bytes"] >= 128
    assert kernel["instructions"]["load_global"] == 3 and kernel["load_bytes"] == 4


def test_a_progress_bar_is_no_thread_of_the_reference(evaluator: Evaluator) -> None:
    pytest.importorskip("tqdm")
    forward = "    def forward(self, x):\n"
    task = SMALL.replace(forward, forward + "        list(tqdm.tqdm(range(2)))\n", 1)
    v = verdict(evaluator, "import tqdm\n" + task, LAUNCHED)
    assert v["status"] == "correct", v["reason"]


def test_a_kernel_is_launched_in_a_thread_that_has_not_used_cuda(evaluator: Evaluator) -> None:
    forward = "    def forward(self, x):\n"
    assert LAUNCHED.count(forward) == 1
    thread = (
        "    def __init__(self):\n        super().__init__()\n"
        "        from concurrent.futures import ThreadPoolExecutor\n"
        "        x, y = torch.randn(2, 8, 1024, device='cuda').unbind()\n"
        "        with ThreadPoolExecutor(1) as pool:\n"
        "            pool.submit(lib.softmax[8, 256], x, y, 1024).result()\n"
        "        assert torch.allclose(y, torch.softmax(x, -1))\n\n"
    )
    v = verdict(evaluator, SMALL, LAUNCHED.replace(forward, thread + forward))
    assert v["status"] == "correct", v["reason"]


NORM = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(1024)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
"""
SCAN = SMALL.replace("torch.softmax(x, -1)", "torch.cumsum(x, -1)")
# Every reduction of kw/reduce.h over a row, in one number: a row a block, and four rows a block.
REDUCED = """import torch
from kernelwright import native

lib = native(language="cuda", source=r'''
#include <kw/math.h>
#include <kw/reduce.h>
#include <kw/scan.h>
extern "C" __global__ void rows(const float* x, float* y, int n) {
  const int r = blockIdx.x * (256 / THREADS) + threadIdx.x / THREADS;
  const float* a = x + (long long)r * n;
  const auto f = [&](int i) { return a[i]; };
  const float m = kw::max<THREADS>(n, f) + kw::min<THREADS>(n, f) + kw::mean<THREADS>(n, f);
  const int at = kw::argmax<THREADS>(n, f) - kw::argmin<THREADS>(n, f);
  if (threadIdx.x % THREADS == 0) y[r] = m + at;
}
extern "C" __global__ void running(const float* x, float* y, int n) {
  const long long row = (long long)blockIdx.x * n;
  kw::scan<256>(n, [&](int i) { return x[row + i]; }, [&](int i, float s) { y[row + i] = s; });
}
''')


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, n = x.shape
        BODY
        return y
"""
ROWS = """y = torch.empty(rows, device=x.device)
        lib.rows[rows * THREADS // 256, 256](x, y, n)"""
RUNNING = """y = torch.empty_like(x)
        lib.running[rows, 256](x, y, n)"""
REDUCE = SMALL.replace(
    "torch.softmax(x, -1)", "x.amax(1) + x.amin(1) + x.mean(1) + (x.argmax(1) - x.argmin(1))"
)
OF_HEADERS = {
    "softmax": (SMALL, dict(test_headers.LANGUAGES["cuda"])["softmax"]),
    "long softmax": (LARGE, dict(test_headers.LANGUAGES["cuda"])["softmax"]),
    "layer norm": (NORM, dict(test_headers.LANGUAGES["cuda"])["layer norm"]),
    "a row a block": (REDUCE, REDUCED.replace("BODY", ROWS).replace("THREADS", "256")),
    "four rows a block": (REDUCE, REDUCED.replace("BODY", ROWS).replace("THREADS", "64")),
    "eight rows a block": (REDUCE, REDUCED.replace("BODY", ROWS).replace("THREADS", "32")),
    "scan": (SCAN, REDUCED.replace("BODY", RUNNING).replace("THREADS", "256")),
    # Code for the host: by nvcc.
    "nvcc": (
        SMALL,
        KERNEL.replace("__device__ float all", "#include <kw/softmax.h>\n__device__ float all"),
    ),
}


@pytest.mark.parametrize("name", OF_HEADERS)
def test_what_our_headers_compute(evaluator: Evaluator, name: str) -> None:
    task, candidate = OF_HEADERS[name]
    v = verdict(evaluator, task, candidate)
    assert v["status"] == "correct", v["reason"]


def test_a_kernel_by_our_headers_is_handed_out(evaluator: Evaluator) -> None:
    v = verdict(evaluator, *OF_HEADERS["softmax"], level="certify", cold=True)
    assert v["status"] == "certified", v["reason"]


@pytest.mark.parametrize("task", [SMALL, LARGE], ids=["small", "large"])
def test_a_work_folder(evaluator: Evaluator, task: str) -> None:
    v = verdict(evaluator, task, WORK_FOLDER)
    assert v["status"] == "correct", v["reason"]
    assert (v["build"]["form"], v["language"]) == ("load_inline", "cuda")
    assert v["work"]["custom"] > 0.9
    (kernel,) = v["build"]["kernels"]
    assert kernel["registers"] > 8 and kernel["shared_bytes"] >= 128


@pytest.mark.parametrize("task", [SMALL, LARGE], ids=["small", "large"])
def test_triton(evaluator: Evaluator, task: str) -> None:
    v = verdict(evaluator, task, TRITON)
    assert v["status"] == "correct", v["reason"]
    assert v["build"]["form"] == "triton"
    assert v["work"]["custom"] > 0.9
    assert v["work"]["operators"][0]["name"] == "rows"
    assert not [e for e in v["evidence"] if "the sandbox refuses" in e], v["evidence"]
    print(f"\nTriton: compiled in {v['build']['seconds']:.1f} s, {v['candidate_ms']:.4f} ms")
    again = verdict(evaluator, task, TRITON)
    assert again["build"]["seconds"] < 0.5
    print(f"again: {again['build']['seconds']:.2f} s, parts {again['cost_s']}")


def test_triton_with_weights(evaluator: Evaluator) -> None:
    task = (EXAMPLES / "layer_norm.py").read_text()
    v = verdict(evaluator, task, (EXAMPLES / "candidates" / "layer_norm_triton.py").read_text())
    assert v["status"] == "correct", v["reason"]
    (kernel,) = v["build"]["kernels"]
    assert (kernel["name"], kernel["warps"], kernel["load_bytes"] > 3) == ("rows", 4, True)


# Rows that registers keep, and as scalars; rows of several pieces.
@WITH_CUTLASS
@pytest.mark.parametrize("shape", ["2048, 1024", "3001, 1023", "1024, 10000"])
def test_cute(evaluator: Evaluator, shape: str) -> None:
    v = verdict(evaluator, TASK.replace("SHAPE", shape), CUTE)
    assert v["status"] == "correct", v["reason"]
    assert v["work"]["custom"] > 0.9
    assert v["versions"]["cutlass"].count(".") == 2
    assert len(v["build"]["kernels"]) == 2
    print(f"\nCuTe, {shape}: {v['candidate_ms']:.4f} ms, eager {v['baselines']['eager']:.4f} ms")


@WITH_CUTLASS
def test_cute_is_certified(evaluator: Evaluator) -> None:
    v = verdict(evaluator, SMALL, CUTE, "certify", cold=True)
    assert v["status"] == "certified", v["reason"]
    assert not [e for e in v["evidence"] if "by itself" in e], "the exported file was not run"


def test_triton_is_certified(evaluator: Evaluator) -> None:
    v = verdict(evaluator, SMALL, TRITON, "certify", cold=True)
    assert v["status"] == "certified", v["reason"]
    assert not [e for e in v["evidence"] if "by itself" in e], "the exported file was not run"


@pytest.mark.parametrize(
    "candidate, status, says",
    [
        (TRITON.replace("tl.sum(e, 0)", "tl.sum(e, 0) * 1.0005"), "wrong", "off by more than"),
        (TRITON.replace("tl.sum(e, 0)", "tl.sum(q, 0)"), "build_failed", "q is not defined"),
        (TRITON.replace("y + at + i,", "y + at + i + (1 << 40),"), "crashed", "illegal memory"),
        (
            TRITON.replace("        rows[", "        return torch.softmax(x, -1)\n        rows["),
            "rejected",
            "no custom code",
        ),
        (
            TRITON.replace("        return y", "        return torch.softmax(x, -1)"),
            "rejected",
            "covers no operator of the task",
        ),
    ],
    ids=["a_little_wrong", "does_not_compile", "illegal_access", "never_called", "for_show"],
)
def test_what_is_wrong_in_triton_is_named(
    evaluator: Evaluator, candidate: str, status: str, says: str
) -> None:
    v = verdict(evaluator, SMALL, candidate)
    assert v["status"] == status and says in v["reason"], f"{v['status']}: {v['reason']}"


def test_load_inline(evaluator: Evaluator) -> None:
    v = verdict(evaluator, SMALL, INLINE)
    assert v["status"] == "correct", v["reason"]
    assert (v["language"], v["build"]["form"]) == ("cuda", "load_inline")
    assert v["work"]["custom"] > 0.9
    (kernel,) = v["build"]["kernels"]
    assert kernel["registers"] > 8
    print(f"\nload_inline: built in {v['build']['seconds']:.1f} s, the first time")
    again = verdict(
        evaluator, SMALL, INLINE.replace("expf(x[i] - m) / s", "expf(x[i] - m) * (1 / s)")
    )
    assert again["status"] == "correct", again["reason"]
    print(f"load_inline: another, built in {again['build']['seconds']:.1f} s")
    third = verdict(evaluator, SMALL, INLINE.replace("/ s;", "/ s * 1.0005f;"))
    assert third["status"] == "wrong", third["reason"]
    print(f"load_inline: a third, built in {third['build']['seconds']:.1f} s")


def test_load_inline_that_does_not_compile(evaluator: Evaluator) -> None:
    v = verdict(evaluator, SMALL, INLINE.replace("/ s;", "/ q;"))
    assert v["status"] == "build_failed", v["reason"]
    (error,) = v["build"]["errors"]
    assert 'identifier "q" is undefined' in error["message"]
    assert "/ q;" in INLINE.replace("/ s;", "/ q;").splitlines()[error["line"] - 1]


@NATIVE
def test_a_kernel_is_certified(evaluator: Evaluator, candidate: str) -> None:
    baselines = ["eager", "compile"]
    v = verdict(evaluator, SMALL, candidate, "certify", want_baselines=baselines, cold=True)
    assert v["status"] == "certified", v["reason"]
    assert not [e for e in v["evidence"] if "by itself" in e], "the exported file was not run"
    assert "from kernelwright import" not in v["exported"], "its loader is in it"
    assert set(v["baselines"]) == {"eager", "compile"}
    (launch,) = v["work"]["launches"]
    assert (launch["count"], launch["grid"][0], launch["block"][0]) == (1, 2048, 256), launch
    span_ms, ms = v["timing"]["candidate"]["span_ms"], v["candidate_ms"]
    assert abs(span_ms - launch["ms"]) < 1e-3 and abs(span_ms - ms) < 0.1 * ms + 2e-3
    said = "compute-sanitizer finds nothing on inputs of [256, 1024]: memcheck, racecheck, "
    assert [e for e in v["evidence"] if e.startswith(said + "synccheck, initcheck")], v["evidence"]


# torch's defaults would have cuDNN compute it in TF32.
CONVOLUTION = """
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 32, 3, padding=1)
"""


def test_a_convolution_is_certified(evaluator: Evaluator) -> None:
    task = TASK.replace("SHAPE", "4, 32, 128, 256").replace("softmax(x", "softmax(self.conv(x)")
    task = task.replace("(nn.Module):", "(nn.Module):" + CONVOLUTION)
    candidate = KERNEL.replace("(nn.Module):", "(nn.Module):" + CONVOLUTION)
    candidate = candidate.replace(
        "        y =", "        x = self.conv(x).flatten(0, 2)\n        y ="
    )
    candidate = candidate.replace("return y", "return y.view(4, 32, 128, 256)")
    v = verdict(evaluator, task, candidate, "certify", want_baselines=["eager"], cold=True)
    assert v["status"] == "certified", v["reason"]


@pytest.mark.parametrize("room", [secret_draws.ROOMY, (math.inf, math.inf)], ids=["much", "little"])
def test_one_thing_after_the_other(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, room: tuple[float, float]
) -> None:
    """As large tasks are judged, with blocks that stay and without."""
    monkeypatch.setattr(device, "PEAK", 1 << 60)
    monkeypatch.setattr(secret_draws, "ROOMY", room)
    task = TASK.replace("SHAPE", "8192, 4096")
    v = verdict(evaluator, task, KERNEL, "certify", want_baselines=["eager"], cold=True)
    assert v["status"] == "certified", v["reason"]


@pytest.mark.parametrize("few", [True, False])
def test_a_large_call_is_handed_over_in_the_gpus_memory(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """Large for this test alone. Sanitizers have memory that they know."""
    monkeypatch.setattr(interpreter, "LARGE", 1)
    if not few:
        monkeypatch.setattr(families, "SMALL_BYTES", 1 << 30)
    seen: list[str] = []
    make = interpreter._Given.__init__

    def kept(self: Any, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        seen.append(self.request["shared"])

    monkeypatch.setattr(interpreter._Given, "__init__", kept)
    v = verdict(evaluator, SMALL, KERNEL, "certify", want_baselines=["eager"], cold=True)
    assert v["status"] == "certified", v["reason"]
    assert seen == ["cuda", "cuda", ""] if few else seen == ["cuda", ""]
    assert v["timing"]["candidate"]["span_ms"] > 0
    assert [e for e in v["evidence"] if e.startswith("compute-sanitizer finds nothing")]


# Right all the same: what is read outside is not used, and neighbours' turns come late enough.
READ = "  if (threadIdx.x == 0 && x[(long long)(gridDim.x - blockIdx.x) * n] == 12345.f) m = 0;\n"
RACE = (
    "  __shared__ float near[256];\n  near[threadIdx.x] = x[threadIdx.x];\n"
    "  if (near[threadIdx.x ^ 64] == 12345.f) m = 0;\n"
)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (READ, "memcheck finds on inputs of [2048, 1024]: Invalid __global__ read of size 4"),
        (RACE, "racecheck finds on inputs of [2048, 1024]: Race reported between Write access"),
    ],
    ids=["outside", "race"],
)
def test_what_a_sanitizer_finds_is_not_certified(
    evaluator: Evaluator, more: str, says: str
) -> None:
    at = "  float m = -INFINITY, s = 0;\n"
    candidate = KERNEL.replace(at, at + more, 1)
    assert candidate != KERNEL
    v = verdict(evaluator, SMALL, candidate, "certify", cold=True)
    assert (v["status"], says in v["reason"]) == ("wrong", True), v["reason"]


def test_identical_code_is_no_faster(evaluator: Evaluator) -> None:
    for _ in range(3):
        v = verdict(evaluator, LARGE, LARGE.replace("Model(", "ModelNew("), require_custom=False)
        assert v["status"] == "correct", v["reason"]
        assert v["speedup"]["low"] < 1.05 and 0.97 < v["speedup"]["value"] < 1.03


@pytest.mark.parametrize(
    "candidate, status, says",
    [
        (KERNEL.replace("/ s;", "/ s * 1.0005f;"), "wrong", "off by more than"),
        (HALF, "wrong", "off by more than"),
        (KERNEL.replace("/ s;", "/ q;"), "build_failed", 'identifier "q" is undefined'),
        (KERNEL.replace("y[i] = expf", "y[i + (1ll << 40)] = expf"), "crashed", "illegal memory"),
        (KERNEL.replace("<<<r, 256,", "<<<r, 2560,"), "crashed", "softmax: invalid"),
        (ENDLESS, "timed_out", "took over"),
        (KERNEL.replace("y = torch.empty_like", "torch.empty(1 << 42); y = torch.empty_like"),
         "crashed", "memory"),
        (BESIDE, "cheated", "elements are"),
        (LAUNCHED.replace("/ s;", "/ q;"), "build_failed", 'identifier "q" is undefined'),
        (LAUNCHED.replace("y[i] = expf", "y[i + (1ll << 40)] = expf"), "crashed", "illegal memory"),
        (LAUNCHED.replace("[rows, 256]", "[rows, 2560]"), "crashed", "is refused: invalid"),
        (LAUNCHED.replace("[rows, 256]", "[rows, 256, 1 << 20]"), "crashed", "shared memory"),
        (LAUNCHED.replace("(x, y, columns)", "(x.cpu(), y, columns)"), "crashed", "on the GPU"),
        (REMEMBERS, "wrong", "off by more than"),
        (MISALIGNED, "crashed", "misaligned address"),
        (LAUNCHED_MISALIGNED, "crashed", "misaligned address"),
    ],
    ids=[
        "a_little_wrong", "half_precision", "does_not_compile", "illegal_access", "no_such_launch",
        "endless", "too_much_memory", "nobody_waits",
        "launched_does_not_compile", "launched_illegal_access", "launched_no_such_block",
        "launched_too_much_shared", "launched_on_the_host", "remembers_by_address",
        "misaligned_address", "launched_misaligned_address",
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    evaluator: Evaluator, candidate: str, status: str, says: str
) -> None:
    v = verdict(evaluator, SMALL, candidate)
    # What nobody waits for may be wrong when it is verified already.
    allowed = {status, "wrong"} if status == "cheated" else {status}
    assert v["status"] in allowed and says in v["reason"], f"{v['status']}: {v['reason']}"
    again = verdict(evaluator, SMALL, KERNEL)
    assert again["status"] == "correct", f"after it: {again['reason']}"


@pytest.mark.parametrize("candidate", [FOR_ANOTHER, INLINE_FOR_ANOTHER], ids=["native", "inline"])
def test_flags_for_another_architecture_become_this_ones(
    evaluator: Evaluator, candidate: str
) -> None:
    v = verdict(evaluator, SMALL, candidate)
    assert v["status"] == "correct", v["reason"]
    assert any("'-arch=sm_75' is another architecture's" in e for e in v["evidence"])


def test_flags_that_people_leave_in(evaluator: Evaluator) -> None:
    forms = pathlib.Path(__file__).parents[1] / "forms"
    task = (forms / "ref.py").read_text()
    v = verdict(evaluator, task, (forms / "cuda_flags_of_another_device.py").read_text())
    assert v["status"] == "correct", v["reason"]
    assert any("asks for a report: it is left out" in f for f in v["build"]["flags"])


def test_what_does_not_compile_here_may_have_a_fallback(evaluator: Evaluator) -> None:
    """It is known only where it is run: see building.NO_TRIAL."""
    broken = 'native(language="cuda", source="""extern "C" void f(cudaStream_t s) { q; }""")'
    tries = f"try:\n    {broken}\nexcept RuntimeError:\n    pass\n\nlib = native("
    v = verdict(evaluator, SMALL, KERNEL.replace("lib = native(", tries, 1))
    assert v["status"] == "correct", v["reason"]
    assert 'identifier "q" is undefined' in v["reason"]


@NATIVE
def test_a_kernel_for_another_architecture(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, candidate: str
) -> None:
    """As a cubin that was made elsewhere would be: no GPU of another major version runs it."""
    own = gpu.Gpu.arch

    def another(self: gpu.Gpu) -> str:
        return "sm_90" if own(self).startswith("sm_7") else "sm_75"

    monkeypatch.setattr(gpu.Gpu, "arch", another)
    v = verdict(evaluator, SMALL, candidate)
    assert v["status"] == "crashed" and "no kernel image is available" in v["reason"], v["reason"]
    monkeypatch.undo()
    again = verdict(evaluator, SMALL, candidate)
    assert again["status"] == "correct", f"after it: {again['reason']}"


# A process that has made its context and its memory before, and says what it computes when asked.
LIVES_ON = """
import sys, torch
x = torch.arange(1 << 20, device="cuda", dtype=torch.float64)
for _ in sys.stdin:
    print((x * 2).sum().item(), flush=True)
"""
AT_MOST_S = 300.0  # generous: what it takes is some seconds


def asked(other: subprocess.Popen[str]) -> str:
    """Returns what the process answers, "" where it does not."""
    assert other.stdin is not None and other.stdout is not None
    other.stdin.write("\n")
    other.stdin.flush()
    there, _, _ = select.select([other.stdout], [], [], AT_MOST_S)
    return other.stdout.readline().strip() if there else ""


def test_an_endless_kernel_takes_nobody_with_it(evaluator: Evaluator) -> None:
    """Its process is killed, and the kernel with it. Another's context is as it was."""
    expected = str(float((1 << 20) * ((1 << 20) - 1)))
    command = [sys.executable, "-c", LIVES_ON]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        try:
            assert asked(other) == expected
            began = time.monotonic()
            v = verdict(evaluator, SMALL, ENDLESS)
            assert v["status"] == "timed_out" and "took over" in v["reason"], v["reason"]
            assert asked(other) == expected
            assert time.monotonic() - began < AT_MOST_S
        finally:
            other.kill()
    again = verdict(evaluator, SMALL, KERNEL)
    assert again["status"] == "correct", f"after it: {again['reason']}"


# A process that says how many bytes of the GPU are free when asked, and one that has a gigabyte of
# them and a kernel that does not end.
FREE = """
import sys, torch
torch.zeros(1, device="cuda")
for _ in sys.stdin:
    print(torch.cuda.mem_get_info()[0], flush=True)
"""
HOLDS = """
import torch
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda._sleep(1 << 62)
print("it runs", flush=True)
torch.cuda.synchronize()
"""
GONE_S = 2.0


def test_a_killed_endless_kernel_is_gone_at_once() -> None:
    """What it held is free again, as another process sees it."""
    with contextlib.ExitStack() as ends:

        def started(program: str) -> subprocess.Popen[str]:
            command, pipe = [sys.executable, "-c", program], subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            ends.callback(process.wait)
            ends.callback(process.kill)
            return process

        other = started(FREE)
        before = int(asked(other))
        endless = started(HOLDS)
        assert endless.stdout is not None and endless.stdout.readline() == "it runs\n"
        time.sleep(0.5)
        assert int(asked(other)) < before - (1 << 30)
        endless.kill()
        began = time.monotonic()
        while int(asked(other)) < before - (64 << 20):
            assert time.monotonic() - began < GONE_S
        print(f"\ngone after {1e3 * (time.monotonic() - began):.0f} ms")


def test_a_named_baseline(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured once, and held against; one that does not run is left out."""
    # Or all would be measured again whenever the machine has changed.
    monkeypatch.setattr(KnownBaselines, "stands", lambda *_: (True, ""))
    task = TASK.replace("SHAPE", "4096, 4096")
    five = KERNEL.replace(
        "rows<<<r, 256, 0, stream>>>(x, y, n);",
        "for (int i = 0; i < 5; i++) rows<<<r, 256, 0, stream>>>(x, y, n);",
    )
    assert five != KERNEL
    expert = [{"name": "expert", "source": KERNEL, "language": ""}]
    v = verdict(evaluator, task, five, named=expert)
    assert v["status"] == "correct", v["reason"]
    assert set(v["baselines"]) == {"eager", "expert"}
    # The candidate does the expert's work five times over.
    assert v["candidate_ms"] > 2 * v["baselines"]["expert"] and v["speedup"]["high"] < 0.6
    blocks = evaluator.known[task]["baselines"]["expert"]["blocks"]

    again = verdict(evaluator, task, LAUNCHED, named=expert)
    assert again["status"] == "correct", again["reason"]
    assert evaluator.known[task]["baselines"]["expert"]["blocks"] == blocks, "it is measured again"
    assert 0.7 < again["candidate_ms"] / again["baselines"]["expert"] < 1.4, "the same kernel"
    assert set(verdict(evaluator, task, KERNEL)["baselines"]) == {"eager"}

    broken = [{"name": "broken", "source": KERNEL.replace("<<<r, 256,", "<<<r, 2560,")}]
    v = verdict(evaluator, task, KERNEL, named=[b | {"language": ""} for b in broken])
    assert v["status"] == "correct", v["reason"]
    assert set(v["baselines"]) == {"eager"}
    assert [n for n in v["timing"]["notes"] if n.startswith("baseline broken ")]


def test_the_clocks_agree(evaluator: Evaluator) -> None:
    """What turns cost is the same for eager's process and a candidate's: a call of 2 us is seen."""
    task = TASK.replace("SHAPE", "64, 1024").replace("torch.softmax(x, -1)", "torch.relu(x)")
    v = verdict(evaluator, task, task.replace("Model(", "ModelNew("), require_custom=False)
    c = v["timing"]["candidate"]
    assert c["clock"] == "event" and abs(c["wall_ms"] - c["event_ms"]) < 3e-3, c


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        ("torch.cuda.synchronize()\n        return torch.softmax(x, -1)", "waits for the GPU"),
        ("for _ in range(2000): x = x * 1\n        return torch.softmax(x, -1)", ""),
        ("self.y = torch.softmax(x, -1)\n        return self.y", ""),
        ("return torch.softmax(x, -1, out=self.out(x))", ""),
    ],
    ids=["waits", "launches", "keeps", "buffer"],
)
def test_how_a_forward_may_be_asked_for(evaluator: Evaluator, forward: str, says: str) -> None:
    task = TASK.replace("SHAPE", "64, 1024")
    candidate = task.replace("Model(", "ModelNew(").replace("return torch.softmax(x, -1)", forward)
    candidate = candidate.replace(
        "    def forward",
        "    y = None\n\n    def out(self, x):\n"
        "        self.y = torch.empty_like(x) if self.y is None else self.y\n"
        "        return self.y\n\n    def forward",
    )
    v = verdict(evaluator, task, candidate, require_custom=False)
    assert v["status"] == "correct", v["reason"]
    assert any(says in note for note in v["timing"]["notes"]) or not says, v["timing"]["notes"]
    assert v["speedup"]["low"] <= 1.05


def test_an_eager_that_waits_for_the_gpu(evaluator: Evaluator) -> None:
    waits = "return x.relu() if x.sum().item() < 1e30 else x.abs()"
    task = TASK.replace("SHAPE", "64, 1024").replace("return torch.softmax(x, -1)", waits)
    v = verdict(evaluator, task, task.replace("Model(", "ModelNew("), require_custom=False)
    assert v["status"] == "correct", v["reason"]
    assert v["speedup"]["low"] <= 1.05, "its calls come one by one: such intervals are wide"


@pytest.mark.parametrize("name", [str(p.relative_to(FOLDER)) for p in EXPLOITS])
def test_an_exploit_is_stopped(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stopped(evaluator, monkeypatch, (FOLDER / name).read_text())


STRANGER = """import torch

torch.cuda._sleep(20_000_000)
torch.cuda.synchronize()
print(flush=True)
while True:
    torch.cuda._sleep(20_000_000)
    torch.cuda.synchronize()
"""


def test_a_stranger_on_the_gpu_convicts_nobody(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of no evaluation's that begins when the candidate is timed, and works on."""
    strangers: list[subprocess.Popen[bytes]] = []
    real = CandidateVisits.visit

    def with_a_stranger(*args: Any, **more: Any) -> Any:
        if not strangers:
            command = [sys.executable, "-c", STRANGER]
            strangers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            assert strangers[0].stdout is not None
            assert strangers[0].stdout.readline(), "it has ended"
        return real(*args, **more)

    monkeypatch.setattr(CandidateVisits, "visit", with_a_stranger)
    try:
        beside = verdict(evaluator, SMALL, KERNEL)
        assert beside["status"] == "correct", beside["reason"]  # its windows fell between
    except faults.Busy as e:
        assert "another process was at work on the GPU" in str(e)
    finally:
        for s in strangers:
            s.kill()
            s.wait()
    v = verdict(evaluator, SMALL, KERNEL)
    assert v["status"] == "correct", v["reason"]


@pytest.mark.parametrize("name", [p.stem for p in sorted(EXAMPLES.glob("*.py"))])
def test_eager_passes_as_a_candidate(evaluator: Evaluator, name: str) -> None:
    task = (EXAMPLES / f"{name}.py").read_text()
    eager = task.replace("class Model(", "class ModelNew(")
    v = verdict(evaluator, task, eager, require_custom=False)
    assert v["status"] == "correct", v["reason"]
    # One process of this may differ from the next by over 10 %, it is not known why, and
    # the interval of one process against another's does not know it yet.
    assert v["speedup"]["low"] < (1.05 if name not in SCATTERED else 1.25), v["speedup"]


# Profiles. Where ncu is not there, or may not measure, that is said and the first ones are skipped.

NCU = pytest.mark.skipif(not doctor._profiler()[0], reason=f"no profile: {doctor._profiler()[1]}")
MANY = KERNEL.replace(
    "rows<<<r, 256, 0, stream>>>(x, y, n);",
    "for (int i = 0; i < 10000; i++) rows<<<r, 256, 0, stream>>>(x, y, n);",
)
# Of one size, which ncu does not tell apart, and more than a worker lists. They do nothing.
KINDS = 2200
OTHERS = "".join(
    f'extern "C" __global__ void kind{i}(float* y, int n) {{ if (n < 0) y[0] = {i}; }}\n'
    for i in range(KINDS)
)
DISTINCT = LAUNCHED.replace('extern "C" __global__', OTHERS + 'extern "C" __global__', 1).replace(
    "        return y\n",
    f"        for i in range({KINDS}):\n"
    '            getattr(lib, f"kind{i}")[1, 32](y, columns)\n'
    "        return y\n",
)
GRAPH = """
import torch, torch.nn as nn
{kernel}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.graph = Own(), None

    def forward(self, x):
        if self.graph is None:
            self.x = x.clone()
            self.own(self.x)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = self.own(self.x)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
""".format(kernel=KERNEL.replace("class ModelNew", "class Own"))


def profiled(evaluator: Evaluator, candidate: str, **more: Any) -> dict[str, Any]:
    more = {"profile": "selected", "ceilings": {"memory_gbs": 4000.0}, **more}
    v = verdict(evaluator, SMALL, candidate, **more)
    assert v["status"] == "correct", v["reason"]
    p = v["profile"]
    print(f"\n{p['tool']}: {p['launches']} launches, {p['ms']:.4f} ms, {v['cost_s']}")
    print(p.get("why"), p.get("missing"), [(k["name"], k["ms"]) for k in p["kernels"][:5]])
    return v


@NCU
@pytest.mark.parametrize(
    "candidate", [KERNEL, LAUNCHED, TRITON], ids=["nvcc", "launched", "triton"]
)
def test_a_profile(evaluator: Evaluator, candidate: str) -> None:
    v = profiled(evaluator, candidate)
    p = v["profile"]
    assert (p["tool"], p["launches"], p.get("why")) == ("ncu", 1, None)
    (kernel,) = p["kernels"]
    assert (kernel["whose"], kernel["share"], kernel["grid"]) == ("custom", 1.0, [2048, 1, 1])
    assert len(kernel["metrics"]) > 40 and kernel["metrics"] == p["metrics"]
    assert not any(map(kernel_work.operand, p["metrics"])), "there is no product"
    assert kernel["metrics"]["dram__bytes_read.sum"] > 2048 * 1024 * 4 * 0.9
    assert v["candidate_ms"] / 2 < p["ms"] < 2 * v["candidate_ms"] + 0.005
    assert v["metrics"]["launches"] == 1 and 0 < v["metrics"]["dram_roof_share"] < 1.2
    eager = v["eager_profile"]
    assert eager["tool"] == "ncu" and eager["ms"] > 0
    assert {k["whose"] for k in eager["kernels"]} <= {"pytorch", "vendor"}


@NCU
def test_nobody_is_timed_while_a_profiler_begins(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the sentinel, which is timed beside the build."""
    spans: dict[str, list[tuple[float, float]]] = {"begins": [], "timed": []}

    def noted(of: type, name: str, what: str) -> None:
        inner = getattr(of, name)

        def outer(*args: Any, **more: Any) -> Any:
            began = time.monotonic()
            try:
                return inner(*args, **more)
            finally:
                spans[what].append((began, time.monotonic()))

        monkeypatch.setattr(of, name, outer)

    noted(profile_forward.Profiler, "_begin_ahead", "begins")
    noted(timing.Timing, "prepare", "timed")
    noted(measuring.Candidates, "measure", "timed")
    for i in range(4):
        profiled(evaluator, KERNEL.replace("__global__", f"/* {time.time()} {i} */ __global__", 1))
    assert spans["begins"] and len(spans["timed"]) >= 8
    for began, ended in spans["begins"]:
        assert all(ended <= b or e <= began for b, e in spans["timed"]), spans


@NCU
def test_a_large_call(evaluator: Evaluator) -> None:
    """It takes what Nsight Compute says: what large contents need beside it does not slow it."""
    task = TASK.replace("SHAPE", "1 << 15, 1 << 15").replace("torch.softmax(x, -1)", "x.relu()")
    eager = task.replace("Model(", "ModelNew(")
    more: dict[str, Any] = {"profile": "selected", "ceilings": {"memory_gbs": 4000.0}}
    v = verdict(evaluator, task, eager, require_custom=False, **more)
    assert v["status"] == "correct", v["reason"]
    alone = v["eager_profile"]["ms"]
    print(f"\n{v['candidate_ms']:.3f} and eager {v['baselines']['eager']:.3f}, ncu {alone:.3f} ms")
    assert alone > 1.5
    assert 0.95 < v["candidate_ms"] / alone < 1.05
    assert 0.95 < v["baselines"]["eager"] / alone < 1.05


# What it returns says whether cuDNN is asked.
ASKS = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.{layer}

    def forward(self, x):
        return x * 0 + torch.backends.cudnn.enabled


def get_inputs():
    return [torch.randn(4, 4)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("layer, asked", [("ConvTranspose2d(4, 4, 3)", 0), ("Conv2d(4, 4, 3)", 1)])
def test_in_float64_cudnn_is_asked_for_no_transposed_convolution(
    evaluator: Evaluator, layer: str, asked: int
) -> None:
    request = evaluator.request(ASKS.format(layer=layer), "", "quick", {})
    reference = processes_of(evaluator.server, request).reference(compiles=False)
    try:
        answers = reference.forward(*reference.draw(1), ["eager", "wide", "eager"])
    finally:
        reference.kill()
    assert [float(a.tensors[0].mean()) for a in answers] == [1, asked, 1]


@NCU
def test_a_profile_of_many_launches_and_of_a_graph(evaluator: Evaluator) -> None:
    v = profiled(evaluator, MANY)
    assert v["profile"]["launches"] == 10_000 and len(v["profile"]["kernels"]) == 1
    assert v["cost_s"]["profile"] < 40
    p = profiled(evaluator, GRAPH)["profile"]
    assert p["tool"] == "ncu" and [k for k in p["kernels"] if k["whose"] == "custom" and k["ms"]]


@NCU
def test_a_profile_of_many_kernels(evaluator: Evaluator) -> None:
    """Most of them ncu does not measure: PyTorch's profiler tells their times."""
    v = profiled(evaluator, DISTINCT)
    p = v["profile"]
    assert (p["tool"], p["launches"]) == ("ncu", KINDS + 1)
    # For each that it measures ncu patches the module of all of them: its time may end first.
    late = f"it takes ncu over {profile_forward.MEASURE_S:g} s: what it had measured by then"
    some = r"\d+ of {} kinds of launches were measured"
    beyond = KINDS + 1 - worker_profiler.MAX_KINDS
    listed = f"{beyond} launches are of other kinds than those that are listed"
    ends = (
        f"{late}; {some.format(KINDS + 1)}",
        f"{some.format(worker_profiler.MAX_KINDS)}; {listed}",
    )
    assert re.fullmatch("|".join(ends), p["why"]), p["why"]
    assert len(p["kernels"]) == kernel_work.MAX_KERNELS and all(k["ms"] > 0 for k in p["kernels"])
    # An empty kernel takes a microsecond or two.
    assert p["ms"] > 1e-3 * KINDS / 2 and v["metrics"]["kernels_ms"] == p["ms"]
    assert not [m for m in p["metrics"] if m.endswith(".sum")]
    assert "dram_gbs" not in v["metrics"] and v["cost_s"]["profile"] < 90


PRODUCT = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(4096, 4096, dtype=torch.DTYPE) for _ in range(2)]


def get_init_inputs():
    return []
"""


@NCU
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_profile_of_the_tensor_cores(evaluator: Evaluator, dtype: str) -> None:
    task = PRODUCT.replace("DTYPE", dtype)
    ceilings = ceilings_cuda.measure(0).ceilings.to_json()
    more: dict[str, Any] = {"profile": "selected", "ceilings": ceilings}
    candidate = task.replace("Model(", "ModelNew(")
    v = verdict(evaluator, task, candidate, require_custom=False, **more)
    assert v["status"] == "correct", v["reason"]
    p, at = v["profile"], v["metrics"]
    operations = kernel_work.operations_of(Profile.from_json(p))
    print(f"\n{operations}, {p['ms']:.4f} ms, {at['tensor_gflops']:.0f} of {ceilings}")
    assert (p["tool"], p.get("why")) == ("ncu", None)
    assert operations[dtype] == pytest.approx(2 * 4096**3, rel=0.01)
    assert sum(operations.values()) == operations[dtype]
    assert at["tensor_gflops"] == pytest.approx(operations[dtype] / (1e6 * p["ms"]))
    share = at["tensor_gflops"] / ceilings["tensor_gflops"][dtype]
    assert at["tensor_roof_share"] == pytest.approx(share) and 0.5 < share <= 1.1


# A chip of each family, by ncu's names.
CHIPS = {80: "ga100", 89: "ad102", 90: "gh100", 100: "gb100", 120: "gb202"}


@pytest.mark.skipif(not toolchain.ncu(), reason="Nsight Compute (ncu) is not there")
def test_ncu_has_the_metrics_of_each_family() -> None:
    """But for what its list has of no chip: what a launch is, and what follows of that."""
    assert CHIPS.keys() == ncu.families().keys()
    for capability, chip in CHIPS.items():
        done = subprocess.run(
            [toolchain.ncu(), "--query-metrics", "--chips", chip],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, **ncu.ENVIRONMENT},
        )
        # A word and a dot before a name make it another metric.
        listed = set(re.findall(r"^([a-z]\w*__\w+)(?:\s|$)", done.stdout, re.M))
        assert len(listed) > 1000
        asked = {own.partition(".")[0] for own in ncu.selection(capability).values()}
        absent = {m for m in asked - listed if not m.startswith("launch__")}
        assert absent == {"sm__maximum_warps_per_active_cycle_pct"}, chip


@NCU
def test_a_profile_with_all_metrics(evaluator: Evaluator) -> None:
    p = profiled(evaluator, KERNEL, profile="full")["profile"]
    assert p["tool"] == "ncu" and len(p["metrics"]) > 1000 and "missing" not in p
    assert not [m for m in p["metrics"] if m.startswith("device__")]


@NCU
def test_a_profile_of_a_forward_that_waits(evaluator: Evaluator) -> None:
    """It cannot be captured: its launches are those that PyTorch's profiler sees."""
    waits = KERNEL.replace(
        "def forward(self, x):\n", "def forward(self, x):\n        x[0, 0].item()\n"
    )
    p = profiled(evaluator, waits)["profile"]
    assert p["tool"] == "ncu"
    (kernel,) = [k for k in p["kernels"] if k["whose"] == "custom"]
    assert kernel["launches"] == 1 and kernel["metrics"]


def test_a_profile_without_ncu(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "ncu", lambda: "")
    p = profiled(evaluator, KERNEL)["profile"]
    assert (p["tool"], p["launches"]) == ("profiler", 1)
    assert p["why"] == "Nsight Compute (ncu) is not there"
    (kernel,) = p["kernels"]
    assert (kernel["whose"], kernel["grid"], kernel["metrics"]) == ("custom", [2048, 1, 1], {})
    assert 0 < p["ms"] < 1
