"""The step in which a candidate is verified: compared, traced, held to policy, and asked what it
takes for granted.
"""

from __future__ import annotations

from kwharness.attribution import trace
from kwharness.base.for_candidate import Traced
from kwharness.base.verdicts import Verdict
from kwharness.clients.candidate_client import CandidateClient
from kwharness.model import weights
from kwharness.referee import construction_seeds, custom_code, faults, granted
from kwharness.referee.exported_file import ExportedFile
from kwharness.referee.kernel_facts import KernelFacts
from kwharness.referee.opponents import Opponents
from kwharness.referee.profiles import Profiles
from kwharness.referee.subject import Subject
from kwharness.referee.timed_calls import TimedCalls
from kwharness.referee.trial import Trial
from kwharness.verify import findings, verify


class Verifying:
    """What it needs of an evaluation."""

    def __init__(self, opponents: Opponents, exported: ExportedFile, facts: KernelFacts) -> None:
        self.opponents = opponents
        self.exported = exported
        self.facts = facts

    def run(self, calls: TimedCalls, profiles: Profiles, v: Verdict) -> Subject:
        """Returns a candidate that is right. Raises a Fault for one that is not."""
        trial = calls.trial
        context, program, made = trial.context, trial.program, trial.made
        context.progress("verify", context.level)
        if context.device.slow_to_begin and context.times:
            trial.processes.begin(False)
        profiles.prepare()
        candidate = self._first(trial)
        v.weights = trial.plan.mode
        v.evidence += trial.plan.evidence()
        if made.breaks:
            v.evidence.append(weights.moved_at_construction(made.breaks))
        seen = self._compare(trial, candidate, v)
        construction_seeds.under_other_seeds(trial)
        called = bool(program.called(context))
        own = any(a.libraries is None or called for a in program.artifacts())
        work, custom_calls = trace.report(seen, own)
        v.work = trace.report(seen, own, regions=True)[0]
        v.metrics |= {
            "custom_share": work.custom,
            "vendor_share": work.vendor,
            "pytorch_share": work.pytorch,
            "custom_calls": float(custom_calls),
        }
        if context.rules.requires_custom:
            custom_code.was_built(trial)
            custom_code.does_the_work(trial, seen, work, custom_calls)
        if context.rules.runs_standalone:
            with context.costs.part("cold"):
                self.exported.check(trial, self.facts, v)
        with context.costs.part("assumptions"):
            granted.assume(trial, v)
        return Subject(trial, calls, trace.not_custom(seen, work))

    def _first(self, trial: Trial) -> CandidateClient:
        """Starts the process that is verified: at certify that of the exported file, once it is
        known on which shapes the candidate is right.
        """
        candidate = construction_seeds.first(trial, self.opponents.forget)
        if trial.context.level != "certify":
            return candidate
        candidate.kill()
        with trial.context.costs.part("verify"):
            granted.try_other_shapes(trial, trial.reference.orders)
        self.exported.write(trial, trial.verification.tried)
        try:
            return trial.candidate(poison=True)
        except faults.Fault:
            if not self.exported.leaves_the_rebuild(trial):
                raise
            return trial.candidate(poison=True)

    def _compare(self, trial: Trial, candidate: CandidateClient, v: Verdict) -> Traced:
        """Compares what it computes, and returns a traced forward of it."""
        verification, kept = trial.verification, -faults.OUTPUT_KEPT
        try:
            self.exported.begin_beside(trial)
            with trial.verifying(candidate), faults.faults("verifying it", candidate):
                try:
                    verify.run(verification, candidate, lambda: trial.candidate(poison=True))
                except findings.Failed as e:
                    log = candidate.worker.log()[kept:]
                    candidate.kill()
                    stale = construction_seeds.keeps_what_it_computed(trial, e)
                    why, hint = stale or (str(e), e.hint)
                    raise faults.Fault(e.status, why, hint, (), log) from e
            with (
                trial.context.costs.part("trace"),
                faults.faults("tracing it", candidate),
            ):
                draw = verification.draws[0]
                seen = candidate.trace(draw.tree, draw.tensors)
            v.output = candidate.worker.log()[kept:]
        finally:
            candidate.kill()
            trial.context.memory.rest(trial.reference)
        return seen
