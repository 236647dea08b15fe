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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import kernelwright
from kwharness.base.protocol import Closed, ProtocolError, Timeout
from kwharness.build import compiler_flags, compilers, forbidden, headers, sass, source
from kwharness.build.artifacts import (
    LOAD_INLINE,
    NATIVE,
    TRITON,
    BuildFailed,
    inline_key,
    native_key,
)
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import (
    WorkerError,
    WorkerGone,
    WorkerLate,
    how_it_ended,
    sentence,
)
from kwharness.clients.errors import (
    check_shape as hold,
)
from kwharness.clients.workshop import Failed, Made, Workshop, name_of, sources_of
from kwharness.machine import toolchain
from kwharness.process import policy
from kwharness.process.forkserver import ForkServer, Worker
from kwharness.torch_compile import inductor, triton_cache

RULES = "12"  # changes when the same candidate would build to something else
IMPORT_TIMEOUT = 60.0
PARSE_TIMEOUT = 20.0
COMPILE_TIMEOUT = compilers.COMPILE_TIMEOUT * 2 + 20
FACTS_TIMEOUT = 60.0
MAX_REQUESTS = 1000  # of a candidate that is imported, where the same is asked for more than once
MAX_BYTES = 256 << 20  # of one object
MAX_HEADER = 1 << 30
MAX_FILES = 500  # that come with one request
_PLACE = re.compile(r"[^/\0][^\0]*")
MAX_HEADERS = 3  # precompiled headers kept; each is some 500 MB
_NOT_INLINED = re.compile(r"\b(kw/\w{1,40}\.h): No such file|cannot open source file \"(kw/\w+\.h)")
FAILED = ".failed.json"  # what is known of a source that does not compile
KEPT = ("", "rejected", "build_failed")  # what a candidate comes to again, and is kept
VOTERS = 5000  # lines of a source that tell where it lies in its file
DIAGNOSTICS = compilers.MAX_DIAGNOSTICS
MAX_TOLD = 300  # characters of why something was not built, before all else
COMPILING = "compiling "  # what is told of an object before its name: the candidate's part is over
# Whether a candidate of which something fails is imported, where it is built.
NO_TRIAL, TRIAL, ALONE = "", "trial", "alone"
NONE = "none"  # the CUTLASS of a candidate that asks for it, where there is none
FOR_A_GPU = "it is written in CUDA, and the device is the CPU"
_headers = threading.Lock()  # held while what many builds need is made

Progress = Callable[[str], None]


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
        return parsed | {"triton": False, "lazy": True, "given": ""}
    return _parsed(answer)


def export(
    server: ForkServer, text: str, mode: str = "strict", about: Mapping[str, object] | None = None
) -> str:
    """The standalone form of a candidate, with what its user has to know of it where that is given.
    Raises ValueError for one that is not Python.
    """
    msg = {"op": "export", "source": text, "about": about}
    with server.spawn("builder", {"sandbox": mode, "threads": 1}) as worker:
        answer = _problem_if_dead(worker, msg, PARSE_TIMEOUT)
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
    *,
    trial: str = TRIAL,
    forbids: bool = False,
    keeps: bool = True,
) -> dict[str, Any]:
    """Builds what a candidate asks for when it is imported, or finds it built. Never raises for the
    candidate's faults.

    ``arch`` is what CUDA is compiled for, as "sm_90a"; without it there is no CUDA. ``trial``:
    whether a candidate of which something fails is imported, so that it is known at once where it
    does not go on (TRIAL), for whatever reason (ALONE), or whether that is left to whoever runs it
    (NO_TRIAL). ``forbids``: whether what policy forbids fails. ``keeps``: whether what it comes to
    is kept, as anything is but what is tried for an explanation.

    Returns ``build`` (a BuildReport), ``status`` ("" when it can be run, else rejected,
    build_failed, crashed or timed_out), ``reason``, ``artifacts`` (for ``open_artifacts``),
    ``normalised_hash``, ``language``, ``triton`` (whether it has kernels that are compiled when it
    runs), ``missing``, and where it was built just now ``made`` (for ``workshop``). Raises
    toolchain.Missing, policy.SandboxError and ProtocolError for what is the machine's fault.
    """
    start = time.monotonic()
    text = candidate["source"]
    record_path = _path(cache_dir, "builds", _build_key(text, device, arch, forbids) + ".json")
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
    note = progress or (lambda _: None)
    # What NVRTC needs for its first compilation takes as long as reading the candidate.
    warm = bool(arch) and _seems_launched(text)
    shop = Workshop(lambda: _Maker(server, cache_dir, mode, arch, text, note, warm), opened)
    note("reading the candidate")
    failed: Failed | None = None
    try:
        if warm:
            shop.begin()
        runs = _Runs(forbids, _warm_inductor(cache_dir, text, device, forbids))
        bad = _build_ahead(server, text, mode, result, shop, runs)
        if trial != NO_TRIAL and (bad or shop.failures):
            _try(server, text, mode, arch, shop, trial, runs)
    except Failed as e:
        failed = e
    finally:
        shop.leave()
    _add_made(result, text, shop.made)
    if failed is not None:
        result |= {"status": failed.status, "reason": failed.reason}
        result["build"] |= failed.report
    result["build"]["seconds"] = time.monotonic() - start
    if keeps and result["status"] in KEPT and not isinstance(failed, _Breach):
        _write_json(record_path, result)
    return result | {"made": shop.made}


def workshop(
    server: ForkServer,
    text: str,
    built: dict[str, Any],
    cache_dir: str,
    mode: str = "strict",
    arch: str = "",
    *,
    whole: bool = False,
) -> Workshop:
    """Returns where the processes of a candidate ask for what it builds later than ``built``.
    ``whole``: what ``load_inline`` is given is built as torch builds it (torch_extension.py).
    """

    def maker() -> _Maker:
        return _Maker(server, cache_dir, mode, arch, text, lambda _: None, whole=whole)

    shop = Workshop(maker, opened)
    artifacts = built.get("artifacts") or ()
    for made in built.get("made") or [Made(a, a) for a in artifacts]:
        if not whole or made.request["kind"] != LOAD_INLINE:
            shop.know(made)
    return shop


def reported(text: str, made: Sequence[Made]) -> dict[str, Any]:
    """Returns what a BuildReport says of what was made."""
    found: dict[str, list[Any]] = {n: [] for n in ("vectorised", "missed", "errors", "kernels")}
    logs: list[str] = []
    notes: list[str] = []
    for m in made:
        report = m.failed.report if m.failed is not None else (m.artifact or {}).get("report", {})
        log = report.get("log", "")
        notes += m.request.get("notes", ())
        found["kernels"] += report.get("kernels", ())
        found["errors"] += report.get("errors", ())
        said = {n: report[n] for n in ("vectorised", "missed") if report.get(n)}
        if said or log:
            lines = Lines(text, sources_of(m.request))
            for name, diagnostics in said.items():
                found[name] += [lines.diagnostic(d) for d in diagnostics]
            log = log if m.failed is not None else lines.renumbered(log)
        logs.append(log)
    out: dict[str, Any] = {n: _unique(found[n]) for n in ("vectorised", "missed", "errors")}
    out |= {"kernels": found["kernels"], "flags": list(dict.fromkeys(notes))[:DIAGNOSTICS]}
    out["log"] = "\n".join(filter(None, logs))[: compilers.LOG_KEPT]
    return {n: v for n, v in out.items() if v}


def open_artifacts(built: dict[str, Any]) -> list[int]:
    """Returns a descriptor for each artifact of a build: a sealed copy in memory of the object,
    verified.

    The caller closes them. Raises OSError where the cache no longer holds what was built: build
    again.
    """
    fds: list[int] = []
    try:
        for artifact in built.get("artifacts") or ():
            fds.append(opened(artifact))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return fds


def opened(artifact: dict[str, Any]) -> int:
    """The same for one artifact."""
    with open(artifact["path"], "rb") as f:
        data = f.read()
    if hashlib.sha256(data).hexdigest() != artifact["sha256"]:
        raise OSError(f"{artifact['path']} is not what was built")
    return _sealed(data, artifact["name"])


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
    target = os.path.join(light, compilers.SHIM + ".gch", _header_key(flags))
    if os.path.exists(target):
        return True
    if not toolchain.compiler():
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


def _add_made(result: dict[str, Any], text: str, made: Sequence[Made]) -> None:
    """Adds what was asked for when it was imported."""
    if made:
        kinds = {m.request["kind"] for m in made}
        result["build"]["form"] = LOAD_INLINE if kinds == {LOAD_INLINE} else NATIVE
    built = [m.artifact for m in made if m.artifact is not None]
    result["artifacts"] = [{k: v for k, v in a.items() if k != "report"} for a in built]
    cutlass = (m.request.get("cutlass") for m in made)
    result["cutlass"] = next(filter(None, cutlass), "")
    result["build"] |= reported(text, made)


def _seems_launched(text: str) -> bool:
    return "__global__" in text and "<<<" not in text


class _Runs(NamedTuple):
    """How a candidate's Python runs before it is judged."""

    forbids: bool  # what policy forbids fails
    config: dict[str, Any]  # what its process has for torch.compile, {} where that may not run


def _warm_inductor(cache_dir: str, text: str, device: str, forbids: bool) -> dict[str, Any]:
    if forbids or not inductor.compiles(text):
        return {}
    folder = inductor.warm(cache_dir) if device == "cpu" else ""
    return {"preimport": ["compile"]} | ({"inductor_cache": folder} if folder else {})


def _build_ahead(
    server: ForkServer,
    text: str,
    mode: str,
    result: dict[str, Any],
    shop: Workshop,
    runs: _Runs,
) -> bool:
    """Builds what the candidate asks for at the top of its file where all of it compiles: a guess,
    which spares its processes to wait for each. Returns whether it is a bad one.

    Raises Failed for a text that is no candidate.
    """
    with server.spawn("builder", {"sandbox": mode, "threads": 1} | runs.config) as worker:
        result["missing"] = worker.missing
        answer = _problem_if_dead(
            worker, {"op": "parse", "source": text, "what": "candidate"}, PARSE_TIMEOUT
        )
        if isinstance(answer, str):
            raise Failed("rejected", answer)
        parsed = _parsed(answer)
        result["normalised_hash"] = parsed["normalised_hash"]
        result["language"] = parsed["language"] or result["language"]
        result["build"]["form"] = parsed["form"]
        if parsed["problems"]:
            raise Failed(
                "build_failed" if not parsed["normalised_hash"] else "rejected",
                parsed["problems"][0],
                log="\n".join(parsed["problems"]),
                errors=[_diagnostic_of(p) for p in parsed["problems"]],
            )
        result["triton"] = parsed["triton"]
        if parsed["form"] in ("none", "triton"):
            return False  # nothing to build yet: importing it is the candidate worker's business
        requests, error = _recorded(worker, text, runs.forbids)
    for raw in requests:
        try:
            made = shop.get(raw)[1]
        except Failed:
            return True
        if made.failed is not None:
            return True  # what it asks for then is another matter
    if not (error or parsed["lazy"]):
        # Objects, and every byte of the Python that calls them.
        sources = [s for m in shop.made for s in sources_of(m.request)]
        objects = (a["sha256"] for a in shop.artifacts)
        result["build"]["code"] = toolchain.key(_beside(text, sources), *objects)
    return error


def _try(
    server: ForkServer,
    text: str,
    mode: str,
    arch: str,
    shop: Workshop,
    trial: str,
    runs: _Runs,
) -> None:
    """Imports a candidate, which asks for what it has built as it does wherever it runs. Raises
    Failed where that is the end of it.

    There is no device here. So on a GPU, unless this is all that is asked, only what that has
    nothing to do with is the end. One that may compile runs where programs may be started.
    """
    config = {"sandbox": mode, "threads": 1} | runs.config
    if runs.config:
        worker = server.spawn("builder", config | {"runs": True})
    else:
        worker = server.spawn("candidate", config)
    client = CandidateClient(worker, IMPORT_TIMEOUT)
    doing = "importing the candidate"
    given = shop.artifacts
    fds = open_artifacts({"artifacts": given})
    try:
        client.load(
            text, [as_given(a) for a in given], fds, threads=1, timeout=IMPORT_TIMEOUT,
            workshop=shop, elsewhere=bool(arch), forbids=runs.forbids,
        )  # fmt: skip
    except WorkerLate:
        raise Failed("timed_out", f"{doing}: it took longer than {IMPORT_TIMEOUT:g} s") from None
    except WorkerGone as e:
        if e.client is None:
            raise policy.SandboxError(f"a worker {e}") from None
        raise Failed("crashed", f"{doing}: its process {e}") from None
    except WorkerError as e:
        if (why := not_built(e, shop.failures)) is not None:
            raise why from None
        if not arch or trial == ALONE or e.type in (forbidden.NotAllowed.__name__, "SyntaxError"):
            raise _no_import(e, shop.failures) from None
    finally:
        client.kill()
        _close(fds)


def as_given(artifact: dict[str, Any]) -> dict[str, str]:
    """Returns what a process is told of an object that it is given."""
    return {k: artifact[k] for k in ("request", "kind", "name")}


class _Breach(Failed):
    """It breaks the policy, which is a setting: another may let it pass."""


def not_built(e: WorkerError, failures: Sequence[Failed]) -> Failed | None:
    """Returns which failed build an error is of, None for another error."""
    if e.type != BuildFailed.__name__ or not failures:
        return None
    first = e.message.partition("\n")[0]
    return next((f for f in failures if f.reason.startswith(first)), failures[-1])


def _no_import(e: WorkerError, failures: Sequence[Failed]) -> Failed:
    """Returns what it means that a candidate cannot be imported."""
    what = sentence(f"{e.type}: {e.message}")
    line = e.lines[-1] if e.lines else 0
    where = f" at line {line}" if line else ""
    breach = e.type == forbidden.NotAllowed.__name__
    before = f"{told(failures)}; then " if failures else ""
    return (_Breach if breach else Failed)(
        "rejected" if breach else "build_failed",
        f"{before}importing the candidate fails{where}: {what}",
        log=e.traceback,
        errors=[{"line": line, "message": what}],
    )


def told(failures: Sequence[Failed]) -> str:
    """Returns what is said first of a candidate of which something was not built."""
    more = f", and {len(failures) - 1} more of its extensions are not built"
    return failures[0].reason[:MAX_TOLD] + (more if len(failures) > 1 else "")


class _Maker:
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
        self._sees: _Sees | None = None
        self.stopped = False
        if warm:
            self._sees = _Sees("", True, tuple(_includes([text])))
            self._builder = _compiler(server, self._sees, mode, warm=True)

    def checked(self, raw: Any) -> dict[str, Any]:
        try:
            return _checked(raw, self._arch, whole=self._whole)
        except (KeyError, TypeError, ValueError) as e:
            said = f"the candidate's request to build is malformed: {e!s:.200}"
            raise Failed("rejected", sentence(said)) from e

    def make(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        artifact = _cached_object(self._cache, request)
        if artifact is not None:
            return artifact
        if (said := _cached_failure(self._cache, request)) is not None:
            raise _failed(said, request, self._text)
        self._note(COMPILING + name_of(request))
        light = ""
        if request["kind"] == LOAD_INLINE and not request.get("whole"):
            with _headers:
                light = _light(self._server, self._cache, request, self._mode)
        cuda = request.get("language") == "cuda"
        sees = _Sees(light, cuda, tuple(request.get("includes", ())))
        if self._builder is not None and sees != self._sees:
            self.close()
        if self._builder is None:
            self._builder, self._sees = _compiler(self._server, sees, self._mode), sees
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


def _recorded(worker: Worker, text: str, forbids: bool) -> tuple[list[Any], bool]:
    """Returns what the candidate asks to have built, and whether it fails to be imported: the word
    of a process that ran the candidate, without a device and with stand-ins for what it builds.
    """
    msg = {"op": "record", "source": text, "forbids": forbids}
    answer = _problem_if_dead(worker, msg, IMPORT_TIMEOUT)
    if isinstance(answer, str):
        raise Failed("timed_out" if "longer" in answer else "crashed", answer)
    given = answer.get("requests")
    requests = given[:MAX_REQUESTS] if isinstance(given, list) else []
    return requests, answer.get("error") is not None


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError("not a list of strings")
    return value


def _checked(raw: Any, arch: str, *, whole: bool = False) -> dict[str, Any]:
    """Returns a request as it is built, with a key of ours. Raises Failed, and KeyError, TypeError,
    ValueError for what is none. ``whole``: see workshop.
    """
    if not isinstance(raw, dict):
        raise ValueError("not a dict")
    if raw.get("language", "cpp") not in ("cpp", "cuda"):
        raise ValueError("language")
    native = raw["kind"] == NATIVE
    cuda = raw.get("language") == "cuda" if native else "cuda_sources" in raw
    if cuda and not arch:
        raise Failed("rejected", FOR_A_GPU)
    try:
        if native:
            return _native(raw, arch if cuda else "")
        return _inline(raw, arch if cuda else "", whole=whole)
    except compiler_flags.Refused as e:
        raise Failed("rejected", str(e)) from e


def _native(raw: dict[str, Any], arch: str) -> dict[str, Any]:
    name, source, given = raw["name"], raw["source"], _texts(raw["flags"])
    if not isinstance(source, str) or not isinstance(name, str) or not name.isidentifier():
        raise ValueError("name or source is no text")
    words, notes = compiler_flags.taken(given, arch=arch, shell=False)
    language = "cuda" if arch else "cpp"
    request: dict[str, Any] = {"kind": NATIVE, "name": name[:64], "source": source}
    request |= {"flags": words, "notes": notes, "language": language, "arch": arch}
    request["launched"] = bool(arch) and raw.get("launched") is True
    request |= _of_cutlass([source] if arch else [])
    return request | {"request": native_key(source, given, language)}


def _inline(raw: dict[str, Any], arch: str, *, whole: bool) -> dict[str, Any]:
    functions = raw["functions"]
    if functions is not None and not isinstance(functions, dict):
        raise ValueError("functions")
    for name in functions or ():
        if not all(part.isidentifier() for part in name.split("::")):
            raise ValueError(f"{name!r:.100} is no function's name")
    for name in (raw["name"], raw.get("asked", raw["name"])):
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 100:
            raise ValueError("name")
    request = {
        "name": raw["name"],
        "sources": _texts(raw["sources"]),
        "functions": None if functions is None else {k: str(v)[:500] for k, v in functions.items()},
        "flags": _texts(raw["flags"]),
        "ldflags": _texts(raw["ldflags"]),
        "headers": raw["headers"] is True,
        "handling": raw["handling"] is True,
        "module": raw["module"] is True,
    }
    if arch:
        request["cuda_sources"] = _texts(raw["cuda_sources"])
        request["cuda_flags"] = _texts(raw["cuda_flags"])
    request |= _handed_over(raw)
    request |= {"whole": True} if whole else {}
    key = inline_key(request)
    notes: list[str] = []
    kinds = ("flags", "ldflags", "cuda_flags") if arch else ("flags", "ldflags")
    request |= {"given": {which: request[which] for which in kinds}} if whole else {}
    for which in kinds:
        taken = compiler_flags.taken(request[which], arch=arch if which == "cuda_flags" else "")
        request[which] = taken.words
        notes += taken.notes
    if whole:
        notes = []  # torch takes them as they are; what becomes of them at quick was told
    elif any(compiler_flags.OF_ANOTHER in n for n in notes):
        notes.append("torch compiles the file that is handed out for what these flags say")
    request |= {"kind": LOAD_INLINE, "request": key, "notes": notes}
    request |= {"asked": raw["asked"]} if "asked" in raw else {}
    if not arch:
        return request
    texts = [*request["sources"], *request["cuda_sources"], *request.get("files", {}).values()]
    return request | _of_cutlass(texts) | {"language": "cuda", "arch": arch}


def _handed_over(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns the files that come with a request. Each keeps its place, within one folder."""
    found: dict[str, Any] = {}
    files, units = raw.get("files", {}), _texts(raw.get("units", []))
    folders, paths = _texts(raw.get("folders", [])), _texts(raw.get("include_paths", []))
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise ValueError("files")
    if len(files) + len(units) + len(folders) + len(paths) > MAX_FILES:
        raise ValueError(f"over {MAX_FILES} files")
    for name in (*files, *units, *folders):
        parts = name.split("/")
        if not _PLACE.fullmatch(name) or ".." in parts or len(name) > 500:
            raise ValueError(f"{name!r:.100} is no place in a folder")
    if units and len(units) != len(raw["sources"]) + len(raw.get("cuda_sources", ())):
        raise ValueError("units")
    if not all(p.startswith("/") and "\0" not in p for p in paths):
        raise ValueError("include_paths")
    for name, value in (
        ("files", files),
        ("units", units),
        ("folders", folders),
        ("include_paths", paths),
    ):
        if value:
            found[name] = value
    return found


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
            raise Failed(
                "timed_out" if "longer" in answer else "build_failed", f"compiling: {answer}"
            )
        if not answer.get("ok"):
            raise Failed(
                "build_failed",
                f"compiling: {_message(answer)}",
            )
        report: dict[str, Any] = {
            "log": str(answer.get("log") or "")[: compilers.LOG_KEPT],
            "vectorised": _diagnostics(answer.get("vectorised")),
            "missed": _diagnostics(answer.get("missed")),
            "kernels": _resources(answer.get("kernels")),
        }
        if answer.get("killed"):
            raise policy.SandboxError(
                "the compiler was killed from outside, or by the kernel for want of memory"
            )
        key = _object_key(request)
        said = _said(answer, report["log"])
        if len(fds) != 1 or said["reaches"]:
            if not said["late"]:
                _write_json(_path(cache_dir, "objects", key + FAILED), {"key": key, **said})
            raise _failed(said, request, text)
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
        "loaded": str(answer.get("loaded") or "")[:64],
    }
    _write_json(path.removesuffix(".so") + ".json", {**artifact, "report": report})
    return {**artifact, "report": report}


def _said(answer: dict[str, Any], log: str) -> dict[str, Any]:
    """Returns what a compiler said of a source that it did not compile, or should not have."""
    reached = answer.get("reaches")
    return {
        "late": answer.get("code") == -1,
        "log": log,
        "errors": [list(d) for d in _diagnostics(answer.get("errors"))],
        "reaches": [str(n)[:80] for n in reached[:4]] if isinstance(reached, list) else [],
    }


def _failed(said: dict[str, Any], request: dict[str, Any], text: str) -> Failed:
    """Returns that as the failure of a request, with the lines of the candidate's file."""
    log, name = said["log"], name_of(request)
    if said["reaches"]:
        reason = f"{name} calls {', '.join(said['reaches'])}, which a kernel has no use for"
        return Failed("rejected", sentence(reason), log=log)
    lines = Lines(text, sources_of(request))
    found = _unique(lines.diagnostic(d) for d in _diagnostics(said["errors"]))
    last = compilers.last_words(log) or "its compiler does not say why"
    first = found[0] if found else {"line": 0, "message": last}
    where = f"line {first['line']}: " if first["line"] else ""
    cuda = request.get("language") == "cuda"
    lacks = (kernelwright.without_cutlass(s) for s in sources_of(request) if cuda)
    words = next(filter(None, lacks), f"{where}{first['message']}")
    m = _NOT_INLINED.search(words)
    if m is not None and (header := m[1] or m[2]) in headers.texts():
        words += f" (write #include <{header}> as a line of its own, nothing but // behind it)"
    status = "timed_out" if said["late"] else "build_failed"
    reason = sentence(f"{name} does not compile: {words}")
    return Failed(status, reason, log=lines.renumbered(log), errors=found)


def _cached_failure(cache_dir: str, request: dict[str, Any]) -> dict[str, Any] | None:
    said = _read_json(_path(cache_dir, "objects", _object_key(request) + FAILED))
    try:
        hold(said, {"late": bool, "log": str, "errors": list, "reaches": [str]})
    except ValueError:
        return None
    return said


def _cached_object(cache_dir: str, request: dict[str, Any]) -> dict[str, Any] | None:
    key = _object_key(request)
    record = _read_json(_path(cache_dir, "objects", key + ".json"))
    report = record.get("report") if record is not None else None
    if record is None or not isinstance(report, dict):
        return None
    record |= {n: request[n] for n in ("kind", "name", "request")}
    record |= {"key": key, "path": _path(cache_dir, "objects", key + ".so")}
    record["report"] = {
        "log": str(report.get("log") or "")[: compilers.LOG_KEPT],
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
        hold(record["build"].get("flags", []), [str])
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
    asked = (RULES, request["kind"], request["request"])  # with the headers in its sources
    return toolchain.key(*asked, *flags, toolchain.identity())


def _build_key(text: str, device: str, arch: str, forbids: bool) -> str:
    cuda = (*kernelwright.CUDA_FLAGS, arch, *_cuda_versions()) if arch else ()
    policy_is = "forbids" if forbids else "any"
    own = (RULES, headers.digest(), policy_is, text, device, *kernelwright.FLAGS, *cuda)
    return toolchain.key(*own, toolchain.identity())


def _cuda_versions() -> tuple[str, str]:
    return toolchain.nvcc_version(), kernelwright.nvrtc_version()


def kept_kernels(cache_dir: str, key: str) -> dict[str, Any] | None:
    """Returns the artifact of what was compiled before by calling it, or None."""
    record = _read_json(_path(cache_dir, "objects", key + ".json"))
    file = dict.fromkeys(("name", "sha256", "path"), str)
    try:
        hold(record, file | dict.fromkeys(("key", "kind", "request"), str) | {"libraries": [file]})
    except ValueError:
        return None
    assert record is not None
    sound = all(map(_intact, [record, *record["libraries"]]))
    sound = sound and all(triton_cache.names_library(n["name"]) for n in record["libraries"])
    return record if record["kind"] == TRITON and sound else None


def keep_kernels(cache_dir: str, key: str, fd: int, libraries: Mapping[str, int]) -> dict[str, Any]:
    """Keeps what a worker has compiled (triton_cache.py) and returns its artifact; all of it, or
    nothing. ``libraries``: descriptors, by names that names_library has found good. Raises Failed.
    """
    path = _path(cache_dir, "objects", key + ".so")
    artifact: dict[str, Any] = {"key": key, "kind": TRITON, "name": "kernels", "request": TRITON}
    artifact |= {"path": path, "libraries": []}
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix=".new-") as folder:
        whole = os.path.join(folder, "kernels")
        artifact["sha256"] = _copy(fd, whole, 2 * triton_cache.MAX_BYTES)
        moves = [(whole, path)]
        left = triton_cache.MAX_LIBRARY_BYTES
        for i, (name, library) in enumerate(libraries.items()):
            place = _path(cache_dir, "objects", f"{key}-{i}.so")
            moves.append((os.path.join(folder, str(i)), place))
            sha256 = _copy(library, moves[-1][0], left)
            left -= os.path.getsize(moves[-1][0])
            artifact["libraries"].append({"name": name, "sha256": sha256, "path": place})
        for made, place in moves:
            os.rename(made, place)
    _write_json(path.removesuffix(".so") + ".json", artifact)
    return artifact


def _light_header(cache_dir: str) -> str:
    """The folder with our torch/extension.h, in front of torch's own when compiling load_inline."""
    return _header_folder(cache_dir, {compilers.SHIM: compilers.LIGHT_HEADER})


def _light_tensor(cache_dir: str) -> str:
    """The same with tensor_light.h in place of torch's headers, for load_inline in CUDA."""
    here = os.path.dirname(os.path.abspath(__file__))
    files = dict.fromkeys(compilers.STANDS_FOR, f'#include "{compilers.TENSOR_LIGHT[0]}"\n')
    for name in compilers.TENSOR_LIGHT:
        with open(os.path.join(here, name), encoding="utf-8") as f:
            files[name] = f.read()
    return _header_folder(cache_dir, files)


def _header_folder(cache_dir: str, files: dict[str, str]) -> str:
    key = toolchain.key(*itertools.chain(*files.items()), toolchain.identity())[:24]
    folder = os.path.join(os.path.abspath(cache_dir), f"header-{key}")
    if not os.path.exists(os.path.join(folder, compilers.SHIM)):
        os.makedirs(os.path.join(folder, compilers.SHIM + ".gch"), mode=0o755, exist_ok=True)
        for name in sorted(files, key=lambda n: n == compilers.SHIM):  # that one says it is whole
            os.makedirs(os.path.dirname(os.path.join(folder, name)), mode=0o755, exist_ok=True)
            _replace(os.path.join(folder, name), files[name].encode())
    return folder


def _header_key(flags: Sequence[str]) -> str:
    return toolchain.key(*compilers.torch_flags(flags))[:32]


def _light(server: ForkServer, cache_dir: str, request: dict[str, Any], mode: str) -> str:
    """Returns the folder of lighter headers for a request of load_inline.

    They are precompiled for flags that come a second time: once costs more than it saves. What
    CUDA's needs beside them is made when it is first asked for: it takes half as long as one build
    without.
    """
    cuda = request.get("language") == "cuda"
    light = _light_tensor(cache_dir) if cuda else _light_header(cache_dir)
    if cuda:
        helper = os.path.join(light, compilers.HELPER)
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
            raise policy.SandboxError(f"a builder {how_it_ended(end)}") from None
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
        "language": word("language", "[a-z]{1,16}", ""),
        "form": word("form", "native|load_inline|triton|none", "none"),
        "triton": answer.get("triton") is True,
        "lazy": answer.get("lazy") is not False,
        "given": word("given", r"\w{1,100}", ""),
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


def _beside(text: str, sources: Sequence[str]) -> str:
    """Returns a file without the sources that were built, where they stand in it as they are: every
    byte of the Python that runs.
    """
    for built in sorted({s for s in sources if "\n" in s}, key=lambda s: (-len(s), s)):
        text = text.replace(built, "\0")
    return text


# Where g++ ("source0.cpp:10:5: error") and nvcc ("source0.cu(10): error") say that something is, in
# which function, and g++'s quotation of a line ("   10 |     float n;").
_SAID_AT = re.compile(r"\bsource(\d{1,4})\.(?:cpp|cu)([:(])(\d{1,9})")
_WITHIN = re.compile(r"^source\d{1,4}\.(?:cpp|cu): ")  # "source0.cpp: In function ‘...’:"
_QUOTED = re.compile(r"^( *\d{1,9})( \|)")


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
        self._sources = [headers.apart(s).split("\n") for s in sources]
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

    def renumbered(self, log: str) -> str:
        """Returns a compiler's log with the file's lines in place of a source's, also before the
        code that it quotes. What it says of places that are not in the file stays.
        """
        source = 0

        def place(m: re.Match[str]) -> str:
            nonlocal source
            source = int(m[1])
            number = self.line(source, int(m[3]))
            return f"candidate.py{m[2]}{number}" if number else m[0]

        def quoted(m: re.Match[str]) -> str:
            number = self.line(source, int(m[1]))
            return f"{number:{len(m[1])}}{m[2]}" if number else m[0]

        said = []
        for line in log.split("\n"):
            moved = _WITHIN.sub("candidate.py: ", _SAID_AT.sub(place, line))
            said.append(moved if moved != line else _QUOTED.sub(quoted, line))
        return "\n".join(said)


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


def _read(fd: int, offset: int) -> bytes:
    """Reads on in what another process made, who may have opened it for writing alone."""
    try:
        return os.pread(fd, 1 << 20, offset)
    except OSError as e:
        raise Failed("build_failed", f"what was built cannot be read: {e.strerror}") from e


def _copy(fd: int, path: str, limit: int) -> str:
    """Copies what another process made, at most ``limit`` bytes, and returns its SHA-256."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise Failed("build_failed", "what was built is no file")
    digest = hashlib.sha256()
    out, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with os.fdopen(out, "wb") as f:
            offset = 0
            while piece := _read(fd, offset):
                offset += len(piece)
                if offset > limit:
                    raise Failed("build_failed", f"the built object is larger than {limit} bytes")
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
