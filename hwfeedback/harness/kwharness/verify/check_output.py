"""Checks what a candidate gave against what is expected, by as much of it as that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kwharness.base.calibration import FamilyCalibration, Scale
from kwharness.clients.candidate_client import Answer, CandidateClient
from kwharness.numerics import correctness, families
from kwharness.numerics.correctness import Expected, Outcome
from kwharness.numerics.families import BASE, PLANTED
from kwharness.verify import calibrate, findings, secret_draws
from kwharness.verify.oracle import Oracle

# Times the bound within which one more look may tell: who is further off is wrong.
NEAR = 3.0
ELSEWHERE = 2  # more draws on which nobody may take NaN for Inf who did on one
REDRAWN = 8  # draws on which somebody is wrong by what decisions may do, before it is wrong
ELEMENT = "one_element"
ELEMENTS = {"quick": 2, "certify": 4}  # one-element perturbations
IN_A_ROW = "in_a_row"
IN_A_ROW_SAYS = "after calls in a row, its state not put back"


def _near(o: Outcome) -> bool:
    return o.error.max <= NEAR * o.bound.max and o.error.rms <= NEAR * o.bound.rms


@dataclass
class Attempt:
    """What a candidate gave for a call, and what is expected of it."""

    known: FamilyCalibration
    name: str  # of the family, or of what else is asked
    tree: Any
    inputs: Sequence[torch.Tensor]
    answer: Answer
    expected: Expected

    @classmethod
    def of(cls, job: secret_draws.Job, answer: Answer, expected: Expected) -> Attempt:
        """Returns an attempt at a job."""
        return cls(job.known, job.family.name, job.tree, job.inputs, answer, expected)


class Checker:
    """Checks one candidate's outputs, and reports."""

    def __init__(
        self, oracle: Oracle, report: findings.Report, input_names: list[str], strict: bool
    ) -> None:
        """``strict``: see Verification."""
        self._oracle = oracle
        self._strict = strict
        self.report = report
        self.input_names = input_names

    def as_kernelbench(self, answer: Answer, expected: Expected) -> None:
        """Reports whether KernelBench's own check passes."""
        assert expected.eager is not None
        self.report.kernelbench = correctness.kernelbench_passes(answer.outputs, expected.eager)

    def raised(self, job: secret_draws.Job) -> None:
        """Reports that the candidate raises on a job that gates nothing."""
        outcome = Outcome(False, Scale(), Scale(), 0, "it raises")
        self.report.add(job.known, job.family.name, [outcome])

    def check(
        self, known: FamilyCalibration, name: str, answer: Answer, expected: Expected
    ) -> bool:
        """Raises Failed. Returns False where more must be known of the expected values."""
        self._refuse(answer)
        outcomes = list(self._oracle.outcomes(known, name, answer.outputs, expected))
        unknown = expected.moved is None or (name == PLANTED.name and expected.effects is None)
        # Nobody is wrong by what was computed in parts.
        unknown = unknown or self._oracle.reference.parts is not None
        more = expected.eager is None or (known.gates and unknown)
        if more and not all(o.passed for o in outcomes):
            return False
        self.report.add(known, name, outcomes)
        if not known.gates:
            return True
        self._note_advisory(outcomes)
        for i, o in enumerate(outcomes):
            if not o.passed:
                raise self._failed(i, name, outcomes)
        self.report.either += sum(o.either for o in outcomes)
        self.report.compared += sum(t.numel() for t in expected.wide)
        return True

    def _refuse(self, answer: Answer) -> None:
        """Raises Failed where an answer is wrong whatever its values are."""
        if answer.problem:
            raise findings.Failed(
                "wrong",
                answer.problem,
                "return what the reference returns: structure, dtype, shape",
            )
        if answer.outside:
            raise findings.Failed(
                "wrong",
                "it writes outside its inputs' memory",
                "check the index arithmetic of every store",
            )
        if answer.wrote:
            which = ", ".join(self._input(i) for i in answer.wrote)
            raise findings.Failed(
                "wrong",
                f"it writes into its input {which}",
                "allocate the output instead of writing in place",
            )

    def _failed(self, i: int, name: str, outcomes: Sequence[Outcome]) -> findings.Failed:
        """Returns the failure of output i."""
        carried = self._oracle.calibration.carried
        which = f"{carried.output(i)}, " if len(outcomes) > 1 else ""
        family = families.BY_NAME.get(name)
        says = "one element moved" if family is None else family.says
        where = f"on family {name} (inputs: {says})"
        where = "on the reference's own draws" if name == BASE.name else where
        where = IN_A_ROW_SAYS if name == IN_A_ROW else where
        return findings.Failed(
            "wrong",
            f"{which}{where}: {outcomes[i].reason}",
            near=all(p.passed or _near(p) for p in outcomes),
            mixed=all(p.passed or p.mixed for p in outcomes),
            unsettled=all(p.passed or p.unsettled for p in outcomes),
            slight=all(p.passed or p.slight for p in outcomes),
        )

    def _input(self, i: int) -> str:
        return self.input_names[i] if i < len(self.input_names) else str(i)

    def _note_advisory(self, outcomes: Sequence[Outcome]) -> None:
        """Notes that NaN is dropped, or infinity lost. Raises Failed where that may not be."""
        dropped, lost = sum(o.dropped for o in outcomes), sum(o.lost for o in outcomes)
        if not all(o.passed for o in outcomes):
            return
        self.report.drops_nan |= dropped > 0
        self.report.loses_infinity |= lost > 0
        if self._strict and dropped:
            raise findings.Failed(
                "wrong",
                f"it drops NaN: {dropped} elements are what a number far away gives in its place",
                "let NaN through: fmaxf and tl.maximum give the other operand",
            )
        if self._strict and lost:
            raise findings.Failed(
                "wrong",
                f"it loses infinity: {lost} elements are NaN, where the reference's are infinite",
                "let no sum be taken apart in which infinity comes with either sign",
            )

    def check_near(self, a: Attempt) -> bool:
        """The same once the draw was looked at. Where little is missing it is looked at again, in
        more patterns, as where a timed call is wrong: one may not show how far it moves.
        """
        before = self.report.row(a.name)
        try:
            return self.check(a.known, a.name, a.answer, a.expected)
        except findings.Failed as e:
            if not e.near:
                raise
        self.report.put(a.name, before)
        self._oracle.look_closer(
            a.tree, a.inputs, a.expected, calibrate.PATTERNS, simulated=a.name != PLANTED.name
        )
        return self.check(a.known, a.name, a.answer, a.expected)

    def check_at_last(self, job: secret_draws.Job, answer: Answer) -> None:
        """Checks an answer by all that can be known. Raises Failed."""
        oracle = self._oracle
        if not self.check_near(Attempt.of(job, answer, oracle.closely(job, answer.outputs))):
            with oracle.reference.whole():
                self.check_near(Attempt.of(job, answer, oracle.closely(job)))

    def stands(
        self, candidate: CandidateClient, job: secret_draws.Job, check: Callable[[], object]
    ) -> bool:
        """Has an answer checked at last. Raises Failed. An elimination that meets NaN and infinity
        comes to either, on a draw in hundreds: who takes one for the other is wrong if he does on
        another draw, too, and False says that this one tells nothing.
        """
        before = self.report.row(job.family.name)
        try:
            check()
            return True
        except findings.Failed as e:
            if e.unsettled:
                self.report.put(job.family.name, before)
                self._settle(candidate, job)
                return False
            if not e.mixed or job.again is None:
                raise
        self.report.put(job.family.name, before)
        for _ in range(ELSEWHERE):
            other = self._other(job)
            answer, _ = self._oracle.both(candidate, other.tree, other.inputs)
            self.check_at_last(other, answer)
        return False

    def _other(self, job: secret_draws.Job) -> secret_draws.Job:
        """Returns the same on another draw, or on other inputs made from it."""
        if job.again is None:
            return replace(
                job,
                inputs=self._oracle.reference.lend(
                    self._oracle.reference.draw(secret_draws.secret())[1]
                ),
            )
        again = job.again.other()
        return replace(job, inputs=self._oracle.reference.lend(again.made()), again=again)

    def _settle(self, candidate: CandidateClient, job: secret_draws.Job) -> None:
        """Draws until it is right, or wrong by more than decisions may do. Raises Failed where it
        is wrong so. A family all of whose draws tell nothing is advisory, but for the reference's
        own: there the honest are right on one of so many.
        """
        before = self.report.row(job.family.name)
        for left in reversed(range(REDRAWN)):
            other = self._other(job)
            answer, _ = self._oracle.both(candidate, other.tree, other.inputs)
            try:
                self.check_at_last(other, answer)
                return
            except findings.Failed as e:
                if not e.unsettled or (job.family is BASE and not left):
                    raise
            self.report.put(job.family.name, before)
        known = replace(job.known, gates=False, note=findings.NEVER_SETTLED)
        self.report.add(known, job.family.name, [Outcome(False, Scale(), Scale())])

    def check_closely(self, a: Attempt, candidate: CandidateClient | None = None) -> None:
        """Raises Failed. The reference must not be at work. What is expected is of no use any more.

        A draw on which decisions fall either way tells nothing here: others were checked.
        """
        before = self.report.row(a.name)
        try:
            self._check_by_all(a, candidate)
        except findings.Failed as e:
            if not e.slight:
                raise
            self.report.put(a.name, before)

    def _check_by_all(self, a: Attempt, candidate: CandidateClient | None) -> None:
        oracle = self._oracle
        if self.check(a.known, a.name, a.answer, a.expected):
            return
        oracle.look_closer(a.tree, a.inputs, a.expected)
        if self.check_near(a):
            return
        a.expected.wide, a.expected.eager = [], None  # there may be no room for two
        if candidate is not None:
            candidate.let_go()
        with oracle.reference.whole():
            a.expected = oracle.expect(a.tree, a.inputs)
            oracle.look_closer(a.tree, a.inputs, a.expected)
            self.check_near(a)

    def wrong(
        self, job: secret_draws.Job, outputs: Sequence[torch.Tensor], expected: Expected
    ) -> str | None:
        """Returns one sentence where outputs of a timed call are wrong."""
        outcomes = self._oracle.outcomes(job.known, job.family.name, outputs, expected)
        carried = self._oracle.calibration.carried
        for i, o in enumerate(outcomes):
            which = carried.output(i) if len(outputs) > 1 else "the output"
            if o.slight:
                continue  # verification has asked on draws that tell more
            if not o.passed:
                return f"{which} of a timed call: {o.reason}"
            if o.dropped and not self.report.drops_nan:
                return f"{which} of a timed call drops NaN, which verification has not seen"
            if o.lost and not self.report.loses_infinity:
                return f"{which} of a timed call loses infinity, which verification has not seen"
        return None
