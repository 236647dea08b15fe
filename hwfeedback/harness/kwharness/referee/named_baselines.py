"""Programs that somebody has registered as baselines of a task."""

from __future__ import annotations

from kwharness.base.requests import NamedBaseline
from kwharness.clients.candidate_client import CandidateClient
from kwharness.referee import called, faults
from kwharness.referee.builds import Builds
from kwharness.referee.program import Program
from kwharness.referee.trial import Trial


class NamedBaselines:
    """Those of one evaluation: each is built, and known to be right, once."""

    def __init__(self, named: list[NamedBaseline], builds: Builds) -> None:
        self.named = {n.name: n for n in named}
        self.builds = builds
        self._programs: dict[str, Program] = {}

    def start(self, name: str, trial: Trial) -> CandidateClient:
        """Starts a process of one. Raises a Fault where it is none to be held against."""
        given, program = self.named[name], self._programs.get(name)
        if program is None:
            program = Program(given.source, given.source)
            program.build = built = self.builds.build(given, lambda _: None)
            if built.status:
                raise faults.Fault(built.status, built.reason)
            program.workshop = self.builds.workshop(program.text, built.known())
            if program.compiles_when_called(trial.context):
                called.add_kernels(trial, program)
            _settle(trial, program)
            self._programs[name] = program
        return _started(trial, program)


def _started(trial: Trial, program: Program) -> CandidateClient:
    client = CandidateClient(trial.processes.empty(False), trial.forward_s, trial.context.device)
    client.waits = True  # what it holds must be gone when the candidate is timed
    try:
        trial.load(client, program=program)
    except BaseException:
        client.kill()
        raise
    return client


def _settle(trial: Trial, program: Program) -> None:
    """Finds by what a named baseline gets the reference's weights. Raises a Fault where it is right
    by nothing that is known: what it takes with other weights would mean little.
    """
    right = _is_right(trial, program)
    if not right and program.plan is not None and program.plan.other is not None:
        program.plan = program.plan.other
        right = _is_right(trial, program)
    if not right:
        mode = program.plan.mode if program.plan is not None else ""
        raise faults.Fault(
            "wrong",
            f"it is not right with the reference's weights, which it is known to have {mode}",
        )


def _is_right(trial: Trial, program: Program) -> bool:
    """Whether a named baseline is right on a draw. Weights that it makes something of when it is
    constructed stay as they are constructed, in the reference, too.
    """
    client, verification = _started(trial, program), trial.verification
    assert program.plan is not None  # it was loaded
    moved = trial.reference.info.moved
    kept = [m and not may for m, may in zip(moved, program.plan.may_move(moved), strict=True)]
    pairs = zip(kept, verification.original, trial.made.state, strict=True)
    try:
        with faults.faults("being tried", client):
            return verification.right_with(client, [first if k else now for k, first, now in pairs])
    finally:
        client.kill()
        client.worker.wait(10)
