"""The oracle of a verification: has the reference say what to expect of a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kwharness.base.calibration import Calibration, FamilyCalibration, Scale
from kwharness.clients.candidate_client import Answer, CandidateClient
from kwharness.clients.errors import WorkerError, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.numerics import correctness, decision_sides, norms, planted_nan
from kwharness.numerics.correctness import Expected, Outcome
from kwharness.numerics.families import BASE, PLANTED, Family
from kwharness.verify import calibrate_family, calibration, secret_draws

Varied = tuple[secret_draws.Job, Expected | None]


class Oracle(ABC):
    """One reference, loaded, and how the memory of its answers is managed.

    ``memory.py`` has the two ways: all is there at once, or one thing after the other.
    """

    growth: float  # by which inputs of other shapes may be larger
    small_first = False  # whether few inputs are asked before others: there may be no room later

    def __init__(self, reference: ReferenceClient, calibration: Calibration) -> None:
        self.reference = reference
        self.calibration = calibration
        self.output_tree: Any = None
        self.aliases: list[int] = []
        self.inputs: list[torch.Tensor] = []  # as the reference draws them, without content
        self.outputs: list[torch.Tensor] = []  # as the reference's, without content

    def like(self, other: Oracle) -> Oracle:
        """Returns this, of the same calls as another one's."""
        self.inputs, self.outputs = other.inputs, other.outputs
        self.output_tree, self.aliases = other.output_tree, other.aliases
        return self

    # How memory is managed.

    @abstractmethod
    def first(
        self, job: secret_draws.Job, expected: Expected, draws: Sequence[secret_draws.Draw], n: int
    ) -> None:
        """Is given what is expected of the first of the base draws. ``n``: of how many of them it
        is asked for again and again.
        """

    @abstractmethod
    def known(
        self, candidate: CandidateClient, job: secret_draws.Job, k: int, *, bare: bool = False
    ) -> Expected:
        """Returns what is expected of base draw k, ``job``. The reference must be idle."""

    @abstractmethod
    def elements(self) -> int:
        """Returns of how many base draws elements are moved, at least 1."""

    @abstractmethod
    def lasting(self, expected: Expected) -> Expected:
        """Returns it in memory that outlives more answers of the reference."""

    @abstractmethod
    def outlive(self, expected: Expected) -> None:
        """Has its tensors outlive the reference's blocks, where others are asked for beside it."""

    @abstractmethod
    def lighten(self, expected: Expected) -> None:
        """Forgets what there may be no room for."""

    @abstractmethod
    def copies(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns what an answer gave, to be kept beside the next one's."""

    @abstractmethod
    def remembered(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        """Returns what is kept of outputs to see whether others are the same bit by bit."""

    @abstractmethod
    def as_before(self, before: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether outputs are those that were remembered."""

    @abstractmethod
    def need_room(self) -> None:
        """Has the reference keep nothing of other calls, where it may need the room."""

    @abstractmethod
    def call(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        goes_on: bool = False,
    ) -> None:
        """Begins a call of the candidate."""

    @abstractmethod
    def beside(
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

    @abstractmethod
    def both(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected | None = None,
    ) -> tuple[Answer, Expected]:
        """Runs reference and candidate on the same inputs."""

    def job(
        self,
        family: Family,
        known: FamilyCalibration,
        inputs: Sequence[torch.Tensor],
        draw: secret_draws.Draw,
    ) -> secret_draws.Job:
        """Returns what to compare on inputs made from a draw."""
        return secret_draws.Job(family, known, draw.tree, self.reference.lend(inputs))

    def base_job(
        self, draw: secret_draws.Draw, inputs: Sequence[torch.Tensor] | None = None
    ) -> secret_draws.Job:
        """Returns what to compare on inputs as the reference draws them: on a draw's own, where
        none are given.
        """
        known = self.calibration.base
        return self.job(BASE, known, draw.tensors if inputs is None else inputs, draw)

    def outcomes(
        self,
        known: FamilyCalibration,
        name: str,
        outputs: Sequence[torch.Tensor],
        expected: Expected,
    ) -> Iterator[Outcome]:
        """Compares output by output, within the bound of what is called so."""
        for i, got in enumerate(outputs):
            yield correctness.compare(
                got,
                expected,
                i,
                known.outputs[i],
                calibration.floor(self.calibration, i, name).max,
                mask=name == PLANTED.name,
                exact=known.exact,
            )

    def bytes_of(self, inputs: Sequence[torch.Tensor]) -> int:
        """Returns what a call has of inputs and outputs."""
        return sum(t.numel() * t.element_size() for t in [*inputs, *self.outputs])

    # What is expected.

    def expect(self, tree: Any, inputs: Sequence[torch.Tensor], *, bare: bool = False) -> Expected:
        """Returns what is expected: without eager's outputs, where ``bare``."""
        self.begin(tree, inputs, bare=bare)
        return self.finish()

    def begin(self, tree: Any, inputs: Sequence[torch.Tensor], *, bare: bool = False) -> None:
        """Asks the reference what ``finish`` waits for."""
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

    def finish(self) -> Expected:
        """Waits for what ``begin`` has asked for."""
        results = {r.mode: r for r in self.reference.finish_forward()}
        eager = results.get("eager")
        if eager is not None and eager.error is not None:
            raise eager.error
        wide = results.get("wide", eager)
        assert wide is not None
        if wide.error is not None:
            raise wide.error
        if self.output_tree is None and eager is not None:
            self.output_tree = eager.tree
            self.aliases = eager.aliases
        tensors = [t.double() if t.is_floating_point() else t for t in wide.tensors]
        beside = None if eager is None else eager.tensors
        decides = calibrate_family.has_sides(self.reference, self.calibration)
        e = correctness.complete(Expected(tensors, beside, wide.sources, decides=decides))
        if decides and e.own:
            # Eager may be on the other side of what is rounded: who fails is looked at with that.
            e.own = [Scale() for _ in e.own]
        return e

    def closely(
        self, job: secret_draws.Job, outputs: Sequence[torch.Tensor] | None = None
    ) -> Expected:
        """Returns all that is known of what to expect of a job, or as much as shows that these
        outputs are right. The reference must be idle.
        """
        effects = self._effects(job) if job.family.planted else None
        expected = self.lasting(self.expect(job.tree, job.inputs))
        if job.family.planted:
            expected.effects = effects or planted_nan.unknown(expected.wide)
        self.lighten(expected)
        if expected.decides and outputs is not None:
            self.look_aside(job.tree, job.inputs, expected)
            if all(o.passed for o in self.outcomes(job.known, job.family.name, outputs, expected)):
                expected.moved = [Scale() for _ in expected.wide]
                return expected
        # Simulated rounding says nothing beside NaN.
        self.look_closer(job.tree, job.inputs, expected, simulated=not job.family.planted)
        return expected

    def look_closer(
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
        self.outlive(expected)
        expected.moved = [Scale() for _ in expected.wide]
        floating = any(t.is_floating_point() for t in expected.wide)
        decided = expected.decides
        if decided and expected.sides is None:
            self.look_aside(tree, inputs, expected)
        if not self.calibration.wide or not floating:
            return
        for seed in range(patterns):
            modes = [f"moved:{seed}"] + [f"noise:{seed}"] * simulated
            for r in self.reference.each(tree, inputs, modes, decided=decided):
                rounding = r.mode.startswith("noise:")
                if r.error is not None:
                    if ran_out(r.error) and not rounding:  # which takes far more
                        raise r.error
                    return
                known = expected.own if rounding else expected.moved
                for n, (a, b) in enumerate(zip(expected.wide, r.tensors, strict=True)):
                    if a.is_floating_point():
                        skip = expected.skips[n] if expected.skips else None
                        known[n].widen(norms.error_where_finite(b, a, skip))
                    del b
                del r  # or it is still there while the next answer is made

    def look_aside(self, tree: Any, inputs: Sequence[torch.Tensor], expected: Expected) -> None:
        """Finds what else is right where float64 decides, and how far eager is off that."""
        calibrate_family.take_sides(
            expected, list(self.reference.each(tree, inputs, decision_sides.LANES))
        )
        correctness.complete(expected)

    def _effects(self, job: secret_draws.Job) -> list[planted_nan.Effect] | None:
        """Returns what became of what was planted, None where the reference raises."""
        assert job.again is not None

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            self.begin(job.tree, inputs, bare=True)
            return self.copies(self.finish().wide)

        try:
            return planted_nan.look(run, job.inputs, job.again.base)
        except WorkerError as e:
            if ran_out(e) or e.ill:
                raise
            return None
