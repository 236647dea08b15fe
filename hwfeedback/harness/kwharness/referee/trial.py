"""What a candidate is tried with: a reference that has drawn and computed, and how processes of the
candidate get the same inputs and weights.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kwharness.base.built import Artifact
from kwharness.base.calibration import Calibration
from kwharness.base.operations import Trees
from kwharness.build import object_cache
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.reference_client import ReferenceClient
from kwharness.model import weights
from kwharness.referee import faults
from kwharness.referee.context import Context
from kwharness.referee.processes import LOAD_S, Constructed, Processes
from kwharness.referee.program import Program
from kwharness.torch_compile import called_cache
from kwharness.verify.verification import Verification

FORWARD_S = 10.0  # a forward may take this long, and
FORWARD_EAGERS = 200.0  # this many times eager's time
# All that is asked of a candidate before it is timed: for so long its answers are waited for, and
# for what so many forwards may take over eager's time.
PATIENCE_S = {"quick": 90.0, "certify": 300.0}
PATIENCE_CALLS = {"quick": 64, "certify": 256}
CALLED_S = 120.0  # a candidate's first call compiles, and it may be tuned
# A candidate may have so much memory of its own, beside its outputs, before it is who took what
# others could not get.
FAIR_BYTES = 2 << 30


class Trial:
    """It exists once the reference has drawn: all before that needs no candidate."""

    def __init__(
        self,
        processes: Processes,
        program: Program,
        reference: ReferenceClient,
        calibration: Calibration,
        level: str = "",
    ) -> None:
        """``level``: of the verification, the request's if none is given."""
        self.context: Context = processes.context
        self.processes = processes
        self.program = program
        self.reference = reference
        self.calibration = calibration
        self.level = level or self.context.level
        self.eager_s = 0.01
        self._patience: faults.Patience | None = None  # begins with the first process
        self.verification: Verification

    def draw(self, state: list[torch.Tensor] | None = None) -> Trial:
        """Draws, and has the first expected outputs computed. ``state``: weights that others of its
        batch were given.
        """
        rules, known = self.context.rules, self.context.request.known.baselines
        with self.verifying():
            self.verification = Verification(
                self.reference,
                self.calibration,
                self.level,
                precision=rules.precision,
                strict=rules.strict_inputs,
                plan=self.program.plan,
            )
            began = time.perf_counter()
            self.verification.prepare(state)
            # Beside it a candidate may be imported and built: what is known of eager is not its
            # work.
            eager = (known or {}).get("eager")
            took = (time.perf_counter() - began) / 4
            self.eager_s = max(1e-3 * eager.measurement.median_ms if eager else took, 1e-4)
            self.made.state = self.verification.state
        return self

    def beside(self, reference: ReferenceClient) -> Trial:
        """Returns the same trial with another process of the reference's."""
        other = copy.copy(self)
        other.reference = reference
        return other

    @property
    def made(self) -> Constructed:
        """How both sides are constructed."""
        return self.processes.made

    @property
    def plan(self) -> weights.Plan:
        """How the candidate gets the reference's weights: known from its first process on."""
        assert self.program.plan is not None
        return self.program.plan

    @property
    def eagers_s(self) -> float:
        """How long a forward may take for what eager takes."""
        return FORWARD_EAGERS * self.eager_s

    @property
    def forward_s(self) -> float:
        """How long a forward may take."""
        return FORWARD_S + self.eagers_s

    @property
    def output_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.verification.oracle.outputs)

    @property
    def input_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.verification.oracle.inputs)

    def containers(self) -> Trees:
        """Returns the request that says what goes into timed calls, and what comes."""
        oracle = self.verification.oracle
        return Trees(self.verification.draws[0].tree, oracle.output_tree, oracle.aliases)

    @contextmanager
    def verifying(self, candidate: CandidateClient | None = None) -> Iterator[None]:
        """The part in which the referee compares; what it waits for the two goes to others."""
        costs = self.context.costs
        asked = [("reference", self.reference), *([("candidate", candidate)] if candidate else [])]
        before = [(client.waited_s, client.built_s) for _, client in asked]
        with costs.part("verify"):
            try:
                yield
            finally:
                for (name, client), (waited, built) in zip(asked, before, strict=True):
                    costs.moved(client.waited_s - waited, f"verify {name}")
                    if client.built_s > built:
                        costs.moved(client.built_s - built, "build")

    def candidate(
        self,
        *,
        poison: bool,
        stand_in: bool = False,
        patience: faults.Patience | None = None,
    ) -> CandidateClient:
        """Starts a candidate worker, constructed and with the weights of this evaluation.

        ``stand_in``: its custom code does nothing. ``patience``: how long its answers are waited
        for, if not as long as is left for all of them.
        """
        context, processes = self.context, self.processes
        # The first forward of each process has torch.compile look for what it has made.
        looks = CALLED_S if self.program.torch_compiles(context) else 0.0
        with context.costs.part("worker"):
            worker = processes.take(poison)
        processes.missing = worker.missing
        if self._patience is None:
            calls = PATIENCE_CALLS[context.level] * self.eagers_s
            self._patience = faults.Patience(PATIENCE_S[context.level] + calls + looks)
        client = faults.Awaited(
            worker, self.forward_s + looks, context.device, patience or self._patience
        )
        context.memory.prepare(client)
        client.free_before = context.device.free_bytes()
        client.fair_bytes = FAIR_BYTES + self.output_bytes
        processes.met.append(client)
        try:
            self.load(client, stand_in=stand_in)
        except BaseException:
            client.kill()
            raise
        return client

    def load(
        self, client: CandidateClient, *, stand_in: bool = False, program: Program | None = None
    ) -> None:
        """Has a worker import and construct the candidate, or another program, with the weights of
        this evaluation.
        """
        client.orders = self.reference.orders
        p, costs = program or self.program, self.context.costs
        opened: list[int] = []
        try:
            with costs.part("load"), faults.faults("importing the candidate", client):
                artifacts = p.artifacts()
                give_libraries(self.context, client, artifacts)
                opened = object_cache.open_all(artifacts)
                client.load(
                    p.source,
                    [a.asked() for a in artifacts],
                    opened,
                    threads=self.context.threads,
                    timeout=LOAD_S,
                    stand_in=stand_in,
                    workshop=p.workshop,
                    forbids=self.context.rules.requires_custom,
                    handed_out=p.handed_out,
                )
                self.construct(client, p)
                if client.built_s:
                    costs.moved(client.built_s, "build")
        finally:
            for fd in opened:
                os.close(fd)

    def construct(self, client: CandidateClient, p: Program) -> None:
        """Has it constructed, and given the weights of this evaluation."""
        reference = self.reference
        client.init(
            reference.constructed.init,
            reference.init,
            eval_mode=self.context.eval_mode,
            timeout=LOAD_S,
            seed=self.made.seed,
            breaks=reference.constructed.breaks,
        )
        if reference.carried:
            client.carry(reference.carried)
        if p.plan is None:
            p.plan = client.plan_for(reference.weights(self.verification.original))
        client.plan = p.plan
        client.set_state(reference.info.names, self.made.state)


def give_libraries(context: Context, client: CandidateClient, artifacts: list[Artifact]) -> None:
    """Gives it libraries that were made when it was called; those of torch.compile where policy
    allows them to run.
    """
    made = [one for a in artifacts for one in a.libraries or ()]
    if context.rules.requires_custom:
        made = [one for one in made if not called_cache.of_inductor(one.name)]
    fds: list[int] = []
    try:
        fds += object_cache.open_all(made)
        names = [one.name for one in made]
        client.give_libraries(list(zip(names, fds, strict=True)))
    finally:
        for fd in fds:
            os.close(fd)
