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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import kernelwright
from kwharness.base import requests
from kwharness.base.configs import Place, ReferenceConfig
from kwharness.base.protocol import Channel, Closed, ProtocolError, Timeout
from kwharness.base.requests import Request, Workplace
from kwharness.base.verdicts import Read
from kwharness.build import builder_client, reports
from kwharness.clients import errors
from kwharness.machine import allocator, health, toolchain
from kwharness.machine import device as devices
from kwharness.machine.gpu import gpu
from kwharness.machine.health import Ill
from kwharness.process import fork_client, sandbox
from kwharness.process.policy import SandboxError
from kwharness.referee import ahead, context, evaluation, faults, warm_pool
from kwharness.referee.faults import Infrastructure
from kwharness.task import inspect_task
from kwharness.task.inspect_task import Invalid
from kwharness.torch_compile import inductor

INSPECT_S = 60.0
KEPT_S = 60.0  # a reference's process waits for the next candidate


class Referee:
    """The requests, by name. Each returns its result or raises."""

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
            answer: dict[str, Any]
            try:
                handler = self._handlers().get(str(msg.get("type")))
                if handler is None:
                    raise ProtocolError(f"unknown request {msg.get('type')!r:.40}")
                answer = {"type": "result", "result": handler(msg, fds)}
            except Invalid as e:
                answer = {"type": "error", "error": e.to_json()}
            except (KeyError, TypeError, ProtocolError) as e:
                kind = "protocol" if isinstance(e, ProtocolError) else "infrastructure"
                answer = {"type": "error", "error": _error(kind, e)}
            except toolchain.Missing as e:
                answer = {"type": "error", "error": _error("missing", e)}
            except faults.NoRoom as e:
                answer = {"type": "error", "error": _error("no_room", e)}
            except faults.Busy as e:
                answer = {"type": "error", "error": _error("busy", e)}
            except Ill as e:
                answer = {"type": "error", "error": _error("ill", e)}
            except Exception as e:
                answer = {"type": "error", "error": _error("infrastructure", e)}
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

    def _handlers(self) -> dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]]:
        return {
            "parse": self.parse,
            "inspect": self.inspect,
            "ceilings": self.ceilings,
            "evaluate": self.evaluate,
            "baselines": self.baselines,
            "build": self.build,
            "build_ahead": self.build_ahead,
            "export": self.export,
            "doctor": self.doctor,
        }

    def progress(self, stage: str, note: str) -> None:
        with self._sending:  # a candidate is built in a thread of its own
            self.channel.send({"id": self._id, "type": "progress", "stage": stage, "note": note})

    def learned(self, part: dict[str, Any]) -> None:
        with self._sending:
            self.channel.send({"id": self._id, "type": "learned", "learned": part})

    def parse(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        asked = requests.Parse.from_json(msg)
        read = builder_client.parse(self.server, asked.source, asked.what, mode=asked.sandbox)
        return read.to_json()

    def inspect(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        asked = requests.Inspect.from_json(msg)
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
        return {"task": task.to_json()}

    def _read(self, reference: str, mode: str) -> Read:
        """Returns what the text of a reference says. Raises Invalid for one that is not Python."""
        parsed = builder_client.parse(self.server, reference, "reference", mode)
        if not parsed.normalised_hash:
            problems = parsed.problems or ["the file is not Python"]
            raise Invalid(problems[0], "run it with python to see the error by itself")
        return parsed

    def ceilings(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        from kwharness.timing import ceilings

        self._warm.close()
        place = Workplace.from_json(msg)
        if place.gpu is not None:
            from kwharness.timing import ceilings_cuda

            os.environ |= sandbox.one_gpu(place.gpu.uuid)
            return ceilings_cuda.measure(0)
        measured = ceilings.measure(place.threads, place.cache_dir)
        return {**measured, "specs": ceilings.specs()}

    def evaluate(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        request = Request.from_json(msg)
        torch.set_num_threads(max(1, request.workplace.threads // 3))
        self._warm.batch(request.order.batch)  # another's is in the way
        devices.tidy(context.device_of(request.workplace))
        alone = functools.partial(self._alone, fds) if request.order.shares else None
        asker = context.Asker(self.progress, self.learned, alone)
        return evaluation.evaluate(self.server, request, fds, asker, self._warm).to_json()

    def _alone(self, fds: list[int]) -> tuple[list[int], dict[str, Any] | None]:
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
        return fds, msg.get("baselines")

    def baselines(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._warm.close()
        request = Request.from_json({"candidate": {"source": ""}, **msg})
        asker = context.Asker(self.progress, self.learned)
        return evaluation.baselines(self.server, request, fds, asker)

    def build(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Builds a candidate for architectures, "" being the CPU: no device is needed.

        What turns out to be for a GPU is built for those of ``otherwise`` in place of the CPU.
        """
        asked = requests.Build.from_json(msg)

        def one(arch: str) -> dict[str, Any]:
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
            return {
                "arch": arch,
                "status": built.status or "built",
                "reason": built.reason,
                "triton": bool(built.called),
                "build": report.to_json(),
            }

        archs, otherwise = asked.archs, asked.otherwise
        with ThreadPoolExecutor(max(len(archs), len(otherwise), 1)) as pool:
            builds = list(pool.map(one, archs))
            if otherwise and reports.FOR_A_GPU in str(builds[0]["reason"]):
                builds = list(pool.map(one, otherwise))
        return {"builds": builds}

    def build_ahead(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Builds a candidate as its evaluation would, which then finds it built. No device is
        needed (ahead.py).
        """
        asked = requests.BuildAhead.from_json(msg)
        return ahead.built(self.server, asked, self._read, self.progress)

    def export(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        asked = requests.Export.from_json(msg)
        text = builder_client.export(self.server, asked.candidate.source, asked.sandbox)
        return {"source": text}

    def doctor(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        from kwharness.referee import doctor

        return doctor.report(self.server, Workplace.from_json(msg).sandbox)


def _error(kind: str, e: BaseException) -> dict[str, Any]:
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
    return {"kind": kind, "message": message[:2000], "hint": hint, "traceback": kept[-8000:]}


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    """``fds``: the connection to the fork server."""
    allocator.keep_freed_memory()
    Referee(channel, fork_client.connect(fds[0])).serve()
