"""What verification says of timed calls: inputs for them, and whether their outputs are right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from kwharness.clients.candidate_client import CandidateClient
from kwharness.numerics.families import BASE, FAMILIES
from kwharness.verify import calibrate, secret_draws
from kwharness.verify.verification import Verification

VARIED_BYTES = {"quick": 96 << 20, "certify": 256 << 20}  # of what comes among the timed calls


def choose_varied(v: Verification) -> set[str]:
    """Returns the families of which one input each will come among the timed calls."""
    names = [
        f.name
        for f in FAMILIES
        if f is not BASE
        and (known := v.calibration.family(f.name)) is not None
        and known.gates
        and not v.other_weights(known)
    ]
    size = sum(t.numel() * t.element_size() for t in v.oracle.inputs)
    # Expected values are kept in float64.
    size += sum(t.numel() * max(t.element_size(), 8) for t in v.oracle.outputs)
    room = v.reference.device.varied_bytes(VARIED_BYTES[v.level])
    count = max(room // max(size, 1), 1)
    return set(random.SystemRandom().sample(names, min(count, len(names))))


def check_call(
    v: Verification, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> str | None:
    """Judges a timed call on other inputs than ours.

    Returns one sentence where it is wrong. The reference must have this evaluation's weights.
    """
    v.oracle.need_room()
    job = v.oracle.base_job(v.draws[0], inputs)
    expected = v.oracle.expect(job.tree, job.inputs)
    wrong = v.checker.wrong(job, outputs, expected)
    # Among hundreds of draws one may be far worse conditioned than any in calibration, and a
    # single pattern of signs may not show it.
    if wrong is not None:
        expected = v.oracle.lasting(expected)
    for patterns in (1, calibrate.PATTERNS):
        if wrong is None:
            break
        v.oracle.look_closer(job.tree, job.inputs, expected, patterns)
        wrong = v.checker.wrong(job, outputs, expected)
    if wrong is not None and v.reference.parts is not None:
        del job, expected
        with v.reference.whole():
            return check_call(v, inputs, outputs)
    return wrong


def check_varied(v: Verification, i: int, outputs: Sequence[torch.Tensor]) -> str | None:
    """Judges a timed call on inputs of ``varied``. Returns one sentence where it is wrong."""
    job, expected = v.varied[i]
    v.oracle.need_room()
    job = replace(job, inputs=v.reference.lend(list(job.inputs)))
    wrong = v.checker.wrong(job, outputs, expected or v.oracle.expect(job.tree, job.inputs))
    if wrong is not None:  # where float32 itself goes astray only more of the reference tells
        wrong = v.checker.wrong(job, outputs, v.oracle.closely(job))
    if wrong is not None and v.reference.parts is not None:
        del job
        with v.reference.whole():
            return check_varied(v, i, outputs)
    if wrong is None:
        return None
    return f"on family {job.family.name} (inputs: {job.family.says}) {wrong}"


def right_again(v: Verification, candidate: CandidateClient, job: secret_draws.Job) -> bool:
    """Whether another process of a candidate is right on this, time after time.

    The reference must have this evaluation's weights.
    """
    job = job.remade()
    with v.reference.whole():
        expected = v.oracle.closely(job)
    for _ in range(secret_draws.AGAIN):
        answer, _ = v.oracle.both(candidate, job.tree, job.inputs, expected)
        if answer.problem or v.checker.wrong(job, answer.outputs, expected):
            return False
    return True
