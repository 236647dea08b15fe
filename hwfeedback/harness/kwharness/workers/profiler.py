"""The profiler's worker: one candidate, whose kernels are measured in its own process.

In this sandbox NVIDIA's tools may look at what they start. Without a command it serves the
candidate itself, under PyTorch's profiler. With one (Nsight Compute's, ncu.command) it starts a new
interpreter under it, which serves the candidate over a socket of its own; here somebody waits for
the report, and ends what takes too long. All that comes back is what a candidate could have said.

Who serves is asked for what stands in base/for_candidate.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, os.path.realpath(os.path.join(__file__, "..", "..", "..")))

import torch

from kwharness.base import for_candidate, operations, trees
from kwharness.base.configs import ProfilerConfig
from kwharness.base.operations import Done
from kwharness.base.protocol import Channel
from kwharness.base.records import Message
from kwharness.machine import allocator
from kwharness.machine import device as devices
from kwharness.profile import ncu
from kwharness.standalone import interpreter, script
from kwharness.torch_compile import called_languages
from kwharness.workers import candidate as worker_candidate
from kwharness.workers import serving
from kwharness.workers.candidate import FILENAME

ENDING_S = 0.3  # for what is ending by itself when it is to be ended
LAST_S = 5.0  # that ncu has to write what it knows once its program has been ended
MAX_NODES = 100_000  # of a graph that are looked at
MAX_KINDS = 1000  # of launches
FORWARDS_S = 0.1  # PyTorch's profiler sees so many forwards as this takes, within
LEAST_FORWARDS, MOST_FORWARDS = 2, script.PROFILED
LOADING = (  # what is asked for until a candidate can be called
    for_candidate.Load,
    for_candidate.Init,
    operations.Carry,
    for_candidate.Describe,
    for_candidate.Show,
    for_candidate.Take,
    operations.Map,
)
_KERNEL, _CHILD = 0, 4  # CUgraphNodeType
Launch = tuple[str, tuple[int, ...], tuple[int, ...]]  # name, grid, block


def main(channel: Channel, config: ProfilerConfig, fds: list[int]) -> None:
    """``fds``: with a command, the socket of who serves the candidate."""
    if not config.command:
        serve(channel)
        return
    inner = fds.pop(0)
    report = os.path.join(os.environ["TMPDIR"], "report.csv")
    program = [sys.executable, "-I", "-B", os.path.realpath(__file__), str(inner)]
    try:
        process = subprocess.Popen(
            [*config.command, "--log-file", report, *program],
            stdin=subprocess.DEVNULL,
            pass_fds=[inner],
            env={**os.environ, **ncu.ENVIRONMENT},
        )
    except OSError as e:
        channel.send(serving.answered(for_candidate.ToolReport(said=e.strerror or "")))
        return
    finally:
        os.close(inner)
    stopped = _wait(channel, process)
    text = interpreter.read_text(report)[: ncu.MAX_REPORT]
    told = for_candidate.ToolReport(process.returncode, report=text, stopped=stopped)
    channel.send(serving.answered(told))


def _wait(channel: Channel, process: subprocess.Popen[bytes]) -> bool:
    """Returns when the program has ended, or was ended because the referee said so; whether it
    was. It sleeps until one of the two happens.
    """
    over, ends = socket.socketpair()

    def watch() -> None:
        process.wait()
        ends.close()

    threading.Thread(target=watch, daemon=True).start()
    ready, _, _ = select.select([channel.fileno(), over.fileno()], [], [])
    if over.fileno() in ready:
        return False
    msg, _ = channel.recv(1)  # Closed: who asked is gone, and so are we
    if select.select([over], [], [], ENDING_S)[0]:
        return False
    target, below = for_candidate.Stop.from_json(msg).pid, _children(process.pid)
    for pid in [target, *_children(target)] if target in below else below:
        with contextlib.suppress(OSError):
            os.kill(pid, 9)
    if not select.select([over], [], [], LAST_S)[0]:
        process.kill()
        select.select([over], [], [], LAST_S)
    return True


def _children(pid: int) -> list[int]:
    """Returns the processes below one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended since
            text = interpreter.read_text(f"/proc/{name}/stat")
            parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    found, left = [], [pid]
    while left:
        at = left.pop()
        below = [p for p, parent in parents.items() if parent == at]
        found += below
        left += below
    return found


class Profiled:
    """The candidate. Nothing touches the GPU before ``begin``."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.candidate: worker_candidate.Candidate | None = None

    def hold(self, _: operations.Hold, fds: list[int]) -> for_candidate.Holds:
        """Comes before anything of the candidate's."""
        fds.clear()
        return for_candidate.Holds(os.getpid())

    def begin(self, request: for_candidate.Begin, _: list[int]) -> Done:
        allocator.keep_freed_memory()
        device = devices.of(request.device)
        device.hold_to_float32()
        self.candidate = worker_candidate.Candidate(self.channel, device, False)
        if request.warm:
            device.wake_profiler()
        return Done()

    def of_the_candidate(self, kind: type[operations.Request]) -> serving.Op:
        def op(request: operations.Request, fds: list[int]) -> Message | None:
            assert self.candidate is not None
            answer = self.candidate.ops()[kind](request, fds)
            self.candidate.device.synchronize()  # what is answered has happened
            return answer

        return op

    def _forward(self, request: for_candidate.Measure) -> Callable[[], Any]:
        """Returns a forward that has been called before. Its inputs are its process's own."""
        c = self.candidate
        assert c is not None
        inputs = [v.clone() for v in c.blocks.views("in", request.layout)]
        if (carrier := c.carrier()) is not None:
            inputs = carrier.prepare(inputs)  # from there on it goes on by itself
        args = trees.build(request.tree, inputs)

        def forward() -> Any:
            with torch.no_grad():
                return c.model(*args)

        try:
            for _ in range(request.warm):
                forward()
            c.device.synchronize()
        except BaseException as e:
            raise serving.StageError("forward", e) from e
        return forward

    def measure(self, request: for_candidate.Measure, _: list[int]) -> for_candidate.Measured:
        """Has ncu measure what one forward launches. Returns what that is, where it can be known:
        ncu looks at one launch of each kind.
        """
        forward = self._forward(request)
        assert self.candidate is not None
        device = self.candidate.device
        with device.watched():
            try:
                forward()
                device.synchronize()
            except BaseException as e:
                raise serving.StageError("forward", e) from e
        captured: list[Any] | None = None
        more = 0
        with contextlib.suppress(Exception):  # it waits for the GPU, or captures by itself
            captured, more = counted(capture(forward))
        return for_candidate.Measured(captured, more)

    def launches(self, request: for_candidate.ListLaunches, _: list[int]) -> for_candidate.Listed:
        """Returns what PyTorch's profiler sees of forwards."""
        forward = self._forward(request)
        began = time.perf_counter()
        forward()
        torch.cuda.synchronize()
        fit = int(FORWARDS_S / max(time.perf_counter() - began, 1e-6))
        times = min(max(fit, LEAST_FORWARDS), MOST_FORWARDS)
        seen = script.profiled(forward, times, request.most)
        return for_candidate.Listed(json.dumps(seen), seen["more"], seen["more_ms"])


def serve(channel: Channel) -> None:
    p = Profiled(channel)
    ops: dict[type[operations.Request], serving.Op] = {
        operations.Hold: p.hold,
        for_candidate.Begin: p.begin,
        for_candidate.Measure: p.measure,
        for_candidate.ListLaunches: p.launches,
    }
    ops |= {k: p.of_the_candidate(k) for k in LOADING}
    serving.serve(channel, serving.answering(ops), FILENAME)


def counted(launches: Iterable[Launch]) -> tuple[list[Any], int]:
    """Returns [name, grid, block, count] of each kind, of the first MAX_KINDS, and how many
    launches are of other kinds.
    """
    count: dict[Launch, int] = {}
    more = 0
    for launch in launches:
        if launch in count or len(count) < MAX_KINDS:
            count[launch] = count.get(launch, 0) + 1
        else:
            more += 1
    return [[name, grid, block, n] for (name, grid, block), n in count.items()], more


def capture(forward: Callable[[], Any]) -> list[Launch]:
    """Returns the kernels that a forward launches, by capturing it as a CUDA graph. Raises whatever
    comes of a forward that cannot be captured.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        forward()
    driver = ctypes.CDLL("libcuda.so.1")
    found: list[Launch] = []
    left = [ctypes.c_void_p(graph.raw_cuda_graph())]
    seen = 0
    while left:
        for node in _nodes(driver, left.pop()):
            seen += 1
            kind = ctypes.c_int()
            _check(driver.cuGraphNodeGetType(node, ctypes.byref(kind)))
            if kind.value == _CHILD:
                child = ctypes.c_void_p()
                _check(driver.cuGraphChildGraphNodeGetGraph(node, ctypes.byref(child)))
                left.append(child)
            elif kind.value == _KERNEL:
                found.append(_kernel(driver, node))
            if seen > MAX_NODES:
                raise ValueError("it launches too much to be listed")
    return found


class _KernelParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"the driver answers {code}")


def _nodes(driver: ctypes.CDLL, graph: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    count = ctypes.c_size_t()
    _check(driver.cuGraphGetNodes(graph, None, ctypes.byref(count)))
    if count.value > MAX_NODES:
        raise ValueError("it launches too much to be listed")
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        _check(driver.cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    return [ctypes.c_void_p(n) for n in nodes]


def _kernel(driver: ctypes.CDLL, node: ctypes.c_void_p) -> Launch:
    p = _KernelParameters()
    _check(driver.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(p)))
    name = ctypes.c_char_p()
    if p.function:
        _check(driver.cuFuncGetName(ctypes.byref(name), ctypes.c_void_p(p.function)))
    else:
        _check(driver.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(p.kernel)))
    return demangled(name.value or b""), tuple(p.grid), tuple(p.block)


def demangled(name: bytes) -> str:
    """Returns a name as it stands in C++."""
    with contextlib.suppress(OSError, AttributeError, KeyError):
        function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
        function.restype = ctypes.c_void_p
        status = ctypes.c_int()
        at = function(name, None, None, ctypes.byref(status))
        if at:
            text = ctypes.string_at(at)
            ctypes.CDLL(None).free(ctypes.c_void_p(at))
            name = text
    return name.decode("utf-8", "replace")[: ncu.MAX_NAME]


if __name__ == "__main__":
    called_languages.prepare()
    serve(Channel.of_fd(int(sys.argv[1])))
    os._exit(0)  # nothing of the candidate's runs any more, and ncu has seen what it is to see
