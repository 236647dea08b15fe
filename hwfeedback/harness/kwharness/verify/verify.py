"""Verification: holds a candidate to what an honest error is on its task.

It draws under secret seeds, has the reference compute the expected values while the candidate
computes its own, and compares private copies of both. calibrate.py found before what is honest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from kwharness.clients.candidate_client import Answer, CandidateClient, same_bytes
from kwharness.clients.reference_client import ReferenceClient
from kwharness.model import weights
from kwharness.numerics import families, input_structure
from kwharness.numerics.correctness import Expected
from kwharness.numerics.families import (
    BASE,
    FAMILIES,
    FEW_FACTORS,
    FEW_TERMS,
    ORDERED,
    REPEATED,
    Family,
    Traits,
)
from kwharness.numerics.input_structure import Structure
from kwharness.verify import (
    asked_of_inputs,
    asked_of_weights,
    assumptions,
    calibrate,
    calibration,
    findings,
    secret_draws,
    timed_calls,
)
from kwharness.verify.check_output import Attempt, Checker
from kwharness.verify.memory import oracle_of
from kwharness.verify.oracle import Varied
from kwharness.verify.other_shapes import OtherShapes, Small

BASE_SEEDS = {"quick": 5, "certify": 10}
# Under which models are constructed where what is made of weights at construction is judged.
CONSTRUCTIONS = {"quick": 2, "certify": 4}


class Verification:
    """One candidate against one reference, both loaded. See ``run``."""

    def __init__(
        self,
        reference: ReferenceClient,
        calibration: calibration.Calibration,
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
        names = [str(n) for n in reference.info.get("arguments") or []]
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
        self.traits = self.calibration.traits(self._structures())
        r.set_state(self.state)
        job = oracle.base_job(self.draws[0])
        with r.whole():
            first = oracle.expect(job.tree, job.inputs)
        assert first.eager is not None
        oracle.inputs = [torch.empty_like(t, device="meta") for t in job.inputs]
        oracle.outputs = [torch.empty_like(t, device="meta") for t in first.eager]
        oracle.first(job, first, self.draws, asked_of_inputs.ELEMENTS[self.level])

    def changed(self) -> list[torch.Tensor]:
        """Returns other weights, as a change leaves them."""
        return self._moved(self.original)

    def _moved(self, original: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns other weights, where they can be changed after construction."""
        return secret_draws.perturbed(
            original, self._may_move(), self.reference.info["tied"], secret_draws.secret()
        )

    def _may_move(self) -> list[bool]:
        moved = self.reference.info["moved"]
        return moved if self.plan is None else self.plan.may_move(moved)

    def constructed(self) -> list[torch.Tensor]:
        """Has the reference, which was constructed anew, take other weights where it may. Returns
        what it has then.
        """
        made = self.reference.state()
        pairs = zip(self.reference.info["names"], made, self.original, strict=True)
        self.by_seed |= {n for n, a, b in pairs if not same_bytes(a, b)}
        state = self._moved(made)
        self.reference.set_state(state)
        return state

    def check_constructed(self, candidate: CandidateClient) -> None:
        """Judges a candidate that was constructed as the reference was just now. Raises Failed."""
        known = self.calibration.families[BASE.name]
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

    # With a candidate.

    def run(
        self, candidate: CandidateClient, fresh: secret_draws.Fresh | None = None
    ) -> findings.Report:
        """Raises Failed at the first gate not passed, and what the candidate's client raises.

        ``fresh`` starts another process of the candidate, for one that keeps its first weights.
        """
        self._repeat_first(candidate, self._check_all(candidate))
        self.report.seeds = len(self.draws)
        asked_of_weights.exact(self, candidate, fresh)
        asked_of_inputs.elements(self, candidate)
        asked_of_inputs.boundaries(self, candidate)
        asked_of_inputs.in_a_row(self, candidate)
        if self.level == "certify" and any(self._may_move()):
            asked_of_weights.follows(self, candidate)
        self._tell_of_sides()
        return self.report

    def _check_all(self, candidate: CandidateClient) -> list[Any]:
        """Checks all draws of all families. Returns what is remembered of the first answer."""
        wanted = timed_calls.choose_varied(self)
        first, varied = self.oracle.check_all(self.checker, candidate, self._jobs(), wanted)
        self.varied += varied
        return first

    def _jobs(self) -> Iterator[secret_draws.Job]:
        """All that is compared under the weights of this evaluation, base draws first."""
        for draw in self.draws:
            yield self.oracle.base_job(draw)
        left_out = self._left_out()
        for family in FAMILIES[1:]:
            known = self.calibration.families.get(family.name)
            if known is None or self.other_weights(known) or family in left_out:
                continue
            for k, seed in enumerate(self._seeds(family)):
                draw = self.draws[k % len(self.draws)]
                again = secret_draws.Remade(draw, family, seed, self.traits)
                # Nothing else holds what is made: there may be little room.
                yield replace(self.oracle.job(family, known, again.made(), draw), again=again)

    def _left_out(self) -> set[Family]:
        """Returns what is asked another time: at quick two of three times few factors, and all but
        one of the families for outputs of many terms, nobody knows which.
        """
        if self.level != "quick":
            return set()
        chance = random.SystemRandom()
        out = {FEW_FACTORS} if chance.randrange(3) else set()
        in_turn = {ORDERED, FEW_TERMS, REPEATED} if self.calibration.many_terms else set()
        if asked := [f for f in in_turn if f.name in self.calibration.families]:
            out |= in_turn - {chance.choice(asked)}
        return out

    def _seeds(self, family: Family) -> list[int]:
        """Returns a seed for each time that a family is asked: at certify once for each line."""
        seeds = [secret_draws.secret() for _ in range(secret_draws.SEEDS_PER_FAMILY[self.level])]
        lines = {ORDERED: self.traits.lines, FEW_FACTORS: self.traits.factors}.get(family)
        if lines and self.level == "certify":
            count = len(lines)
            seeds += [secret_draws.secret() for _ in range(count - len(seeds))]
            seeds = [s - s % count + k % count for k, s in enumerate(seeds)]
        return seeds

    def other_weights(self, known: calibration.FamilyCalibration) -> bool:
        """Whether a family is asked with weights of its own."""
        return known.exact and any(self.reference.info["trainable"])

    def _repeat_first(self, candidate: CandidateClient, before: list[Any]) -> None:
        """Gives the first input again: what comes of it is within the bound, by the same gate, and
        a bitwise difference is recorded.
        """
        job = self.oracle.base_job(self.draws[0])
        expected = self.oracle.known(candidate, job, 0)
        second, expected = self.oracle.both(candidate, job.tree, job.inputs, expected)
        self.checker.check_closely(Attempt.of(job, second, expected), candidate)
        self.report.families[BASE.name]["seeds"] -= 1
        self.report.deterministic = self.oracle.as_before(before, second.outputs)

    def _tell_of_sides(self) -> None:
        r = self.report
        if r.either:
            r.evidence.append(
                f"{r.either} of {r.compared} elements had two right values, and it gave the other: "
                "float64 is within the bound of where it is rounded, compared, counted or ordered"
            )

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
        base = self.calibration.families[BASE.name]
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

    def assumes(self, start: assumptions.Start) -> list[str]:
        """Returns what the candidate, which is right, takes for granted, one sentence each.

        ``start`` starts a process of it with other weights and buffers. Raises what the reference's
        client raises.
        """
        told = [assumptions.NO_NAN] if self.report.drops_nan else []
        told += [assumptions.NO_INFINITY] if self.report.loses_infinity else []
        return told + assumptions.Asking(self, start).told()

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
        return secret_draws.Job(
            BASE, self.calibration.families[BASE.name], self.draws[0].tree, inputs
        )
