"""What packing a candidate's weights takes, which no timed call has done."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress

import torch

from kwharness.base.verdicts import TimingReport
from kwharness.clients.errors import ran_out
from kwharness.machine.cuda_driver import CudaError
from kwharness.referee import faults
from kwharness.referee.trial import Trial
from kwharness.timing import weight_packing


def note(trial: Trial, report: TimingReport) -> None:
    """Notes it. A candidate that does not bear it has no such note."""
    verification, plan = trial.verification, trial.plan
    report.note(*([weight_packing.AT_CONSTRUCTION] if plan.by_seed else []))
    keeps = verification.report.caches_weights
    if keeps is None:
        return  # none of its weights is known to be the reference's
    with trial.context.costs.part("packing"), suppress(faults.Fault):
        report.note(*_told(trial, keeps=keeps))


def _told(trial: Trial, *, keeps: bool) -> list[str]:
    verification, names = trial.verification, trial.reference.info.names
    states = itertools.cycle([verification.changed(), trial.made.state])
    tree, inputs = verification.draws[0].get()
    oracle = verification.oracle
    patience = faults.Patience(weight_packing.PACKING_S)
    client = trial.candidate(poison=False, patience=patience)

    def call() -> float:
        client.begin_forward(tree, inputs, oracle.outputs, oracle.output_tree, oracle.aliases)
        began = time.perf_counter()
        client.wait_forward()
        return time.perf_counter() - began

    def change() -> None:
        if keeps:
            trial.construct(client, trial.program)
        else:
            client.set_state(names, next(states), in_place=True)

    try:
        with faults.faults("packing its weights", client):
            told = weight_packing.told(change, call, keeps=keeps)
            return [told] if told else []
    except (torch.OutOfMemoryError, CudaError) as e:
        if not ran_out(e):
            raise
        return []
    finally:
        client.kill()
