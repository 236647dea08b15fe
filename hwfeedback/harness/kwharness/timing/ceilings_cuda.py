"""Ceilings of a GPU: the rates that nothing on it exceeds by much, measured in a few seconds.

Memory, L2 and fused multiply-adds by kernels of our own (ceilings_cuda.cu, compiled by NVRTC);
the tensor cores by the vendor's matrix products, which is what reaches most of them. All in a
forked process, so that no context stays behind. What is kept is the fastest pass; the spread says
how far the typical one stays below it, which is much where something else used the GPU.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kernelwright
from kwharness.base.requests import Ceilings
from kwharness.machine import cuda_driver, health
from kwharness.timing.ceilings import MeasuredCeilings, forked

SOURCE = Path(__file__).with_name("ceilings_cuda.cu")
MEASURE_S = 90.0
PASSES = 15
MEMORY_BYTES = 2 << 30  # read and as many written: beside it no cache of any GPU counts
L2_PASSES = 40
FMA_TURNS = 1000
LAUNCHES = 500  # half of what a stream queues
QUEUED_NS = 20_000  # that the host has for each of them
PRODUCTS = 8192, 4096  # rows and columns of the matrices
PAUSE_S = 0.005  # before a product: one after the other, they may be slowed down for their power
BLOCK = 512


def measure(index: int) -> MeasuredCeilings:
    """Measures one GPU: ``cache_gbs`` are reads from L2, ``call_us`` is one launch after the other.

    Raises CeilingsFailed.
    """
    if torch.cuda.is_initialized():  # what is forked from this process cannot use CUDA any more
        return _measure(index)
    return forked(lambda: _measure(index), MEASURE_S)


def compile_for(major: int, minor: int) -> bytes:
    """Returns the microbenchmarks for one architecture."""
    return kernelwright.nvrtc(SOURCE.read_text(), f"sm_{major}{minor}")[0]


def _measure(index: int) -> MeasuredCeilings:
    driver = cuda_driver.Driver(index)
    has = driver.attributes()
    driver.retain()
    module = driver.module(compile_for(has["major"], has["minor"]))
    each = min(MEMORY_BYTES, driver.free_bytes() // 4) // 512 * 512
    x, y = driver.allocate(each), driver.allocate(each)
    driver.fill(x, 0x3F800000, each)
    driver.fill(y, 0, each)
    sms = has["multiprocessors"]
    # As many blocks as stay on the device at once, and a few more of them.
    blocks = [sms * n for n in (2, 4, 8, 16)]
    best = functools.partial(_best, driver)
    vectors = each // 16
    small = max(has["l2_bytes"] // 2, 1 << 20) // 16
    a, b = ctypes.c_uint64(x), ctypes.c_uint64(y)

    def copy(block: int) -> None:
        module.launch("copy", -(-vectors // block), block, [a, b, ctypes.c_longlong(vectors)])

    def stream(grid: int) -> None:
        module.launch("read", grid, BLOCK, [a, b, ctypes.c_longlong(vectors), ctypes.c_int(1)])

    def cached(grid: int) -> None:
        args = [a, b, ctypes.c_longlong(small), ctypes.c_int(L2_PASSES)]
        module.launch("read", grid, BLOCK, args)

    def fma(grid: int) -> None:
        turns = ctypes.c_int(FMA_TURNS)
        module.launch(
            "multiply_add", grid, 256, [b, ctypes.c_float(0.999), ctypes.c_float(1e-3), turns]
        )

    memory, s1 = best(2.0 * each, copy, [256, 512])
    streamed, s2 = best(float(each), stream, blocks)
    cache, s3 = best(16.0 * small * L2_PASSES, cached, blocks)
    grid = sms * 16
    fp32, s4 = best(2.0 * 256 * FMA_TURNS * 256 * grid, fma, [grid])
    call_s = _launch_s(driver, module)
    driver.free(x)
    driver.free(y)
    module.unload()
    tensor, s5 = _products(index)
    driver.release()
    rates = Ceilings(
        memory_gbs=memory / 1e9,
        read_gbs=streamed / 1e9,
        cache_gbs=cache / 1e9,
        fp32_gflops=fp32 / 1e9,
        tensor_gflops=tensor,
        call_us=1e6 * call_s,
        measured_at=int(time.time() * 1000),
        note=f"the fastest of {PASSES} passes; {each >> 20} MiB copied and read, "
        f"{small >> 16} MiB read from L2, products of {PRODUCTS[0]} and {PRODUCTS[1]} rows",
    )
    return MeasuredCeilings(rates, max(s1, s2, s3, s4, s5), has)


def _best(
    driver: cuda_driver.Driver, work: float, launch: Callable[[int], None], shapes: list[int]
) -> tuple[float, float]:
    """Returns the fastest rate over the shapes, and how far its typical pass stays below."""
    found = []
    for shape in shapes:
        launch(shape)
        took = []
        for _ in range(PASSES):
            with driver.timed() as t:
                launch(shape)
            took.append(t[0])
        found.append((work / min(took), 1 - min(took) / statistics.median(took)))
    return max(found)


def _launch_s(driver: cuda_driver.Driver, module: cuda_driver.Module) -> float:
    """Returns the seconds from one empty kernel to the next where all are queued already: so it is
    the device that is measured, and not how fast this process launches.
    """
    took = []
    for _ in range(PASSES):
        driver.synchronize()
        module.launch("wait", 1, 1, [ctypes.c_longlong(LAUNCHES * QUEUED_NS)])
        with driver.timed() as t:
            for _ in range(LAUNCHES):
                module.launch("empty", 1, 32, [])
        took.append(t[0] / LAUNCHES)
    return min(took)


def _products(index: int) -> tuple[dict[str, float], float]:
    """Returns 1e9 operations a second by type of operand, and the largest spread."""
    device = torch.device("cuda", index)
    g = torch.Generator(device).manual_seed(1)
    one = torch.ones((), device=device)
    rates: dict[str, float] = {}
    spreads = [0.0]

    def product(name: str, n: int, work: Callable[[], Any]) -> None:
        try:
            work()
        except (RuntimeError, NotImplementedError, AttributeError) as e:
            if health.said(str(e)):
                raise
            return  # this GPU or this torch has no such product
        torch.cuda.synchronize(device)
        took = []
        for _ in range(PASSES):
            time.sleep(PAUSE_S)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end) / 1e3)
        rates[name] = max(rates.get(name, 0.0), 2.0 * n**3 / min(took) / 1e9)
        spreads.append(1 - min(took) / statistics.median(took))

    def products(n: int) -> None:
        x, y = (torch.randn(n, n, device=device, generator=g) for _ in range(2))
        half, brain = (x.half(), y.half()), (x.bfloat16(), y.bfloat16())
        eighth = [v.to(torch.float8_e4m3fn) for v in (x, y)]
        whole = [v.mul(30).to(torch.int8) for v in (x, y)]
        for pair in (eighth, whole):
            pair[1] = pair[1].t().contiguous().t()  # only so does the vendor multiply these
        scaled = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
        product("tf32", n, lambda: x @ y)
        product("float16", n, lambda: half[0] @ half[1])
        product("bfloat16", n, lambda: brain[0] @ brain[1])
        product("float8", n, lambda: torch._scaled_mm(*eighth, **scaled))
        product("int8", n, lambda: torch._int_mm(*whole))

    with torch.cuda.device(device):
        torch.backends.cuda.matmul.allow_tf32 = True
        for n in PRODUCTS:
            if 32 * n * n <= torch.cuda.mem_get_info(device)[0]:
                products(n)
    return rates, max(spreads)
