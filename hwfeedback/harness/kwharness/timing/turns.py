"""Baselines that take turns with a candidate, and the processes that they stay in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kwharness.timing import window_samples
from kwharness.timing.baselines import BaselineFailed
from kwharness.timing.stopped import Stopped
from kwharness.timing.visit import Visit
from kwharness.timing.window_runner import REPETITIONS, Runner
from kwharness.timing.window_session import Session, TimedWorker

ROUNDS = 6
SLOW_SPAWN_S = 1.0  # a baseline this slow to start lives for half of the rounds,
STAYS_S = 6.0  # and one this slow for all of them: max-autotune compiles for half a minute
ASIDE_BYTES = 3 << 29  # that a process may have which stays although there is little room


class Lost(Exception):
    """A baseline failed while it took turns with the candidate."""

    def __init__(self, name: str, why: Exception) -> None:
        super().__init__(f"baseline {name} failed while it was timed: {why}")
        self.name = name


@contextmanager
def of_a_baseline() -> Iterator[None]:
    """What fails here is no candidate's fault."""
    try:
        yield
    except (BaselineFailed, Lost):
        raise
    except Exception as e:
        raise BaselineFailed(f"a baseline that was timed before failed: {e}") from e


@dataclass
class Held:
    """A baseline's process that stays."""

    worker: TimedWorker
    session: Session | None
    spawn_s: float
    room: int  # bytes of memory that were free before it was there
    stopped: Stopped
    has: int | None = None  # bytes of its own, without contents


class Turns:
    """The baselines' side of rounds."""

    def __init__(
        self,
        runner: Runner,
        spawn: Callable[[str], TimedWorker],
        leave: Callable[[str, TimedWorker], None],
    ) -> None:
        """See Timing for ``spawn``, its ``spawn_baseline``, and ``leave``."""
        self._runner = runner
        self._spawn = spawn
        self._leave = leave
        self._held: dict[str, Held] = {}

    def end(self) -> None:
        """Kills what stays."""
        for h in self._held.values():
            h.worker.kill()

    def before(self, name: str, round_: int) -> list[window_samples.Sample]:
        """Returns the visit of a baseline before the candidate's. Raises Lost."""
        return _of(name, self._in_turn, name, round_)

    def after(self, name: str, round_: int) -> list[window_samples.Sample]:
        """Returns its visit after the candidate's. Raises Lost."""
        return _of(name, self._second_turn, name, round_)

    def _in_turn(self, name: str, round_: int) -> list[window_samples.Sample]:
        """Returns a visit of a baseline, whose process stays where there is room for it."""
        visit = self._hold(name, round_)
        self._put_aside(name)
        return visit

    def _second_turn(self, name: str, round_: int) -> list[window_samples.Sample]:
        if name not in self._held:
            return self._in_turn(name, round_)
        visit = self._held_visit(self._held[name], name)
        self._put_aside(name)
        return visit

    def _held_visit(self, h: Held, name: str) -> list[window_samples.Sample]:
        if h.session is None:
            h.stopped.go_on()
            h.session = self._runner.session(h.worker, name)
        self._runner.warm_up(h.session, trusted=True)
        return self._baseline_visit(h.session)

    def _put_aside(self, name: str) -> None:
        """Where there is room for the blocks of one worker at a time, takes a baseline's away. Its
        process stays, with what it has compiled, unless that has much memory of its own.
        """
        h = self._held[name]
        if not self._runner.contents.large:
            return
        assert h.session is not None
        has = h.session.close()
        h.session = None
        if h.has is None:
            self._leave(name, h.worker)
        h.stopped.stop()
        # What is less than before the reference may have, which keeps more as it goes.
        if has is not None:
            h.has = has
        elif h.has is None:
            h.has = h.room - self._runner.device.unused_bytes()
        if h.has > ASIDE_BYTES:
            self._held.pop(name).worker.kill()

    def _hold(self, name: str, round_: int) -> list[window_samples.Sample]:
        """Returns a visit of a baseline, in a new process where one is due."""
        h = self._held.get(name)
        half = round_ == ROUNDS // 2 and h is not None and h.spawn_s <= STAYS_S
        if h is not None and (h.spawn_s <= SLOW_SPAWN_S or half):
            h.worker.kill()
            del self._held[name]
            h = None
        if h is not None:
            return self._held_visit(h, name)
        start = time.perf_counter() - self._runner.contents.again_s
        room = self._runner.device.unused_bytes()
        worker = self._spawn(name)
        try:
            session = self._runner.session(worker, name)
            self._runner.warm_up(session, trusted=True)
        except BaseException:
            worker.kill()
            raise
        spawn_s = time.perf_counter() - self._runner.contents.again_s - start
        self._held[name] = Held(worker, session, spawn_s, room, Stopped(worker.pid))
        return self._baseline_visit(session)

    def _baseline_visit(self, session: Session) -> list[window_samples.Sample]:
        visit = Visit(self._runner, session, checked=False, trusted=True)
        return visit.run(self._runner.budget.visit_s, REPETITIONS // ROUNDS)


def _of(
    name: str, visit: Callable[..., list[window_samples.Sample]], *given: Any
) -> list[window_samples.Sample]:
    try:
        return visit(*given)
    except Exception as e:
        raise Lost(name, e) from e
