"""Kernels that are launched from Python: read, compiled (which needs no GPU), built in a builder's
sandbox, and launched, on a double of the driver where there is no GPU.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from costs import instructions
from test_builder_client import build
from test_cuda_driver import in_a_process

import kernelwright
from kwharness.base.verdicts import Diagnostic
from kwharness.build import diagnostics, forms, object_cache
from kwharness.machine import toolchain

EXAMPLE = (
    pathlib.Path(__file__).parents[4] / "examples" / "candidates" / "softmax_cuda_kernel.py"
).read_text()
SOURCE = r"""
#include <cuda_fp16.h>
template <int N> __device__ float times(float x) { return N * x; }
extern "C" __global__ void __launch_bounds__(256, (1 + 1)) twice(
    const float* __restrict__ x, float* y, int64_t n, float by, bool on) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = on ? times<2>(x[i]) * by : INFINITY;
}
extern "C" {
__launch_bounds__(32) __global__ void halves(__half* x, std::uint32_t n) { x[n] = x[0]; }
}
"""


def test_kernels_are_told_from_functions() -> None:
    found = kernelwright.kernels(SOURCE)
    assert found == {
        "twice": [
            ("x", "float", True),
            ("y", "float", True),
            ("n", "int64_t", False),
            ("by", "float", False),
            ("on", "bool", False),
        ],
        "halves": [("x", "__half", True), ("n", "uint32_t", False)],
    }
    assert kernelwright.prototypes(SOURCE) == {}
    both = SOURCE + 'extern "C" void run(float* x, cudaStream_t s) { twice<<<1, 1, 0, s>>>(x); }'
    assert kernelwright.kernels(both) == {}
    assert set(kernelwright.prototypes(both)) == {"run"}
    with pytest.raises(ValueError, match='a kernel that is launched from Python is extern "C"'):
        kernelwright.declared("__global__ void f(float* x) {}")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "#include <cuda_runtime.h>\n#include <math.h>\n#include <cfloat>\n#include <stdint.h>",
        "#include <cuda_bf16.h>\n#include <mma.h>\n#include <cooperative_groups.h>",
        "#include <cuda/std/cstdint>\n#include <cuda/std/limits>",
        "#include <cuda_pipeline.h>\n#include <cuda/barrier>",
    ],
)
def test_nvrtc_compiles(line: str) -> None:
    def work() -> str:
        image, log = kernelwright.nvrtc(f"{line}\n{SOURCE}", "sm_90a", ["--ptxas-options=-v"])
        said = diagnostics.resources(log)
        return f"{image[1:4].decode()} {sorted(k.name for k in said)} {said[0].arch}"

    if "cuda/" in line and not any(i.endswith("cccl") for i in kernelwright._nvrtc()[1]):
        pytest.skip("there is no CCCL here")
    assert in_a_process(work) == "ELF ['halves', 'twice'] sm_90a"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_it_compiles_for_others(arch: str) -> None:
    def work() -> str:
        return kernelwright.nvrtc(SOURCE, arch, ["--use_fast_math", "-O3", "-maxrregcount=64"])[0][
            :4
        ].hex()

    assert in_a_process(work) == b"\x7fELF".hex()


class Double:
    """A driver that notes what is launched."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.launched: list[tuple[Any, ...]] = []
        self.kinds: list[Any] = []
        self.shared: list[int] = []
        self.entered = 0

    def enter(self) -> None:
        self.entered += 1
        self.code = 0

    def launch(self, handle: Any, *rest: Any) -> int:
        *shape, stream, pointers, extra = rest
        values = [
            ctypes.cast(p, ctypes.POINTER(k)).contents.value
            for p, k in zip(pointers, self.kinds, strict=False)
        ]
        self.launched.append((handle, tuple(shape), stream, values, extra))
        return self.code

    def words(self, code: int) -> str:
        return f"error {code}"

    def allow_shared(self, handle: Any, size: int) -> None:
        if size > 227 << 10:
            raise RuntimeError("cuKernelSetAttribute: invalid argument")
        self.shared.append(size)


class Stands:
    """A tensor on a GPU, for whoever only looks at it."""

    def __init__(self, dtype: torch.dtype = torch.float32, at: int = 4096) -> None:
        self.dtype, self.is_cuda, self._at = dtype, True, at

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return self._at


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(kernelwright, "_current_stream", lambda: lambda: 77)
    return 77


def kernel(driver: Double, name: str = "twice") -> kernelwright.Kernel:
    made = kernelwright.Kernel(name, kernelwright.kernels(SOURCE)[name], "handle", driver)  # type: ignore[arg-type]
    driver.kinds = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_float,
        ctypes.c_bool,
    ]
    return made


def test_a_launch(stream: int) -> None:
    driver = Double()
    twice = kernel(driver)
    x, y = Stands(at=4096), Stands(at=1 << 40)
    twice[7, 256](x, y, 1 << 35, 0.5, True)
    twice[(7, 2), (32, 4, 2), 1024](None, y, -1, 3, False)
    twice[[7, 2, 3], 64](x, y, 0, 0, True)
    twice[torch.tensor(5), 64](x, y, 0, 0, True)
    assert [(s, v) for _, s, _, v, _ in driver.launched] == [
        ((7, 1, 1, 256, 1, 1, 0), [4096, 1 << 40, 1 << 35, 0.5, True]),
        ((7, 2, 1, 32, 4, 2, 1024), [None, 1 << 40, -1, 3.0, False]),
        ((7, 2, 3, 64, 1, 1, 0), [4096, 1 << 40, 0, 0.0, True]),
        ((5, 1, 1, 64, 1, 1, 0), [4096, 1 << 40, 0, 0.0, True]),
    ]
    assert {(h, s, e) for h, s, _, _, e in [(d[0], d[2], 0, 0, d[4]) for d in driver.launched]} == {
        ("handle", stream, None)
    }
    assert driver.shared == []


def test_shared_memory_beyond_48_kib_is_asked_for_once(stream: int) -> None:
    driver = Double()
    twice = kernel(driver)
    for size in (48 << 10, 100 << 10, 64 << 10, 200 << 10):
        twice[1, 1, size](Stands(), Stands(), 0, 0, True)
    assert driver.shared == [100 << 10, 200 << 10]
    with pytest.raises(RuntimeError, match="twice: 300000 bytes of shared memory are refused"):
        twice[1, 1, 300000]


def test_a_thread_without_a_context_gets_one(stream: int) -> None:
    driver = Double(code=201)
    x = Stands()
    kernel(driver)[4, 256](x, x, 8, 1.0, True)
    assert driver.entered == 1 and len(driver.launched) == 2
    assert driver.launched[0] == driver.launched[1]


def test_what_is_wrong_with_a_launch_is_said(stream: int) -> None:
    driver = Double()
    twice = kernel(driver)
    x, y = Stands(), Stands()
    cases: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
        ((1, 2), (torch.ones(2), y, 1, 1, True), ValueError, "'x' must be on the GPU, is on cpu"),
        ((1, 2), (x, y, 1.5, 1, True), TypeError, "twice"),
        ((1, 2), (x, y, 1, 1), TypeError, "'on'"),
        ((1, 2), (3, y, 1, 1, True), TypeError, "'x' must be a tensor, got int"),
        ((0, 2), (x, y, 1, 1, True), ValueError, "no grid"),
        ((1, (1, 2, 3, 4)), (x, y, 1, 1, True), ValueError, "no grid"),
        (7, (x, y, 1, 1, True), TypeError, "grid, block"),
        ((1, 1, -1), (x, y, 1, 1, True), ValueError, "shared memory"),
    ]
    for shape, given, kind, words in cases:
        with pytest.raises(kind, match=words):
            twice[shape](*given)
    with pytest.raises(TypeError, match=r"launch it as twice\[grid, block\]"):
        twice(x, y, 1, 1, True)
    assert not driver.launched
    refuses = kernel(Double(code=1))
    with pytest.raises(RuntimeError, match=r"\(9, 1, 1\) blocks of \(4096, 1, 1\).*error 1"):
        refuses[9, 4096](x, y, 1, 1, True)
    halves = kernelwright.Kernel("halves", kernelwright.kernels(SOURCE)["halves"], None, driver)  # type: ignore[arg-type]
    with pytest.raises(OverflowError, match="'n' = -1 does not fit"):
        halves[1, 1](Stands(torch.float16), -1)
    with pytest.raises(ValueError, match="by value"):
        kernelwright.Kernel("f", [("s", "cudaStream_t", False)], None, driver)  # type: ignore[arg-type]


def test_two_threads_do_not_mix_their_arguments(stream: int) -> None:
    driver = Double()
    twice = kernel(driver)

    def launches(at: int) -> None:
        x = Stands(at=at)
        for _ in range(2000):
            twice[at, 32](x, x, at, at, True)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=launches, args=(n,)) for n in (1, 2, 3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    assert len(driver.launched) == 6000
    for _, shape, _, values, _ in driver.launched:
        assert values == [shape[0], shape[0], shape[0], float(shape[0]), True]


def test_a_launch_is_little_work(stream: int) -> None:
    """Beside the driver's part: how long it takes is call_cost.py's."""

    class Quick(Double):
        def __init__(self) -> None:
            super().__init__()
            self.launch = ctypes.CDLL(None).getpid  # type: ignore[method-assign]
            self.launch.argtypes = [  # as the driver's
                ctypes.c_void_p,
                *[ctypes.c_uint] * 7,
                *[ctypes.c_void_p] * 3,
            ]
            self.launch.restype = None

    twice = kernelwright.Kernel("twice", kernelwright.kernels(SOURCE)["twice"], None, Quick())  # type: ignore[arg-type]
    x = Stands()
    assert instructions(lambda: twice[4096, 256](x, x, 8, 1.0, True)) < 250  # 123 in Python 3.11


def magic(built: Any) -> bytes:
    [fd] = object_cache.open_all(built.artifacts)
    try:
        return os.pread(fd, 4, 0)
    finally:
        os.close(fd)


def test_the_example_is_built(server: Any, tmp_path: pathlib.Path) -> None:
    text = EXAMPLE.replace("launched from Python", str(time.time_ns()))
    built = build(server, text, tmp_path, device="cuda", arch="sm_90a")
    assert (built.status, built.build.form, built.language) == ("", "native", "cuda")
    kernels = built.build.kernels
    assert [(k.name, k.arch, k.shared_bytes) for k in kernels] == [("softmax", "sm_90a", 128)]
    assert 8 < kernels[0].registers < 64
    [artifact] = built.artifacts
    assert magic(built) == b"\x7fELF"
    again = build(server, text + "\n# a remark\n", tmp_path, device="cuda", arch="sm_90a")
    assert again.artifacts == [artifact] and not again.build.cached
    other = build(server, text, tmp_path, device="cuda", arch="sm_80")
    assert other.build.kernels[0].arch == "sm_80"
    assert other.artifacts[0].sha256 != artifact.sha256
    cpu = build(server, text, tmp_path, forbids=True)
    assert (cpu.status, cpu.reason) == (
        "rejected",
        "it is written in CUDA, and the device is the CPU",
    )


def test_errors_have_the_candidates_lines(server: Any, tmp_path: pathlib.Path) -> None:
    text = EXAMPLE.replace("m = all(m, true);", "m = all(m, q);")
    line = next(i for i, row in enumerate(text.split("\n"), 1) if "all(m, q)" in row)
    built = build(server, text, tmp_path, device="cuda", arch="sm_90a")
    assert built.status == "build_failed", built
    assert built.build.errors[0] == Diagnostic(line, 'identifier "q" is undefined')
    assert f"candidate.py({line}): error" in built.build.log


def test_what_nvrtc_does_not_compile_nvcc_does(server: Any, tmp_path: pathlib.Path) -> None:
    if not toolchain.nvcc():
        pytest.skip("there is no nvcc here")
    text = EXAMPLE.replace('r"""', 'r"""\n#include <limits>\nstatic int host() { return 1; }')
    text = text.replace("-INFINITY", "-std::numeric_limits<float>::infinity()")
    text = text.replace('language="cuda",', 'language="cuda", flags=("--expt-relaxed-constexpr",),')
    built = build(server, text, tmp_path, device="cuda", arch="sm_90a")
    assert built.status == "", built
    assert built.build.kernels[0].name == "softmax"
    assert magic(built) == b"\x7fELF"


def test_who_lies_about_its_form_is_refused(server: Any, tmp_path: pathlib.Path) -> None:
    """What is asked for comes from a process that has run the candidate: another's object must
    not come of it.
    """
    whole = EXAMPLE.replace(
        'extern "C" __global__ void softmax',
        'extern "C" void other(float* x) {}\nextern "C" __global__ void softmax',
    )
    request = {"kind": "native", "language": "cuda", "flags": [], "name": "native"}
    request |= {"source": whole.split('r"""')[1].split('"""')[0], "launched": True}
    asked = forms.checked_request(request, "sm_90a")
    truly = forms.checked_request({**request, "launched": False}, "sm_90a")
    assert asked["request"] == truly["request"]
    assert object_cache.object_key(asked) != object_cache.object_key(truly)


def test_an_exported_file_needs_no_compiler(tmp_path: pathlib.Path) -> None:
    """Only NVRTC is asked, which is in torch's package."""
    from kwharness.export import inline_loader

    text = inline_loader.standalone(EXAMPLE)
    path = tmp_path / "softmax_best.py"
    path.write_text(
        "import subprocess, torch\n"
        "torch.cuda.get_device_capability = lambda *_: (9, 0)\n"
        "def none(*_, **__): raise AssertionError('a program was started')\n"
        "subprocess.run = none\n"
        f"{text}"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(path)],
        env={"PATH": "/nowhere", "HOME": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    # Compiled; to load it takes a driver, and it says so here.
    assert len(list((tmp_path / "kernelwright").glob("native-*.cubin"))) == 1, done.stderr
    assert done.returncode == 0 or "libcuda" in done.stderr or "NVIDIA" in done.stderr, done.stderr
