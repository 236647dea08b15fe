"""The forward that is profiled, and its process under ncu."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kwharness.base.for_candidate import Stop, ToolReport
from kwharness.base.protocol import Channel
from kwharness.base.verdicts import Kernel
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import sentence
from kwharness.machine import toolchain

REPORT_S = 20.0  # until ncu has ended and its report is there


class NoProfile(Exception):
    """Why something is not known, a sentence. ``passing``: it may go another time."""

    def __init__(self, why: str, *, passing: bool = False) -> None:
        super().__init__(sentence(why))
        self.passing = passing


class UnknownMetrics(NoProfile):
    """ncu says that it does not know these metrics, or somebody in its process does."""

    def __init__(self, why: str, names: Sequence[str]) -> None:
        super().__init__(why)
        self.names = names


@dataclass
class Subject:
    """Whose forward it is."""

    load: Callable[[CandidateClient], None]  # imports and constructs it, with its weights
    tree: Any
    inputs: Sequence[torch.Tensor]
    # The compiler's word: asked for when the profile has been taken.
    kernels: Callable[[], Sequence[Kernel]]
    custom: bool  # whether it brings code of its own
    orders: Sequence[Sequence[int]] = ()  # of inputs: see tensors.layout_of
    forward_s: float = 10.0  # that a forward may take


class Served:
    """A candidate's process under ncu, as errors.Spawned: the process that is spawned is the one
    that waits for ncu's report.
    """

    def __init__(self, worker: Any, channel: Channel) -> None:
        self._worker = worker
        self.channel = channel
        self.pid = worker.pid
        self.refused: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self.inner = 0  # the candidate's process, as its own namespace has it
        self.began = False  # it has its context, and ncu has measured a launch

    def end(self) -> None:
        self._worker.kill()

    def kill(self) -> None:
        self.end()
        self.channel.close()

    def wait(self, timeout: float | None = None) -> Any:
        return self._worker.wait(timeout)

    def log(self) -> str:
        return str(self._worker.log())

    def stop(self) -> None:
        """Has what runs under ncu ended: ncu writes what it knows."""
        self._worker.channel.send(Stop(self.inner).asked())

    def report(self) -> ToolReport:
        """Returns what came of ncu once the candidate's process has nothing more to do. Raises
        ProtocolError.
        """
        self.channel.close()
        return ToolReport.from_json(self._worker.channel.recv(REPORT_S)[0])


def folders_of(program: str) -> list[str]:
    """Returns what a worker must see of the host's for a program to run."""
    found = [toolchain.NSIGHT_COMPUTE, os.path.dirname(os.path.realpath(program))]
    return [f for f in dict.fromkeys(found) if os.path.isdir(f) and f != "/"]


def ended(served: Served) -> bool:
    """Whether nobody is left at the other end."""
    ready, _, _ = select.select([served.channel.fileno()], [], [], 0)
    return bool(ready)
