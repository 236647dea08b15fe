"""One evaluation: from a candidate's source to a Verdict.

The candidate's faults are statuses; what this raises is infrastructure's. While the candidate is
built the reference draws its inputs and computes the first expected outputs. A candidate runs in
two processes at least: one in which it is verified, with poisoned memory and a trace, and fresh
ones in which it is timed. While a baseline is timed there is no process that has met the
candidate: one that is started ahead for it is empty, and asleep.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import random
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

import kernelwright
from kwharness.attribution import trace
from kwharness.base.constants import SHARED
from kwharness.base.protocol import ProtocolError, Timeout
from kwharness.build import builder_client, object_cache
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.client import Client
from kwharness.clients.errors import (
    Spawned,
    WorkerError,
    WorkerFailure,
    WorkerGone,
    how_it_ended,
    ran_out,
    sentence,
)
from kwharness.clients.reference_client import ReferenceClient
from kwharness.clients.workshop import Workshop
from kwharness.export import describe, file_facts
from kwharness.machine import device as devices
from kwharness.machine import health, toolchain
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device
from kwharness.machine.health import Ill
from kwharness.model import construction, weights
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.model.state import NOTHING, Carried, bytes_of
from kwharness.numerics import correctness, families, input_structure
from kwharness.numerics.correctness import Scale
from kwharness.process import sandbox
from kwharness.process.policy import SandboxError
from kwharness.profile import ncu, profile_forward
from kwharness.referee import costs, faults
from kwharness.referee.warm_pool import KEPT_BYTES, Batch, Compiled, Kept, SharedTiming
from kwharness.standalone import interpreter, sanitizers, usage
from kwharness.task import inspect_task
from kwharness.timing import weight_packing, window_base
from kwharness.timing.baselines import BaselineFailed
from kwharness.timing.budgets import Budget, budget_of
from kwharness.timing.timing import Timing
from kwharness.timing.window_base import CallFailed
from kwharness.timing.window_session import Redrawn, TimedWorker
from kwharness.torch_compile import inductor
from kwharness.verify import assumptions, calibrate, findings, initial_weights, secret_draws, verify
from kwharness.verify.calibration import Calibration
from kwharness.verify.initial_weights import Shared
from kwharness.verify.verify import Verification

FORWARD_S = 10.0  # a forward may take this long, and
FORWARD_EAGERS = 200.0  # this many times eager's time
# All that is asked of a candidate before it is timed: for so long its answers are waited for, and
# for what so many forwards may take over eager's time.
PATIENCE_S = {"quick": 90.0, "certify": 300.0}
PATIENCE_CALLS = {"quick": 64, "certify": 256}
ASSUMING_S = {"quick": 15.0, "certify": 60.0}  # likewise, of what it may take for granted
LOAD_S = 60.0
REST_S = 1.0  # a killed process is gone by then, with its context
COMPILE_S = 300.0  # a baseline's first call compiles
TRITON_S = 120.0  # so does a candidate's, and it may be tuned
PINS = 1.02  # of what a memory's clock and width say: clocks are told in whole MHz
# A candidate may have so much memory of its own, beside its outputs, before it is who took what
# others could not get.
FAIR_BYTES = 2 << 30
# The profiler's time of a call and the clock's differ by less, or that is said.
SPAN_SHARE, SPAN_MS = 0.1, 0.002
# Who takes less than this share of what the task's operations take at the measured rate does not do
# them all: a sum over the columns of x W is x times a sum. A rate is measured to a few per cent.
LEFT_OUT = 0.9
SANITIZED = 6  # findings of a sanitizer that are shown
MOSTLY = 0.5  # of a forward's time
DRAWS, DRAWS_BYTES = 64, 1 << 30  # at once, at most
SHARES = {"cuda"}  # devices whose state outlasts a candidate: the sentinel serves several
EARLY_BYTES = 256 << 20  # of a call: what eager is timed on is kept while a candidate is verified

Progress = Callable[[str, str], None]
Learn = Callable[[dict[str, Any]], None]


def _draws(reference: ReferenceClient, count: int) -> list[list[torch.Tensor]]:
    """Returns so many draws under secret seeds."""
    return reference.draws([secret_draws.secret() for _ in range(count)])[1]


def device_of(request: dict[str, Any]) -> Device:
    """Returns the device that a request names: {"gpu": {"minor", "uuid"}}, or none for the CPU."""
    if request.get("gpu") is None:
        return devices.CPU
    os.environ |= sandbox.one_gpu(request["gpu"]["uuid"])  # before anything looks for GPUs
    try:
        return devices.gpu()
    except (RuntimeError, CudaError) as e:
        if words := health.said(str(e)):
            raise Ill(health.REFEREE, words) from e
        raise


def placed(request: dict[str, Any]) -> dict[str, Any]:
    """Returns what a worker's configuration says of that device."""
    gpu = request.get("gpu")
    if gpu is None:
        return {}
    return {"gpu": gpu["minor"], "gpu_uuid": gpu["uuid"], "device": "cuda"}


@dataclass
class Program:
    """What a candidate's process runs: the candidate, or a named baseline."""

    text: str  # as it was given
    source: str  # as it is loaded: the exported file where it is certified
    build: dict[str, Any] = field(default_factory=dict)  # what building.build gave
    workshop: Workshop | None = None  # where its processes ask for more
    plan: weights.Plan | None = None  # how it gets the reference's weights
    handed_out: bool = False  # whether it is the file that its user gets

    def artifacts(self) -> list[dict[str, Any]]:
        """What was built for it, so far."""
        built = list(self.build.get("artifacts") or [])
        if self.handed_out:  # what torch builds is built again, as it does
            built = [a for a in built if a["kind"] != builder_client.LOAD_INLINE]
        known = {a["request"] for a in built}
        later = self.workshop.artifacts if self.workshop is not None else []
        return built + [a for a in later if a["request"] not in known]


class Evaluation:
    """One request to evaluate. ``server`` is a ForkServer."""

    def __init__(
        self,
        server: Any,
        request: dict[str, Any],
        fds: Sequence[int] = (),
        progress: Progress = lambda _stage, _note: None,
        learn: Learn = lambda _: None,
        kept: Kept | None = None,
        company: bool = True,
    ) -> None:
        """``company``: whether the exported file may run beside its verification."""
        self.server = server
        self._company = company
        self.had_company = False
        self._kept = kept
        self._compiled = kept.compiled if kept is not None else Compiled()
        name = str(request.get("batch") or "")
        self._batch: Batch | None = kept.batch(name) if kept is not None else None
        self.request = request
        self.fds = list(fds)
        self.progress = progress
        self.learn = learn
        self.task = request["task"]
        self.level = request.get("level") or "quick"
        self.threads = int(request.get("threads") or os.cpu_count() or 1)
        self.sandbox = request.get("sandbox") or "strict"
        self.device = device_of(request)
        self.sparing = devices.spares(self.device, int(self.task.get("least_bytes") or 0))
        if self.sparing:
            self.device.keep_apart()
        self.eval_mode = "train_mode_dependent" in (self.task.get("flags") or [])
        text = request["candidate"]["source"]
        self.program = Program(text, text)
        self.named: dict[str, dict[str, Any]] = {n["name"]: n for n in request.get("named") or []}
        self._programs: dict[str, Program] = {}  # of named baselines
        self.known = request.get("known") or {}
        self.limits = request.get("limits") or {}
        self.costs = costs.Costs()
        self.start = time.monotonic()
        self.missing: list[str] = []
        self.state: list[torch.Tensor] = []
        self.seed = CONSTRUCTION_SEED  # under which models are constructed
        self._breaks: list[str] = []  # weights of which that moves what all constructions give
        self._shared = Shared()  # what they give that is not moved
        self.verification: Verification | None = None
        self.calibration: Calibration | None = None
        self.eager_s = 0.01
        self.log = ""
        self.exported = ""
        self._made = True  # the exported file's constructor makes the reference's weights
        self._inductor: str | None = None
        self._called_in = str(
            request.get("cache_dir") or ""
        )  # the cache of what is compiled by calling it
        self._beside: ThreadPoolExecutor
        self._ahead: dict[bool, Future[Any]] = {}  # empty processes, by whether they poison
        self._upcoming: list[Future[Any]] = []  # builds of the candidates that come after this one
        self._met: list[CandidateClient] = []  # those that met the candidate
        self._references: list[ReferenceClient] = []
        self._patience: faults.Patience | None = None  # begins with the first of them
        # Of a timed call that was wrong: what holds for it, and its input.
        self._caught: secret_draws.Job | None = None
        self._compiling = threading.Event()  # the candidate's own part of its build is over
        self._prepared: Timing | None = None
        self._drawn: list[list[torch.Tensor]] = []  # contents of timed calls that wait for theirs
        self._eager: Future[ReferenceClient] | None = None  # the sentinel's, on a GPU
        self._facts: Future[list[dict[str, Any]]] | None = None  # of its kernels
        self._read = False  # whether they are in the verdict
        self._before: SharedTiming | None = None  # what the batch has been timed with
        # The exported file by itself, at certify, with its draw; and what was seen of it.
        self._alone: tuple[interpreter.Running, Any, list[torch.Tensor]] | None = None
        self._looked: interpreter.Looked | None = None
        self._traced = 0.0  # share of a traced forward that was not custom
        self._profiler: profile_forward.Profiler | None = None  # where a profile is asked for

    # Workers.

    def _config(self, **more: Any) -> dict[str, Any]:
        return {"sandbox": self.sandbox, "threads": self.threads} | placed(self.request) | more

    def _limits(self) -> dict[str, int]:
        return {
            k: int(v)
            for k, v in self.limits.items()
            if k in ("memory_bytes", "processes", "cpu_s") and v
        }

    def reference(
        self, *, compiles: bool, timeout: float = LOAD_S, timed: bool = False
    ) -> ReferenceClient:
        """Returns a reference worker with the reference loaded: a new one, or one that was kept."""
        # While a candidate is verified three processes compute at once; with more threads than
        # cores they would wait for each other in barriers most of the time.
        threads = self.threads if timed else max(1, self.threads // 3)
        config = self._config(threads=threads)
        if compiles:
            config["preimport"] = ["compile"]
            if self.device.kind == "cuda":
                config["preimport"].append("compile_gpu")
        elif self.calibration is None and not self.known.get("calibration"):
            config["preimport"] = ["noise"]
        if compiles or inductor.compiles(self.task["source"]):
            folder = self._warm_inductor() if self.device.kind == "cpu" else ""
            if folder:
                config["inductor_cache"] = folder
        key = ""
        if self._kept is not None and not (compiles or timed):
            alike = [config, self.task["source"], self.eval_mode, self.sparing]
            key = json.dumps(alike, sort_keys=True)
        kept = self._kept.take(key) if self._kept is not None and key else None
        if kept is not None:
            with suppress(WorkerGone):  # it has ended since
                return self._loaded(kept, threads, timeout)
        if timed and not compiles and self._kept is not None:
            spare = self._kept.spares.take(self._eager_key())
            if spare is not None:
                with suppress(WorkerGone):
                    spare.hold(self.fds)
                    self._references.append(spare)
                    return spare
        with self.costs.part("worker"):
            worker = self.server.spawn("reference", config, self.fds)
        client = ReferenceClient(worker, timeout, self.device)
        client.key = key
        return self._loaded(client, threads, timeout)

    def _loaded(self, client: ReferenceClient, threads: int, timeout: float) -> ReferenceClient:
        client.timeout = timeout
        client.sparing = self.sparing
        self._references.append(client)
        try:
            with self.costs.part("worker"):
                if client.kept:
                    client.hold(self.fds)
                client.load(
                    self.task["source"],
                    threads=threads,
                    eval_mode=self.eval_mode,
                    seed=self.seed,
                    breaks=self._breaks,
                    making=self.threads,
                )
                if carried := self._carried():
                    client.carry(carried)
        except BaseException:
            client.kill()
            raise
        return client

    def _carried(self) -> Carried:
        """Returns what the task carries from call to call, as far as that is known yet."""
        known = self.calibration or Calibration.from_json(self.known.get("calibration"))
        return known.carried if known is not None else NOTHING

    def _warm_inductor(self) -> str:
        if self._inductor is None:
            folder = self.request.get("cache_dir")
            self._inductor = inductor.warm(folder) if folder else ""
        return self._inductor

    def candidate(
        self,
        reference: ReferenceClient,
        *,
        poison: bool,
        stand_in: bool = False,
        patience: faults.Patience | None = None,
    ) -> CandidateClient:
        """Starts a candidate worker, constructed and with the weights of this evaluation.

        ``stand_in``: its custom code does nothing. ``patience``: how long its answers are waited
        for, if not as long as is left for all of them.
        """
        # The first forward of each process has torch.compile look for what it has made.
        looks = TRITON_S if self._torch_compiles(self.program) else 0.0
        timeout = FORWARD_S + FORWARD_EAGERS * self.eager_s + looks
        with self.costs.part("worker"):
            ahead = self._ahead.pop(poison, None)
            worker = ahead.result() if ahead else self._empty(poison)
        self.missing = worker.missing
        if self._patience is None:
            calls = PATIENCE_CALLS[self.level] * FORWARD_EAGERS * self.eager_s
            self._patience = faults.Patience(PATIENCE_S[self.level] + calls + looks)
        client = faults.Awaited(worker, timeout, self.device, patience or self._patience)
        client.sparing = self.sparing
        client.free_before = self.device.free_bytes()
        client.fair_bytes = FAIR_BYTES + self._output_bytes()
        self._met.append(client)
        try:
            self._load(client, reference, stand_in=stand_in)
        except BaseException:
            client.kill()
            raise
        return client

    def _load(
        self,
        client: CandidateClient,
        reference: ReferenceClient,
        *,
        stand_in: bool = False,
        program: Program | None = None,
    ) -> None:
        """Has a worker import and construct the candidate, or another program, with the weights of
        this evaluation.
        """
        client.orders = reference.orders
        p = program or self.program
        opened: list[int] = []
        try:
            with self.costs.part("load"), faults.faults("importing the candidate", client):
                artifacts = p.artifacts()
                self._give_libraries(client, artifacts)
                opened = object_cache.open_artifacts({"artifacts": artifacts})
                client.load(
                    p.source,
                    [builder_client.as_given(a) for a in artifacts],
                    opened,
                    threads=self.threads,
                    timeout=LOAD_S,
                    stand_in=stand_in,
                    workshop=p.workshop,
                    forbids=self._requires_custom(),
                    handed_out=p.handed_out,
                )
                self._construct_candidate(client, reference, p)
                if client.built_s:
                    self.costs.moved(client.built_s, "build")
        finally:
            for fd in opened:
                os.close(fd)

    def _give_libraries(self, client: CandidateClient, artifacts: list[dict[str, Any]]) -> None:
        """Gives it what torch.compile has made for it, where policy allows that to run."""
        if self._requires_custom():
            return
        made = [one for a in artifacts for one in a.get("libraries") or ()]
        fds: list[int] = []
        try:
            fds += [object_cache.opened(one) for one in made]
            names = [one["name"] for one in made]
            client.give_libraries(list(zip(names, fds, strict=True)))
        finally:
            for fd in fds:
                os.close(fd)

    def _construct_candidate(
        self, client: CandidateClient, reference: ReferenceClient, p: Program
    ) -> None:
        """Has it constructed, and given the weights of this evaluation."""
        client.init(
            reference.info["init"],
            reference.init,
            eval_mode=self.eval_mode,
            timeout=LOAD_S,
            seed=self.seed,
            breaks=reference.info["breaks"],
        )
        if reference.carried:
            client.carry(reference.carried)
        if p.plan is None:
            assert self.verification is not None
            p.plan = client.plan_for(reference.weights(self.verification.original))
        client.plan = p.plan
        client.set_state(reference.info["names"], self.state)

    def _empty(self, poison: bool, fds: Sequence[int] | None = None) -> Any:
        """Starts a candidate's process, which has met nothing of the candidate's."""
        held = self.fds if fds is None else fds
        return self.server.spawn(
            "candidate", self._candidate_config(poison=poison), held, limits=self._limits()
        )

    def _spare(self, poison: bool) -> Any:
        """Returns such a process, one that was started ahead if there is one."""
        if self._kept is not None:
            worker = self._kept.spares.take(self._empty_key(poison))
            if worker is not None:
                with suppress(ProtocolError):  # it has ended since
                    worker.channel.send({"op": "hold"}, self.fds)
                    if worker.channel.recv(LOAD_S)[0].get("ok"):
                        return worker
                worker.kill()
        return self._empty(poison)

    def _empty_key(self, poison: bool) -> str:
        config = self._candidate_config(poison=poison)
        return json.dumps([config, self._limits()], sort_keys=True)

    def _eager_key(self) -> str:
        return json.dumps(
            ["eager", self._config(), self.task["source"], self.eval_mode], sort_keys=True
        )

    def _eager_ahead(self) -> ReferenceClient:
        """Starts the process of a sentinel."""
        worker = self.server.spawn("reference", self._config(), ())
        client = ReferenceClient(worker, LOAD_S, self.device)
        return self._loaded(client, self.threads, LOAD_S)

    def _begin_next(self, *, sentinel: bool) -> None:
        """Has the processes started in which the next candidate will run, of whatever task, and
        that in which eager is timed for the next one of this task. They get the device when it is
        theirs.
        """
        if self._kept is None or self.device.kind not in SHARES or self._compilers_disturb():
            return
        for poison in (True, False) if self._timed() else (True,):
            start = functools.partial(self._empty, poison, ())
            self._kept.spares.begin(self._empty_key(poison), start, self.fds)
        small = sum(t.numel() * t.element_size() for t in self.state) <= KEPT_BYTES
        if sentinel and self._timed() and small:
            self._kept.spares.begin(self._eager_key(), self._eager_ahead, self.fds)

    # The steps.

    def run(self) -> dict[str, Any]:
        """Returns {"verdict", "learned", "parsed", "passing", "at_rest"}: "parsed" is of what comes
        next. Raises Infrastructure, and Ill where no candidate's code had run that could have
        brought it about.
        """
        with self._keeps_called(), ThreadPoolExecutor() as beside:
            self._beside = beside
            if self._kept is not None:
                ours = {self._eager_key(), self._empty_key(True), self._empty_key(False)}
                self._kept.spares.keep(ours)
            self._begin_profiler()
            self._ahead[True] = beside.submit(self._spare, True)
            if self._batch is not None and not self.sparing:
                self._before = self._batch.timed_on(self.task["source"])
            if self._eager_is_known() and not self._sentinel_is_known():
                self._eager = beside.submit(self.reference, compiles=False, timed=True)
            try:
                answer = self._run(beside.submit(self._build_this))
            except Ill as e:
                if self._met:
                    raise faults.Infrastructure(str(e), e.traceback) from e
                raise
            finally:
                if self._compilers_disturb():
                    wait(self._upcoming)  # who is judged next must not be disturbed by them
        if not self.request.get("upcoming"):  # who comes next of a batch shares the sentinel
            self._begin_next(sentinel=True)
        self._begin_profiler()
        self._prepare_profiler()
        passing = self._profiler is not None and self._profiler.passing
        at_rest = not self.request.get("last") and self._at_rest()
        return answer | {"passing": passing, "at_rest": at_rest}

    def _at_rest(self) -> bool:
        """Whether everybody has ended who met the candidate, so that the device may be had on."""
        if self.device.kind != "cuda":
            return False
        met = [c.worker for c in self._met]
        if self._profiler is not None:
            met += self._profiler.met
        return all(w.wait(REST_S) is not None for w in met)

    def _build_this(self) -> dict[str, Any]:
        source = self.request["candidate"]["source"]
        begun = self._batch.begun(source) if self._batch is not None else None
        if begun is not None and not begun.cancelled():
            with suppress(Exception):  # it is built now, and fails again or does not
                begun.result()
        return self._build()

    def _build(
        self, candidate: dict[str, Any] | None = None, progress: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Builds a candidate, this one if none is given."""
        # On a GPU it is imported where that is there; but calibrating takes longer than what does
        # not compile.
        tries = self.device.kind == "cpu" or not self.known.get("calibration")
        return builder_client.build(
            self.server,
            candidate or self.request["candidate"],
            self.request["cache_dir"],
            self.request.get("device") or "cpu",
            self.sandbox,
            progress or self._building,
            self._arch(),
            trial=builder_client.TRIAL if tries else builder_client.NO_TRIAL,
            forbids=self._requires_custom(),
            keeps=not self._explains,
        )

    def _workshop(self, text: str, built: dict[str, Any], *, whole: bool = False) -> Workshop:
        """Returns where the processes of a program ask for what it builds later."""
        cache, arch = self.request["cache_dir"], self._arch()
        return builder_client.workshop(
            self.server, text, built, cache, self.sandbox, arch, whole=whole
        )

    def _requires_custom(self) -> bool:
        """Whether policy asks for custom code: it then takes most of the time that is not a vendor
        library's, and compilers of PyTorch's fail where they are called.
        """
        if self._explains:
            return False
        asked = self.request.get("require_custom")
        return self.request.get("custom_code") != "any" if asked is None else asked is not False

    @property
    def _explains(self) -> bool:
        """Whether it is only asked how right and how fast a candidate is that policy rejects."""
        return self.request.get("explain") is True

    def _building(self, note: str) -> None:
        if note.startswith(builder_client.COMPILING):
            self._compiling.set()
        self.progress("build", note)

    def _build_upcoming(self) -> None:
        """Begins to build what is judged after this, into the cache, as far as there are cores."""
        if self._batch is None:
            return
        cores = len(os.sched_getaffinity(0))
        for c in (self.request.get("upcoming") or [])[:cores]:
            work = functools.partial(self._build, c, lambda _: None)
            self._upcoming.append(self._batch.build(c["source"], work, max(1, cores // 2)))

    def _quiet(self) -> None:
        """Waits until nobody builds: on a CPU that would disturb what is timed; beside a GPU it
        takes cores that nobody else needs, where there are some.
        """
        if self._upcoming and self._compilers_disturb():
            with self.costs.part("upcoming"):
                wait(self._upcoming)

    def _compilers_disturb(self) -> bool:
        """Whether what is timed suffers from a compiler beside it."""
        return self.device.kind == "cpu" or len(os.sched_getaffinity(0)) < SHARED.spare_cores

    def _crowded(self) -> bool:
        """Whether a CPU has more to do than it has cores."""
        cores = len(os.sched_getaffinity(0))
        return self.device.kind == "cpu" and os.getloadavg()[0] > cores

    def _arch(self) -> str:
        """Returns what CUDA is compiled for, "" on the CPU."""
        if isinstance(self.device, devices.Cpu):
            return ""
        has = self.device.driver.attributes()
        return f"sm_{has['major']}{has['minor']}{'a' if has['major'] >= 9 else ''}"

    def _built(self, build: Future[dict[str, Any]], v: dict[str, Any]) -> None:
        """Waits until the candidate is built."""
        with self.costs.part("build"):
            built = self.program.build = build.result()
        v["build"] = built["build"]
        if built.get("cutlass") and (folders := kernelwright.cutlass_folders()):
            v["versions"]["cutlass"] = kernelwright.cutlass_version(folders)
        v["language"] = v["language"] or built["language"]
        self.missing = built["missing"]
        if built["status"]:
            raise faults.Fault(built["status"], built["reason"])
        self.program.workshop = self._workshop(self.program.text, built)

    def _has_custom_code(self) -> None:
        if not self.program.artifacts():
            idle = self.program.build["triton"] and self.device.kind == "cpu"
            more = ": it imports Triton, and the device is the CPU" if idle else ""
            raise faults.Fault(
                "rejected",
                f"it has no custom code: nothing was built for it{more}",
                "write a kernel with native(), load_inline() or Triton for one operator of it "
                "at least",
            )

    def _compile_kernels(self, reference: ReferenceClient, v: dict[str, Any]) -> None:
        """Has the candidate's Triton kernels compiled, and what torch.compile makes of it."""
        if not self._compiles_when_called(self.program):
            return
        self.progress("build", "compiling what it calls")
        began = time.monotonic()
        with self.costs.part("build"):
            self._add_kernels(reference, self.program)
        v["build"]["seconds"] += time.monotonic() - began

    def _compiles_when_called(self, program: Program) -> bool:
        """Whether a program compiles when it is called. On a CPU Triton's kernels do not: they fail
        there.
        """
        triton = bool(program.build["triton"]) and self.device.kind == "cuda"
        return triton or self._torch_compiles(program)

    def _torch_compiles(self, program: Program) -> bool:
        """Whether torch.compile may be at work in a program."""
        return self._torch_may_compile() and inductor.compiles(program.source)

    def _of_triton(self) -> bool:
        return bool(self.program.build["triton"]) and self.device.kind == "cuda"

    def _torch_may_compile(self) -> bool:
        """Whether torch.compile may be at work in a candidate of this evaluation."""
        texts = [self.program.text, *(n["source"] for n in self.named.values())]
        return not self._requires_custom() and any(map(inductor.compiles, texts))

    def _candidate_config(self, **more: Any) -> dict[str, Any]:
        """Returns the configuration of a candidate's process."""
        if not self._torch_may_compile():
            return self._config(**more)
        imports = {"preimport": ["compile"]}
        if self.device.kind == "cuda":
            imports["preimport"].append("compile_gpu")
            return self._config(**imports, **more)
        folder = self._warm_inductor()
        return self._config(**imports, **({"inductor_cache": folder} if folder else {}), **more)

    def _add_kernels(self, reference: ReferenceClient, program: Program) -> None:
        """Adds Triton's kernels to what was built, and what torch.compile makes, compiled by a
        forward where programs may be started.
        """
        key = self._called_key(program)
        kept = object_cache.kept_kernels(self._called_in, key)
        kept = kept or self._compiled_kernels(reference, program, key)
        if kept is not None:
            before = program.build.get("artifacts") or []
            program.build = {**program.build, "artifacts": [*before, kept]}

    def _called_key(self, program: Program) -> str:
        """Names what is compiled by calling a program: for so many threads, tuned on the GPU that
        is there, by what policy lets compile.
        """
        where = (toolchain.identity(), str(placed(self.request)), str(self.threads))
        precision = str(self.request.get("precision") or "float32")
        how = (str(self.eval_mode), precision, "custom" if self._requires_custom() else "any")
        text = (program.source, self.task["source"])
        return toolchain.key("called", object_cache.RULES, *text, *where, *how)

    @contextmanager
    def _keeps_called(self) -> Iterator[None]:
        """What is compiled by calling it is kept in the cache; for an explanation, in a folder that
        goes with it.
        """
        if not self._explains:
            yield
            return
        with tempfile.TemporaryDirectory(dir=self._called_in, prefix=".explained-") as folder:
            self._called_in = folder
            yield

    def _that_compiles(self, reference: ReferenceClient, program: Program) -> CandidateClient:
        """Starts a process of a program that may start compilers. No output of it convicts or
        acquits.
        """
        with self.costs.part("worker"):
            config = self._candidate_config(runs=True)
            worker = self.server.spawn("builder", config, limits=self._limits())
        client = CandidateClient(worker, TRITON_S, self.device)
        try:
            self._load(client, reference, program=program)
        except BaseException:
            client.kill()
            raise
        return client

    def _compiled_kernels(
        self, reference: ReferenceClient, program: Program, key: str
    ) -> dict[str, Any] | None:
        client = self._that_compiles(reference, program)
        try:
            # A draw that nothing else is judged by: what is compiled goes to the timed workers.
            tree, inputs = reference.draw(secrets.randbits(62))
            judge = self.verification
            assert judge is not None
            like = (judge.outputs, judge.output_tree, judge.aliases)
            with faults.faults("compiling what it calls", client):
                client.begin_forward(tree, inputs, *like)
                client.finish_forward()
                fd, libraries = client.compiled()
            if fd < 0:
                return None
            try:
                return object_cache.keep_kernels(self._called_in, key, fd, libraries)
            except builder_client.Failed as e:
                raise faults.Fault(e.status, f"compiling what it calls: {e}") from e
            finally:
                for opened in (fd, *libraries.values()):
                    os.close(opened)
        finally:
            client.kill()
            client.worker.wait(10)

    def _run(self, build: Future[dict[str, Any]]) -> dict[str, Any]:
        v = self._blank()
        if not self._company:
            v["evidence"].append(
                "the first time it ran out of memory, while its exported file ran beside it"
            )
        learned: dict[str, Any] = {}
        reference: ReferenceClient | None = None
        try:
            known = Calibration.from_json(self.known.get("calibration"))
            # Calibrating takes longer than what does not compile; without an idle core nothing
            # else is done sooner for being begun beside it.
            alone = known is None or self._crowded()
            if alone:
                self._built(build, v)
            try:
                reference = self._start_reference(known, learned)
                if not alone and _failed(build):
                    self._built(build, v)  # nothing need be drawn for it
                self._prepare(reference)
            except (calibrate.ReferenceBroken, WorkerError) as e:
                raise faults.of_reference(e) from e
            if not alone:
                self._time_eager_beside(build, reference)
                self._built(build, v)
            if self.level == "certify":
                self._export(reference)
            self._compile_kernels(reference, v)
            beside_a_profile = self._profiler is not None and not self._compilers_disturb()
            if not beside_a_profile:
                self._begin_facts()
            self._build_upcoming()
            if self._batch is not None and self.request.get("upcoming"):
                self._begin_next(sentinel=False)
            self._verify(reference, v)
            self._time(reference, v, learned)
            self._add_launches(v)
            self._profile(reference, v, learned)
            v["status"] = "certified" if self.level == "certify" else "correct"
            v["reason"] = self._success(v)
        except faults.Fault as e:
            if self.had_company and faults.lack_of_memory(e) is not None:
                raise faults.InCompany(str(e)) from e
            v["status"], v["reason"], v["hint"] = e.status, str(e), e.hint
            v["evidence"] += e.evidence
            v["output"] = e.output or self.log
        except WorkerFailure as e:
            # What a candidate's worker raises has become a Fault: this is the reference's.
            if isinstance(e, WorkerError) and ran_out(e):
                raise faults.NoRoom(e.message, e.traceback) from e
            if isinstance(e, (WorkerError, WorkerGone)) and e.ill:
                raise inspect_task.failed(e) from e
            raise faults.Infrastructure(
                f"the reference's worker: {e}", getattr(e, "traceback", "")
            ) from e
        except (SandboxError, ProtocolError) as e:
            raise faults.Infrastructure(str(e)) from e
        except (RuntimeError, CudaError) as e:
            if ran_out(e):
                raise faults.NoRoom(str(e)) from e
            if words := health.said(str(e)):
                raise Ill(health.REFEREE, words) from e
            raise
        finally:
            for empty in self._ahead.values():
                with suppress(Exception):
                    empty.result().kill()
            if self._eager is not None:
                with suppress(Exception):
                    self._eager.result().kill()
            if self._alone is not None:
                self._alone[0].close()
            if v["status"] and not self._read:
                self._begin_facts()
            self._add_facts(v)
            if reference is not None and v["status"] and self._kept is not None:
                self._kept.give(reference)
            elif reference is not None:
                reference.kill()
        if v["status"] == "certified" and self.exported:
            v["exported"] = self.exported
            v["exported_sha256"] = hashlib.sha256(self.exported.encode()).hexdigest()
        if self.verification is not None:
            v["correctness"] = self.verification.report.to_json()
            v["evidence"] += self.verification.report.evidence
        v["evidence"] += self._tried()
        self._tell_builds(v)
        v["sandbox"] = {"mode": self.sandbox, "missing": self.missing}
        v["cost_s"] = {k: round(s, 4) for k, s in self.costs.parts.items()}
        v["cost_s"]["total"] = round(time.monotonic() - self.start, 4)
        return {"verdict": v, "learned": learned, "parsed": [_parsed(b) for b in self._upcoming]}

    def _tell_builds(self, v: dict[str, Any]) -> None:
        """Adds what came of extensions that were asked for later, and says first what of it the
        candidate had to do without.
        """
        v["evidence"] += v["build"].get("flags") or []
        shop = self.program.workshop
        if shop is None:
            return
        known = {a["request"] for a in self.program.build.get("artifacts") or ()}
        known |= {m.request["request"] for m in self.program.build.get("made") or ()}
        later = [m for m in shop.made if m.request["request"] not in known]
        for name, said in builder_client.reported(self.program.text, later).items():
            before = v["build"].get(name) or type(said)()
            if isinstance(said, list):
                said = [s for s in said if s not in before]
            v["build"][name] = before + said if said not in (before, "") else before
            v["evidence"] += said if name == "flags" else []
        v["build"]["seconds"] += sum(c.built_s for c in self._met)
        if later and v["build"].get("form") in ("", "none"):
            v["build"]["form"] = later[-1].request["kind"]
        if shop.late:
            v["evidence"].append(
                f"after its first forward it asked for builds that took {sum(shop.late):.1f} s: "
                "that is its own time"
            )
        if shop.failures:
            said = builder_client.told(shop.failures)
            v["evidence"].insert(0, f"not built: {said}")
            if not v["reason"].startswith(shop.failures[0].reason):
                v["reason"] = sentence(f"{said}; what ran without it: {v['reason']}")

    def _tried(self) -> list[str]:
        """Says what the candidate, or the reference, tried that is not its business, whether or not
        it mattered.
        """
        for r in self._references:
            r.worker.log()  # one that lives tells of it
        return [
            *tried("it", [c.worker for c in self._met]),
            *tried("the reference", [r.worker for r in self._references]),
        ]

    def _blank(self) -> dict[str, Any]:
        return {
            "status": "",
            "reason": "",
            "hint": "",
            "level": self.level,
            "task": self.task["fingerprint"],
            "candidate": hashlib.sha256(
                self.program.text.encode("utf-8", "surrogatepass")
            ).hexdigest(),
            "language": self.request["candidate"].get("language") or "",
            "device": self.request.get("device") or "cpu",
            "device_key": "",
            "candidate_ms": 0.0,
            "baselines": {},
            "speedup": None,
            "headroom": 0.0,
            "build": {"seconds": 0.0, "cached": False},
            "correctness": {
                "precision": self.request.get("precision") or "float32",
                "seeds": 0,
                "families": [],
            },
            "assumes": [],
            "weights": "",
            "timing": {"candidate": _no_measurement()},
            "floor": self._floor(),
            "work": {"custom": 0.0, "vendor": 0.0, "pytorch": 0.0},
            "metrics": {},
            "flags": list(self.task.get("flags") or []),
            "evidence": [],
            "cost_s": {},
            "versions": {
                "torch": torch.__version__,
                "kernelwright": str(self.request.get("kernelwright_version") or ""),
            },
        }

    def _begin_facts(self) -> None:
        """Has its objects read, on a GPU: while it is verified, or beside a profile, which waits
        for other things.
        """
        if self._facts is None and self.device.kind == "cuda" and self.program.artifacts():
            self._facts = self._beside.submit(
                builder_client.facts,
                self.server,
                {"artifacts": self.program.artifacts()},
                self.request["cache_dir"],
                self.sandbox,
            )

    def _add_facts(self, v: dict[str, Any]) -> None:
        """Waits for what is known of its kernels: nobody reads while it is timed."""
        facts, self._facts = self._facts, None
        if facts is None:
            return
        self._read = True
        # Nothing rests on them: a builder may fail, or an object be gone from the cache.
        with self.costs.part("facts"), suppress(OSError, SandboxError, ProtocolError):
            v["build"]["kernels"] = builder_client.with_facts(
                v["build"].get("kernels") or [], facts.result()
            )

    def _start_reference(
        self, calibration: Calibration | None, learned: dict[str, Any]
    ) -> ReferenceClient:
        compiles = calibration is None and not self._uncompiled
        timeout = COMPILE_S if calibration is None else LOAD_S
        reference = self.reference(compiles=compiles, timeout=timeout)
        try:
            if calibration is None:
                with self.costs.part("calibrate"):
                    try:
                        calibration = self._calibrate(reference)
                    except (calibrate.ReferenceBroken, WorkerFailure):
                        if not reference.had_parts:
                            raise
                        # A row that it asks for by its number, say, is in no part: on a GPU that
                        # ends a context.
                        self.progress("verify", "calibrating again, with the whole batch")
                        reference.kill()
                        reference = self.reference(compiles=compiles, timeout=COMPILE_S)
                        calibration = self._calibrate(reference, parts=False)
                    if compiles and not calibration.spent:
                        self._leave("compile", reference)
                    if calibration.spent:
                        reference.kill()
                        reference = self.reference(compiles=compiles, timeout=COMPILE_S)
                devices.tidy(self.device)
                learned["calibration"] = calibration.to_json()
                self.learn({"calibration": learned["calibration"]})
            self.calibration = calibration
            reference.timeout = LOAD_S
        except BaseException:
            reference.kill()
            raise
        return reference

    @property
    def _uncompiled(self) -> bool:
        """Whether torch.compile has no say in what is right: a calibration is quicker, and serves
        nobody who is timed.
        """
        return self.request.get("uncompiled") is True

    def _calibrate(self, reference: ReferenceClient, *, parts: bool = True) -> Calibration:
        return calibrate.calibrate(
            reference,
            want_compile=not self._uncompiled,
            parts=parts,
            note=lambda note: self.progress("verify", note),
        )

    def _export(
        self, reference: ReferenceClient, tried: dict[families.Shape, bool] | None = None
    ) -> None:
        """From here on the candidate is the standalone file that its user gets: first one that
        takes any shape, until it is known which of them it is right on.
        """
        assert self.verification is not None
        verification, plan = self.verification, self.program.plan
        info = reference.info
        call = verification.draws[0].tree, verification.inputs
        plan = plan or weights.Plan(weights.BY_NAME, True)
        about = describe.about(
            self.request,
            info,
            plan,
            call,
            verification.outputs,
            tried,
            reference.orders,
            made=self._made,
        )
        with self.costs.part("export"):
            try:
                self.exported = builder_client.export(
                    self.server, self.program.text, self.sandbox, about
                )
            except ValueError as e:
                raise faults.Fault("crashed", f"it cannot be exported: {e}") from e
        self.program.source = self.exported
        if not self.program.handed_out:
            shop = self.program.workshop
            made = shop.made if shop is not None else []
            self.program.handed_out = True
            self.program.workshop = self._workshop(
                self.program.text, {"made": made, "artifacts": []}, whole=True
            )

    def _leaves_the_rebuild(self, reference: ReferenceClient) -> bool:
        """Exports it without the reference's constructor, with which it fails, or which does not
        make there what it makes in the reference. Returns whether it did: not where the candidate
        makes the weights by itself, or was exported so before.
        """
        assert self.verification is not None and self.program.plan is not None
        if not self._made or not self.program.plan.to_rebuild:
            return False
        self._made = False
        self._export(reference, self.verification.tried)
        self.verification.report.evidence.append(
            "constructed alone, the exported file has other weights than the reference, and says so"
        )
        return True

    @contextmanager
    def _verifying(
        self, reference: ReferenceClient, candidate: CandidateClient | None = None
    ) -> Iterator[None]:
        """The part in which the referee compares; what it waits for the two goes to others."""
        asked = [("reference", reference), *([("candidate", candidate)] if candidate else [])]
        before = [(client.waited_s, client.built_s) for _, client in asked]
        with self.costs.part("verify"):
            try:
                yield
            finally:
                for (name, client), (waited, built) in zip(asked, before, strict=True):
                    self.costs.moved(client.waited_s - waited, f"verify {name}")
                    if client.built_s > built:
                        self.costs.moved(client.built_s - built, "build")

    def _prepare(self, reference: ReferenceClient, level: str = "") -> None:
        """Draws, and has the first expected outputs computed: all that needs no candidate."""
        assert self.calibration is not None
        with self._verifying(reference):
            self.verification = Verification(
                reference,
                self.calibration,
                level or self.level,
                precision=self.request.get("precision") or "float32",
                strict=self._strict,
                plan=self.program.plan,
            )
            began = time.perf_counter()
            self.verification.prepare(self._before.state if self._before is not None else None)
            # Beside it a candidate may be imported and built: what is known of eager is not its
            # work.
            known = (self.known.get("baselines") or {}).get("eager")
            took = (time.perf_counter() - began) / 4
            self.eager_s = max(1e-3 * known["measurement"]["median_ms"] if known else took, 1e-4)
            self.state = self.verification.state

    def _verify(self, reference: ReferenceClient, v: dict[str, Any]) -> None:
        self.progress("verify", self.level)
        if self.device.kind == "cuda" and self._timed():
            self._ahead[False] = self._beside.submit(self._spare, False)
        self._prepare_profiler()
        candidate = self.first(reference)
        verification = self.verification
        assert verification is not None and self.program.plan is not None
        if self.level == "certify":
            candidate.kill()
            with self.costs.part("verify"):
                self._general(reference.orders)
            self._export(reference, verification.tried)
            try:
                candidate = self.candidate(reference, poison=True)
            except faults.Fault:
                if not self._leaves_the_rebuild(reference):
                    raise
                candidate = self.candidate(reference, poison=True)
        v["weights"] = self.program.plan.mode
        v["evidence"] += self.program.plan.evidence()
        if self._breaks:
            v["evidence"].append(weights.moved_at_construction(self._breaks))
        try:
            if self._company and self._runs_alone() and not self._compilers_disturb():
                self._begin_alone(reference, beside=True)
            with self._verifying(reference, candidate), faults.faults("verifying it", candidate):
                try:
                    verification.run(candidate, lambda: self.candidate(reference, poison=True))
                except findings.Failed as e:
                    log = candidate.worker.log()[-faults.OUTPUT_KEPT :]
                    candidate.kill()
                    stale = self._keeps_what_it_computed(reference, e)
                    why, hint = stale or (str(e), e.hint)
                    raise faults.Fault(e.status, why, hint, (), log) from e
            with self.costs.part("trace"), faults.faults("tracing it", candidate):
                draw = verification.draws[0]
                seen = candidate.trace(draw.tree, draw.tensors)
            self.log = candidate.worker.log()[-faults.OUTPUT_KEPT :]
        finally:
            candidate.kill()
            if self.sparing:
                self._let_go(reference)
        v["output"] = self.log
        self._under_other_seeds(reference, verification)
        own = any("libraries" not in a or self._of_triton() for a in self.program.artifacts())
        work, calls = trace.report(seen, own)
        v["work"], _ = trace.report(seen, own, regions=True)
        self._traced = trace.not_custom(seen, work)
        v["metrics"] |= {
            "custom_share": work["custom"],
            "vendor_share": work["vendor"],
            "pytorch_share": work["pytorch"],
            "custom_calls": float(calls),
        }
        if self._requires_custom():
            self._has_custom_code()
            self._does_the_work(reference, seen, work, calls)
        if self._runs_alone():
            with self.costs.part("cold"):
                self._judge_alone(reference, v)
        with self.costs.part("assumptions"):
            self._assume(reference, v)

    def first(self, reference: ReferenceClient) -> CandidateClient:
        """Starts the first process that is verified. Where a candidate is judged by the seed, both
        sides are constructed anew, under a secret one that has nothing to do with those of inputs.
        """
        candidate: CandidateClient | None = None
        if self.program.plan is None:  # else its kernels were compiled in a process before
            candidate = self.candidate(reference, poison=True)
        assert self.program.plan is not None
        if self.program.plan.other is not None:
            self.program.plan = self._settled(reference, candidate, self.program.plan)
            candidate = None
        if self.program.plan.by_seed and self.seed == CONSTRUCTION_SEED:
            if candidate is not None:
                candidate.kill()
                candidate = None
            self._construct_anew(reference)
            self._prepared = self._before = None  # eager was timed with other weights
            self._prepare(reference)
        return candidate or self.candidate(reference, poison=True)

    def _settled(
        self, reference: ReferenceClient, candidate: CandidateClient | None, plan: weights.Plan
    ) -> weights.Plan:
        """Returns by which of names and values it goes where one contradicts the other: layers of
        one shape may be constructed in another order, or have each other's names.
        """
        assert self.verification is not None and plan.other is not None
        client = candidate or self.candidate(reference, poison=True)
        try:
            with self._verifying(reference, client), faults.faults("being tried", client):
                right = self.verification.right_on_first(client)
        except faults.Fault:
            right = False  # it is judged by the other
        finally:
            client.kill()
        return replace(plan, other=None) if right else plan.other

    def _construct(self, reference: ReferenceClient, seed: int) -> None:
        """Has both sides constructed under this seed, from here on."""
        self.seed = seed
        reference.construct(seed, eval_mode=self.eval_mode, breaks=self._breaks)

    def _construct_anew(self, reference: ReferenceClient) -> None:
        """Has both sides constructed under a secret seed, and what all constructions give its
        weights moved as they are made, as far as both sides make them alike.
        """
        assert self.verification is not None and self.program.plan is not None
        info, judge, left = reference.info, self.verification, set(self.program.plan.left)
        self._breaks, looks = [], [initial_weights.look(info["names"], judge.original, left)]
        for _ in range(input_structure.count_of(judge.original) - 1):
            self._construct(reference, secret_draws.secret())
            looks.append(initial_weights.look(info["names"], reference.state(), left))
        tied = {n: info["names"][i] for n, i in zip(info["names"], info["tied"], strict=True)}
        self._shared = initial_weights.found(looks, left, tied)
        wanted = self._shared.names()
        while wanted != self._breaks:
            self._breaks = wanted
            self._construct(reference, self.seed)
            wanted = self._made_alike(reference)
        if self._breaks:
            now = initial_weights.look(info["names"], reference.state(), left)
            self._shared = self._shared.still(looks[-1], now)

    def _made_alike(self, reference: ReferenceClient) -> list[str]:
        """Returns of which of its weights a candidate moves what the reference has moved, as often:
        one that makes them otherwise cannot be judged by that.
        """
        breaks = reference.info["breaks"]
        if not any(b["times"] for b in breaks):
            return []
        try:
            candidate = self.candidate(reference, poison=True)
        except faults.Fault:
            return []  # the contents may be what it asks for
        candidate.kill()
        alike = zip(breaks, candidate.broken, strict=True)
        return sorted(n for b, times in alike if 0 < b["times"] == times for n in b["names"])

    def _keeps_what_it_computed(
        self, reference: ReferenceClient, failed: findings.Failed
    ) -> tuple[str, str] | None:
        """Returns reason and hint where a candidate is right with the weights that it was
        constructed with, and has tensors that it computed of them, which follow no others.
        """
        plan, judge = self.program.plan, self.verification
        if failed.status != "wrong" or plan is None or plan.by_seed or not plan.unknown:
            return None
        assert judge is not None
        own, client = self.state, None
        try:
            self.state = judge.original
            client = self.candidate(reference, poison=True)
            with self._verifying(reference, client), faults.faults("being tried again", client):
                right = judge.right_as_constructed(client)
        except (faults.Fault, findings.Failed):
            right = False  # how it failed before is told
        finally:
            self.state = own
            if client is not None:
                client.kill()
        return plan.stale(str(failed)) if right else None

    def _under_other_seeds(self, reference: ReferenceClient, judge: Verification) -> None:
        """Judges a candidate that is judged by the seed under others, too: each time both sides are
        constructed anew, the candidate in a process of its own.
        """
        if judge.plan is None:
            return
        state, seed = self.state, self.seed
        for _ in range(verify.CONSTRUCTIONS[self.level] - 1):
            self._construct(reference, secret_draws.secret())
            self.state = judge.constructed()
            self._judge_constructed(reference, judge)
        self.state = state
        self._construct(reference, seed)
        reference.set_state(state)

    def _judge_constructed(self, reference: ReferenceClient, judge: Verification) -> None:
        candidate = self.candidate(reference, poison=True)
        doing = "being constructed under another seed"
        try:
            with self._verifying(reference, candidate), faults.faults(doing, candidate):
                judge.judge_constructed(candidate)
        except findings.Failed as e:
            raise faults.Fault(e.status, f"constructed under another seed: {e}", e.hint) from e
        finally:
            candidate.kill()

    @property
    def _strict(self) -> bool:
        """Whether what a candidate takes for granted of its inputs is wrong."""
        return self.request.get("strict_inputs") is True

    def _assume(self, reference: ReferenceClient, v: dict[str, Any]) -> None:
        """Looks for what it takes for granted. Raises a Fault where that may not be."""
        assert self.verification is not None
        patience = faults.Patience(ASSUMING_S[self.level])
        own = self.state

        def start(state: Sequence[torch.Tensor]) -> CandidateClient:
            self.state = list(state)
            try:
                return self.candidate(reference, poison=True, patience=patience)
            except faults.Fault as e:
                raise assumptions.NotStarted(str(e)) from e
            finally:
                self.state = own

        self.progress("verify", "what it takes for granted")
        told = [*self.verification.assumes(start), *self._takes_of_weights()]
        v["assumes"] = [sentence(s) for s in told]
        if v["assumes"] and self._strict:
            raise faults.Fault(
                "wrong",
                f"its inputs are strict, and it {v['assumes'][0]}",
                "compute what the reference computes whatever the inputs are",
            )

    def _takes_of_weights(self) -> list[str]:
        """Returns what it takes for granted of weights, one sentence each."""
        assert self.verification is not None and self.program.plan is not None
        said = [*self.program.plan.told(), *self._shared.told()]
        if self.verification.report.follows_weights is False:
            said.append(weights.NOT_FOLLOWED)
        return said

    def _does_the_work(
        self, reference: ReferenceClient, seen: Any, work: dict[str, Any], calls: int
    ) -> None:
        """Raises a Fault where custom code covers no operator of the task."""
        # A CUDA graph replays what was called when it was captured, before the trace.
        if not calls and (self.device.kind == "cpu" or self._right_without(reference)):
            did = ", ".join(trace.computes(work)[:6]) or "nothing"
            raise faults.Fault(
                "rejected",
                f"none of its custom code ran in a forward: the work was done by {did}",
                "call the custom kernel in forward, at module level names such as lib.kernel(...)",
            )
        operators = [str(o) for o in self.task.get("operators") or []]
        # One that sums what its kernel has summed in parts runs all operators, on less than the
        # inputs, and most is its own.
        assert self.verification is not None
        elements = sum(t.numel() for t in self.verification.inputs)
        mostly = work["custom"] >= MOSTLY and not trace.as_much(seen, operators, elements)
        if not trace.covers(seen, operators) and not mostly:
            did = ", ".join(dict.fromkeys(operators))
            raise faults.Fault(
                "rejected",
                f"its custom code covers no operator of the task: PyTorch ran {did}",
                "compute at least one of them in the custom kernel, and not beside it",
            )
        if not calls:
            self.verification.report.evidence.append(
                "none of its custom code was called in the forward that was traced, and it is "
                "needed: a CUDA graph replays it, and what else is in that is not seen"
            )
        elif (trace.computes(work) or self.level == "certify") and self._right_without(reference):
            raise faults.Fault(
                "rejected",
                "its output is right when its custom code does nothing",
                "have the custom kernel compute what forward returns",
            )

    def _right_without(self, reference: ReferenceClient) -> bool:
        """Whether the candidate is right with stand-ins for its custom code that do nothing."""
        assert self.verification is not None
        try:
            candidate = self.candidate(reference, poison=True, stand_in=True)
        except faults.Fault:
            return False  # it needs it to be constructed
        try:
            doing = "running without its custom code"
            with self._verifying(reference, candidate), faults.faults(doing, candidate):
                return self.verification.right_on_first(candidate)
        except faults.Fault:
            return False
        finally:
            candidate.kill()

    def _general(self, orders: Sequence[Sequence[int]]) -> None:
        """Tries other shapes, in processes of their own: what happens there changes no verdict."""
        assert self.verification is not None
        workers: list[Client] = []
        try:
            reference = self.reference(compiles=False)
            workers.append(reference)
            reference.set_state(self.state)
            reference.orders = orders  # it draws nothing
            if self._torch_compiles(self.program):  # for each shape anew
                candidate = self._that_compiles(reference, self.program)
            else:
                candidate = self.candidate(reference, poison=True)
            workers.append(candidate)
            self.verification.general(reference, candidate)
        except (faults.Fault, WorkerFailure, torch.OutOfMemoryError, CudaError) as e:
            if isinstance(e, CudaError) and not ran_out(e):
                raise
            said = str(e).partition("\n")[0]
            evidence = self.verification.report.evidence
            evidence.append(f"other shapes were not tried to the end: {said}")
        finally:
            for w in workers:
                w.kill()
                w.worker.wait(10)

    def _runs_alone(self) -> bool:
        return self.level == "certify" and self.request.get("cold", True) is not False

    def _begin_alone(self, reference: ReferenceClient, *, beside: bool = False) -> None:
        """Starts the file that its user gets, as its user runs it: by itself, in a new interpreter.
        ``beside``: while it is verified, where it is not large.
        """
        assert self.verification is not None
        if interpreter.lacking(self.program.build["build"].get("form") or ""):
            return
        if beside and (self.sparing or self._content_bytes() >= interpreter.LARGE):
            return
        with self.costs.part("cold"):
            tree, inputs = self.verification.unseen()
            call = self._call(reference, tree, inputs, self.verification.outputs)
            if beside and interpreter.is_large(call):  # by its weights
                return
            running = interpreter.Running(
                self.server,
                self.exported,
                call,
                self.sandbox,
                COMPILE_S + FORWARD_EAGERS * self.eager_s,
                self._limits(),
                toolchain.compute_sanitizer() if self.device.kind == "cuda" else "",
                fewer=beside or self.verification.small is not None,
            )
            self._alone = running, tree, inputs
            self.had_company = beside

    def _call(
        self,
        reference: ReferenceClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> interpreter.Call:
        assert self.verification is not None and self.program.plan is not None
        plan = self.program.plan
        return interpreter.Call(
            (reference.info["init"], reference.init),
            plan.given(reference.info["names"], self.state),
            (tree, inputs),
            (self.verification.output_tree, outputs),
            self.eval_mode,
            self.threads,
            placed(self.request),
            reference.orders,
            seed=self.seed,
            breaks=reference.info["breaks"],
            own=not plan.whole,
            carried=reference.carried,
            use=self._use(reference, plan),
        )

    def _use(self, reference: ReferenceClient, plan: weights.Plan) -> interpreter.Use:
        """Says how its users use it. Of a large task the ways are not tried, each of which calls it
        once more.
        """
        assert self.verification is not None
        made = self.verification.original
        constructed: dict[str, str] = {}
        rebuilt: dict[str, str] = {}
        if self._made or not plan.to_rebuild:
            constructed = {n: construction.digest_of(made[i]) for n, i in plan.as_constructed()}
        if self._made and plan.to_rebuild:
            names = reference.info["names"]
            rebuilt = {n: construction.digest_of(t) for n, t in zip(names, made, strict=True)}
        known = self.verification.draws[0].tree["list"], reference.info["init"]["list"]
        forward, constructor = (
            file_facts.names_of(reference.info[what], len(given))
            for what, given in zip(("forward", "constructor"), known, strict=True)
        )
        size = self._content_bytes() + sum(t.nbytes for t in self.state)
        ways = not self.sparing and size < interpreter.LARGE
        return interpreter.Use(constructor, forward, constructed, rebuilt, plan.way, ways)

    def _judge_alone(self, reference: ReferenceClient, v: dict[str, Any]) -> None:
        """Judges what it computes, and has it looked at."""
        assert self.verification is not None
        evidence = self.verification.report.evidence
        lacks = interpreter.lacking(self.program.build["build"].get("form") or "")
        if lacks:
            evidence.append(f"not run by itself in a new interpreter: {lacks} is not there")
            return
        self.progress("verify", "in a new interpreter")
        devices.tidy(self.device)
        reference.set_state(self.state)
        cuda = self.device.kind == "cuda"
        if cuda and not toolchain.compute_sanitizer():
            evidence.append("not run under compute-sanitizer: it is not there")
        self._add_facts(v)
        own = [str(k.get("name")) for k in v["build"].get("kernels") or []]
        if self._alone is None:
            self._begin_alone(reference)
        assert self._alone is not None
        running, tree, inputs = self._alone
        small = self.verification.small
        try:
            try:
                outputs = running.outputs()
            except interpreter.Broken:
                running.close()
                if not self._leaves_the_rebuild(reference):
                    raise
                self._begin_alone(reference)
                running, tree, inputs = self._alone
                outputs = running.outputs()
            self._built_as_judged(running.built)
            looked = running.looked(self._call(reference, *small) if small else None, own)
            running.close()  # there may be no room for both
            self.verification.judge_unseen(tree, inputs, outputs)
        except interpreter.Broken as e:
            raise faults.of_exported_file(e, cuda) from e
        except findings.Failed as e:
            raise faults.Fault(e.status, f"{faults.STANDALONE}, is wrong: {e}", e.hint) from e
        finally:
            running.close()
            self._alone = None
        self.had_company = False  # what fails from here on had none
        evidence.append(usage.TRIED if running.ways else usage.UNTRIED)
        whole = self.verification.inputs
        few = small[1] if small else whole
        self.costs.moved(looked.checks_s, "sanitizers")
        self._sanitized(
            looked.checks, *(", ".join(str(list(t.shape)) for t in i) for i in (few, whole))
        )
        self._looked = looked
        if cuda and not looked.launches:
            evidence.append("what it launches is not known: a profiler saw nothing")

    def _built_as_judged(self, built: Sequence[tuple[str, str]]) -> None:
        """Raises a Fault where its own loader has built something else than what was judged: from
        the same text, by the same command. What nvcc makes of code for the host is never the same.
        """
        ending = ".so" if self.device.kind == "cpu" else ".cubin"
        judged = {a.get("loaded") for a in self.program.artifacts()}
        if any(kind == ending and what not in judged for kind, what in built):
            raise faults.Fault(
                "rejected",
                f"{faults.STANDALONE}, builds something else of its source than was evaluated: "
                "its compiler reads a file or a variable that is not in the source",
                "put all that the source needs into its text",
            )

    def _sanitized(self, checks: Sequence[sanitizers.Check], few: str, whole: str) -> None:
        """Raises a Fault for what compute-sanitizer finds on the task's own inputs. ``few`` and
        ``whole``: the shapes of those that it had first, and of the task's.
        """
        assert self.verification is not None
        self.verification.report.evidence += sanitizers.told(checks, few)
        for c in checks:
            if c.convicts:
                raise faults.Fault(
                    "wrong",
                    f"compute-sanitizer's {c.tool} finds on inputs of {whole}: {c.findings[0]}",
                    sanitizers.HINTS[c.tool],
                    [f"{c.tool}: {f}" for f in c.findings[:SANITIZED]],
                )

    # Timing.

    def _timed(self) -> bool:
        return self.request.get("time", True) is not False

    def _time(self, reference: ReferenceClient, v: dict[str, Any], learned: dict[str, Any]) -> None:
        if not self._timed():
            if self.request.get("time_baselines"):
                self._time_baselines(reference, v, learned)
            return
        assert self.verification is not None
        self._quiet()
        self._add_facts(v)
        self._wait_for_profiler()
        self.progress("time", self.level)
        reference.set_state(self.state)
        candidates: list[CandidateClient] = []

        def spawn_candidate() -> CandidateClient:
            c = self.candidate(reference, poison=False)
            # A baseline is timed next: what it holds must be gone. At quick on a GPU hardly ever.
            c.waits = self.level == "certify" or self.device.kind == "cpu" or self.sparing
            candidates.append(c)
            with faults.faults("preparing to be timed", c):
                c.ask(self._containers(), timeout=LOAD_S)
            c.builds_on_its_own()
            self._nobody_but(c)
            return c

        try:
            with self.costs.part("time"):
                if False not in self._ahead:
                    self._ahead[False] = self._beside.submit(self._spare, False)
                timing = self._prepared or self._timing(reference)
                timing.vary([j.inputs for j, _ in self.verification.varied], self._check_varied)
                with self._drawing_again(timing):
                    timed = self._measure(timing, spawn_candidate, candidates)
        finally:
            for c in candidates:
                c.kill()
            self._let_go(reference)
        learned.update({k: value for k, value in timed.learned.items() if value})
        if timed.wrong:
            hint = "compute every output in every call, from that call's input"
            if self._caught is not None and self._deceives(reference):
                said = "asked again outside the clock it is right on the same input"
                raise faults.Fault("cheated", f"{timed.wrong}; {said}", hint)
            raise faults.Fault("wrong", timed.wrong, hint)
        if timed.excess and not self._explains:
            raise faults.Fault(
                "rejected", timed.excess, "start as many threads as OMP_NUM_THREADS says, no more"
            )
        if timed.hides:
            raise faults.Fault("cheated", timed.hides, "leave the clock and the harness alone")
        objects = [a["path"] for a in self.program.artifacts()]
        if timed.seen.too_much(objects):
            said = (
                f"PyTorch was at work in {len(timed.seen.pytorch)} of {timed.seen.looks} looks "
                f"into timed calls; when operators were listed it took {self._traced:.0%} of "
                "the time"
            )
            if self._requires_custom():
                hint = "compute in the same way whether or not anybody looks"
                raise faults.Fault("cheated", said, hint)
            v["evidence"].append(said)  # whoever does the work may do it
        self._possible(timed)
        self._fill(v, timed)
        if self.level == "certify":
            self._time_packing(reference, v)

    def _time_baselines(
        self, reference: ReferenceClient, v: dict[str, Any], learned: dict[str, Any]
    ) -> None:
        """Times what candidates are held against, for a task that has none yet."""
        self._quiet()
        reference.set_state(self.state)
        try:
            records = (self._prepared or self._timing(reference)).records
        finally:
            self._let_go(reference)
        learned["baselines"] = records
        v["baselines"] = {n: r["measurement"]["median_ms"] for n, r in records.items()}
        v["floor"] = self._floor(min(v["baselines"].values()))

    def _time_packing(self, reference: ReferenceClient, v: dict[str, Any]) -> None:
        """Notes what packing its weights takes, which no timed call has done. A candidate that does
        not bear it has no such note.
        """
        judge, plan = self.verification, self.program.plan
        assert judge is not None and plan is not None
        notes = v["timing"].setdefault("notes", [])
        if plan.by_seed:
            notes.append(weight_packing.AT_CONSTRUCTION)
        keeps = judge.report.caches_weights
        if keeps is None:
            return  # none of its weights is known to be the reference's
        names = reference.info["names"]
        states = itertools.cycle([judge.changed(), self.state])
        tree, inputs = judge.draws[0].get()
        with self.costs.part("packing"), suppress(faults.Fault):
            patience = faults.Patience(weight_packing.PACKING_S)
            client = self.candidate(reference, poison=False, patience=patience)

            def call() -> float:
                client.begin_forward(tree, inputs, judge.outputs, judge.output_tree, judge.aliases)
                began = time.perf_counter()
                client.wait_forward()
                return time.perf_counter() - began

            def change() -> None:
                if keeps:
                    self._construct_candidate(client, reference, self.program)
                else:
                    client.set_state(names, next(states), in_place=True)

            try:
                with faults.faults("packing its weights", client):
                    told = weight_packing.told(change, call, keeps=keeps)
                    notes += [told] if told else []
            except (torch.OutOfMemoryError, CudaError) as e:
                if not ran_out(e):
                    raise
            finally:
                client.kill()

    def _possible(self, timed: Any) -> None:
        """Raises a Fault for a time in which the memory's pins cannot move what has to be read and
        written: measured ceilings are exceeded by honest kernels, the pins are not.

        The L2 may have held so much of it when a call began, and so much when it ended.
        """
        specs, ceilings = (self.request.get(k) or {} for k in ("specs", "ceilings"))
        pins, measured = (float(of.get("memory_gbs") or 0.0) for of in (specs, ceilings))
        if not 0 < measured < pins:
            return  # pins that move less than was measured are another memory's
        moved = int(self.task.get("needed_bytes") or 0) - 2 * int(specs.get("l2_bytes") or 0)
        least_ms = moved / (PINS * 1e6 * pins)
        ms = float(timed.report["candidate"]["high_ms"])
        if ms >= least_ms:
            return
        raise faults.Fault(
            "cheated",
            f"{ms:.4g} ms is a time in which this memory, of {pins:.4g} GB/s, cannot move what has "
            f"to be read and written: that takes {least_ms:.4g} ms",
            "leave the clock and the harness alone",
        )

    def _time_eager_beside(self, build: Future[dict[str, Any]], reference: ReferenceClient) -> None:
        """On a GPU, and where there are cores enough, times the sentinel while a compiler works."""
        build.add_done_callback(lambda _: self._compiling.set())
        if self._compilers_disturb() or not self._eager_is_known():
            return
        if self._sentinel_is_known():
            return
        if self._content_bytes() > EARLY_BYTES:
            return
        with self.costs.part("baselines"):
            self._drawn += _draws(reference, self._at_once())
        with self.costs.part("build"):
            self._compiling.wait()  # before that it is the candidate that runs
        if not build.done():
            self._prepared = self._timing(reference)

    def _eager_is_known(self) -> bool:
        """Whether the first that is timed on a GPU will be the sentinel, and nothing else of it."""
        known = self.known.get("baselines") or {}
        wants = self._timed() and bool(self.known.get("calibration"))
        return wants and self.device.kind == "cuda" and known.keys() >= set(self._wanted())

    def _sentinel_is_known(self) -> bool:
        """Whether one of the same batch was timed a moment ago."""
        shares = self.level == "quick" and self.device.kind in SHARES
        return shares and self._before is not None and self._before.recent()

    def _wanted(self) -> list[str]:
        """Returns the names of all baselines."""
        return [*(self.request.get("want_baselines") or SHARED.baselines), *self.named]

    def _output_bytes(self) -> int:
        assert self.verification is not None
        return sum(t.numel() * t.element_size() for t in self.verification.outputs)

    def _content_bytes(self) -> int:
        """Returns what the inputs of a call and its outputs take."""
        assert self.verification is not None
        inputs = self.verification.inputs
        return sum(t.numel() * t.element_size() for t in inputs) + self._output_bytes()

    def _at_once(self) -> int:
        """Returns how many contents of timed calls are drawn at once: on a GPU asking for one takes
        longer than drawing it.
        """
        assert self.verification is not None
        if self.device.kind != "cuda":
            return 1
        size = sum(t.numel() * t.element_size() for t in self.verification.inputs)
        return max(min(DRAWS, DRAWS_BYTES // max(size, 1)), 1)

    def _timing(self, reference: ReferenceClient) -> Timing:
        """Prepares the timing: baselines or the sentinel.

        No process may live that has met the candidate.
        """
        assert self.verification is not None
        before = self._before
        if before is not None and self._sentinel_is_known():
            return before.timing.for_another(
                check=self._check,
                spawn_baseline=lambda name: self._spawn_baseline(name, reference),
                log=lambda note: self.progress("time", note),
                learn=self.learn,
            )
        specs = self.request.get("specs") or {}
        drawn, ahead, at_once = self.verification.draws, self._drawn, self._at_once()

        def draw(i: int) -> list[torch.Tensor]:
            # The process that is timed has met none of those that another was verified with.
            if i < len(drawn):
                return drawn[i].tensors
            if not ahead:
                ahead.extend(_draws(reference, at_once))
            return ahead.pop()

        contents = before.timing.contents.drawn_by(draw) if before else None
        if self.sparing:
            contents = self._redrawn(reference)
        self._wait_for_profiler()
        with self.costs.part("baselines"):
            try:
                timing = Timing(
                    draw=draw,
                    outputs=self.verification.outputs,
                    check=self._check,
                    spawn_baseline=lambda name: self._spawn_baseline(name, reference),
                    level=self.level,
                    threads=self.threads,
                    want=self._wanted(),
                    known=_known(self.known.get("baselines")),
                    sources={
                        n: hashlib.sha256(b["source"].encode()).hexdigest()
                        for n, b in self.named.items()
                    },
                    llc_bytes=int(specs["l3_bytes"]) if specs.get("l3_bytes") else None,
                    orders=reference.orders,
                    log=lambda note: self.progress("time", note),
                    learn=self.learn,
                    leave=self._leave,
                    contents=contents,
                    budget=self._budget(),
                    device=self.device,
                )
                with self._drawing_again(timing):
                    timing.prepare()
                for name, seconds in timing.spent_s.items():
                    self.costs.moved(seconds, f"baseline {name}")
            except BaselineFailed as e:
                raise faults.of_baseline(e) from e
        shares = self.level == "quick" and self.device.kind in SHARES and not self.sparing
        shares = shares and self.seed == CONSTRUCTION_SEED  # others' weights are not secret
        if self._batch is not None and shares:
            task = self.task["source"]
            self._batch.timed = SharedTiming(task, self.state, timing, time.monotonic())
        return timing

    def _budget(self) -> Budget:
        usual = budget_of(self.level, self.device)
        return replace(usual, rounds_s=float(self.request.get("certify_s") or usual.rounds_s))

    def _redrawn(self, reference: ReferenceClient) -> Redrawn:
        """Returns contents for timed calls that the reference draws whenever they are needed."""
        assert self.verification is not None
        judge = self.verification
        drawn, tree = judge.draws, judge.draws[0].tree
        seeds: dict[int, int] = {}
        slots = window_base.Slots.of(judge.inputs, judge.outputs, reference.orders)
        # What is freed seems to keep a GPU's memory busy for milliseconds, in which what is timed
        # has less of it: where there is room nothing is.
        room = secret_draws.Room()

        def asked(what: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
            if room.there(self.device, slots.bytes):
                try:
                    with reference.keeping():
                        return what()
                except (WorkerError, CudaError, torch.OutOfMemoryError) as e:
                    if not ran_out(e):
                        raise
                    room.close()
            reference.let_go()
            return what()

        def draw(i: int) -> list[torch.Tensor]:
            if i < len(drawn):
                return drawn[i].tensors
            return reference.draw(seeds.setdefault(i, secret_draws.secret()))[1]

        def eager(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            r = reference.forward(tree, inputs, ["eager"])[0]
            if "error" in r:
                raise r["error"]
            return r["tensors"]

        return Redrawn(slots, draw, eager, self.device, asked)

    def _let_go(self, reference: ReferenceClient) -> None:
        """Has it give up the blocks that it kept. What fails then is no candidate's fault, and
        hides nothing that was found; the process serves no other evaluation.
        """
        try:
            reference.let_go()
        except (WorkerFailure, CudaError, torch.OutOfMemoryError, OSError):
            reference.key = ""

    @contextmanager
    def _drawing_again(self, timing: Timing) -> Iterator[None]:
        """Counts apart what contents cost that are not kept."""
        before = timing.contents.again_s
        try:
            yield
        finally:
            if took := timing.contents.again_s - before:
                self.costs.moved(took, "contents")

    def run_baselines(self) -> dict[str, Any]:
        """Measures the baselines and nothing else."""
        learned: dict[str, Any] = {}
        known = Calibration.from_json(self.known.get("calibration"))
        reference = self._start_reference(known, learned)
        try:
            self._prepare(reference, "quick")
            timing = self._timing(reference)
            learned["baselines"] = timing.records
            shown = {
                n: {**r["measurement"], "samples": r["blocks"]} for n, r in timing.records.items()
            }
            return {"baselines": shown, "learned": learned}
        finally:
            reference.kill()

    def _measure(
        self,
        timing: Any,
        spawn: Callable[[], CandidateClient],
        candidates: Sequence[CandidateClient],
    ) -> Any:
        with faults.faults("being timed"):
            try:
                return timing.measure(spawn, self._traced)
            except BaselineFailed as e:
                raise faults.of_baseline(e) from e
            except CallFailed as e:
                if e.error.get("type") == window_base.TOOK_MEMORY:
                    raise faults.Fault("crashed", *faults.TOOK_MEMORY) from e
                if e.error.get("type") == window_base.GPU_BUSY and self.device.kind == "cuda":
                    faults.acquit(e, candidates)
                if e.error.get("type") in (window_base.RAN_ON, window_base.GPU_BUSY):
                    raise faults.Fault("cheated", str(e.error.get("message"))[:300]) from e
                if e.error.get("type") == "OutputMismatch":
                    message = str(e.error.get("message"))[:300]
                    raise faults.Fault(
                        "wrong", f"in a timed call: {message}", faults.HINTS["output"]
                    ) from e
                error = WorkerError({**e.error, "stage": "forward"})
                raise faults.of_build(error, self.program.workshop) or error from e
            except ProtocolError as e:
                if isinstance(e, Timeout) or not candidates:
                    raise faults.Fault(
                        "timed_out", f"a timed call took too long: {e}", faults.FASTER
                    ) from e
                end = candidates[-1].worker.wait(5)
                message = f"the candidate's process {how_it_ended(end)} while it was timed"
                if end is not None and end.blameless:
                    raise faults.Infrastructure(message) from e
                raise faults.Fault("crashed", message) from e

    def _spawn_baseline(self, name: str, reference: ReferenceClient) -> Client:
        assert self.verification is not None
        client: Client
        if name in self.named:
            client = self._named_baseline(name, reference)
        else:
            compiles = name != "eager"
            begun, self._eager = (None, self._eager) if compiles else (self._eager, None)
            if begun is not None:
                client = begun.result()
            else:
                timeout = COMPILE_S if compiles else LOAD_S
                client = self.reference(compiles=compiles, timeout=timeout, timed=True)
        try:
            if isinstance(client, ReferenceClient):
                if name != "eager" and (fd := self._compiled.of(self._compiled_key())) >= 0:
                    with suppress(WorkerError):  # then it compiles for itself
                        client.precompiled(fd)
                if (client.seed, client.breaks) != (self.seed, self._breaks):  # known since
                    client.construct(self.seed, eval_mode=self.eval_mode, breaks=self._breaks)
                client.set_state(self.state)
            client.waits = client.waits or self.sparing  # what it has is freed when it is gone
            client.ask(self._containers(), timeout=LOAD_S)
            self._nobody_but(client)
        except BaseException:
            client.kill()
            raise
        return client

    def _leave(self, name: str, worker: TimedWorker) -> None:
        """Keeps what a baseline has compiled, for other processes of it."""
        if isinstance(worker, ReferenceClient) and name != "eager":
            with suppress(WorkerFailure):  # what was timed stands; the next one compiles for itself
                self._compiled.keep(self._compiled_key(), worker.compiled())

    def _compiled_key(self) -> str:
        own = [self.task["source"], self._config(), self.eval_mode, self.device.kind]
        return json.dumps(own, sort_keys=True)

    def _nobody_but(self, timed: Client) -> None:
        """Waits, before somebody is timed, for who still ends, or still begins."""
        for c in self._met:
            if c is not timed:
                c.worker.wait(10)
        for empty in list(self._ahead.values()):
            empty.result()
        if self._kept is not None:
            self._kept.spares.wait()

    def _containers(self) -> dict[str, Any]:
        """Returns the request that says what goes into timed calls, and what comes."""
        judge = self.verification
        assert judge is not None
        trees = {"tree": judge.draws[0].tree, "output_tree": judge.output_tree}
        return {"op": "timed", **trees, "aliases": judge.aliases}

    def _named_baseline(self, name: str, reference: ReferenceClient) -> CandidateClient:
        """Starts the program that somebody has registered as a baseline of this task."""
        given = self.named[name]
        program = self._programs.get(name)
        if program is None:
            program = Program(given["source"], given["source"])
            program.build = self._build(given, lambda _: None)
            if program.build["status"]:
                raise faults.Fault(program.build["status"], program.build["reason"])
            program.workshop = self._workshop(program.text, program.build)
            if self._compiles_when_called(program):
                self._add_kernels(reference, program)
            self._settle_baseline(reference, program)
            self._programs[name] = program
        return self._start_baseline(reference, program)

    def _start_baseline(self, reference: ReferenceClient, program: Program) -> CandidateClient:
        timeout = FORWARD_S + FORWARD_EAGERS * self.eager_s
        client = CandidateClient(self._empty(False), timeout, self.device)
        client.waits = True  # what it holds must be gone when the candidate is timed
        try:
            self._load(client, reference, program=program)
        except BaseException:
            client.kill()
            raise
        return client

    def _settle_baseline(self, reference: ReferenceClient, program: Program) -> None:
        """Finds by what a named baseline gets the reference's weights. Raises a Fault where it is
        right by nothing that is known: what it takes with other weights would mean little.
        """
        right = self._is_right(reference, program)
        if not right and program.plan is not None and program.plan.other is not None:
            program.plan = program.plan.other
            right = self._is_right(reference, program)
        if not right:
            assert program.plan is not None
            raise faults.Fault(
                "wrong",
                "it is not right with the reference's weights, which it is known to have "
                f"{program.plan.mode}",
            )

    def _is_right(self, reference: ReferenceClient, program: Program) -> bool:
        """Whether a named baseline is right on a draw. Weights that it makes something of when it
        is constructed stay as they are constructed, in the reference, too.
        """
        client, judge = self._start_baseline(reference, program), self.verification
        assert judge is not None and program.plan is not None
        moved = reference.info["moved"]
        kept = [m and not may for m, may in zip(moved, program.plan.may_move(moved), strict=True)]
        pairs = zip(kept, judge.original, self.state, strict=True)
        try:
            with faults.faults("being tried", client):
                return judge.right_with(client, [first if k else now for k, first, now in pairs])
        finally:
            client.kill()
            client.worker.wait(10)

    def _check(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], expected: list[torch.Tensor]
    ) -> str | None:
        """Compares the calls of a window with what eager made of the same contents.

        A call that differs by more than two honest results may is judged as in verification: by
        the float64 values of its own inputs, which the reference computes now.
        """
        assert self.calibration is not None and self.verification is not None
        base = self.calibration.families["base"]
        limits = []
        for i, noise in enumerate(base.outputs):
            floor = self.calibration.floor(i).max
            # Both sides may err by a bound: the candidate, and eager which stands for the truth.
            limits.append(2 * correctness.bound_of(noise, Scale(), noise.scale, floor).max)
        calls = range(len(expected[0]))
        suspects = [
            k
            for k in calls
            if not all(
                correctness.near(got[k], wanted[k], limit)
                for got, wanted, limit in zip(outputs, expected, limits, strict=True)
            )
        ]
        # In no order that a candidate could know, as there may be no time for all.
        random.SystemRandom().shuffle(suspects)
        end = time.monotonic() + SUSPECTS_S
        for k in suspects:
            given = [t[k] for t in inputs]
            wrong = self.verification.judge_call(given, [t[k] for t in outputs])
            if wrong:
                self._caught = self.verification.kept_job([t.clone() for t in given])
                return wrong
            if time.monotonic() > end:
                break
        return None

    def _check_varied(self, i: int, outputs: list[torch.Tensor]) -> str | None:
        assert self.verification is not None
        wrong = self.verification.judge_varied(i, outputs)
        if wrong:
            self._caught, _ = self.verification.varied[i]
        return wrong

    def _deceives(self, reference: ReferenceClient) -> bool:
        """Whether a candidate is right on what it was wrong on when it was timed."""
        assert self.verification is not None and self._caught is not None
        candidate = self.candidate(reference, poison=True)
        try:
            with faults.faults("being asked again", candidate):
                return self.verification.right_again(candidate, self._caught)
        except faults.Fault:
            return False  # it fails where it is not timed, too
        finally:
            candidate.kill()

    # The verdict's figures.

    def _floor(self, ms: float = 0.0) -> dict[str, Any]:
        """The least time on the measured ceilings, under the conditions in which we time.

        Inputs always come from memory, because windows evict them from the caches; weights and
        outputs may stay in the cache where the whole working set fits. The reference's operations
        bound nobody who was done in ``ms`` without the time for them.
        """
        nbytes = self._least_bytes()
        operations = int(self.task.get("operations") or 0)
        ceilings = self.request.get("ceilings") or {}
        specs = self.request.get("specs") or {}
        memory, cache = (float(ceilings.get(k) or 0.0) for k in ("memory_gbs", "cache_gbs"))
        peak = self._peak_gflops()
        l3 = float(specs.get("l3_bytes") or 0)
        cold = nbytes
        if cache > memory and nbytes <= l3 / 2 and self.verification is not None:
            inputs = self.verification.inputs
            cold = min(nbytes, sum(t.numel() * t.element_size() for t in inputs))
        moving = self._from_memory_ms(cold, self._written() if cold == nbytes else 0)
        if moving and nbytes > cold:
            moving += (nbytes - cold) / (1e6 * cache)
        computing = operations / (1e6 * peak) if peak else 0.0
        if 0 < ms < LEFT_OUT * computing:
            operations, computing = 0, 0.0
        mostly_cached = nbytes > cold and (nbytes - cold) * memory > cold * cache
        bound = "compute" if computing > moving else "cache" if mostly_cached else "memory"
        return {
            "ms": max(moving, computing),
            "bound": bound,
            "bytes": nbytes,
            "operations": operations,
        }

    def _peak_gflops(self) -> float:
        """Returns the ceiling of the task's operations: that of float32 with fused multiply-adds,
        or where all that floats is a shorter type the tensor cores' for it.
        """
        ceilings = self.request.get("ceilings") or {}
        peak = float(ceilings.get("fp32_gflops") or 0.0)
        tensors = [s for k in ("inputs", "parameters", "outputs") for s in self.task.get(k) or []]
        types = {s["dtype"] for s in tensors if "float" in str(s.get("dtype"))}
        tensor_cores = ceilings.get("tensor_gflops") or {}
        if types and all(t in tensor_cores for t in types):
            return max(peak, *(float(tensor_cores[t]) for t in types))
        return peak

    def _written(self) -> int:
        """Returns the bytes of the outputs; of all, before they are known: as if it were a copy."""
        if self.verification is None:
            return int(self.task.get("least_bytes") or 0)
        returned = self._carried().returned or None
        return sum(t.numel() * t.element_size() for t in self.verification.outputs[:returned])

    def _least_bytes(self) -> int:
        """Returns the bytes that a call has to read and write. Of a state, a cache say, it may be
        next to nothing.
        """
        least = int(self.task.get("least_bytes") or 0)
        carried = self._carried()
        if not carried.names:
            return least
        told = [s for k in ("inputs", "outputs") for s in self.task.get(k) or []]
        return max(least - carried.bytes, sum(bytes_of(s["dtype"], s["shape"]) for s in told))

    def _from_memory_ms(self, nbytes: int, written: int) -> float:
        """Returns how long memory takes for so many bytes, of which some are written; 0 where
        nothing was measured.

        What is read beyond what is written moves as in reading alone: memory need not turn round.
        """
        ceilings = self.request.get("ceilings") or {}
        memory, reading = (float(ceilings.get(k) or 0.0) for k in ("memory_gbs", "read_gbs"))
        if not memory:
            return 0.0
        alone = max(nbytes - 2 * written, 0) if reading > memory else 0
        return (nbytes - alone) / (1e6 * memory) + (alone / (1e6 * reading) if alone else 0.0)

    # The profile.

    def _begin_profiler(self) -> None:
        """Has the process started in which the next profile is taken, where that disturbs nobody.
        It touches no GPU.
        """
        wants = self.request.get("profile") and self.device.kind == "cuda" and self._timed()
        kept = self._kept.profilers if self._kept is not None else None
        if not wants or self.level != "quick":
            if kept is not None:
                kept.keep(())
            return
        if self._profiler is None:
            assert isinstance(self.device, devices.Gpu)
            has = self.device.driver.attributes()
            self._profiler = profile_forward.Profiler(
                self.server,
                self.device,
                self._config(),
                self._limits(),
                self.fds,
                int(10 * has["major"] + has["minor"]),
                spares=kept,
                full=self.request["profile"] == ncu.FULL,
                products=trace.multiplies(self.task.get("operators") or []),
            )
        if kept is not None and not self._compilers_disturb():
            kept.keep(self._profiler.keys)
            self._profiler.ahead()

    def _prepare_profiler(self) -> None:
        """Has one of those processes begin on the GPU, for this candidate or the next one."""
        if self._profiler is not None:
            self._profiler.begin()

    def _wait_for_profiler(self) -> None:
        """Waits until none of them begins. Nothing may be timed before, nor a clock looked at."""
        if self._kept is not None:
            with self.costs.part("profile"):
                self._kept.profilers.wait_for_prepared()

    def _profile(
        self, reference: ReferenceClient, v: dict[str, Any], learned: dict[str, Any]
    ) -> None:
        """Adds the profile of a correct candidate, and that of eager. It explains, and decides
        nothing.
        """
        profiler = self._profiler
        if profiler is None or v["candidate_ms"] <= 0:
            return
        self.progress("profile", self.level)
        if not self._read:
            self._begin_facts()

        def kernels() -> Sequence[dict[str, Any]]:
            self._add_facts(v)
            return v["build"].get("kernels") or []

        with self.costs.part("profile"):
            found = profiler.profile(self._subject(reference, self.program, kernels, True))
            v["profile"] = self._placed(found, v)
            v["metrics"] |= v["profile"]["position"]
        known = self.known.get("profile")
        if isinstance(known, dict):
            v["eager_profile"] = self._placed(known, v)
            return
        self._begin_profiler()  # nothing is timed any more, and the next candidate's comes soon
        text = f"{self.task['source']}\n\nModelNew = Model\n"
        with self.costs.part("profile of eager"):
            eager = profiler.profile(self._subject(reference, Program(text, text), list, False))
        v["eager_profile"] = self._placed(eager, v)
        if not profiler.passing:
            learned["profile"] = eager

    def _placed(self, profile: dict[str, Any], v: dict[str, Any]) -> dict[str, Any]:
        """Returns a profile with its position below the ceilings, which are measured anew at times:
        what is remembered has none.
        """
        ceilings = self.request.get("ceilings") or {}
        return profile | {
            "position": profile_forward.position(profile, ceilings, v["floor"]["bytes"])
        }

    def _subject(
        self,
        reference: ReferenceClient,
        program: Program,
        kernels: Callable[[], Sequence[dict[str, Any]]],
        custom: bool,
    ) -> profile_forward.Subject:
        assert self.verification is not None
        draw = self.verification.draws[0]
        return profile_forward.Subject(
            lambda client: self._load(client, reference, program=program),
            draw.tree,
            draw.tensors,
            kernels,
            custom,
            reference.orders,
            FORWARD_S + FORWARD_EAGERS * self.eager_s,
        )

    def _add_launches(self, v: dict[str, Any]) -> None:
        """Adds what a profiler saw of the exported file: it explains, and decides nothing."""
        ran = self._looked
        if ran is None or not ran.launches:
            return
        v["work"]["launches"] = [asdict(launch) for launch in ran.launches]
        v["metrics"]["launches"] = float(sum(launch.count for launch in ran.launches))
        ms = v["candidate_ms"]
        if ms <= 0 or ran.span_ms <= 0:
            return
        v["timing"]["candidate"]["span_ms"] = ran.span_ms
        if abs(ran.span_ms - ms) > SPAN_SHARE * ms + SPAN_MS:
            v["timing"].setdefault("notes", []).append(
                f"a profiler in a new interpreter sees {1e3 * ran.span_ms:.1f} us from a call's "
                f"first kernel to the end of its last, the clock {1e3 * ms:.1f} us"
            )

    def _fill(self, v: dict[str, Any], timed: Any) -> None:
        v["timing"] = timed.report
        ms = float(timed.report["candidate"]["median_ms"])
        v["candidate_ms"] = ms
        v["baselines"] = {
            n: m["median_ms"] for n, m in (timed.report.get("baselines") or {}).items()
        }
        v["speedup"] = timed.speedup
        v["speedups"] = timed.speedups
        if ms <= 0:
            return
        floor = v["floor"] = self._floor(ms)
        v["headroom"] = min(1.0, floor["ms"] / ms)
        ceilings = self.request.get("ceilings") or {}
        gbs, gflops = floor["bytes"] / (1e6 * ms), floor["operations"] / (1e6 * ms)
        build = v["build"]
        metrics = {
            "threads": float(self.threads),
            "achieved_gbs": gbs,
            "achieved_gflops": gflops,
            "working_set_bytes": float(floor["bytes"]),
            "vectorised_loops": float(len(build.get("vectorised") or [])),
            "missed_loops": float(len(build.get("missed") or [])),
            **timed.metrics,
        }
        if from_memory := self._from_memory_ms(floor["bytes"], self._written()):
            metrics["memory_share"] = from_memory / ms
        if ceilings.get("cache_gbs"):
            metrics["cache_share"] = gbs / float(ceilings["cache_gbs"])
        if peak := self._peak_gflops():
            metrics["compute_share"] = gflops / peak
        if self.task.get("operations") and not floor["operations"]:
            del metrics["achieved_gflops"]
            metrics.pop("compute_share", None)
        if ceilings.get("call_us"):
            calls = v["metrics"].get("custom_calls", 0.0)
            metrics["call_overhead_share"] = min(
                1.0, calls * float(ceilings["call_us"]) / (1e3 * ms)
            )
        v["metrics"] |= metrics

    def _success(self, v: dict[str, Any]) -> str:
        assert self.verification is not None
        n = len(self.verification.report.families)
        said = f"agrees with float64 on {n} input families"
        s = v["speedup"]
        if s:
            word = f"{s['value']:.2f}x the speed of"
            if s["high"] < 1:
                word = f"slower than the baseline: {word}"
            elif s["low"] <= 1 and s["high"] > SHARED.vague_ratio * s["low"]:
                word = f"too wide an interval to tell: {word}"
            elif s["low"] <= 1:
                word = f"no measurable difference: {word}"
            said += f"; {word} {s['against']} ({s['low']:.2f} to {s['high']:.2f})"
        return said


# Of a window, for calls that differ from eager's. Where ties make every call differ, a random part
# of them is judged: a candidate does not know which.
SUSPECTS_S = 0.5


def _failed(build: Future[dict[str, Any]]) -> bool:
    """Whether it is known by now that a candidate is not built."""
    return build.done() and (build.exception() is not None or bool(build.result()["status"]))


def _parsed(build: Future[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns what was read of a candidate that comes later, as far as it was."""
    if not build.done() or build.cancelled() or build.exception() is not None:
        return None
    built = build.result()
    return {"language": built["language"], "form": built["build"]["form"]}


def _known(value: Any) -> dict[str, Any] | None:
    return {"baselines": value} if isinstance(value, dict) else None


def tried(who: str, workers: Sequence[Spawned]) -> list[str]:
    """Says what workers tried that is not their business, a sentence for each kind."""
    refused: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for w in workers:
        refused.update(w.refused)
        files.update(w.files)
    said: list[str] = []
    for what, found in (
        ("tried what the sandbox refuses", refused),
        ("asked for files that are not its own", files),
    ):
        times = [n if k == 1 else f"{n} ({k} times)" for n, k in found.most_common(faults.NAMED)]
        if len(found) > faults.NAMED:
            times.append(f"and {len(found) - faults.NAMED} more")
        if times:
            said.append(f"{who} {what}: {sentence(', '.join(times))}")
    return said


def _no_measurement() -> dict[str, Any]:
    return {
        "median_ms": 0.0,
        "p25_ms": 0.0,
        "p75_ms": 0.0,
        "low_ms": 0.0,
        "high_ms": 0.0,
        "repetitions": 0,
        "clock": "",
        "event_ms": 0.0,
        "wall_ms": 0.0,
    }


def evaluate(
    server: Any,
    request: dict[str, Any],
    fds: Sequence[int] = (),
    progress: Progress = lambda _s, _n: None,
    learn: Learn = lambda _: None,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Returns {"verdict", "learned"}. Raises Infrastructure, and Ill.

    ``learn`` is given parts of "learned" as they are known: they take most of a first evaluation,
    and stay true when it does not end. ``kept`` is used, and filled again.
    """
    e = Evaluation(server, request, fds, progress, learn, kept)
    try:
        return e.run()
    except (faults.InCompany, faults.NoRoom):
        if not e.had_company:
            raise
    return Evaluation(server, request, fds, progress, learn, kept, company=False).run()


def baselines(
    server: Any,
    request: dict[str, Any],
    fds: Sequence[int] = (),
    progress: Progress = lambda _s, _n: None,
    learn: Learn = lambda _: None,
) -> dict[str, Any]:
    """Measures the baselines of a task alone.

    Returns {"baselines", "learned"}. Raises Infrastructure, and Ill.
    """
    e = Evaluation(server, {"candidate": {"source": ""}, **request}, fds, progress, learn)
    return e.run_baselines()
