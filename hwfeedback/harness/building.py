"""The referee's side of building: sandboxed builders do the work, this trusted side keeps the
results.

The cache (a folder) holds three things, each written to a temporary name and renamed:
objects/<key>.so with <key>.json beside it (SHA-256 and the compiler's report), builds/<key>.json
(what a whole candidate came to), and header-<key>/ (our lighter torch/extension.h with precompiled
forms of it). An object whose hash is not the recorded one counts as absent and is built again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import compiling
import kernelwright
import sandbox
import sass
import source
import toolchain
import triton_kernels
from artifacts import LOAD_INLINE, NATIVE, TRITON, inline_key, native_key
from clients import hold, how_it_ended, line_numbers, sentence
from forkserver import ForkServer, Worker
from protocol import Closed, ProtocolError, Timeout

RULES = "8"  # changes when the same candidate would build to something else
IMPORT_TIMEOUT = 60.0
PARSE_TIMEOUT = 20.0
COMPILE_TIMEOUT = compiling.COMPILE_TIMEOUT * 2 + 20
FACTS_TIMEOUT = 60.0
BUILD_TIMEOUT = 600.0  # of all objects of a candidate
MAX_OBJECTS = 16  # in one candidate
MAX_REQUESTS = 1000  # of them, where the same is asked for more than once
MAX_SOURCES = 4 << 20  # characters, of a candidate's objects together
MAX_BYTES = 256 << 20  # of one object
MAX_HEADER = 1 << 30
MAX_HEADERS = 3  # precompiled headers kept; each is some 500 MB
KEPT = ("", "rejected", "build_failed")  # what a candidate comes to again, and is kept
VOTERS = 5000  # lines of a source that tell where it lies in its file
DIAGNOSTICS = compiling.MAX_DIAGNOSTICS
COMPILING = "compiling "  # what is told of an object before its name: the candidate's part is over
NONE = "none"  # the CUTLASS of a candidate that asks for it, where there is none
FOR_A_GPU = "it is written in CUDA, and the device is the CPU"
_headers = threading.Lock()  # held while what many builds need is made

Progress = Callable[[str], None]


class _Failed(Exception):
    """The candidate's fault. The words of a verdict: status and reason."""

    def __init__(self, status: str, reason: str, **report: Any) -> None:
        super().__init__(reason)
        self.status, self.reason, self.report = status, reason, report


def parse(server: ForkServer, text: str, what: str, mode: str = "strict") -> dict[str, Any]:
    """What source.parse says of a text, from a sandboxed worker. A text that kills its parser has a
    problem saying so.
    """
    worker = server.spawn("builder", {"sandbox": mode, "threads": 1})
    try:
        answer = _problem_if_dead(
            worker, {"op": "parse", "source": text, "what": what}, PARSE_TIMEOUT
        )
    finally:
        worker.kill()  # nobody need wait until it is gone
    if isinstance(answer, str):
        parsed = {"normalised_hash": "", "language": "", "form": "none", "problems": [answer]}
        return parsed | {"triton": False, "program_hash": ""}
    return _parsed(answer)


def export(server: ForkServer, text: str, mode: str = "strict") -> str:
    """The standalone form of a candidate. Raises ValueError for one that is not Python."""
    with server.spawn("builder", {"sandbox": mode, "threads": 1}) as worker:
        answer = _problem_if_dead(worker, {"op": "export", "source": text}, PARSE_TIMEOUT)
    if isinstance(answer, str):
        raise ValueError(answer)
    if not answer.get("ok") or not isinstance(answer.get("source"), str):
        raise ValueError(f"the candidate cannot be exported: {_message(answer)}")
    return answer["source"]


def build(
    server: ForkServer,
    candidate: dict[str, Any],
    cache_dir: str,
    device: str = "cpu",
    mode: str = "strict",
    progress: Progress | None = None,
    arch: str = "",
) -> dict[str, Any]:
    """Builds a candidate, or finds it built. Never raises for the candidate's faults.

    ``arch`` is what CUDA is compiled for, as "sm_90a"; without it there is no CUDA.

    Returns ``build`` (a BuildReport), ``status`` ("" when it is built, else rejected, build_failed,
    crashed or timed_out), ``reason``, ``artifacts`` (for ``open_artifacts``), ``normalised_hash``,
    ``language``, ``triton`` (whether it has kernels that are compiled when it runs) and
    ``missing``. Raises toolchain.Missing, sandbox.SandboxError and ProtocolError for what is the
    machine's fault.
    """
    start = time.monotonic()
    text = candidate["source"]
    record_path = _path(cache_dir, "builds", _build_key(text, device, arch) + ".json")
    known = _kept(record_path)
    if known is not None:
        known["build"] |= {"cached": True, "seconds": time.monotonic() - start}
        return known
    result: dict[str, Any] = {
        "build": {"seconds": 0.0, "cached": False, "form": "none"},
        "status": "",
        "reason": "",
        "artifacts": [],
        "normalised_hash": "",
        "language": candidate.get("language") or "cpp",
        "missing": [],
        "triton": False,
        "cutlass": "",
    }
    try:
        _build(server, text, cache_dir, mode, arch, result, progress or (lambda _: None))
    except _Failed as e:
        result |= {"status": e.status, "reason": e.reason}
        result["build"] |= e.report
    result["build"]["seconds"] = time.monotonic() - start
    if result["status"] in KEPT:
        _write_json(record_path, result)
    return result


def open_artifacts(built: dict[str, Any]) -> list[int]:
    """Returns a descriptor for each artifact of a build: a sealed copy in memory of the object,
    verified.

    The caller closes them. Raises OSError where the cache no longer holds what was built: build
    again.
    """
    fds: list[int] = []
    try:
        for artifact in built.get("artifacts") or ():
            with open(artifact["path"], "rb") as f:
                data = f.read()
            if hashlib.sha256(data).hexdigest() != artifact["sha256"]:
                raise OSError(f"{artifact['path']} is not what was built")
            fds.append(_sealed(data, artifact["name"]))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return fds


def facts(
    server: ForkServer, built: dict[str, Any], cache_dir: str, mode: str = "strict"
) -> list[dict[str, Any]]:
    """Returns what is known of the kernels in a build's objects (sass.py): kept by the object's
    hash. Never raises for what a reader makes of an object: it is then not known.
    """
    artifacts = list(built.get("artifacts") or ())
    paths = [_path(cache_dir, "facts", f"{a['sha256']}.json") for a in artifacts]
    known = [_read_json(p) for p in paths]
    missing = [i for i, k in enumerate(known) if k is None]
    if missing and toolchain.cuobjdump():
        fds = open_artifacts({"artifacts": [artifacts[i] for i in missing]})
        try:
            with _compiler(server, _Sees(cuda=True), mode) as worker:
                answer, more = _ask(worker, {"op": "facts"}, FACTS_TIMEOUT, fds)
                _close(more)
        finally:
            _close(fds)
        said = answer.get("kernels") if isinstance(answer, dict) else None
        if isinstance(said, list) and len(said) == len(missing):
            for i, kernels in zip(missing, said, strict=True):
                known[i] = kept = {"kernels": _resources(kernels)}
                _write_json(paths[i], kept)
    return [k for each in known if each for k in _resources(each.get("kernels"))]


def with_facts(
    kernels: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns what the compiler said of kernels with what their objects say beside it."""
    told = {k["name"]: k for k in known}
    both = [{**told.pop(k["name"], {}), **k} for k in kernels]
    return [*both, *(k for k in known if k["name"] in told)][:DIAGNOSTICS]


def warm_extension(
    server: ForkServer, cache_dir: str, flags: Sequence[str], mode: str = "strict"
) -> bool:
    """Precompiles our torch/extension.h for these flags of load_inline. Returns whether it is there
    afterwards.
    """
    return _warm(server, _light_header(cache_dir), flags, mode, cuda=False)


def _warm(server: ForkServer, light: str, flags: Sequence[str], mode: str, *, cuda: bool) -> bool:
    target = os.path.join(light, compiling.SHIM + ".gch", _header_key(flags))
    if os.path.exists(target):
        return True
    if compiling.flags_problem(flags) or not toolchain.compiler():
        return False
    folder = os.path.dirname(target)
    others = sorted(os.scandir(folder), key=lambda e: e.stat().st_mtime)
    for old in others[: max(0, len(others) - MAX_HEADERS + 1)]:
        os.unlink(old.path)
    request = {"kind": "header", "flags": list(flags), "cuda": cuda}
    return _made(server, light, request, target, mode)


def _made(server: ForkServer, light: str, request: dict[str, Any], target: str, mode: str) -> bool:
    """Has a builder make a file of a folder of headers of ours. Returns whether it is there."""
    with _compiler(server, _Sees(light, bool(request.get("cuda"))), mode) as worker:
        answer, fds = _ask(worker, {"op": "compile", "request": request}, COMPILE_TIMEOUT)
        try:
            if isinstance(answer, str) or not fds:
                return False
            _copy(fds[0], target, MAX_HEADER)
        finally:
            _close(fds)
    return os.path.exists(target)


def _build(
    server: ForkServer,
    text: str,
    cache_dir: str,
    mode: str,
    arch: str,
    result: dict[str, Any],
    progress: Progress,
) -> None:
    progress("reading the candidate")
    ahead: Worker | None = None
    if arch and _seems_launched(text):
        # What NVRTC needs for its first compilation takes as long as reading the candidate.
        ahead = _compiler(server, _Sees("", True, tuple(_includes([text]))), mode, warm=True)
    try:
        _read_and_compile(server, text, cache_dir, mode, arch, result, progress, ahead)
    finally:
        if ahead is not None:
            ahead.kill()


def _seems_launched(text: str) -> bool:
    return "__global__" in text and "<<<" not in text


def _read_and_compile(
    server: ForkServer,
    text: str,
    cache_dir: str,
    mode: str,
    arch: str,
    result: dict[str, Any],
    progress: Progress,
    ahead: Worker | None,
) -> None:
    with server.spawn("builder", {"sandbox": mode, "threads": 1}) as worker:
        result["missing"] = worker.missing
        answer = _problem_if_dead(
            worker, {"op": "parse", "source": text, "what": "candidate"}, PARSE_TIMEOUT
        )
        if isinstance(answer, str):
            raise _Failed("rejected", answer)
        parsed = _parsed(answer)
        result["normalised_hash"] = parsed["normalised_hash"]
        result["language"] = parsed["language"] or result["language"]
        result["build"]["form"] = parsed["form"]
        if parsed["problems"]:
            raise _Failed(
                "build_failed" if not parsed["normalised_hash"] else "rejected",
                f"the candidate is refused: {parsed['problems'][0]}",
                log="\n".join(parsed["problems"]),
                errors=[_diagnostic_of(p) for p in parsed["problems"]],
            )
        result["triton"] = parsed["triton"]
        if parsed["form"] in ("none", "triton"):
            return  # nothing to build yet: importing it is the candidate worker's business
        requests = _recorded(worker, text, arch)
    result["build"]["form"] = NATIVE if any(r["kind"] == NATIVE for r in requests) else LOAD_INLINE
    end = time.monotonic() + BUILD_TIMEOUT
    result["cutlass"] = next((r["cutlass"] for r in requests if r.get("cutlass")), "")
    compiler = ahead
    seen = None if ahead is None else _Sees("", True, tuple(_includes([text])))
    reports: list[dict[str, Any]] = []
    try:
        for request in requests:
            artifact = _cached_object(cache_dir, request)
            if artifact is None:
                progress(COMPILING + request["name"])
                light = ""
                if request["kind"] == LOAD_INLINE:
                    with _headers:
                        light = _light(server, cache_dir, request, mode)
                cuda = request.get("language") == "cuda"
                sees = _Sees(light, cuda, tuple(request.get("includes", ())))
                if compiler is not None and sees != seen:
                    compiler.kill()
                    compiler = None
                if compiler is None:
                    compiler, seen = _compiler(server, sees, mode), sees
                left = end - time.monotonic()
                if left <= 0:
                    raise _Failed("timed_out", f"building it takes longer than {BUILD_TIMEOUT:g} s")
                artifact = _compile(compiler, cache_dir, request, text, min(left, COMPILE_TIMEOUT))
            reports.append(artifact.pop("report"))
            result["artifacts"].append(artifact)
    finally:
        if compiler is not None:
            compiler.kill()
            compiler.wait(10)
    # Objects and what calls them: sources that differ in no more than words give the same.
    same = [parsed["program_hash"], *(a["sha256"] for a in result["artifacts"])]
    result["build"]["code"] = hashlib.sha256("\n".join(same).encode()).hexdigest()
    places = [
        (Lines(text, _sources(r)), report) for r, report in zip(requests, reports, strict=True)
    ]
    for name in ("vectorised", "missed"):
        said = [lines.diagnostic(d) for lines, report in places for d in report.get(name, ())]
        result["build"][name] = _unique(said)
    kernels = [k for report in reports for k in report.get("kernels", ())]
    if kernels:
        result["build"]["kernels"] = kernels
    result["build"]["log"] = "\n".join(filter(None, (r.get("log", "") for r in reports)))[
        : compiling.LOG_KEPT
    ]


class _Sees(NamedTuple):
    """What a builder sees of what lies outside of its sandbox."""

    light: str = ""  # the folder of our lighter headers
    cuda: bool = False  # the toolkit
    includes: tuple[str, ...] = ()  # folders of CUTLASS's headers


def _compiler(server: ForkServer, sees: _Sees, mode: str, warm: bool = False) -> Worker:
    """Starts a builder. ``warm`` has it make NVRTC ready."""
    home = toolchain.cuda_home() if sees.cuda else ""
    config: dict[str, Any] = {"sandbox": mode, "threads": 1, "cuda_home": home, "warm": warm}
    config["read_only"] = [f for f in (sees.light, home, *sees.includes) if f]
    return server.spawn("builder", config | ({"light": sees.light} if sees.light else {}))


def _includes(sources: Sequence[str]) -> list[str]:
    """Returns the folders of CUTLASS's headers, none for sources that include none of them."""
    asked = any(map(kernelwright.cutlass_header, sources))
    return kernelwright.cutlass_folders() if asked else []


def _of_cutlass(sources: Sequence[str]) -> dict[str, Any]:
    """What a request has of CUTLASS: ``includes`` and, for its key, ``cutlass``, "none" where its
    headers are asked for and not there.
    """
    if not any(map(kernelwright.cutlass_header, sources)):
        return {"includes": [], "cutlass": ""}
    return {"includes": kernelwright.cutlass_folders(), "cutlass": toolchain.cutlass() or NONE}


def _recorded(worker: Worker, text: str, arch: str) -> list[dict[str, Any]]:
    """What the candidate asks to have built, checked: it comes from a process that ran the
    candidate.
    """
    answer = _problem_if_dead(worker, {"op": "record", "source": text}, IMPORT_TIMEOUT)
    if isinstance(answer, str):
        raise _Failed("timed_out" if "longer" in answer else "crashed", answer)
    error = answer.get("error")
    if isinstance(error, dict):
        lines = line_numbers(error.get("lines"))
        what = sentence(f"{error.get('type', '')!s:.100}: {error.get('message', '')!s:.500}")
        where = f" at line {lines[-1]}" if lines else ""
        raise _Failed(
            "build_failed",
            f"importing the candidate fails{where}: {what}",
            log=f"{error.get('traceback', '')!s:.8000}",
            errors=[{"line": lines[-1] if lines else 0, "message": what}],
        )
    out: dict[str, dict[str, Any]] = {}
    size = 0
    given = answer.get("requests")
    for raw in given[:MAX_REQUESTS] if isinstance(given, list) else ():
        try:
            request = _checked(raw, arch)
        except (KeyError, TypeError, ValueError) as e:
            raise _Failed("rejected", f"the candidate's request to build is malformed: {e}") from e
        out[request["request"]] = request
        size += sum(map(len, _sources(request)))
        if size > MAX_SOURCES:
            raise _Failed(
                "rejected", f"the sources to build are over {MAX_SOURCES} characters long"
            )
    if len(out) > MAX_OBJECTS:
        raise _Failed(
            "rejected", f"the candidate builds {len(out)} objects, the limit is {MAX_OBJECTS}"
        )
    return list(out.values())


def _checked(raw: Any, arch: str) -> dict[str, Any]:
    def texts(value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError("not a list of strings")
        return value

    if not isinstance(raw, dict):
        raise ValueError("not a dict")
    flags = texts(raw["flags"])
    if raw.get("language", "cpp") not in ("cpp", "cuda"):
        raise ValueError("language")
    native = raw["kind"] == NATIVE
    cuda = raw.get("language") == "cuda" if native else bool(raw.get("cuda_sources"))
    allowed = compiling.ALLOWED_CUDA_FLAG if cuda and native else compiling.ALLOWED_FLAG
    if problem := compiling.flags_problem(flags, allowed):
        raise _Failed("rejected", problem)
    if cuda and not arch:
        raise _Failed("rejected", FOR_A_GPU)
    if native:
        name, source = raw["name"], raw["source"]
        if not isinstance(source, str) or not isinstance(name, str) or not name.isidentifier():
            raise ValueError("name or source is no text")
        request: dict[str, Any] = {"kind": NATIVE, "name": name[:64], "source": source}
        request |= {"flags": flags}
        language = "cuda" if cuda else "cpp"
        request |= {"language": language, "arch": arch if cuda else ""}
        request["launched"] = cuda and raw.get("launched") is True
        request |= _of_cutlass([source] if cuda else [])
        return request | {"request": native_key(source, flags, language)}
    functions = raw["functions"]
    if functions is not None and not isinstance(functions, dict):
        raise ValueError("functions")
    for name in functions or ():
        if not all(part.isidentifier() for part in name.split("::")):
            raise ValueError(f"{name!r:.100} is no function's name")
    libraries = compiling.ALLOWED_CUDA_LIBRARY if cuda else compiling.ALLOWED_FLAG
    if problem := compiling.flags_problem(texts(raw["ldflags"]), libraries):
        raise _Failed("rejected", problem)
    if not isinstance(raw["name"], str) or not raw["name"].isidentifier() or len(raw["name"]) > 100:
        raise ValueError("name")
    request = {
        "name": raw["name"],
        "sources": texts(raw["sources"]),
        "functions": None if functions is None else {k: str(v)[:500] for k, v in functions.items()},
        "flags": flags,
        "ldflags": texts(raw["ldflags"]),
        "headers": raw["headers"] is True,
        "handling": raw["handling"] is True,
        "module": raw["module"] is True,
    }
    if not cuda:
        return {"kind": LOAD_INLINE, **request, "request": inline_key(request)}
    request |= {"cuda_sources": texts(raw["cuda_sources"]), "cuda_flags": texts(raw["cuda_flags"])}
    key = inline_key(request)
    request |= _of_cutlass([*request["sources"], *request["cuda_sources"]])
    request["cuda_flags"] = compiling.without_architecture(request["cuda_flags"], arch)
    if problem := compiling.flags_problem(request["cuda_flags"], compiling.ALLOWED_CUDA_FLAG):
        other = f" (it is compiled for {arch})" if "arch" in problem or "gencode" in problem else ""
        raise _Failed("rejected", problem + other)
    return {"kind": LOAD_INLINE, **request, "request": key, "language": "cuda", "arch": arch}


def _compile(
    worker: Worker, cache_dir: str, request: dict[str, Any], text: str, timeout: float
) -> dict[str, Any]:
    launched = bool(request.get("launched"))
    cuda = request.get("language") == "cuda"
    enough = launched and kernelwright.nvrtc_version()
    if cuda and not enough and not os.access(toolchain.nvcc(), os.X_OK):
        raise toolchain.Missing(toolchain.NO_NVCC)
    if not launched and not os.access(toolchain.compiler(), os.X_OK):
        # Nobody's candidate: it may have been there when the machine was measured.
        raise toolchain.Missing(toolchain.NO_COMPILER)
    answer, fds = _ask(worker, {"op": "compile", "request": request}, timeout)
    try:
        if isinstance(answer, str):
            raise _Failed(
                "timed_out" if "longer" in answer else "build_failed", f"compiling: {answer}"
            )
        if not answer.get("ok"):
            raise _Failed(
                "build_failed",
                f"compiling: {_message(answer)}",
            )
        report: dict[str, Any] = {
            "log": str(answer.get("log") or "")[: compiling.LOG_KEPT],
            "vectorised": _diagnostics(answer.get("vectorised")),
            "missed": _diagnostics(answer.get("missed")),
            "kernels": _resources(answer.get("kernels")),
        }
        if answer.get("killed"):
            raise sandbox.SandboxError(
                "the compiler was killed from outside, or by the kernel for want of memory"
            )
        if len(fds) != 1:
            lines = Lines(text, _sources(request))
            found = _unique(lines.diagnostic(d) for d in _diagnostics(answer.get("errors")))
            said = compiling.last_words(report["log"]) or "its compiler does not say why"
            first = found[0] if found else {"line": 0, "message": said}
            where = f"line {first['line']}: " if first["line"] else ""
            status = "timed_out" if answer.get("code") == -1 else "build_failed"
            lacks = (kernelwright.without_cutlass(s) for s in _sources(request) if cuda)
            said = next(filter(None, lacks), f"{where}{first['message']}")
            reason = f"{request['name']} does not compile: {said}"
            raise _Failed(status, reason, log=report["log"], errors=found)
        reached = answer.get("reaches")
        if isinstance(reached, list) and reached:
            names = ", ".join(str(n)[:80] for n in reached[:4])
            raise _Failed(
                "rejected",
                f"{request['name']} calls {names}, which a kernel has no use for",
                log=report["log"],
            )
        key = _object_key(request)
        path = _path(cache_dir, "objects", key + ".so")
        sha256 = _copy(fds[0], path, MAX_BYTES)
    finally:
        _close(fds)
    artifact = {
        "key": key,
        "kind": request["kind"],
        "name": request["name"],
        "request": request["request"],
        "sha256": sha256,
        "path": path,
    }
    _write_json(path.removesuffix(".so") + ".json", {**artifact, "report": report})
    return {**artifact, "report": report}


def _cached_object(cache_dir: str, request: dict[str, Any]) -> dict[str, Any] | None:
    key = _object_key(request)
    record = _read_json(_path(cache_dir, "objects", key + ".json"))
    report = record.get("report") if record is not None else None
    if record is None or not isinstance(report, dict):
        return None
    record |= {n: request[n] for n in ("kind", "name", "request")}
    record |= {"key": key, "path": _path(cache_dir, "objects", key + ".so")}
    record["report"] = {
        "log": str(report.get("log") or "")[: compiling.LOG_KEPT],
        "vectorised": _diagnostics(report.get("vectorised")),
        "missed": _diagnostics(report.get("missed")),
        "kernels": _resources(report.get("kernels")),
    }
    return record if _intact(record) else None


def _kept(path: str) -> dict[str, Any] | None:
    """Returns what a candidate came to, or None where that is not kept whole."""
    record = _read_json(path)
    forms: dict[str, Any] = {"build": dict, "status": str, "reason": str, "missing": [str]}
    forms |= {"normalised_hash": str, "language": str, "triton": bool}
    forms["artifacts"] = [dict.fromkeys(("kind", "name", "request", "sha256", "path"), str)]
    try:
        hold(record, forms)
        assert record is not None
        hold(record["build"], {"form": str})
        for name in ("errors", "vectorised", "missed"):
            said = record["build"].get(name, [])
            hold(said, [{"line": int, "message": str}])
            if not all(0 <= d["line"] < 1 << 62 and d["message"].isprintable() for d in said):
                return None
        hold(record["build"].get("log", ""), str)
        hold(record["build"].get("code", ""), str)
        hold(record.get("cutlass", ""), str)
    except ValueError:
        return None
    whole = record["status"] in KEPT and all(_intact(a) for a in record["artifacts"])
    if record.get("cutlass"):
        whole = whole and record["cutlass"] == (toolchain.cutlass() or NONE)
    return record if whole else None


def _object_key(request: dict[str, Any]) -> str:
    flags = kernelwright.FLAGS if request["kind"] == NATIVE else ("load_inline",)
    if request.get("language") == "cuda":
        own = kernelwright.CUBIN_FLAGS if request.get("launched") else kernelwright.CUDA_FLAGS
        flags = (*flags, *own, request["arch"], *_cuda_versions())
        flags += (request["cutlass"],) if request.get("cutlass") else ()
    return toolchain.key(RULES, request["kind"], request["request"], *flags, toolchain.identity())


def _build_key(text: str, device: str, arch: str) -> str:
    cuda = (*kernelwright.CUDA_FLAGS, arch, *_cuda_versions()) if arch else ()
    return toolchain.key(RULES, text, device, *kernelwright.FLAGS, *cuda, toolchain.identity())


def _cuda_versions() -> tuple[str, str]:
    return toolchain.nvcc_version(), kernelwright.nvrtc_version()


def kept_kernels(cache_dir: str, key: str) -> dict[str, Any] | None:
    """Returns the artifact of Triton kernels that were compiled before, or None."""
    record = _read_json(_path(cache_dir, "objects", key + ".json"))
    try:
        hold(record, dict.fromkeys(("key", "kind", "name", "request", "sha256", "path"), str))
    except ValueError:
        return None
    assert record is not None
    return record if record["kind"] == TRITON and _intact(record) else None


def keep_kernels(cache_dir: str, key: str, fd: int) -> dict[str, Any]:
    """Keeps what a worker has compiled (triton_kernels.py) and returns its artifact."""
    path = _path(cache_dir, "objects", key + ".so")
    sha256 = _copy(fd, path, 2 * triton_kernels.MAX_BYTES)
    artifact = {"key": key, "kind": TRITON, "name": "kernels", "request": TRITON}
    artifact |= {"sha256": sha256, "path": path}
    _write_json(path.removesuffix(".so") + ".json", artifact)
    return artifact


def _light_header(cache_dir: str) -> str:
    """The folder with our torch/extension.h, in front of torch's own when compiling load_inline."""
    return _header_folder(cache_dir, {compiling.SHIM: compiling.LIGHT_HEADER})


def _light_tensor(cache_dir: str) -> str:
    """The same with tensor_light.h in place of torch's headers, for load_inline in CUDA."""
    here = os.path.dirname(os.path.abspath(__file__))
    files = dict.fromkeys(compiling.STANDS_FOR, f'#include "{compiling.TENSOR_LIGHT[0]}"\n')
    for name in compiling.TENSOR_LIGHT:
        with open(os.path.join(here, name), encoding="utf-8") as f:
            files[name] = f.read()
    return _header_folder(cache_dir, files)


def _header_folder(cache_dir: str, files: dict[str, str]) -> str:
    key = toolchain.key(*itertools.chain(*files.items()), toolchain.identity())[:24]
    folder = os.path.join(os.path.abspath(cache_dir), f"header-{key}")
    if not os.path.exists(os.path.join(folder, compiling.SHIM)):
        os.makedirs(os.path.join(folder, compiling.SHIM + ".gch"), mode=0o755, exist_ok=True)
        for name in sorted(files, key=lambda n: n == compiling.SHIM):  # that one says it is whole
            os.makedirs(os.path.dirname(os.path.join(folder, name)), mode=0o755, exist_ok=True)
            _replace(os.path.join(folder, name), files[name].encode())
    return folder


def _header_key(flags: Sequence[str]) -> str:
    return toolchain.key(*compiling.torch_flags(flags))[:32]


def _light(server: ForkServer, cache_dir: str, request: dict[str, Any], mode: str) -> str:
    """Returns the folder of lighter headers for a request of load_inline.

    They are precompiled for flags that come a second time: once costs more than it saves. What
    CUDA's needs beside them is made when it is first asked for: it takes half as long as one build
    without.
    """
    cuda = request.get("language") == "cuda"
    light = _light_tensor(cache_dir) if cuda else _light_header(cache_dir)
    if cuda:
        helper = os.path.join(light, compiling.HELPER)
        if not os.path.exists(helper) and not _made(
            server, light, {"kind": "helper", "cuda": True}, helper, mode
        ):
            return ""
    seen = os.path.join(light, _header_key(request["flags"]) + ".seen")
    if os.path.exists(seen):
        _warm(server, light, request["flags"], mode, cuda=cuda)
    else:
        _replace(seen, b"")
    return light


def _ask(
    worker: Worker, msg: dict[str, Any], timeout: float, given: Sequence[int] = ()
) -> tuple[dict[str, Any] | str, list[int]]:
    """An answer and its descriptors, or a sentence on why there is none."""
    try:
        worker.channel.send(msg, given)
        return worker.channel.recv(timeout)
    except Timeout:
        return f"it took longer than {timeout:g} s", []
    except Closed:
        end = worker.wait(5)
        if end is not None and end.blameless:
            raise sandbox.SandboxError(f"a builder {how_it_ended(end)}") from None
        if end is None or end.signal is None:
            return "its process ended by itself", []
        if end.reason == "oom":
            return "its process was killed for want of memory or processor time", []
        return f"its process died of signal {end.signal}", []
    except ProtocolError as e:
        return f"its process broke the protocol: {e}", []


def _problem_if_dead(worker: Worker, msg: dict[str, Any], timeout: float) -> dict[str, Any] | str:
    answer, fds = _ask(worker, msg, timeout)
    _close(fds)
    if isinstance(answer, str):
        doing = "importing the candidate" if msg["op"] == "record" else "reading the source"
        return f"{doing}: {answer}"
    return answer


def _message(answer: dict[str, Any]) -> str:
    """What a builder says of its failure."""
    error = answer.get("error")
    return sentence(str(error.get("message", "")))[:300] if isinstance(error, dict) else ""


def _parsed(answer: dict[str, Any]) -> dict[str, Any]:
    problems = answer.get("problems")
    if not answer.get("ok"):
        problems = [f"reading the source fails: {_message(answer)}"]

    def word(name: str, pattern: str, otherwise: str) -> str:
        value = answer.get(name)
        return value if isinstance(value, str) and re.fullmatch(pattern, value) else otherwise

    return {
        "normalised_hash": word("normalised_hash", "[0-9a-f]{64}", ""),
        "program_hash": word("program_hash", "[0-9a-f]{64}", ""),
        "language": word("language", "[a-z]{1,16}", ""),
        "form": word("form", "native|load_inline|triton|none", "none"),
        "triton": answer.get("triton") is True,
        "problems": [
            sentence(str(p)[:500])
            for p in (problems[: source.MAX_PROBLEMS] if isinstance(problems, list) else ())
        ],
    }


def _diagnostic_of(problem: str) -> dict[str, Any]:
    m = re.match(r"line ([0-9]{1,9}): ", problem)
    return {"line": int(m[1]) if m else 0, "message": problem[m.end() :] if m else problem}


def _diagnostics(value: Any) -> list[tuple[int, int, str]]:
    out = []
    for item in value[: 10 * DIAGNOSTICS] if isinstance(value, list) else ():
        if isinstance(item, (list, tuple)) and len(item) == 3:
            place, text = item[:2], item[2]
            if all(type(n) is int and 0 <= n < 1 << 31 for n in place) and isinstance(text, str):
                out.append((*place, sentence(text[:500])))
    return out[:DIAGNOSTICS]


_RESOURCES = ("registers", "shared_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes")
_MEANS = ("load_bytes", "store_bytes")


def _resources(value: Any) -> list[dict[str, Any]]:
    """Returns what is known of kernels, from a builder's word or a record."""
    out: list[dict[str, Any]] = []
    for item in value[:DIAGNOSTICS] if isinstance(value, list) else ():
        if not isinstance(item, dict):
            continue
        numbers = {n: item.get(n, 0) for n in _RESOURCES}
        if all(type(v) is int and 0 <= v < 1 << 31 for v in numbers.values()):
            names = {n: sentence(str(item.get(n, ""))[:500]) for n in ("name", "arch")}
            out.append(names | numbers | _mix(item))
    return out


def _mix(item: dict[str, Any]) -> dict[str, Any]:
    """Returns what is known of a kernel's instructions, as far as it is sound."""
    found: dict[str, Any] = {}
    counts = item.get("instructions")
    if isinstance(counts, dict):
        sound = {k: v for k, v in counts.items() if k in sass.CLASSES and type(v) is int}
        found["instructions"] = {k: v for k, v in sound.items() if 0 < v < 1 << 31}
    for n in _MEANS:
        mean = item.get(n, 0)
        if type(mean) in (int, float) and 0 < mean <= 64:
            found[n] = float(mean)
    if type(item.get("warps")) is int and 0 < item["warps"] <= 64:
        found["warps"] = item["warps"]
    return found


def _unique(found: Any) -> list[dict[str, Any]]:
    seen = {(d["line"], d["message"]): d for d in found}
    return list(seen.values())[:DIAGNOSTICS]


def _sources(request: dict[str, Any]) -> list[str]:
    if request["kind"] == NATIVE:
        return [request["source"]]
    return [*request["sources"], *request.get("cuda_sources", ())]


class Lines:
    """Finds the lines of C++ sources in the Python file that holds them, by comparing text.

    Nothing else is reliable: a source may be a literal, a join of literals, or come out of a
    format.
    """

    def __init__(self, text: str, sources: Sequence[str]) -> None:
        self._file = [line.strip() for line in text.split("\n")]
        self._where: dict[str, list[int]] = {}
        for i, line in enumerate(self._file, 1):
            if line:
                self._where.setdefault(line, []).append(i)
        self._sources = [s.split("\n") for s in sources]
        self._offsets = [self._offset(s) for s in self._sources]

    def _offset(self, lines: list[str]) -> int:
        votes: dict[int, int] = {}
        for i, line in enumerate(lines[:VOTERS], 1):
            for n in self._where.get(line.strip(), ())[:50]:
                votes[n - i] = votes.get(n - i, 0) + 1
        return max(votes, key=lambda o: (votes[o], -o)) if votes else 0

    def line(self, source: int, number: int) -> int:
        """The line of the file, or 0 where it cannot be told."""
        if not (0 <= source < len(self._sources) and 0 < number <= len(self._sources[source])):
            return 0
        wanted = self._sources[source][number - 1].strip()
        guess = number + self._offsets[source]
        if 0 < guess <= len(self._file) and wanted in self._file[guess - 1]:
            return guess
        found = self._where.get(wanted, [])
        return found[0] if len(found) == 1 else 0

    def diagnostic(self, d: tuple[int, int, str]) -> dict[str, Any]:
        return {"line": self.line(d[0], d[1]), "message": d[2]}


def _intact(artifact: dict[str, Any]) -> bool:
    try:
        with open(artifact["path"], "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest() == artifact["sha256"]
    except (OSError, KeyError):
        return False


def _path(cache_dir: str, folder: str, name: str) -> str:
    place = os.path.join(os.path.abspath(cache_dir), folder)
    os.makedirs(place, exist_ok=True)
    return os.path.join(place, name)


def _replace(path: str, data: bytes) -> None:
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _copy(fd: int, path: str, limit: int) -> str:
    """Copies what another process made, at most ``limit`` bytes, and returns its SHA-256."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise _Failed("build_failed", "what was built is no file")
    digest = hashlib.sha256()
    out, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with os.fdopen(out, "wb") as f:
            offset = 0
            while piece := os.pread(fd, 1 << 20, offset):
                offset += len(piece)
                if offset > limit:
                    raise _Failed("build_failed", f"the built object is larger than {limit} bytes")
                digest.update(piece)
                f.write(piece)
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return digest.hexdigest()


def _sealed(data: bytes, name: str) -> int:
    # The kernel takes 249 bytes, and a letter may have four.
    fd = os.memfd_create(name[:60], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as f:
        f.write(data)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _write_json(path: str, value: dict[str, Any]) -> None:
    _replace(path, json.dumps(value, separators=(",", ":")).encode())


def free(cache_dir: str) -> None:
    """Removes everything that was built and kept."""
    for name in ("objects", "builds", "facts"):
        shutil.rmtree(os.path.join(cache_dir, name), ignore_errors=True)


__all__ = ["build", "export", "free", "open_artifacts", "parse", "sandbox", "warm_extension"]
