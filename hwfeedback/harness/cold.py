"""Runs an exported file as its user will: in a new interpreter, which compiles it, and into which
nothing of ours is imported before it.

``run`` is the referee's side, ``serve`` the sandboxed worker's; ``cold_script.py`` is what the new
interpreter does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import sandbox
from clients import how_it_ended
from forkserver import ForkServer
from protocol import Closed, ProtocolError, Timeout
from sandbox import SandboxError
from tensors import Block, layout_of

HERE = os.path.dirname(os.path.realpath(__file__))
SCRIPT = "cold_script.py"
TOOLS = ("trees.py", "tensors.py")  # for the script, once the file is imported
_UNWRITTEN = 0xA5


@dataclass(frozen=True)
class Call:
    """What the file is given, and what of it comes back: tensors like ``outputs``."""

    init: tuple[Any, Sequence[torch.Tensor]]
    state: tuple[Sequence[str], Sequence[torch.Tensor]]
    inputs: tuple[Any, Sequence[torch.Tensor]]
    outputs: tuple[Any, Sequence[torch.Tensor]]
    eval_mode: bool
    threads: int
    place: dict[str, Any] = field(default_factory=dict)  # what a worker is told of its GPU
    orders: Sequence[Sequence[int]] = ()  # of inputs: see tensors.layout_of


class Broken(Exception):
    """The file does not do by itself what it did in the harness. ``log`` is what it printed."""

    def __init__(self, message: str, log: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.log = log
        self.late = late


def lacking(form: str) -> str:
    """Returns what a file of this form needs and this environment does not have, or ""."""
    has = shutil.which("ninja") or importlib.util.find_spec("ninja")
    return "ninja, which load_inline needs," if form == "load_inline" and not has else ""


def run(
    server: ForkServer,
    source: str,
    call: Call,
    mode: str,
    timeout: float,
    limits: dict[str, int] | None = None,
) -> list[torch.Tensor]:
    """Returns what the file computes, within a candidate's limits or others.

    Raises Broken, and SandboxError and ProtocolError for what is the machine's fault.
    """
    parts = [call.init[1], call.state[1], call.inputs[1]]
    orders = [*([] for part in parts[:2] for _ in part), *call.orders]
    given, layout = Block.of([t.cpu() for part in parts for t in part], orders)
    wanted, size = layout_of(call.outputs[1])
    back = Block.create(size)
    back.bytes().fill_(_UNWRITTEN)
    request = {
        "counts": [len(p) for p in parts],
        "given": [layout, given.size],
        "wanted": [wanted, size],
        "init": call.init[0],
        "names": list(call.state[0]),
        "inputs": call.inputs[0],
        "outputs": call.outputs[0],
        "eval": call.eval_mode,
        "device": call.place.get("device") or "cpu",
        "threads": call.threads,
    }
    msg = {"op": "cold", "source": source, "request": request, "timeout": timeout}
    config = {"sandbox": mode, "threads": call.threads, **call.place}
    try:
        usual = sandbox.limits(sandbox.Settings("candidate"))
        bounds = {"memory_bytes": usual.memory_bytes, "cpu_s": usual.cpu_s, **(limits or {})}
        with server.spawn("builder", config, limits=bounds) as worker:
            try:
                worker.channel.send(msg, [given.fd, back.fd])
                answer, _ = worker.channel.recv(timeout + 30)
            except Timeout as e:
                raise Broken(f"takes over {timeout:g} s", worker.log(), late=True) from e
            except Closed as e:
                end = worker.wait(5)
                if end is None or end.blameless:
                    raise SandboxError(f"a worker {how_it_ended(end)}") from e
                raise Broken(how_it_ended(end), worker.log()) from e
            log = worker.log()
        code = answer.get("code")
        if answer.get("ok") is not True or type(code) is not int:
            raise ProtocolError(f"a builder answered {answer!r:.200}")
        if code == _LATE:
            raise Broken(f"takes over {timeout:g} s", log, late=True)
        if code:
            raise Broken(_last_line(log) or f"ends with exit code {code}", log)
        return [
            v.to(t.device, copy=True)
            for v, t in zip(back.views(wanted), call.outputs[1], strict=True)
        ]
    finally:
        given.close()
        back.close()


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""


_LATE = 1000  # no exit code


def serve(msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Runs the file in a new interpreter. What it prints goes where the worker's own words go."""
    with tempfile.TemporaryDirectory() as folder:
        tools = os.path.join(folder, "tools")
        os.mkdir(tools)
        for name in (*TOOLS, SCRIPT):
            shutil.copy(os.path.join(HERE, name), tools)
        with open(os.path.join(folder, "kernel.py"), "w", encoding="utf-8") as f:
            f.write(msg["source"])
        with open(os.path.join(folder, "request.json"), "w", encoding="utf-8") as f:
            json.dump({**msg["request"], "fds": fds}, f)
        home = {"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": str(msg["request"]["threads"])}
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", os.path.join(tools, SCRIPT), folder],
                cwd=folder,
                env={**os.environ, **home},
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                timeout=float(msg["timeout"]),
            )
        except subprocess.TimeoutExpired:
            return {"code": _LATE}
    return {"code": done.returncode}
