"""A builder process that makes one text, and what it is asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import kernelwright
from kwharness.base.built import Artifact, BuildRequest, CompilerReport, Failed
from kwharness.base.configs import BuilderConfig
from kwharness.base.for_builder import (
    Compile,
    Compiled,
    MakeHeader,
    MakeHelper,
    Record,
    Recorded,
)
from kwharness.base.operations import A, Done, Request
from kwharness.base.protocol import Closed, ProtocolError, Timeout
from kwharness.build import (
    build_requests,
    compilers,
    forms,
    object_cache,
    reports,
)
from kwharness.build.form import (
    LOAD_INLINE,
)
from kwharness.clients.errors import (
    how_it_ended,
    read_failure,
    sentence,
)
from kwharness.clients.workshop import name_of
from kwharness.machine import toolchain
from kwharness.process import policy
from kwharness.process.fork_client import Exit, ForkServer, Worker

IMPORT_TIMEOUT = 60.0
COMPILE_TIMEOUT = compilers.COMPILE_TIMEOUT * 2 + 20
MAX_REQUESTS = 1000  # of a candidate that is imported, where the same is asked for more than once
MAX_HEADER = 1 << 30
COMPILING = "compiling "  # what is told of an object before its name: the candidate's part is over
headers_lock = threading.Lock()  # held while what many builds need is made
Progress = Callable[[str], None]


def warm(server: ForkServer, light: str, flags: Sequence[str], mode: str, *, cuda: bool) -> bool:
    target = os.path.join(light, compilers.SHIM + ".gch", object_cache.header_key(flags))
    if os.path.exists(target):
        return True
    if not toolchain.compiler():
        return False
    folder = os.path.dirname(target)
    others = sorted(os.scandir(folder), key=lambda e: e.stat().st_mtime)
    for old in others[: max(0, len(others) - object_cache.MAX_HEADERS + 1)]:
        os.unlink(old.path)
    return made(server, Sees(light, cuda), MakeHeader(list(flags), cuda), target, mode)


def made(server: ForkServer, sees: Sees, request: Request, target: str, mode: str) -> bool:
    """Has a builder make a file of a folder of headers of ours. Returns whether it is there."""
    with compiler_of(server, sees, mode) as worker:
        try:
            _, fds = ask(worker, request, Done, COMPILE_TIMEOUT)
        except NoAnswer:
            return False
        try:
            if not fds:
                return False
            object_cache.copy_into(fds[0], target, MAX_HEADER)
        finally:
            object_cache.close_all(fds)
    return os.path.exists(target)


class Maker:
    """Builds requests one after the other (workshop.Maker), by one builder as long as that sees
    what each needs.
    """

    def __init__(
        self,
        server: ForkServer,
        cache_dir: str,
        mode: str,
        arch: str,
        text: str,
        note: Progress,
        warm: bool = False,
        *,
        whole: bool = False,
    ) -> None:
        """``text`` is the candidate's, whose lines are named. ``note`` is told what is compiled.
        ``warm``: a builder is started at once, which makes NVRTC ready. ``whole``: see workshop.
        """
        self._whole = whole
        self._server, self._cache, self._mode = server, cache_dir, mode
        self._arch, self._text, self._note = arch, text, note
        self._builder: Worker | None = None
        self._sees: Sees | None = None
        self.stopped = False
        if warm:
            self._sees = Sees("", True, tuple(build_requests.includes_of([text])))
            self._builder = compiler_of(server, self._sees, mode, warm=True)

    def checked(self, raw: Any) -> BuildRequest:
        try:
            return forms.checked_request(raw, self._arch, whole=self._whole)
        except (KeyError, TypeError, ValueError) as e:
            said = f"the candidate's request to build is malformed: {e!s:.200}"
            raise Failed("rejected", sentence(said)) from e

    def make(self, request: BuildRequest, seconds: float) -> tuple[Artifact, CompilerReport]:
        kept = object_cache.cached_object(self._cache, request)
        if kept is not None:
            return kept
        if (said := object_cache.cached_failure(self._cache, request)) is not None:
            raise reports.failure_of(said, request, self._text)
        self._note(COMPILING + name_of(request))
        light = ""
        if request["kind"] == LOAD_INLINE and not request.get("whole"):
            with headers_lock:
                light = _light(self._server, self._cache, request, self._mode)
        cuda = request.get("language") == "cuda"
        sees = Sees(light, cuda, tuple(request.get("includes", ())))
        if self._builder is not None and sees != self._sees:
            self.close()
        if self._builder is None:
            self._builder, self._sees = compiler_of(self._server, sees, self._mode), sees
        if self.stopped:
            raise Failed("crashed", "nobody waits for it any more")
        try:
            return _compile(
                self._builder, self._cache, request, self._text, min(seconds, COMPILE_TIMEOUT)
            )
        except BaseException:
            self.close()  # who was late, or has ended, builds nothing more
            raise

    def stop(self) -> None:
        self.stopped = True
        builder = self._builder
        if builder is not None:
            builder.end()

    def close(self) -> None:
        builder, self._builder = self._builder, None
        if builder is not None:
            builder.kill()
            builder.wait(10)


class Sees(NamedTuple):
    """What a builder sees of what lies outside of its sandbox."""

    light: str = ""  # the folder of our lighter headers
    cuda: bool = False  # the toolkit
    includes: tuple[str, ...] = ()  # folders of CUTLASS's headers


def compiler_of(server: ForkServer, sees: Sees, mode: str, warm: bool = False) -> Worker:
    """Starts a builder. ``warm`` has it make NVRTC ready."""
    home = toolchain.cuda_home() if sees.cuda else ""
    shown = [f for f in (sees.light, home, *sees.includes) if f]
    config = BuilderConfig(mode, read_only=shown, cuda_home=home, light=sees.light, warm=warm)
    return server.spawn(config)


def recorded(worker: Worker, text: str, forbids: bool) -> tuple[list[Any], bool]:
    """Returns what the candidate asks to have built, and whether it fails to be imported: the word
    of a process that ran the candidate, without a device and with stand-ins for what it builds.
    """
    try:
        said = answered(worker, Record(text, forbids), Recorded, IMPORT_TIMEOUT)
    except Raised:
        return [], True
    except NoAnswer as e:
        status = "timed_out" if e.late else "crashed"
        raise Failed(status, f"importing the candidate: {e}") from e
    return said.requests[:MAX_REQUESTS], said.error is not None


def _compile(
    worker: Worker, cache_dir: str, request: BuildRequest, text: str, timeout: float
) -> tuple[Artifact, CompilerReport]:
    launched = bool(request.get("launched"))
    cuda = request.get("language") == "cuda"
    enough = launched and kernelwright.nvrtc_version()
    if cuda and not enough and not os.access(toolchain.nvcc(), os.X_OK):
        raise toolchain.Missing(toolchain.NO_NVCC)
    if not launched and not os.access(toolchain.compiler(), os.X_OK):
        # Nobody's candidate: it may have been there when the machine was measured.
        raise toolchain.Missing(toolchain.NO_COMPILER)
    try:
        answer, fds = ask(worker, Compile(request), Compiled, timeout)
    except NoAnswer as e:
        status = "timed_out" if e.late else "build_failed"
        raise Failed(status, f"compiling: {e}") from e
    try:
        report = reports.compiler_report(answer)
        if answer.killed:
            raise policy.SandboxError(
                "the compiler was killed from outside, or by the kernel for want of memory"
            )
        key = object_cache.object_key(request)
        said = reports.said_by(answer, report.log)
        if len(fds) != 1 or said.reaches:
            if not said.late:
                object_cache.write_json(
                    object_cache.path_in(cache_dir, "objects", key + object_cache.FAILED),
                    {"key": key, **said.to_json()},
                )
            raise reports.failure_of(said, request, text)
        path = object_cache.path_in(cache_dir, "objects", key + ".so")
        sha256 = object_cache.copy_into(fds[0], path, object_cache.MAX_BYTES)
    finally:
        object_cache.close_all(fds)
    loaded = answer.loaded[:64]
    asked = (request["kind"], request["request"])
    artifact = Artifact(request["name"], sha256, path, *asked, key, loaded)
    object_cache.keep_object(artifact, report)
    return artifact, report


def _light(server: ForkServer, cache_dir: str, request: BuildRequest, mode: str) -> str:
    """Returns the folder of lighter headers for a request of load_inline.

    They are precompiled for flags that come a second time: once costs more than it saves. What
    CUDA's needs beside them is made when it is first asked for: it takes half as long as one build
    without.
    """
    cuda = request.get("language") == "cuda"
    light = object_cache.light_tensor(cache_dir) if cuda else object_cache.light_header(cache_dir)
    if cuda:
        helper = os.path.join(light, compilers.HELPER)
        if not os.path.exists(helper) and not made(
            server, Sees(light, cuda=True), MakeHelper(), helper, mode
        ):
            return ""
    seen = os.path.join(light, object_cache.header_key(request["flags"]) + ".seen")
    if os.path.exists(seen):
        warm(server, light, request["flags"], mode, cuda=cuda)
    else:
        object_cache.replace_file(seen, b"")
    return light


class NoAnswer(Exception):
    """A builder gave none. The message is a sentence on why."""

    late = False


class Raised(NoAnswer):
    """What it was asked for failed, by its own word."""


def ask(
    worker: Worker, request: Request, answer: type[A], timeout: float, given: Sequence[int] = ()
) -> tuple[A, list[int]]:
    """Returns the answer and its descriptors. Raises NoAnswer, and SandboxError for what is the
    machine's fault.
    """
    try:
        worker.channel.send(request.asked(), given)
        msg, fds = worker.channel.recv(timeout)
    except Timeout as e:
        late = NoAnswer(f"it took longer than {timeout:g} s")
        late.late = True
        raise late from e
    except Closed as e:
        end = worker.wait(5)
        if end is not None and end.blameless:
            raise policy.SandboxError(f"a builder {how_it_ended(end)}") from None
        raise NoAnswer(_ended(end)) from e
    except ProtocolError as e:
        raise NoAnswer(f"its process broke the protocol: {e}") from e
    try:
        if msg.get("ok") is not True:
            raise Raised(sentence(read_failure(msg.get("error")).message)[:300])
        return answer.from_json(msg), fds
    except (NoAnswer, ProtocolError) as e:
        object_cache.close_all(fds)
        if isinstance(e, NoAnswer):
            raise
        raise NoAnswer(f"its process broke the protocol: {sentence(str(e))}") from e


def _ended(end: Exit | None) -> str:
    if end is None or end.signal is None:
        return "its process ended by itself"
    if end.reason == "oom":
        return "its process was killed for want of memory or processor time"
    return f"its process died of signal {end.signal}"


def answered(worker: Worker, request: Request, answer: type[A], timeout: float) -> A:
    """Returns the answer to a request for no descriptor. Raises as ``ask`` does."""
    said, fds = ask(worker, request, answer, timeout)
    object_cache.close_all(fds)
    return said
