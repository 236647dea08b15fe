"""The worker's side of built objects: ``native``, ``load_inline`` and ``load`` that return what the
builder made.

What this process was not given it asks the referee for, wherever the candidate asks: at the top of
the file, in a constructor, in a forward, on a thread. What does not compile raises, as it does
elsewhere, and may be caught.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import kernelwright
from kwharness.base.protocol import Channel, ProtocolError
from kwharness.build import headers, own_files
from kwharness.machine import toolchain

NATIVE, LOAD_INLINE, TRITON = "native", "load_inline", "triton"
EXTENSION = "torch.utils.cpp_extension"
# The name of an object of load_inline in which its own does not matter: f"f_{os.getpid()}" is one
# that was built before.
ANY_NAME = "extension"
_MODULE = re.compile(r"\bPYBIND11_MODULE\s*\(\s*TORCH_EXTENSION_NAME\b")

_loaded: dict[str, Any] = {}  # by what was asked for
_handed = headers.Handed()  # of the file that runs
_whole = False  # whether that is the one that its user gets, of which torch builds extensions
_versions: dict[str, tuple[int, str]] = {}  # of these by name, and what was last asked for


class BuildFailed(RuntimeError):
    """A source does not compile. The message begins with one sentence, and has the compiler's
    words.
    """


def native_key(source: str, flags: Sequence[str], language: str = "cpp") -> str:
    """Names what a call of ``native`` asks for."""
    return toolchain.key(NATIVE if language == "cpp" else f"{NATIVE} {language}", source, *flags)


def _texts(value: Any) -> list[str]:
    items = [value] if isinstance(value, (str, os.PathLike)) else list(value or ())
    texts = [os.fspath(i) if isinstance(i, os.PathLike) else i for i in items]
    if not all(isinstance(i, str) for i in texts):
        raise ValueError("sources, flags and paths of an extension must be strings")
    return texts


def inline_request(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of ``load_inline``'s arguments that decides what is built. Raises
    ValueError and OSError.
    """
    if _texts(arguments.get("sycl_sources")):
        raise ValueError("load_inline has sycl_sources, and no device here runs them")
    functions = arguments.get("functions")
    if isinstance(functions, str):
        functions = [functions]
    if functions is not None and not isinstance(functions, dict):
        functions = {f: f for f in _texts(functions)}
    cuda = {}
    device = _texts(arguments.get("cuda_sources"))
    if device and arguments.get("with_cuda") is False:
        raise ValueError("load_inline has cuda_sources, and with_cuda=False")
    if device or arguments.get("with_cuda"):
        cuda["cuda_sources"] = device
        cuda["cuda_flags"] = _texts(arguments.get("extra_cuda_cflags"))
    request = {
        **cuda,
        "name": _name(arguments),
        "sources": _texts(arguments.get("cpp_sources")),
        "functions": functions,
        "flags": _texts(arguments.get("extra_cflags")),
        "ldflags": _texts(arguments.get("extra_ldflags")),
        "headers": not arguments.get("no_implicit_headers"),
        "handling": arguments.get("with_pytorch_error_handling", True) is not False,
        "module": arguments.get("is_python_module", True) is not False,
    }
    return _settled(request, _texts(arguments.get("extra_include_paths")))


def load_request(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same for ``load``, whose sources are files of this process."""
    if arguments.get("is_standalone"):
        raise ValueError("load with is_standalone makes a program, and none may be started here")
    sources = _texts(arguments.get("sources"))
    if not sources:
        raise ValueError("load needs sources")
    request: dict[str, Any] = {
        "name": _name(arguments),
        "functions": None,
        "flags": _texts(arguments.get("extra_cflags")),
        "ldflags": _texts(arguments.get("extra_ldflags")),
        "headers": False,
        "handling": True,
        "module": arguments.get("is_python_module", True) is not False,
    }
    device = any(s.endswith(own_files.DEVICE) for s in sources)
    if device and arguments.get("with_cuda") is False:
        raise ValueError("load has a source in CUDA, and with_cuda=False")
    if device or arguments.get("with_cuda"):
        request["cuda_flags"] = _texts(arguments.get("extra_cuda_cflags"))
    return _settled(request, _texts(arguments.get("extra_include_paths")), sources)


def _settled(
    request: dict[str, Any], paths: list[str], units: Sequence[str] = ()
) -> dict[str, Any]:
    """Adds what is handed over beside the sources, which are files of this process where there are
    ``units``, and gives the name up where it says nothing.
    """
    for name in ("flags", "cuda_flags"):
        if name in request:
            request[name], more = own_files.included(request[name])
            paths = [*paths, *more]
    for name in ("sources", "cuda_sources"):
        if name in request:
            request[name] = [_handed.put(text) for text in request[name]]
    inline = [*request.get("sources", ()), *request.get("cuda_sources", ())]
    included: list[str] = []
    if units or paths:
        files = own_files.gathered(units, paths, inline)
        files.texts = {name: _handed.put(text) for name, text in files.texts.items()}
        if units:
            host, device = files.split()
            request |= {"units": files.units, "sources": host}
            request |= {"cuda_sources": device} if "cuda_flags" in request else {}
            inline = [*host, *device]
        included = list(files.texts.values())
        kept = {"files": files.texts, "folders": files.folders, "include_paths": files.outside}
        request |= {k: v for k, v in kept.items() if v}
    if _whole:
        return _versioned(request | {"whole": True})
    said = [*inline, *included, *request["flags"], *request.get("cuda_flags", ())]
    own = rf"\b(TORCH_EXTENSION_NAME|{re.escape(request['name'])})\b"
    if not re.search(own, _MODULE.sub("", "\n".join(said))):
        request["asked"], request["name"] = request["name"], ANY_NAME
        # Its own all the same: pybind11 gives whoever has a name that it knows what that stood for.
        request["name"] += "_" + inline_key(request)[:16]
    return request


def _versioned(request: dict[str, Any]) -> dict[str, Any]:
    """Names what is asked for by a name that stood for something else as torch does then."""
    name, said = request["name"], inline_key(request)
    version, before = _versions.get(name, (0, said))
    version += said != before
    _versions[name] = version, said
    return request | ({"asked": name, "name": f"{name}_v{version}"} if version else {})


def _name(arguments: dict[str, Any]) -> str:
    name = arguments.get("name")
    if not isinstance(name, str) or not name.isidentifier() or len(name) > 100:
        raise ValueError("the name of an extension must be an identifier")
    return name


def inline_key(request: dict[str, Any]) -> str:
    """Names what a call of ``load_inline`` or ``load`` asks for: all of it but the name that it was
    asked by where that does not matter.
    """
    said = {k: v for k, v in request.items() if k != "asked"}
    return toolchain.key(LOAD_INLINE, json.dumps(said, sort_keys=True))


class Objects:
    """The built objects of this process, and the referee's end for what else it asks for."""

    def __init__(
        self,
        given: Sequence[dict[str, Any]] = (),
        fds: Sequence[int] = (),
        failed: Sequence[dict[str, Any]] = (),
        workshop: int = -1,
    ) -> None:
        """``given`` lie behind ``fds``, which must stay open: objects are loaded through them.
        ``failed``: what is known not to compile. ``workshop``: the descriptor over which others are
        asked for, -1 for none.
        """
        self._paths = {a["request"]: _path(fd) for a, fd in zip(given, fds, strict=True)}
        self._failed = {str(f["request"]): str(f["said"]) for f in failed}
        self._channel = Channel.of_fd(workshop) if workshop >= 0 else None
        self._asking = threading.Lock()  # extensions may be asked for on several threads

    def path(self, request: dict[str, Any]) -> str:
        """Returns where the object of a request lies. Raises BuildFailed."""
        key = str(request["request"])
        with self._asking:
            if key not in self._paths and key not in self._failed:
                self._ask(key, request)
            if key in self._failed:
                raise BuildFailed(self._failed[key])
            return self._paths[key]

    def fails(self, request: dict[str, Any]) -> None:
        """Raises BuildFailed for what is known not to compile."""
        if said := self._failed.get(str(request["request"])):
            raise BuildFailed(said)

    def _ask(self, key: str, request: dict[str, Any]) -> None:
        if self._channel is None:
            raise BuildFailed(f"{name_of(request)} was not built")
        try:
            self._channel.send({"op": "build", "request": request}, timeout=None)
            answer, fds = self._channel.recv()
        except ProtocolError as e:
            raise BuildFailed(f"{name_of(request)} cannot be asked for: {e}") from None
        if fds:
            self._paths[key] = _path(fds[0])
        elif answer.get("built"):
            self._paths[key] = ""  # nobody loads it here
        else:
            self._failed[key] = str(answer.get("said") or "it does not compile")


class Noted(Objects):
    """Objects that are not there yet: what is asked for is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[dict[str, Any]] = []

    def path(self, request: dict[str, Any]) -> str:
        self.requests.append(request)
        return ""


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def name_of(request: dict[str, Any]) -> str:
    """Returns the name that an object was asked for by."""
    return str(request.get("asked") or request["name"])


def native_request(
    source: str, flags: Sequence[str], name: str, language: str = "cpp"
) -> dict[str, Any]:
    """Returns what a call of ``native`` asks for. Raises TypeError."""
    if not isinstance(source, str) or not all(isinstance(f, str) for f in flags):
        raise TypeError("the source and the flags of native must be strings")
    request: dict[str, Any] = {"kind": NATIVE, "name": name, "source": source}
    request |= {
        "flags": list(flags),
        "language": language,
        "request": native_key(source, flags, language),
    }
    request["launched"] = language == "cuda" and bool(kernelwright.kernels(source))
    return request


def of_file(text: str, *, handed_out: bool = False) -> None:
    """Has sources include our headers as they may in this candidate's file: those that it names.
    ``handed_out``: it brings what it needs, and what torch builds of it keeps its name.
    """
    global _handed, _whole
    _handed, _whole = headers.Handed(), handed_out
    _versions.clear()
    kernelwright.headers.clear()
    if handed_out or "kw/" not in text:
        return
    try:
        kernelwright.headers.update(headers.table(headers.mentioned(text)))
        _handed = headers.Handed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # whoever imports it says why


def install(objects: Objects) -> None:
    """Makes ``native``, ``load_inline`` and ``load`` return these objects."""
    _loaded.clear()

    def built(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
        return objects.path(native_request(source, flags, name, language))

    class Library(kernelwright.Library):
        def __init__(self, path: str, source: str, language: str = "cpp") -> None:
            super().__init__(path, source, language)
            _loaded[path] = self

    def inline(request: dict[str, Any]) -> Any:
        path = objects.path(request)
        known = _loaded.get(path)
        if known is None:
            known = _loaded[path] = _extension(request, path)
        return known

    kernelwright._build = built
    kernelwright.native.__globals__["Library"] = Library
    _replace_extension(inline)


def _extension(request: dict[str, Any], path: str) -> Any:
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


def record(objects: Objects) -> Recorder:
    """Makes ``native``, ``load_inline`` and ``load`` have things built and return stand-ins: for a
    process without the device that the objects are for.
    """
    recorder = Recorder()

    def built(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
        return objects.path(native_request(source, flags, name, language))

    def library(path: str, source: str, language: str = "cpp") -> Any:
        if not kernelwright.kernels(source):
            kernelwright.declared(source)
        return _StandIn(recorder)

    def inline(request: dict[str, Any]) -> Any:
        path = objects.path(request)
        return _StandIn(recorder) if request["module"] else path

    kernelwright._build = built
    kernelwright.native.__globals__["Library"] = library
    _replace_extension(inline)
    return recorder


def stand_in(objects: Objects) -> None:
    """Makes ``native``, ``load_inline`` and ``load`` return what does nothing, whatever they are
    asked for that is not known to fail.

    A candidate that is right all the same does not need its custom code.
    """

    def built(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
        objects.fails(native_request(source, flags, name, language))
        return ""

    def inline(request: dict[str, Any]) -> Any:
        objects.fails(request)
        return _StandIn(Recorder()) if request["module"] else ""

    kernelwright._build = built
    kernelwright.native.__globals__["Library"] = lambda *_: _StandIn(Recorder())
    _replace_extension(inline)


def functions() -> dict[str, Any]:
    """Returns the functions of what has been loaded, by name."""
    found: dict[str, Any] = {}
    for holder in list(_loaded.values()):
        for name, value in vars(holder).items() if not isinstance(holder, str) else ():
            if not name.startswith("_") and callable(value):
                while name in found:  # another extension has one of this name
                    name += "'"
                found[name] = value
    return found


class Recorder:
    """Notes whether a function of a stand-in was called."""

    called = False


class _StandIn:
    """An object whose every function and kernel does nothing: there is nothing to run yet."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(self._recorder)


class _Nothing:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getitem__(self, _: Any) -> _Nothing:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        self._recorder.called = True


def _replace_extension(inline: Callable[[dict[str, Any]], Any]) -> None:
    """Puts a light stand-in where ``torch.utils.cpp_extension`` would be imported: the real one
    brings setuptools, and is imported when something else of it is asked for.
    """

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
        given = {k: v for k, v in locals().items() if k in of_inline}
        return asked(inline_request(given))

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
        given = {k: v for k, v in locals().items() if k in of_load}
        return asked(load_request(given))

    def asked(request: dict[str, Any]) -> Any:
        return inline({"kind": LOAD_INLINE, **request, "request": inline_key(request)})

    of_inline, of_load = (set(inspect.signature(f).parameters) for f in (load_inline, load))
    module: Any = types.ModuleType(EXTENSION)
    module.load_inline, module.load = load_inline, load
    module.__getattr__ = _of_the_real_one
    sys.modules[EXTENSION] = module
    import torch.utils

    torch.utils.cpp_extension = module


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
