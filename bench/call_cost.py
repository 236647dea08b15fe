"""Prints what a call of a native function costs, in microseconds of the host: by its checks and
conversions, beside the same function (and on a GPU the same launch) called with what they result
in, and beside PyTorch's own smallest operator.
"""

from __future__ import annotations

import argparse
import ctypes
import pathlib
import sys
import time
from collections.abc import Callable

import torch

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "hwfeedback" / "harness"))

from kernelwright import native  # noqa: E402

CPP = 'extern "C" void nothing(const float* x, float* y, long long n) {}'
NVRTC = 'extern "C" __global__ void nothing(const float* x, float* y, long long n) {}'
NVCC = """
__global__ void nothing_on_gpu(const float* x, float* y, long long n) {}
extern "C" void nothing(const float* x, float* y, long long n, cudaStream_t stream) {
  nothing_on_gpu<<<1, 32, 0, stream>>>(x, y, n);
}
"""
# A queue of launches holds some thousand: a batch never waits for the GPU.
BATCH, BATCHES = 500, 200


def microseconds(call: Callable[[], object], device: str) -> float:
    """Returns those of one call, the least of many batches."""
    least = float("inf")
    for _ in range(BATCHES):
        begun = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        least = min(least, (time.perf_counter_ns() - begun) / BATCH / 1e3)
        if device == "cuda":
            torch.cuda.synchronize()
    return least


def row(name: str, device: str, ours: Callable[[], object], bare: Callable[[], object]) -> None:
    whole, part = microseconds(ours, device), microseconds(bare, device)
    print(f"| {name} | {whole:.2f} | {part:.2f} | **{whole - part:.2f}** |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    x = torch.ones(32, device=device)
    y, n = torch.empty_like(x), x.numel()
    given = (x.data_ptr(), y.data_ptr(), n)
    print("| call | us | of which without checks | checks and conversions |")
    print("|---|---:|---:|---:|")
    if device == "cpu":
        lib = native(source=CPP)
        row("C++", device, lambda: lib.nothing(x, y, n), lambda: lib._library.nothing(*given))
    else:
        stream = torch.cuda.current_stream().cuda_stream
        lib = native(language="cuda", source=NVCC)
        bare = lib._library.nothing
        name = "CUDA, launched by its own host code"
        row(name, device, lambda: lib.nothing(x, y, n), lambda: bare(*given, stream))
        kernel = native(language="cuda", source=NVRTC).nothing
        values = [ctypes.c_void_p(given[0]), ctypes.c_void_p(given[1]), ctypes.c_longlong(n)]
        pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
        launch, handle = kernel._driver.launch, kernel._handle
        row(
            "CUDA, launched from Python",
            device,
            lambda: kernel[1, 32](x, y, n),
            lambda: launch(handle, 1, 1, 1, 32, 1, 1, 0, stream, pointers, None),
        )
    least = microseconds(lambda: torch.relu_(x), device)
    print(f"| PyTorch's relu_ of 32 elements | {least:.2f} | | |")


if __name__ == "__main__":
    main()
