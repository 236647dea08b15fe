"""Evaluations for tests: a referee in this process, with a real fork server and real workers."""

from __future__ import annotations

import copy
import dataclasses
import fcntl
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from process_layer import FORKS_OFTEN, connect, listening

from kwharness.base import paths
from kwharness.base.answers import Answer
from kwharness.base.built import BuildResult
from kwharness.base.protocol import Channel, ProtocolError
from kwharness.base.requests import Request
from kwharness.base.verdicts import BuildReport
from kwharness.build import builder_client, object_cache, torch_headers
from kwharness.machine import allocator, toolchain
from kwharness.process import fork_client
from kwharness.referee import evaluation, operations
from kwharness.referee import main as referee
from kwharness.referee.context import Context
from kwharness.referee.processes import Processes
from kwharness.referee.warm_pool import WarmPool
from kwharness.verify import calibrate

# A referee on two cores has one thread: what it compares, three processes compute.
torch.set_num_threads(1)

# What the last-level cache has for tests: machines differ by much, and emptying half a gigabyte of
# it before each window takes longer than they do.
LLC = 32 << 20
# Whether every evaluation has a share of the device, and all of it when it is timed, as of several
# that are at once.
SHARES = os.environ.get("KERNELWRIGHT_TEST_SHARES", "") == "1"
# The share by which a baseline has to be beaten where that is all that is asked, as in training; 0:
# how much is asked.
MILESTONE = float(os.environ.get("KERNELWRIGHT_TEST_MILESTONE") or 0)
OLD_S = 7 * 86_400.0  # after which objects of another harness are removed
UNBUILT = BuildResult(BuildReport(form="none"), "", "", [], "", "cpp", [], [])


def of_work_folder(folder: pathlib.Path) -> str:
    """Returns a work folder of CUDA as one candidate, as task.ReadCandidate makes it of one whose
    headers are each included by a source of either language once.
    """

    def text(path: pathlib.Path) -> str:
        return re.sub(
            r'#include "(.+)"', lambda m: (path.parent / m[1]).read_text(), path.read_text()
        ).replace("#pragma once\n", "")

    cpp, cuda = (
        [text(p) for f in ("kernels", ".") for p in sorted((folder / f).glob(ending))]
        for ending in ("*.cpp", "*.cu")
    )
    call = (
        "from torch.utils.cpp_extension import load_inline\n\n"
        f"cuda_extension = load_inline(name='cuda_extension', cpp_sources={cpp!r},"
        f" cuda_sources={cuda!r}, extra_cflags=['-O3'],"
        " extra_cuda_cflags=['-O3', '--use_fast_math'], no_implicit_headers=True)\n"
    )
    return (folder / "model_new.py").read_text().replace("import cuda_extension\n", call)


MADE: list[pathlib.Path] = []  # caches of this session
COMPILED: list[pathlib.Path] = []  # those of them whose objects are kept


def new_cache(factory: pytest.TempPathFactory, *, objects: bool = False) -> str:
    """Returns a cache folder that is empty but for what is compiled once on a machine, and with
    ``objects`` for what a harness of these very files has compiled: where a test is of verdicts,
    and not of builds.

    Headers for torch.compile and load_inline cost a minute: they are those of the cache that
    KERNELWRIGHT_TEST_CACHE names, and of earlier tests, also of who tests beside this process.
    """
    folder = factory.mktemp("cache")
    kept = os.environ.get("KERNELWRIGHT_TEST_CACHE")
    found: list[pathlib.Path] = []
    for known in [*MADE, *([pathlib.Path(kept)] if kept else [])]:
        found += [*known.glob("inductor-*"), *known.glob("header-*")]
    if "PYTEST_XDIST_WORKER" in os.environ:
        beside = factory.getbasetemp().parent.glob("*/cache*/header-*")
        found += [h for h in beside if (h / torch_headers.SHIM).exists()]  # it is whole
    for made in found:
        _into(folder, made)
    # load_inline comes often here: its header is precompiled when it is first asked for.
    light = pathlib.Path(object_cache.light_header(str(folder)))
    (light / f"{object_cache.header_key([])}.seen").touch()
    MADE.append(folder)
    if objects:
        COMPILED.append(folder)
        if kept and (known := pathlib.Path(kept) / _objects()).exists():
            _into(folder, known, "objects")
    return str(folder)


def keep_compiled() -> None:
    """Leaves what was compiled to who tests next, where there is a folder for it."""
    kept = os.environ.get("KERNELWRIGHT_TEST_CACHE")
    if not kept:
        return
    for header in [h for made in MADE for h in made.glob("header-*")]:
        if (header / torch_headers.SHIM).exists():
            _into(pathlib.Path(kept), header)
    for made in COMPILED:
        if (made / "objects").exists():
            _into(pathlib.Path(kept), made / "objects", _objects())
    for old in pathlib.Path(kept).glob("objects-*"):
        if old.name != _objects() and time.time() - old.stat().st_mtime > OLD_S:
            shutil.rmtree(old, ignore_errors=True)  # or another process does


@functools.cache
def _objects() -> str:
    """Names the objects that are kept: no object is of another harness, or another compiler."""
    said = subprocess.run([toolchain.compiler(), "--version"], capture_output=True, check=True)
    whole = hashlib.sha256(said.stdout)
    harness = pathlib.Path(paths.ROOT)
    ours = harness / "kwharness"
    for path in sorted([harness / "kernelwright.py", *ours.rglob("*.py"), *ours.rglob("*.h")]):
        whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"objects-{whole.hexdigest()[:16]}"


def _into(cache: pathlib.Path, made: pathlib.Path, name: str = "") -> None:
    unfinished = shutil.ignore_patterns(".new-*", "*.seen")
    to = cache / (name or made.name)
    shutil.copytree(made, to, ignore=unfinished, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, to: str) -> None:
    """Half a gigabyte need not be copied: whole files are put in place, and none is written to.
    What is gone was not in place yet.
    """
    if os.path.exists(to):
        return
    try:
        os.link(source, to)
    except (FileNotFoundError, FileExistsError):  # or another process was quicker
        return
    except OSError:
        shutil.copy2(source, to)


SERVERS: dict[bool, tuple[str, subprocess.Popen[bytes]]] = {}  # by whether one is for a GPU


def fork_server(*, gpu: bool = False) -> fork_client.ForkServer:
    """Returns a connection to a real fork server, which finds what belongs to this Python.

    One process serves a session, as one that is kept warm serves all that come to it: torch is
    imported once, and what was forked over a connection ends with it.
    """
    if gpu in SERVERS:
        path, process = SERVERS[gpu]
        try:
            return connect(path, process.pid)
        except (OSError, ProtocolError):
            _gone(path, process)  # nobody was connected for a while
    folder = str(pathlib.Path(sys.executable).parent)
    path = folder + ":" + os.environ.get("PATH", "/usr/bin:/bin")
    kept = f"{tempfile.gettempdir()}/kernelwright-{os.getuid()}"
    # Threads that wait do not spin: another test wants their core.
    env = {"PATH": path, "LANG": "C.UTF-8", allocator.FOLDER: kept, "GOMP_SPINCOUNT": "0"}
    if gpu and "LD_LIBRARY_PATH" in os.environ:  # the driver's library may be there
        env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    at = tempfile.mkdtemp(prefix="kernelwright-server-") + "/socket"
    process = listening(at, 60.0, env=env, more=FORKS_OFTEN)
    SERVERS[gpu] = at, process
    return connect(at, process.pid)


def end_fork_servers() -> None:
    """Ends those of the session."""
    for path, process in SERVERS.values():
        process.terminate()
        _gone(path, process)
    SERVERS.clear()


def _gone(path: str, process: subprocess.Popen[bytes]) -> None:
    process.wait(120)
    shutil.rmtree(pathlib.Path(path).parent)


# What a verdict says where the machine shows too little.
DISTURBED = re.compile(r"the machine is busy|were disturbed|clock resolves .* over 5 % of the time")


def busy(notes: Iterable[str]) -> bool:
    return bool(DISTURBED.search(" ".join(notes)))


def processes_of(server: Any, request: dict[str, Any], warm: WarmPool | None = None) -> Processes:
    """Returns the processes of an evaluation that nobody runs."""
    return Processes(Context(server, Request.from_json(request), warm=warm))


def evaluate(server: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Evaluates as the referee does for Go, with nothing kept."""
    return evaluation.evaluate(server, Request.from_json(request)).to_json()


class Device:
    """A device's lock, and Go's end of a referee's conversation: it gives the device to whoever
    asks to be alone, once nobody else has it.
    """

    def __init__(self, peer: Channel) -> None:
        self.path = tempfile.mkstemp(prefix="kernelwright-lease-")[1]
        self.asked = threading.Event()  # whether somebody has asked to be alone
        self._peer = peer
        threading.Thread(target=self._serve, daemon=True).start()

    def take(self, how: int) -> int:
        """Returns a descriptor that has the lock. Raises BlockingIOError with LOCK_NB."""
        fd = os.open(self.path, os.O_RDWR)
        try:
            fcntl.flock(fd, how)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def free(self, how: int) -> bool:
        """Whether it could be had at the moment."""
        try:
            os.close(self.take(how | fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def _serve(self) -> None:
        while True:
            try:
                msg, _ = self._peer.recv()
            except ProtocolError:
                os.unlink(self.path)
                return
            self.asked.set()
            fd = self.take(fcntl.LOCK_EX)
            self._peer.send({"type": "given", "id": msg["id"]}, [fd])
            os.close(fd)


class Evaluator:
    """A referee in this process, with a real fork server."""

    def __init__(self, cache: str, gpu: dict[str, Any] | None = None) -> None:
        """``gpu`` is what a request names a GPU by; None: the CPU."""
        self.place: dict[str, Any] = {} if gpu is None else {"gpu": gpu, "device": "cuda:0"}
        self.server = fork_server(gpu=gpu is not None)
        channel, peer = Channel.pair()
        self.device = Device(Channel(peer))
        self.referee = referee.Referee(channel, self.server)
        if SHARES:
            self.referee.evaluate = self.sharing  # type: ignore[method-assign]
        self.referee.progress = lambda _stage, _note: None  # type: ignore[method-assign]
        self.referee.learned = lambda _part: None  # type: ignore[method-assign]
        self.cache = cache
        self.tasks: dict[str, dict[str, Any]] = {}
        self.known: dict[str, dict[str, Any]] = {}

    def ask(self, name: str, msg: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Returns the answer to a request, as Go gets it."""
        asked = {**msg, "type": name}
        return operations.result(self.referee.operations(), asked, list(fds))["result"]

    def task(self, source: str) -> dict[str, Any]:
        if source not in self.tasks:
            msg = {"name": "task", "source": source, "threads": 1, **self.place}
            msg["cache_dir"] = self.cache
            self.tasks[source] = self.ask("inspect", msg)["task"]
        return self.tasks[source]

    def calibration(self, source: str) -> dict[str, Any]:
        if source not in self.known:
            request = self.request(source, "", "quick", {})
            client = processes_of(self.server, request).reference(compiles=False)
            try:
                known = calibrate.calibrate(client, want_compile=False).to_json()
            finally:
                client.kill()
            self.known[source] = {"calibration": known}
        return self.known[source]

    def request(
        self, source: str, candidate: str, level: str, more: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "task": self.task(source),
            "candidate": {"source": candidate},
            "level": level,
            "threads": 1,
            "cache_dir": self.cache,
            # How exactly a certificate knows is no matter for tests; figures come of a GPU.
            "certify_s": 30.0 if self.place else 1.0,
            "milestone": MILESTONE,
            "specs": {} if self.place else {"l3_bytes": LLC},
            **self.place,
            **more,
        }

    def verdict(
        self, source: str, candidate: str, level: str = "quick", *, built: bool = False, **more: Any
    ) -> dict[str, Any]:
        """``built``: whether it goes to the builder first, which refuses much of what is here."""
        more = {"known": self.calibration(source), **more}
        more = {"time": False, "require_custom": built, "cold": False, **more}
        request = self.request(source, candidate, level, more)
        with pytest.MonkeyPatch.context() as m:
            if not built:
                m.setattr(builder_client, "build", lambda *_, **__: copy.deepcopy(UNBUILT))
            answer = self.ask("evaluate", request)
        self.known[source] |= answer["learned"]  # baselines, the next time
        return answer["verdict"]

    def sharing(self, request: Request, _: list[int]) -> Answer:
        """Evaluates with a share of the device, and with all of it from where it is timed."""
        self.device.asked.clear()
        fds = [self.device.take(fcntl.LOCK_SH)]
        try:
            shared = dataclasses.replace(request.order, shares=True)
            shares = dataclasses.replace(request, order=shared)
            return referee.Referee.evaluate(self.referee, shares, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        self.server.close()
        self.referee.channel.close()
