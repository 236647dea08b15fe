"""What is asked of a candidate with other weights than it was constructed with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kwharness.base.calibration import FamilyCalibration
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerFailure
from kwharness.numerics import families
from kwharness.numerics.families import BASE
from kwharness.verify import findings, secret_draws
from kwharness.verify.check_output import Attempt
from kwharness.verify.verification import Verification


def exact(v: Verification, candidate: CandidateClient, fresh: secret_draws.Fresh | None) -> None:
    """Zeros and ones as inputs and weights, where the task is linear: no error at all.

    A candidate may pack its weights at the first call. One that fails with these, which are
    its second, is asked again in a process that has met no others.
    """
    known = v.calibration.family("zero_one")
    if known is None or not v.other_weights(known) or v.plan is not None:
        return
    state = secret_draws.zero_one(v.original, v.reference.info.trainable)
    _weights(v, candidate, state)
    try:
        _exact_forwards(v, candidate, known)
    except findings.Failed:
        if fresh is None:
            raise
        v.report.put("zero_one", None)
        another = fresh()
        try:
            another.set_state(v.reference.info.names, state)
            _exact_forwards(v, another, known)
        except WorkerFailure as e:
            if e.client is another:
                e.client = candidate  # whichever of its processes it was
            raise
        finally:
            another.kill()
    _weights(v, candidate, v.state)


def _exact_forwards(v: Verification, candidate: CandidateClient, known: FamilyCalibration) -> None:
    for draw in v.draws[: secret_draws.SEEDS_PER_FAMILY[v.level]]:
        tree, inputs = draw.get()
        inputs = families.apply(
            families.BY_NAME["zero_one"], inputs, secret_draws.secret(), v.traits
        )
        answer, expected = v.oracle.both(candidate, tree, inputs)
        a = Attempt(known, "zero_one", tree, inputs, answer, expected)
        v.checker.check_closely(a, candidate)


def _weights(v: Verification, candidate: CandidateClient, state: Sequence[torch.Tensor]) -> None:
    v.reference.set_state(state)
    candidate.set_state(v.reference.info.names, state)


def follows(v: Verification, candidate: CandidateClient) -> None:
    """Changes the weights once more, in place, and sees whether the candidate follows."""
    changed = v.changed()
    v.reference.set_state(changed)
    if not candidate.set_state(v.reference.info.names, changed, in_place=True):
        v.reference.set_state(v.state)
        if candidate.plan is not None and candidate.plan.taken:
            v.report.follows_weights = False  # the names were there
            return
        v.report.evidence.append(
            "its parameters have other names than the reference's: "
            "whether it follows a change is not known"
        )
        return
    with v.reference.whole():
        answer, expected = v.oracle.both(candidate, *v.draws[0].get())
    base = v.calibration.base

    def right() -> bool:
        outcomes = v.oracle.outcomes(base, BASE.name, answer.outputs, expected)
        return all(o.passed or o.slight for o in outcomes)

    follows = not answer.problem and right()
    if expected.decides and not answer.problem and not follows:
        v.oracle.look_closer(*v.draws[0].get(), expected)
        follows = right()
    v.report.follows_weights = follows
    v.report.caches_weights = not follows
    _weights(v, candidate, v.state)
