"""Verification: holds a candidate to what an honest error is on its task.

It draws under secret seeds, has the reference compute the expected values while the candidate
computes its own, and compares private copies of both. calibrate.py found before what is honest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kwharness.clients.candidate_client import CandidateClient
from kwharness.numerics.families import (
    BASE,
    FAMILIES,
    FEW_FACTORS,
    FEW_TERMS,
    ORDERED,
    REPEATED,
    Family,
)
from kwharness.verify import (
    asked_of_inputs,
    asked_of_weights,
    findings,
    secret_draws,
    timed_calls,
)
from kwharness.verify.check_output import Attempt
from kwharness.verify.verification import Verification


def run(
    v: Verification, candidate: CandidateClient, fresh: secret_draws.Fresh | None = None
) -> findings.Report:
    """Raises Failed at the first gate not passed, and what the candidate's client raises.

    ``fresh`` starts another process of the candidate, for one that keeps its first weights.
    """
    _repeat_first(v, candidate, _check_all(v, candidate))
    v.report.seeds = len(v.draws)
    asked_of_weights.exact(v, candidate, fresh)
    asked_of_inputs.elements(v, candidate)
    asked_of_inputs.boundaries(v, candidate)
    asked_of_inputs.in_a_row(v, candidate)
    if v.level == "certify" and any(v.may_move()):
        asked_of_weights.follows(v, candidate)
    _tell_of_sides(v)
    return v.report


def _check_all(v: Verification, candidate: CandidateClient) -> list[Any]:
    """Checks all draws of all families. Returns what is remembered of the first answer."""
    wanted = timed_calls.choose_varied(v)
    first, varied = v.oracle.check_all(v.checker, candidate, _jobs(v), wanted)
    v.varied += varied
    return first


def _jobs(v: Verification) -> Iterator[secret_draws.Job]:
    """All that is compared under the weights of this evaluation, base draws first."""
    for draw in v.draws:
        yield v.oracle.base_job(draw)
    left_out = _left_out(v)
    for family in FAMILIES[1:]:
        known = v.calibration.family(family.name)
        if known is None or v.other_weights(known) or family in left_out:
            continue
        for k, seed in enumerate(_seeds(v, family)):
            draw = v.draws[k % len(v.draws)]
            again = secret_draws.Remade(draw, family, seed, v.traits)
            # Nothing else holds what is made: there may be little room.
            yield replace(v.oracle.job(family, known, again.made(), draw), again=again)


def _left_out(v: Verification) -> set[Family]:
    """Returns what is asked another time: at quick two of three times few factors, and all but
    one of the families for outputs of many terms, nobody knows which.
    """
    if v.level != "quick":
        return set()
    chance = random.SystemRandom()
    out = {FEW_FACTORS} if chance.randrange(3) else set()
    in_turn = {ORDERED, FEW_TERMS, REPEATED} if v.calibration.many_terms else set()
    if asked := [f for f in in_turn if v.calibration.family(f.name)]:
        out |= in_turn - {chance.choice(asked)}
    return out


def _seeds(v: Verification, family: Family) -> list[int]:
    """Returns a seed for each time that a family is asked: at certify once for each line."""
    seeds = [secret_draws.secret() for _ in range(secret_draws.SEEDS_PER_FAMILY[v.level])]
    lines = {ORDERED: v.traits.lines, FEW_FACTORS: v.traits.factors}.get(family)
    if lines and v.level == "certify":
        count = len(lines)
        seeds += [secret_draws.secret() for _ in range(count - len(seeds))]
        seeds = [s - s % count + k % count for k, s in enumerate(seeds)]
    return seeds


def _repeat_first(v: Verification, candidate: CandidateClient, before: list[Any]) -> None:
    """Gives the first input again: what comes of it is within the bound, by the same gate, and
    a bitwise difference is recorded.
    """
    job = v.oracle.base_job(v.draws[0])
    expected = v.oracle.known(candidate, job, 0)
    second, expected = v.oracle.both(candidate, job.tree, job.inputs, expected)
    v.checker.check_closely(Attempt.of(job, second, expected), candidate)
    if base := v.report.family(BASE.name):
        base.seeds -= 1
    v.report.deterministic = v.oracle.as_before(before, second.outputs)


def _tell_of_sides(v: Verification) -> None:
    r = v.report
    if r.either:
        r.evidence.append(
            f"{r.either} of {r.compared} elements had two right values, and it gave the other: "
            "float64 is within the bound of where it is rounded, compared, counted or ordered"
        )
