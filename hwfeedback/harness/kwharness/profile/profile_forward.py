"""The profile of a forward: which kernels it launches on a GPU, and what each of them does there.

It is taken in processes of its own after a candidate has been timed, by Nsight Compute (ncu.py,
workers/profiler.py). Where that cannot be, by PyTorch's profiler, which knows launches and their
times; where that cannot be either, it is what the compiler says. The profile names which it was and
why. It is the word of the candidate's process: it explains, decides nothing, and nothing that goes
wrong here ends anything.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from kwharness.base.configs import ProfilerConfig
from kwharness.base.for_candidate import Begin, Listed, ListLaunches, Measure, Measured, ToolReport
from kwharness.base.operations import Hold
from kwharness.base.protocol import MAX_WORKER_FRAME, Channel, ProtocolError
from kwharness.base.verdicts import KernelProfile, Profile
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.client import GUARD
from kwharness.clients.errors import WorkerError, WorkerFailure, WorkerGone, WorkerLate, sentence
from kwharness.clients.warm_processes import WarmProcesses
from kwharness.machine import toolchain
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device
from kwharness.process.policy import Limits, SandboxError
from kwharness.profile import ncu
from kwharness.profile.kernel_kinds import (
    COPIES,
    LONG_MS,
    OF_THE_GPU,
    TIME,
    Kind,
    Seen,
    count_of,
    fill_in,
    is_sum,
    is_whole,
    kinds_in,
    kinds_of,
    ms_of,
    of_a_forward,
    rows_of,
    three,
    together,
    untimed,
)
from kwharness.profile.kernel_work import MAX_KERNELS, OWN, static_profile, whose
from kwharness.profile.under_ncu import (
    REPORT_S,
    NoProfile,
    Served,
    Subject,
    UnknownMetrics,
    ended,
    folders_of,
)
from kwharness.standalone import interpreter

# Processes: a first verdict has two profiles, and one takes longer to start than the next two.
AHEAD = 3
START_S = 30.0  # until an interpreter under ncu has imported PyTorch
MEASURE_S = 30.0  # for what ncu measures; what it has by then is taken
LIST_S = 60.0  # for PyTorch's profiler
MOST_REFUSALS = 10  # of an ncu that does not know a metric, and then others
MOST_LATE = 2  # starts of an ncu that take longer; then it is not asked for a while
REST_S = 600.0
WARM = 2  # forwards before the one that is looked at
MAX_METRICS = 1500  # of a kernel
MAX_LISTED = 3000  # kinds of launches that PyTorch's profiler names
# When starts of an ncu took over START_S, one after the other, by its path and time.monotonic().
_late: dict[str, list[float]] = {}
# Metrics that an ncu does not know, by its path.
_unknown: dict[str, set[str]] = {}


class Profiler:
    """Takes profiles on one device, within one evaluation."""

    def __init__(
        self,
        server: Any,
        device: Device,
        config: ProfilerConfig,
        limits: Limits,
        fds: Sequence[int],
        capability: int,
        *,
        warm: WarmProcesses | None = None,
        full: bool = False,
        products: bool = True,
    ) -> None:
        """``config`` and ``limits`` are a worker's, ``fds`` what it is to keep open.
        ``capability`` is the GPU's, as 90 for 9.0. ``products``: the task is one for tensor cores.
        """
        self._server, self._device, self._fds = server, device, fds
        self._config, self._limits = config, limits
        self._warm = warm
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
        whole = [self._under_ncu().to_json(), self._limits.to_json()]
        return [json.dumps(["profiler", i, *whole], sort_keys=True) for i in range(AHEAD)]

    def _under_ncu(self) -> ProfilerConfig:
        """Returns the configuration of a process under ncu."""
        return replace(
            self._config,
            tools=True,
            read_only=folders_of(self._program),
            command=ncu.command(self._program, self._known, full=self._full),
        )

    def ahead(self) -> None:
        """Has processes started that the next profiles are taken in, of whatever task that is asked
        the same.
        """
        if self._warm is not None and self._program and not self._rests():
            for key in self.keys:
                self._warm.begin(key, self._start)

    def _rests(self) -> bool:
        """Whether ncu did not start too often, not long ago."""
        late = _late.get(self._program, [])
        return len(late) >= MOST_LATE and time.monotonic() - late[-1] < REST_S

    def begin(self) -> None:
        """Has a process that was started ahead make its context and ncu measure a first launch,
        which take it a second each, unless one has. It has met nobody, and waits then. Nothing is
        said of what fails: the profile's own process will say it.
        """
        if self._warm is not None and self._program:
            self._warm.prepare(self._begin_ahead, self.keys, self._fds)

    def _begin_ahead(self, served: Served) -> Served:
        try:
            served.channel.send(Begin(self._device.kind, warm=True).asked())
            served.began = served.channel.recv(START_S)[0].get("ok") is True
        except ProtocolError:
            served.began = False
        if not served.began:
            served.kill()
            raise NoProfile("it cannot begin on the GPU")
        return served

    def profile(self, subject: Subject) -> Profile:
        """Returns what a profiler sees of a forward, or what the compiler says of it."""
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
        return static_profile(subject.kernels(), "; ".join(whys))

    # Nsight Compute.

    def _start(self) -> Served:
        """Starts ncu with an interpreter that has imported what it needs, and met nobody."""
        if self._rests():
            why = f"ncu did not start within {START_S:g} s, twice or more"
            raise NoProfile(f"{why}: it is not asked for {REST_S / 60:g} minutes", passing=True)
        ours, theirs = Channel.pair(MAX_WORKER_FRAME)
        try:
            config, fds = self._under_ncu(), [theirs.fileno()]
            worker = self._server.spawn(config, fds, limits=self._limits)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        served = Served(worker, ours)
        try:
            ours.send(Hold().asked())
            served.inner = ours.recv(START_S)[0].get("pid") or 0
        except ProtocolError as e:
            late = not ended(served)
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
            answer = ToolReport()
        log = served.log()
        served.kill()
        # What it says before it knows where to write comes as its output.
        told = self._complaint(ncu.read(f"{answer.report}\n{log}"))
        if told is not None:
            return told
        if answer.said:
            return NoProfile(f"ncu cannot be run: {answer.said}")
        code = answer.code
        if code is not None and code < 0 and not answer.stopped:
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
            served.channel.send(Begin(self._device.kind, warm=True).asked())
            served.channel.recv(START_S)
        failed = self._failed(served, "it has measured nothing")
        return failed.names if isinstance(failed, UnknownMetrics) else ()

    def _tried(self, subject: Subject) -> Seen:
        taken = None
        if self._warm is not None:
            while (taken := self._warm.take(*self.keys)) is not None and ended(taken):
                taken.kill()
        try:
            served = taken or self._start()
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
            request = self._ready(client, subject)
        except WorkerError as e:
            raise NoProfile(f"it fails under ncu while it was loaded: {e}") from e
        except WorkerGone as e:
            raise self._failed(served, "its process ended under ncu while it was loaded") from e
        except (WorkerLate, ProtocolError) as e:
            raise self._failed(served, "ncu does not answer") from e
        said = Measured()
        cut = ""  # why not all was measured
        try:
            client.begin(request, (), MEASURE_S + REPORT_S, "a forward")
            if select.select([served.channel.fileno()], [], [], MEASURE_S)[0]:
                said = client.finish(Measured)[0]
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
        report = ncu.read(answer.report)
        if not report.rows:
            raise self._nothing(report, said.launches, cut, answer)
        whys = []
        if cut:
            whys.append(f"{cut}: what it had measured by then")
            self.passing = True
        seen = Seen(kinds_of(said.launches), report, more=count_of(said.more))
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
        self, report: ncu.Report, launches: Any, cut: str, answer: ToolReport
    ) -> NoProfile:
        """Returns why ncu measured nothing."""
        told = self._complaint(report)
        if told is not None:
            return told
        code = answer.code
        if code is not None and code < 0 and not answer.stopped:
            return NoProfile(f"ncu was killed by signal {-code}", passing=True)
        if cut:
            return NoProfile(cut, passing=answer.stopped)
        if launches == []:
            return NoProfile("a forward launches no kernel")
        return NoProfile(f"ncu saw no kernel (exit code {code})")

    # PyTorch's profiler.

    def _listed(self, subject: Subject) -> Seen:
        """Returns the launches of a forward and their times. Raises NoProfile."""
        try:
            config = replace(self._config, tools=True)
            worker = self._server.spawn(config, self._fds, limits=self._limits)
        except (SandboxError, ProtocolError) as e:
            raise NoProfile(f"PyTorch's profiler cannot be had: {e}", passing=True) from e
        client = CandidateClient(worker, subject.forward_s, self._device)
        self.met.append(worker)
        try:
            self._make_context(client)
            request = self._ready(client, subject)
            listing = ListLaunches(request.tree, request.layout, request.warm, MAX_LISTED)
            answer, _ = client.ask(listing, Listed, LIST_S, "a forward")
        except (WorkerFailure, ProtocolError) as e:
            raise NoProfile(f"PyTorch's profiler cannot be had: {e}", passing=True) from e
        finally:
            client.kill()
        launches, _ = interpreter.launches_of(answer.seen, MAX_LISTED)
        if not launches:
            raise NoProfile("PyTorch's profiler saw no kernel")
        kinds = [Kind(e.name, e.grid, e.block, e.count, e.ms) for e in launches]
        return Seen(kinds, more=count_of(answer.more), more_ms=ms_of(answer.more_ms))

    def _make_context(self, client: CandidateClient, *, made: bool = False) -> None:
        client.tell(Hold(), self._fds, START_S, "importing PyTorch")
        if not made:
            begin = Begin(self._device.kind)
            client.tell(begin, timeout=START_S, doing="beginning on the GPU")

    def _ready(self, client: CandidateClient, subject: Subject) -> Measure:
        """Has a process load the subject. Returns the request for a forward."""
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
        return Measure(subject.tree, layout, WARM)

    # What is told of it.

    def _told(self, subject: Subject, seen: Seen, tool: str, why: str) -> Profile:
        own = {m[1] for k in subject.kernels() if (m := OWN.search(k.name))}
        kernels: list[KernelProfile] = []
        for kind, rows in zip(seen.kinds, rows_of(seen.kinds, seen.report.rows), strict=True):
            metrics = self._metrics(rows, kind.count)
            ms = kind.ms or 1e-6 * metrics.get(TIME, 0.0)
            kernels.append(
                KernelProfile(
                    name=kind.name[: ncu.MAX_NAME],
                    whose=whose(kind.name, own, subject.custom),
                    launches=kind.count,
                    ms=min(ms, LONG_MS),
                    share=0.0,
                    grid=three(kind.grid),
                    block=three(kind.block),
                    metrics=metrics,
                )
            )
        kernels.sort(key=lambda k: -k.ms)
        launched = [k for k in kernels if not k.name.startswith(COPIES)]
        # A part of a time, or of a sum, would be taken for the whole.
        total = 0.0
        if seen.whole and all(k.ms for k in launched) and (seen.more_ms or not seen.more):
            total = sum(k.ms for k in kernels) + seen.more_ms
        for k in kernels:
            k.share = k.ms / total if total > 0 else 0.0
        measured = [k for k in kernels if k.metrics]
        metrics_of_all = of_a_forward(measured)
        for n in [n for n in metrics_of_all if is_sum(n)]:
            if seen.more or not seen.whole or not all(n in (k.metrics or ()) for k in launched):
                del metrics_of_all[n]
        whys = [why] if why else []
        if tool == "ncu" and len(measured) < len(launched):
            whys.append(f"{len(measured)} of {len(launched)} kinds of launches were measured")
        if seen.more:
            whys.append(f"{seen.more} launches are of other kinds than those that are listed")
        has = {m for k in measured for m in k.metrics or ()}
        lacking = [m for m in self._named if m not in has] if tool == "ncu" else []
        other = {m: own for m, own in self._named.items() if own != m and m in has}
        return Profile(
            tool=tool,
            launches=sum(k.launches for k in launched) + seen.more,
            ms=total,
            why=sentence("; ".join(whys)) if whys else None,
            kernels=kernels[:MAX_KERNELS],
            metrics=metrics_of_all,
            missing=lacking or None,
            measured_as=other or None,
        )

    def _metrics(self, rows: Sequence[ncu.Row], count: int) -> dict[str, float]:
        """Returns what is kept of rows of one kind, for so many launches."""
        if not rows:
            return {}
        had = together([(r.metrics.get(TIME, 0.0), r.metrics) for r in rows])
        kept = {m: own for m, own in self._named.items() if own in had}
        if self._full:
            rest = had.keys() - set(kept.values())
            more = sorted(m for m in rest if not m.startswith(OF_THE_GPU))
            kept |= {m: m for m in more[: MAX_METRICS - len(kept)]}
        times = count / len(rows)
        return {m: had[own] * times if is_sum(own) else had[own] for m, own in kept.items()}
