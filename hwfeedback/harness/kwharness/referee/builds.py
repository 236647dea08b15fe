"""Builds of an evaluation's candidates: this one, and those that come after it."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress

import kernelwright
from kwharness.base.built import BuildResult, Made
from kwharness.base.requests import Candidate, NamedBaseline
from kwharness.base.verdicts import Read, Verdict
from kwharness.build import build_process, builder_client
from kwharness.clients.errors import sentence
from kwharness.clients.workshop import Workshop
from kwharness.referee import faults
from kwharness.referee.context import Context
from kwharness.referee.processes import Processes
from kwharness.referee.program import Program

Build = Future[BuildResult]


class Builds:
    """Those of one evaluation."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.compiling = threading.Event()  # the candidate's own part of its build is over
        self.upcoming: list[Build] = []  # of the candidates that come after this one

    def this(self) -> BuildResult:
        """Builds the candidate."""
        batch, candidate = self.context.batch, self.context.request.candidate
        begun = batch.begun(candidate.source) if batch is not None else None
        if begun is not None and not begun.cancelled():
            with suppress(Exception):  # it is built now, and fails again or does not
                begun.result()
        return self.build(candidate, self._building)

    def build(
        self, candidate: Candidate | NamedBaseline, progress: Callable[[str], None]
    ) -> BuildResult:
        context = self.context
        place = context.request.workplace
        # Else it is imported where the device is there; but calibrating takes longer than what does
        # not compile.
        tries = not context.device.slow_to_begin or not context.request.known.calibration
        return builder_client.build(
            context.server,
            candidate,
            place.cache_dir,
            place.device,
            place.sandbox,
            progress,
            context.device.arch(),
            trial=builder_client.TRIAL if tries else builder_client.NO_TRIAL,
            forbids=context.rules.requires_custom,
            keeps=not context.rules.explain,
        )

    def workshop(self, text: str, made: Sequence[Made], *, whole: bool = False) -> Workshop:
        """Returns where the processes of a program ask for what it builds later."""
        context = self.context
        cache, mode = context.request.workplace.cache_dir, context.request.workplace.sandbox
        return builder_client.workshop(
            context.server, text, made, cache, mode, context.device.arch(), whole=whole
        )

    def _building(self, note: str) -> None:
        if note.startswith(build_process.COMPILING):
            self.compiling.set()
        self.context.progress("build", note)

    # Of what comes next.

    def begin_upcoming(self) -> None:
        """Begins to build what is judged after this, into the cache, as far as there are cores."""
        batch = self.context.batch
        if batch is None:
            return
        cores = len(os.sched_getaffinity(0))
        for c in self.context.request.order.upcoming[:cores]:
            work = functools.partial(self.build, c, lambda _: None)
            self.upcoming.append(batch.build(c.source, work, max(1, cores // 2)))

    def quiet(self) -> None:
        """Waits until nobody builds: on a CPU that would disturb what is timed; beside a GPU it
        takes cores that nobody else needs, where there are some.
        """
        if self.upcoming and self.context.compilers_disturb():
            with self.context.costs.part("upcoming"):
                wait(self.upcoming)

    def close(self) -> None:
        """Waits for them where the next candidate would be disturbed."""
        if self.context.compilers_disturb():
            wait(self.upcoming)

    def parsed(self) -> list[Read | None]:
        """Returns what was read of each that comes later, as far as it was."""
        return [_read(b) for b in self.upcoming]


def _read(build: Build) -> Read | None:
    if not build.done() or build.cancelled() or build.exception() is not None:
        return None
    built = build.result()
    return Read(built.language, built.build.form or "")


def has_failed(build: Build) -> bool:
    """Whether it is known by now that a candidate is not built."""
    return build.done() and (build.exception() is not None or bool(build.result().status))


def take(
    built: BuildResult, program: Program, builds: Builds, processes: Processes, v: Verdict
) -> None:
    """Gives a program what was built for it, and the verdict what is said of that. Raises the Fault
    of a candidate that is not built.
    """
    program.build = built
    v.build = dataclasses.replace(built.build)
    if built.cutlass and (folders := kernelwright.cutlass_folders()):
        v.versions["cutlass"] = kernelwright.cutlass_version(folders)
    v.language = v.language or built.language
    processes.missing = built.missing
    if built.status:
        raise faults.Fault(built.status, built.reason)
    program.workshop = builds.workshop(program.text, built.known())


def add_later(program: Program, processes: Processes, v: Verdict) -> None:
    """Adds what came of extensions that were asked for later, and says first what of it the
    candidate had to do without.
    """
    v.evidence += v.build.flags or []
    shop = program.workshop
    if shop is None:
        return
    known = {m.request["request"] for m in program.built.known()}
    later = [m for m in shop.made if m.request["request"] not in known]
    v.evidence += builder_client.add_reports(v.build, program.text, later)
    v.build.seconds += sum(c.built_s for c in processes.met)
    if later and v.build.form in ("", "none"):
        v.build.form = later[-1].request["kind"]
    if shop.late:
        v.evidence.append(
            f"after its first forward it asked for builds that took {sum(shop.late):.1f} s: "
            "that is its own time"
        )
    if shop.failures:
        _say_first(builder_client.told(shop.failures), shop.failures[0].reason, v)


def _say_first(said: str, reason: str, v: Verdict) -> None:
    v.evidence.insert(0, f"not built: {said}")
    if not v.reason.startswith(reason):
        v.reason = sentence(f"{said}; what ran without it: {v.reason}")
