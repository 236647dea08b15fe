"""Compiles what ``load_inline`` and ``load`` are given as torch compiles it where a file is used:
torch's own text, flags, names and headers, in a folder like its own. For the builder's sandbox.

Nothing else is like it to a source that asks what it is compiled with. It takes long, so quick
verdicts have lighter headers (compilers.py); what is certified was built in this way.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Sequence
from typing import Any

from kwharness.base.built import BuildRequest
from kwharness.base.for_builder import Compiled
from kwharness.build import compilers, cuda_toolkit
from kwharness.machine import toolchain

TIMEOUT = 320.0  # seconds for a source: all of torch's headers, for two architectures
_PLACE = re.compile(r"[^\s:(]*/(main\.cpp|cuda\.cu)([:(])(\d{1,9})")


def compile_as_torch(request: BuildRequest, home: str) -> Compiled:
    """Compiles a request (form_extension.inline_request, load_request) below ``home``. Returns the
    report of compilers.py.
    """
    import torch.utils.cpp_extension as torchs

    os.environ["HOME"] = home
    for elsewhere in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(elsewhere, None)
    if arch := request.get("arch"):
        torchs.CUDA_HOME = toolchain.cuda_home()
        number = re.sub(r"\D", "", arch)
        os.environ["TORCH_CUDA_ARCH_LIST"] = f"{number[:-1]}.{number[-1]}+PTX"
    if folders := request.get("includes"):
        os.environ["CPATH"] = ":".join(folders)  # as users of CUTLASS set it
    name = request["name"]
    folder = torchs._get_build_directory(request.get("asked") or name, False)
    files, paths = _lay_out(request, folder)
    asked: dict[str, Any] = {}
    torchs._write_ninja_file = lambda **said: asked.update(said)
    given, cuda = request["given"], bool(arch)
    torchs._write_ninja_file_to_build_library(
        path="", name=name, sources=files, extra_cflags=given["flags"],
        extra_cuda_cflags=given.get("cuda_flags", []), extra_sycl_cflags=[],
        extra_ldflags=torchs._prepare_ldflags(list(given["ldflags"]), cuda, False, False, False),
        extra_include_paths=paths, with_cuda=cuda, with_sycl=False, is_standalone=False,
    )  # fmt: skip
    start = time.monotonic()
    code, log = _run(asked, folder)
    for i, unit in enumerate(request.get("units", ())):
        path = os.path.join(folder, compilers.FILES, unit)
        log = log.replace(path, f"source{i}.{'cu' if unit.endswith('.cu') else 'cpp'}")
    log = _PLACE.sub(_Numbers(request).place, log)
    return compilers._done(code, log, folder, request, start)


def _run(asked: dict[str, Any], folder: str) -> tuple[int, str]:
    """Runs what torch would have ninja run."""
    cxx, more = toolchain.compiler(), ["-fmax-errors=20", "-fdiagnostics-color=never"]
    flags, cuda_flags = _words(asked["cflags"]), _words(asked["cuda_cflags"] or ())
    parts = []
    for source, out in zip(asked["sources"], asked["objects"], strict=True):
        path = os.path.abspath(source)
        if source.endswith((".cu", ".cuh")) and asked["with_cuda"]:
            parts.append([toolchain.nvcc(), *cuda_flags, "-Xptxas", "-v", "-c", path, "-o", out])
        else:
            parts.append([cxx, *flags, *more, "-c", path, "-o", out])
    code, log = compilers._run_all(parts, folder, TIMEOUT)
    if code == 0:
        linked = cuda_toolkit._found(_words(asked["ldflags"]))
        built = asked["library_target"]
        code, said = compilers.run([cxx, *asked["objects"], *linked, "-o", built], folder)
        log += said
        if code == 0:
            os.rename(os.path.join(folder, built), os.path.join(folder, "built.so"))
    return code, log


def _words(flags: Sequence[str]) -> list[str]:
    return shlex.split(" ".join(flags))


def _lay_out(request: BuildRequest, folder: str) -> tuple[list[str], list[str]]:
    """Writes what is compiled. Returns the sources and the folders of headers."""
    beside = os.path.join(folder, compilers.FILES)
    for name, text in request.get("files", {}).items():
        compilers._write(beside, name, text)
    paths = [os.path.join(beside, f) for f in request.get("folders", ())]
    paths += request.get("include_paths", ())
    texts = [*request["sources"], *request.get("cuda_sources", ())]
    if not request.get("units"):
        compilers._write(folder, "main.cpp", "\n".join(_host(request)))
        files = ["main.cpp"]
        if request.get("cuda_sources"):
            compilers._write(folder, "cuda.cu", "\n".join(_device(request)))
            files.append("cuda.cu")
        return [os.path.join(folder, f) for f in files], paths
    for name, text in zip(request["units"], texts, strict=True):
        compilers._write(beside, name, text)
    return [os.path.join(beside, name) for name in request["units"]], paths


def _host(request: BuildRequest) -> list[str]:
    """The parts of main.cpp, as ``load_inline`` writes them."""
    parts = ["#include <torch/extension.h>"] if request["headers"] else []
    parts += request["sources"]
    if request["functions"] is not None:
        parts.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        for name, text in request["functions"].items():
            bound = f"torch::wrap_pybind_function({name})" if request["handling"] else name
            parts.append(f'm.def("{name}", {bound}, "{text}");')
        parts.append("}")
    return parts


def _device(request: BuildRequest) -> list[str]:
    """The parts of cuda.cu."""
    own = ["torch/types.h", "cuda.h", "cuda_runtime.h"] if request["headers"] else []
    return [*(f"#include <{name}>" for name in own), *request["cuda_sources"]]


class _Numbers:
    """Finds the source, and its line, that a line of main.cpp or cuda.cu is."""

    def __init__(self, request: BuildRequest) -> None:
        self._starts: dict[str, list[tuple[int, int]]] = {"main.cpp": [], "cuda.cu": []}
        first = 0
        device = request.get("cuda_sources", [])
        for name, texts, parts in (
            ("main.cpp", request["sources"], _host(request)),
            ("cuda.cu", device, _device(request) if device else []),
        ):
            at = 1 + sum(p.count("\n") + 1 for p in parts[: _front(request, name)])
            for text in texts:
                self._starts[name].append((at, first))
                at += text.count("\n") + 1
                first += 1

    def place(self, m: re.Match[str]) -> str:
        number, starts = int(m[3]), self._starts[m[1]]
        at, source = next(((a, s) for a, s in reversed(starts) if a <= number), (0, -1))
        if source < 0:
            return m[0]
        return f"source{source}.{m[1].rpartition('.')[2]}{m[2]}{number - at + 1}"


def _front(request: BuildRequest, name: str) -> int:
    """How many parts stand in front of the sources."""
    return (1 if name == "main.cpp" else 3) if request["headers"] else 0
