"""Runs an exported file as its user will: in a new interpreter, which compiles it, and into which
nothing of ours is imported before it. On a GPU its kernels are listed as a profiler sees them, and
compute-sanitizer looks at them, in interpreters that nobody judges, which find what the first has
compiled. They start beside the first, import PyTorch and wait until somebody wants to look.

``Running`` is the referee's side, ``Server`` the sandboxed worker's; ``script.py`` is what the
new interpreter does.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

import kernelwright
from kwharness.base import paths
from kwharness.base.protocol import Closed, ProtocolError, Timeout
from kwharness.base.tensors import Block, layout_of
from kwharness.build import artifacts, object_digest
from kwharness.clients.errors import how_it_ended
from kwharness.machine import device as devices
from kwharness.machine import toolchain
from kwharness.machine.device import CPU, Device, GpuBlock
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.model.state import NOTHING, Carried
from kwharness.process import policy
from kwharness.process.fork_client import ForkServer
from kwharness.process.policy import SandboxError
from kwharness.standalone import sanitizers
from kwharness.standalone.sanitizers import Check

PACKAGE = "kwharness"
SCRIPT = "standalone/script.py"  # in it
FILENAME = "candidate.py"  # everywhere: a program can read the name of its file
# And what it imports, once the file is imported.
TOOLS = (
    SCRIPT, "standalone/usage.py", "base/trees.py", "base/tensors.py", "model/construction.py",
    "model/state.py", "model/slots.py",
)  # fmt: skip
# To map memory of a GPU.
TO_MAP = (
    "machine/device.py", "machine/cuda_driver.py", "machine/allocator.py", "machine/toolchain.py",
)  # fmt: skip
# Bytes of a call that are handed over in the GPU's memory, which spares copies through the host's,
# where so many times as much of it is free: who is handed it has copies of its own.
LARGE, ROOM = 1 << 28, 4
CHECK_S = 90.0  # a sanitizer may take, all of them at once; so may the profiler
CHECKING = 512  # processes and threads of all sanitizers together
SHOWN = 40  # launches of a forward
MAX_PROFILE = 1 << 20  # characters
MAX_READ = 1 << 24
# The script's requests: the first is judged, the others are looked at.
ALONE, WHOLE, FEW = "alone", "whole", "few"
BUILT = ".cache/torch_extensions/kernelwright"  # where a loader of ours puts what it builds
MAX_BUILT, MAX_OBJECT = 64, 256 << 20
_LONG_MS = 1e9
_LATE = sanitizers.LATE
_SAID = 2000  # characters of what one prints that is not well


@dataclass(frozen=True)
class Use:
    """How its users use it. ``constructor`` and ``forward``: the names of what these are given,
    none where they have no names for it. ``constructed``: of each weight what tells the content
    that it has without a load; ``rebuilt``: the same of what the reference's constructor makes, if
    that stands in the file; ``takes``: the method of its own that takes weights, if it has one;
    ``ways``: whether all are tried.
    """

    constructor: Sequence[str] = ()
    forward: Sequence[str] = ()
    constructed: dict[str, str] = field(default_factory=dict)
    rebuilt: dict[str, str] = field(default_factory=dict)
    takes: str = ""
    ways: bool = False


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
    seed: int = CONSTRUCTION_SEED  # under which it is constructed
    breaks: Sequence[dict[str, Any]] = ()  # see construction.Breaks
    own: bool = False  # whether weights go by its own names, and not as a state_dict
    carried: Carried = NOTHING  # behind inputs and outputs
    use: Use = Use()


@dataclass(frozen=True)
class Launch:
    """One kind of what a forward has the GPU do: a kernel, or a copy."""

    name: str
    count: int
    ms: float  # of all of them together, median over forwards
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass
class Looked:
    """What was seen of it. ``span_ms``: what the profiler sees of a forward, from where the first
    kernel starts until the last has ended, the L2 being empty of it; 0 where it sees nothing.
    """

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

    @property
    def out_of_memory(self) -> bool:
        return "out of memory" in str(self)


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
        self.memory: Device = memory
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
            "seed": call.seed,
            "breaks": list(call.breaks),
            "own": call.own,
            "carried": call.carried.to_json(),
            "use": asdict(call.use),
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


class Running:
    """The file at work, within a candidate's limits or others: first what it computes, which is
    judged, and then how. Raises Broken, and SandboxError and ProtocolError for what is the
    machine's fault.
    """

    def __init__(
        self,
        server: ForkServer,
        source: str,
        call: Call,
        mode: str,
        timeout: float,
        limits: dict[str, int] | None = None,
        sanitizer: str = "",
        *,
        fewer: bool = False,
    ) -> None:
        """``timeout``: seconds for the file. ``sanitizer``: the program under which it is run when
        it is looked at; ``fewer``: on fewer inputs first.
        """
        self._timeout = timeout
        # What its loader has built, once there are outputs: endings, and what is loaded of each.
        self.built: list[tuple[str, str]] = []
        self.ways = call.use.ways
        self._looks = call.place.get("device") == "cuda" or bool(sanitizer)
        self._checked = bool(sanitizer)
        self._given = _handed_over(call, self._looks, self._checked and not fewer)
        msg: dict[str, Any] = {
            "op": "cold",
            "source": source,
            "requests": [g.request for g in self._given],
            "sanitizer": sanitizer,
            "timeout": timeout,
        }
        config: dict[str, Any] = {"sandbox": mode, "threads": call.threads, **call.place}
        if sanitizer:
            msg["sanitizer"] = os.path.realpath(sanitizer)
            config |= {"tools": True, "read_only": [os.path.dirname(msg["sanitizer"])]}
        if kernelwright.cutlass_header(source):
            msg["cutlass"] = kernelwright.cutlass_folders()
            config["read_only"] = [*config.get("read_only", ()), *msg["cutlass"]]
        try:
            usual = policy.limits(policy.Settings("candidate"))
            bounds = {"memory_bytes": usual.memory_bytes, "cpu_s": usual.cpu_s, **(limits or {})}
            if sanitizer:
                bounds["processes"] = max(bounds.get("processes", 0), CHECKING)
            self._worker = server.spawn("builder", config, limits=bounds)
            try:
                self._send(msg, self._given)
            except BaseException:
                self._worker.kill()
                raise
        except BaseException:
            self._free()
            raise

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends whatever is still at work."""
        self._worker.kill()
        self._worker.wait(10)
        self._free()

    def outputs(self) -> list[torch.Tensor]:
        """Returns what it computes, on the call's device."""
        answer = self._answer(self._timeout + 30, f"{self._timeout:g} s")
        code, log = answer.get("code"), self._worker.log()
        if answer.get("ok") is not True or type(code) is not int:
            raise ProtocolError(f"a builder answered {answer!r:.200}")
        if code == _LATE:
            raise Broken(f"takes over {self._timeout:g} s", log, late=True)
        if code:
            raise Broken(_last_line(log) or f"ends with exit code {code}", log)
        built = answer.get("built")
        pairs = built if isinstance(built, list) else []
        self.built = [(str(p[0]), str(p[1])) for p in pairs if isinstance(p, list) and len(p) == 2]
        outputs = self._given[0].outputs(self._given[0].request["device"])
        if outputs is None:
            raise Broken("ends before its forward has returned", log)
        return outputs

    def looked(self, small: Call | None = None, own: Sequence[str] = ()) -> Looked:
        """Looks at one that has returned its outputs: sanitizers on a ``small`` call if there is
        one, and on this one where that finds something, and then a profiler, beside which nothing
        else may run. ``own``: the names of its kernels.
        """
        if not self._looks:
            return Looked()
        if small is not None and self._checked:
            self._given.append(_Given(small))
        few = self._given[2:]
        seconds = CHECK_S + (4 * CHECK_S if self._checked else 0)
        try:
            self._send({"op": "look", "requests": [g.request for g in few]}, few)
        except Closed as e:
            raise self._ended() from e
        answer = self._answer(30 + seconds, f"{seconds:g} s to be looked at")
        if answer.get("ok") is not True:
            said = answer.get("error") or {}
            raise Broken(
                f"lets nobody look at it: {said.get('message')!s:.200}", self._worker.log()
            )
        launches, span_ms = launches_of(answer.get("profile"))
        checks, checks_s = _checks(answer.get("checks"), own)
        return Looked(launches, span_ms, checks, checks_s)

    def _send(self, msg: dict[str, Any], given: Sequence[_Given]) -> None:
        self._worker.channel.send(msg, [fd for g in given for fd in g.fds])

    def _answer(self, seconds: float, told: str) -> dict[str, Any]:
        try:
            answer, _ = self._worker.channel.recv(seconds)
        except Timeout as e:
            raise Broken(f"takes over {told}", self._worker.log(), late=True) from e
        except Closed as e:
            raise self._ended() from e
        return answer

    def _ended(self) -> Exception:
        """Returns what it means that its worker is gone."""
        end = self._worker.wait(5)
        if end is None or end.blameless:
            return SandboxError(f"a worker {how_it_ended(end)}")
        return Broken(how_it_ended(end), self._worker.log())

    def _free(self) -> None:
        for g in self._given:
            g.close()
        self._given = []


def _handed_over(call: Call, looks: bool, checked: bool) -> list[_Given]:
    """Returns the requests: the one that is judged, and where somebody looks at it his, who has
    memory of his own where it is ``checked``: a sanitizer finds no way in memory that is shared by
    the driver.
    """
    given: list[_Given] = []
    try:
        memory: Device = CPU
        if call.place.get("device") == "cuda" and is_large(call):
            own = devices.of("cuda")
            own.release()
            memory = own if own.free_bytes() >= ROOM * _bytes_of(call) else CPU
        given.append(_Given(call, memory=memory, answered=True))
        if looks:
            apart = checked and given[0].memory.kind == "cuda"
            given.append(_Given(call, None if apart else given[0]))
        return given
    except BaseException:
        for g in given:
            g.close()
        raise


def is_large(call: Call) -> bool:
    """Whether it is handed over in the GPU's memory, if there is room."""
    return _bytes_of(call) >= LARGE


def _bytes_of(call: Call) -> int:
    tensors = [*call.init[1], *call.state[1], *call.inputs[1], *call.outputs[1]]
    return sum(t.numel() * t.element_size() for t in tensors)


def launches_of(profile: Any, most: int = SHOWN) -> tuple[list[Launch], float]:
    """Reads what the script saw, as far as so many kinds of launches: its word, which may be the
    candidate's.
    """

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
            for e in read["launches"][:most]
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


class Server:
    """The worker's side, for one file."""

    def __init__(self) -> None:
        self._held = ExitStack()  # folders, and what runs in them
        self._looks: _Looks | None = None

    def close(self) -> None:
        self._looks = None
        self._held.close()

    def run(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Runs the file in a new interpreter. What it prints goes where the worker's own words go.
        Who looks at it later has started; of a file that fails nobody looks.
        """
        code, folder = -1, self._folder()
        try:
            code = self._run(msg, fds, folder)
        finally:
            if code:
                self.close()
        return {"code": code} if code else {"code": code, "built": _built(folder)}

    def _run(self, msg: dict[str, Any], fds: list[int], folder: str) -> int:
        if folders := msg.get("cutlass"):
            os.environ["CUTLASS_PATH"] = os.path.dirname(folders[0])
            if artifacts.LOAD_INLINE in msg["source"]:  # torch's own has nothing that looks there
                os.environ["CPATH"] = ":".join(folders)
        tools = os.path.join(folder, "tools")
        os.mkdir(tools)
        shared = any(request["shared"] == "cuda" for request in msg["requests"])
        for name in (*TOOLS, *(TO_MAP if shared else ())):
            to = os.path.join(tools, PACKAGE, name)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(os.path.join(paths.ROOT, PACKAGE, name), to)
        with open(os.path.join(folder, FILENAME), "wb") as f:
            f.write(msg["source"].encode())
        first, *others = msg["requests"]
        own = 1 + bool(first["wanted"])
        for name, request in zip((ALONE, WHOLE), msg["requests"], strict=False):
            _ask(folder, name, request)
        if others:
            # The file may do away with its own folder.
            whole, fds[own:] = fds[own:], []
            self._looks = self._held.enter_context(
                closing(_Looks(folder, self._folder(), whole, msg))
            )
        alone = _Interpreter(folder, ALONE, first["threads"], given=fds[:own])
        return alone.end(float(msg["timeout"]))

    def look(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Returns what the sanitizers say, each of all its runs, and then the profiler, undisturbed
        by them. The request is for few inputs, if there is one.
        """
        assert self._looks is not None
        for request in msg["requests"]:
            with suppress(OSError):  # the folder is gone: who looks there will say so
                _ask(self._looks.folder, FEW, request)
        try:
            return self._looks.results(fds)
        finally:
            self.close()

    def _folder(self) -> str:
        return self._held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))


def _built(folder: str) -> list[list[str]]:
    """Returns the endings of what the file's own loader has built, and what is loaded of each: none
    where that finds another compiler than the builder's.
    """
    found: list[list[str]] = []
    if os.path.realpath(shutil.which("g++") or "") != os.path.realpath(toolchain.compiler()):
        return found
    place = os.path.join(folder, BUILT)
    with suppress(OSError):
        for name in sorted(os.listdir(place))[:MAX_BUILT]:
            fd = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(fd, "rb") as f:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    found.append(
                        [os.path.splitext(name)[1], object_digest.digest(f.read(MAX_OBJECT))]
                    )
    return found


def _ask(folder: str, name: str, request: dict[str, Any]) -> None:
    path = os.path.join(folder, f"{name}.json")
    with suppress(FileNotFoundError):
        os.unlink(path)  # the file may have left one there, or a pipe
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
        json.dump(request, f)


class _Looks:
    """Interpreters in which the file is looked at, by sanitizers and then by a profiler. What runs
    in them can write to ``place``, too.
    """

    def __init__(self, folder: str, place: str, whole: list[int], msg: dict[str, Any]) -> None:
        """``whole``: the descriptors of the request for all inputs, which are closed at the end."""
        self.folder = folder
        self._place = place
        self._fds = {WHOLE: whole}
        self._program = msg.get("sanitizer") or ""
        self._seen = os.path.join(place, "profile.json")
        self._runs_begun = itertools.count()
        self._profile: _Interpreter | None = None
        self._waiting: dict[str, _Interpreter] = {}  # under a tool, for its first run
        first = msg["requests"][0]
        try:
            if first["device"] == "cuda":
                said, threads = os.path.join(place, "profile.said"), first["threads"]
                self._profile = _Interpreter(folder, "", threads, said=said, profile=self._seen)
            if self._program:
                for tool in sanitizers.TOOLS:
                    with suppress(OSError):  # one that cannot be started now is started later
                        self._waiting[tool] = self._under(tool)
        except BaseException:
            self.close()
            raise

    def results(self, few: list[int]) -> dict[str, Any]:
        """``few``: the descriptors of the request for few inputs, none where there is none."""
        if few:
            self._fds = {FEW: few} | self._fds  # it comes first
        checks: list[list[dict[str, Any]]] = []
        if self._program:
            with ThreadPoolExecutor(len(sanitizers.TOOLS)) as pool:
                checks = list(pool.map(self._runs, sanitizers.TOOLS))
        if self._profile is not None:
            self._profile.end(CHECK_S, WHOLE, self._fds[WHOLE])
        return {"checks": checks, "profile": read_text(self._seen)[:MAX_PROFILE]}

    def close(self) -> None:
        for waiting in (self._profile, *self._waiting.values()):
            if waiting is not None:
                waiting.close()
        for fd in self._fds.pop(WHOLE, ()):
            os.close(fd)

    def _runs(self, tool: str) -> list[dict[str, Any]]:
        """Where something is found the next request is tried."""
        runs: list[dict[str, Any]] = []
        for request in self._fds:
            runs.append(self._run(tool, request))
            if runs[-1]["code"] != sanitizers.FOUND:
                break
        return runs

    def _run(self, tool: str, request: str) -> dict[str, Any]:
        began = time.monotonic()
        code, report, said = 0, "", ""
        # With each tensor an allocation of its own, an access beside it is one beside all. Who
        # captures a graph cannot do without the allocator.
        for alone in (True, False):
            try:
                runs = self._waiting.pop(tool, None) or self._under(tool, alone=alone)
                code = runs.end(CHECK_S, request, self._fds[request])
            except OSError as e:  # it has left no process, or no folder
                return {"code": 1, "report": "", "said": str(e), "seconds": 0.0}
            report, said = read_text(runs.report), read_text(runs.said)
            if code in (0, sanitizers.FOUND, _LATE):
                break
        return {
            "code": code,
            "report": report[: sanitizers.MAX_LOG],
            "said": said[-_SAID:],
            "seconds": time.monotonic() - began,
        }

    def _under(self, tool: str, *, alone: bool = True) -> _Interpreter:
        report = os.path.join(self._place, f"{tool}.{next(self._runs_begun)}.report")
        prefix = sanitizers.command(self._program, tool, report)
        more = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if alone else {}
        said = f"{report}.said"
        return _Interpreter(self.folder, "", 1, prefix, more, said=said, report=report)


def read_text(path: str) -> str:
    """Returns the text of a file that others may have written, "" where it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as f:
            return f.read(MAX_READ) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""


class _Interpreter:
    """A new interpreter that does one of the requests: one that is named, or one that ``end`` names
    while it waits, having imported nothing but PyTorch.
    """

    def __init__(
        self,
        folder: str,
        request: str,
        threads: int,
        prefix: Sequence[str] = (),
        more: dict[str, str] | None = None,
        *,
        given: Sequence[int] = (),
        said: str = "",
        report: str = "",
        profile: str = "",
    ) -> None:
        """``given``: the descriptors of the request that is named. ``said``: where what it prints
        goes, if not where the worker's own words go; ``report``: where the tool that ``prefix``
        starts writes; ``profile``: where one that looks at itself writes what it sees.
        """
        self.said, self.report = said, report
        script = os.path.join(folder, "tools", PACKAGE, SCRIPT)
        asked = [folder, request, profile, json.dumps(list(given))]
        home = {"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": str(threads)}
        usual = {k: v for k, v in os.environ.items() if k != "TORCH_EXTENSIONS_DIR"}
        self._tells: socket.socket | None
        hears: socket.socket | None
        self._tells, hears = socket.socketpair() if not request else (None, None)
        try:
            with open(said or os.devnull, "w", encoding="utf-8") as out:
                self._process = subprocess.Popen(
                    [*prefix, sys.executable, "-I", "-B", script, *asked],
                    cwd=folder,
                    env={**usual, **home, **(more or {})},
                    stdin=subprocess.DEVNULL if hears is None else hears.fileno(),
                    stdout=out if said else None,
                    stderr=out if said else None,
                    pass_fds=given,
                    start_new_session=bool(prefix),  # a tool's death is not its target's
                )
        except BaseException:
            if self._tells is not None:
                self._tells.close()
            raise
        finally:
            if hears is not None:
                hears.close()
        self._leads = bool(prefix)  # a group of its own

    def end(self, timeout: float, request: str = "", fds: Sequence[int] = ()) -> int:
        """Returns its exit code. One that waits does this request, which has these descriptors."""
        if self._tells is not None:
            with suppress(OSError):  # it has ended, or the file has filled it
                self._tells.setblocking(False)
                socket.send_fds(self._tells, [request.encode()], fds)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return _LATE
        finally:
            self.close()

    def close(self) -> None:
        """Ends one that waits, or takes too long."""
        if self._tells is not None:
            self._tells.close()
        if self._leads:
            with suppress(OSError):  # nobody is left
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
