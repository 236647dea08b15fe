"""Asks a candidate, in processes of its own, what it takes for granted: see assumptions.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kwharness.clients.candidate_client import Answer, CandidateClient
from kwharness.clients.errors import WorkerError, WorkerFailure, WorkerGone
from kwharness.numerics.correctness import Expected
from kwharness.verify import assumptions
from kwharness.verify.assumptions import Borne, Case, Change
from kwharness.verify.verification import Verification


class NotStarted(Exception):
    """A candidate's process did not come so far as to be asked; the message is a clause."""


Start = Callable[[Sequence[torch.Tensor]], CandidateClient]
WRONG = "it is wrong"


def told(v: Verification, start: Start) -> list[str]:
    """Returns what a candidate, which is right, takes for granted, one sentence each.

    ``start`` starts a process of it with other weights and buffers. Raises what the reference's
    client raises.
    """
    said = [assumptions.NO_NAN] if v.report.drops_nan else []
    said += [assumptions.NO_INFINITY] if v.report.loses_infinity else []
    return said + _Asking(v, start).told()


class _Asking:
    """Asks one candidate, in processes of its own."""

    def __init__(self, verification: Verification, start: Start) -> None:
        """``start`` starts a process with these weights and buffers. Raises NotStarted."""
        self._verification, self._start = verification, start
        self._client: CandidateClient | None = None
        self._plain: list[torch.Tensor] | None = None  # what it gives where nothing is changed
        draw = verification.draws[0]
        self._base = Case(draw.tree, list(draw.tensors), list(verification.state))
        self._seed = verification.seed()

    def told(self) -> list[str]:
        """Returns what the candidate takes for granted, one sentence each."""
        verification = self._verification
        known = verification.calibration.assumptions
        if not known:
            return []
        info = verification.reference.info
        # What it has been right with as several seeds make it is no constant.
        known_to_vary = {*verification.calibration.carried.names, *verification.by_seed}
        fixed = assumptions.constant(info, list(known_to_vary))
        all_ = assumptions.changes_of(
            self._base,
            verification.checker.input_names,
            verification.traits.structures,
            info.names,
            fixed,
        )
        asked = [(c, known[c.key]) for c in all_ if c.key in known]
        inputs, buffers = ([x for x in asked if x[0].buffer == b] for b in (False, True))
        try:
            said = self._found(inputs)
            self._end()
            return said + self._found(buffers)
        finally:
            self._end()
            if buffers:
                verification.reference.set_state(verification.state)

    def _found(self, changes: Sequence[tuple[Change, int]]) -> list[str]:
        """At quick all is changed at once first: who is right then takes nothing for granted."""
        failed = False
        if self._verification.level == "quick" and len(changes) > 1:
            why, _ = self._ask(self._changed(changes))
            if why == "":
                return []
            failed = why is not None
        told: list[str] = []
        for change, way in changes:
            if change.buffer:
                self._end()  # it may keep what it made of the first ones that it saw
            why, ignored = self._ask(self._changed([(change, way)]), change.ignorable)
            if why:
                told.append(change.told(ignored) + ("" if why == WRONG else f": {why}"))
        if failed and not told:
            names = ", ".join(c.name for c, _ in changes)
            told.append(
                f"is right only for inputs like those drawn: with {names} changed it is wrong"
            )
        return told

    def _changed(self, changes: Sequence[tuple[Change, int]]) -> Case:
        case = self._base
        for change, way in changes:
            case = change.ways[way](case, assumptions.generator(self._base, self._seed))
        return case

    def _ask(self, case: Case, ignorable: bool = False) -> tuple[str | None, bool]:
        """Returns what the candidate does wrong on a case, "" where it is right, None where nothing
        is known of it; and whether it gives what it gives where nothing is changed.
        """
        verification = self._verification
        if case.state is not self._base.state:
            verification.reference.set_state(case.state)
        borne = assumptions.bear(verification.reference, verification.calibration, case)
        if borne is None:
            return None, False
        try:
            client = self._process(case)
            answer = self._forward(client, case, borne)
            if answer.problem or answer.outside or self._wrong(case, borne.expected, answer):
                return WRONG, ignorable and self._same(client, answer)
            return "", False
        except NotStarted as e:
            return str(e), False
        except WorkerError as e:
            return f"it raises {e.type}", False
        except WorkerFailure as e:
            if e.client is not self._client:
                raise
            self._end()
            return f"its process {e}" if isinstance(e, WorkerGone) else str(e), False

    def _process(self, case: Case) -> CandidateClient:
        if self._client is None:
            self._client = self._start(case.state)
        return self._client

    def _forward(self, client: CandidateClient, case: Case, borne: Borne) -> Answer:
        wanted = borne.expected.eager
        assert wanted is not None
        client.begin_forward(case.tree, case.tensors, wanted, borne.tree, borne.aliases)
        return client.finish_forward()

    def _wrong(self, case: Case, expected: Expected, answer: Answer) -> bool:
        c = self._verification.calibration
        if not assumptions.wrong_on(c, expected, answer.outputs):
            return False
        self._verification.look_closer(case.tree, case.tensors, expected)
        return assumptions.wrong_on(c, expected, answer.outputs)

    def _same(self, client: CandidateClient, answer: Answer) -> bool:
        if self._plain is None:
            reference = self._verification.reference
            borne = assumptions.bear(reference, self._verification.calibration, self._base)
            if borne is None:
                return False
            self._plain = self._forward(client, self._base, borne).outputs
        pairs = zip(self._plain, answer.outputs, strict=False)
        return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)

    def _end(self) -> None:
        if self._client is not None:
            self._client.kill()
            self._client.worker.wait(10)
        self._client = self._plain = None
