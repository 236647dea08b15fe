"""One evaluation: from a candidate's source to a Verdict.

The candidate's faults are statuses; what this raises is infrastructure's. While the candidate is
built the reference draws its inputs and computes the first expected outputs. A candidate runs in
two processes at least: one in which it is verified, with poisoned memory and a trace, and fresh
ones in which it is timed. While a baseline is timed there is no process that has met the
candidate: one that is started ahead for it is empty, and asleep.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from kwharness.base.answers import Answer, TimedBaseline, TimedBaselines
from kwharness.base.learned import Learned
from kwharness.base.protocol import ProtocolError
from kwharness.base.requests import Request
from kwharness.base.verdicts import CorrectnessReport, SandboxReport, Verdict
from kwharness.clients.errors import WorkerError, WorkerFailure, WorkerGone, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.export import speedup_line
from kwharness.machine import health
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.health import Ill
from kwharness.process.policy import SandboxError
from kwharness.referee import builds, calibrating, called, faults, figures, measuring
from kwharness.referee.builds import Build, Builds
from kwharness.referee.context import NOBODY, Asker, Context
from kwharness.referee.exported_file import ExportedFile
from kwharness.referee.figures import Roofline
from kwharness.referee.kernel_facts import KernelFacts
from kwharness.referee.opponents import Opponents
from kwharness.referee.processes import Processes
from kwharness.referee.profiles import Profiles
from kwharness.referee.program import Program
from kwharness.referee.timed_calls import TimedCalls
from kwharness.referee.trial import Trial
from kwharness.referee.verifying import Verifying
from kwharness.referee.warm_pool import WarmPool
from kwharness.task import inspect_task
from kwharness.verify import calibrate_family


class Evaluation:
    """One request to evaluate. A step of it is a module beside this one."""

    def __init__(self, context: Context, *, company: bool = True) -> None:
        """``company``: whether the exported file may run beside its verification."""
        self.context = context
        self.start = time.monotonic()
        text = context.request.candidate.source
        self.program = Program(text, text)
        self.processes = Processes(context)
        self.builds = Builds(context)
        self.opponents = Opponents(self.processes, self.builds)
        self.profiles = Profiles(context)
        self.facts = KernelFacts(context, self.program)
        self.exported = ExportedFile(self.program, self.builds, company=company)
        self.reference: ReferenceClient | None = None  # once it is calibrated
        self.trial: Trial | None = None  # once the reference has drawn
        self.learned = Learned()
        self.verdict = _blank(context, self.processes)

    def run(self) -> Answer:
        """Raises Infrastructure, and Ill where no candidate's code had run that could have brought
        it about.
        """
        context, request = self.context, self.context.request
        with called.kept(context), ThreadPoolExecutor() as context.beside:
            self.processes.keep_warm()
            self.profiles.begin()
            self.processes.begin(True)
            self.opponents.begin()
            try:
                self._fill(context.beside.submit(self.builds.this))
                parsed = self.builds.parsed()
            except Ill as e:
                if self.processes.met:
                    raise faults.Infrastructure(str(e), e.traceback) from e
                raise
            finally:
                self.builds.close()
        if not request.order.upcoming:  # who comes next of a batch shares the sentinel
            self.processes.begin_next(sentinel=True)
        self.profiles.begin()
        self.profiles.prepare()
        met = self.profiles.met()
        at_rest = not request.order.last and self.processes.at_rest(met)
        return Answer(self.verdict, self.learned, parsed, self.profiles.passing, at_rest)

    def _fill(self, build: Build) -> None:
        """Fills the verdict in, whatever the candidate does."""
        v = self.verdict
        try:
            self._steps(build)
        except faults.Fault as e:
            if self.may_be_of_company(e):
                raise faults.InCompany(str(e)) from e
            v.status, v.reason, v.hint = e.status, str(e), e.hint
            v.evidence += e.evidence
            v.output = e.output or v.output or ""
        except (WorkerFailure, SandboxError, ProtocolError, RuntimeError, CudaError) as e:
            why = _infrastructure(e)
            if why is None:
                raise
            raise why from e
        finally:
            self._end()
        self._finish()

    def may_be_of_company(self, e: faults.Fault) -> bool:
        """Whether a fault may be the doing of who had the device, or the memory, too."""
        context = self.context
        if e.measured:
            return context.had_company
        if e.status == "timed_out":
            return context.in_company
        beside = self.exported.had_company or context.in_company
        return beside and faults.lack_of_memory(e) is not None

    def _steps(self, build: Build) -> None:
        """The steps, in their order."""
        context, v = self.context, self.verdict
        # Calibrating takes longer than what does not compile; without an idle core nothing else is
        # done sooner for being begun beside it.
        build_first = self.processes.calibration is None or context.crowded()
        if build_first:
            self._built(build)
        calls = self._drawn(build, build_first)
        trial = calls.trial
        if not build_first:
            self.opponents.time_beside(build, calls)
            self._built(build)
        if context.level == "certify":
            self.exported.write(trial)
        self._compile_called(trial)
        if self.profiles.profiler is None or context.compilers_disturb():
            self.facts.begin()  # else beside the profile, which waits for other things
        self.builds.begin_upcoming()
        if context.batch is not None and context.request.order.upcoming:
            self.processes.begin_next(sentinel=False)
        verifying = Verifying(self.opponents, self.exported, self.facts)
        subject = verifying.run(calls, self.profiles, v)
        if context.times or context.request.timed.time_baselines:
            self._alone(trial)
        if context.times:
            measuring.run(subject, self.opponents, self.facts, v, self.learned)
        elif context.request.timed.time_baselines:
            measuring.baselines(calls, self.opponents, v, self.learned)
        self.exported.add_launches(v)
        self.profiles.take(trial, self.facts, v, self.learned)
        v.status = "certified" if context.level == "certify" else "correct"
        v.reason = figures.success(len(trial.verification.report.families), v.speedup)

    def _built(self, build: Build) -> None:
        """Waits until the candidate is built."""
        with self.context.costs.part("build"):
            built = build.result()
        builds.take(built, self.program, self.builds, self.processes, self.verdict)

    def _drawn(self, build: Build, build_first: bool) -> TimedCalls:
        """Starts the reference and has it draw."""
        try:
            reference, calibration = calibrating.started(
                self.processes, self.opponents, self.learned
            )
            self.reference = reference
            if not build_first and builds.has_failed(build):
                self._built(build)  # nothing need be drawn for it
            before = self.opponents.before
            trial = Trial(self.processes, self.program, reference, calibration)
            self.trial = trial.draw(before.state if before is not None else None)
            return TimedCalls(self.trial)
        except (calibrate_family.ReferenceBroken, WorkerError) as e:
            raise faults.of_reference(e) from e

    def _alone(self, trial: Trial) -> None:
        """The boundary of the two phases: from here on nobody else has the device."""
        if not self.context.in_company:
            return
        self.builds.quiet()
        self.facts.add(self.verdict)
        self.processes.be_alone(trial.reference)
        self.profiles.begin()

    def _compile_called(self, trial: Trial) -> None:
        """Has compiled what the candidate compiles when it is called."""
        context = self.context
        if not self.program.compiles_when_called(context):
            return
        context.progress("build", "compiling what it calls")
        began = time.monotonic()
        with context.costs.part("build"):
            called.add_kernels(trial, self.program)
        self.verdict.build.seconds += time.monotonic() - began

    def _end(self) -> None:
        """Ends what nobody goes on with."""
        v, context = self.verdict, self.context
        self.processes.close()
        self.exported.close()
        if v.status:
            self.facts.begin()
        self.facts.add(v)
        if self.reference is not None and v.status and context.warm is not None:
            context.warm.give(self.reference)
        elif self.reference is not None:
            self.reference.kill()

    def _finish(self) -> None:
        """Adds what is said of every candidate, whatever came of it."""
        v, context = self.verdict, self.context
        if v.status == "certified" and self.exported.text:
            v.exported = speedup_line.with_figures(self.exported.text, v.speedup)
            v.exported_sha256 = hashlib.sha256(v.exported.encode()).hexdigest()
        if self.trial is not None:
            v.correctness = report = self.trial.verification.report
            v.evidence += report.evidence
        v.evidence += self.processes.tried()
        builds.add_later(self.program, self.processes, v)
        v.sandbox = SandboxReport(context.request.workplace.sandbox, self.processes.missing)
        v.cost_s = {k: round(s, 4) for k, s in context.costs.parts.items()}
        v.cost_s["total"] = round(time.monotonic() - self.start, 4)

    def baselines(self) -> TimedBaselines:
        """Measures the baselines and nothing else."""
        reference, calibration = calibrating.started(self.processes, self.opponents, self.learned)
        try:
            trial = Trial(self.processes, self.program, reference, calibration, "quick")
            before = self.opponents.before
            trial.draw(before.state if before is not None else None)
            records = self.opponents.timing(TimedCalls(trial)).records
            self.learned.baselines = records
            timed = {n: TimedBaseline(r.measurement, r.blocks) for n, r in records.items()}
            return TimedBaselines(timed, self.learned)
        finally:
            reference.kill()


def _blank(context: Context, processes: Processes) -> Verdict:
    request = context.request
    text = request.candidate.source.encode("utf-8", "surrogatepass")
    v = Verdict(
        level=context.level,
        task=request.task.fingerprint,
        candidate=hashlib.sha256(text).hexdigest(),
        language=request.candidate.language,
        device=request.workplace.device,
        correctness=CorrectnessReport(request.rules.precision),
        floor=Roofline.of(request, processes.carried, None).floor(),
        flags=list(request.task.flags),
    )
    v.versions = {"torch": torch.__version__, "kernelwright": request.kernelwright_version}
    return v


def _infrastructure(e: Exception) -> Exception | None:
    """Returns what is raised for what is no candidate's fault, None for what is nobody's that is
    known. What a candidate's worker raises has become a Fault: a worker's is the reference's.
    """
    if isinstance(e, WorkerFailure):
        if isinstance(e, WorkerError) and ran_out(e):
            return faults.NoRoom(e.message, e.traceback)
        if isinstance(e, (WorkerError, WorkerGone)) and e.ill:
            return inspect_task.failed(e)
        return faults.Infrastructure(f"the reference's worker: {e}", getattr(e, "traceback", ""))
    if isinstance(e, (SandboxError, ProtocolError)):
        return faults.Infrastructure(str(e))
    if ran_out(e):
        return faults.NoRoom(str(e))
    if words := health.said(str(e)):
        return Ill(health.REFEREE, words)
    return None


def evaluate(
    server: Any,
    request: Request,
    fds: Sequence[int] = (),
    asker: Asker = NOBODY,
    warm: WarmPool | None = None,
) -> Answer:
    """Evaluates a candidate. ``warm`` is used, and filled again. Raises Infrastructure, and Ill."""
    first = Evaluation(Context(server, request, fds, asker, warm))
    context = first.context
    try:
        return first.run()
    except (faults.InCompany, faults.NoRoom) as e:
        if not (first.exported.had_company or context.had_company):
            raise
        evidence = "the first time it ran out of memory, while its exported file ran beside it"
        if not first.exported.had_company:
            evidence = f"judged again by itself: while others had the device, too, {e}"
    context.be_alone()
    asker = replace(asker, alone=None)
    again = Evaluation(Context(server, context.request, context.fds, asker, warm), company=False)
    again.verdict.evidence.append(evidence)
    return again.run()


def baselines(
    server: Any, request: Request, fds: Sequence[int] = (), asker: Asker = NOBODY
) -> TimedBaselines:
    """Measures the baselines of a task alone. Raises Infrastructure, and Ill."""
    return Evaluation(Context(server, request, fds, asker)).baselines()
