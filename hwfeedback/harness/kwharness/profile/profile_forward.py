"""The profile of a forward: which kernels it launches on a GPU, and what each of them does there.

It is taken in processes of its own after a candidate has been timed, by Nsight Compute (ncu.py,
workers/profiler.py). Where that cannot be, by PyTorch's profiler, which knows launches and their
times; where that cannot be either, it is what the compiler says. The profile names which it was and
why. It is the word of the candidate's process: it explains, decides nothing, and nothing that goes
wrong here ends anything.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kwharness.base.constants import SHARED
from kwharness.base.protocol import MAX_WORKER_FRAME, Channel, ProtocolError
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.client import GUARD
from kwharness.clients.errors import WorkerError, WorkerFailure, WorkerGone, WorkerLate, sentence
from kwharness.clients.warm_processes import WarmProcesses
from kwharness.machine import toolchain
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device
from kwharness.process.policy import SandboxError
from kwharness.profile import ncu
from kwharness.standalone import interpreter

# Processes: a first verdict has two profiles, and one takes longer to start than the next two.
AHEAD = 3
START_S = 30.0  # until an interpreter under ncu has imported PyTorch
MEASURE_S = 30.0  # for what ncu measures; what it has by then is taken
LIST_S = 60.0  # for PyTorch's profiler
MOST_REFUSALS = 10  # of an ncu that does not know a metric, and then others
MOST_LATE = 2  # starts of an ncu that take longer; then it is not asked for a while
REST_S = 600.0
REPORT_S = 20.0  # until ncu has ended and its report is there
WARM = 2  # forwards before the one that is looked at
MAX_KERNELS = 40  # that a profile names, the longest
MAX_METRICS = 1500  # of a kernel
MAX_LISTED = 3000  # kinds of launches that PyTorch's profiler names
MAX_COUNT = 1 << 31
_LONG_MS = 1e9
# Columns that say what the GPU is and not what a kernel does.
_OF_THE_GPU = ("device__", "nvlink__", "c2clink__", "numa__", "pcie__", "profiler__", "context__")
TIME = "gpu__time_duration.sum"  # ns
_FLOPS = {"fadd": 1, "fmul": 1, "ffma": 2}
# By type of operand, and on most chips by that of the result, too. Sparse products, which have
# counters of their own besides, are in these.
_OPERATIONS = re.compile(
    r"sm__ops_path_tensor_src_([a-z]+\d+(?:_fp\d+)*)(?:_dst_fp\d+)?\.sum", re.ASCII
)
# Types that ceilings name otherwise. Shorter ones that are counted with float8 have its rate.
_OPERANDS = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8", "fp4_fp6_fp8": "float8"}
_COPIES = ("Memcpy ", "Memset ")
# When starts of an ncu took over START_S, one after the other, by its path and time.monotonic().
_late: dict[str, list[float]] = {}
# Metrics that an ncu does not know, by its path.
_unknown: dict[str, set[str]] = {}

# Whose a kernel is that the candidate's compilers did not name, by its name.
_PYTORCH = re.compile(r"\bat::|\bc10::|at_cuda_detail|\bcub::|\btriton_(poi|red|per|tem|for)_")
_VENDOR = re.compile(
    r"nvjet|cutlass|cublas|cudnn|xmma|gemm|gemv|splitKreduce|winograd|implicit_convolve|"
    r"flash_fwd|fmha|nchwToNhwc|nhwcToNchw|convolve|\bfft|vector_fft|^(void )?dot_kernel|"
    r"reduce_1Block_kernel|scal_kernel|axpy_kernel",
    re.IGNORECASE,
)


class NoProfile(Exception):
    """Why something is not known, a sentence. ``passing``: it may go another time."""

    def __init__(self, why: str, *, passing: bool = False) -> None:
        super().__init__(sentence(why))
        self.passing = passing


class UnknownMetrics(NoProfile):
    """ncu says that it does not know these metrics, or somebody in its process does."""

    def __init__(self, why: str, names: Sequence[str]) -> None:
        super().__init__(why)
        self.names = names


@dataclass
class Subject:
    """Whose forward it is."""

    load: Callable[[CandidateClient], None]  # imports and constructs it, with its weights
    tree: Any
    inputs: Sequence[torch.Tensor]
    # The compiler's word, kernelwright.Kernel as JSON: asked for when the profile has been taken.
    kernels: Callable[[], Sequence[dict[str, Any]]]
    custom: bool  # whether it brings code of its own
    orders: Sequence[Sequence[int]] = ()  # of inputs: see tensors.layout_of
    forward_s: float = 10.0  # that a forward may take


@dataclass(frozen=True)
class Kind:
    """Launches that differ in nothing but their arguments."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    count: int
    ms: float = 0.0  # of all of them; 0: not known

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return ncu.base(self.name), tuple(self.grid), tuple(self.block)

    @property
    def is_copy(self) -> bool:
        return self.name.startswith(_COPIES)


@dataclass
class Seen:
    """What is known of the launches of one forward."""

    kinds: list[Kind] = field(default_factory=list)
    report: ncu.Report = field(default_factory=ncu.Report)
    why: str = ""
    more: int = 0  # launches of kernels of other kinds
    more_ms: float = 0.0  # of all of those; 0: not known
    whole: bool = True  # whether that is every launch


class Served:
    """A candidate's process under ncu, as errors.Spawned: the process that is spawned is the one
    that waits for ncu's report.
    """

    def __init__(self, worker: Any, channel: Channel) -> None:
        self._worker = worker
        self.channel = channel
        self.pid = worker.pid
        self.refused: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self.inner = 0  # the candidate's process, as its own namespace has it
        self.began = False  # it has its context, and ncu has measured a launch

    def end(self) -> None:
        self._worker.kill()

    def kill(self) -> None:
        self.end()
        self.channel.close()

    def wait(self, timeout: float | None = None) -> Any:
        return self._worker.wait(timeout)

    def log(self) -> str:
        return str(self._worker.log())

    def stop(self) -> None:
        """Has what runs under ncu ended: ncu writes what it knows."""
        self._worker.channel.send({"op": "stop", "pid": self.inner})

    def report(self) -> dict[str, Any]:
        """Returns what came of ncu once the candidate's process has nothing more to do."""
        self.channel.close()
        answer, _ = self._worker.channel.recv(REPORT_S)
        return answer


class Profiler:
    """Takes profiles on one device, within one evaluation."""

    def __init__(
        self,
        server: Any,
        device: Device,
        config: dict[str, Any],
        limits: dict[str, int],
        fds: Sequence[int],
        capability: int,
        *,
        spares: WarmProcesses | None = None,
        full: bool = False,
        products: bool = True,
    ) -> None:
        """``config`` and ``limits`` are a worker's, ``fds`` what it is to keep open.
        ``capability`` is the GPU's, as 90 for 9.0. ``products``: the task is one for tensor cores.
        """
        self._server, self._device, self._fds = server, device, fds
        self._config, self._limits = config, limits
        self._spares = spares
        self._program = toolchain.ncu()
        self._named = ncu.selection(capability, products=full or products)
        self._full = full
        self.passing = False  # whether something was not known that may be another time
        self.met: list[Any] = []  # workers that met a candidate

    @property
    def _known(self) -> list[str]:
        """What ncu is asked for, without what it does not know."""
        unknown = _unknown.get(self._program, ())
        return [m for m in self._named.values() if m not in unknown]

    @property
    def keys(self) -> list[str]:
        """Of processes that are started ahead."""
        command = ncu.command(self._program, self._known, full=self._full)
        whole = ["profiler", self._config, self._limits, command]
        return [json.dumps([i, *whole], sort_keys=True) for i in range(AHEAD)]

    def ahead(self) -> None:
        """Has processes started that the next profiles are taken in, of whatever task that is asked
        the same.
        """
        if self._spares is not None and self._program and not self._rests():
            for key in self.keys:
                self._spares.begin(key, self._start)

    def _rests(self) -> bool:
        """Whether ncu did not start too often, not long ago."""
        late = _late.get(self._program, [])
        return len(late) >= MOST_LATE and time.monotonic() - late[-1] < REST_S

    def begin(self) -> None:
        """Has a process that was started ahead make its context and ncu measure a first launch,
        which take it a second each, unless one has. It has met nobody, and waits then. Nothing is
        said of what fails: the profile's own process will say it.
        """
        if self._spares is not None and self._program:
            self._spares.prepare(self._begin_ahead, self.keys, self._fds)

    def _begin_ahead(self, served: Served) -> Served:
        try:
            served.channel.send({"op": "begin", "device": self._device.kind, "warm": True})
            served.began = served.channel.recv(START_S)[0].get("ok") is True
        except ProtocolError:
            served.began = False
        if not served.began:
            served.kill()
            raise NoProfile("it cannot begin on the GPU")
        return served

    def profile(self, subject: Subject) -> dict[str, Any]:
        """Returns a kernelwright.Profile, as JSON."""
        whys: list[str] = []
        ways: tuple[tuple[str, Callable[[Subject], Seen]], ...]
        ways = ("ncu", self._by_ncu), ("profiler", self._listed)
        for tool, way in ways:
            try:
                seen = way(subject)
                return self._told(
                    subject, seen, tool, "; ".join([*whys, *filter(None, [seen.why])])
                )
            except NoProfile as e:
                whys.append(str(e))
                self.passing |= e.passing
            except Exception as e:  # nothing rests on a profile
                whys.append(f"the profile by {tool} failed: {type(e).__name__}: {e}")
                self.passing = True
        return self._static(subject, "; ".join(whys))

    # Nsight Compute.

    def _start(self) -> Served:
        """Starts ncu with an interpreter that has imported what it needs, and met nobody."""
        if self._rests():
            why = f"ncu did not start within {START_S:g} s, twice or more"
            raise NoProfile(f"{why}: it is not asked for {REST_S / 60:g} minutes", passing=True)
        ours, theirs = Channel.pair(MAX_WORKER_FRAME)
        config = self._config | {
            "tools": True,
            "read_only": _folders(self._program),
            "command": ncu.command(self._program, self._known, full=self._full),
        }
        try:
            worker = self._server.spawn("profiler", config, [theirs.fileno()], limits=self._limits)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        served = Served(worker, ours)
        try:
            ours.send({"op": "hold"})
            served.inner = ours.recv(START_S)[0].get("pid") or 0
        except ProtocolError as e:
            late = not _ended(served)
            if late:
                _late.setdefault(self._program, []).append(time.monotonic())
            why = f"ncu did not start within {START_S:g} s" if late else ""
            raise self._failed(served, why) from e
        _late.pop(self._program, None)
        return served

    def _failed(self, served: Served, otherwise: str) -> NoProfile:
        """Ends a process. Returns why there is no profile: by ncu's own words if it has any."""
        try:
            with suppress(ProtocolError):  # it has ended
                served.stop()
            answer = served.report()
        except (ProtocolError, OSError):
            answer = {}
        log = served.log()
        served.kill()
        # What it says before it knows where to write comes as its output.
        told = self._complaint(ncu.read(f"{answer.get('report') or ''}\n{log}"))
        if told is not None:
            return told
        if answer.get("said"):
            return NoProfile(f"ncu cannot be run: {answer['said']}")
        code = answer.get("code")
        if type(code) is int and code < 0 and not answer.get("stopped"):
            return NoProfile(f"ncu was killed by signal {-code}", passing=True)
        if otherwise:
            return NoProfile(otherwise, passing=True)
        last = ([w for w in log.splitlines() if w.strip()] or ["no word"])[-1]
        return NoProfile(f"ncu ended with exit code {code}: {last[:200]}")

    def _complaint(self, report: ncu.Report) -> NoProfile | None:
        """Returns what ncu itself says is wrong."""
        told, again = ncu.complaint(report)
        names = ncu.unknown(report, self._known)
        if told and names:
            return UnknownMetrics(told, names)
        return NoProfile(told, passing=again) if told else None

    def _by_ncu(self, subject: Subject) -> Seen:
        if not self._program:
            raise NoProfile("Nsight Compute (ncu) is not there")
        try:
            return self._tried(subject)
        except UnknownMetrics:
            if not self._learn_unknown():
                raise
        return self._tried(subject)

    def _learn_unknown(self) -> bool:
        """Learns which metrics this ncu does not know, for as long as the referee runs. Returns
        whether it is to be asked for fewer now. A candidate may write what it likes in ncu's
        report, which would be remembered: ncu is asked in processes that meet none.
        """
        learned = False
        for _ in range(MOST_REFUSALS):
            names = self._refused()
            if not names or len(names) == len(self._known):
                break
            _unknown.setdefault(self._program, set()).update(names)
            learned = True
        return learned

    def _refused(self) -> Sequence[str]:
        """Returns which metrics ncu says it does not know when it measures a launch of nobody's."""
        try:
            served = self._start()
        except UnknownMetrics as e:
            return e.names
        with suppress(ProtocolError):  # it has ended
            served.channel.send({"op": "begin", "device": self._device.kind, "warm": True})
            served.channel.recv(START_S)
        failed = self._failed(served, "it has measured nothing")
        return failed.names if isinstance(failed, UnknownMetrics) else ()

    def _tried(self, subject: Subject) -> Seen:
        spare = None
        if self._spares is not None:
            while (spare := self._spares.take(*self.keys)) is not None and _ended(spare):
                spare.kill()
        try:
            served = spare or self._start()
        except (SandboxError, ProtocolError) as e:
            raise NoProfile(f"ncu's sandbox cannot be had: {e}", passing=True) from e
        client = CandidateClient(served, subject.forward_s, self._device)
        self.met.append(served)
        try:
            return self._measured(served, client, subject)
        finally:
            client.kill()

    def _measured(self, served: Served, client: CandidateClient, subject: Subject) -> Seen:
        try:
            self._make_context(client, made=served.began)
            msg = self._ready(client, subject)
        except WorkerError as e:
            raise NoProfile(f"it fails under ncu while it was loaded: {e}") from e
        except WorkerGone as e:
            raise self._failed(served, "its process ended under ncu while it was loaded") from e
        except (WorkerLate, ProtocolError) as e:
            raise self._failed(served, "ncu does not answer") from e
        said: dict[str, Any] = {}
        cut = ""  # why not all was measured
        try:
            client.begin({"op": "measure", **msg}, (), MEASURE_S + REPORT_S, "a forward")
            if select.select([served.channel.fileno()], [], [], MEASURE_S)[0]:
                said = client.finish()[0]
            else:
                served.stop()
                cut = f"it takes ncu over {MEASURE_S:g} s"
        except WorkerError as e:
            raise NoProfile(f"it fails under ncu in a forward: {e}") from e
        except WorkerGone:
            cut = "its process ended under ncu in a forward"
        except (WorkerLate, ProtocolError) as e:
            raise self._failed(served, "ncu does not answer") from e
        try:
            answer = served.report()
        except ProtocolError as e:
            raise self._failed(served, "ncu does not answer") from e
        report = ncu.read(str(answer.get("report") or ""))
        if not report.rows:
            raise self._nothing(report, said.get("launches"), cut, answer)
        whys = []
        if cut:
            whys.append(f"{cut}: what it had measured by then")
            self.passing = True
        seen = Seen(kinds_of(said.get("launches")), report, more=_count(said.get("more")))
        try:
            if not seen.kinds:
                seen = replace(self._listed(subject), report=report)
            elif seen.more or untimed(seen):
                fill_in(seen, self._listed(subject))
        except NoProfile as e:
            if not seen.kinds:
                seen = Seen(kinds_in(report.rows), report, whole=not cut and is_whole(report.rows))
                whys.append(f"how often each kernel is launched is not known: {e}")
            else:
                whys.append(f"the times of those that ncu did not measure are not known: {e}")
                self.passing |= e.passing
        seen.why = "; ".join(whys)
        return seen

    def _nothing(
        self, report: ncu.Report, launches: Any, cut: str, answer: dict[str, Any]
    ) -> NoProfile:
        """Returns why ncu measured nothing."""
        told = self._complaint(report)
        if told is not None:
            return told
        code = answer.get("code")
        if type(code) is int and code < 0 and not answer.get("stopped"):
            return NoProfile(f"ncu was killed by signal {-code}", passing=True)
        if cut:
            return NoProfile(cut, passing=bool(answer.get("stopped")))
        if launches == []:
            return NoProfile("a forward launches no kernel")
        return NoProfile(f"ncu saw no kernel (exit code {code})")

    # PyTorch's profiler.

    def _listed(self, subject: Subject) -> Seen:
        """Returns the launches of a forward and their times. Raises NoProfile."""
        try:
            worker = self._server.spawn(
                "profiler", self._config | {"tools": True}, self._fds, limits=self._limits
            )
        except (SandboxError, ProtocolError) as e:
            raise NoProfile(f"PyTorch's profiler cannot be had: {e}", passing=True) from e
        client = CandidateClient(worker, subject.forward_s, self._device)
        self.met.append(worker)
        try:
            self._make_context(client)
            msg = self._ready(client, subject)
            msg |= {"op": "launches", "most": MAX_LISTED}
            answer, _ = client.ask(msg, timeout=LIST_S, doing="a forward")
        except (WorkerFailure, ProtocolError) as e:
            raise NoProfile(f"PyTorch's profiler cannot be had: {e}", passing=True) from e
        finally:
            client.kill()
        launches, _ = interpreter.launches_of(answer.get("seen"), MAX_LISTED)
        if not launches:
            raise NoProfile("PyTorch's profiler saw no kernel")
        kinds = [Kind(e.name, e.grid, e.block, e.count, e.ms) for e in launches]
        return Seen(kinds, more=_count(answer.get("more")), more_ms=_ms(answer.get("more_ms")))

    def _make_context(self, client: CandidateClient, *, made: bool = False) -> None:
        client.ask({"op": "hold"}, self._fds, START_S, "importing PyTorch")
        if not made:
            begin = {"op": "begin", "device": self._device.kind}
            client.ask(begin, timeout=START_S, doing="beginning on the GPU")

    def _ready(self, client: CandidateClient, subject: Subject) -> dict[str, Any]:
        """Has a process load the subject. Returns what a request for a forward says."""
        try:
            subject.load(client)
        except (WorkerFailure, ProtocolError):
            raise
        except (torch.OutOfMemoryError, CudaError) as e:
            raise NoProfile(f"there is no memory for it: {e}", passing=True) from e
        except Exception as e:  # what a candidate does wrong: it did not, where it was judged
            raise NoProfile(f"it cannot be loaded once more: {e}", passing=True) from e
        try:
            layout = client.put("in", subject.inputs, GUARD, subject.orders)
        except (torch.OutOfMemoryError, CudaError) as e:
            raise NoProfile(f"there is no memory for it: {e}", passing=True) from e
        return {"tree": subject.tree, "layout": layout, "warm": WARM}

    # What is told of it.

    def _told(self, subject: Subject, seen: Seen, tool: str, why: str) -> dict[str, Any]:
        own = {m[1] for k in subject.kernels() if (m := _OWN.search(str(k.get("name"))))}
        kernels: list[dict[str, Any]] = []
        for kind, rows in zip(seen.kinds, rows_of(seen.kinds, seen.report.rows), strict=True):
            metrics = self._metrics(rows, kind.count)
            ms = kind.ms or 1e-6 * metrics.get(TIME, 0.0)
            kernels.append(
                {
                    "name": kind.name[: ncu.MAX_NAME],
                    "whose": whose(kind.name, own, subject.custom),
                    "launches": kind.count,
                    "ms": min(ms, _LONG_MS),
                    "share": 0.0,
                    "grid": _three(kind.grid),
                    "block": _three(kind.block),
                    "metrics": metrics,
                }
            )
        kernels.sort(key=lambda k: -k["ms"])
        launched = [k for k in kernels if not k["name"].startswith(_COPIES)]
        # A part of a time, or of a sum, would be taken for the whole.
        total = 0.0
        if seen.whole and all(k["ms"] for k in launched) and (seen.more_ms or not seen.more):
            total = sum(k["ms"] for k in kernels) + seen.more_ms
        for k in kernels:
            k["share"] = k["ms"] / total if total > 0 else 0.0
        measured = [k for k in kernels if k["metrics"]]
        together = of_a_forward(measured)
        for n in [n for n in together if is_sum(n)]:
            if seen.more or not seen.whole or not all(n in k["metrics"] for k in launched):
                del together[n]
        whys = [why] if why else []
        if tool == "ncu" and len(measured) < len(launched):
            whys.append(f"{len(measured)} of {len(launched)} kinds of launches were measured")
        if seen.more:
            whys.append(f"{seen.more} launches are of other kinds than those that are listed")
        profile: dict[str, Any] = {
            "tool": tool,
            "launches": sum(k["launches"] for k in launched) + seen.more,
            "ms": total,
            "kernels": kernels[:MAX_KERNELS],
            "metrics": together,
        }
        if whys:
            profile["why"] = sentence("; ".join(whys))
        lacking = [m for m in self._named if not any(m in k["metrics"] for k in measured)]
        if tool == "ncu" and lacking:
            profile["missing"] = lacking
        other = {m: own for m, own in self._named.items() if own != m}
        if had := {m: own for m, own in other.items() if any(m in k["metrics"] for k in measured)}:
            profile["measured_as"] = had
        return profile

    def _metrics(self, rows: Sequence[ncu.Row], count: int) -> dict[str, float]:
        """Returns what is kept of rows of one kind, for so many launches."""
        if not rows:
            return {}
        each = [{"ms": r.metrics.get(TIME, 0.0), "metrics": r.metrics} for r in rows]
        had = of_a_forward(each)
        kept = {m: own for m, own in self._named.items() if own in had}
        if self._full:
            rest = had.keys() - set(kept.values())
            more = sorted(m for m in rest if not m.startswith(_OF_THE_GPU))
            kept |= {m: m for m in more[: MAX_METRICS - len(kept)]}
        times = count / len(rows)
        return {m: had[own] * times if is_sum(own) else had[own] for m, own in kept.items()}

    def _static(self, subject: Subject, why: str) -> dict[str, Any]:
        """Returns what the compiler says, as a profile."""
        kernels = []
        for k in subject.kernels()[:MAX_KERNELS]:
            said = {
                "launch__registers_per_thread": k.get("registers"),
                "launch__shared_mem_per_block_static": k.get("shared_bytes"),
            }
            kernels.append(
                {
                    "name": str(k.get("name"))[: ncu.MAX_NAME],
                    "whose": "custom",
                    "launches": 0,
                    "ms": 0.0,
                    "share": 0.0,
                    "grid": [0, 0, 0],
                    "block": [0, 0, 0],
                    "metrics": {m: float(v) for m, v in said.items() if isinstance(v, int)},
                }
            )
        return {
            "tool": "static",
            "why": sentence(why),
            "launches": 0,
            "ms": 0.0,
            "kernels": kernels,
        }


_OWN = re.compile(r"(\w+)\s*(?:[<(]|$)")


def _folders(program: str) -> list[str]:
    """Returns what a worker must see of the host's for a program to run."""
    found = [toolchain.NSIGHT_COMPUTE, os.path.dirname(os.path.realpath(program))]
    return [f for f in dict.fromkeys(found) if os.path.isdir(f) and f != "/"]


def _ended(served: Served) -> bool:
    """Whether nobody is left at the other end."""
    ready, _, _ = select.select([served.channel.fileno()], [], [], 0)
    return bool(ready)


def _three(sizes: Sequence[int]) -> list[int]:
    return [min(int(n), MAX_COUNT) for n in (*sizes, 0, 0, 0)][:3]


def kinds_of(launches: Any) -> list[Kind]:
    """Reads the launches that a worker listed: its word, which may be the candidate's."""
    found: list[Kind] = []
    if not isinstance(launches, list):
        return found
    for entry in launches[:1000]:
        try:
            name, grid, block, count = entry
            sizes = [_size(n) for n in (*grid, *block)]
            if isinstance(name, str) and len(grid) == len(block) == 3 and _size(count) > 0:
                found.append(Kind(name[: ncu.MAX_NAME], tuple(sizes[:3]), tuple(sizes[3:]), count))
        except (TypeError, ValueError):
            continue
    return found


def _count(n: Any) -> int:
    """Reads a number of launches, 0 for what is none."""
    return n if type(n) is int and 0 <= n < MAX_COUNT else 0


def _ms(n: Any) -> float:
    return float(n) if type(n) in (int, float) and 0 <= n < _LONG_MS else 0.0


def _size(n: Any) -> int:
    if type(n) is not int or not 0 <= n < MAX_COUNT:
        raise ValueError("no size")
    return n


def rows_of(kinds: Sequence[Kind], rows: Sequence[ncu.Row]) -> list[list[ncu.Row]]:
    """Returns the rows of each kind. Profilers write names differently, so that two instances of a
    template look alike, and some have a name of their own: both come in the order of launches, and
    the first that fits is taken.
    """
    groups: dict[tuple[str, Any, Any], list[ncu.Row]] = {}
    for r in rows:
        groups.setdefault((r.name, r.grid, r.block), []).append(r)
    known = {k.key[0] for k in kinds}
    found: list[list[ncu.Row]] = []
    for kind in kinds:
        base, *size = kind.key
        sized = [g for g in groups if [*g[1:]] == size]
        alike = [g for g in sized if ncu.base(g[0]) == base]
        alike = alike or [g for g in sized if ncu.base(g[0]) not in known]
        best = next((g for g in alike if g[0] == kind.name), alike[0] if alike else None)
        found.append(groups.pop(best) if best is not None else [])
    return found


def untimed(seen: Seen) -> set[int]:
    """Returns which kinds are of kernels whose time nobody has measured."""
    measured = rows_of(seen.kinds, seen.report.rows)
    return {
        i
        for i, (kind, rows) in enumerate(zip(seen.kinds, measured, strict=True))
        if not kind.ms and not kind.is_copy and not any(r.metrics.get(TIME) for r in rows)
    }


def fill_in(seen: Seen, listed: Seen) -> None:
    """Gives the kernels whose time nobody has measured the times that PyTorch's profiler listed.
    Two instances of a template may look alike there: each of its entries is used once.
    """
    left: dict[tuple[Any, ...], Kind] = {}
    for e in listed.kinds:  # names that were cut may be the same
        same = left.get((e.name, e.grid, e.block))
        both = replace(e, count=e.count + same.count, ms=e.ms + same.ms) if same else e
        left[e.name, e.grid, e.block] = both
    entries = [e for e in left.values() if not e.is_copy]
    found: dict[int, Kind] = {}
    alike: Sequence[Callable[[Kind], Any]]
    alike = (lambda k: (k.name, k.grid, k.block)), (lambda k: (k.key, k.count)), (lambda k: k.key)
    for form in alike:
        groups: dict[Any, list[Kind]] = {}
        for e in entries:
            groups.setdefault(form(e), []).append(e)
        for i, kind in enumerate(seen.kinds):
            if i not in found and groups.get(form(kind)):
                found[i] = groups[form(kind)].pop(0)
        entries = [e for group in groups.values() for e in group]
    for i in untimed(seen) & found.keys():
        kind = seen.kinds[i]
        ms = found[i].ms * kind.count / found[i].count
        seen.kinds[i] = replace(kind, ms=min(ms, _LONG_MS))
    if seen.more and sum(e.count for e in entries) + listed.more >= seen.more:
        seen.more_ms = sum(e.ms for e in entries) + listed.more_ms


def is_whole(rows: Sequence[ncu.Row]) -> bool:
    """Whether ncu has measured every launch: of none alike as many as it looks at."""
    alike = Counter((r.grid, r.block) for r in rows)
    return len(rows) < ncu.MAX_ROWS and max(alike.values(), default=0) < ncu.EACH


def kinds_in(rows: Sequence[ncu.Row]) -> list[Kind]:
    """Returns what was measured as kinds, each as often as it was."""
    counts: dict[tuple[str, Any, Any], int] = {}
    for r in rows:
        key = r.name, r.grid, r.block
        counts[key] = counts.get(key, 0) + 1
    return [Kind(*key, count) for key, count in counts.items()]


def is_sum(metric: str) -> bool:
    """Whether several launches have the sum of what each has."""
    return metric.endswith(".sum")


def of_a_forward(kernels: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the metrics of kernels together: sums, and means weighted by time."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(m for k in kernels for m in k["metrics"]):
        having = [k for k in kernels if name in k["metrics"]]
        values = [k["metrics"][name] for k in having]
        weights = [k["ms"] for k in having]
        if is_sum(name):
            found[name] = sum(values)
        elif sum(weights) > 0:
            # From the first one on: where all are the same, so is the mean, to the last bit.
            beyond = sum((v - values[0]) * w for v, w in zip(values, weights, strict=True))
            found[name] = values[0] + beyond / sum(weights)
        else:
            found[name] = sum(values) / len(values)
    return found


def whose(name: str, own: set[str], custom: bool) -> str:
    """Returns whose a kernel is: "custom", "vendor" or "pytorch". ``own``: names that the
    candidate's compilers gave; ``custom``: whether one that nobody knows is its own.
    """
    if name.startswith(_COPIES):
        return "pytorch"
    if ncu.base(name) in own:
        return "custom"
    if _PYTORCH.search(name):
        return "pytorch"
    if _VENDOR.search(name):
        return "vendor"
    return "custom" if custom else "pytorch"


def operand(metric: str) -> str | None:
    """Returns of which type, as ceilings name it, a metric counts the tensor cores' operations;
    None for another metric.
    """
    m = _OPERATIONS.fullmatch(metric)
    return _OPERANDS.get(m[1], m[1]) if m else None


def operations_of(profile: dict[str, Any]) -> dict[str, float]:
    """Returns the tensor cores' operations in a forward by type of operand; none where not all that
    were asked for are known.
    """
    if any(map(operand, profile.get("missing") or ())):
        return {}
    found: dict[str, float] = {}
    for name, n in (profile.get("metrics") or {}).items():
        if kind := operand(name):
            found[kind] = found.get(kind, 0.0) + n
    return found


def _is_rate(x: Any) -> bool:
    return isinstance(x, (int, float)) and x > 0


def position(
    profile: dict[str, Any], ceilings: dict[str, Any], least_bytes: int
) -> dict[str, float]:
    """Returns where a forward's kernels stand below the measured ceilings (docs/metrics.md)."""
    found: dict[str, float] = {}
    ms, has = profile["ms"], profile.get("metrics") or {}
    launches = sum(k["launches"] for k in profile.get("kernels") or [])
    if launches:
        found["launches"] = float(max(launches, profile["launches"]))
    if ms <= 0:
        return found

    def rate(name: str, work: float | None, share: str, ceiling: Any) -> None:
        if work is None:
            return
        found[name] = work / (1e6 * ms)
        if _is_rate(ceiling):
            found[share] = found[name] / ceiling

    def total(*names: str) -> float | None:
        return sum(has[n] for n in names) if all(n in has for n in names) else None

    found["kernels_ms"] = ms
    dram = total("dram__bytes_read.sum", "dram__bytes_write.sum")
    rate("dram_gbs", dram, "dram_roof_share", ceilings.get("memory_gbs"))
    # Not lts__t_bytes, in which is twice what one half of an L2 hands to the other.
    sectors = total("lts__t_sectors_srcunit_tex.sum")
    l2 = None if sectors is None else SHARED.sector_bytes * sectors
    rate("l2_gbs", l2, "l2_roof_share", ceilings.get("cache_gbs"))
    executed = [f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in _FLOPS]
    flops = None
    if all(n in has for n in executed):
        flops = sum(w * has[n] for w, n in zip(_FLOPS.values(), executed, strict=True))
    rate("fp32_gflops", flops, "fp32_roof_share", ceilings.get("fp32_gflops"))
    operations = operations_of(profile)
    rate("tensor_gflops", sum(operations.values()) if operations else None, "", None)
    roofs = ceilings.get("tensor_gflops") or {}
    counted = {t: n for t, n in operations.items() if n > 0}
    busy = has.get("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active")
    if counted and all(_is_rate(roofs.get(t)) for t in counted):
        found["tensor_roof_share"] = sum(n / (1e6 * ms * roofs[t]) for t, n in counted.items())
    elif busy is not None:
        found["tensor_roof_share"] = busy / 100
    if dram is not None and least_bytes > 0:
        found["dram_bytes_ratio"] = dram / least_bytes
    return found
