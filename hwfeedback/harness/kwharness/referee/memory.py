"""How an evaluation lives with the memory that a device has: with plenty, or with one thing after
the other.

A step asks its strategy, and never how large a task is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerError, WorkerFailure, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.machine import device as devices
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device
from kwharness.standalone import interpreter
from kwharness.timing import window_base
from kwharness.timing.window_session import Redrawn
from kwharness.verify import secret_draws
from kwharness.verify.verification import Verification


class Ample:
    """There is room for all that is drawn, and for processes beside each other."""

    one_by_one = False

    def prepare(self, client: ReferenceClient | CandidateClient) -> None:
        """Tells a worker's client how it is to live with it."""
        client.sparing = self.one_by_one

    def rest(self, reference: ReferenceClient) -> None:
        """Ends a part in which the reference computed: what it holds serves the next one."""

    def runs_beside(self, content_bytes: int) -> bool:
        """Whether an exported file may run while the candidate is verified, by what its call has of
        inputs and outputs.
        """
        return content_bytes < interpreter.LARGE

    def tries_ways(self, call_bytes: int) -> bool:
        """Whether it is tried how users use a file, each of which calls it once more, by what its
        call has with its weights.
        """
        return call_bytes < interpreter.LARGE

    @property
    def shares_timing(self) -> bool:
        """Whether what one candidate was timed with is kept for others."""
        return True

    def contents(self, _verification: Verification, device: Device) -> Redrawn | None:
        """Returns where the contents of timed calls come from, None where they are kept."""
        return None


class OneByOne(Ample):
    """A call has so much that nothing is kept which can be made again."""

    one_by_one = True

    def rest(self, reference: ReferenceClient) -> None:
        let_go(reference)

    def runs_beside(self, content_bytes: int) -> bool:
        return False

    def tries_ways(self, call_bytes: int) -> bool:
        return False

    @property
    def shares_timing(self) -> bool:
        return False

    def contents(self, verification: Verification, device: Device) -> Redrawn:
        return redrawn(verification, device)


def of(device: Device, call_bytes: int) -> Ample:
    """Returns the strategy for a task whose call moves so many bytes."""
    if not devices.spares(device, call_bytes):
        return Ample()
    device.keep_apart()
    return OneByOne()


def let_go(reference: ReferenceClient) -> None:
    """Has it give up the blocks that it kept. What fails then is no candidate's fault, and hides
    nothing that was found; the process serves no other evaluation.
    """
    try:
        reference.let_go()
    except (WorkerFailure, CudaError, torch.OutOfMemoryError, OSError):
        reference.key = ""


def redrawn(verification: Verification, device: Device) -> Redrawn:
    """Returns contents for timed calls that the reference draws whenever they are needed."""
    reference = verification.reference
    drawn, tree = verification.draws, verification.draws[0].tree
    seeds: dict[int, int] = {}
    slots = window_base.Slots.of(
        verification.oracle.inputs, verification.oracle.outputs, reference.orders
    )
    # What is freed seems to keep a GPU's memory busy for milliseconds, in which what is timed has
    # less of it: where there is room nothing is.
    room = secret_draws.Room()

    def asked(what: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        if room.there(device, slots.bytes):
            try:
                with reference.keeping():
                    return what()
            except (WorkerError, CudaError, torch.OutOfMemoryError) as e:
                if not ran_out(e):
                    raise
                room.close()
        reference.let_go()
        return what()

    def draw(i: int) -> list[torch.Tensor]:
        if i < len(drawn):
            return drawn[i].tensors
        return reference.draw(seeds.setdefault(i, secret_draws.secret()))[1]

    def eager(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        r = reference.forward(tree, inputs, ["eager"])[0]
        if r.error is not None:
            raise r.error
        return list(r.tensors)

    return Redrawn(slots, draw, eager, device, asked)
