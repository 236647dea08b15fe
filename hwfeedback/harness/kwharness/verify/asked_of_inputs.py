"""What is asked beside families: inputs near to decisions, an element moved, calls in a row."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from kwharness.base.calibration import FamilyCalibration
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerError, ran_out
from kwharness.numerics import correctness, norms
from kwharness.numerics.correctness import Expected
from kwharness.numerics.families import BOUNDARIES
from kwharness.verify import calibrate, calibration, secret_draws
from kwharness.verify.check_output import ELEMENT, ELEMENTS, IN_A_ROW, Attempt
from kwharness.verify.verification import Verification

BOUNDARIES_IN_TURN = 3  # quick evaluations, of which nobody knows the one that asks about them
# Rows of calls, of so many each.
ROWS = {"quick": 2, "certify": 4}
CALLS_IN_A_ROW = (2, 5)
# By how many root mean squares the element is moved, until float64 shows it.
STEPS = (8.0, 1e3, 1e5)


def boundaries(v: Verification, candidate: CandidateClient) -> None:
    """Asks about inputs near to where the reference decides: a bias shows there. At quick in
    one evaluation of several: it takes as long as all else.
    """
    known = v.calibration.family(BOUNDARIES.name)
    if not v.calibration.aimed or known is None:
        return
    if v.level == "quick" and secret_draws.secret() % BOUNDARIES_IN_TURN:
        return
    for k in range(secret_draws.SEEDS_PER_FAMILY[v.level]):
        tree, inputs = v.draws[k % len(v.draws)].get()
        aimed = v.reference.aimed(
            tree, inputs, calibrate.free_elements(inputs, v.traits), secret_draws.secret()
        )
        if aimed is None:
            continue
        answer, expected = v.oracle.both(candidate, tree, aimed)
        a = Attempt(known, BOUNDARIES.name, tree, aimed, answer, expected)
        v.checker.check_closely(a, candidate)


def elements(v: Verification, candidate: CandidateClient) -> None:
    """Moves one element, and all that equal it in every draw, so far that float64 changes by
    many bounds: who left it out does not follow.
    """
    floating = [i for i, t in enumerate(v.oracle.inputs) if t.is_floating_point() and t.numel()]
    if not floating:
        return
    for k in range(ELEMENTS[v.level]):
        sign, outlier = 1 if secret_draws.secret() & 1 else -1, bool(k % 2)
        k %= v.oracle.elements()
        which = floating[secret_draws.secret() % len(floating)]
        target = v.draws[k].tensors[which]
        at = v.traits.structure(which).picked(target, secret_draws.secret())
        if at is None:
            continue
        rms = norms.scale_of(target).rms or 1.0
        del target
        # An outlier may matter where a small change does not, and upwards only.
        for tried in [STEPS[1:], STEPS[1:]] if outlier else [STEPS]:
            sign = -sign
            for step in tried:
                if _element(v, candidate, k, which, at, sign * step * rms):
                    break


def _element(
    v: Verification, candidate: CandidateClient, k: int, which: int, at: torch.Tensor, by: float
) -> bool:
    """Checks base draw k with one element of one input moved, where float64 shows that it was.

    The draw is made anew where it is not kept, so that nothing else is held of it.
    """
    draw = v.draws[k]
    before = v.oracle.known(candidate, v.oracle.base_job(draw), k, bare=True)

    def moved() -> list[torch.Tensor]:
        tensors = list(draw.tensors)
        tensors[which] = tensors[which].clone()
        tensors[which].view(-1)[at] += by
        return tensors

    job = v.oracle.base_job(draw, moved())
    after = v.oracle.beside(candidate, job.tree, job.inputs)
    if not _shows(v, job.known, before, after):
        return False
    del before
    answer, _ = v.oracle.both(candidate, job.tree, job.inputs, after)
    a = Attempt(job.known, ELEMENT, job.tree, job.inputs, answer, after)
    v.checker.check_closely(a, candidate)
    return True


def in_a_row(v: Verification, candidate: CandidateClient) -> None:
    """Calls it some times without putting back what it carries, every second time until a
    position comes round. What is expected of a call follows from the state that the candidate
    showed after the one before, which was right: so the bound is that of one call.
    """
    if not v.calibration.carried.names:
        return
    for k in range(ROWS[v.level]):
        some = random.SystemRandom().randint(*CALLS_IN_A_ROW)
        calls = some if k % 3 else CALLS_IN_A_ROW[1]
        _row_of_calls(v, candidate, calls, last=k % 2 == 0)


def _row_of_calls(v: Verification, candidate: CandidateClient, calls: int, last: bool) -> None:
    carried, base = v.calibration.carried, v.calibration.base
    state: list[torch.Tensor] = []
    tree: Any = None
    drawn: list[torch.Tensor] = []
    for i in range(calls):
        if i != 2:  # one call has what the call before it had, but for the state
            tree, drawn = v.reference.draw(secret_draws.secret(), last=last)
        args = drawn[: carried.given]
        inputs = v.reference.lend([*args, *(state or drawn[carried.given :])])
        try:
            expected = v.oracle.beside(candidate, tree, inputs)
        except WorkerError as e:
            if not i or ran_out(e) or e.ill:
                raise
            return  # the reference itself has come to its end
        expected = v.oracle.lasting(expected)
        v.oracle.call(candidate, tree, inputs, goes_on=i > 0)
        answer = candidate.finish_forward()
        a = Attempt(base, IN_A_ROW, tree, inputs, answer, expected)
        v.checker.check_closely(a, candidate)
        state = answer.outputs[carried.state]


def _shows(v: Verification, base: FamilyCalibration, before: Expected, after: Expected) -> bool:
    for i, (a, b) in enumerate(zip(before.wide, after.wide, strict=True)):
        if not a.is_floating_point():
            if bool((a != b).any()):
                return True
            continue
        change = norms.error_of(b, a, None).max
        bound = correctness.bound_of(
            base.outputs[i], after.own[i], after.scales[i], calibration.floor(v.calibration, i).max
        ).max
        if math.isfinite(change) and change >= correctness.SENSITIVE * bound:
            return True
    return False
