"""How the memory of a verification is managed: all at once, or one thing after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kwharness.base.calibration import Calibration
from kwharness.clients.candidate_client import Answer, CandidateClient, digest, same_bytes
from kwharness.clients.errors import WorkerError, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import give_back
from kwharness.numerics.correctness import Expected
from kwharness.numerics.families import BASE
from kwharness.verify import calibrate_family, secret_draws
from kwharness.verify.check_output import Attempt, Checker
from kwharness.verify.oracle import Oracle, Varied


class CheckingOracle(Oracle):
    """An oracle that also has a candidate checked, in an order for which there is memory."""

    @abstractmethod
    def check_all(
        self,
        checker: Checker,
        candidate: CandidateClient,
        jobs: Iterator[secret_draws.Job],
        wanted: set[str],
    ) -> tuple[list[Any], list[Varied]]:
        """Checks one job after the other, the base draws first. Raises Failed.

        Returns what is remembered of the first answer, and a job that passed of each wanted family,
        with what is right where there is room for it.
        """


def oracle_of(reference: ReferenceClient, calibration: Calibration) -> CheckingOracle:
    """Returns the oracle of a reference, which is told whether memory is spared."""
    return (OneByOne if reference.sparing else InMemory)(reference, calibration)


class InMemory(CheckingOracle):
    """There is room for the expected values of several draws, and for two processes at work."""

    growth = 2.0

    def __init__(self, reference: ReferenceClient, calibration: Calibration) -> None:
        super().__init__(reference, calibration)
        self._expected: list[Expected] = []  # of base draws
        self._several = 1
        self._kept = False  # whether all base draws are

    def first(
        self, job: secret_draws.Job, expected: Expected, draws: Sequence[secret_draws.Draw], n: int
    ) -> None:
        self._kept = all(d.kept for d in draws)
        self._several = n if self._kept else 1
        self._expected.append(expected.private())

    def known(
        self, candidate: CandidateClient, job: secret_draws.Job, k: int, *, bare: bool = False
    ) -> Expected:
        return self._expected[k]

    def elements(self) -> int:
        return len(self._expected)

    def lasting(self, expected: Expected) -> Expected:
        return expected.private()

    def outlive(self, expected: Expected) -> None:
        expected.last()

    def lighten(self, expected: Expected) -> None:
        """There is room."""

    def copies(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [t.clone() for t in tensors]

    def remembered(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        return list(outputs)

    def as_before(self, before: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
        return all(same_bytes(a, b) for a, b in zip(before, outputs, strict=True))

    def need_room(self) -> None:
        """There is."""

    def call(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        goes_on: bool = False,
    ) -> None:
        like = self.outputs, self.output_tree, self.aliases
        candidate.begin_forward(tree, inputs, *like, goes_on=goes_on)

    def beside(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        bare: bool = False,
    ) -> Expected:
        return self.expect(tree, inputs, bare=bare)

    def both(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected | None = None,
    ) -> tuple[Answer, Expected]:
        """At the same time."""
        if expected is not None:
            self.call(candidate, tree, inputs)
            return candidate.finish_forward(), expected
        self.begin(tree, inputs)
        try:
            self.call(candidate, tree, inputs)
        finally:
            expected = self.finish()
        return candidate.finish_forward(), expected

    def check_all(
        self,
        checker: Checker,
        candidate: CandidateClient,
        jobs: Iterator[secret_draws.Job],
        wanted: set[str],
    ) -> tuple[list[Any], list[Varied]]:
        """The reference works on the next job meanwhile."""
        varied: list[Varied] = []
        first: Answer | None = None
        job = next(jobs)
        expected = self._expected[0]
        following = next(jobs, None)
        while True:
            answer: Answer | None = None
            failed: WorkerError | None = None
            try:
                self.call(candidate, job.tree, job.inputs)
                candidate.wait_forward()  # not beside the reference: its threads need the cores
            except WorkerError as e:
                failed = e
            if following is not None:
                # More than one base draw is needed whole, where elements are moved.
                bare = following.family is not BASE or len(self._expected) >= self._several
                self.begin(following.tree, following.inputs, bare=bare)
            passed = True
            if failed is not None:
                if job.known.gates:
                    raise failed
                checker.raised(job)
            else:
                answer = candidate.answer()
                if first is None:
                    first = answer
                    checker.as_kernelbench(answer, expected)
                passed = checker.check(job.known, job.family.name, answer, expected)
                if passed:
                    _keep(job, expected, wanted, varied)
            # While the reference works, unless it is the one to draw.
            upcoming = next(jobs, None) if self._kept else None
            later = None if following is None else self.finish()
            if not passed and answer is not None:
                if later is not None:
                    later = later.private()  # more answers take its memory
                whole = self.closely(job, answer.outputs)
                near = partial(checker.check_near, Attempt.of(job, answer, whole))
                if checker.stands(candidate, job, near):
                    _keep(job, whole, wanted, varied)
            if following is None or later is None:
                if first is None:
                    raise RuntimeError("the reference's own draw was not checked")
                return self.remembered(first.outputs), varied
            if following.family is BASE and len(self._expected) < self._several:
                self._expected.append(later.private())
            job, expected = following, later
            following = upcoming if self._kept else next(jobs, None)


def _keep(
    job: secret_draws.Job, expected: Expected, wanted: set[str], varied: list[Varied]
) -> None:
    """Keeps what the candidate was right on, one job of each wanted family."""
    if job.family.name in wanted:
        wanted.remove(job.family.name)
        varied.append((job, expected.private()))


class OneByOne(CheckingOracle):
    """Memory is spared: nothing is held of one job while the next is checked."""

    growth = 1.1
    small_first = True

    def __init__(self, reference: ReferenceClient, calibration: Calibration) -> None:
        super().__init__(reference, calibration)
        self._room = secret_draws.Room()
        self._salt = secret_draws.secret()

    def first(
        self, job: secret_draws.Job, expected: Expected, draws: Sequence[secret_draws.Draw], n: int
    ) -> None:
        if self.calibration.by_rows:  # under these weights, too
            calibrate_family.rows_apart(self.reference, job.tree, job.inputs, expected)

    def known(
        self, candidate: CandidateClient, job: secret_draws.Job, k: int, *, bare: bool = False
    ) -> Expected:
        return self.beside(candidate, job.tree, job.inputs, bare=bare)

    def elements(self) -> int:
        return 1

    def lasting(self, expected: Expected) -> Expected:
        return expected

    def outlive(self, expected: Expected) -> None:
        """Nothing is written over what is asked for."""

    def lighten(self, expected: Expected) -> None:
        expected.lighten()

    def copies(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return tensors

    def remembered(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        return [digest(t, self._salt) for t in outputs]

    def as_before(self, before: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
        return self.remembered(outputs) == before

    def need_room(self) -> None:
        least = secret_draws.ROOM_TO_COMPUTE * self.bytes_of(self.inputs)
        if self.reference.device.room()[0] < least:
            self.reference.let_go()

    def call(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        goes_on: bool = False,
    ) -> None:
        device, size = self.reference.device, self.bytes_of(inputs)
        give_back(device, size, secret_draws.ROOMY[1])
        least = secret_draws.ROOM_TO_CALL * size
        if self.reference.parts is not None and device.room()[0] < least:
            self.reference.give_back()
        like = self.outputs, self.output_tree, self.aliases
        candidate.begin_forward(tree, inputs, *like, goes_on=goes_on)

    def beside(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        bare: bool = False,
    ) -> Expected:
        parts = self.reference.parts
        needs = secret_draws.ROOM_TO_COMPUTE * candidate.holds() if parts is None else parts.room
        if self.reference.device.room()[0] < needs:
            candidate.let_go()
        try:
            return self.expect(tree, inputs, bare=bare)
        except (WorkerError, torch.OutOfMemoryError, CudaError) as e:
            if not ran_out(e):
                raise
        self._clear(candidate)
        return self.expect(tree, inputs, bare=bare)

    def both(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected | None = None,
    ) -> tuple[Answer, Expected]:
        """One after the other."""
        if expected is None:
            expected = self.beside(candidate, tree, inputs)
        self.call(candidate, tree, inputs)
        return candidate.finish_forward(), expected

    def check_all(
        self,
        checker: Checker,
        candidate: CandidateClient,
        jobs: Iterator[secret_draws.Job],
        wanted: set[str],
    ) -> tuple[list[Any], list[Varied]]:
        """Nothing is held of one job while the next is checked."""
        varied: list[Varied] = []
        first: list[Any] | None = None
        while True:
            with self._staying():  # the draw's block, too
                job = next(jobs, None)
                if job is None:
                    break
                answer, right = self._check_one(checker, candidate, job, first is None)
                if right and job.family.name in wanted:
                    wanted.remove(job.family.name)
                    kept = job if job.again is None else replace(job, inputs=job.again)
                    varied.append((kept, None))
                    del kept
                if first is None and answer is not None:
                    first = self.remembered(answer.outputs)
                del job, answer
        if first is None:
            raise RuntimeError("the reference's own draw was not checked")
        return first, varied

    def _check_one(
        self, checker: Checker, candidate: CandidateClient, job: secret_draws.Job, first: bool
    ) -> tuple[Answer | None, bool]:
        """Checks one job by itself. Returns its answer, None where it raises, and whether it is
        right.
        """
        expected = self.beside(candidate, job.tree, job.inputs, bare=not first)
        try:
            self.call(candidate, job.tree, job.inputs)
            answer = candidate.finish_forward()
        except WorkerError as e:
            if ran_out(e) and self._room.stays:
                del expected
                self._clear(candidate)  # what stays may be what it lacks
                return self._check_one(checker, candidate, job, first)
            if job.known.gates:
                raise
            checker.raised(job)
            return None, False
        if first:
            checker.as_kernelbench(answer, expected)
        if checker.check(job.known, job.family.name, answer, expected):
            return answer, True
        del expected
        candidate.let_go()
        self.reference.let_go()  # many answers are held against each other
        return answer, checker.stands(candidate, job, partial(checker.check_at_last, job, answer))

    @contextmanager
    def _staying(self) -> Iterator[None]:
        """Has the reference use its blocks again, where there is room. What it draws and answers
        inside is gone with what it draws and answers inside another.
        """
        stayed = self._room.stays
        if self._room.there(self.reference.device, self.bytes_of(self.inputs)):
            with self.reference.keeping():
                yield
            return
        if stayed:
            self.reference.let_go()
        yield

    def _clear(self, candidate: CandidateClient) -> None:
        """Has nobody keep anything, now and from now on."""
        candidate.let_go()
        self._room.close()
        self.reference.let_go()
        self.reference.device.release()
