"""The processes of one evaluation: each is started here, and known until the evaluation ends."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kwharness.base.carried import NOTHING, Carried
from kwharness.base.configs import CandidateConfig, ReferenceConfig
from kwharness.base.operations import Hold
from kwharness.base.protocol import ProtocolError
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.client import Client
from kwharness.clients.errors import Spawned, WorkerGone, sentence
from kwharness.clients.reference_client import ReferenceClient
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.referee import faults
from kwharness.referee.context import Context
from kwharness.referee.warm_pool import WARM_BYTES
from kwharness.torch_compile import inductor
from kwharness.verify.initial_weights import Shared

LOAD_S = 60.0
REST_S = 1.0  # a killed process is gone by then, with its context


@dataclass
class Constructed:
    """How both sides are constructed, and the weights that they are given."""

    seed: int = CONSTRUCTION_SEED
    breaks: list[str] = field(default_factory=list)  # weights of which what is alike is moved
    shared: Shared = field(default_factory=Shared)  # what all constructions give, and is not moved
    state: list[torch.Tensor] = field(default_factory=list)  # weights and buffers


class Processes:
    """Those of one evaluation."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.made = Constructed()
        self.calibration = context.request.known.calibration
        self.references: list[ReferenceClient] = []
        self.met: list[CandidateClient] = []  # those that met the candidate
        self.missing: list[str] = []  # what the sandbox of the last one lacks
        self._ahead: dict[bool, Future[Any]] = {}  # empty ones, by whether they poison memory
        self._eager: Future[ReferenceClient] | None = None  # the sentinel's, on a GPU

    # The reference's.

    def reference(
        self, *, compiles: bool, timeout: float = LOAD_S, timed: bool = False
    ) -> ReferenceClient:
        """Returns a worker with the reference loaded: a new one, or one that was kept."""
        context, pool = self.context, self.context.warm
        # While a candidate is verified three processes compute at once; with more threads than
        # cores they would wait for each other in barriers most of the time.
        threads = context.threads if timed else max(1, context.threads // 3)
        config = self._reference_config(threads, compiles)
        key = ""
        if pool is not None and not (compiles or timed):
            task = [context.task.source, context.eval_mode, context.memory.one_by_one]
            alike = [config.to_json(), *task]
            key = json.dumps(alike, sort_keys=True)
        waits = pool.take(key) if pool is not None and key else None
        if waits is not None:
            with suppress(WorkerGone):  # it has ended since
                return self._loaded(waits, threads, timeout)
        if timed and not compiles and pool is not None:
            warm = pool.processes.take(self.eager_key())
            if warm is not None:
                with suppress(WorkerGone):
                    warm.hold(context.fds)
                    self.references.append(warm)
                    return warm
        with context.costs.part("worker"):
            worker = context.server.spawn(config, context.fds)
        client = ReferenceClient(worker, timeout, context.device)
        client.key = key
        return self._loaded(client, threads, timeout)

    def _reference_config(self, threads: int, compiles: bool) -> ReferenceConfig:
        context = self.context
        config = replace(context.config(ReferenceConfig), threads=threads)
        if compiles:
            config = replace(config, preimport=[*context.device.compile_imports])
        elif self.calibration is None:
            config = replace(config, preimport=["noise"])
        if compiles or inductor.compiles(context.task.source):
            config = replace(config, inductor_cache=context.inductor())
        return config

    def _loaded(self, client: ReferenceClient, threads: int, timeout: float) -> ReferenceClient:
        context = self.context
        client.timeout = timeout
        context.memory.prepare(client)
        self.references.append(client)
        try:
            with context.costs.part("worker"):
                if client.warm:
                    client.hold(context.fds)
                client.load(
                    context.task.source,
                    threads=threads,
                    eval_mode=context.eval_mode,
                    seed=self.made.seed,
                    breaks=self.made.breaks,
                    making=context.threads,
                )
                if self.carried:
                    client.carry(self.carried)
        except BaseException:
            client.kill()
            raise
        return client

    @property
    def carried(self) -> Carried:
        """What the task carries from call to call, as far as that is known yet."""
        return self.calibration.carried if self.calibration is not None else NOTHING

    def construct(self, reference: ReferenceClient, seed: int) -> None:
        """Has both sides constructed under this seed, from here on."""
        self.made.seed = seed
        reference.construct(seed, eval_mode=self.context.eval_mode, breaks=self.made.breaks)

    # The sentinel's.

    def begin_eager(self) -> None:
        """Has the process started in which eager is timed."""
        work = functools.partial(self.reference, compiles=False, timed=True)
        self._eager = self.context.beside.submit(work)

    def eager(self) -> ReferenceClient | None:
        """Returns that process, once; None where none was begun."""
        begun, self._eager = self._eager, None
        return begun.result() if begun is not None else None

    def eager_key(self) -> str:
        context = self.context
        config = context.config(ReferenceConfig).to_json()
        own = ["eager", config, context.task.source, context.eval_mode]
        return json.dumps(own, sort_keys=True)

    def _eager_ahead(self) -> ReferenceClient:
        """Starts the process of a sentinel."""
        context = self.context
        worker = context.server.spawn(context.config(ReferenceConfig))
        client = ReferenceClient(worker, LOAD_S, context.device)
        return self._loaded(client, context.threads, LOAD_S)

    # Candidates'.

    def empty(self, poison: bool, fds: Sequence[int] | None = None) -> Any:
        """Starts a candidate's process, which has met nothing of the candidate's."""
        context = self.context
        held = context.fds if fds is None else fds
        return context.server.spawn(self._empty_config(poison), held, limits=context.limits())

    def _empty_config(self, poison: bool) -> CandidateConfig:
        return replace(self.context.candidate_config(CandidateConfig), poison=poison)

    def begin(self, poison: bool) -> None:
        """Has one started ahead, unless one is."""
        if poison not in self._ahead:
            self._ahead[poison] = self.context.beside.submit(self._take_warm, poison)

    def take(self, poison: bool) -> Any:
        """Returns the one that was started ahead, or a new one."""
        begun = self._ahead.pop(poison, None)
        return begun.result() if begun else self.empty(poison)

    def _take_warm(self, poison: bool) -> Any:
        """Returns one that the evaluation before has started, or a new one."""
        context = self.context
        if context.warm is not None:
            worker = context.warm.processes.take(self._empty_key(poison))
            if worker is not None:
                with suppress(ProtocolError):  # it has ended since
                    _hold(worker, context.fds)
                    return worker
                worker.kill()
        return self.empty(poison)

    def _empty_key(self, poison: bool) -> str:
        alike = [self._empty_config(poison).to_json(), self.context.limits().to_json()]
        return json.dumps(alike, sort_keys=True)

    # For the next evaluation, and at the end of this one.

    def keep_warm(self) -> None:
        """Has those ended that were started ahead for something else."""
        if self.context.warm is not None:
            keys = {self.eager_key(), self._empty_key(True), self._empty_key(False)}
            self.context.warm.processes.keep(keys)

    def begin_next(self, *, sentinel: bool) -> None:
        """Has the processes started in which the next candidate will run, of whatever task, and
        that in which eager is timed for the next one of this task. They get the device when it is
        theirs.
        """
        context = self.context
        shares = (
            context.device.outlasts_candidates
            and context.goes_on
            and not context.compilers_disturb()
        )
        if context.warm is None or not shares:
            return
        processes = context.warm.processes
        for poison in (True, False) if context.times else (True,):
            start = functools.partial(self.empty, poison, ())
            processes.begin(self._empty_key(poison), start, context.fds)
        small = sum(t.numel() * t.element_size() for t in self.made.state) <= WARM_BYTES
        if sentinel and context.times and small:
            processes.begin(self.eager_key(), self._eager_ahead, context.fds)

    def be_alone(self, reference: ReferenceClient) -> None:
        """Ends the phase in which others have the device, too. What has met the candidate has
        ended, what goes on has nothing to do: it gives up its share, and has the device again when
        it is this evaluation's alone.
        """
        context = self.context
        if not context.in_company:
            return
        empty = [begun.result() for begun in self._ahead.values()]
        clients = [reference, *([self._eager.result()] if self._eager is not None else [])]
        reference.drain(LOAD_S)
        for client in clients:
            client.hold(())
        for worker in empty:
            _hold(worker, ())
        context.be_alone()
        for client in clients:
            client.hold(context.fds)
        for worker in empty:
            _hold(worker, context.fds)

    def nobody_but(self, timed: Client) -> None:
        """Waits, before something is timed, for each other process that ends or begins."""
        for c in self.met:
            if c is not timed:
                c.worker.wait(10)
        for empty in list(self._ahead.values()):
            empty.result()
        if self.context.warm is not None:
            self.context.warm.processes.wait()

    def at_rest(self, more: Iterable[Any]) -> bool:
        """Whether all have ended that met the candidate, with ``more``, so that the device may be
        had on.
        """
        if not self.context.device.slow_to_begin:
            return False
        return all(w.wait(REST_S) is not None for w in [*(c.worker for c in self.met), *more])

    def close(self) -> None:
        """Ends those that nobody has used."""
        for empty in self._ahead.values():
            with suppress(Exception):
                empty.result().kill()
        if self._eager is not None:
            with suppress(Exception):
                self._eager.result().kill()

    def tried(self) -> list[str]:
        """Says what the candidate, or the reference, tried that is not its business, whether or not
        it mattered.
        """
        for r in self.references:
            r.worker.log()  # one that lives tells of it
        return [
            *tried("it", [c.worker for c in self.met]),
            *tried("the reference", [r.worker for r in self.references]),
        ]


def _hold(empty: Any, fds: Sequence[int]) -> None:
    """Has a candidate's process that has met nothing of it hold these, and no others. Raises
    ProtocolError where it has ended.
    """
    empty.channel.send(Hold().asked(), fds)
    if not empty.channel.recv(LOAD_S)[0].get("ok"):
        raise ProtocolError("a process that was started ahead does not hold the device")


def tried(subject: str, workers: Sequence[Spawned]) -> list[str]:
    """Says what workers tried that is not their business, a sentence for each kind."""
    refused: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for w in workers:
        refused.update(w.refused)
        files.update(w.files)
    said: list[str] = []
    for what, found in (
        ("tried what the sandbox refuses", refused),
        ("asked for files that are not its own", files),
    ):
        times = [n if k == 1 else f"{n} ({k} times)" for n, k in found.most_common(faults.NAMED)]
        if len(found) > faults.NAMED:
            times.append(f"and {len(found) - faults.NAMED} more")
        if times:
            said.append(f"{subject} {what}: {sentence(', '.join(times))}")
    return said
