"""``kernelwright.native``: a source in C++ or CUDA, of functions that are called by ctypes."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import kernelwright
from kwharness.base.built import BuildRequest
from kwharness.base.for_builder import Compiled
from kwharness.build import build_requests, compiler_flags, compilers
from kwharness.build.form import NATIVE, Form, Way
from kwharness.machine import toolchain

_LIBRARY = kernelwright.Library  # the loader's own, in whose place others are put


def key_of(source: str, flags: Sequence[str], language: str = "cpp") -> str:
    """Names what a call of ``native`` asks for."""
    return toolchain.key(NATIVE if language == "cpp" else f"{NATIVE} {language}", source, *flags)


def request_of(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> BuildRequest:
    """Returns what a call of ``native`` asks for. Raises TypeError."""
    if not isinstance(source, str) or not all(isinstance(f, str) for f in flags):
        raise TypeError("the source and the flags of native must be strings")
    request: BuildRequest = {"kind": NATIVE, "name": name, "source": source}
    request |= {
        "flags": list(flags),
        "language": language,
        "request": key_of(source, flags, language),
    }
    request["launched"] = language == "cuda" and bool(kernelwright.kernels(source))
    return request


def replace(way: Way) -> None:
    """Has ``native`` ask for what it would build."""

    def built(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
        return way.path(request_of(source, flags, name, language))

    class Library(_LIBRARY):
        def __init__(self, path: str, source: str, language: str = "cpp") -> None:
            super().__init__(path, source, language)
            way.loaded[path] = self

    def nothing(path: str, source: str, language: str = "cpp") -> Any:
        if not kernelwright.kernels(source):
            kernelwright.declared(source)
        assert way.stands_in is not None
        return way.stands_in()

    kernelwright._build = built
    kernelwright.native.__globals__["Library"] = Library if way.stands_in is None else nothing


def language(call: ast.Call) -> str:
    """Returns "cuda" where a call says so."""
    given = {k.arg: k.value for k in call.keywords}
    named = given.get("language", call.args[1] if len(call.args) > 1 else None)
    return "cuda" if isinstance(named, ast.Constant) and named.value == "cuda" else ""


def checked(raw: Mapping[str, Any], arch: str, whole: bool) -> BuildRequest:
    """Returns a request as it is built."""
    del whole
    name, source, given = raw["name"], raw["source"], build_requests.texts(raw["flags"])
    if not isinstance(source, str) or not isinstance(name, str) or not name.isidentifier():
        raise ValueError("name or source is no text")
    words, notes = compiler_flags.taken(given, arch=arch, shell=False)
    language_is = "cuda" if arch else "cpp"
    request: BuildRequest = {"kind": NATIVE, "name": name[:64], "source": source}
    request |= {"flags": words, "notes": notes, "language": language_is, "arch": arch}
    request["launched"] = bool(arch) and raw.get("launched") is True
    request |= build_requests.of_cutlass([source] if arch else [])
    return request | {"request": key_of(source, given, language_is)}


def compiled(request: BuildRequest, folder: str, light: str) -> Compiled:
    """Compiles a request."""
    del light
    if request["launched"]:
        return compilers.compile_kernels(request, folder)
    if request["language"] == "cuda":
        return compilers.compile_cuda(request, folder)
    return compilers.compile_native(request, folder)


FORM = Form(
    NATIVE,
    calls=re.compile(r"kernelwright\.native"),
    language=language,
    replace=replace,
    for_a_gpu=lambda raw: raw.get("language") == "cuda",
    checked=checked,
    compile=compiled,
)
