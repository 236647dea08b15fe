"""A candidate's processes, each of which is visited once."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from kwharness.attribution.stack_samples import Sampler, Seen
from kwharness.base.operations import Failure
from kwharness.clients.errors import WorkerError, ran_out
from kwharness.machine.cuda_driver import CudaError
from kwharness.timing import window_samples
from kwharness.timing.visit import Settled, Visit
from kwharness.timing.window_base import TOOK_MEMORY, CallFailed
from kwharness.timing.window_runner import REPETITIONS, Runner
from kwharness.timing.window_session import Session, TimedWorker

WATCHED = {"quick": 4, "certify": 16}  # windows of a process
WATCHED_PROCESSES = 8  # at most: more than one while it is not sure what was seen
# A candidate's windows are waited for so long, all together, and for what so many calls may take.
PATIENCE_S, PATIENCE_CALLS, PATIENCE_EAGERS = 90.0, 256, 200.0

Spawn = Callable[[], TimedWorker]


class CandidateVisits:
    """Visits processes of one candidate, and what is found out beside their times."""

    def __init__(self, runner: Runner, spawn: Spawn, eager_s: float) -> None:
        """``eager_s`` is what a call of eager takes."""
        self._runner = runner
        self._spawn = spawn
        self._patience_s = PATIENCE_S + PATIENCE_CALLS * PATIENCE_EAGERS * eager_s  # what is left
        self.seen = Seen()
        self.counts: dict[str, float] = {}  # of one call

    def look_into(self) -> str | None:
        """Sees whose code is at work, in as many processes as it takes to be sure. Returns what is
        wrong in an output.
        """
        for _ in range(WATCHED_PROCESSES):
            _, wrong = self.visit(0.0, watched=True)
            if wrong is not None or not self.seen.unsure():
                return wrong
        return None

    def visit(
        self,
        seconds: float,
        owed: int = REPETITIONS,
        *,
        watched: bool = False,
        settled: Settled | None = None,
    ) -> tuple[list[window_samples.Sample], str | None]:
        """Returns what a new process shows, and one sentence where an output is wrong.

        ``watched``: what it does is looked at, in a process that cannot tell itself from those that
        are timed; stopping it again and again disturbs what comes after.
        """
        worker = self._spawn()
        began = time.monotonic() - self._runner.contents.again_s
        try:
            session = self._runner.session(worker, "")
            session.until = began + self._patience_s
            wrong = self._runner.warm_up(session, trusted=False)
            if wrong is not None:
                return [], wrong
            if watched:
                return [], self._watch(session)
            return self._timed(worker, session, lambda v: v.run(seconds, owed, settled))
        except (torch.OutOfMemoryError, CudaError, WorkerError) as e:
            # The reference's worker may say so: it draws, and computes what is expected.
            if not ran_out(e) or not worker.took_memory():
                raise
            error = Failure(TOOK_MEMORY, "the GPU's memory ran out")
            raise CallFailed(error) from e
        finally:
            self._patience_s -= time.monotonic() - self._runner.contents.again_s - began
            worker.kill()

    def _timed(
        self,
        worker: TimedWorker,
        session: Session,
        run: Callable[[Visit], list[window_samples.Sample]],
    ) -> tuple[list[window_samples.Sample], str | None]:
        runner = self._runner
        visit = Visit(runner, session, checked=True, trusted=False)
        block = run(visit)
        if visit.wrong is not None:
            return block, visit.wrong
        if not self.counts and runner.device.on_cores:
            self.counts = session.count(runner.contents.met(runner.plan.other))
        session.close()
        last, visit.last = visit.last, None
        if last is None:
            return block, None
        worker.kill()  # there may be no room for what is expected beside it
        return block, runner.checks.timed(last)

    def _watch(self, session: Session) -> str | None:
        """Looks, in fresh windows, at whose code is at work. Returns what is wrong in an output."""
        sampler, pool = Sampler(session.worker.pid, self.seen), self._runner.contents
        for _ in range(WATCHED[self._runner.level]):
            rows = pool.take(self._runner.plan.fresh)
            if not rows:
                break
            wrong = self._runner.checks.timed(session.run("fresh", rows, look=sampler.look))
            if wrong is not None:
                return wrong
        session.close()
        return None
