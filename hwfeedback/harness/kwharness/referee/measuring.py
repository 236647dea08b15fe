"""The step in which a candidate is timed, and what its times say of it."""

from __future__ import annotations

from dataclasses import replace

from kwharness.base.learned import Learned
from kwharness.base.protocol import ProtocolError, Timeout
from kwharness.base.verdicts import Verdict
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerError, how_it_ended
from kwharness.referee import faults, figures, memory, packing, profiles
from kwharness.referee.figures import Roofline
from kwharness.referee.kernel_facts import KernelFacts
from kwharness.referee.opponents import Opponents, drawing_again
from kwharness.referee.processes import LOAD_S
from kwharness.referee.subject import Subject
from kwharness.referee.timed_calls import TimedCalls
from kwharness.referee.trial import Trial
from kwharness.timing import window_base
from kwharness.timing.baselines import BaselineFailed
from kwharness.timing.timing import Timed, Timing
from kwharness.timing.window_base import CallFailed


def run(
    subject: Subject, opponents: Opponents, facts: KernelFacts, v: Verdict, learned: Learned
) -> None:
    """Times a candidate that is right. Raises a Fault for one that is wrong then, or deceives."""
    trial = subject.trial
    context = trial.context
    opponents.builds.quiet()
    facts.add(v)
    profiles.wait_for_prepared(context)
    context.progress("time", context.level)
    trial.reference.set_state(trial.made.state)
    candidates = Candidates(trial)
    try:
        with context.costs.part("time"):
            trial.processes.begin(False)
            timing = opponents.timing(subject.calls)
            varied = [j.inputs for j, _ in trial.verification.varied]
            timing.vary(varied, subject.calls.check_varied)
            with drawing_again(context, timing):
                timed = candidates.measure(timing, subject.traced)
    finally:
        candidates.kill()
        memory.let_go(trial.reference)
    if timed.records:
        learned.baselines = timed.records
    _convict(timed, subject, v)
    figures.check_possible(timed, context.request)
    roofline = Roofline.of(context.request, trial.processes.carried, trial.verification)
    figures.fill(v, timed, roofline, context.threads)
    if context.level == "certify":
        packing.note(trial, v.timing)


def baselines(calls: TimedCalls, opponents: Opponents, v: Verdict, learned: Learned) -> None:
    """Times what candidates are held against, for a task that has none yet."""
    trial = calls.trial
    opponents.builds.quiet()
    trial.reference.set_state(trial.made.state)
    try:
        records = opponents.timing(calls).records
    finally:
        memory.let_go(trial.reference)
    learned.baselines = records
    v.baselines = {n: r.measurement.median_ms for n, r in records.items()}
    request = trial.context.request
    roofline = Roofline.of(request, trial.processes.carried, trial.verification)
    v.floor = roofline.floor(min(v.baselines.values()))


def _convict(timed: Timed, subject: Subject, v: Verdict) -> None:
    """Raises a Fault for what timing found."""
    rules = subject.trial.context.rules
    if timed.wrong:
        hint = "compute every output in every call, from that call's input"
        if subject.calls.deceives():
            said = "asked again outside the clock it is right on the same input"
            raise faults.Fault("cheated", f"{timed.wrong}; {said}", hint)
        raise faults.Fault("wrong", timed.wrong, hint)
    if timed.excess and not rules.explain:
        raise faults.Fault(
            "rejected", timed.excess, "start as many threads as OMP_NUM_THREADS says, no more"
        )
    if timed.hides:
        raise faults.Fault("cheated", timed.hides, "leave the clock and the harness alone")
    objects = [a.path for a in subject.trial.program.artifacts()]
    if timed.seen.too_much(objects):
        said = (
            f"PyTorch was at work in {len(timed.seen.pytorch)} of {timed.seen.looks} looks "
            f"into timed calls; when operators were listed it took {subject.traced:.0%} of "
            "the time"
        )
        if rules.requires_custom:
            hint = "compute in the same way whether or not anybody looks"
            raise faults.Fault("cheated", said, hint, measured=True)
        v.evidence.append(said)  # anybody's code may do the work


class Candidates:
    """The processes in which a candidate is timed, one after the other."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.started: list[CandidateClient] = []

    def spawn(self) -> CandidateClient:
        """Starts one, and has it made ready."""
        trial = self.trial
        context = trial.context
        c = trial.candidate(poison=False)
        # A baseline is timed next: what it holds must be gone. At quick on a GPU hardly ever.
        ends_at_once = context.level == "certify" or not context.device.slow_to_begin
        c.waits = ends_at_once or context.memory.one_by_one
        self.started.append(c)
        with faults.faults("preparing to be timed", c):
            c.tell(trial.containers(), timeout=LOAD_S)
        c.builds_on_its_own()
        trial.processes.nobody_but(c)
        return c

    def kill(self) -> None:
        for c in self.started:
            c.kill()

    def measure(self, timing: Timing, traced: float) -> Timed:
        """Times it. Raises a Fault, or what says that it is the machine's."""
        with faults.faults("being timed"):
            try:
                return timing.measure(self.spawn, traced)
            except BaselineFailed as e:
                raise faults.of_baseline(e) from e
            except CallFailed as e:
                raise self._of_call(e) from e
            except ProtocolError as e:
                raise self._of_end(e) from e

    def _of_call(self, e: CallFailed) -> Exception:
        """Returns what it means that a timed call failed."""
        kind, message = e.error.type, e.error.message[:300]
        if kind == window_base.TOOK_MEMORY:
            return faults.Fault("crashed", *faults.TOOK_MEMORY)
        if kind == window_base.GPU_BUSY and self.trial.context.device.has_driver:
            faults.acquit(e, self.started)
        if kind in (window_base.RAN_ON, window_base.GPU_BUSY):
            return faults.Fault("cheated", message)
        if kind == "OutputMismatch":
            return faults.Fault("wrong", f"in a timed call: {message}", faults.HINTS["output"])
        error = WorkerError(replace(e.error, stage="forward"))
        return faults.of_build(error, self.trial.program.workshop) or error

    def _of_end(self, e: ProtocolError) -> Exception:
        """Returns what it means that a timed process does not answer."""
        if isinstance(e, Timeout) or not self.started:
            return faults.Fault("timed_out", f"a timed call took too long: {e}", faults.FASTER)
        end = self.started[-1].worker.wait(5)
        message = f"the candidate's process {how_it_ended(end)} while it was timed"
        if end is not None and end.blameless:
            return faults.Infrastructure(message)
        return faults.Fault("crashed", message)
