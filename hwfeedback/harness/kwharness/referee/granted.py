"""What a candidate takes for granted, and on which other shapes it is right."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kwharness.base.verdicts import Verdict
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.client import Client
from kwharness.clients.errors import WorkerFailure, ran_out, sentence
from kwharness.machine.cuda_driver import CudaError
from kwharness.model import weights
from kwharness.referee import called, faults
from kwharness.referee.trial import Trial
from kwharness.verify import asked_of_assumptions

ASSUMING_S = {"quick": 15.0, "certify": 60.0}  # as trial.PATIENCE_S


def assume(trial: Trial, v: Verdict) -> None:
    """Looks for what it takes for granted. Raises a Fault where that may not be."""
    context, made = trial.context, trial.made
    patience = faults.Patience(ASSUMING_S[context.level])
    own = made.state

    def start(state: Sequence[torch.Tensor]) -> CandidateClient:
        made.state = list(state)
        try:
            return trial.candidate(poison=True, patience=patience)
        except faults.Fault as e:
            raise asked_of_assumptions.NotStarted(str(e)) from e
        finally:
            made.state = own

    context.progress("verify", "what it takes for granted")
    told = [*asked_of_assumptions.told(trial.verification, start), *_of_weights(trial)]
    v.assumes = [sentence(s) for s in told]
    if v.assumes and context.rules.strict_inputs:
        raise faults.Fault(
            "wrong",
            f"its inputs are strict, and it {v.assumes[0]}",
            "compute what the reference computes whatever the inputs are",
        )


def _of_weights(trial: Trial) -> list[str]:
    """Returns what it takes for granted of weights, one sentence each."""
    plan = trial.program.plan
    said = [*(plan.told() if plan is not None else ()), *trial.made.shared.told()]
    if trial.verification.report.follows_weights is False:
        said.append(weights.NOT_FOLLOWED)
    return said


def try_other_shapes(trial: Trial, orders: Sequence[Sequence[int]]) -> None:
    """Tries other shapes, in processes of their own: what happens there changes no verdict.
    ``orders`` are the inputs': see tensors.layout_of.
    """
    verification, program = trial.verification, trial.program
    workers: list[Client] = []
    try:
        reference = trial.processes.reference(compiles=False)
        workers.append(reference)
        reference.set_state(trial.made.state)
        reference.orders = orders  # it draws nothing
        beside = trial.beside(reference)
        if program.torch_compiles(trial.context):  # for each shape anew
            candidate = called.that_compiles(beside, program)
        else:
            candidate = beside.candidate(poison=True)
        workers.append(candidate)
        verification.general(reference, candidate)
    except (faults.Fault, WorkerFailure, torch.OutOfMemoryError, CudaError) as e:
        if isinstance(e, CudaError) and not ran_out(e):
            raise
        said = str(e).partition("\n")[0]
        verification.report.evidence.append(f"other shapes were not tried to the end: {said}")
    finally:
        for w in workers:
            w.kill()
            w.worker.wait(10)
