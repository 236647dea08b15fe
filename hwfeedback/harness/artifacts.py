"""The worker's side of built objects: ``native`` and ``load_inline`` that return what the builder
made.

``recorder`` gives the builder's stand-ins for the same two, which note what is asked for and build
nothing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import json
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import kernelwright
import toolchain
import triton_kernels

NATIVE, LOAD_INLINE, TRITON = "native", "load_inline", "triton"
EXTENSION = "torch.utils.cpp_extension"

_loaded: list[tuple[str, Any]] = []


def native_key(source: str, flags: Sequence[str], language: str = "cpp") -> str:
    """Names what a call of ``native`` asks for."""
    return toolchain.key(NATIVE if language == "cpp" else f"{NATIVE} {language}", source, *flags)


def inline_request(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of ``load_inline``'s arguments that decides what is built. Raises
    ValueError.
    """

    def texts(value: Any) -> list[str]:
        items = [value] if isinstance(value, str) else list(value or ())
        if not all(isinstance(i, str) for i in items):
            raise ValueError("sources and flags of load_inline must be strings")
        return items

    if texts(arguments.get("sycl_sources")):
        raise ValueError("load_inline has sycl_sources, and no device here runs them")
    functions = arguments.get("functions")
    if isinstance(functions, str):
        functions = [functions]
    if functions is not None and not isinstance(functions, dict):
        functions = {f: f for f in texts(functions)}
    name = arguments.get("name")
    if not isinstance(name, str) or not name.isidentifier() or len(name) > 100:
        raise ValueError("the name of load_inline must be an identifier")
    cuda = {}
    if texts(arguments.get("cuda_sources")):
        cuda["cuda_sources"] = texts(arguments.get("cuda_sources"))
        cuda["cuda_flags"] = texts(arguments.get("extra_cuda_cflags"))
    return {
        **cuda,
        "name": name,
        "sources": texts(arguments.get("cpp_sources")),
        "functions": functions,
        "flags": texts(arguments.get("extra_cflags")),
        "ldflags": texts(arguments.get("extra_ldflags")),
        "headers": not arguments.get("no_implicit_headers"),
        "handling": arguments.get("with_pytorch_error_handling", True) is not False,
        "module": arguments.get("is_python_module", True) is not False,
    }


def inline_key(request: dict[str, Any]) -> str:
    """Names what a call of ``load_inline`` asks for."""
    return toolchain.key(LOAD_INLINE, json.dumps(request, sort_keys=True))


def install(given: Sequence[dict[str, Any]], fds: Sequence[int]) -> None:
    """Makes ``native`` and ``load_inline`` return these artifacts, the i-th of which lies behind
    the i-th descriptor.

    The descriptors must stay open: objects are loaded through them.
    """
    paths = {a["request"]: f"/proc/self/fd/{fd}" for a, fd in zip(given, fds, strict=True)}
    _loaded.clear()
    for a, fd in zip(given, fds, strict=True):
        if a["kind"] == TRITON:
            triton_kernels.unpack(fd)

    def built(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
        path = paths.get(native_key(source, flags, language))
        if path is None:
            raise RuntimeError(
                f"native({name!r}) was not built: its source must not change from import to import"
            )
        return path

    class Library(kernelwright.Library):
        def __init__(self, path: str, source: str, language: str = "cpp") -> None:
            super().__init__(path, source, language)
            _loaded.append((NATIVE, self))

    def inline(request: dict[str, Any]) -> Any:
        path = paths.get(inline_key(request))
        if path is None:
            raise RuntimeError(
                f"load_inline({request['name']!r}) was not built: its sources must not change"
            )
        if not request["module"]:
            import torch

            torch.ops.load_library(path)
            return path
        loader = importlib.machinery.ExtensionFileLoader(request["name"], path)
        spec = importlib.util.spec_from_file_location(request["name"], path, loader=loader)
        if spec is None:
            raise RuntimeError(f"load_inline({request['name']!r}) cannot be imported")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        _loaded.append((LOAD_INLINE, module))
        return module

    kernelwright._build = built
    kernelwright.native.__globals__["Library"] = Library
    _replace_extension(inline)


def stand_in() -> None:
    """Makes ``native`` and ``load_inline`` return what does nothing, whatever they are asked for.

    A candidate that is right all the same does not need its custom code.
    """
    kernelwright._build = lambda *_: ""
    kernelwright.native.__globals__["Library"] = lambda *_: _StandIn(Recorder())
    _replace_extension(lambda _: _StandIn(Recorder()))


def functions() -> dict[str, Any]:
    """Returns the functions of what has been loaded, by name."""
    found: dict[str, Any] = {}
    for _, holder in _loaded:
        for name, value in vars(holder).items():
            if not name.startswith("_") and callable(value):
                found[name] = value
    return found


class Recorder:
    """Notes what a candidate asks to have built."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.called = False  # a function of a stand-in ran while the candidate was imported

    def install(self) -> None:
        """Puts stand-ins in place of ``native`` and ``load_inline``."""
        kernelwright._build = self._native
        kernelwright.native.__globals__["Library"] = self._library
        _replace_extension(self._inline)

    def _native(self, source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
        if not isinstance(source, str) or not all(isinstance(f, str) for f in flags):
            raise TypeError("the source and the flags of native must be strings")
        request: dict[str, Any] = {"kind": NATIVE, "name": name, "source": source}
        request |= {"flags": list(flags)}
        request |= {"language": language, "request": native_key(source, flags, language)}
        request["launched"] = language == "cuda" and bool(kernelwright.kernels(source))
        self.requests.append(request)
        return ""

    def _inline(self, request: dict[str, Any]) -> Any:
        self.requests.append({"kind": LOAD_INLINE, **request, "request": inline_key(request)})
        return _StandIn(self)

    def _library(self, path: str, source: str, language: str = "cpp") -> Any:
        if not kernelwright.kernels(source):
            kernelwright.declared(source)
        return _StandIn(self)


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
    brings setuptools.
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
        given = dict(locals())
        return inline(inline_request({k: v for k, v in given.items() if k in parameters}))

    parameters = set(inspect.signature(load_inline).parameters)
    module: Any = types.ModuleType(EXTENSION)
    module.load_inline = load_inline
    sys.modules[EXTENSION] = module
    import torch.utils

    torch.utils.cpp_extension = module
