"""A builder that answers what it likes, having run the candidate: building ends with what a verdict
can say, and never raises.
"""

from __future__ import annotations

import json
import shutil
import tempfile

import hostile

from kwharness.base.built import BuildResult
from kwharness.base.requests import Candidate
from kwharness.build import builder_client, object_cache
from kwharness.referee import faults

_SOURCE = 'extern "C" void f(float* x) {}\nint a;\n'
_TEXT = f'lib = native(source="""\n{_SOURCE}""")\nclass ModelNew: ...\n'
_PARSED = {
    "ok": True,
    "normalised_hash": "ab" * 32,
    "language": "cpp",
    "form": "native",
    "problems": [],
    "called": [],
    "lazy": False,
    "given": "",
}
_NATIVE = {"kind": "native", "name": "k", "source": _SOURCE, "flags": ["-O3"]}
_INLINE = {
    "kind": "load_inline",
    "name": "k",
    "sources": ["int f();"],
    "functions": {"f": "doc", "a::g": ""},
    "flags": [],
    "ldflags": ["-lm"],
    "headers": True,
    "handling": True,
    "module": True,
}
_BUILT = {
    "ok": True,
    "built": True,
    "code": 0,
    "log": "",
    "errors": [],
    "vectorised": [[0, 1, "loop vectorized"]],
    "missed": [[0, 2, "complicated"]],
}


def seeds() -> list[bytes]:
    honest = {
        "parse": [[_PARSED, []]],
        "record": [[{"ok": True, "requests": [_NATIVE], "error": None}, []]],
        "compile": [[_BUILT, [8]]],
    }
    error = {"type": "NameError", "message": "x\ny", "traceback": "t", "lines": [3]}
    quoted = {**_INLINE, "flags": ['-DX="'], "name": "x"}
    files = {"files": {"a/b.h": "int a;"}, "units": ["k.cpp"], "folders": ["a"]}
    wide = {**_NATIVE, "name": "\U0002000b" * 64}
    failed = {**_BUILT, "built": False, "code": 1, "errors": [[0, 2, "no"]]}
    refused = {**_PARSED, "problems": ["line 2: not valid Python", "line \u00b2: x"]}

    def recorded(*requests: dict[str, object]) -> list[object]:
        return [[{"ok": True, "requests": list(requests), "error": None}, []]]

    return [
        json.dumps(s).encode()
        for s in (
            honest,
            {**honest, "record": recorded(_INLINE)},
            {**honest, "record": recorded(quoted)},
            {**honest, "record": recorded({**_INLINE, **files, "include_paths": ["/usr/include"]})},
            {**honest, "record": recorded({**_INLINE, "files": {"../x": ""}, "asked": "f_1"})},
            {**honest, "record": recorded({**_INLINE, "cuda_sources": ["x"], "cuda_flags": []})},
            {**honest, "parse": [[{**_PARSED, "form": "triton", "called": ["triton"]}, []]]},
            {**honest, "record": recorded(wide)},
            {**honest, "record": recorded({**_NATIVE, "flags": ["-fplugin=x"]})},
            {**honest, "record": [[{"ok": True, "requests": [], "error": error}, []]]},
            {**honest, "record": [[{"ok": False, "error": 3}, []]]},
            {**honest, "compile": [[failed, []]]},
            {**honest, "compile": [[{"ok": False, "error": []}, []]]},
            {**honest, "parse": [[refused, []]]},
            {**honest, "parse": [[{"ok": False, "error": "x"}, []]]},
        )
    ]


def checked(result: BuildResult) -> None:
    """Checks what ``build`` gave."""
    assert result.status in ("", "rejected", "build_failed", "crashed", "timed_out"), result
    if result.status:
        hostile.sentence(str(faults.Fault(result.status, result.reason)))
    hostile.sendable(result.to_json())
    build = result.build
    for d in [*(build.errors or ()), *(build.vectorised or ()), *(build.missed or ())]:
        assert type(d.line) is int and 0 <= d.line < 1 << 62
        assert isinstance(d.message, str) and d.message.isprintable()
    fds = object_cache.open_all(result.artifacts)
    object_cache.close_all(fds)


def one(data: bytes) -> None:
    script = hostile.parse(data)
    if script is None:
        return
    before = hostile.descriptors()
    folder = tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm")
    try:
        server = hostile.Server(script)
        first = builder_client.build(server, Candidate(_TEXT), folder)
        checked(first)
        second = builder_client.build(server, Candidate(_TEXT), folder)
        checked(second)
        assert second.status == first.status or not second.build.cached
        try:
            assert isinstance(builder_client.export(server, _TEXT), str)
        except ValueError as e:
            hostile.sentence(str(faults.Fault("crashed", f"it cannot be exported: {e}")))
    finally:
        shutil.rmtree(folder)
    assert hostile.descriptors() <= before, "a descriptor was left open"
