"""One candidate against one reference: what both are asked by, and single judgements of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kwharness.base.calibration import Calibration, FamilyCalibration
from kwharness.clients.candidate_client import Answer, CandidateClient, same_bytes
from kwharness.clients.reference_client import ReferenceClient
from kwharness.model import weights
from kwharness.numerics import families, input_structure
from kwharness.numerics.correctness import Expected
from kwharness.numerics.families import (
    BASE,
    Traits,
)
from kwharness.numerics.input_structure import Structure
from kwharness.verify import (
    calibrate,
    calibration,
    findings,
    secret_draws,
)
from kwharness.verify.check_output import ELEMENTS, Attempt, Checker
from kwharness.verify.memory import oracle_of
from kwharness.verify.oracle import Varied
from kwharness.verify.other_shapes import OtherShapes, Small

BASE_SEEDS = {"quick": 5, "certify": 10}
# Under which models are constructed where what is made of weights at construction is judged.
CONSTRUCTIONS = {"quick": 2, "certify": 4}


class Verification:
    """One candidate against one reference, both loaded."""

    def __init__(
        self,
        reference: ReferenceClient,
        calibration: Calibration,
        level: str,
        *,
        precision: str = "float32",
        strict: bool = False,
        plan: weights.Plan | None = None,
    ) -> None:
        """``strict``: whether what a candidate takes for granted of its inputs is wrong. ``plan``:
        how it gets weights, where that is known.
        """
        self.plan = plan if plan is not None and plan.by_seed else None
        self.reference = reference
        self.calibration = calibration
        self.level = level
        self.report = findings.Report(precision)
        self.oracle = oracle_of(reference, calibration)
        names = reference.info.arguments
        self.checker = Checker(self.oracle, self.report, names, strict)
        self.traits = Traits()
        self.draws: list[secret_draws.Draw] = []
        self.state: list[torch.Tensor] = []
        # Some of what the candidate was right on, and what is right unless memory is spared.
        self.varied: list[Varied] = []
        self.by_seed: set[str] = set()  # weights and buffers that another seed makes others
        # Few inputs on which a certified candidate is right, and what is right: see general().
        self.small: Small | None = None
        self.tried: dict[families.Shape, bool] = {}  # other shapes, and whether it is right there

    def prepare(self, state: list[torch.Tensor] | None = None) -> None:
        """Draws inputs and weights, unless they are given, and has the first expected outputs
        computed: all that needs no candidate.
        """
        r, oracle = self.reference, self.oracle
        self.original = r.state()
        self.state = self.changed() if state is None else state
        self.draws = secret_draws.draw_many(r, BASE_SEEDS[self.level])
        self.traits = calibration.traits(self.calibration, self._structures())
        r.set_state(self.state)
        job = oracle.base_job(self.draws[0])
        with r.whole():
            first = oracle.expect(job.tree, job.inputs)
        assert first.eager is not None
        oracle.inputs = [torch.empty_like(t, device="meta") for t in job.inputs]
        oracle.outputs = [torch.empty_like(t, device="meta") for t in first.eager]
        oracle.first(job, first, self.draws, ELEMENTS[self.level])

    def changed(self) -> list[torch.Tensor]:
        """Returns other weights, as a change leaves them."""
        return self._moved(self.original)

    def _moved(self, original: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns other weights, where they can be changed after construction."""
        return secret_draws.perturbed(
            original, self.may_move(), self.reference.info.tied, secret_draws.secret()
        )

    def may_move(self) -> list[bool]:
        """Returns which weights can be changed after construction."""
        moved = self.reference.info.moved
        return moved if self.plan is None else self.plan.may_move(moved)

    def constructed(self) -> list[torch.Tensor]:
        """Has the reference, which was constructed anew, take other weights where it may. Returns
        what it has then.
        """
        made = self.reference.state()
        pairs = zip(self.reference.info.names, made, self.original, strict=True)
        self.by_seed |= {n for n, a, b in pairs if not same_bytes(a, b)}
        state = self._moved(made)
        self.reference.set_state(state)
        return state

    def check_constructed(self, candidate: CandidateClient) -> None:
        """Judges a candidate that was constructed as the reference was just now. Raises Failed."""
        known = self.calibration.base
        tree, inputs = self.draws[secret_draws.secret() % len(self.draws)].get()
        answer, expected = self.oracle.both(candidate, tree, inputs)
        a = Attempt(known, BASE.name, tree, inputs, answer, expected)
        self.checker.check_closely(a, candidate)

    def _structures(self) -> list[Structure]:
        """Returns the structures of the inputs, none that calibration has not found."""
        c = self.calibration
        if not any(c.kinds):
            return []
        return input_structure.again(secret_draws.some_draws(self.reference), c.kinds, c.structures)

    def other_weights(self, known: FamilyCalibration) -> bool:
        """Whether a family is asked with weights of its own."""
        return known.exact and any(self.reference.info.trainable)

    # In other processes.

    def unseen(self) -> tuple[Any, list[torch.Tensor]]:
        """Returns a draw that nobody has seen, for a process that is not ours."""
        return self.reference.draw(secret_draws.secret())

    def check_unseen(
        self, tree: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Judges what the candidate computes for one. Raises Failed."""
        answer = Answer(list(outputs), "", [], False)
        expected = self.oracle.expect(tree, inputs)  # there may be no room for it before
        base = self.calibration.base
        self.checker.check_closely(Attempt(base, BASE.name, tree, inputs, answer, expected))
        self.report.seeds += 1

    def right_with(self, candidate: CandidateClient, state: Sequence[torch.Tensor]) -> bool:
        """Whether a process is right on the first draw where the reference has these weights."""
        self.oracle.need_room()
        self.reference.set_state(state)
        try:
            return self._right(candidate, self.oracle.base_job(self.draws[0]))
        finally:
            self.reference.set_state(self.state)

    def right_on_first(self, candidate: CandidateClient) -> bool:
        """Whether a process of a candidate is right on the first draw."""
        job = self.oracle.base_job(self.draws[0])
        return self._right(candidate, job, self.oracle.known(candidate, job, 0))

    def right_as_constructed(self, candidate: CandidateClient) -> bool:
        """Whether a process of a candidate, which is wrong with other weights, is right with those
        that both sides were constructed with: all that KernelBench's comparison sees of it.
        """
        self.oracle.need_room()
        self.reference.set_state(self.original)
        try:
            job = self.oracle.base_job(self.draws[0])
            answer, expected = self.oracle.both(candidate, job.tree, job.inputs)
            if not answer.problem:
                self.checker.as_kernelbench(answer, expected)
            right = self._is_right(job, answer, expected)
        finally:
            self.reference.set_state(self.state)
        self.report.follows_weights = False if right else None
        return right

    def _right(
        self, candidate: CandidateClient, job: secret_draws.Job, expected: Expected | None = None
    ) -> bool:
        answer, expected = self.oracle.both(candidate, job.tree, job.inputs, expected)
        return self._is_right(job, answer, expected)

    def _is_right(self, job: secret_draws.Job, answer: Answer, expected: Expected) -> bool:
        if answer.problem:
            return False
        if self.checker.wrong(job, answer.outputs, expected) is None:
            return True
        return self.checker.wrong(job, answer.outputs, self.oracle.closely(job)) is None

    def look_closer(self, tree: Any, inputs: Sequence[torch.Tensor], expected: Expected) -> None:
        """Finds how far this very draw can move, in many patterns."""
        self.oracle.look_closer(tree, inputs, expected, calibrate.PATTERNS)

    def seed(self) -> int:
        """Returns a secret seed."""
        return secret_draws.secret()

    def general(self, reference: ReferenceClient, candidate: CandidateClient) -> None:
        """Records whether a candidate computes other shapes of the inputs too. Gates nothing; but
        what it is right on is what its exported file takes.

        Both are fresh processes with this evaluation's weights: either may die here.
        """
        oracle = oracle_of(reference, self.calibration).like(self.oracle)
        asked = OtherShapes(oracle, self.draws)
        try:
            asked.ask(candidate, self.report)
        finally:
            self.small = asked.small or self.small
            self.tried |= asked.tried

    # When it is timed.

    def kept_job(self, inputs: Sequence[torch.Tensor]) -> secret_draws.Job:
        """Returns what to compare on inputs like those that the reference draws, which are kept."""
        return secret_draws.Job(BASE, self.calibration.base, self.draws[0].tree, inputs)
