"""How both sides are constructed where a candidate's weights are known by the seed alone, and the
first process of a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kwharness.clients.candidate_client import CandidateClient
from kwharness.model import weights
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.numerics import input_structure
from kwharness.referee import faults
from kwharness.referee.trial import Trial
from kwharness.verify import findings, initial_weights, secret_draws
from kwharness.verify.verification import CONSTRUCTIONS


def first(trial: Trial, anew: Callable[[], None]) -> CandidateClient:
    """Starts the first process that is verified. Where a candidate is judged by the seed, both
    sides are constructed anew, under a secret one that has nothing to do with those of inputs:
    ``anew`` is called before all is drawn again.
    """
    program, candidate = trial.program, None
    if program.plan is None:  # else its kernels were compiled in a process before
        candidate = trial.candidate(poison=True)
    assert program.plan is not None  # a loaded process has one
    if program.plan.other is not None:
        program.plan = _settled(trial, candidate, program.plan, program.plan.other)
        candidate = None
    if program.plan.by_seed and trial.made.seed == CONSTRUCTION_SEED:
        if candidate is not None:
            candidate.kill()
            candidate = None
        _construct_anew(trial, program.plan)
        anew()
        trial.draw()
    return candidate or trial.candidate(poison=True)


def _settled(
    trial: Trial, candidate: CandidateClient | None, plan: weights.Plan, other: weights.Plan
) -> weights.Plan:
    """Returns by which of names and values it goes where one contradicts the other: layers of one
    shape may be constructed in another order, or have each other's names.
    """
    client = candidate or trial.candidate(poison=True)
    try:
        with trial.verifying(client), faults.faults("being tried", client):
            right = trial.verification.right_on_first(client)
    except faults.Fault:
        right = False  # it is judged by the other
    finally:
        client.kill()
    return replace(plan, other=None) if right else other


def _construct_anew(trial: Trial, plan: weights.Plan) -> None:
    """Has both sides constructed under a secret seed, and what all constructions give its weights
    moved as they are made, as far as both sides make them alike.
    """
    made, reference, construct = trial.made, trial.reference, trial.processes.construct
    info, original, left = reference.info, trial.verification.original, set(plan.left)
    made.breaks, looks = [], [initial_weights.look(info.names, original, left)]
    for _ in range(input_structure.count_of(original) - 1):
        construct(reference, secret_draws.secret())
        looks.append(initial_weights.look(info.names, reference.state(), left))
    tied = {n: info.names[i] for n, i in zip(info.names, info.tied, strict=True)}
    made.shared = initial_weights.found(looks, left, tied)
    wanted = made.shared.names()
    while wanted != made.breaks:
        made.breaks = wanted
        construct(reference, made.seed)
        wanted = _made_alike(trial)
    if made.breaks:
        now = initial_weights.look(info.names, reference.state(), left)
        made.shared = made.shared.still(looks[-1], now)


def _made_alike(trial: Trial) -> list[str]:
    """Returns of which of its weights a candidate moves what the reference has moved, as often: one
    that makes them otherwise cannot be judged by that.
    """
    breaks = trial.reference.constructed.breaks
    if not any(b.times for b in breaks):
        return []
    try:
        candidate = trial.candidate(poison=True)
    except faults.Fault:
        return []  # the contents may be what it asks for
    candidate.kill()
    alike = zip(breaks, candidate.broken, strict=True)
    return sorted(n for b, times in alike if b.times and b.times == times for n in b.names)


def keeps_what_it_computed(trial: Trial, failed: findings.Failed) -> tuple[str, str] | None:
    """Returns reason and hint where a candidate is right with the weights that it was constructed
    with, and has tensors that it computed of them, which follow no others.
    """
    plan, verification, made = trial.plan, trial.verification, trial.made
    if failed.status != "wrong" or plan.by_seed or not plan.unknown:
        return None
    own, client = made.state, None
    try:
        made.state = verification.original
        client = trial.candidate(poison=True)
        with trial.verifying(client), faults.faults("being tried again", client):
            right = verification.right_as_constructed(client)
    except (faults.Fault, findings.Failed):
        right = False  # how it failed before is told
    finally:
        made.state = own
        if client is not None:
            client.kill()
    return plan.stale(str(failed)) if right else None


def under_other_seeds(trial: Trial) -> None:
    """Judges a candidate that is judged by the seed under others, too: each time both sides are
    constructed anew, the candidate in a process of its own.
    """
    made, verification, reference = trial.made, trial.verification, trial.reference
    if verification.plan is None:
        return
    state, seed = made.state, made.seed
    for _ in range(CONSTRUCTIONS[trial.context.level] - 1):
        trial.processes.construct(reference, secret_draws.secret())
        made.state = verification.constructed()
        _check_constructed(trial)
    made.state = state
    trial.processes.construct(reference, seed)
    reference.set_state(state)


def _check_constructed(trial: Trial) -> None:
    candidate = trial.candidate(poison=True)
    doing = "being constructed under another seed"
    try:
        with trial.verifying(candidate), faults.faults(doing, candidate):
            trial.verification.check_constructed(candidate)
    except findings.Failed as e:
        raise faults.Fault(e.status, f"constructed under another seed: {e}", e.hint) from e
    finally:
        candidate.kill()
