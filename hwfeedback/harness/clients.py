"""The referee's side of the workers:

requests, deadlines, blocks, and private copies of what comes back.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from protocol import Closed, ProtocolError, Timeout
from tensors import DTYPES, Block, Layout, LayoutError, layout_of, received

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

GUARD = 256  # bytes of red zone around each input
_GUARD_BYTE = 0xA5
_OUT_BYTE = 0x7F  # what an output block holds before it is written: nobody's expected value
MAX_OUTPUT = 1 << 36  # bytes; a layout that asks for more is no layout


class Spawned(Protocol):
    """What is needed of forkserver.Worker."""

    channel: Any
    pid: int

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> Any: ...

    def log(self) -> str: ...


class WorkerFailure(Exception):
    """A worker did not do what it was asked.

    ``client`` is whose worker it was, None where that is not known.
    """

    client: Client | None = None


class WorkerError(WorkerFailure):
    """The worker answered that something failed. ``error`` is foreign text but for its shape."""

    def __init__(self, error: Any, client: Client | None = None) -> None:
        self.client = client
        e = error if isinstance(error, dict) else {}
        self.stage = str(e.get("stage") or "")[:40]
        self.type = str(e.get("type") or "error")[:80]
        self.message = str(e.get("message") or "")[:2000]
        self.traceback = str(e.get("traceback") or "")[:8000]
        lines = e.get("lines")
        self.lines = [n for n in lines if isinstance(n, int)][:8] if isinstance(lines, list) else []
        super().__init__(f"{self.type}: {self.message}" if self.message else self.type)

    @property
    def out_of_memory(self) -> bool:
        return self.type in ("MemoryError", "OutOfMemoryError") or "allocate memory" in self.message


class WorkerGone(WorkerFailure):
    """The worker's process ended, or broke the protocol.

    The message is a clause: "was killed by signal 11". ``doing`` is what it was asked for.
    """

    def __init__(
        self, how: str, log: str = "", oom: bool = False, doing: str = "", broke: bool = False
    ) -> None:
        super().__init__(how)
        self.log = log
        self.oom = oom
        self.doing = doing
        self.broke = broke


class WorkerLate(WorkerFailure):
    """The worker did not answer in time."""

    def __init__(self, doing: str, seconds: float, log: str = "") -> None:
        super().__init__(f"{doing} took over {seconds:g} s")
        self.log = log
        self.doing = doing


_SIGNALS = {
    4: "an illegal instruction (SIGILL)",
    6: "an abort (SIGABRT)",
    7: "a bus error (SIGBUS)",
    8: "an arithmetic fault (SIGFPE)",
    9: "SIGKILL, most likely for want of memory",
    11: "a segmentation fault (SIGSEGV)",
    24: "the limit on processor time (SIGXCPU)",
    31: "a forbidden system call (SIGSYS)",
}


def how_it_ended(exit_: Any) -> str:
    """Returns how a process ended, as a clause."""
    if exit_ is None:
        return "stopped answering"
    if exit_.reason == "lost":
        return "was lost with the server that had started it"
    if exit_.signal:
        return f"died of {_SIGNALS.get(exit_.signal, f'signal {exit_.signal}')}"
    return f"ended itself with exit code {exit_.code}"


class Client:
    """Requests to one worker, one at a time, with a deadline each."""

    def __init__(self, worker: Spawned) -> None:
        self.worker = worker
        self._blocks: dict[str, Block] = {}
        self._deadline = 0.0
        self.doing = ""
        self._allowed = 0.0
        self.until = math.inf  # of the monotonic clock: no request may take longer

    @property
    def channel(self) -> Any:
        return self.worker.channel

    @property
    def pid(self) -> int:
        return self.worker.pid

    def begin(self, msg: dict[str, Any], fds: Sequence[int], timeout: float, doing: str) -> None:
        """Sends a request; ``finish`` gives its answer."""
        self._deadline = min(time.monotonic() + timeout, self.until)
        self.doing, self._allowed = doing, timeout
        try:
            self.channel.send(msg, fds)
        except Timeout as e:
            raise self._late() from e
        except ProtocolError as e:
            raise self._gone() from e

    def finish(self) -> tuple[dict[str, Any], list[int]]:
        """Returns the answer. Raises WorkerError, WorkerGone, WorkerLate."""
        try:
            msg, fds = self.channel.recv(max(self._deadline - time.monotonic(), 0.001))
        except Timeout as e:
            raise self._late() from e
        except ProtocolError as e:
            raise self._gone(str(e) if not isinstance(e, Closed) else "") from e
        if msg.get("ok") is not True:
            for fd in fds:
                os.close(fd)
            raise WorkerError(msg.get("error"), self)
        return msg, fds

    def ask(
        self, msg: dict[str, Any], fds: Sequence[int] = (), timeout: float = 60.0, doing: str = ""
    ) -> tuple[dict[str, Any], list[int]]:
        self.begin(msg, fds, timeout, doing or str(msg.get("op")))
        return self.finish()

    def _gone(self, broke: str = "") -> WorkerGone:
        exit_ = None if broke else self.worker.wait(5)
        oom = exit_ is not None and exit_.reason == "oom"
        how = f"broke the protocol ({broke})" if broke else how_it_ended(exit_)
        gone = WorkerGone(how, self.worker.log(), oom, self.doing, bool(broke))
        if exit_ is None or exit_.reason != "lost":
            gone.client = self  # else it is nobody's fault
        return gone

    def _late(self) -> WorkerLate:
        log = self.worker.log()
        self.worker.kill()
        late = WorkerLate(self.doing, self._allowed, log)
        late.client = self
        return late

    def block(self, name: str, size: int) -> Block:
        """Returns the block of this name; made and mapped on both sides where it is too small."""
        have = self._blocks.get(name)
        if have is not None and have.size >= size:
            return have
        made = Block.create(size, name)
        msg = {"op": "map", "name": name, "size": size}
        self.ask(msg, [made.fd], doing="sharing memory")
        if have is not None:
            have.close()
        self._blocks[name] = made
        return made

    def put(self, name: str, tensors: Sequence[torch.Tensor], guard: int = 0) -> Layout:
        """Writes tensors into a block and returns their layout."""
        layout, size = layout_of(tensors, guard)
        block = self.block(name, size)
        if guard:
            _guards(block, layout, guard).fill_(_GUARD_BYTE)
        for view, t in zip(block.views(layout), tensors, strict=True):
            view.copy_(t)
        return layout

    def kill(self) -> None:
        self.worker.kill()
        for b in self._blocks.values():
            b.close()
        self._blocks.clear()


class _Zones:
    """The red zones of a block, as one thing to fill and to check."""

    def __init__(self, zones: list[torch.Tensor]) -> None:
        self._zones = zones

    def fill_(self, byte: int) -> None:
        for z in self._zones:
            z.fill_(byte)

    def intact(self, byte: int) -> bool:
        return all(bool((z == byte).all()) for z in self._zones)


def _guards(block: Block, layout: Layout, guard: int) -> _Zones:
    raw = block.bytes()
    zones = [raw[:guard]]
    for entry in layout:
        size = DTYPES[entry["dtype"]].itemsize
        for d in entry["shape"]:
            size *= d
        end = entry["offset"] + size
        zones.append(raw[end : min(end + guard, block.size)])
    return _Zones(zones)


def _private(fds: list[int], msg: dict[str, Any]) -> list[torch.Tensor]:
    """Copies the tensors of an answer's block."""
    if len(fds) != 1:
        raise LayoutError(f"{len(fds)} blocks came where one was expected")
    size = int(msg["size"])
    if not 0 < size < MAX_OUTPUT:
        raise LayoutError(f"a block of {size} bytes")
    block = received(fds[0], size, writable=True)
    try:
        return [v.clone() for v in block.views(msg["layout"])]
    finally:
        block.close()


class ReferenceClient(Client):
    """The reference worker."""

    def __init__(self, worker: Spawned, timeout: float = 60.0) -> None:
        super().__init__(worker)
        self.timeout = timeout
        self.info: dict[str, Any] = {}
        self.init: list[torch.Tensor] = []
        self._room = {"out0": 0, "out1": 0, "draw": 0}
        self._out = "out0"

    def load(self, source: str, *, threads: int, eval_mode: bool) -> None:
        # Part by part, so that whoever waits knows for what.
        msg: dict[str, Any] = {"op": "import", "source": source, "threads": threads}
        self.ask(msg, timeout=self.timeout, doing="importing the file")
        self.ask({"op": "init_inputs"}, timeout=self.timeout, doing="get_init_inputs()")
        msg = {"op": "construct", "eval": eval_mode}
        self.info, fds = self.ask(msg, timeout=self.timeout, doing="Model's constructor")
        self.init = _private(fds, self.info)

    def draw(self, seed: int) -> tuple[Any, list[torch.Tensor]]:
        """Returns the tree and the tensors of one draw."""
        request = {"op": "draw", "seed": seed, "room": self._room["draw"]}
        msg, fds = self.ask(request, timeout=self.timeout, doing="get_inputs()")
        if not fds:
            return msg["tree"], [v.clone() for v in self._blocks["draw"].views(msg["layout"])]
        tensors = _private(fds, msg)
        self._room["draw"] = self.block("draw", int(msg["size"])).size
        return msg["tree"], tensors

    def state(self) -> list[torch.Tensor]:
        msg, fds = self.ask({"op": "state"}, timeout=self.timeout, doing="Model's state_dict()")
        return _private(fds, msg)

    def set_state(self, state: Sequence[torch.Tensor]) -> None:
        if state:
            layout = self.put("state", state)
            msg = {"op": "set_state", "layout": layout}
            self.ask(msg, timeout=self.timeout, doing="changing Model's weights")

    def begin_forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        sources: bool = False,
    ) -> None:
        layout = self.put("in", inputs)
        msg = {"op": "forward", "tree": tree, "layout": layout, "modes": list(modes)}
        self._out = "out1" if self._out == "out0" else "out0"
        msg |= {"sources": sources, "out": self._out, "room": self._room[self._out]}
        self.begin(msg, (), self.timeout, "Model's forward")

    def finish_forward(self) -> list[dict[str, Any]]:
        """Returns a dict per mode: ``error``, or ``tensors``, ``sources``, ``tree``, ``aliases``.

        The tensors live in memory shared with the reference and hold until the next but one
        forward ends; no candidate ever sees that memory.
        """
        msg, fds = self.finish()
        if fds:
            tensors = _private(fds, msg)
            if self._room[self._out] < msg["size"]:
                # As large as the other: modes that give less alternate with some that give more.
                size = max(int(msg["size"]), self._room["out0"], self._room["out1"])
                self._room[self._out] = self.block(self._out, size).size
        else:
            tensors = self._blocks[self._out].views(msg["layout"])
        results = []
        for r in msg["results"]:
            if "error" in r:
                error = WorkerError(r["error"], self)
                error.stage = error.stage or "forward"
                results.append({"mode": r["mode"], "error": error})
                continue
            own = tensors[r["at"] : r["at"] + r["count"]]
            n = len(r["sources"])
            sources = [None if s is None else {**s, "values": own[s["at"]]} for s in r["sources"]]
            results.append({**r, "tensors": own[:n], "sources": sources})
        return results

    def forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        sources: bool = False,
    ) -> list[dict[str, Any]]:
        """The same at once; the tensors are the caller's."""
        self.begin_forward(tree, inputs, modes, sources=sources)
        results = self.finish_forward()
        for r in results:
            if "error" not in r:
                r["tensors"] = [t.clone() for t in r["tensors"]]
                r["sources"] = [
                    None if s is None else {**s, "values": s["values"].clone()}
                    for s in r["sources"]
                ]
        return results


class Answer:
    """What a candidate gave for one forward."""

    def __init__(
        self, outputs: list[torch.Tensor], problem: str, wrote: list[int], outside: bool
    ) -> None:
        self.outputs = outputs  # private copies
        self.problem = (
            problem  # one sentence where structure, dtype, shape or aliasing is not the reference's
        )
        self.wrote = wrote  # numbers of the inputs that it changed
        self.outside = outside  # whether it wrote beside them


class CandidateClient(Client):
    """The candidate worker."""

    def __init__(self, worker: Spawned, timeout: float) -> None:
        super().__init__(worker)
        self.timeout = timeout  # of one forward
        self._answered: dict[str, Any] = {}
        self._pending: tuple[Layout, Sequence[torch.Tensor], Layout, list[int]] | None = None

    def load(
        self,
        source: str,
        artifacts: list[dict[str, Any]],
        fds: Sequence[int],
        *,
        threads: int,
        timeout: float,
        standalone: bool = False,
    ) -> None:
        """Imports it. ``standalone``: the source is an exported file, which compiles for itself."""
        msg = {"op": "load", "source": source, "artifacts": artifacts, "threads": threads}
        msg["standalone"] = standalone
        self.ask(msg, fds, timeout, "importing the candidate")

    def init(
        self, tree: Any, tensors: Sequence[torch.Tensor], *, eval_mode: bool, timeout: float
    ) -> None:
        layout = self.put("init", tensors) if tensors else []
        msg = {"op": "init", "tree": tree, "layout": layout, "eval": eval_mode}
        self.ask(msg, timeout=timeout, doing="constructing ModelNew")

    def set_state(
        self, names: Sequence[str], state: Sequence[torch.Tensor], *, in_place: bool = False
    ) -> bool:
        """Gives it weights. Returns False where an in-place change found other names."""
        layout = self.put("state", state) if state else []
        msg = {"op": "set_state", "names": list(names), "layout": layout, "in_place": in_place}
        answer, _ = self.ask(msg, timeout=max(self.timeout, 30.0), doing="taking the weights")
        return answer.get("changed") is not False

    def begin_forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        output_tree: Any,
        aliases: Sequence[int],
    ) -> None:
        wanted, size = layout_of(outputs)
        out = self.block("out", size)
        out.bytes().fill_(_OUT_BYTE)
        layout = self.put("in", inputs, GUARD)
        msg = {
            "op": "forward",
            "tree": tree,
            "layout": layout,
            "outputs": wanted,
            "output_tree": output_tree,
        }
        self._pending = (layout, inputs, wanted, list(aliases))
        self.begin(msg, (), self.timeout, "a forward")

    def finish_forward(self) -> Answer:
        self.wait_forward()
        return self.answer()

    def wait_forward(self) -> None:
        """Waits until the forward has ended."""
        self._answered, fds = self.finish()
        for fd in fds:
            os.close(fd)

    def answer(self) -> Answer:
        """Returns what the forward gave, once it has ended."""
        assert self._pending is not None
        msg = self._answered
        layout, inputs, wanted, aliases = self._pending
        outputs = [v.clone() for v in self._blocks["out"].views(wanted)]
        views = self._blocks["in"].views(layout)
        wrote = [
            i for i, (v, t) in enumerate(zip(views, inputs, strict=True)) if not same_bytes(v, t)
        ]
        outside = not _guards(self._blocks["in"], layout, GUARD).intact(_GUARD_BYTE)
        return Answer(outputs, _misfit(msg, wanted, aliases), wrote, outside)

    def trace(self, tree: Any, inputs: Sequence[torch.Tensor]) -> Any:
        """Returns who did the work of a forward, by the worker's own word. Ends the poisoning."""
        self.ask({"op": "settle"}, timeout=self.timeout)
        layout = self.put("in", inputs, GUARD)
        msg, _ = self.ask(
            {"op": "trace", "tree": tree, "layout": layout},
            timeout=3 * self.timeout,
            doing="a traced forward",
        )
        return msg.get("trace")


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape are the same bit by bit."""
    if not a.numel():
        return True
    if a.dtype == b.dtype and a.shape == b.shape and a.is_contiguous() and b.is_contiguous():
        return _libc.memcmp(a.data_ptr(), b.data_ptr(), a.numel() * a.element_size()) == 0
    if a.is_floating_point() or a.is_complex():
        words = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[a.element_size()]
        return torch.equal(a.reshape(-1).view(words), b.reshape(-1).view(words))
    return torch.equal(a, b)


def _misfit(msg: dict[str, Any], wanted: Layout, aliases: list[int]) -> str:
    """Returns one sentence on what is not as the reference's, or ""."""
    specs = msg.get("outputs")
    if not isinstance(specs, list):
        return "its outputs are not described"
    if msg.get("fits") is not True:
        mine, theirs = len(specs), len(wanted)
        return f"it returns {mine} tensors in another structure, the reference returns {theirs}"
    for i, w in enumerate(wanted):
        got = specs[i] if i < len(specs) and isinstance(specs[i], dict) else {}
        if got.get("shape") != w["shape"]:
            shape = str(got.get("shape"))[:100]
            return f"output {i} has shape {shape}, the reference's has {w['shape']}"
        if got.get("dtype") != w["dtype"]:
            return f"output {i} is {str(got.get('dtype'))[:20]}, the reference's is {w['dtype']}"
    said = msg.get("aliases")
    if isinstance(said, list):
        for i, (mine, theirs) in enumerate(zip(said, aliases, strict=False)):
            if isinstance(mine, int) and mine >= 0 and theirs < 0:
                return f"output {i} lies in the memory of input {mine}, the reference's is its own"
    return ""
