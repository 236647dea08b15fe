"""Runs an exported file as its user will: in a new interpreter, which compiles it, and into which
nothing of ours is imported before it. On a GPU its kernels are listed as a profiler sees them, and
compute-sanitizer looks at them, in interpreters that nobody judges, which find what the first has
compiled. They start beside the first, import PyTorch and wait until somebody wants to look.

``Running`` is the referee's side, ``Server`` the sandboxed worker's; ``script.py`` is what the
new interpreter does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import torch

import kernelwright
from kwharness.base.configs import BuilderConfig
from kwharness.base.for_builder import Look, LookedAt, Ran, Run, ToolRun
from kwharness.base.operations import Request
from kwharness.base.protocol import Closed, ProtocolError, Timeout
from kwharness.base.tensors import layout_of
from kwharness.clients.errors import how_it_ended
from kwharness.machine import device as devices
from kwharness.machine.device import CPU, Device, SharedBlock
from kwharness.process import policy
from kwharness.process.fork_client import ForkServer
from kwharness.process.policy import SandboxError
from kwharness.standalone import sanitizers
from kwharness.standalone.calls import Broken, Call, Launch, Looked
from kwharness.standalone.sanitizers import Check

PACKAGE = "kwharness"
SCRIPT = "standalone/script.py"  # in it
FILENAME = "candidate.py"  # everywhere: a program can read the name of its file
# And what it imports, once the file is imported.
TOOLS = (
    SCRIPT, "standalone/usage.py", "base/trees.py", "base/records.py", "base/tensors.py",
    "base/breaks.py", "base/carried.py", "model/construction.py", "model/state.py",
    "model/slots.py",
)  # fmt: skip
# To map memory of a GPU.
TO_MAP = (
    "machine/device.py", "machine/gpu.py", "machine/cuda_driver.py", "machine/allocator.py",
    "machine/toolchain.py", "base/constants.py", "base/constants.toml",
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
LATE = sanitizers.LATE
SAID = 2000  # characters of what one prints that is not well


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
        self.back: SharedBlock | None = None
        self.block: SharedBlock
        if like is not None:
            memory = like.memory
            self.block, layout = like.block, like.request["given"][0]
        else:
            given = [t for part in parts for t in part]
            self.block, entries = devices.block_of(memory, given, orders)
            layout = [e.to_json() for e in entries]
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
            wanted = [[e.to_json() for e in self._wanted], self._size]
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
            "breaks": [b.to_json() for b in call.breaks],
            "own": call.own,
            "carried": call.carried.to_json(),
            "use": asdict(call.use),
            "device": _kind(call).torch.type,
            "profiled": _kind(call).profiled,
            "shared": "" if memory.on_cores else memory.kind,
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
        limits: policy.Limits | None = None,
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
        self._looks = _kind(call).profiled or bool(sanitizer)
        self._checked = bool(sanitizer)
        self._given = _handed_over(call, self._looks, self._checked and not fewer)
        sanitizer = os.path.realpath(sanitizer) if sanitizer else ""
        cutlass = kernelwright.cutlass_folders() if kernelwright.cutlass_header(source) else []
        requests = [g.request for g in self._given]
        asked = Run(source, requests, timeout, sanitizer, list(cutlass))
        tools = [os.path.dirname(sanitizer)] if sanitizer else []
        config = BuilderConfig(
            mode, call.threads, call.place, [*tools, *cutlass], tools=bool(sanitizer)
        )
        try:
            bounds = policy.limits(policy.Settings("candidate", limits=limits or policy.Limits()))
            if sanitizer:
                bounds = replace(bounds, processes=max(bounds.processes, CHECKING))
            self._worker = server.spawn(config, limits=bounds)
            try:
                self._send(asked, self._given)
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
        if answer.get("ok") is not True:
            raise ProtocolError(f"a builder answered {answer!r:.200}")
        ran, log = Ran.from_json(answer), self._worker.log()
        code = ran.code
        if code == LATE:
            raise Broken(f"takes over {self._timeout:g} s", log, late=True)
        if code:
            raise Broken(_last_line(log) or f"ends with exit code {code}", log)
        pairs = [p for p in ran.built if isinstance(p, list) and len(p) == 2]
        self.built = [(str(ending), str(digest)) for ending, digest in pairs]
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
            self._send(Look([g.request for g in few]), few)
        except Closed as e:
            raise self._ended() from e
        answer = self._answer(30 + seconds, f"{seconds:g} s to be looked at")
        if answer.get("ok") is not True:
            said = answer.get("error") or {}
            raise Broken(
                f"lets nobody look at it: {said.get('message')!s:.200}", self._worker.log()
            )
        seen = LookedAt.from_json(answer)
        launches, span_ms = launches_of(seen.profile)
        checks, checks_s = _checks(seen.checks, own)
        return Looked(launches, span_ms, checks, checks_s)

    def _send(self, asked: Request, given: Sequence[_Given]) -> None:
        self._worker.channel.send(asked.asked(), [fd for g in given for fd in g.fds])

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
        if not _kind(call).on_cores and is_large(call):
            own = _kind(call).here()
            own.release()
            memory = own if own.free_bytes() >= ROOM * _bytes_of(call) else CPU
        given.append(_Given(call, memory=memory, answered=True))
        if looks:
            apart = checked and not given[0].memory.on_cores
            given.append(_Given(call, None if apart else given[0]))
        return given
    except BaseException:
        for g in given:
            g.close()
        raise


def _kind(call: Call) -> type[Device]:
    return devices.class_of(call.place.device)


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


def _checks(ran: Sequence[Sequence[ToolRun]], own: Sequence[str]) -> tuple[list[Check], float]:
    """Reads what came of each tool: on the task's own inputs where there is that, else on fewer."""
    found, most = [], 0.0
    for tool, given in zip(sanitizers.TOOLS, ran, strict=False):
        runs: list[Check] = []
        for run in given:
            runs.append(sanitizers.check(tool, run.code, run.report, run.said, own))
            most = max(most, run.seconds if run.seconds < 1e6 else 0.0)
        if len(runs) > 1 and not runs[1].findings:  # on fewer inputs alone
            why = runs[1].failed
            runs.append(replace(runs[0], fewer=f"it could not be run: {why}" if why else "nothing"))
        found += runs[-1:]
    return found, most


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""


def read_text(path: str) -> str:
    """Returns the text of a file that others may have written, "" where it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as f:
            return f.read(MAX_READ) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""


class Interpreter:
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
        elsewhere = ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME")
        usual = {k: v for k, v in os.environ.items() if k not in elsewhere}
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
            return LATE
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
