"""The CUDA driver and NVRTC. What needs a GPU is skipped without one.

NVRTC looks at the driver where there is one, so it runs in processes of its own, too.
"""

from __future__ import annotations

import array
import ctypes
import os
import pathlib
import re
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from process_layer import ask, obedient_server

import kernelwright
from kwharness.base.configs import BY_ROLE, Place
from kwharness.base.operations import WindowCalls
from kwharness.machine import cuda_driver, device, nvml
from kwharness.machine import gpu as gpus
from kwharness.timing import ceilings_cuda, gpu_worker
from kwharness.timing.ceilings import CeilingsFailed


def in_a_process(work) -> str:  # type: ignore[no-untyped-def]
    """Runs what touches the GPU, and returns what it returns: contexts do not outlive a test."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as e:
            os.write(write, f"{type(e).__name__}: {e}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        said = f.read()
    os.waitpid(pid, 0)
    return said


def absent() -> str:
    """Returns why there is no GPU here, or nothing."""
    try:
        cuda_driver.Driver()
    except cuda_driver.CudaError as e:
        return str(e)
    return ""


def minor_of(uuid: str, gpus: pathlib.Path = pathlib.Path("/proc/driver/nvidia/gpus")) -> int:
    """Returns the number of a GPU's device file, by what the driver says of each; else 0."""
    for told in gpus.glob("*/information"):
        text = told.read_text()
        minor = re.search(r"Device Minor:\s*(\d+)", text)
        if minor and uuid in text:
            return int(minor[1])
    return 0


def first() -> dict[str, Any]:
    """Returns the first GPU that may be seen (CUDA_VISIBLE_DEVICES)."""
    uuid = in_a_process(lambda: cuda_driver.Driver().uuid())
    return {"gpu": minor_of(uuid), "gpu_uuid": uuid}


ABSENT = in_a_process(absent)
SEES = {} if ABSENT else first()
gpu = pytest.mark.skipif(bool(ABSENT), reason=f"no GPU here: {ABSENT}")


def test_a_gpu_has_its_own_device_file(tmp_path: pathlib.Path) -> None:
    for n, uuid in enumerate(["GPU-one", "GPU-two"]):
        (tmp_path / f"0000:0{n}:00.0").mkdir()
        (tmp_path / f"0000:0{n}:00.0" / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {n + 3}\n"
        )
    assert [minor_of(u, tmp_path) for u in ("GPU-one", "GPU-two", "GPU-none")] == [3, 4, 0]


def test_the_compiler_says_what_is_wrong() -> None:
    def work() -> str:
        with pytest.raises(kernelwright.Refused) as caught:
            kernelwright.nvrtc("__global__ void f(float* x) {\n  x[0] = y;\n}", "sm_90")
        return str(caught.value)

    assert 'source0.cu(2): error: identifier "y" is undefined' in in_a_process(work)


def test_an_architecture_that_is_unknown() -> None:
    def work() -> str:
        with pytest.raises(kernelwright.Refused) as caught:
            kernelwright.nvrtc("", "sm_19")
        return str(caught.value)

    assert "gpu-architecture" in in_a_process(work)


def architectures() -> list[int]:
    """Returns what NVRTC compiles for, as 90 for sm_90."""
    lib = kernelwright._nvrtc()[0]
    count = ctypes.c_int()
    assert lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    found = (ctypes.c_int * count.value)()
    assert lib.nvrtcGetSupportedArchs(found) == 0
    return list(found)


def test_the_microbenchmarks_compile_for_all() -> None:
    def work() -> str:
        known = architectures()
        compiled = [ceilings_cuda.compile_for(n // 10, n % 10) for n in known]
        return f"{ {80, 90, 100} <= set(known) } { {c[1:4].decode() for c in compiled} }"

    assert in_a_process(work) == "True {'ELF'}"


@pytest.mark.skipif(not ABSENT, reason="there is a GPU here")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(cuda_driver.CudaError, match=r"no NVIDIA driver|NO_DEVICE|cuInit"):
        cuda_driver.Driver()
    with pytest.raises(CeilingsFailed, match="CudaError"):
        ceilings_cuda.measure(0)


def floats(driver: cuda_driver.Driver, address: int, n: int) -> list[float]:
    found = (ctypes.c_float * n)()
    driver.to_host(ctypes.addressof(found), address, 4 * n)
    return list(found)


@gpu
def test_memory_is_shared_by_descriptor() -> None:
    mine, theirs = socket.socketpair()

    def worker() -> str:
        driver = cuda_driver.Driver()
        driver.retain()
        size, ancillary, *_ = theirs.recvmsg(64, 64)
        fd = array.array("i", ancillary[0][2])[0]
        shared = driver.take(fd, int(size))
        os.close(fd)
        seen = floats(driver, shared.address, 4)
        driver.fill(shared.address, 0x40000000, 16)
        driver.synchronize()
        theirs.send(b"done")
        theirs.recv(1)
        shared.unmap()
        driver.release()
        return str(seen)

    def referee() -> str:
        driver = cuda_driver.Driver()
        driver.retain()
        shared, fd = driver.share(64)
        driver.fill(shared.address, 0x3F800000, 64)
        driver.synchronize()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        mine.sendmsg([str(shared.size).encode()], rights)
        os.close(fd)
        mine.recv(4)
        seen = floats(driver, shared.address, 5)
        mine.send(b"x")
        shared.unmap()
        driver.release()
        return str(seen)

    pid = os.fork()
    if pid == 0:
        ok = in_a_process(worker) == str([1.0] * 4)
        os._exit(0 if ok else 1)
    assert in_a_process(referee) == str([2.0] * 4 + [1.0])
    assert os.waitpid(pid, 0)[1] == 0


@gpu
def test_an_illegal_access_is_named_and_sticky() -> None:
    def work() -> str:
        driver = cuda_driver.Driver()
        driver.retain()
        source = 'extern "C" __global__ void f(float* x) { x[0] = 1; }'
        has = driver.attributes()
        module = driver.module(kernelwright.nvrtc(source, f"sm_{has['major']}{has['minor']}")[0])
        module.launch("f", 1, 1, [ctypes.c_uint64(64)])
        try:
            driver.synchronize()
        except cuda_driver.CudaError as e:
            return f"{e.name} {e.sticky}"
        return "nothing"

    assert in_a_process(work) == "CUDA_ERROR_ILLEGAL_ADDRESS True"
    assert in_a_process(lambda: cuda_driver.Driver().attributes()["warp_size"]) == "32"


class Limits:
    """A double of libcuda with a limit that a context has. ``code``: how asking for it ends."""

    def __init__(self, persisting: int, code: int = 0) -> None:
        self.persisting, self.code = persisting, code
        self.resets = 0

    def cuCtxGetLimit(self, into: Any, which: int) -> int:
        assert which == 6
        into._obj.value = self.persisting
        return self.code

    def cuCtxSetLimit(self, which: int, size: ctypes.c_size_t) -> int:
        assert which == 6
        self.persisting = size.value
        return 0

    def cuCtxResetPersistingL2Cache(self) -> int:
        self.resets += 1
        return 0


def test_what_persists_in_the_l2_is_given_up() -> None:
    """Where a context has set something aside, and nothing is asked of any other."""
    driver = cuda_driver.Driver.__new__(cuda_driver.Driver)
    for limits, resets in ((Limits(1 << 20), 1), (Limits(0), 0), (Limits(1 << 20, 215), 0)):
        driver._lib = limits  # type: ignore[assignment]
        driver.give_up_persisting()
        driver.give_up_persisting()
        assert limits.resets == resets
        assert limits.persisting == (limits.code and 1 << 20)


@pytest.mark.parametrize("turn", [0, 7])
def test_it_is_given_up_before_a_turn_and_after_each_call(turn: int) -> None:
    """A candidate sets it aside in forward: no turn has begun when that is taken back."""
    did: list[str] = []

    def noted(what: str) -> Callable[..., Any]:
        return lambda *_: did.append(what)

    side = gpu_worker.OnGpu.__new__(gpu_worker.OnGpu)
    side._channel = SimpleNamespace(send=noted("told"))  # type: ignore[assignment]
    driver = SimpleNamespace(give_up_persisting=noted("given up"))
    side._device = SimpleNamespace(  # type: ignore[assignment]
        driver=driver, synchronize=noted("over")
    )
    side._pool = SimpleNamespace(in_use=list, used=nullcontext)  # type: ignore[assignment]
    side._call = noted("asked")  # type: ignore[method-assign]
    side._kept, side._pairs, side._copies, side._own = [], [], [], 0.0
    side.calls(lambda _: [], WindowCalls(n=2, turn=turn))
    before = ["given up", "told"] if turn else []
    assert did == ["asked", "asked", *before, "over", "given up"]


@gpu
def test_a_gpu_takes_back_what_was_set_aside() -> None:
    """Also while a stream waits, as a worker's does for its turn."""

    def work() -> str:
        driver = cuda_driver.Driver()
        driver.retain()
        if not driver.attributes()["persisting_l2_bytes"]:
            return "0 0"
        pinned = torch.zeros(16, dtype=torch.int32).pin_memory()
        # As a referee does when nobody answers: nothing waits for ever here.
        late = threading.Timer(5.0, lambda: pinned.fill_(1))
        found, seen = ctypes.c_size_t(), []
        for waits in (False, True):
            driver._check("cuCtxSetLimit", 6, ctypes.c_size_t(1 << 20))
            if waits:
                late.start()
                driver.await_word(pinned.data_ptr(), 1)
            driver.give_up_persisting()
            driver._check("cuCtxGetLimit", ctypes.byref(found), 6)
            seen.append(str(found.value))
        pinned.fill_(1)
        driver.synchronize()
        late.cancel()
        return " ".join(seen)

    assert in_a_process(work) == "0 0"


@gpu
def test_a_block_is_unmapped_with_its_last_tensor() -> None:
    """While an exception goes by, too, which stays what it is."""

    def work() -> str:
        d = device.of("cuda")
        with pytest.raises(RuntimeError, match="mine"):
            _fails_with_a_block(d)
        d.create(1 << 20).close()
        before = d.free_bytes()
        block = d.create(1 << 30)
        view = block.bytes()[7:]
        block.close()
        held = before - d.free_bytes()
        del view
        return f"{held} {before - d.free_bytes()}"

    assert in_a_process(work) == f"{1 << 30} 0"


def _fails_with_a_block(d: device.Device) -> None:
    _tensor = d.create(1 << 30).bytes()[5:]
    raise RuntimeError("mine")


@gpu
def test_a_block_takes_what_torch_keeps() -> None:
    def work() -> str:
        d = device.of("cuda")
        size = int(d.free_bytes() * 0.6)
        torch.empty(size, dtype=torch.uint8, device=d.torch)
        block = d.create(size)
        with pytest.raises(cuda_driver.CudaError, match="OUT_OF_MEMORY"):
            d.create(size)
        return str(block.size == size)

    assert in_a_process(work) == "True"


@gpu
@pytest.mark.parametrize("apart", [True, False])
def test_what_a_large_tensor_left_can_be_given_back(apart: bool) -> None:
    def work() -> str:
        d = device.of("cuda")
        if apart:
            d.keep_apart()
        large = torch.empty(4 * gpus.APART, dtype=torch.uint8, device=d.torch)
        del large
        x = torch.ones(512, 512, device=d.torch)
        y = x @ x  # cuBLAS keeps memory for its work
        d.release()
        return str(torch.cuda.memory_reserved() < gpus.APART and bool(y.sum() > 0))

    assert in_a_process(work) == str(apart)


@gpu
def test_memory_that_is_not_there() -> None:
    def work() -> str:
        driver = cuda_driver.Driver()
        driver.retain()
        with pytest.raises(cuda_driver.CudaError) as caught:
            driver.allocate(1 << 45)
        return f"{caught.value.name} {caught.value.sticky} {driver.free_bytes() > 0}"

    assert in_a_process(work) == "CUDA_ERROR_OUT_OF_MEMORY False True"


@gpu
def test_ceilings_of_this_gpu() -> None:
    found = ceilings_cuda.measure(0)
    rates, has = found.ceilings, found.attributes
    # A double data rate, and a clock that says the memory's, not the transfers'.
    pins = 2e3 * has["memory_clock_khz"] * has["memory_bus_bits"] / 8 / 1e9
    assert 0.7 * pins < rates.memory_gbs < 1.05 * pins
    assert rates.read_gbs > 0.7 * pins
    assert rates.cache_gbs > 1.2 * rates.memory_gbs
    assert rates.tensor_gflops["float16"] > 3 * rates.fp32_gflops > 1e3
    assert 0.5 < rates.call_us < 5


@gpu
def test_the_sensors_of_this_gpu() -> None:
    seen = nvml.Sensors(SEES["gpu_uuid"]).read()
    assert seen.sm_mhz > 100 and 10 < seen.celsius < 110
    assert not seen.slowed


@gpu
def test_cuda_works_in_the_sandbox(tmp_path: pathlib.Path) -> None:
    path = os.environ.get("LD_LIBRARY_PATH", "")
    client, process = obedient_server(tmp_path, env={"LD_LIBRARY_PATH": path})
    try:
        for profile in ("reference", "candidate"):
            with client.spawn(BY_ROLE[profile](place=Place(**SEES))) as worker:
                asked = "import torch; r = torch.ones(3, device='cuda').cumsum(0).tolist()"
                assert ask(worker, asked) == [1.0, 2.0, 3.0]
            with client.spawn(BY_ROLE[profile](sandbox="strict")) as worker:
                assert ask(worker, "import torch; r = torch.cuda.is_available()") is False
    finally:
        client.close()
        process.wait(120)
