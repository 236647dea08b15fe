"""The referee holds seeds, expected outputs, comparison, clock and verdict; no foreign code.

It serves requests from Go on its first descriptor, one at a time, and has the fork server's
connection as its second. With a server that is kept warm it may outlive who asked for it, and have
another's conversation then (``forkserver``).
"""

from __future__ import annotations

import functools
import gc
import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

import kernelwright
from kwharness.base import requests
from kwharness.base.answers import (
    Answer,
    Built,
    BuiltAhead,
    BuiltFor,
    Examined,
    Exported,
    Inspected,
    Refusal,
    TimedBaselines,
)
from kwharness.base.configs import Place, ReferenceConfig
from kwharness.base.learned import Learned, Record
from kwharness.base.protocol import Channel, Closed, ProtocolError, Timeout
from kwharness.base.requests import BuildAhead, Request, Workplace
from kwharness.base.verdicts import Read
from kwharness.build import builder_client, reports
from kwharness.clients import errors
from kwharness.machine import allocator, health, toolchain
from kwharness.machine import device as devices
from kwharness.machine.gpu import gpu
from kwharness.machine.health import Ill
from kwharness.process import fork_client, sandbox
from kwharness.process.policy import SandboxError
from kwharness.referee import ahead, context, evaluation, faults, operations, warm_pool
from kwharness.referee.faults import Infrastructure
from kwharness.referee.operations import Operations
from kwharness.task import inspect_task
from kwharness.task.inspect_task import Invalid
from kwharness.torch_compile import inductor

if TYPE_CHECKING:
    from kwharness.timing.ceilings import MeasuredCeilings

INSPECT_S = 60.0
KEPT_S = 60.0  # a reference's process waits for the next candidate
KINDS: dict[type[Exception], str] = {  # of a Refusal; all else is infrastructure
    ProtocolError: "protocol",
    toolchain.Missing: "missing",
    faults.NoRoom: "no_room",
    faults.Busy: "busy",
    Ill: "ill",
}


class Referee:
    """Its operations. Each returns its answer or raises."""

    def __init__(self, channel: Channel, server: Any) -> None:
        self.channel = channel
        self.server = server
        self._warm = warm_pool.WarmPool()
        self._id: Any = None
        self._sending = threading.Lock()

    def serve(self) -> None:
        """Serves until Go is gone."""
        while True:
            try:
                msg, fds = self.channel.recv(KEPT_S if self._warm else None)
            except Timeout:
                self._warm.close()
                continue
            except Closed:
                return
            if msg.get("type") == "left":
                self._left()
                continue
            if msg.get("type") == "taken":
                self._taken(fds)
                continue
            self._id = msg.get("id")
            try:
                answer = operations.result(self.operations(), msg, fds)
            except Exception as e:
                answer = {"type": "error", "error": _refusal(e).to_json()}
            finally:
                for fd in fds:
                    os.close(fd)
            self.channel.send({**answer, "id": self._id})

    def _left(self) -> None:
        """Its user has gone: what nobody can ask for any more is given back."""
        self._warm.batch("")
        gc.collect()
        allocator.release()
        if torch.cuda.is_initialized():
            gpu().release()

    def _taken(self, fds: list[int]) -> None:
        """Has the conversation with its next user from here on."""
        self.channel.close()
        self.channel = Channel.of_fd(fds[0])
        toolchain.forget()
        kernelwright._nvrtc.cache_clear()
        kernelwright.nvrtc_version.cache_clear()

    def operations(self) -> Operations:
        """Returns what it can be asked."""
        return {
            "parse": (requests.Parse, self.parse),
            "inspect": (requests.Inspect, self.inspect),
            "ceilings": (Workplace, self.ceilings),
            "evaluate": (Request, self.evaluate),
            "baselines": (Request, self.baselines),
            "build": (requests.Build, self.build),
            "build_ahead": (BuildAhead, self.build_ahead),
            "export": (requests.Export, self.export),
            "doctor": (Workplace, self.doctor),
        }

    def progress(self, stage: str, note: str) -> None:
        with self._sending:  # a candidate is built in a thread of its own
            self.channel.send({"id": self._id, "type": "progress", "stage": stage, "note": note})

    def learned(self, part: Learned) -> None:
        with self._sending:
            self.channel.send({"id": self._id, "type": "learned", "learned": part.to_json()})

    def parse(self, asked: requests.Parse, _: list[int]) -> Read:
        return builder_client.parse(self.server, asked.source, asked.what, mode=asked.sandbox)

    def inspect(self, asked: requests.Inspect, fds: list[int]) -> Inspected:
        place = asked.workplace
        torch.set_num_threads(max(1, place.threads // 3))
        parsed = self._read(asked.source, place.sandbox)
        device = context.device_of(place)
        devices.tidy(device)
        compiles = inductor.compiles(asked.source) and device.warm_inductor and place.cache_dir
        config = ReferenceConfig(
            place.sandbox,
            place.threads,
            Place(**place.placed()),
            # Capturing the graph takes most of what torch.compile does, seconds to import.
            preimport=["compile"],
            inductor_cache=inductor.warm(place.cache_dir) if compiles else "",
        )
        task = inspect_task.inspect(
            lambda: self.server.spawn(config, fds),
            asked.name,
            asked.source,
            parsed.normalised_hash,
            threads=place.threads,
            timeout_s=asked.timeout_s or INSPECT_S,
            device=device,
        )
        return Inspected(task)

    def _read(self, reference: str, mode: str) -> Read:
        """Returns what the text of a reference says. Raises Invalid for one that is not Python."""
        parsed = builder_client.parse(self.server, reference, "reference", mode)
        if not parsed.normalised_hash:
            problems = parsed.problems or ["the file is not Python"]
            raise Invalid(problems[0], "run it with python to see the error by itself")
        return parsed

    def ceilings(self, place: Workplace, _: list[int]) -> MeasuredCeilings:
        from kwharness.timing import ceilings

        self._warm.close()
        if place.gpu is not None:
            from kwharness.timing import ceilings_cuda

            os.environ |= sandbox.one_gpu(place.gpu.uuid)
            return ceilings_cuda.measure(0)
        return ceilings.measure(place.threads, place.cache_dir)

    def evaluate(self, request: Request, fds: list[int]) -> Answer:
        torch.set_num_threads(max(1, request.workplace.threads // 3))
        self._warm.batch(request.order.batch)  # another's is in the way
        devices.tidy(context.device_of(request.workplace))
        alone = functools.partial(self._alone, fds) if request.order.shares else None
        asker = context.Asker(self.progress, self.learned, alone)
        return evaluation.evaluate(self.server, request, fds, asker, self._warm)

    def _alone(self, fds: list[int]) -> tuple[list[int], dict[str, Record] | None]:
        """Gives up a share of the device, which is these descriptors, and waits until Go has all of
        it for us. Returns what is held then, and what others have learned of the baselines. Raises
        ProtocolError.
        """
        while fds:
            os.close(fds.pop())
        with self._sending:
            self.channel.send({"id": self._id, "type": "alone"})
        msg, given = self.channel.recv()
        fds += given
        if msg.get("type") != "given" or not given:
            raise ProtocolError(f"{msg.get('type')!r:.40} came in place of the device")
        return fds, Learned.from_json(msg).baselines

    def baselines(self, request: Request, fds: list[int]) -> TimedBaselines:
        self._warm.close()
        asker = context.Asker(self.progress, self.learned)
        return evaluation.baselines(self.server, request, fds, asker)

    def build(self, asked: requests.Build, _: list[int]) -> Built:
        """Builds a candidate for architectures, "" being the CPU: no device is needed.

        What turns out to be for a GPU is built for those of ``otherwise`` in place of the CPU.
        """

        def one(arch: str) -> BuiltFor:
            device = devices.built_for(arch)
            note = functools.partial(self.progress, "build")
            built = builder_client.build(
                self.server,
                asked.candidate,
                asked.cache_dir,
                device,
                asked.sandbox,
                note,
                arch,
                trial=builder_client.ALONE,
            )
            report, made = built.build, built.artifacts
            if not built.status:
                known = builder_client.facts(self.server, made, asked.cache_dir, asked.sandbox)
                report.kernels = builder_client.with_facts(report.kernels or [], known)
            status = built.status or "built"
            return BuiltFor(arch, status, built.reason, bool(built.called), report)

        archs, otherwise = asked.archs, asked.otherwise
        with ThreadPoolExecutor(max(len(archs), len(otherwise), 1)) as pool:
            builds = list(pool.map(one, archs))
            if otherwise and reports.FOR_A_GPU in builds[0].reason:
                builds = list(pool.map(one, otherwise))
        return Built(builds)

    def build_ahead(self, asked: BuildAhead, _: list[int]) -> BuiltAhead:
        """Builds a candidate as its evaluation would, which then finds it built. No device is
        needed (ahead.py).
        """
        return ahead.built(self.server, asked, self._read, self.progress)

    def export(self, asked: requests.Export, _: list[int]) -> Exported:
        text = builder_client.export(self.server, asked.candidate.source, asked.sandbox)
        return Exported(text)

    def doctor(self, place: Workplace, _: list[int]) -> Examined:
        from kwharness.referee import doctor

        return doctor.report(self.server, place.sandbox)


def _refusal(e: Exception) -> Refusal:
    if isinstance(e, Invalid):
        return Refusal("invalid", e.message, e.hint, e.traceback)
    if isinstance(e, (Infrastructure, Ill, SandboxError, toolchain.Missing)):
        message = str(e)
    elif isinstance(e, OSError) and e.strerror and e.filename:
        message = f"{e.filename}: {e.strerror}"
    elif words := errors.ill(e):
        message = health.told(health.REFEREE, words)
    else:
        message = f"{type(e).__name__}: {e}"
    hint = "run kernelwright doctor" if isinstance(e, SandboxError) else ""
    if isinstance(e, faults.NoRoom):
        hint = inspect_task.SMALLER
    if isinstance(e, faults.Busy):
        hint = "end what else computes on this GPU, or measure on another"
    kept = getattr(e, "traceback", "") or traceback.format_exc()
    kind = next((k for cls, k in KINDS.items() if isinstance(e, cls)), "infrastructure")
    return Refusal(kind, message[:2000], hint, kept[-8000:])


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    """``fds``: the connection to the fork server."""
    allocator.keep_freed_memory()
    Referee(channel, fork_client.connect(fds[0])).serve()
