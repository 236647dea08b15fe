"""What a candidate is held against: the sentinel, PyTorch's baselines and named ones, timed before
any process lives that has met the candidate.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from kwharness.base.configs import ReferenceConfig
from kwharness.base.constants import SHARED
from kwharness.base.learned import Learned, Record
from kwharness.clients.client import Client
from kwharness.clients.errors import WorkerError, WorkerFailure
from kwharness.clients.reference_client import ReferenceClient
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.referee import faults, profiles
from kwharness.referee.builds import Build, Builds
from kwharness.referee.context import Context
from kwharness.referee.named_baselines import NamedBaselines
from kwharness.referee.processes import LOAD_S, Processes
from kwharness.referee.timed_calls import TimedCalls
from kwharness.referee.trial import Trial
from kwharness.referee.warm_pool import SharedTiming
from kwharness.timing import device_timing
from kwharness.timing.baselines import BaselineFailed
from kwharness.timing.budgets import Budget
from kwharness.timing.input_pool import Contents
from kwharness.timing.timing import Timing
from kwharness.timing.window_session import TimedWorker
from kwharness.verify import secret_draws

COMPILE_S = 300.0  # a baseline's first call compiles
DRAWS, DRAWS_BYTES = 64, 1 << 30  # at once, at most
EARLY_BYTES = 256 << 20  # of a call: what eager is timed on is kept while a candidate is verified


class Opponents:
    """Those of one evaluation."""

    def __init__(self, processes: Processes, builds: Builds) -> None:
        context = processes.context
        self.context: Context = context
        self.processes = processes
        self.builds = builds
        self.named = NamedBaselines(context.request.timed.named, builds)
        self.before: SharedTiming | None = None  # what the batch has been timed with
        if context.batch is not None and context.memory.shares_timing:
            self.before = context.batch.timed_on(context.task.source)
        self._prepared: Timing | None = None
        self._drawn: list[list[torch.Tensor]] = []  # contents of timed calls that wait for theirs

    # What is known.

    def wanted(self) -> list[str]:
        """Returns the names of all baselines."""
        return [*(self.context.request.timed.want_baselines or SHARED.baselines), *self.named.named]

    def eager_is_known(self) -> bool:
        """Whether the first that is timed will be the sentinel, and nothing else of it: where it
        takes long to begin, its process is begun early.
        """
        context, known = self.context, self.context.request.known
        wants = context.times and bool(known.calibration)
        return (
            wants
            and context.device.slow_to_begin
            and (known.baselines or {}).keys() >= set(self.wanted())
        )

    def sentinel_is_known(self) -> bool:
        """Whether one of the same batch was timed a moment ago."""
        shares = self.context.level == "quick" and self.context.device.outlasts_candidates
        return shares and self.before is not None and self.before.recent()

    def forget(self) -> None:
        """Forgets what was timed: that had other weights."""
        self._prepared = self.before = None

    # They are timed.

    def begin(self) -> None:
        """Has the sentinel's process started, where nothing else is timed before it."""
        if self.eager_is_known() and not self.sentinel_is_known():
            self.processes.begin_eager()

    def time_beside(self, build: Build, calls: TimedCalls) -> None:
        """On a GPU, and where there are cores enough, times the sentinel while a compiler works."""
        context, trial = self.context, calls.trial
        build.add_done_callback(lambda _: self.builds.compiling.set())
        if context.compilers_disturb() or context.in_company or not self.eager_is_known():
            return
        if self.sentinel_is_known():
            return
        if trial.input_bytes + trial.output_bytes > EARLY_BYTES:
            return
        with context.costs.part("baselines"):
            self._drawn += _draws(trial, self._at_once(trial))
        with context.costs.part("build"):
            self.builds.compiling.wait()  # before that it is the candidate that runs
        if not build.done():
            self._prepared = self._timing(calls)

    def timing(self, calls: TimedCalls) -> Timing:
        """Returns what a candidate is timed with, with baselines or the sentinel timed: no process
        may live that has met the candidate.
        """
        return self._prepared or self._timing(calls)

    def _timing(self, calls: TimedCalls) -> Timing:
        context, trial, before = self.context, calls.trial, self.before

        def spawn(name: str) -> Client:
            return self._spawn(name, trial)

        def log(note: str) -> None:
            context.progress("time", note)

        def learn(records: dict[str, Record]) -> None:
            context.learn(Learned(baselines=records))

        if before is not None and self.sentinel_is_known():
            return before.timing.for_another(
                check=calls.check, spawn_baseline=spawn, log=log, learn=learn
            )
        draw = self._draw_of(trial)
        contents: Contents | None = context.memory.contents(trial.verification, context.device)
        if contents is None and before is not None:
            contents = before.timing.contents.drawn_by(draw)
        profiles.wait_for_prepared(context)
        specs = context.request.specs
        with context.costs.part("baselines"):
            try:
                timing = Timing(
                    draw=draw,
                    outputs=trial.verification.oracle.outputs,
                    check=calls.check,
                    spawn_baseline=spawn,
                    level=context.level,
                    threads=context.threads,
                    want=self.wanted(),
                    known=context.request.known.baselines,
                    sources={
                        n: hashlib.sha256(b.source.encode()).hexdigest()
                        for n, b in self.named.named.items()
                    },
                    llc_bytes=specs.l3_bytes or None,
                    orders=trial.reference.orders,
                    log=log,
                    learn=learn,
                    leave=self._leave,
                    contents=contents,
                    budget=self._budget(),
                    device=context.device,
                )
                self._prepare(timing)
            except BaselineFailed as e:
                raise faults.of_baseline(e) from e
        self._share(timing, trial)
        return timing

    def _prepare(self, timing: Timing) -> None:
        costs = self.context.costs
        with drawing_again(self.context, timing):
            timing.prepare()
        for name, seconds in timing.spent_s.items():
            costs.moved(seconds, f"baseline {name}")

    def _share(self, timing: Timing, trial: Trial) -> None:
        """Keeps it for others of the batch."""
        context, made = self.context, trial.made
        shares = (
            context.level == "quick"
            and context.device.outlasts_candidates
            and context.memory.shares_timing
        )
        shares = shares and made.seed == CONSTRUCTION_SEED  # others' weights are not secret
        if context.batch is not None and shares:
            task = context.task.source
            context.batch.timed = SharedTiming(task, made.state, timing, time.monotonic())

    def _budget(self) -> Budget:
        usual = device_timing.of(self.context.device).budget(self.context.level)
        asked = self.context.request.timed
        rounds_s = asked.certify_s or usual.rounds_s
        return replace(usual, rounds_s=rounds_s, milestone=asked.milestone)

    def _draw_of(self, trial: Trial) -> Callable[[int], list[torch.Tensor]]:
        """Returns what draws the contents of timed calls, by their number."""
        drawn, ahead, at_once = trial.verification.draws, self._drawn, self._at_once(trial)

        def draw(i: int) -> list[torch.Tensor]:
            # The process that is timed has met none of those that another was verified with.
            if i < len(drawn):
                return drawn[i].tensors
            if not ahead:
                ahead.extend(_draws(trial, at_once))
            return ahead.pop()

        return draw

    def _at_once(self, trial: Trial) -> int:
        """Returns how many contents of timed calls are drawn at once: beside the cores asking for
        one takes longer than drawing it.
        """
        if self.context.device.on_cores:
            return 1
        return max(min(DRAWS, DRAWS_BYTES // max(trial.input_bytes, 1)), 1)

    # Their processes.

    def _spawn(self, name: str, trial: Trial) -> Client:
        client = self._started(name, trial)
        try:
            if isinstance(client, ReferenceClient):
                self._make_ready(client, name, trial)
            # What it has is freed when it is gone.
            client.waits = client.waits or self.context.memory.one_by_one
            client.tell(trial.containers(), timeout=LOAD_S)
            self.processes.nobody_but(client)
        except BaseException:
            client.kill()
            raise
        return client

    def _started(self, name: str, trial: Trial) -> Client:
        if name in self.named.named:
            return self.named.start(name, trial)
        compiles = name != "eager"
        begun = None if compiles else self.processes.eager()
        timeout = COMPILE_S if compiles else LOAD_S
        if begun is not None:
            return begun
        return self.processes.reference(compiles=compiles, timeout=timeout, timed=True)

    def _make_ready(self, client: ReferenceClient, name: str, trial: Trial) -> None:
        made = trial.made
        if name != "eager" and (fd := self.context.compiled.of(self._compiled_key())) >= 0:
            with suppress(WorkerError):  # then it compiles for itself
                client.precompiled(fd, tuned=self.context.compiled.tuned)
        if (client.seed, client.breaks) != (made.seed, made.breaks):  # known since
            eval_mode = self.context.eval_mode
            client.construct(made.seed, eval_mode=eval_mode, breaks=made.breaks)
        client.set_state(made.state)

    def _leave(self, name: str, worker: TimedWorker) -> None:
        if isinstance(worker, ReferenceClient):
            self.leave(name, worker)

    def leave(self, name: str, worker: ReferenceClient) -> None:
        """Keeps what a baseline has compiled, for other processes of it."""
        if name != "eager":
            tuned = not self.context.in_company
            with suppress(WorkerFailure):  # what was timed stands; the next one compiles for itself
                self.context.compiled.keep(self._compiled_key(), worker.compiled(), tuned=tuned)

    def _compiled_key(self) -> str:
        context = self.context
        config = context.config(ReferenceConfig).to_json()
        own = [context.task.source, config, context.eval_mode, context.device.kind]
        return json.dumps(own, sort_keys=True)


def _draws(trial: Trial, count: int) -> list[list[torch.Tensor]]:
    """Returns so many draws under secret seeds."""
    return trial.reference.draws([secret_draws.secret() for _ in range(count)])[1]


@contextmanager
def drawing_again(context: Context, timing: Timing) -> Iterator[None]:
    """Counts apart what contents cost that are not kept."""
    before = timing.contents.again_s
    try:
        yield
    finally:
        if took := timing.contents.again_s - before:
            context.costs.moved(took, "contents")
