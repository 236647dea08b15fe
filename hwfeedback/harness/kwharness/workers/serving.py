"""What the reference worker and the candidate worker share:

loading a source, blocks by name, errors as JSON.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kwharness.base import operations
from kwharness.base.configs import Config
from kwharness.base.operations import Done, Failure, Request
from kwharness.base.protocol import Channel, Closed
from kwharness.base.records import Message
from kwharness.base.tensors import Layout
from kwharness.machine import device as devices
from kwharness.machine import health
from kwharness.machine.device import CPU, Device, SharedBlock

TRACEBACK_KEPT = 8000
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
OURS = f"{_PACKAGE}{os.sep}", os.path.join(os.path.dirname(_PACKAGE), "kernelwright.py")


class StageError(Exception):
    """Something foreign failed.

    ``stage`` says where: "import", "names", "construct", "inputs", "forward"...
    """

    def __init__(self, stage: str, cause: BaseException | str) -> None:
        super().__init__(said(cause))
        self.stage = stage
        self.cause = cause


def said(e: BaseException | str) -> str:
    """Returns an error's message, "" where it has none: its ``__str__`` is foreign code."""
    try:
        return str(e.msg if isinstance(e, SyntaxError) else e)
    except BaseException:
        return ""


class Lease:
    """The descriptors that a worker keeps open: whoever has one has the device."""

    def __init__(self, fds: Sequence[int]) -> None:
        self.fds = list(fds)

    def hold(self, _: operations.Hold, given: list[int]) -> Done:
        """Keeps these open, and no others."""
        for fd in self.fds:
            os.close(fd)
        self.fds = list(given)
        given.clear()
        return Done()


def run_source(source: str, name: str, filename: str) -> types.ModuleType:
    """Runs a source as a module, as Python runs a file with these bytes: what the module can read
    of itself is the same wherever it runs. ``filename`` lies in the working folder.
    """
    data = source.encode()
    with contextlib.suppress(OSError), open(filename, "xb") as f:
        f.write(data)
    plain = data.decode("utf-8-sig")
    lines = io.StringIO(plain, newline=None).readlines()
    linecache.cache[filename] = (len(plain), None, lines, filename)
    module = types.ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module
    exec(compile(data, filename, "exec", dont_inherit=True), module.__dict__)
    return module


def error_of(e: BaseException, own: str = "") -> Failure:
    """Returns what is told of an error.

    With ``own``, a file name, ``lines`` are the frames of that file.
    """
    stage = ""
    if isinstance(e, StageError):
        stage = e.stage
        e = e.cause if isinstance(e.cause, BaseException) else e
    frames = traceback.extract_tb(e.__traceback__)
    lines = [f.lineno for f in frames if f.filename == own and f.lineno is not None]
    if isinstance(e, SyntaxError) and e.filename == own and e.lineno:
        lines.append(e.lineno)
    message = said(e)
    kept = [f for f in frames if f.filename == own] or frames
    if stage:  # foreign code failed: ours above it is of no use to its author
        kept = [f for f in kept if not f.filename.startswith(OURS)]
    text = "".join(
        [
            "Traceback (most recent call last):\n",
            *traceback.format_list(kept[-20:]),
            f"{type(e).__name__}: {message}\n",
        ]
    )
    if isinstance(e, StageError):
        text = ""  # raised here: where is of no use to its author
    return Failure(type(e).__name__, message[:2000], text[-TRACEBACK_KEPT:], stage, lines[-8:])


class Blocks:
    """The blocks that the referee has mapped into this worker, by name."""

    def __init__(self, device: Device = CPU) -> None:
        self._device = device
        self._blocks: dict[str, SharedBlock] = {}

    def map(self, name: str, fd: int, size: int) -> None:
        before = self._blocks.pop(name, None)
        if before is not None:
            before.close()
        self._blocks[name] = self._device.received(fd, size, populate=True)

    def views(self, name: str, layout: Layout) -> list[torch.Tensor]:
        return self._blocks[name].views(layout)


def device_of(channel: Channel, config: Config) -> Device:
    """Returns the device that a process computes on. Where that does not work the first request is
    answered with why, before any foreign code has run, and the process ends.
    """
    try:
        device = devices.of(config.place.device)
        device.hold_to_float32()
        return device
    except Exception as e:
        for fd in channel.recv()[1]:
            os.close(fd)
        channel.send(refusal(error_of(StageError(health.STAGE, e))))
        raise


def answered(answer: Message) -> dict[str, Any]:
    """Returns the message of an answer."""
    return {"ok": True, **answer.to_json()}


def refusal(failure: Failure) -> dict[str, Any]:
    """Returns the message of an operation that failed."""
    return {"ok": False, "error": failure.to_json()}


# What does an operation. One that returns None has answered by itself. It takes out of the list the
# descriptors that it keeps.
Op = Callable[[Any, list[int]], Message | None]
Answers = Callable[[dict[str, Any], list[int]], dict[str, Any] | None]  # the same with messages


def answering(ops: Mapping[type[Request], Op]) -> dict[str, Answers]:
    """Returns what answers the messages of these requests, by the operation's name."""

    def reads(kind: type[Request], op: Op) -> Answers:
        def answer(msg: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
            done = op(kind.from_json(msg), fds)
            return None if done is None else done.to_json()

        return answer

    return {kind.op: reads(kind, op) for kind, op in ops.items()}


def serve(channel: Channel, by_name: Mapping[str, Answers], own: str, device: Device = CPU) -> None:
    """Answers messages until the referee is gone. What an operation raises is its answer.

    ``own`` is the foreign file's name.
    """
    pid = os.getpid()
    while True:
        try:
            msg, fds = channel.recv()
        except Closed:
            return
        answer: dict[str, Any] | None = None
        try:
            if (op := by_name.get(str(msg.get("op")))) is None:
                raise ValueError(f"unknown operation {msg.get('op')!r:.40}")
            said = op(msg, fds)
            device.synchronize()  # what is answered has happened
            answer = None if said is None else {"ok": True, **said}
        except Closed:
            return
        except BaseException as e:
            answer = refusal(error_of(e, own))
        finally:
            for fd in fds:
                try:
                    os.close(fd)
                except OSError:
                    pass  # an operation that took the descriptor over closed it
        if os.getpid() != pid:
            os._exit(0)  # a copy that foreign code made: two cannot answer
        if answer is not None:
            channel.send(answer)
