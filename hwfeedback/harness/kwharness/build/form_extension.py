"""PyTorch's own forms: ``load_inline``, and ``load``, whose sources are files of a work folder."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from kwharness.base.built import BuildRequest
from kwharness.base.for_builder import Compiled
from kwharness.build import build_requests, compiler_flags, compilers, headers, own_files
from kwharness.build.form import LOAD_INLINE, Form, Way, texts
from kwharness.clients.workshop import name_of
from kwharness.machine import toolchain

EXTENSION = "torch.utils.cpp_extension"
# The name of an object of load_inline in which its own does not matter: f"f_{os.getpid()}" is one
# that was built before.
ANY_NAME = "extension"
_MODULE = re.compile(r"\bPYBIND11_MODULE\s*\(\s*TORCH_EXTENSION_NAME\b")

_handed = headers.Handed()  # of the file that runs
_whole = False  # whether that is the one that its user gets, of which torch builds extensions
_versions: dict[str, tuple[int, str]] = {}  # of these by name, and what was last asked for


def begin(handed: headers.Handed, *, whole: bool) -> None:
    """Begins a candidate's file. ``whole``: what torch builds of it keeps its name."""
    global _handed, _whole
    _handed, _whole = handed, whole
    _versions.clear()


def inline_request(arguments: dict[str, Any]) -> BuildRequest:
    """Returns the part of ``load_inline``'s arguments that decides what is built. Raises
    ValueError and OSError.
    """
    if texts(arguments.get("sycl_sources")):
        raise ValueError("load_inline has sycl_sources, and no device here runs them")
    functions = arguments.get("functions")
    if isinstance(functions, str):
        functions = [functions]
    if functions is not None and not isinstance(functions, dict):
        functions = {f: f for f in texts(functions)}
    cuda: BuildRequest = {}
    device = texts(arguments.get("cuda_sources"))
    if device and arguments.get("with_cuda") is False:
        raise ValueError("load_inline has cuda_sources, and with_cuda=False")
    if device or arguments.get("with_cuda"):
        cuda["cuda_sources"] = device
        cuda["cuda_flags"] = texts(arguments.get("extra_cuda_cflags"))
    request: BuildRequest = {
        **cuda,
        "name": _name(arguments),
        "sources": texts(arguments.get("cpp_sources")),
        "functions": functions,
        "flags": texts(arguments.get("extra_cflags")),
        "ldflags": texts(arguments.get("extra_ldflags")),
        "headers": not arguments.get("no_implicit_headers"),
        "handling": arguments.get("with_pytorch_error_handling", True) is not False,
        "module": arguments.get("is_python_module", True) is not False,
    }
    return _settled(request, texts(arguments.get("extra_include_paths")))


def load_request(arguments: dict[str, Any]) -> BuildRequest:
    """The same for ``load``, whose sources are files of this process."""
    if arguments.get("is_standalone"):
        raise ValueError("load with is_standalone makes a program, and none may be started here")
    sources = texts(arguments.get("sources"))
    if not sources:
        raise ValueError("load needs sources")
    request: BuildRequest = {
        "name": _name(arguments),
        "functions": None,
        "flags": texts(arguments.get("extra_cflags")),
        "ldflags": texts(arguments.get("extra_ldflags")),
        "headers": False,
        "handling": True,
        "module": arguments.get("is_python_module", True) is not False,
    }
    device = any(s.endswith(own_files.DEVICE) for s in sources)
    if device and arguments.get("with_cuda") is False:
        raise ValueError("load has a source in CUDA, and with_cuda=False")
    if device or arguments.get("with_cuda"):
        request["cuda_flags"] = texts(arguments.get("extra_cuda_cflags"))
    return _settled(request, texts(arguments.get("extra_include_paths")), sources)


def _settled(request: BuildRequest, paths: list[str], units: Sequence[str] = ()) -> BuildRequest:
    """Adds what is handed over beside the sources, which are files of this process where there are
    ``units``, and gives the name up where it says nothing.
    """
    flags: Literal["flags", "cuda_flags"]
    for flags in ("flags", "cuda_flags"):
        if flags in request:
            request[flags], more = own_files.included(request[flags])
            paths = [*paths, *more]
    kind: Literal["sources", "cuda_sources"]
    for kind in ("sources", "cuda_sources"):
        if kind in request:
            request[kind] = [_handed.put(text) for text in request[kind]]
    inline = [*request.get("sources", ()), *request.get("cuda_sources", ())]
    included: list[str] = []
    if units or paths:
        files = own_files.gathered(units, paths, inline)
        files.texts = {name: _handed.put(text) for name, text in files.texts.items()}
        if units:
            host, device = files.split()
            request["units"], request["sources"] = files.units, host
            if "cuda_flags" in request:
                request["cuda_sources"] = device
            inline = [*host, *device]
        included = list(files.texts.values())
        if files.texts:
            request["files"] = files.texts
        if files.folders:
            request["folders"] = files.folders
        if files.outside:
            request["include_paths"] = files.outside
    if _whole:
        request["whole"] = True
        return _versioned(request)
    said = [*inline, *included, *request["flags"], *request.get("cuda_flags", ())]
    own = rf"\b(TORCH_EXTENSION_NAME|{re.escape(request['name'])})\b"
    if not re.search(own, _MODULE.sub("", "\n".join(said))):
        request["asked"], request["name"] = request["name"], ANY_NAME
        # Its own all the same: pybind11 gives whoever has a name that it knows what that stood for.
        request["name"] += "_" + key_of(request)[:16]
    return request


def _versioned(request: BuildRequest) -> BuildRequest:
    """Names what is asked for by a name that stood for something else as torch does then."""
    name, said = request["name"], key_of(request)
    version, before = _versions.get(name, (0, said))
    version += said != before
    _versions[name] = version, said
    if version:
        request["asked"], request["name"] = name, f"{name}_v{version}"
    return request


def _name(arguments: dict[str, Any]) -> str:
    name = arguments.get("name")
    if not isinstance(name, str) or not name.isidentifier() or len(name) > 100:
        raise ValueError("the name of an extension must be an identifier")
    return name


def key_of(request: BuildRequest) -> str:
    """Names what a call of ``load_inline`` or ``load`` asks for: all of it but the name that it was
    asked by where that does not matter.
    """
    said = {k: v for k, v in request.items() if k != "asked"}
    return toolchain.key(LOAD_INLINE, json.dumps(said, sort_keys=True))


def _replace_inline(way: Way) -> None:
    """Has ``load_inline`` ask for what it would build."""

    def load_inline(
        name: str,
        cpp_sources: Any = None,
        cuda_sources: Any = None,
        sycl_sources: Any = None,
        functions: Any = None,
        extra_cflags: Any = None,
        extra_cuda_cflags: Any = None,
        extra_sycl_cflags: Any = None,
        extra_ldflags: Any = None,
        extra_include_paths: Any = None,
        build_directory: Any = None,
        verbose: bool = False,
        with_cuda: Any = None,
        with_sycl: Any = None,
        is_python_module: bool = True,
        with_pytorch_error_handling: bool = True,
        keep_intermediates: bool = True,
        use_pch: bool = False,
        no_implicit_headers: bool = False,
    ) -> Any:
        given = {k: v for k, v in locals().items() if k in taken}
        return _asked(way, inline_request(given))

    taken = set(inspect.signature(load_inline).parameters)
    _module().load_inline = load_inline


def _replace_load(way: Way) -> None:
    """Has ``load`` ask for what it would build."""

    def load(
        name: str,
        sources: Any,
        extra_cflags: Any = None,
        extra_cuda_cflags: Any = None,
        extra_sycl_cflags: Any = None,
        extra_ldflags: Any = None,
        extra_include_paths: Any = None,
        build_directory: Any = None,
        verbose: bool = False,
        with_cuda: Any = None,
        with_sycl: Any = None,
        is_python_module: bool = True,
        is_standalone: bool = False,
        keep_intermediates: bool = True,
    ) -> Any:
        given = {k: v for k, v in locals().items() if k in taken}
        return _asked(way, load_request(given))

    taken = set(inspect.signature(load).parameters)
    _module().load = load


def _asked(way: Way, request: BuildRequest) -> Any:
    """Returns what a request gives: a module, or a path where it is none of Python's."""
    path = way.path({"kind": LOAD_INLINE, **request, "request": key_of(request)})
    if way.stands_in is not None:
        return way.stands_in() if request["module"] else path
    if path not in way.loaded:
        way.loaded[path] = _extension(request, path)
    return way.loaded[path]


def _extension(request: BuildRequest, path: str) -> Any:
    """Loads an extension. What is no module of Python's is its path."""
    if not request["module"]:
        import torch

        torch.ops.load_library(path)
        return path
    loader = importlib.machinery.ExtensionFileLoader(request["name"], path)
    spec = importlib.util.spec_from_file_location(request["name"], path, loader=loader)
    if spec is None:
        raise ImportError(f"{name_of(request)} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.__name__ = name_of(request)
    return module


def _module() -> Any:
    """Returns the light stand-in for ``torch.utils.cpp_extension``, put where that would be
    imported: the real one brings setuptools, and is imported when something else of it is asked
    for.
    """
    known = sys.modules.get(EXTENSION)
    if getattr(known, "__getattr__", None) is _of_the_real_one:
        return known
    module: Any = types.ModuleType(EXTENSION)
    module.__getattr__ = _of_the_real_one
    sys.modules[EXTENSION] = module
    import torch.utils

    torch.utils.cpp_extension = module
    return module


def _of_the_real_one(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    found = importlib.util.find_spec("torch.utils")
    folder = (found.submodule_search_locations or [""])[0] if found else ""
    path = os.path.join(folder, "cpp_extension.py")
    spec = importlib.util.spec_from_file_location("torch.utils._cpp_extension", path)
    if spec is None or spec.loader is None:
        raise AttributeError(name)
    real = sys.modules.get(spec.name)
    if real is None:
        real = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(real)
        sys.modules[spec.name] = real
    return getattr(real, name)


def _language_inline(call: ast.Call) -> str:
    given = {k.arg: k.value for k in call.keywords}
    sources = given.get("cuda_sources")
    empty = isinstance(sources, (ast.List, ast.Constant)) and _empty(sources)
    return "cuda" if sources is not None and not empty else ""


def _empty(node: ast.List | ast.Constant) -> bool:
    return not (node.elts if isinstance(node, ast.List) else node.value)


def _language_load(call: ast.Call) -> str:
    said = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant)]
    named = any(isinstance(t, str) and t.endswith(own_files.DEVICE) for t in said)
    return "cuda" if named else _language_inline(call)


_Flags = Literal["flags", "ldflags", "cuda_flags"]


def checked(raw: Mapping[str, Any], arch: str, whole: bool) -> BuildRequest:
    """Returns a request as it is built. ``whole``: see builder_client.workshop."""
    functions = raw["functions"]
    if functions is not None and not isinstance(functions, dict):
        raise ValueError("functions")
    for name in functions or ():
        if not all(part.isidentifier() for part in name.split("::")):
            raise ValueError(f"{name!r:.100} is no function's name")
    for name in (raw["name"], raw.get("asked", raw["name"])):
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 100:
            raise ValueError("name")
    request: BuildRequest = {
        "name": raw["name"],
        "sources": build_requests.texts(raw["sources"]),
        "functions": None if functions is None else {k: str(v)[:500] for k, v in functions.items()},
        "flags": build_requests.texts(raw["flags"]),
        "ldflags": build_requests.texts(raw["ldflags"]),
        "headers": raw["headers"] is True,
        "handling": raw["handling"] is True,
        "module": raw["module"] is True,
    }
    if arch:
        request["cuda_sources"] = build_requests.texts(raw["cuda_sources"])
        request["cuda_flags"] = build_requests.texts(raw["cuda_flags"])
    request |= build_requests.handed_over(raw)
    if whole:
        request["whole"] = True
    key = key_of(request)
    notes: list[str] = []
    which: _Flags
    kinds: tuple[_Flags, ...] = ("flags", "ldflags", "cuda_flags") if arch else ("flags", "ldflags")
    if whole:
        request["given"] = {which: request[which] for which in kinds}
    for which in kinds:
        taken = compiler_flags.taken(request[which], arch=arch if which == "cuda_flags" else "")
        request[which] = taken.words
        notes += taken.notes
    if whole:
        notes = []  # torch takes them as they are; what becomes of them at quick was told
    elif any(compiler_flags.OF_ANOTHER in n for n in notes):
        notes.append("torch compiles the file that is handed out for what these flags say")
    request |= {"kind": LOAD_INLINE, "request": key, "notes": notes}
    if "asked" in raw:
        request["asked"] = raw["asked"]
    if not arch:
        return request
    texts = [*request["sources"], *request["cuda_sources"], *request.get("files", {}).values()]
    return request | build_requests.of_cutlass(texts) | {"language": "cuda", "arch": arch}


def _compiled(request: BuildRequest, folder: str, light: str) -> Compiled:
    if request.get("whole"):
        from kwharness.build import torch_extension

        return torch_extension.compile_as_torch(request, folder)
    if request.get("language") == "cuda":
        return compilers.compile_inline_cuda(request, folder, light)
    return compilers.compile_inline(request, folder, light)


def _form(called: str, language: Callable[[ast.Call], str], replace: Callable[[Way], None]) -> Form:
    return Form(
        LOAD_INLINE,
        calls=re.compile(rf"(.*\.)?cpp_extension\.{called}"),
        language=language,
        replace=replace,
        for_a_gpu=lambda raw: "cuda_sources" in raw,
        checked=checked,
        compile=_compiled,
        needs_torch=True,
    )


INLINE = _form("load_inline", _language_inline, _replace_inline)
WORK_FOLDER = _form("load", _language_load, _replace_load)
