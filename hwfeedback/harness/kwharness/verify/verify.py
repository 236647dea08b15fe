"""Verification: holds a candidate to what an honest error is on its task.

It draws under secret seeds, has the reference compute the expected values while the candidate
computes its own, and compares private copies of both. calibrate.py found before what is honest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kwharness.base.constants import SHARED
from kwharness.clients.candidate_client import Answer, CandidateClient, digest, same_bytes
from kwharness.clients.errors import WorkerError, WorkerFailure, WorkerGone, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import give_back
from kwharness.model import weights
from kwharness.numerics import (
    correctness,
    decision_sides,
    families,
    input_structure,
    planted_nan,
)
from kwharness.numerics.correctness import Expected, Outcome, Scale
from kwharness.numerics.families import (
    BASE,
    BOUNDARIES,
    FAMILIES,
    FEW_FACTORS,
    FEW_TERMS,
    ORDERED,
    REPEATED,
    Family,
    Traits,
)
from kwharness.numerics.input_structure import Structure
from kwharness.verify import assumptions, calibrate, calibration, findings, secret_draws

BASE_SEEDS = {"quick": 5, "certify": 10}
# Under which models are constructed where what is made of weights at construction is judged.
CONSTRUCTIONS = {"quick": 2, "certify": 4}
SEEDS_PER_FAMILY = {"quick": 1, "certify": 3}
ELEMENTS = {"quick": 2, "certify": 4}  # one-element perturbations
BOUNDARIES_IN_TURN = 3  # quick evaluations, of which nobody knows the one that asks about them
VARIED_BYTES = {"quick": 96 << 20, "certify": 256 << 20}  # of what comes among the timed calls
VARIED_ON_A_GPU = 4 << 30  # likewise: it moves them a hundred times as fast
# Times the bound within which one more look may tell: who is further off is wrong.
NEAR = 3.0
ELSEWHERE = 2  # more draws on which nobody may take NaN for Inf who did on one
REDRAWN = 8  # draws on which somebody is wrong by what decisions may do, before it is wrong
ELEMENT = "one_element"
IN_A_ROW = "in_a_row"
IN_A_ROW_SAYS = "after calls in a row, its state not put back"
# Rows of calls, of so many each.
ROWS = {"quick": 2, "certify": 4}
CALLS_IN_A_ROW = (2, 5)
# By how many root mean squares the element is moved, until float64 shows it.
STEPS = (8.0, 1e3, 1e5)


def _near(o: Outcome) -> bool:
    return o.error.max <= NEAR * o.bound.max and o.error.rms <= NEAR * o.bound.rms


_Reshaped = tuple[families.Shape, Any, list[torch.Tensor], Expected]


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
        self.strict = strict
        self.traits = Traits()
        self.input_names = [str(n) for n in reference.info.get("arguments") or []]
        self.report = findings.Report(precision)
        # Few inputs on which a certified candidate is right, and what is right: see general().
        self.small: tuple[Any, list[torch.Tensor], list[torch.Tensor]] | None = None
        self.tried: dict[families.Shape, bool] = {}  # other shapes, and whether it is right there
        self.draws: list[secret_draws.Draw] = []
        self.expected: list[Expected] = []
        self.output_tree: Any = None
        self.aliases: list[int] = []
        # Some of what the candidate was right on, and what is right unless memory is spared.
        self.varied: list[tuple[secret_draws.Job, Expected | None]] = []
        self.by_seed: set[str] = set()  # weights and buffers that another seed makes others
        self._room = secret_draws.Room()
        self.inputs: list[torch.Tensor] = []  # as the reference draws them, without content
        self.outputs: list[torch.Tensor] = []  # as the reference's, without content
        self.state: list[torch.Tensor] = []
        self._salt = secret_draws.secret()

    def prepare(self, state: list[torch.Tensor] | None = None) -> None:
        """Draws inputs and weights, unless they are given, and has the first expected outputs
        computed: all that needs no candidate.
        """
        r = self.reference
        self.original = r.state()
        self.state = self._moved(self.original) if state is None else state
        self.draws = secret_draws.draw_many(r, BASE_SEEDS[self.level])
        self.traits = self.calibration.traits(self._structures())
        r.set_state(self.state)
        job = self.base_job(self.draws[0])
        with r.whole():
            first = self._expect(job.tree, job.inputs)
        assert first.eager is not None
        self.inputs = [torch.empty_like(t, device="meta") for t in job.inputs]
        self.outputs = [torch.empty_like(t, device="meta") for t in first.eager]
        if self._sparing and self.calibration.by_rows:
            calibrate.rows_apart(r, job.tree, job.inputs, first)  # under these weights, too
        if not self._sparing:
            self.expected.append(first.private())

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

    def judge_constructed(self, candidate: CandidateClient) -> None:
        """Judges a candidate that was constructed as the reference was just now. Raises Failed."""
        known = self.calibration.families[BASE.name]
        tree, inputs = self.draws[secret_draws.secret() % len(self.draws)].get()
        answer, expected = self._both(candidate, tree, inputs)
        self._judge_closely(known, BASE.name, tree, inputs, answer, expected, candidate)

    def _structures(self) -> list[Structure]:
        """Returns the structures of the inputs, none that calibration has not found."""
        c = self.calibration
        if not any(c.kinds):
            return []
        return input_structure.again(secret_draws.some_draws(self.reference), c.kinds, c.structures)

    @property
    def _sparing(self) -> bool:
        return self.reference.sparing

    @property
    def _whole(self) -> int:
        """How many base draws' expected values are kept, to move elements of."""
        if self._sparing:
            return 0
        return ELEMENTS[self.level] if all(d.kept for d in self.draws) else 1

    def _known(
        self, candidate: CandidateClient, job: secret_draws.Job, k: int, *, bare: bool = False
    ) -> Expected:
        """Returns what is expected of base draw k, ``job``. The reference must be idle."""
        if self.expected:
            return self.expected[k]
        return self._beside(candidate, job.tree, job.inputs, bare=bare)

    def _lasting(self, expected: Expected) -> Expected:
        """Returns it in memory that outlives more answers of the reference."""
        return expected if self._sparing else expected.private()

    def _expect(self, tree: Any, inputs: Sequence[torch.Tensor], *, bare: bool = False) -> Expected:
        self._expect_begin(tree, inputs, bare=bare)
        return self._expect_finish()

    def _expect_begin(
        self, tree: Any, inputs: Sequence[torch.Tensor], *, bare: bool = False
    ) -> None:
        if not self.calibration.wide:
            modes = ["eager"]
        else:
            modes = ["wide"] if bare and not self._discrete else ["wide", "eager"]
        self.reference.begin_forward(tree, inputs, modes, sources=self._discrete)

    @property
    def _discrete(self) -> bool:
        # Before the first answer the reference is asked for the sources of indices: there may be
        # some.
        return not self.outputs or any(not t.is_floating_point() for t in self.outputs)

    def _expect_finish(self) -> Expected:
        results = {r["mode"]: r for r in self.reference.finish_forward()}
        eager = results.get("eager")
        if eager is not None and "error" in eager:
            raise eager["error"]
        wide = results.get("wide", eager)
        assert wide is not None
        if "error" in wide:
            raise wide["error"]
        if self.output_tree is None and eager is not None:
            self.output_tree = eager["tree"]
            self.aliases = eager["aliases"]
        tensors = [t.double() if t.is_floating_point() else t for t in wide["tensors"]]
        beside = None if eager is None else eager["tensors"]
        decides = calibrate.has_sides(self.reference, self.calibration)
        e = correctness.complete(Expected(tensors, beside, wide["sources"], decides=decides))
        if decides and e.own:
            # Eager may be on the other side of what is rounded: who fails is looked at with that.
            e.own = [Scale() for _ in e.own]
        return e

    # With a candidate.

    def run(
        self, candidate: CandidateClient, fresh: secret_draws.Fresh | None = None
    ) -> findings.Report:
        """Raises Failed at the first gate not passed, and what the candidate's client raises.

        ``fresh`` starts another process of the candidate, for one that keeps its first weights.
        """
        self._again(candidate, self._stream(candidate, self._jobs()))
        self.report.seeds = len(self.draws)
        self._exact(candidate, fresh)
        self._elements(candidate)
        self._boundaries(candidate)
        self._in_a_row(candidate)
        if self.level == "certify" and any(self._may_move()):
            self._follows(candidate)
        self._tell_of_sides()
        return self.report

    def _tell_of_sides(self) -> None:
        r = self.report
        if r.either:
            r.evidence.append(
                f"{r.either} of {r.compared} elements had two right values, and it gave the other: "
                "float64 is within the bound of where it is rounded, compared, counted or ordered"
            )

    def _boundaries(self, candidate: CandidateClient) -> None:
        """Asks about inputs near to where the reference decides: a bias shows there. At quick in
        one evaluation of several: it takes as long as all else.
        """
        known = self.calibration.families.get(BOUNDARIES.name)
        if not self.calibration.aimed or known is None:
            return
        if self.level == "quick" and secret_draws.secret() % BOUNDARIES_IN_TURN:
            return
        for k in range(SEEDS_PER_FAMILY[self.level]):
            tree, inputs = self.draws[k % len(self.draws)].get()
            aimed = self.reference.aimed(
                tree, inputs, calibrate.free_elements(inputs, self.traits), secret_draws.secret()
            )
            if aimed is None:
                continue
            answer, expected = self._both(candidate, tree, aimed)
            name = BOUNDARIES.name
            self._judge_closely(known, name, tree, aimed, answer, expected, candidate)

    def _jobs(self) -> Iterator[secret_draws.Job]:
        """All that is compared under the weights of this evaluation, base draws first."""
        for draw in self.draws:
            yield self.base_job(draw)
        left_out = self._left_out()
        for family in FAMILIES[1:]:
            known = self.calibration.families.get(family.name)
            if known is None or self._other_weights(known) or family in left_out:
                continue
            for k, seed in enumerate(self._seeds(family)):
                draw = self.draws[k % len(self.draws)]
                again = secret_draws.Remade(draw, family, seed, self.traits)
                # Nothing else holds what is made: there may be little room.
                yield replace(self._job(family, known, again.made(), draw), again=again)

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
        seeds = [secret_draws.secret() for _ in range(SEEDS_PER_FAMILY[self.level])]
        lines = {ORDERED: self.traits.lines, FEW_FACTORS: self.traits.factors}.get(family)
        if lines and self.level == "certify":
            count = len(lines)
            seeds += [secret_draws.secret() for _ in range(count - len(seeds))]
            seeds = [s - s % count + k % count for k, s in enumerate(seeds)]
        return seeds

    def _job(
        self,
        family: Family,
        known: calibration.FamilyCalibration,
        inputs: Sequence[torch.Tensor],
        draw: secret_draws.Draw,
    ) -> secret_draws.Job:
        """Returns what to compare on inputs made from a draw."""
        return secret_draws.Job(family, known, draw.tree, self.reference.lend(inputs))

    def _other_weights(self, known: calibration.FamilyCalibration) -> bool:
        return known.exact and any(self.reference.info["trainable"])

    def _stream(self, candidate: CandidateClient, jobs: Iterator[secret_draws.Job]) -> list[Any]:
        """Judges one after the other, while the reference works on the next.

        Returns what is remembered of the first answer.
        """
        if self._sparing:
            return self._one_by_one(candidate, jobs)
        first: Answer | None = None
        job = next(jobs)
        expected = self.expected[0]
        following = next(jobs, None)
        kept = all(d.kept for d in self.draws)
        wanted = self._choose_varied()
        while True:
            answer: Answer | None = None
            failed: WorkerError | None = None
            try:
                self._candidate_begin(candidate, job.tree, job.inputs)
                candidate.wait_forward()  # not beside the reference: its threads need the cores
            except WorkerError as e:
                failed = e
            if following is not None:
                # More than one base draw is needed whole, where elements are moved.
                bare = following.family is not BASE or len(self.expected) >= self._whole
                self._expect_begin(following.tree, following.inputs, bare=bare)
            passed = True
            if failed is not None:
                if job.known.gates:
                    raise failed
                outcome = Outcome(False, Scale(), Scale(), 0, "it raises")
                self.report.add(job.known, job.family.name, [outcome])
            else:
                answer = candidate.answer()
                if first is None:
                    first = answer
                    self._as_kernelbench(answer, expected)
                passed = self._judge(job.known, job.family.name, answer, expected)
                if passed:
                    self._keep(job, expected, wanted)
            # While the reference works, unless it is the one to draw.
            upcoming = next(jobs, None) if kept else None
            later = None if following is None else self._expect_finish()
            if not passed and answer is not None:
                if later is not None:
                    later = later.private()  # more answers take its memory
                whole = self._closely(job, answer.outputs)
                asked = job.known, job.family.name, job.tree, job.inputs, answer
                if self._stands(candidate, job, partial(self._judge_near, *asked, whole)):
                    self._keep(job, whole, wanted)
            if following is None or later is None:
                if first is None:
                    raise RuntimeError("the reference's own draw was not judged")
                return self._remembered(first.outputs)
            if following.family is BASE and len(self.expected) < self._whole:
                self.expected.append(later.private())
            job, expected = following, later
            following = upcoming if kept else next(jobs, None)

    def _one_by_one(
        self, candidate: CandidateClient, jobs: Iterator[secret_draws.Job]
    ) -> list[Any]:
        """The same where memory is spared: nothing is held of one job while the next is judged."""
        wanted = self._choose_varied()
        first: list[Any] | None = None
        while True:
            with self._staying():  # the draw's block, too
                job = next(jobs, None)
                if job is None:
                    break
                answer = self._alone(candidate, job, wanted, first is None)
                if first is None and answer is not None:
                    first = self._remembered(answer.outputs)
                del job, answer
        if first is None:
            raise RuntimeError("the reference's own draw was not judged")
        return first

    @contextmanager
    def _staying(self) -> Iterator[None]:
        """Has the reference use its blocks again, where there is room. What it draws and answers
        inside is gone with what it draws and answers inside another.
        """
        stayed = self._room.stays
        if self._room.there(self.reference.device, self._bytes(self.inputs)):
            with self.reference.keeping():
                yield
            return
        if stayed:
            self.reference.let_go()
        yield

    def _bytes(self, inputs: Sequence[torch.Tensor]) -> int:
        """Returns what a call has of inputs and outputs."""
        return sum(t.numel() * t.element_size() for t in [*inputs, *self.outputs])

    def _remembered(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        """Returns what is kept of outputs to see whether others are the same bit by bit."""
        return [digest(t, self._salt) for t in outputs] if self._sparing else list(outputs)

    def _as_before(self, before: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether outputs are those that were remembered."""
        if self._sparing:
            return self._remembered(outputs) == before
        return all(same_bytes(a, b) for a, b in zip(before, outputs, strict=True))

    def _alone(
        self, candidate: CandidateClient, job: secret_draws.Job, wanted: set[str], first: bool
    ) -> Answer | None:
        """Judges one job by itself. Returns its answer, None where it raises."""
        expected = self._beside(candidate, job.tree, job.inputs, bare=not first)
        try:
            self._candidate_begin(candidate, job.tree, job.inputs)
            answer = candidate.finish_forward()
        except WorkerError as e:
            if ran_out(e) and self._room.stays:
                del expected
                self._clear(candidate)  # what stays may be what it lacks
                return self._alone(candidate, job, wanted, first)
            if job.known.gates:
                raise
            outcome = Outcome(False, Scale(), Scale(), 0, "it raises")
            self.report.add(job.known, job.family.name, [outcome])
            return None
        if first:
            self._as_kernelbench(answer, expected)
        if not self._judge(job.known, job.family.name, answer, expected):
            del expected
            candidate.let_go()
            self.reference.let_go()  # many answers are held against each other
            if not self._stands(candidate, job, partial(self._judge_at_last, job, answer)):
                return answer
        if job.family.name in wanted:
            wanted.remove(job.family.name)
            kept = job if job.again is None else replace(job, inputs=job.again)
            self.varied.append((kept, None))
        return answer

    def _beside(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        bare: bool = False,
    ) -> Expected:
        """Returns what is expected, for which a candidate may have to give up what it has of its
        last call.
        """
        if not self._sparing:
            return self._expect(tree, inputs, bare=bare)
        parts = self.reference.parts
        needs = secret_draws.ROOM_TO_COMPUTE * candidate.holds() if parts is None else parts.room
        if self.reference.device.room()[0] < needs:
            candidate.let_go()
        try:
            return self._expect(tree, inputs, bare=bare)
        except (WorkerError, torch.OutOfMemoryError, CudaError) as e:
            if not ran_out(e):
                raise
        self._clear(candidate)
        return self._expect(tree, inputs, bare=bare)

    def _clear(self, candidate: CandidateClient) -> None:
        """Has nobody keep anything, now and from now on."""
        candidate.let_go()
        self._room.close()
        self.reference.let_go()
        self.reference.device.release()

    def _as_kernelbench(self, answer: Answer, expected: Expected) -> None:
        assert expected.eager is not None
        self.report.kernelbench = correctness.kernelbench_passes(answer.outputs, expected.eager)

    def _keep(self, job: secret_draws.Job, expected: Expected, wanted: set[str]) -> None:
        """Keeps what the candidate was right on for the timed calls, one of each wanted family."""
        if job.family.name in wanted:
            wanted.remove(job.family.name)
            self.varied.append((job, expected.private()))

    def _choose_varied(self) -> set[str]:
        """Returns the families of which one input each will come among the timed calls."""
        names = [
            f.name
            for f in FAMILIES
            if f is not BASE
            and (known := self.calibration.families.get(f.name)) is not None
            and known.gates
            and not self._other_weights(known)
        ]
        size = sum(t.numel() * t.element_size() for t in self.inputs)
        # Expected values are kept in float64.
        size += sum(t.numel() * max(t.element_size(), 8) for t in self.outputs)
        room = VARIED_BYTES[self.level]
        if self.reference.device.kind == "cuda":
            room = min(VARIED_ON_A_GPU, self.reference.device.free_bytes() // 16)
        count = max(room // max(size, 1), 1)
        return set(random.SystemRandom().sample(names, min(count, len(names))))

    def _need_room(self) -> None:
        """Has the reference keep nothing of other calls, where it may need the room."""
        least = secret_draws.ROOM_TO_COMPUTE * self._bytes(self.inputs)
        if self._sparing and self.reference.device.room()[0] < least:
            self.reference.let_go()

    def judge_varied(self, i: int, outputs: Sequence[torch.Tensor]) -> str | None:
        """Judges a timed call on inputs of ``varied``. Returns one sentence where it is wrong."""
        job, expected = self.varied[i]
        self._need_room()
        job = replace(job, inputs=self.reference.lend(list(job.inputs)))
        wrong = self._wrong(job, outputs, expected or self._expect(job.tree, job.inputs))
        if wrong is not None:  # where float32 itself goes astray only more of the reference tells
            wrong = self._wrong(job, outputs, self._closely(job))
        if wrong is not None and self.reference.parts is not None:
            del job
            with self.reference.whole():
                return self.judge_varied(i, outputs)
        if wrong is None:
            return None
        return f"on family {job.family.name} (inputs: {job.family.says}) {wrong}"

    def _closely(
        self, job: secret_draws.Job, outputs: Sequence[torch.Tensor] | None = None
    ) -> Expected:
        """Returns all that is known of what to expect of a job, or as much as shows that these
        outputs are right. The reference must be idle.
        """
        effects = self._effects(job) if job.family.planted else None
        expected = self._lasting(self._expect(job.tree, job.inputs))
        if job.family.planted:
            expected.effects = effects or planted_nan.unknown(expected.wide)
        if self._sparing:
            expected.lighten()
        if expected.decides and outputs is not None:
            self._look_aside(job.tree, job.inputs, expected)
            if all(o.passed for o in self._outcomes(job, outputs, expected)):
                expected.moved = [Scale() for _ in expected.wide]
                return expected
        # Simulated rounding says nothing beside NaN.
        self._look_closer(job.tree, job.inputs, expected, simulated=not job.family.planted)
        return expected

    def right_again(self, candidate: CandidateClient, job: secret_draws.Job) -> bool:
        """Whether another process of a candidate is right on this, time after time.

        The reference must have this evaluation's weights.
        """
        job = job.remade()
        with self.reference.whole():
            expected = self._closely(job)
        for _ in range(secret_draws.AGAIN):
            answer, _ = self._both(candidate, job.tree, job.inputs, expected)
            if answer.problem or self._wrong(job, answer.outputs, expected):
                return False
        return True

    def unseen(self) -> tuple[Any, list[torch.Tensor]]:
        """Returns a draw that nobody has seen, for a process that is not ours."""
        return self.reference.draw(secret_draws.secret())

    def judge_unseen(
        self, tree: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Judges what the candidate computes for one. Raises Failed."""
        answer = Answer(list(outputs), "", [], False)
        expected = self._expect(tree, inputs)  # there may be no room for it before
        base = self.calibration.families["base"]
        self._judge_closely(base, "base", tree, inputs, answer, expected)
        self.report.seeds += 1

    def right_with(self, candidate: CandidateClient, state: Sequence[torch.Tensor]) -> bool:
        """Whether a process is right on the first draw where the reference has these weights."""
        self._need_room()
        self.reference.set_state(state)
        try:
            return self._right(candidate, self.base_job(self.draws[0]))
        finally:
            self.reference.set_state(self.state)

    def right_on_first(self, candidate: CandidateClient) -> bool:
        """Whether a process of a candidate is right on the first draw."""
        job = self.base_job(self.draws[0])
        return self._right(candidate, job, self._known(candidate, job, 0))

    def right_as_constructed(self, candidate: CandidateClient) -> bool:
        """Whether a process of a candidate, which is wrong with other weights, is right with those
        that both sides were constructed with: all that KernelBench's comparison sees of it.
        """
        self._need_room()
        self.reference.set_state(self.original)
        try:
            job = self.base_job(self.draws[0])
            answer, expected = self._both(candidate, job.tree, job.inputs)
            if not answer.problem:
                self._as_kernelbench(answer, expected)
            right = self._is_right(job, answer, expected)
        finally:
            self.reference.set_state(self.state)
        self.report.follows_weights = False if right else None
        return right

    def _right(
        self, candidate: CandidateClient, job: secret_draws.Job, expected: Expected | None = None
    ) -> bool:
        answer, expected = self._both(candidate, job.tree, job.inputs, expected)
        return self._is_right(job, answer, expected)

    def _is_right(self, job: secret_draws.Job, answer: Answer, expected: Expected) -> bool:
        if answer.problem:
            return False
        if self._wrong(job, answer.outputs, expected) is None:
            return True
        return self._wrong(job, answer.outputs, self._closely(job)) is None

    def base_job(
        self, draw: secret_draws.Draw, inputs: Sequence[torch.Tensor] | None = None
    ) -> secret_draws.Job:
        """Returns what to compare on inputs as the reference draws them: on a draw's own, where
        none are given.
        """
        known = self.calibration.families[BASE.name]
        return self._job(BASE, known, draw.tensors if inputs is None else inputs, draw)

    def kept_job(self, inputs: Sequence[torch.Tensor]) -> secret_draws.Job:
        """Returns what to compare on inputs like those that the reference draws, which are kept."""
        return secret_draws.Job(
            BASE, self.calibration.families[BASE.name], self.draws[0].tree, inputs
        )

    def _outcomes(
        self, job: secret_draws.Job, outputs: Sequence[torch.Tensor], expected: Expected
    ) -> Iterator[Outcome]:
        """Compares output by output."""
        for i, got in enumerate(outputs):
            yield correctness.compare(
                got,
                expected,
                i,
                job.known.outputs[i],
                self.calibration.floor(i, job.family.name).max,
                mask=job.family.planted,
                exact=job.known.exact,
            )

    def _wrong(
        self, job: secret_draws.Job, outputs: Sequence[torch.Tensor], expected: Expected
    ) -> str | None:
        for i, o in enumerate(self._outcomes(job, outputs, expected)):
            which = self.calibration.carried.output(i) if len(outputs) > 1 else "the output"
            if o.slight:
                continue  # verification has asked on draws that tell more
            if not o.passed:
                return f"{which} of a timed call: {o.reason}"
            if o.dropped and not self.report.drops_nan:
                return f"{which} of a timed call drops NaN, which verification has not seen"
            if o.lost and not self.report.loses_infinity:
                return f"{which} of a timed call loses infinity, which verification has not seen"
        return None

    def _candidate_begin(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        goes_on: bool = False,
    ) -> None:
        if self._sparing:
            device, call = self.reference.device, self._bytes(inputs)
            give_back(device, call, secret_draws.ROOMY[1])
            if (
                self.reference.parts is not None
                and device.room()[0] < secret_draws.ROOM_TO_CALL * call
            ):
                self.reference.give_back()
        like = self.outputs, self.output_tree, self.aliases
        candidate.begin_forward(tree, inputs, *like, goes_on=goes_on)

    def _both(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected | None = None,
    ) -> tuple[Answer, Expected]:
        """Runs reference and candidate on the same inputs: at the same time, unless memory is
        spared.
        """
        if expected is None and self._sparing:
            expected = self._beside(candidate, tree, inputs)
        if expected is not None:
            self._candidate_begin(candidate, tree, inputs)
            return candidate.finish_forward(), expected
        self._expect_begin(tree, inputs)
        try:
            self._candidate_begin(candidate, tree, inputs)
        finally:
            expected = self._expect_finish()
        return candidate.finish_forward(), expected

    def _judge(
        self, family: calibration.FamilyCalibration, name: str, answer: Answer, expected: Expected
    ) -> bool:
        """Raises Failed. Returns False where more must be known of the expected values."""
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
        mask = name == "planted"
        exact = family.exact
        outcomes = [
            correctness.compare(
                got,
                expected,
                i,
                family.outputs[i],
                self.calibration.floor(i, name).max,
                mask=mask,
                exact=exact,
            )
            for i, got in enumerate(answer.outputs)
        ]
        unknown = expected.moved is None or (mask and expected.effects is None)
        # Nobody is wrong by what was computed in parts.
        unknown = unknown or self.reference.parts is not None
        more = expected.eager is None or (family.gates and unknown)
        if more and not all(o.passed for o in outcomes):
            return False
        self.report.add(family, name, outcomes)
        if not family.gates:
            return True
        self._note_advisory(outcomes)
        for i, o in enumerate(outcomes):
            if not o.passed:
                which = f"{self.calibration.carried.output(i)}, " if len(outcomes) > 1 else ""
                says = (
                    families.BY_NAME[name].says if name in families.BY_NAME else "one element moved"
                )
                where = (
                    "on the reference's own draws"
                    if name == "base"
                    else f"on family {name} (inputs: {says})"
                )
                where = IN_A_ROW_SAYS if name == IN_A_ROW else where
                near = all(p.passed or _near(p) for p in outcomes)
                mixed = all(p.passed or p.mixed for p in outcomes)
                open_ = all(p.passed or p.unsettled for p in outcomes)
                says = f"{which}{where}: {o.reason}"
                slight = all(p.passed or p.slight for p in outcomes)
                raise findings.Failed(
                    "wrong", says, near=near, mixed=mixed, unsettled=open_, slight=slight
                )
        self.report.either += sum(o.either for o in outcomes)
        self.report.compared += sum(t.numel() for t in expected.wide)
        return True

    def _note_advisory(self, outcomes: Sequence[Outcome]) -> None:
        """Notes that NaN is dropped, or infinity lost. Raises Failed where that may not be."""
        dropped, lost = sum(o.dropped for o in outcomes), sum(o.lost for o in outcomes)
        if not all(o.passed for o in outcomes):
            return
        self.report.drops_nan |= dropped > 0
        self.report.loses_infinity |= lost > 0
        if self.strict and dropped:
            raise findings.Failed(
                "wrong",
                f"it drops NaN: {dropped} elements are what a number far away gives in its place",
                "let NaN through: fmaxf and tl.maximum give the other operand",
            )
        if self.strict and lost:
            raise findings.Failed(
                "wrong",
                f"it loses infinity: {lost} elements are NaN, where the reference's are infinite",
                "let no sum be taken apart in which infinity comes with either sign",
            )

    def _judge_near(
        self,
        family: calibration.FamilyCalibration,
        name: str,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        answer: Answer,
        expected: Expected,
    ) -> bool:
        """The same once the draw was looked at. Where little is missing it is looked at again, in
        more patterns, as where a timed call is wrong: one may not show how far it moves.
        """
        before = self.report.row(name)
        try:
            return self._judge(family, name, answer, expected)
        except findings.Failed as e:
            if not e.near:
                raise
        self.report.put(name, before)
        self._look_closer(tree, inputs, expected, calibrate.PATTERNS, simulated=name != "planted")
        return self._judge(family, name, answer, expected)

    def _judge_at_last(self, job: secret_draws.Job, answer: Answer) -> None:
        """Judges an answer by all that can be known. Raises Failed."""
        asked = job.known, job.family.name, job.tree, job.inputs, answer
        if not self._judge_near(*asked, self._closely(job, answer.outputs)):
            with self.reference.whole():
                self._judge_near(*asked, self._closely(job))

    def _stands(
        self, candidate: CandidateClient, job: secret_draws.Job, judge: Callable[[], object]
    ) -> bool:
        """Has an answer judged at last. Raises Failed. An elimination that meets NaN and infinity
        comes to either, on a draw in hundreds: who takes one for the other is wrong if he does on
        another draw, too, and False says that this one tells nothing.
        """
        before = self.report.row(job.family.name)
        try:
            judge()
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
            answer, _ = self._both(candidate, other.tree, other.inputs)
            self._judge_at_last(other, answer)
        return False

    def _other(self, job: secret_draws.Job) -> secret_draws.Job:
        """Returns the same on another draw, or on other inputs made from it."""
        if job.again is None:
            return replace(
                job, inputs=self.reference.lend(self.reference.draw(secret_draws.secret())[1])
            )
        again = job.again.other()
        return replace(job, inputs=self.reference.lend(again.made()), again=again)

    def _settle(self, candidate: CandidateClient, job: secret_draws.Job) -> None:
        """Draws until it is right, or wrong by more than decisions may do. Raises Failed where it
        is wrong so. A family all of whose draws tell nothing is advisory, but for the reference's
        own: there the honest are right on one of so many.
        """
        before = self.report.row(job.family.name)
        for left in reversed(range(REDRAWN)):
            other = self._other(job)
            answer, _ = self._both(candidate, other.tree, other.inputs)
            try:
                self._judge_at_last(other, answer)
                return
            except findings.Failed as e:
                if not e.unsettled or (job.family is BASE and not left):
                    raise
            self.report.put(job.family.name, before)
        known = replace(job.known, gates=False, note=findings.NEVER_SETTLED)
        self.report.add(known, job.family.name, [Outcome(False, Scale(), Scale())])

    def _judge_closely(
        self,
        family: calibration.FamilyCalibration,
        name: str,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        answer: Answer,
        expected: Expected,
        candidate: CandidateClient | None = None,
    ) -> None:
        """Raises Failed. The reference must not be at work. ``expected`` is of no use any more.

        A draw on which decisions fall either way tells nothing here: others were judged.
        """
        before = self.report.row(name)
        try:
            self._judge_by_all(family, name, tree, inputs, answer, expected, candidate)
        except findings.Failed as e:
            if not e.slight:
                raise
            self.report.put(name, before)

    def _judge_by_all(
        self,
        family: calibration.FamilyCalibration,
        name: str,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        answer: Answer,
        expected: Expected,
        candidate: CandidateClient | None,
    ) -> None:
        if self._judge(family, name, answer, expected):
            return
        self._look_closer(tree, inputs, expected)
        if self._judge_near(family, name, tree, inputs, answer, expected):
            return
        expected.wide, expected.eager = [], None  # there may be no room for two
        if candidate is not None:
            candidate.let_go()
        with self.reference.whole():
            expected = self._expect(tree, inputs)
            self._look_closer(tree, inputs, expected)
            self._judge_near(family, name, tree, inputs, answer, expected)

    def _look_closer(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected,
        patterns: int = 1,
        *,
        simulated: bool = True,
    ) -> None:
        """Finds how far float64 moves on this very draw when its inputs move by a unit, in so many
        random patterns of signs, and where float32 rounding takes it, if that is to be simulated:
        a draw may be far worse conditioned than any in calibration.
        """
        if not self._sparing:
            expected.last()
        expected.moved = [Scale() for _ in expected.wide]
        floating = any(t.is_floating_point() for t in expected.wide)
        decided = expected.decides
        if decided and expected.sides is None:
            self._look_aside(tree, inputs, expected)
        if not self.calibration.wide or not floating:
            return
        for seed in range(patterns):
            modes = [f"moved:{seed}"] + [f"noise:{seed}"] * simulated
            for r in self.reference.each(tree, inputs, modes, decided=decided):
                rounding = r["mode"].startswith("noise:")
                if "error" in r:
                    if ran_out(r["error"]) and not rounding:  # which takes far more
                        raise r["error"]
                    return
                known = expected.own if rounding else expected.moved
                for n, (a, b) in enumerate(zip(expected.wide, r["tensors"], strict=True)):
                    if a.is_floating_point():
                        skip = expected.skips[n] if expected.skips else None
                        known[n].widen(correctness.error_where_finite(b, a, skip))
                    del b
                del r  # or it is still there while the next answer is made

    def _look_aside(self, tree: Any, inputs: Sequence[torch.Tensor], expected: Expected) -> None:
        """Finds what else is right where float64 decides, and how far eager is off that."""
        calibrate.take_sides(
            expected, list(self.reference.each(tree, inputs, decision_sides.LANES))
        )
        correctness.complete(expected)

    def _effects(self, job: secret_draws.Job) -> list[planted_nan.Effect] | None:
        """Returns what became of what was planted, None where the reference raises."""
        assert job.again is not None

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            self._expect_begin(job.tree, inputs, bare=True)
            wide = self._expect_finish().wide
            return wide if self._sparing else [t.clone() for t in wide]

        try:
            return planted_nan.look(run, job.inputs, job.again.base)
        except WorkerError as e:
            if ran_out(e) or e.ill:
                raise
            return None

    def _input(self, i: int) -> str:
        return self.input_names[i] if i < len(self.input_names) else str(i)

    def _again(self, candidate: CandidateClient, before: list[Any]) -> None:
        """The first input again:

        within the bound, by the same gate; a bitwise difference is recorded.
        """
        job = self.base_job(self.draws[0])
        expected = self._known(candidate, job, 0)
        second, expected = self._both(candidate, job.tree, job.inputs, expected)
        self._judge_closely(job.known, "base", job.tree, job.inputs, second, expected, candidate)
        self.report.families["base"]["seeds"] -= 1
        self.report.deterministic = self._as_before(before, second.outputs)

    def _exact(self, candidate: CandidateClient, fresh: secret_draws.Fresh | None) -> None:
        """Zeros and ones as inputs and weights, where the task is linear: no error at all.

        A candidate may pack its weights at the first call. One that fails with these, which are
        its second, is asked again in a process that has met no others.
        """
        known = self.calibration.families.get("zero_one")
        if known is None or not self._other_weights(known) or self.plan is not None:
            return
        state = secret_draws.zero_one(self.original, self.reference.info["trainable"])
        self._weights(candidate, state)
        try:
            self._exact_forwards(candidate, known)
        except findings.Failed:
            if fresh is None:
                raise
            self.report.families.pop("zero_one", None)
            another = fresh()
            try:
                another.set_state(self.reference.info["names"], state)
                self._exact_forwards(another, known)
            except WorkerFailure as e:
                if e.client is another:
                    e.client = candidate  # whichever of its processes it was
                raise
            finally:
                another.kill()
        self._weights(candidate, self.state)

    def _exact_forwards(
        self, candidate: CandidateClient, known: calibration.FamilyCalibration
    ) -> None:
        for draw in self.draws[: SEEDS_PER_FAMILY[self.level]]:
            tree, inputs = draw.get()
            inputs = families.apply(
                families.BY_NAME["zero_one"], inputs, secret_draws.secret(), self.traits
            )
            answer, expected = self._both(candidate, tree, inputs)
            self._judge_closely(known, "zero_one", tree, inputs, answer, expected, candidate)

    def _weights(self, candidate: CandidateClient, state: Sequence[torch.Tensor]) -> None:
        self.reference.set_state(state)
        candidate.set_state(self.reference.info["names"], state)

    def _elements(self, candidate: CandidateClient) -> None:
        """Moves one element, and all that equal it in every draw, so far that float64 changes by
        many bounds: who left it out does not follow.
        """
        floating = [i for i, t in enumerate(self.inputs) if t.is_floating_point() and t.numel()]
        if not floating:
            return
        for k in range(ELEMENTS[self.level]):
            sign, outlier = 1 if secret_draws.secret() & 1 else -1, bool(k % 2)
            k %= max(len(self.expected), 1)
            which = floating[secret_draws.secret() % len(floating)]
            target = self.draws[k].tensors[which]
            at = self.traits.structure(which).picked(target, secret_draws.secret())
            if at is None:
                continue
            rms = correctness.scale_of(target).rms or 1.0
            del target
            # An outlier may matter where a small change does not, and upwards only.
            for tried in [STEPS[1:], STEPS[1:]] if outlier else [STEPS]:
                sign = -sign
                for step in tried:
                    if self._element(candidate, k, which, at, sign * step * rms):
                        break

    def _element(
        self, candidate: CandidateClient, k: int, which: int, at: torch.Tensor, by: float
    ) -> bool:
        """Judges base draw k with one element of one input moved, where float64 shows that it was.

        The draw is made anew where it is not kept, so that nothing else is held of it.
        """
        draw = self.draws[k]
        before = self._known(candidate, self.base_job(draw), k, bare=True)

        def moved() -> list[torch.Tensor]:
            tensors = list(draw.tensors)
            tensors[which] = tensors[which].clone()
            tensors[which].view(-1)[at] += by
            return tensors

        job = self.base_job(draw, moved())
        after = self._beside(candidate, job.tree, job.inputs)
        if not self._shows(job.known, before, after):
            return False
        del before
        answer, _ = self._both(candidate, job.tree, job.inputs, after)
        self._judge_closely(job.known, ELEMENT, job.tree, job.inputs, answer, after, candidate)
        return True

    def _in_a_row(self, candidate: CandidateClient) -> None:
        """Calls it some times without putting back what it carries, every second time until a
        position comes round. What is expected of a call follows from the state that the candidate
        showed after the one before, which was right: so the bound is that of one call.
        """
        if not self.calibration.carried.names:
            return
        for k in range(ROWS[self.level]):
            some = random.SystemRandom().randint(*CALLS_IN_A_ROW)
            calls = some if k % 3 else CALLS_IN_A_ROW[1]
            self._row_of_calls(candidate, calls, last=k % 2 == 0)

    def _row_of_calls(self, candidate: CandidateClient, calls: int, last: bool) -> None:
        carried, base = self.calibration.carried, self.calibration.families[BASE.name]
        state: list[torch.Tensor] = []
        tree: Any = None
        drawn: list[torch.Tensor] = []
        for i in range(calls):
            if i != 2:  # one call has what the call before it had, but for the state
                tree, drawn = self.reference.draw(secret_draws.secret(), last=last)
            args = drawn[: carried.given]
            inputs = self.reference.lend([*args, *(state or drawn[carried.given :])])
            try:
                expected = self._beside(candidate, tree, inputs)
            except WorkerError as e:
                if not i or ran_out(e) or e.ill:
                    raise
                return  # the reference itself has come to its end
            expected = self._lasting(expected)
            self._candidate_begin(candidate, tree, inputs, goes_on=i > 0)
            answer = candidate.finish_forward()
            self._judge_closely(base, IN_A_ROW, tree, inputs, answer, expected, candidate)
            state = answer.outputs[carried.state]

    def _shows(
        self, base: calibration.FamilyCalibration, before: Expected, after: Expected
    ) -> bool:
        for i, (a, b) in enumerate(zip(before.wide, after.wide, strict=True)):
            if not a.is_floating_point():
                if bool((a != b).any()):
                    return True
                continue
            change = correctness.error_of(b, a, None).max
            bound = correctness.bound_of(
                base.outputs[i], after.own[i], after.scales[i], self.calibration.floor(i).max
            ).max
            if math.isfinite(change) and change >= correctness.SENSITIVE * bound:
                return True
        return False

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
        self._look_closer(tree, inputs, expected, calibrate.PATTERNS)

    def seed(self) -> int:
        """Returns a secret seed."""
        return secret_draws.secret()

    def judge_call(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> str | None:
        """Judges a timed call on other inputs than ours.

        Returns one sentence where it is wrong. The reference must have this evaluation's weights.
        """
        self._need_room()
        job = self.base_job(self.draws[0], inputs)
        expected = self._expect(job.tree, job.inputs)
        wrong = self._wrong(job, outputs, expected)
        # Among hundreds of draws one may be far worse conditioned than any in calibration, and a
        # single pattern of signs may not show it.
        if wrong is not None:
            expected = self._lasting(expected)
        for patterns in (1, calibrate.PATTERNS):
            if wrong is None:
                break
            self._look_closer(job.tree, job.inputs, expected, patterns)
            wrong = self._wrong(job, outputs, expected)
        if wrong is not None and self.reference.parts is not None:
            del job, expected
            with self.reference.whole():
                return self.judge_call(inputs, outputs)
        return wrong

    def changed(self) -> list[torch.Tensor]:
        """Returns other weights, as a change leaves them."""
        return self._moved(self.original)

    def _follows(self, candidate: CandidateClient) -> None:
        """Changes the weights once more, in place, and sees whether the candidate follows."""
        changed = self.changed()
        self.reference.set_state(changed)
        if not candidate.set_state(self.reference.info["names"], changed, in_place=True):
            self.reference.set_state(self.state)
            if candidate.plan is not None and candidate.plan.taken:
                self.report.follows_weights = False  # the names were there
                return
            self.report.evidence.append(
                "its parameters have other names than the reference's: "
                "whether it follows a change is not known"
            )
            return
        with self.reference.whole():
            answer, expected = self._both(candidate, *self.draws[0].get())
        base = self.calibration.families["base"]

        def right() -> bool:
            outcomes = (
                correctness.compare(
                    got, expected, i, base.outputs[i], self.calibration.floor(i).max
                )
                for i, got in enumerate(answer.outputs)
            )
            return all(o.passed or o.slight for o in outcomes)

        follows = not answer.problem and right()
        if expected.decides and not answer.problem and not follows:
            self._look_closer(*self.draws[0].get(), expected)
            follows = right()
        self.report.follows_weights = follows
        self.report.caches_weights = not follows
        self._weights(candidate, self.state)

    # Other shapes.

    def general(self, reference: ReferenceClient, candidate: CandidateClient) -> None:
        """Records whether a candidate computes other shapes of the inputs too. Gates nothing; but
        what it is right on is what its exported file takes.

        Both are fresh processes with this evaluation's weights: either may die here.
        """
        judge = Verification(reference, self.calibration, self.level)
        judge.expected, judge.draws = self.expected, self.draws
        judge.inputs, judge.outputs = self.inputs, self.outputs
        judge.output_tree, judge.aliases = self.output_tree, self.aliases
        right: list[str] = []
        failed: list[str] = []
        # A kernel for one length of rows takes few of them as it takes many. First, where there may
        # be no room for the rest.
        if self._sparing:
            self.small = judge._small(candidate)
        for shape, tree, inputs, expected in judge._other_shapes():
            self.tried[shape] = False
            shapes = ", ".join(str(list(t.shape)) for t in inputs)
            try:
                why = judge._wrong_at(candidate, tree, inputs, expected)
            except WorkerError as e:
                why = f"it raises {e.type}"
            except WorkerFailure as e:
                # The process is gone, and with it the shapes that were to come.
                why = f"its process {e}" if isinstance(e, WorkerGone) else str(e)
                failed.append(f"{shapes} ({why})")
                break
            if why:
                failed.append(f"{shapes} ({why})")
            else:
                self.tried[shape] = True
                right.append(shapes)
        if not right and not failed:
            return
        self.report.general = not failed
        if self.small is None:
            self.small = judge._small(candidate)
        self.tried |= judge.tried
        parts = [f"right on {'; '.join(right)}"] if right else []
        parts += [f"fails on {'; '.join(failed)}"] if failed else []
        self.report.evidence.append(f"{SHARED.other_shapes}{', '.join(parts)}")

    def _other_shapes(self) -> Iterator[_Reshaped]:
        """Gives inputs of the shapes on which the reference itself runs."""
        growth = 1.1 if self._sparing else 2.0
        yield from self._reshaped_as(families.shapes_of(self._some_draws(), growth))

    def _some_draws(self) -> list[list[torch.Tensor]]:
        together = all(d.kept for d in self.draws)
        return [d.tensors for d in (self.draws if together else self.draws[:2])]

    def _reshaped_as(self, tried: Iterable[Sequence[families.Shape]]) -> Iterator[_Reshaped]:
        """Gives, of each list, inputs of the first shape on which the reference itself runs."""
        tree, draws = self.draws[0].tree, self._some_draws()
        for ways in tried:
            for shape in ways:
                inputs = families.reshaped(draws, shape)
                try:
                    expected = self._expect(tree, inputs)
                except WorkerError:
                    continue  # the reference cannot, so nobody need
                yield shape, tree, inputs, expected
                break

    def _small(
        self, candidate: CandidateClient
    ) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]] | None:
        """Returns few inputs on which it is right, as a tree and its tensors, and what is right."""
        with suppress(WorkerFailure):
            few = [families.small(self._some_draws())]
            for shape, tree, inputs, expected in self._reshaped_as(few):
                if not self._wrong_at(candidate, tree, inputs, expected):
                    self.tried[shape] = True
                    eager = expected.private().eager
                    assert eager is not None
                    return tree, inputs, eager
        return None

    def _wrong_at(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected,
    ) -> str:
        assert expected.eager is not None
        candidate.begin_forward(tree, inputs, expected.eager, self.output_tree, self.aliases)
        answer = candidate.finish_forward()
        if answer.problem:
            return answer.problem
        if answer.outside:
            return "it writes outside its inputs' memory"
        base = self.calibration.families["base"]
        for i, got in enumerate(answer.outputs):
            floor = self.calibration.floor(i).max
            o = correctness.compare(got, expected, i, base.outputs[i], floor)
            if not o.passed and expected.decides and expected.moved is None:
                self._look_closer(tree, inputs, expected)
                o = correctness.compare(got, expected, i, base.outputs[i], floor)
            if not o.passed and not o.unsettled:
                return o.reason
        return ""
