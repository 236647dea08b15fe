"""What every step of one evaluation is given: the request, the device, and where it reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kwharness.base.configs import Config, Place
from kwharness.base.constants import SHARED
from kwharness.base.learned import Learned, Record
from kwharness.base.requests import Request, Rules, Task, Workplace
from kwharness.machine import device as devices
from kwharness.machine import health
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device
from kwharness.machine.health import Ill
from kwharness.process import policy, sandbox
from kwharness.referee import memory
from kwharness.referee.costs import Costs
from kwharness.referee.warm_pool import Batch, Compiled, WarmPool
from kwharness.torch_compile import inductor

C = TypeVar("C", bound=Config)
Progress = Callable[[str, str], None]
Learn = Callable[[Learned], None]
# Returns what is held, and what was learned of baselines meanwhile.
Alone = Callable[[], tuple[Sequence[int], dict[str, Record] | None]]


def device_of(place: Workplace) -> Device:
    """Returns the device that a request names."""
    if place.gpu is not None:
        os.environ |= sandbox.one_gpu(place.gpu.uuid)  # before anything looks for GPUs
    try:
        return devices.of(place.kind)
    except (RuntimeError, CudaError) as e:
        if words := health.said(str(e)):
            raise Ill(health.REFEREE, words) from e
        raise


@dataclass(frozen=True)
class Asker:
    """Whoever asked for an evaluation, as it is told of its course.

    ``learn`` is given parts of "learned" as they are known: they take most of a first evaluation,
    and stay true when it does not end. Where others have the device, too, ``alone`` gives that
    share up, and returns what is held instead once nobody else has any: the evaluation has two
    phases, and ``Context.be_alone`` is between them.
    """

    progress: Progress = lambda _stage, _note: None
    learn: Learn = lambda _part: None
    alone: Alone | None = None


NOBODY = Asker()


class Context:
    """One evaluation's request and what belongs to it. ``server`` is a ForkServer, ``fds`` are what
    its processes hold while they have the device: the same list all along.
    """

    beside: ThreadPoolExecutor  # while it runs

    def __init__(
        self,
        server: Any,
        request: Request,
        fds: Sequence[int] = (),
        asker: Asker = NOBODY,
        warm: WarmPool | None = None,
    ) -> None:
        self.server = server
        self.request = request
        self.fds = list(fds)
        self.asker = asker
        self.in_company = self.had_company  # whether others have the device, too, at the moment
        self.warm = warm
        self.batch: Batch | None = warm.batch(request.order.batch) if warm is not None else None
        self.compiled = warm.compiled if warm is not None else Compiled()
        self.device = device_of(request.workplace)
        self.memory = memory.of(self.device, request.task.least_bytes)
        self.costs = Costs()
        self.called_in = request.workplace.cache_dir  # what is compiled by calling it is kept there
        self._inductor: str | None = None

    @property
    def task(self) -> Task:
        return self.request.task

    @property
    def rules(self) -> Rules:
        return self.request.rules

    @property
    def level(self) -> str:
        return self.request.rules.level

    @property
    def threads(self) -> int:
        return self.request.workplace.threads

    @property
    def times(self) -> bool:
        """Whether the candidate is timed."""
        return self.request.timed.time

    @property
    def progress(self) -> Progress:
        return self.asker.progress

    @property
    def learn(self) -> Learn:
        return self.asker.learn

    @property
    def had_company(self) -> bool:
        """Whether others had the device in its first phase."""
        return self.asker.alone is not None

    @property
    def goes_on(self) -> bool:
        """Whether the next evaluation has the device right after this one: where several are at
        once, another one has it.
        """
        return not self.request.order.shares

    def be_alone(self) -> None:
        """Gives up the share of the device, and returns once it is this evaluation's alone. No
        process may have ``fds`` any more.
        """
        if not self.in_company or self.asker.alone is None:
            return
        self.in_company = False
        self.device.synchronize()
        self.fds.clear()
        with self.costs.part("turn"):
            fds, baselines = self.asker.alone()
        self.fds += fds
        if baselines is not None:
            known = replace(self.request.known, baselines=baselines)
            self.request = replace(self.request, known=known)

    @property
    def eval_mode(self) -> bool:
        """Whether models are put into eval mode."""
        return "train_mode_dependent" in self.task.flags

    def config(self, kind: type[C]) -> C:
        """Returns the configuration of a worker."""
        place = self.request.workplace
        return kind(place.sandbox, place.threads, Place(**place.placed()))

    def candidate_config(self, kind: type[C]) -> C:
        """Returns the configuration of a process that runs the candidate."""
        config = self.config(kind)
        if not self.torch_may_compile():
            return config
        imports = [*self.device.compile_imports]
        return replace(config, preimport=imports, inductor_cache=self.inductor())

    def limits(self) -> policy.Limits:
        """Returns what a candidate's process may take, where the request says so."""
        names = ("memory_bytes", "processes", "cpu_s")
        return policy.Limits(**{k: v for k, v in self.rules.limits.items() if k in names})

    def inductor(self) -> str:
        """Returns a folder in which torch.compile finds what it needs, "" where there is none."""
        if self._inductor is None:
            folder = self.request.workplace.cache_dir if self.device.warm_inductor else ""
            self._inductor = inductor.warm(folder) if folder else ""
        return self._inductor

    def torch_may_compile(self) -> bool:
        """Whether torch.compile may be at work in a candidate of this evaluation."""
        texts = [self.request.candidate.source, *(n.source for n in self.request.timed.named)]
        return not self.rules.requires_custom and any(map(inductor.compiles, texts))

    def compilers_disturb(self) -> bool:
        """Whether what is timed suffers from a compiler beside it."""
        return self.device.on_cores or len(os.sched_getaffinity(0)) < SHARED.spare_cores

    def crowded(self) -> bool:
        """Whether what it computes on has more to do than it has cores."""
        cores = len(os.sched_getaffinity(0))
        return self.device.on_cores and os.getloadavg()[0] > cores
