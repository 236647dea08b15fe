"""What a call takes on a GPU where another process has a context: one that is idle, that waits for
a word, as the referee's does while a worker has its turn (windows_cuda.py), that has just freed as
much memory as a large task's content takes, or that waits under Nsight Compute, which has measured
a launch of it, as the next profile's process does (profile_forward.py).

The work moves bytes, in memory of torch's own or of a block that two processes could map, or
computes. A row is one work; its columns are medians, in milliseconds, of calls that found nothing
of theirs in the L2.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "hwfeedback" / "harness"))

import torch  # noqa: E402

UNDER_NCU = "under ncu"
COMPILERS = "beside 8 nvcc"
STATES = ("alone", "idle", "waits", "frees torch's", "frees a block", UNDER_NCU, COMPILERS)
AHEAD = 2_000_000  # cycles, in which the host asks for the call


def other(channel: Connection, gib: float) -> None:
    """A process with a context, which does what it is told."""
    from kwharness.machine.gpu import gpu as this_gpu

    gpu = this_gpu()
    word = torch.zeros(16, dtype=torch.int32, device=gpu.torch)
    aside, turn = gpu.driver.stream(), 0
    gpu.synchronize()
    channel.send("there")
    while (said := channel.recv()) != "end":
        if said == "wait":
            turn += 1
            gpu.driver.await_word(word.data_ptr(), turn)
        elif said == "go on":
            gpu.driver.write_word(word.data_ptr(), turn, aside)
            gpu.synchronize()
        else:
            size = int(gib * 2**30)
            held = shared(size) if "block" in said else torch.zeros(size // 4, device="cuda")
            gpu.synchronize()
            del held
            torch.cuda.empty_cache()
        channel.send("done")


def waits_under_ncu() -> None:
    """What runs under ncu: it has a launch measured, and waits until it is killed."""
    runtime = torch.cuda.cudart()
    torch.zeros(1, device="cuda")
    runtime.cudaProfilerStart()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    runtime.cudaProfilerStop()
    print("there", flush=True)
    signal.pause()


def under_ncu() -> subprocess.Popen[str]:
    """Returns a process group that waits so."""
    from kwharness.machine import toolchain
    from kwharness.profile import ncu

    major, minor = torch.cuda.get_device_capability()
    command = ncu.command(toolchain.ncu(), [*ncu.selection(10 * major + minor).values()])
    started = subprocess.Popen(
        [*command, sys.executable, str(pathlib.Path(__file__).resolve()), "--under-ncu"],
        env={**os.environ, **ncu.ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    for line in started.stdout:
        if line.strip() == "there":
            return started
    sys.exit(f"ncu ended with exit code {started.wait()}")


def compilers(folder: str) -> subprocess.Popen[str]:
    """Returns a process group in which eight compilers are at work, one file after the other."""
    file = pathlib.Path(folder, "file.cu")
    kernels = (f"__global__ void k{i}(float* x) {{ x[threadIdx.x] *= {i}; }}\n" for i in range(99))
    file.write_text("#include <cuda_fp16.h>\n" + "".join(kernels))
    each = f"while nvcc -O3 -std=c++17 -c {file} -o {folder}/$i.o; do :; done"
    script = f"for i in 1 2 3 4 5 6 7 8; do ({each}) & done; echo there; wait"
    started = subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert started.stdout is not None
    started.stdout.readline()
    return started


def shared(size: int) -> torch.Tensor:
    from kwharness.machine.gpu import gpu as this_gpu

    block = this_gpu().create(size)
    floats = block.bytes().view(torch.float32)
    block.close()  # the memory stays as long as there are views
    return floats


def works(most: float) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields works by name, each with its own memory, which is free again with the next."""
    gib = 0.125
    while gib <= most:
        size = int(gib * 2**30)
        for where in ("torch", "shared"):
            x, y = (torch.zeros(size // 4 if where == "torch" else 0, device="cuda") for _ in "xy")
            if where == "shared":
                x, y = shared(size), shared(size)
            yield f"copies {gib:g} GiB, {where}", lambda x=x, y=y: torch.mul(x, 2.0, out=y)
            yield f"reads {gib:g} GiB, {where}", lambda x=x: x.sum()
            del x, y
            torch.cuda.empty_cache()
        gib *= 2
    x = torch.randn(4096, 4096, device="cuda")
    yield "softmax of 4096 x 4096", lambda: torch.softmax(x, 1)
    for n in (2048, 4096, 6144, 8192):
        a = torch.randn(n, n, device="cuda")
        yield f"product of {n}", lambda a=a: torch.mm(a, a)
    for us in (500, 2000, 8000):
        yield f"one thread, {us} us", lambda us=us: torch.cuda._sleep(us * 1800)


def timed(
    work: Callable[[], None], block: torch.Tensor, calls: int, before: Callable[[], None]
) -> float:
    """Returns the median of the calls' times, milliseconds."""
    took = []
    for _ in range(calls):
        before()
        block.sum()
        torch.cuda._sleep(AHEAD)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        took.append(start.elapsed_time(end))
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=7, help="of each work, in each state")
    parser.add_argument("--most", type=float, default=8.0, help="GiB, read and as much written")
    parser.add_argument("--states", default=",".join(STATES), help="in this order")
    parser.add_argument("--under-ncu", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU here")
    if args.under_ncu:
        waits_under_ncu()
    states = args.states.split(",")
    if unknown := set(states) - set(STATES):
        parser.error(f"no such state: {', '.join(sorted(unknown))}; there are {', '.join(STATES)}")
    context = mp.get_context("spawn")
    block = torch.ones(128 << 18, device="cuda")
    print(f"| {torch.cuda.get_device_name()} | {' | '.join(states)} |")
    print("|---|" + "---:|" * len(states))
    rows: dict[str, list[float]] = {}
    folder = tempfile.TemporaryDirectory()
    for state in states:
        channel = process = group = None
        if state == UNDER_NCU:
            group = under_ncu()
        elif state == COMPILERS:
            group = compilers(folder.name)
        elif state != "alone":
            channel, theirs = context.Pipe()
            process = context.Process(target=other, args=(theirs, args.most), daemon=True)
            process.start()
            channel.recv()

        def told(what: str, channel: Connection | None = channel) -> None:
            if channel is not None:
                channel.send(what)
                channel.recv()

        def before(state: str = state) -> None:
            if state.startswith("frees"):
                told(state)

        for name, work in works(args.most):
            work()
            torch.cuda.synchronize()
            if state == "waits":
                told("wait")
            rows.setdefault(name, []).append(timed(work, block, args.calls, before))
            if state == "waits":
                told("go on")
        if channel is not None and process is not None:
            channel.send("end")
            process.join()
        if group is not None:
            os.killpg(group.pid, signal.SIGKILL)
            group.wait()
    for name, found in rows.items():
        print(f"| {name} | {' | '.join(f'{ms:.4f}' for ms in found)} |")


if __name__ == "__main__":
    main()
