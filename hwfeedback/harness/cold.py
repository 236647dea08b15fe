"""Runs an exported file as its user will: in a new interpreter, which compiles it, and into which
nothing of ours is imported before it. On a GPU its kernels are listed as a profiler sees them, and
compute-sanitizer looks at them, in interpreters that nobody judges, which find what the first has
compiled. They start beside the first, import PyTorch and wait: nothing runs beside a profile.

``run`` is the referee's side, ``serve`` the sandboxed worker's; ``cold_script.py`` is what the new
interpreter does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import artifacts
import device as devices
import kernelwright
import sandbox
import sanitizers
from clients import how_it_ended
from device import CPU, Device, GpuBlock
from forkserver import ForkServer
from protocol import Closed, ProtocolError, Timeout
from sandbox import SandboxError
from sanitizers import Check
from tensors import Block, layout_of

HERE = os.path.dirname(os.path.realpath(__file__))
SCRIPT = "cold_script.py"
# For the script, once the file is imported.
TOOLS = ("trees.py", "tensors.py")
TO_MAP = ("device.py", "cuda.py", "allocator.py", "toolchain.py")  # memory of a GPU
# Bytes of a call that are handed over in the GPU's memory, which spares copies through the host's,
# where so many times as much of it is free: who is handed it has copies of its own.
LARGE, ROOM = 1 << 28, 4
CHECK_S = 90.0  # a sanitizer may take, all of them at once; so may the profiler
CHECKING = 512  # processes and threads of all sanitizers together
SHOWN = 40  # launches of a forward
MAX_PROFILE = 1 << 20  # characters
MAX_READ = 1 << 24
REQUESTS = ("alone", "whole", "few")  # the script's: the first is judged, others are looked at
GO_ON = b"1"  # to an interpreter that waits
_LONG_MS = 1e9
_LATE = sanitizers.LATE
_SAID = 2000  # characters of what one prints that is not well


@dataclass(frozen=True)
class Call:
    """What the file is given, and what of it comes back: tensors like ``outputs``, which need no
    content.
    """

    init: tuple[Any, Sequence[torch.Tensor]]
    state: tuple[Sequence[str], Sequence[torch.Tensor]]
    inputs: tuple[Any, Sequence[torch.Tensor]]
    outputs: tuple[Any, Sequence[torch.Tensor]]
    eval_mode: bool
    threads: int
    place: dict[str, Any] = field(default_factory=dict)  # what a worker is told of its GPU
    orders: Sequence[Sequence[int]] = ()  # of inputs: see tensors.layout_of


@dataclass(frozen=True)
class Launch:
    """One kind of what a forward has the GPU do: a kernel, or a copy."""

    name: str
    count: int
    ms: float  # of all of them together, median over forwards
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass
class Ran:
    """What came of it. ``outputs`` lie on the call's device. ``span_ms``: what the profiler sees
    of a forward, from where the first kernel starts until the last has ended, the L2 being empty of
    it; 0 where it sees nothing.
    """

    outputs: list[torch.Tensor]
    launches: list[Launch] = field(default_factory=list)
    span_ms: float = 0.0
    checks: list[Check] = field(default_factory=list)
    checks_s: float = 0.0  # that the sanitizers took, all of them at once


class Broken(Exception):
    """The file does not do by itself what it did in the harness. ``log`` is what it printed."""

    def __init__(self, message: str, log: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.log = log
        self.late = late


def lacking(form: str) -> str:
    """Returns what a file of this form needs and this environment does not have, or ""."""
    has = shutil.which("ninja") or importlib.util.find_spec("ninja")
    return "ninja, which load_inline needs," if form == "load_inline" and not has else ""


class _Given:
    """The memory in which a call is handed over, and what the script is told of it."""

    def __init__(
        self,
        call: Call,
        like: _Given | None = None,
        *,
        memory: Device = CPU,
        answered: bool = False,
    ) -> None:
        """``like``: one with the same inputs, whose memory is used; else they are copied into
        ``memory``. ``answered``: whether outputs come back, in memory of their own.
        """
        parts = [call.init[1], call.state[1], call.inputs[1]]
        orders = [*([] for part in parts[:2] for _ in part), *call.orders]
        self._own = like is None
        self.back: Block | GpuBlock | None = None
        self.block: Block | GpuBlock
        if like is not None:
            memory = like.memory
            self.block, layout = like.block, like.request["given"][0]
        else:
            given = [t for part in parts for t in part]
            self.block, layout = devices.block_of(memory, given, orders)
        self.memory = memory
        self.fds = [self.block.fd]
        wanted = None
        if answered:
            self._wanted, self._size = layout_of(call.outputs[1])
            try:
                # A mark behind them says that they are there.
                self.back = memory.create(self._size + 1)
            except BaseException:
                self.close()
                raise
            self.fds.append(self.back.fd)
            wanted = [self._wanted, self._size]
        self.request: dict[str, Any] = {
            "counts": [len(p) for p in parts],
            "given": [layout, self.block.size],
            "wanted": wanted,
            "init": call.init[0],
            "names": list(call.state[0]),
            "inputs": call.inputs[0],
            "outputs": call.outputs[0],
            "eval": call.eval_mode,
            "device": call.place.get("device") or "cpu",
            "shared": memory.kind,
            "threads": call.threads,
        }
        memory.synchronize()

    def outputs(self, device: str) -> list[torch.Tensor] | None:
        """Returns copies of what came back, None where nothing did."""
        assert self.back is not None
        if not self.back.bytes()[self._size]:
            return None
        return [v.to(device, copy=True) for v in self.back.views(self._wanted)]

    def close(self) -> None:
        if self._own:
            self.block.close()
        if self.back is not None:
            self.back.close()


def run(
    server: ForkServer,
    source: str,
    call: Call,
    mode: str,
    timeout: float,
    limits: dict[str, int] | None = None,
    sanitizer: str = "",
    small: Call | None = None,
    own: Sequence[str] = (),
) -> Ran:
    """Returns what the file computes, within a candidate's limits or others.

    ``sanitizer``: the program under which it is run after that, on a ``small`` call if there is
    one, and on this one where that finds something. ``own``: the names of its kernels.

    Raises Broken, and SandboxError and ProtocolError for what is the machine's fault.
    """
    given = _handed_over(call, small, bool(sanitizer))
    seconds = timeout + 30
    if len(given) > 1:
        seconds += CHECK_S + (4 * CHECK_S if sanitizer else 0)
    msg = {
        "op": "cold",
        "source": source,
        "requests": [g.request for g in given],
        "sanitizer": sanitizer,
        "timeout": timeout,
    }
    config = {"sandbox": mode, "threads": call.threads, **call.place}
    if sanitizer:
        msg["sanitizer"] = os.path.realpath(sanitizer)
        config |= {"tools": True, "read_only": [os.path.dirname(msg["sanitizer"])]}
    if kernelwright.cutlass_header(source):
        msg["cutlass"] = kernelwright.cutlass_folders()
        config["read_only"] = [*config.get("read_only", ()), *msg["cutlass"]]
    try:
        usual = sandbox.limits(sandbox.Settings("candidate"))
        bounds = {"memory_bytes": usual.memory_bytes, "cpu_s": usual.cpu_s, **(limits or {})}
        if sanitizer:
            bounds["processes"] = max(bounds.get("processes", 0), CHECKING)
        with server.spawn("builder", config, limits=bounds) as worker:
            try:
                worker.channel.send(msg, [fd for g in given for fd in g.fds])
                answer, _ = worker.channel.recv(seconds)
            except Timeout as e:
                raise Broken(f"takes over {timeout:g} s", worker.log(), late=True) from e
            except Closed as e:
                end = worker.wait(5)
                if end is None or end.blameless:
                    raise SandboxError(f"a worker {how_it_ended(end)}") from e
                raise Broken(how_it_ended(end), worker.log()) from e
            log = worker.log()
        code = answer.get("code")
        if answer.get("ok") is not True or type(code) is not int:
            raise ProtocolError(f"a builder answered {answer!r:.200}")
        if code == _LATE:
            raise Broken(f"takes over {timeout:g} s", log, late=True)
        if code:
            raise Broken(_last_line(log) or f"ends with exit code {code}", log)
        outputs = given[0].outputs(given[0].request["device"])
        if outputs is None:
            raise Broken("ends before its forward has returned", log)
        launches, span_ms = launches_of(answer.get("profile"))
        checks, checks_s = _checks(answer.get("checks"), own)
        return Ran(outputs, launches, span_ms, checks, checks_s)
    finally:
        for g in given:
            g.close()


def _handed_over(call: Call, small: Call | None, checked: bool) -> list[_Given]:
    """Returns the requests: the one that is judged, and where somebody looks at it his, who has
    memory of his own. A sanitizer finds no way in memory that is shared by the driver.
    """
    gpu = call.place.get("device") == "cuda"
    given: list[_Given] = []
    try:
        memory: Device = CPU
        if gpu and (size := _bytes_of(call)) >= LARGE:
            own = devices.of("cuda")
            own.release()
            memory = own if own.free_bytes() >= ROOM * size else CPU
        given.append(_Given(call, memory=memory, answered=True))
        if gpu or checked:
            apart = checked and small is None and given[0].memory.kind == "cuda"
            given.append(_Given(call, None if apart else given[0]))
        if small is not None and checked:
            given.append(_Given(small))
        return given
    except BaseException:
        for g in given:
            g.close()
        raise


def _bytes_of(call: Call) -> int:
    tensors = [*call.init[1], *call.state[1], *call.inputs[1], *call.outputs[1]]
    return sum(t.numel() * t.element_size() for t in tensors)


def launches_of(profile: Any) -> tuple[list[Launch], float]:
    """Reads what the script saw: its word, which may be the candidate's."""

    def number(value: Any) -> int:
        return min(max(int(value), 0), (1 << 31) - 1)

    try:
        read = json.loads(profile)
        found = [
            Launch(
                str(e["name"])[:300],
                max(number(e["count"]), 1),
                max(min(float(e["ms"]), _LONG_MS), 0.0),
                tuple(number(n) for n in e["grid"][:3]),
                tuple(number(n) for n in e["block"][:3]),
            )
            for e in read["launches"][:SHOWN]
        ]
        return found, max(min(float(read["span_ms"]), _LONG_MS), 0.0)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return [], 0.0


def _checks(answer: Any, own: Sequence[str]) -> tuple[list[Check], float]:
    """Reads what came of each tool: on the task's own inputs where there is that, else on fewer."""
    found, most = [], 0.0
    said_of = answer if isinstance(answer, list) else []
    for tool, given in zip(sanitizers.TOOLS, said_of, strict=False):
        runs: list[Check] = []
        for run in given if isinstance(given, list) else []:
            if isinstance(run, dict) and type(run.get("code")) is int:
                report, said = str(run.get("report") or ""), str(run.get("said") or "")
                runs.append(sanitizers.check(tool, run["code"], report, said, own))
                took = run.get("seconds")
                most = max(most, took if type(took) is float and took < 1e6 else 0.0)
        if len(runs) > 1 and not runs[1].findings:  # on fewer inputs alone
            why = runs[1].failed
            runs.append(replace(runs[0], fewer=f"it could not be run: {why}" if why else "nothing"))
        found += runs[-1:]
    return found, most


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""


def serve(msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Runs the file in a new interpreter. What it prints goes where the worker's own words go."""
    if folders := msg.get("cutlass"):
        os.environ["CUTLASS_PATH"] = os.path.dirname(folders[0])
        if artifacts.LOAD_INLINE in msg["source"]:  # torch's own has nothing that looks there
            os.environ["CPATH"] = ":".join(folders)
    fds_of: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tools = os.path.join(folder, "tools")
        os.mkdir(tools)
        shared = any(request["shared"] == "cuda" for request in msg["requests"])
        for name in (*TOOLS, *(TO_MAP if shared else ()), SCRIPT):
            shutil.copy(os.path.join(HERE, name), tools)
        with open(os.path.join(folder, "kernel.py"), "w", encoding="utf-8") as f:
            f.write(msg["source"])
        names = REQUESTS[: len(msg["requests"])]
        for name, request in zip(names, msg["requests"], strict=True):
            n = 1 + bool(request["wanted"])
            fds_of[name], fds = fds[:n], fds[n:]
            with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as f:
                json.dump({**request, "fds": fds_of[name]}, f)
        # The file may do away with its own folder.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            looks = _Looks(folder, place, fds_of, msg)
            try:
                threads = msg["requests"][0]["threads"]
                alone = _Interpreter(folder, "alone", fds_of["alone"], threads)
                code = alone.end(float(msg["timeout"]))
                return {"code": code, **({} if code else looks.results())}
            finally:
                looks.close()


class _Looks:
    """Interpreters in which the file is looked at, by sanitizers and then by a profiler. What runs
    in them can write to ``place``, too.
    """

    def __init__(
        self, folder: str, place: str, fds_of: dict[str, list[int]], msg: dict[str, Any]
    ) -> None:
        """``fds_of``: a request's descriptors."""
        self._folder, self._place, self._fds_of = folder, place, fds_of
        self._program = msg.get("sanitizer") or ""
        self._requests = list(fds_of)[:0:-1]  # the one on few inputs comes first
        self._seen, said = (os.path.join(place, name) for name in ("profile.json", "profile.said"))
        self._profile: _Interpreter | None = None
        self._waiting: dict[str, _Interpreter] = {}  # under a tool, for its first run
        first = msg["requests"][0]
        try:
            if first["device"] == "cuda":
                own, threads = fds_of["whole"], first["threads"]
                self._profile = _Interpreter(
                    folder, "whole", own, threads, said=said, waits=True, profile=self._seen
                )
            if self._program:
                for tool in sanitizers.TOOLS:
                    with suppress(OSError):  # one that cannot be started now is started later
                        self._waiting[tool] = self._under(tool, self._requests[0], waits=True)
        except BaseException:
            self.close()
            raise

    def results(self) -> dict[str, Any]:
        """Returns what the sanitizers say, each of all its runs, and then the profiler, undisturbed
        by them.
        """
        checks: list[list[dict[str, Any]]] = []
        if self._program:
            with ThreadPoolExecutor(len(sanitizers.TOOLS)) as pool:
                checks = list(pool.map(self._runs, sanitizers.TOOLS))
        if self._profile is not None:
            self._profile.end(CHECK_S)
        return {"checks": checks, "profile": read_text(self._seen)[:MAX_PROFILE]}

    def close(self) -> None:
        for waiting in (self._profile, *self._waiting.values()):
            if waiting is not None:
                waiting.close()

    def _runs(self, tool: str) -> list[dict[str, Any]]:
        """Where something is found the next request is tried."""
        runs: list[dict[str, Any]] = []
        for request in self._requests:
            runs.append(self._run(tool, request))
            if runs[-1]["code"] != sanitizers.FOUND:
                break
        return runs

    def _run(self, tool: str, request: str) -> dict[str, Any]:
        report, said = self._paths(tool, request)
        began = time.monotonic()
        code = 0
        # With each tensor an allocation of its own, an access beside it is one beside all. Who
        # captures a graph cannot do without the allocator.
        for alone in (True, False):
            try:
                first = self._waiting.pop(tool, None)
                code = (first or self._under(tool, request, alone=alone)).end(CHECK_S)
            except OSError as e:  # it has left no process, or no folder
                return {"code": 1, "report": "", "said": str(e), "seconds": 0.0}
            if code in (0, sanitizers.FOUND, _LATE):
                break
        found, last = read_text(report)[: sanitizers.MAX_LOG], read_text(said)[-_SAID:]
        seconds = time.monotonic() - began
        return {"code": code, "report": found, "said": last, "seconds": seconds}

    def _under(
        self, tool: str, request: str, *, alone: bool = True, waits: bool = False
    ) -> _Interpreter:
        report, said = self._paths(tool, request)
        prefix = sanitizers.command(self._program, tool, report)
        more = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if alone else {}
        own = self._fds_of[request]
        return _Interpreter(self._folder, request, own, 1, prefix, more, said, waits=waits)

    def _paths(self, tool: str, request: str) -> tuple[str, str]:
        """Returns where a tool writes its report, and what runs under it what it prints."""
        report, said = (f"{tool}.{request}.{kind}" for kind in ("report", "said"))
        return os.path.join(self._place, report), os.path.join(self._place, said)


def read_text(path: str) -> str:
    """Returns the text of a file that others may have written, "" where it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as f:
            return f.read(MAX_READ) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""


class _Interpreter:
    """A new interpreter that does one of the requests."""

    def __init__(
        self,
        folder: str,
        request: str,
        fds: list[int],
        threads: int,
        prefix: Sequence[str] = (),
        more: dict[str, str] | None = None,
        said: str = "",
        *,
        waits: bool = False,
        profile: str = "",
    ) -> None:
        """``said``: where what it prints goes, if not where the worker's own words go. ``waits``:
        it imports nothing but PyTorch before ``end``. ``profile``: where one that looks at itself
        writes what it sees.
        """
        script = os.path.join(folder, "tools", SCRIPT)
        asked = [folder, request, profile, "waits" if waits else ""]
        home = {"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": str(threads)}
        with open(said or os.devnull, "w", encoding="utf-8") as out:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-I", "-B", script, *asked],
                cwd=folder,
                env={**os.environ, **home, **(more or {})},
                stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                stdout=out if said else None,
                stderr=out if said else None,
                pass_fds=fds,
                bufsize=0,
                start_new_session=bool(prefix),  # a tool's death is not its target's
            )
        self._leads = bool(prefix)  # a group of its own

    def end(self, timeout: float) -> int:
        """Returns its exit code. One that waits goes on."""
        with suppress(OSError):  # it has ended
            if self._process.stdin is not None:
                os.set_blocking(self._process.stdin.fileno(), False)  # the file may have filled it
                self._process.stdin.write(GO_ON)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return _LATE
        finally:
            self.close()

    def close(self) -> None:
        """Ends one that waits, or takes too long."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._leads:
            with suppress(OSError):  # nobody is left
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
