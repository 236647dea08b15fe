"""Looks into an exported file while it runs, under PyTorch and under sanitizers."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

from kwharness.base import paths
from kwharness.base.for_builder import Look, LookedAt, Ran, Run, ToolRun
from kwharness.build import object_digest
from kwharness.build.form import LOAD_INLINE
from kwharness.machine import toolchain
from kwharness.standalone import sanitizers
from kwharness.standalone.interpreter import (
    ALONE,
    BUILT,
    CHECK_S,
    FEW,
    FILENAME,
    LATE,
    MAX_BUILT,
    MAX_OBJECT,
    MAX_PROFILE,
    PACKAGE,
    SAID,
    TO_MAP,
    TOOLS,
    WHOLE,
    Interpreter,
    read_text,
)


class Server:
    """The worker's side, for one file."""

    def __init__(self) -> None:
        self._held = ExitStack()  # folders, and what runs in them
        self._looks: Looks | None = None

    def close(self) -> None:
        self._looks = None
        self._held.close()

    def run(self, request: Run, fds: list[int]) -> Ran:
        """Runs the file in a new interpreter. What it prints goes where the worker's own words go.
        Who looks at it later has started; of a file that fails nobody looks.
        """
        code, folder = -1, self._folder()
        try:
            code = self._run(request, fds, folder)
        finally:
            if code:
                self.close()
        return Ran(code, [] if code else _built(folder))

    def _run(self, asked: Run, fds: list[int], folder: str) -> int:
        if folders := asked.cutlass:
            os.environ["CUTLASS_PATH"] = os.path.dirname(folders[0])
            if LOAD_INLINE in asked.source:  # torch's own has nothing that looks there
                os.environ["CPATH"] = ":".join(folders)
        tools = os.path.join(folder, "tools")
        os.mkdir(tools)
        shared = any(request["shared"] for request in asked.requests)
        for name in (*TOOLS, *(TO_MAP if shared else ())):
            to = os.path.join(tools, PACKAGE, name)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(os.path.join(paths.ROOT, PACKAGE, name), to)
        with open(os.path.join(folder, FILENAME), "wb") as f:
            f.write(asked.source.encode())
        first, *others = asked.requests
        own = 1 + bool(first["wanted"])
        for name, request in zip((ALONE, WHOLE), asked.requests, strict=False):
            ask(folder, name, request)
        if others:
            # The file may do away with its own folder.
            whole, fds[own:] = fds[own:], []
            self._looks = self._held.enter_context(
                closing(Looks(folder, self._folder(), whole, asked))
            )
        alone = Interpreter(folder, ALONE, first["threads"], given=fds[:own])
        return alone.end(asked.timeout)

    def look(self, asked: Look, fds: list[int]) -> LookedAt:
        """Returns what the sanitizers say, each of all its runs, and then the profiler, undisturbed
        by them. The request is for few inputs, if there is one.
        """
        assert self._looks is not None
        for request in asked.requests:
            with suppress(OSError):  # the folder is gone: who looks there will say so
                ask(self._looks.folder, FEW, request)
        try:
            return self._looks.results(fds)
        finally:
            self.close()

    def _folder(self) -> str:
        return self._held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))


def _built(folder: str) -> list[list[str]]:
    """Returns the endings of what the file's own loader has built, and what is loaded of each: none
    where that finds another compiler than the builder's.
    """
    found: list[list[str]] = []
    if os.path.realpath(shutil.which("g++") or "") != os.path.realpath(toolchain.compiler()):
        return found
    place = os.path.join(folder, BUILT)
    with suppress(OSError):
        for name in sorted(os.listdir(place))[:MAX_BUILT]:
            fd = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(fd, "rb") as f:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    found.append(
                        [os.path.splitext(name)[1], object_digest.digest(f.read(MAX_OBJECT))]
                    )
    return found


def ask(folder: str, name: str, request: dict[str, Any]) -> None:
    path = os.path.join(folder, f"{name}.json")
    with suppress(FileNotFoundError):
        os.unlink(path)  # the file may have left one there, or a pipe
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
        json.dump(request, f)


class Looks:
    """Interpreters in which the file is looked at, by sanitizers and then by a profiler. What runs
    in them can write to ``place``, too.
    """

    def __init__(self, folder: str, place: str, whole: list[int], asked: Run) -> None:
        """``whole``: the descriptors of the request for all inputs, which are closed at the end."""
        self.folder = folder
        self._place = place
        self._fds = {WHOLE: whole}
        self._program = asked.sanitizer
        self._seen = os.path.join(place, "profile.json")
        self._runs_begun = itertools.count()
        self._profile: Interpreter | None = None
        self._waiting: dict[str, Interpreter] = {}  # under a tool, for its first run
        first = asked.requests[0]
        try:
            if first["profiled"]:
                said, threads = os.path.join(place, "profile.said"), first["threads"]
                self._profile = Interpreter(folder, "", threads, said=said, profile=self._seen)
            if self._program:
                for tool in sanitizers.TOOLS:
                    with suppress(OSError):  # one that cannot be started now is started later
                        self._waiting[tool] = self._under(tool)
        except BaseException:
            self.close()
            raise

    def results(self, few: list[int]) -> LookedAt:
        """``few``: the descriptors of the request for few inputs, none where there is none."""
        if few:
            self._fds = {FEW: few} | self._fds  # it comes first
        checks: list[list[ToolRun]] = []
        if self._program:
            with ThreadPoolExecutor(len(sanitizers.TOOLS)) as pool:
                checks = list(pool.map(self._runs, sanitizers.TOOLS))
        if self._profile is not None:
            self._profile.end(CHECK_S, WHOLE, self._fds[WHOLE])
        return LookedAt(checks, read_text(self._seen)[:MAX_PROFILE])

    def close(self) -> None:
        for waiting in (self._profile, *self._waiting.values()):
            if waiting is not None:
                waiting.close()
        for fd in self._fds.pop(WHOLE, ()):
            os.close(fd)

    def _runs(self, tool: str) -> list[ToolRun]:
        """Where something is found the next request is tried."""
        runs: list[ToolRun] = []
        for request in self._fds:
            runs.append(self._run(tool, request))
            if runs[-1].code != sanitizers.FOUND:
                break
        return runs

    def _run(self, tool: str, request: str) -> ToolRun:
        began = time.monotonic()
        code, report, said = 0, "", ""
        # With each tensor an allocation of its own, an access beside it is one beside all. Who
        # captures a graph cannot do without the allocator.
        for alone in (True, False):
            try:
                runs = self._waiting.pop(tool, None) or self._under(tool, alone=alone)
                code = runs.end(CHECK_S, request, self._fds[request])
            except OSError as e:  # it has left no process, or no folder
                return ToolRun(1, said=str(e))
            report, said = read_text(runs.report), read_text(runs.said)
            if code in (0, sanitizers.FOUND, LATE):
                break
        seconds = time.monotonic() - began
        return ToolRun(code, report[: sanitizers.MAX_LOG], said[-SAID:], seconds)

    def _under(self, tool: str, *, alone: bool = True) -> Interpreter:
        report = os.path.join(self._place, f"{tool}.{next(self._runs_begun)}.report")
        prefix = sanitizers.command(self._program, tool, report)
        more = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if alone else {}
        said = f"{report}.said"
        return Interpreter(self.folder, "", 1, prefix, more, said=said, report=report)
