"""The referee's side of the workers:

requests, deadlines, blocks, and private copies of what comes back.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from kwharness.base import trees
from kwharness.base.protocol import MAX_FDS, Closed, ProtocolError, Timeout
from kwharness.base.tensors import DTYPES, Block, Layout, LayoutError, layout_of
from kwharness.clients.workshop import Desk, Workshop
from kwharness.machine import health
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import CPU, Device, GpuBlock
from kwharness.model import weights
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.model.state import NOTHING, Carried
from kwharness.torch_compile import triton_cache

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

GUARD = 256  # bytes of red zone around each input
_GUARD_BYTE = 0xA5
_OUT_BYTE = 0x7F  # what an output block holds before it is written: nobody's expected value
MAX_DIMS = 64  # PyTorch has no more
MAX_OUTPUT = 1 << 36  # bytes; a layout that asks for more is no layout
COMPILED_S = 60.0  # that a process may take to hand over what it has compiled, all together
HANDING_OVER = "handing over what it compiled"
SENTENCE = 600  # characters
LAST_WORDS = 4000  # of a process that has ended
DIGESTED = 1 << 24  # elements at once
# Bytes in float64, of inputs and outputs, that are computed at once where a batch is cut.
PART = {"cpu": 1 << 26, "cuda": 1 << 32}

# Modes of a forward whose tensors are inputs.
GIVE_INPUTS = ("aim", "decides")
_SPECS = [{"dtype": str, "shape": [int]}]
# A content that is moved at construction, the weights that hold it, and how often it came to be.
_BREAK = {"digest": str, "prints": [float], "bytes": int, "scale": float, "times": int}
_BREAK |= {"names": [str]}
_LOADED = {"names": [str], "state": _SPECS, "trainable": [bool], "training": bool}
_LOADED |= {"moved": [bool], "tied": [int], "constants": list}
_LOADED |= {"arguments": [str], "init": dict, "breaks": [_BREAK]}
_SIGNATURE = {"names": [str], "keywords": [str], "defaults": dict, "any": bool}
_LOADED |= {"forward": _SIGNATURE, "constructor": _SIGNATURE}
_INSPECTED = {"inputs": _SPECS, "input_names": [str], "outputs": _SPECS, "operators": [str]}
_INSPECTED |= {"operations": int, "unkept": [str], "shared": [str], "linear": bool}
_INSPECTED |= {"eager_ms": float, "lengths": [int], "products": [int]}


class Spawned(Protocol):
    """What is needed of forkserver.Worker."""

    channel: Any
    pid: int
    refused: dict[str, int]
    files: dict[str, int]

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> Any: ...

    def log(self) -> str: ...


def sentence(text: str) -> str:
    """Returns a text that may have foreign parts as one line that can be shown."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * SENTENCE])
    return " ".join(shown.split())[:SENTENCE]


def line_numbers(value: Any) -> list[int]:
    """Returns the line numbers that a worker named, the last eight."""
    given = value[-100:] if isinstance(value, list) else []
    return [n for n in given if type(n) is int and 0 < n < 1 << 31][-8:]


def hold(value: Any, form: Any) -> None:
    """Raises ValueError where a worker's word has not this form: a type, a list of one form, or a
    dict of some keys.
    """
    if isinstance(form, type):
        fits = isinstance(value, form)
        fits = fits and (form is not int or 0 <= value < 1 << 62)
        if not fits or (isinstance(value, bool) and form is not bool):
            raise ValueError(f"{value!r:.40} is no {form.__name__}")
    elif isinstance(form, list):
        hold(value, list)
        for v in value:
            hold(v, form[0])
    else:
        hold(value, dict)
        for key, inner in form.items():
            if key not in value:
                raise ValueError(f"there is no {key!r}")
            hold(value[key], inner)


class WorkerFailure(Exception):
    """A worker did not do what it was asked.

    ``client`` is whose worker it was, None where that is not known.
    """

    client: Client | None = None

    @property
    def ill(self) -> str:
        """What it says, by the worker's own word, of a GPU that does not work; "" where nothing. A
        worker on the CPU has none: who wants one there has brought the error about.
        """
        on_cpu = self.client is not None and self.client.device.kind == "cpu"
        return "" if on_cpu else self._ill()

    def _ill(self) -> str:
        return ""


class WorkerError(WorkerFailure):
    """The worker answered that something failed. ``error`` is foreign text but for its shape."""

    def __init__(self, error: Any, client: Client | None = None) -> None:
        self.client = client
        e = error if isinstance(error, dict) else {}
        self.stage = str(e.get("stage") or "")[:40]
        self.type = sentence(str(e.get("type") or "error")[:80])
        self.message = str(e.get("message") or "")[:2000]
        self.traceback = str(e.get("traceback") or "")[:8000]
        self.lines = line_numbers(e.get("lines"))
        super().__init__(f"{self.type}: {self.message}" if self.message else self.type)

    def _ill(self) -> str:
        words = health.said(self.message)
        if not words and self.stage == health.STAGE and not self.out_of_memory:
            words = sentence(self.message.partition("\n")[0]) or self.type
        return words

    @property
    def out_of_memory(self) -> bool:
        said = "allocate memory", "CUDA_ERROR_OUT_OF_MEMORY"
        return self.type in ("MemoryError", "OutOfMemoryError") or any(
            s in self.message for s in said
        )


def ran_out(e: BaseException) -> bool:
    """Whether it says that there was no memory, here or in a worker."""
    if isinstance(e, (CudaError, WorkerError)):
        return e.out_of_memory
    return isinstance(e, torch.OutOfMemoryError)


def ill(e: BaseException | None) -> str:
    """Returns what it says, or what led to it, of a GPU that does not work, "" where nothing."""
    words = ""
    while e is not None:
        words = (e.ill if isinstance(e, WorkerFailure) else health.said(str(e))) or words
        e = e.__cause__
    return words


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

    def _ill(self) -> str:
        return health.said(self.log[-LAST_WORDS:])


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
    if exit_.reason == "foreign":
        return "was killed from outside, or by the kernel because others hold the memory"
    if exit_.signal:
        return f"died of {_SIGNALS.get(exit_.signal, f'signal {exit_.signal}')}"
    return f"ended itself with exit code {exit_.code}"


class Client:
    """Requests to one worker, one at a time, with a deadline each."""

    waited_s = 0.0  # for its answers, but for what was built for it meanwhile
    built_s = 0.0  # that was

    def __init__(self, worker: Spawned, device: Device = CPU) -> None:
        self.device = device  # where its tensors lie
        self.free_before = 0  # bytes of the device's memory that nobody had when it began
        self.fair_bytes = math.inf  # that it may have without being who took the memory
        self._asked = False  # and not answered
        self.waits = False  # whether ``kill`` returns only when the process is gone
        self.worker = worker
        self.orders: Sequence[Sequence[int]] = ()  # of a forward's inputs: see tensors.layout_of
        self._blocks: dict[str, Block | GpuBlock] = {}
        self._deadline = 0.0
        self._granted_before = 0.0  # when it was asked
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
        self._granted_before = self.granted()
        self.doing, self._allowed = doing, timeout
        self.device.synchronize()  # what it is asked about is there
        self._asked = True
        try:
            self.channel.send(msg, fds, timeout)
        except Timeout as e:
            raise self._late() from e
        except ProtocolError as e:
            raise self._gone() from e

    def finish(self, fds_wanted: int = 0) -> tuple[dict[str, Any], list[int]]:
        """Returns the answer and at most so many descriptors. Raises WorkerError, WorkerGone,
        WorkerLate.
        """
        began, before = time.monotonic(), self.granted()
        try:
            msg, fds = self._receive()
        except Timeout as e:
            raise self._late() from e
        except ProtocolError as e:
            raise self._gone("" if isinstance(e, Closed) else _broke(e)) from e
        finally:
            built = self.granted() - before
            self.built_s += built
            self.waited_s += time.monotonic() - began - built
        self._asked = False
        if msg.get("ok") is not True or len(fds) > fds_wanted:
            for fd in fds:
                os.close(fd)
            if msg.get("ok") is True:
                raise self._gone(_broke(f"{len(fds)} descriptors came, {fds_wanted} may"))
            raise WorkerError(msg.get("error"), self)
        return msg, fds

    def granted(self) -> float:
        """Returns the seconds that are no time of its process's: see workshop.Desk."""
        return 0.0

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            end = self._deadline + self.granted() - self._granted_before
            try:
                return self.channel.recv(max(end - time.monotonic(), 0.001))
            except Timeout:
                end = self._deadline + self.granted() - self._granted_before
                if end <= time.monotonic():
                    raise

    def ask(
        self,
        msg: dict[str, Any],
        fds: Sequence[int] = (),
        timeout: float = 60.0,
        doing: str = "",
        fds_wanted: int = 0,
    ) -> tuple[dict[str, Any], list[int]]:
        self.begin(msg, fds, timeout, doing or str(msg.get("op")))
        return self.finish(fds_wanted)

    def how_it_ended(self) -> str:
        """Returns how its process ended, as a clause, with the last line that it wrote."""
        ended, said = how_it_ended(self.worker.wait(5)), self.worker.log().strip()
        return f"{ended}: {said.splitlines()[-1][:200]}" if said else ended

    def took_memory(self) -> bool:
        """Whether it has most of what was free when it began, or more than its share. It is killed,
        to see what comes back: a large task leaves little free, too.
        """
        before = self.device.free_bytes()
        self.worker.kill()
        self.worker.wait(30)
        had = self.device.free_bytes() - before
        return had > min(self.free_before / 2, self.fair_bytes)

    def drain(self, timeout: float) -> None:
        """Waits for an answer that nobody has waited for, and forgets it."""
        if self._asked:
            self._deadline = min(self._deadline, time.monotonic() + timeout)
            for fd in self.finish(MAX_FDS)[1]:
                os.close(fd)

    def holds(self) -> int:
        """Returns the bytes of the memory that is shared with it."""
        return sum(b.size for b in self._blocks.values())

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Where an answer is read: one that makes no sense breaks the protocol."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as e:
            raise self._gone(_broke(e)) from e

    def _gone(self, broke: str = "") -> WorkerGone:
        exit_ = None if broke else self.worker.wait(5)
        oom = exit_ is not None and exit_.reason == "oom"
        how = broke or how_it_ended(exit_)
        gone = WorkerGone(how, self.worker.log(), oom, self.doing, bool(broke))
        if exit_ is None or not exit_.blameless:
            gone.client = self  # else it is nobody's fault
        return gone

    def _late(self) -> WorkerLate:
        log = self.worker.log()
        self.worker.kill()
        late = WorkerLate(self.doing, self._allowed, log)
        late.client = self
        return late

    def block(self, name: str, size: int) -> Block | GpuBlock:
        """Returns the block of this name; made and mapped on both sides where it is too small."""
        have = self._blocks.get(name)
        if have is not None and have.size >= size:
            return have
        made = self.device.create(size, name)
        msg = {"op": "map", "name": name, "size": size}
        try:
            self.ask(msg, [made.fd], doing="sharing memory")
        except WorkerFailure:
            made.close()
            raise
        if have is not None:
            have.leave()
        self._blocks[name] = made
        return made

    def _replace(self, *names: str) -> None:
        """Gives blocks back, on both sides, but for those that hold next to nothing."""
        for name in names:
            if (block := self._blocks.get(name)) is not None and block.size > 1:
                self._blocks.pop(name).leave()
                self.block(name, 1)  # in its place

    def put(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        guard: int = 0,
        orders: Sequence[Sequence[int]] = (),
    ) -> Layout:
        """Writes tensors into a block and returns their layout."""
        layout, size = layout_of(tensors, guard, orders)
        block = self.block(name, size)
        if guard:
            _guards(block, layout, guard).fill_(_GUARD_BYTE)
        for view, t in zip(block.views(layout), tensors, strict=True):
            view.copy_(t)
        return layout

    def kill(self) -> None:
        self.worker.kill()
        if self.waits:
            self.worker.wait(30)
        for b in self._blocks.values():
            b.leave()
        self._blocks.clear()


def _wide(modes: Sequence[str]) -> bool:
    """Whether one mode is asked for, which computes in float64."""
    return len(modes) == 1 and modes[0].partition(":")[0] in ("wide", "noise", "moved")


def _is_int(value: Any) -> bool:
    return type(value) is int


def _broke(what: object) -> str:
    return f"broke the protocol: {sentence(str(what))[:200]}"


class _Zones:
    """The red zones of a block, as one thing to fill and to check."""

    def __init__(self, zones: list[torch.Tensor]) -> None:
        self._zones = zones

    def fill_(self, byte: int) -> None:
        for z in self._zones:
            z.fill_(byte)

    def intact(self, byte: int) -> bool:
        return all(bool((z == byte).all()) for z in self._zones)


def _guards(block: Block | GpuBlock, layout: Layout, guard: int) -> _Zones:
    raw = block.bytes()
    zones = [raw[:guard]]
    for entry in layout:
        size = DTYPES[entry["dtype"]].itemsize
        for d in entry["shape"]:
            size *= d
        end = entry["offset"] + size
        zones.append(raw[end : min(end + guard, block.size)])
    return _Zones(zones)


def _private(
    device: Device, fds: list[int], msg: dict[str, Any], uncopied: bool = False
) -> list[torch.Tensor]:
    """Copies the tensors of an answer's block. ``uncopied``: they are views that keep it mapped."""
    if len(fds) != 1:
        raise LayoutError(f"{len(fds)} blocks came where one was expected")
    try:
        hold(msg, {"size": int, "layout": list})
        size = msg["size"]
        if not 0 < size < MAX_OUTPUT:
            raise LayoutError(f"a block of {size} bytes")
    except ValueError:
        os.close(fds[0])
        raise
    block = device.received(fds[0], size)
    try:
        views = block.views(msg["layout"])
        return views if uncopied else [v.clone() for v in views]
    finally:
        if uncopied:
            block.leave()
        else:
            block.close()


@dataclass(frozen=True)
class Parts:
    """In which parts a forward is computed whose rows, along dimension 0, have nothing to do with
    each other: it takes a part of the memory, over and over, instead of new memory each time.
    """

    shapes: list[torch.Size]  # of the inputs
    cut: list[int]  # numbers of those that have the rows
    count: int
    room: int  # bytes of the device that one forward needs besides what its process keeps

    @classmethod
    def of(
        cls, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], device: Device
    ) -> Parts | None:
        """Returns how a forward could be cut, None where it cannot, or is small.

        Whole numbers may count rows: one that no part has ends a GPU's context.
        """
        numbers = any(not t.is_floating_point() and t.dtype is not torch.bool for t in inputs)
        if numbers or not outputs or not all(t.dim() and t.is_floating_point() for t in outputs):
            return None
        rows = len(outputs[0])
        cut = [i for i, t in enumerate(inputs) if t.dim() and len(t) == rows]
        given, made = (8 * sum(t.numel() for t in ts) for ts in (inputs, outputs))
        shared = given - 8 * sum(inputs[i].numel() for i in cut)  # each part takes all of it
        most = PART[device.kind]
        count = min(-(-(given - shared + made) // most), rows)
        if not cut or count < 2 or shared > most or any(len(t) != rows for t in outputs):
            return None
        room = made + 2 * (shared + -(-(given - shared + made) // count))
        return cls([t.shape for t in inputs], cut, count, room)

    def fit(self, inputs: Sequence[torch.Tensor]) -> bool:
        return [t.shape for t in inputs] == self.shapes


class ReferenceClient(Client):
    """The reference worker."""

    def __init__(self, worker: Spawned, timeout: float = 60.0, device: Device = CPU) -> None:
        super().__init__(worker, device)
        self.timeout = timeout
        self.key = ""  # processes of the same key are alike
        self.kept = False  # it has served an evaluation before
        self.info: dict[str, Any] = {}
        self.seed = CONSTRUCTION_SEED  # under which it is constructed
        self.breaks: list[str] = []  # weights that are moved as it is constructed
        self._making = 1  # threads, as it is constructed
        self.init: list[torch.Tensor] = []
        self.carried = NOTHING
        # A task so large that as little of its memory is held as can be: one mode after the other,
        # in blocks that are gone when nobody needs their tensors any more.
        self.sparing = False
        self.parts: Parts | None = None  # in which float64 is computed, on inputs that fit
        self._parts: Parts | None = None  # of the forward that is asked for
        self.had_parts = False  # a forward was computed in parts since it was loaded
        self._keeping = False  # see ``keeping``
        self._room = {"out0": 0, "out1": 0, "draw": 0}
        self._lent: tuple[list[torch.Tensor], Layout] | None = None  # see ``lend``
        self._modes: list[str] = []
        self._later: list[str] = []  # modes that are asked for one by one
        self._request: dict[str, Any] = {}
        self._out = "out0"

    def load(
        self,
        source: str,
        *,
        threads: int,
        eval_mode: bool,
        seed: int = CONSTRUCTION_SEED,
        breaks: Sequence[str] = (),
        making: int = 0,
    ) -> None:
        """``making``: threads with which a candidate is constructed, if these are others: what
        factorises a matrix gives other bits with others.
        """
        self.parts, self.had_parts = None, False
        self.carried = NOTHING
        self._making = making or threads
        # Part by part, so that whoever waits knows for what.
        msg: dict[str, Any] = {"op": "import", "source": source, "threads": threads}
        self.ask(msg, timeout=self.timeout, doing="importing the file")
        self.ask({"op": "init_inputs"}, timeout=self.timeout, doing="get_init_inputs()")
        self.construct(seed, eval_mode=eval_mode, breaks=breaks)

    def construct(self, seed: int, *, eval_mode: bool, breaks: Sequence[str] = ()) -> None:
        """Has Model constructed under a seed: anew, where it was before. ``breaks``: the names of
        weights of which what every construction gives them is moved.
        """
        msg = {"op": "construct", "seed": seed, "eval": eval_mode, "breaks": list(breaks)}
        msg["threads"] = self._making
        self.info, fds = self.ask(
            msg, timeout=self.timeout, doing="Model's constructor", fds_wanted=1
        )
        self.seed, self.breaks = seed, list(breaks)
        with self._understood():
            self.init = _private(self.device, fds, self.info)
            hold(self.info, _LOADED)
            trees.build(self.info["init"], self.init)
            count = len(self.info["names"])
            each = ("state", "trainable", "moved", "tied", "constants")
            if any(len(self.info[n]) != count for n in each):
                raise ValueError("names and weights do not match")
            if any(first > i for i, first in enumerate(self.info["tied"])):
                raise ValueError("weights that are tied to later ones")

    def weights(self, state: Sequence[torch.Tensor]) -> weights.Reference:
        """Returns what there is to be taken, as it was constructed."""
        entries = _entries(self.info["names"], state, self.info["constants"])
        return weights.Reference(entries, self.info["moved"], self.info["tied"], self.carried.names)

    def carry(self, carried: Carried) -> None:
        """Has what the model carries from call to call behind its inputs and its outputs."""
        self.carried = carried
        msg = {"op": "carry", "carried": carried.to_json()}
        self.ask(msg, timeout=self.timeout, doing="Model's state")

    def hold(self, fds: Sequence[int]) -> None:
        """Has it keep these descriptors open, and no others."""
        self.ask({"op": "hold"}, fds, timeout=self.timeout)

    def draw(
        self, seed: int, *, reseeded: bool = False, last: bool = False
    ) -> tuple[Any, list[torch.Tensor]]:
        """Returns the tree and the tensors of one draw. What is carried is behind them: ``last``, a
        state from which a position soon comes round.
        """
        tree, draws = self.draws([seed], reseeded=reseeded, last=last)
        return tree, draws[0]

    def draws(
        self, seeds: Sequence[int], *, reseeded: bool = False, last: bool = False
    ) -> tuple[Any, list[list[torch.Tensor]]]:
        """Returns the tree of all draws, and the tensors of each. ``reseeded``: what get_inputs()
        seeds by itself gets these seeds, too.
        """
        request = {"op": "draw", "seeds": list(seeds), **self._into("draw")}
        request |= {"reseeded": reseeded, "last": last}
        self._release()
        msg, fds = self.ask(request, timeout=self.timeout, doing="get_inputs()", fds_wanted=1)
        with self._understood():
            if fds:
                tensors = _private(self.device, fds, msg, self.sparing)
            else:
                views = self._blocks["draw"].views(msg["layout"])
                tensors = views if self.sparing else [v.clone() for v in views]
            hold(msg, {"tree": dict, "orders": [[int]]})
            self.orders = msg["orders"]
            each, rest = divmod(len(tensors), len(seeds))
            if rest:
                raise ValueError("draws of different numbers of tensors")
            draws = [tensors[i * each : (i + 1) * each] for i in range(len(seeds))]
            for draw in draws:
                trees.build(msg["tree"], draw)
                if self.carried and len(draw) != self.carried.given + len(self.carried.names):
                    raise ValueError("a draw of other tensors")
        if fds and not self._passing:
            self._room["draw"] = self.block("draw", msg["size"]).size
        return msg["tree"], draws

    def state(self) -> list[torch.Tensor]:
        msg, fds = self.ask(
            {"op": "state"}, timeout=self.timeout, doing="Model's state_dict()", fds_wanted=1
        )
        with self._understood():
            tensors = _private(self.device, fds, msg)
            if len(tensors) != len(self.info["names"]):
                raise ValueError("names and weights do not match")
        return tensors

    def inspect(self, seed: int) -> dict[str, Any]:
        """Returns what one forward on a draw shows."""
        msg, _ = self.ask(
            {"op": "inspect", "seed": seed}, timeout=self.timeout, doing="Model's forward"
        )
        with self._understood():
            hold(msg, _INSPECTED)
            if len(msg["inputs"]) != len(msg["input_names"]):
                raise ValueError("inputs and names do not match")
            carried = msg["carried"] = Carried.from_json(msg.get("carried"))
            if (carried.given, carried.returned) != (len(msg["inputs"]), len(msg["outputs"])):
                raise ValueError("state beside other inputs and outputs")
        return msg

    def compiled(self) -> int:
        """Returns a descriptor of what torch.compile has made in it, the caller's to close, or -1:
        its own word, for processes of the same file alone.
        """
        _, fds = self.ask({"op": "compiled"}, timeout=self.timeout, fds_wanted=1)
        return fds[0] if fds else -1

    def precompiled(self, fd: int) -> None:
        """Gives it what another process of the same file has compiled."""
        self.ask({"op": "precompiled"}, [fd], timeout=self.timeout)

    def set_state(self, state: Sequence[torch.Tensor]) -> None:
        if state:
            layout = self.put("state", state)
            msg = {"op": "set_state", "layout": layout}
            self.ask(msg, timeout=self.timeout, doing="changing Model's weights")

    def kill(self) -> None:
        self._lent = None
        super().kill()

    def lend(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns inputs as they lie in memory that the reference has, too, where memory is spared:
        a forward on them copies nothing. They hold until the next are lent.
        """
        if not self.sparing:
            return list(inputs)
        self._lent = None
        self._replace("in")
        layout = self.put("lent", inputs, orders=self.orders)
        views = self._blocks["lent"].views(layout)
        self._lent = views, layout
        return list(views)

    def _given(self, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Has the inputs in the reference's memory, and says where."""
        if self._lent is not None:
            views, layout = self._lent
            if len(views) == len(inputs) and all(map(operator.is_, views, inputs)):
                self._replace("in")
                return {"in": "lent", "layout": layout}
        return {"in": "in", "layout": self.put("in", inputs, orders=self.orders)}

    def begin_forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        sources: bool = False,
        **more: Any,
    ) -> None:
        """``more``: ``decided``: simulated rounding and moved inputs change no decision; ``free``:
        the inputs that an aim may change (decisions.py).
        """
        self._request = {"op": "forward", "tree": tree, "sources": sources, **self._given(inputs)}
        self._request |= more
        self._parts = self.parts if self.parts is not None and self.parts.fit(inputs) else None
        self._later = list(modes[1:]) if self.sparing else []
        self._ask_modes(modes[:1] if self.sparing else modes)

    def _ask_modes(self, modes: Sequence[str]) -> None:
        self._modes = list(modes)
        self._out = "out1" if self._out == "out0" else "out0"
        msg = {"modes": self._modes, "out": self._out, **self._into(self._out), **self._request}
        parts = self._parts
        if parts is not None and self._passing and _wide(modes):
            msg |= {"cut": parts.cut, "parts": parts.count}
            self.had_parts = True
            if self.device.free_bytes() < parts.room:
                self._release()
        else:
            self._release()
        self.begin(msg, (), self.timeout, "Model's forward")

    def _into(self, block: str) -> dict[str, Any]:
        """Says where tensors go: a block that is used again has no room where memory is spared."""
        return {"room": 0 if self._passing else self._room[block], "sparing": self._passing}

    @property
    def _passing(self) -> bool:
        """Whether blocks are gone when nobody needs their tensors."""
        return self.sparing and not self._keeping

    def _release(self) -> None:
        if self._passing:
            self.device.release()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Has nothing computed in parts."""
        parts, self.parts = self.parts, None
        try:
            yield
        finally:
            self.parts = parts

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Has blocks used again, although memory is spared: a draw is there until the next draw
        inside this, an answer until the next but one. ``let_go`` gives the blocks back.
        """
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False

    def give_back(self) -> None:
        """Has it keep no free memory."""
        self.ask({"op": "release"}, timeout=self.timeout)

    def let_go(self) -> None:
        """Gives back the blocks that were kept, and the memory that its process keeps."""
        self._lent = None
        self._keeping = False
        self.drain(self.timeout)
        if self.sparing:
            kept = [name for name, room in self._room.items() if room]
            self._room.update(dict.fromkeys(kept, 0))
            self._replace(*kept, "in", "lent")
            self.give_back()
            self._release()

    def finish_forward(self) -> list[dict[str, Any]]:
        """Returns a dict per mode: ``error``, or ``tensors``, ``sources``, ``tree``, ``aliases``.

        The tensors live in memory shared with the reference and hold until the next but one
        forward ends, or for as long as they are needed where memory is spared; no candidate ever
        sees that memory.
        """
        results = self._finish_modes()
        for mode in self._later:
            self._ask_modes([mode])
            results += self._finish_modes()
        first: list[torch.Tensor] = next((r["tensors"] for r in results if "tensors" in r), [])
        return [self._of_shapes(first, r) for r in results]

    def _of_shapes(self, first: Sequence[torch.Tensor], answer: dict[str, Any]) -> dict[str, Any]:
        """Returns a mode's answer, an error where its shapes are others than the first mode's:
        rounding moves values, and shapes with them.
        """
        error = reshaped(first, answer["tensors"]) if "tensors" in answer else None
        if error is None:
            return answer
        error.client = self
        return {"mode": answer["mode"], "error": error}

    def _finish_modes(self) -> list[dict[str, Any]]:
        msg, fds = self.finish(1)
        with self._understood():
            if fds:
                tensors = _private(self.device, fds, msg, self.sparing)
            else:
                tensors = self._blocks[self._out].views(msg["layout"])
            results = self._results(msg, tensors)
        if fds and not self._passing and self._room[self._out] < msg["size"]:
            # As large as the other: modes that give less alternate with some that give more.
            size = max(msg["size"], self._room["out0"], self._room["out1"])
            self._room[self._out] = self.block(self._out, size).size
        return results

    def _results(self, msg: dict[str, Any], tensors: list[torch.Tensor]) -> list[dict[str, Any]]:
        """Returns the modes that were asked for, in that order."""
        hold(msg, {"results": [{"mode": str}]})
        if [r["mode"] for r in msg["results"]] != self._modes:
            raise ValueError("other modes than were asked for")
        results: list[dict[str, Any]] = []
        for r in msg["results"]:
            if "error" in r:
                error = WorkerError(r["error"], self)
                error.stage = error.stage or "forward"
                if error.ill:  # which is no mode's own
                    raise error
                results.append({"mode": r["mode"], "error": error})
                continue
            hold(r, {"at": int, "count": int, "sources": list, "aliases": list, "tree": dict})
            own = tensors[r["at"] : r["at"] + r["count"]]
            n = len(r["sources"])
            if len(own) != r["count"] or n > len(own) or not all(map(_is_int, r["aliases"])):
                raise ValueError("a result without its tensors")
            gives_inputs = r["mode"].partition(":")[0] in GIVE_INPUTS
            if self.carried and n != self.carried.all and not gives_inputs:
                raise ValueError("a result without its state")
            trees.build(r["tree"], own[:n])
            sources: list[dict[str, Any] | None] = []
            for s in r["sources"]:
                if s is not None:
                    hold(s, {"at": int})
                    s = {**s, "values": own[s["at"]]}
                sources.append(s)
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
            if "error" not in r and not self.sparing:
                r["tensors"] = [t.clone() for t in r["tensors"]]
                r["sources"] = [
                    None if s is None else {**s, "values": s["values"].clone()}
                    for s in r["sources"]
                ]
        return results

    def decides(self, tree: Any, inputs: Sequence[torch.Tensor]) -> int:
        """Returns how many operators decide in a forward (decisions.py), 0 where it raises."""
        self.begin_forward(tree, inputs, ["decides"])
        answer = self.finish_forward()[0]
        with self._understood():
            hold(answer, {} if "error" in answer else {"decisions": int})
        return int(answer.get("decisions", 0))

    def aimed(
        self, tree: Any, inputs: Sequence[torch.Tensor], free: Sequence[int], seed: int
    ) -> list[torch.Tensor] | None:
        """Returns inputs of which elements are moved to where the forward decides, of those among
        ``free`` alone; None where it decides on nothing that is made of these.
        """
        self.begin_forward(tree, inputs, [f"aim:{seed}"], free=list(free))
        answer = self.finish_forward()[0]
        if "error" in answer:
            if ran_out(answer["error"]):
                raise answer["error"]
            return None
        found: list[torch.Tensor] = [t.clone() for t in answer["tensors"]]
        with self._understood():
            if [(t.shape, t.dtype) for t in found] != [(t.shape, t.dtype) for t in inputs]:
                raise ValueError("inputs of another form than those that it was given")
        return found

    def each(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        decided: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Mode by mode, with sources, as finish_forward returns it: nothing is held of one when
        the next comes, where memory is spared. ``decided`` as in ``begin_forward``.
        """
        if not self.sparing:
            self.begin_forward(tree, inputs, modes, sources=True, decided=decided)
            yield from self.finish_forward()
            return
        first: list[torch.Tensor] = []
        for mode in modes:
            [r] = self.forward(tree, inputs, [mode], sources=True)
            if not first and "tensors" in r:
                first = [t.to("meta") for t in r["tensors"]]
            yield self._of_shapes(first, r)
            del r  # or it is still there while the next answer is made


def _entries(
    names: Sequence[str], state: Sequence[torch.Tensor], constants: Sequence[Any]
) -> list[weights.Entry]:
    def number(c: Any) -> float | None:
        whole = isinstance(c, int) and abs(c) < 1 << 53
        return float(c) if whole or isinstance(c, float) else None

    found = zip(names, state, constants, strict=True)
    return [weights.Entry(n, t, number(c)) for n, t, c in found]


def _like(spec: dict[str, Any]) -> torch.Tensor:
    """Returns a tensor without content, of which a worker has said what it is."""
    if len(spec["shape"]) > MAX_DIMS or math.prod(spec["shape"]) > MAX_OUTPUT:
        raise ValueError("a weight that no memory holds")
    try:
        return torch.empty(spec["shape"], dtype=DTYPES[spec["dtype"]], device="meta")
    except RuntimeError as e:
        raise ValueError("a weight of no shape") from e


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

    def __init__(self, worker: Spawned, timeout: float, device: Device = CPU) -> None:
        super().__init__(worker, device)
        self.timeout = timeout  # of one forward
        self.desk: Desk | None = None  # where it asks for what it has built
        self.carried = NOTHING
        self.sparing = False  # see ReferenceClient
        self.plan: weights.Plan | None = None  # how it gets weights; None: as a state_dict
        self.broken: list[int] = []  # by its word, how often it moved which of the breaks
        self._answered: dict[str, Any] = {}
        self._pending: tuple[Layout, Sequence[torch.Tensor], Layout, list[int]] | None = None

    def kill(self) -> None:
        """Kills it, and learns before what it tried that is not its business."""
        self.worker.log()
        super().kill()
        if self.desk is not None:
            self.desk.close()

    def granted(self) -> float:
        return self.desk.granted() if self.desk is not None else 0.0

    def finish(self, fds_wanted: int = 0) -> tuple[dict[str, Any], list[int]]:
        try:
            return super().finish(fds_wanted)
        finally:
            if self.desk is not None and self.desk.trouble is not None:
                raise self.desk.trouble  # whatever it made of that

    def builds_on_its_own(self) -> None:
        """From here on what is built for it takes its own time."""
        if self.desk is not None:
            self.desk.no_more()

    def load(
        self,
        source: str,
        artifacts: list[dict[str, Any]],
        fds: Sequence[int],
        *,
        threads: int,
        timeout: float,
        stand_in: bool = False,
        workshop: Workshop | None = None,
        elsewhere: bool = False,
        forbids: bool = False,
        handed_out: bool = False,
    ) -> None:
        """Imports it. ``stand_in``: its custom code does nothing. ``workshop``: where it asks for
        what is not among the ``artifacts``. ``elsewhere``: they are for a device that is not here.
        ``forbids``: what policy forbids fails. ``handed_out``: it is the file that its user gets.
        """
        msg = {"op": "load", "source": source, "artifacts": artifacts, "threads": threads}
        msg |= {"stand_in": stand_in, "elsewhere": elsewhere}
        msg |= {"forbids": forbids, "asks": workshop is not None, "handed_out": handed_out}
        doing = "importing the candidate"
        if workshop is None:
            self.ask(msg, fds, timeout, doing)
            return
        self.desk, theirs = workshop.desk([a["request"] for a in artifacts])
        with theirs:
            msg["failed"] = workshop.failed()
            self.begin(msg, [*fds, theirs.fileno()], timeout, doing)
        self.finish()

    def init(
        self,
        tree: Any,
        tensors: Sequence[torch.Tensor],
        *,
        eval_mode: bool,
        timeout: float,
        seed: int = CONSTRUCTION_SEED,
        breaks: Sequence[dict[str, Any]] = (),
    ) -> None:
        layout = self.put("init", tensors) if tensors else []
        msg = {"op": "init", "tree": tree, "layout": layout, "eval": eval_mode, "seed": seed}
        msg["breaks"] = list(breaks)
        answer, _ = self.ask(msg, timeout=timeout, doing="constructing ModelNew")
        with self._understood():
            hold(answer, {"broken": [int]})
            if len(answer["broken"]) != len(breaks):
                raise ValueError("other contents than were to be moved")
            self.broken = answer["broken"]

    def plan_for(self, reference: weights.Reference) -> weights.Plan:
        """Returns how it gets the weights of a reference that was constructed under the same seed,
        by what it says of its own as they were constructed.
        """
        said, _ = self._describe({})
        with self._understood():
            hold(said, {"takes": str, "names": [str], "constants": list})
            hold(said, {"specs": [{"shape": [int], "dtype": str}]})
            if len(set(said["names"])) < len(said["names"]):
                raise ValueError("two weights of one name")
            like = [_like(s) for s in said["specs"]]
            own = _entries(said["names"], like, said["constants"])
            if said["takes"] not in ("", weights.LOAD_REFERENCE_STATE, weights.LOAD_STATE_DICT):
                raise ValueError("no method that takes weights")
        if said["takes"]:
            return weights.whole(reference, said["takes"])
        wanted = weights.to_look_at(reference, own)
        if wanted:
            layout, size = layout_of([own[i].value for i in wanted])
            block = self.block("own", size)
            self._describe({"wanted": [own[i].name for i in wanted], "layout": layout})
            for i, view in zip(wanted, block.views(layout), strict=True):
                own[i] = replace(own[i], value=view.clone())
            self._replace("own")
        return weights.plan(reference, own)

    def _describe(self, more: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        asked = max(self.timeout, 30.0)
        return self.ask({"op": "describe", **more}, timeout=asked, doing="telling its weights")

    def carry(self, carried: Carried) -> None:
        """Says what the reference carries from call to call. Comes before weights."""
        self.carried = carried
        msg = {"op": "carry", "carried": carried.to_json()}
        self.ask(msg, timeout=max(self.timeout, 30.0), doing="taking the state")

    def set_state(
        self, names: Sequence[str], state: Sequence[torch.Tensor], *, in_place: bool = False
    ) -> bool:
        """Gives it the reference's weights, as its plan says. Returns False where an in-place
        change found other names.
        """
        own = self.plan is not None and not self.plan.whole
        if self.plan is not None:
            names, state = self.plan.given(names, state)
        layout = self.put("state", state) if state else []
        msg: dict[str, Any] = {"op": "set_state", "names": list(names), "layout": layout}
        msg |= {"in_place": in_place, "own": own}
        answer, _ = self.ask(msg, timeout=max(self.timeout, 30.0), doing="taking the weights")
        return answer.get("changed") is not False

    def begin_forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        output_tree: Any,
        aliases: Sequence[int],
        *,
        goes_on: bool = False,
    ) -> None:
        """``goes_on``: it has the state that its last forward left. What is behind the inputs then
        tells it nothing.
        """
        if goes_on:
            given = self.carried.given
            inputs = [*inputs[:given], *(torch.zeros_like(t) for t in inputs[given:])]
        wanted, size = layout_of(outputs)
        out = self.block("out", size)
        out.bytes().fill_(_OUT_BYTE)
        layout = self.put("in", inputs, GUARD, self.orders)
        msg = {
            "op": "forward",
            "tree": tree,
            "layout": layout,
            "outputs": wanted,
            "output_tree": output_tree,
            "sparing": self.sparing,
            "goes_on": goes_on,
        }
        self._pending = (layout, inputs, wanted, list(aliases))
        self.begin(msg, (), self.timeout, "a forward")

    def let_go(self) -> None:
        """Gives back the memory that is shared with it, until it is asked again."""
        self._replace("in", "out")

    def finish_forward(self) -> Answer:
        self.wait_forward()
        return self.answer()

    def wait_forward(self) -> None:
        """Waits until the forward has ended."""
        self._answered, _ = self.finish()
        self.builds_on_its_own()

    def answer(self) -> Answer:
        """Returns what the forward gave, once it has ended."""
        assert self._pending is not None
        msg = self._answered
        layout, inputs, wanted, aliases = self._pending
        self._pending = None  # the inputs may be large, and nobody else's any more
        outputs = [v.clone() for v in self._blocks["out"].views(wanted)]
        views = self._blocks["in"].views(layout)
        wrote = [
            i
            for i, (v, t) in enumerate(zip(views, inputs, strict=True))
            if i not in self.carried.written and not same_bytes(v, t)
        ]
        outside = not _guards(self._blocks["in"], layout, GUARD).intact(_GUARD_BYTE)
        return Answer(outputs, _misfit(msg, wanted, aliases, self.carried), wrote, outside)

    def compiled(self) -> tuple[int, dict[str, int]]:
        """Returns descriptors, the caller's to close, of what Triton and torch.compile have made in
        it, -1 where that is nothing, and of libraries that come with it, by name.
        """
        before, held = self.until, list[int]()
        self.until = min(before, time.monotonic() + COMPILED_S)
        try:
            answer = self._handed({"op": "compiled"}, 1, held)
            with self._understood():
                hold(answer, {"libraries": int})
            if not held:
                return -1, {}
            self._plain(held, 2 * triton_cache.MAX_BYTES)
            names = self._libraries(min(answer["libraries"], triton_cache.MAX_LIBRARIES), held)
            return held[0], dict(zip(names, held[1:], strict=True))
        except BaseException:
            for fd in held:
                os.close(fd)
            raise
        finally:
            self.until = before

    def _libraries(self, count: int, held: list[int]) -> list[str]:
        """Returns the names of so many libraries that it has made; adds their descriptors."""
        names: list[str] = []
        while len(names) < count:
            request = {"op": "compiled", "after": len(names)}
            some = self._handed(request, triton_cache.AT_ONCE, held)
            with self._understood():
                hold(some, {"names": [str]})
                names += some["names"]
                if not some["names"] or not len(set(names)) == len(names) == len(held) - 1:
                    raise ValueError("other libraries than there are")
                if not all(map(triton_cache.names_library, some["names"])):
                    raise ValueError("a name that no library has")
            self._plain(held[1:], triton_cache.MAX_LIBRARY_BYTES)
        return names

    def _plain(self, fds: Sequence[int], most: int) -> None:
        """Has all of them be files, of so many bytes together at most."""
        with self._understood():
            found = [os.fstat(fd) for fd in fds]
            if not all(stat.S_ISREG(f.st_mode) for f in found):
                raise ValueError("what is no file")
            if sum(f.st_size for f in found) > most:
                raise ValueError(f"files of over {most} bytes")

    def _handed(self, msg: dict[str, Any], most: int, held: list[int]) -> dict[str, Any]:
        """Asks for what it has compiled, and adds the descriptors that come."""
        if time.monotonic() > self.until:
            self.doing, self._allowed = HANDING_OVER, COMPILED_S
            raise self._late()
        answer, fds = self.ask(msg, timeout=COMPILED_S, doing=HANDING_OVER, fds_wanted=most)
        held += fds
        return answer

    def give_libraries(self, libraries: Sequence[tuple[str, int]]) -> None:
        """Gives it libraries that were made in another process of its: names and descriptors."""
        for at in range(0, len(libraries), triton_cache.AT_ONCE):
            some = libraries[at : at + triton_cache.AT_ONCE]
            self.ask(
                {"op": "libraries", "names": [name for name, _ in some]}, [fd for _, fd in some]
            )

    def trace(self, tree: Any, inputs: Sequence[torch.Tensor]) -> Any:
        """Returns who did the work of a forward, by the worker's own word. Ends the poisoning."""
        self.ask({"op": "settle"}, timeout=self.timeout)
        layout = self.put("in", inputs, GUARD, self.orders)
        msg, _ = self.ask(
            {"op": "trace", "tree": tree, "layout": layout},
            timeout=3 * self.timeout,
            doing="a traced forward",
        )
        return msg.get("trace")


def reshaped(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> WorkerError | None:
    """Returns what is wrong with a reference that gives tensors of other shapes another time."""
    message = ""
    if len(tensors) != len(others):
        message = (
            f"has a number of outputs that depends on values: {len(tensors)}, then {len(others)}"
        )
    for i, (a, b) in enumerate(zip(tensors, others, strict=False)):
        if a.shape != b.shape and not message:
            found = f"output {i} has {list(a.shape)}, then {list(b.shape)}"
            message = f"has a shape that depends on values: {found}"
    if not message:
        return None
    return WorkerError({"stage": "output_shape", "type": "ValueError", "message": message})


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape are the same bit by bit."""
    if not a.numel():
        return True
    plain = a.is_contiguous() and b.is_contiguous() and a.is_cpu and b.is_cpu
    if plain and a.dtype == b.dtype and a.shape == b.shape:
        return _libc.memcmp(a.data_ptr(), b.data_ptr(), a.numel() * a.element_size()) == 0
    if a.is_floating_point() or a.is_complex():
        words = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[a.element_size()]
        return torch.equal(a.reshape(-1).view(words), b.reshape(-1).view(words))
    return torch.equal(a, b)


def digest(t: torch.Tensor, salt: int) -> int:
    """Returns a number by which tensors of one dtype and shape are the same bit by bit: it is
    another for others, but for one in 2^31 or so. A sum of their words times random odd numbers,
    modulo 2^64 (Carter and Wegman, Universal classes of hash functions, 1979).
    """
    if t.is_complex():
        t = torch.view_as_real(t)
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    g = torch.Generator(t.device).manual_seed(salt)
    total = 0
    for c in t.reshape(-1).view(words).split(DIGESTED):
        by = torch.randint(-(1 << 62), 1 << 62, c.shape, generator=g, device=t.device)
        total += int(by.bitwise_or_(1).mul_(c).sum())
    return total % (1 << 64)


def _misfit(msg: dict[str, Any], wanted: Layout, aliases: list[int], carried: Carried) -> str:
    """Returns one sentence on what is not as the reference's, or ""."""
    specs = msg.get("outputs")
    if not isinstance(specs, list):
        return "its outputs are not described"
    if msg.get("fits") is not True:
        mine, theirs = len(specs), carried.returned if carried else len(wanted)
        return f"it returns {mine} tensors in another structure, the reference returns {theirs}"
    for i, w in enumerate(wanted):
        got = specs[i] if i < len(specs) and isinstance(specs[i], dict) else {}
        if got.get("shape") != w["shape"]:
            shape = str(got.get("shape"))[:100]
            return f"{carried.output(i)} has shape {shape}, the reference's has {w['shape']}"
        if got.get("dtype") != w["dtype"]:
            dtype = str(got.get("dtype"))[:20]
            return f"{carried.output(i)} is {dtype}, the reference's is {w['dtype']}"
    said = msg.get("aliases")
    if isinstance(said, list):
        for i, (mine, theirs) in enumerate(zip(said, aliases, strict=False)):
            if isinstance(mine, int) and mine >= 0 and theirs < 0:
                what = carried.output(i)
                return f"{what} lies in the memory of input {mine}, the reference's is its own"
    return ""
