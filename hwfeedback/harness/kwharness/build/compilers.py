"""Runs g++ and reads what it says. For the builder's sandbox: sources and the compiler's output are
foreign.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import kernelwright
from kwharness.base.built import BuildRequest
from kwharness.base.for_builder import Compiled
from kwharness.build import headers, object_digest
from kwharness.build.cuda_toolkit import _found, cuda_folders, cuda_includes, cuda_runtime, gencode
from kwharness.build.diagnostics import LOG_KEPT, errors, resources, vectorisation
from kwharness.build.form import NATIVE
from kwharness.build.reaches import reaches
from kwharness.build.torch_headers import SHIM, in_torchs_words, lacking, only_a_header
from kwharness.clients.workshop import sources_of
from kwharness.machine import toolchain

COMPILE_TIMEOUT = 180.0
NATIVE_REPORT = "-fopt-info-vec-optimized-missed"


def torch_flags(flags: Sequence[str]) -> list[str]:
    """The flags with which torch compiles an extension, without the name of the extension.

    ``flags`` are the candidate's, a word each (compiler_flags.py).
    """
    import torch

    base = os.path.dirname(torch.__file__)
    includes = [
        os.path.join(base, "include"),
        os.path.join(base, "include", "torch", "csrc", "api", "include"),
        sysconfig.get_path("include", scheme="posix_prefix"),
    ]
    out = ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++17"]
    for path in includes:
        out += ["-isystem", path]
    return [*out, *flags]


def torch_libraries() -> list[str]:
    import torch

    lib = os.path.join(os.path.dirname(torch.__file__), "lib")
    return [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]


def inline_source(request: BuildRequest) -> str:
    """The one file that ``load_inline`` would compile. Line directives tell where each source
    begins.
    """
    parts = []
    if request["headers"]:
        parts.append("#include <torch/extension.h>")
    parts.append(f"#define TORCH_EXTENSION_NAME {request['name']}")
    for i, text in enumerate(request["sources"]):
        parts.append(f'#line 1 "source{i}.cpp"\n{text}')
    if request["functions"] is not None:
        parts.append('#line 1 "bindings.cpp"')
        parts.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        for name, text in request["functions"].items():
            bound = f"torch::wrap_pybind_function({name})" if request["handling"] else name
            parts.append(f"m.def({json.dumps(name)}, {bound}, {json.dumps(str(text))});")
        parts.append("}")
    return "\n".join(parts) + "\n"


def inline_cuda_source(request: BuildRequest) -> str:
    """The file of CUDA that ``load_inline`` would compile beside the other one."""
    parts = []
    if request["headers"]:
        parts.append("#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>")
    parts.append(f"#define TORCH_EXTENSION_NAME {request['name']}")
    first = len(request["sources"])
    for i, text in enumerate(request["cuda_sources"], first):
        parts.append(f'#line 1 "source{i}.cu"\n{text}')
    return "\n".join(parts) + "\n"


KILLED = re.compile(r"Killed signal terminated program|died due to signal 9 ")  # g++; nvcc


def run(
    command: Sequence[str], folder: str, *, fixed: bool = False, timeout: float = COMPILE_TIMEOUT
) -> tuple[int, str]:
    """Runs the compiler. Returns its exit status (-1: too long) and what it wrote. ``fixed``: it
    has the time that the loader of an exported file gives it.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            errors="replace",
            env={**os.environ, **(kernelwright.FIXED if fixed else {})},
        )
    except subprocess.TimeoutExpired:
        return -1, f"the compiler took longer than {timeout:g} s\n"
    return done.returncode, done.stdout


def compile_native(request: BuildRequest, folder: str) -> Compiled:
    """Compiles a native source into ``folder``."""
    name = _lay_alone(request, folder, "cpp")
    with tempfile.TemporaryDirectory() as beside:  # a source finds what lies in its folder
        report = os.path.join(beside, "vectorised.txt")
        command = [
            toolchain.compiler(), *kernelwright.FLAGS, *request["flags"],
            "-fdiagnostics-color=never", "-fmax-errors=20",
            f"{NATIVE_REPORT}={report}", name, "-o", "built.so",
        ]  # fmt: skip
        return _finish(command, folder, request, report)


def _lay_alone(request: BuildRequest, folder: str, language: str, tail: str = "") -> str:
    """Writes a native source, as the loader of a file does. Returns its name."""
    name = kernelwright.FILES[language]
    _write(folder, name, request["source"] + tail)
    os.utime(os.path.join(folder, name), (0, 0))
    return name


def compile_cuda(request: BuildRequest, folder: str) -> Compiled:
    """The same for a native source in CUDA, for the architecture ``request["arch"]``."""
    name = _lay_alone(request, folder, "cuda", kernelwright._CUDA_TAIL)
    command = [
        toolchain.nvcc(), *kernelwright.CUDA_FLAGS, gencode(request["arch"]),
        *of_cutlass(request), *request["flags"], "-Xptxas", "-v", *side_by_side(request["flags"]),
        name, *kernelwright.OWN_RUNTIME, *cuda_runtime(), "-o", "built.so",
    ]  # fmt: skip
    return _finish(command, folder, request)


def compile_kernels(request: BuildRequest, folder: str) -> Compiled:
    """The same for a source of kernels that are launched from Python: by NVRTC, and what that does
    not compile by nvcc, whose words are then the report's.
    """
    start = time.monotonic()
    built = os.path.join(folder, "built.so")
    own = kernelwright.CUTLASS_NVRTC_FLAGS
    flags = [*request["flags"], *of_cutlass(request, own), "--ptxas-options=-v"]
    try:
        image, log = kernelwright.nvrtc(request["source"], request["arch"], flags)
    except (OSError, kernelwright.Refused) as e:
        if not toolchain.nvcc():
            log = str(e).replace("\0", "")  # between what it says and what its ptxas says
            return _done(1, log, folder, request, start)
        name = _lay_alone(request, folder, "cuda")
        command = [
            toolchain.nvcc(), *kernelwright.CUBIN_FLAGS, gencode(request["arch"]),
            *of_cutlass(request), *request["flags"], "-Xptxas", "-v", name, "-o", "built.so",
        ]  # fmt: skip
        return _finish(command, folder, request)
    with open(built, "wb") as f:
        f.write(image)
    return _done(0, log, folder, request, start)


def of_cutlass(request: BuildRequest, own: Sequence[str] = kernelwright.CUTLASS_FLAGS) -> list[str]:
    """The flags of a source that includes CUTLASS's headers: where they are, and the compiler's
    ``own``. None for others.
    """
    folders = request.get("includes")
    return [*(f"-I{f}" for f in folders), *own] if folders else []


def warm_kernels() -> None:
    """Has this process' NVRTC open what it opens at its first use."""
    with contextlib.suppress(OSError, kernelwright.Refused):
        kernelwright.nvrtc('extern "C" __global__ void nothing() {}', "sm_90")


FILES = "files"  # the folder of what was handed over, beside what we write


def _lay_out(request: BuildRequest, folder: str) -> tuple[list[str], list[str], list[str]]:
    """Writes what is compiled. Returns the files for g++, those for nvcc, and the flags that both
    need for them.
    """
    for name, text in request.get("files", {}).items():
        _write(folder, os.path.join(FILES, name), text)
    finding = [f"-I{os.path.join(FILES, name)}" for name in request.get("folders", ())]
    finding += [f"-I{path}" for path in request.get("include_paths", ())]
    if not request.get("units"):
        _write(folder, "main.cpp", inline_source(request))
        if "cuda_sources" not in request:
            return ["main.cpp"], [], finding
        _write(folder, "main.cu", inline_cuda_source(request))
        return ["main.cpp"], ["main.cu"], finding
    made: tuple[list[str], list[str]] = ([], [])
    texts = [*request["sources"], *request.get("cuda_sources", ())]
    for i, (name, text) in enumerate(zip(request["units"], texts, strict=True)):
        cuda = i >= len(request["sources"])
        made[cuda].append(os.path.join(FILES, name))
        _write(folder, made[cuda][-1], f'#line 1 "source{i}.{"cu" if cuda else "cpp"}"\n{text}')
    return *made, [f"-DTORCH_EXTENSION_NAME={request['name']}", *finding]


def _write(folder: str, name: str, text: str) -> None:
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def _run_all(
    commands: Sequence[Sequence[str]], folder: str, timeout: float = COMPILE_TIMEOUT
) -> tuple[int, str]:
    """Runs commands, two at a time. Returns the first exit status that is not 0, and all that they
    wrote.
    """
    with ThreadPoolExecutor(2) as two:
        runs = list(two.map(lambda command: run(command, folder, timeout=timeout), commands))
    return next((code for code, _ in runs if code), 0), "".join(log for _, log in runs)


def compile_inline(request: BuildRequest, folder: str, light: str) -> Compiled:
    """The same for ``load_inline`` and ``load``. ``light`` is the folder of the light header, or
    "".
    """
    files, _, finding = _lay_out(request, folder)
    flags = [*torch_flags(request["flags"]), *finding]
    tail = ["-shared", *torch_libraries(), *request["ldflags"], "-o", "built.so"]
    own = ["-fdiagnostics-color=never", "-fmax-errors=20"]
    report = os.path.join(folder, "vectorised.txt")

    def compiled(lighter: Sequence[str]) -> Compiled:
        first = [toolchain.compiler(), *lighter, *flags, *own]
        if len(files) == 1:
            command = [*first, f"{NATIVE_REPORT}={report}", *files, *tail]
            return _finish(command, folder, request, report)
        start = time.monotonic()
        objects = [f"unit{i}.o" for i in range(len(files))]
        parts = [[*first, "-c", f, "-o", o] for f, o in zip(files, objects, strict=True)]
        code, log = _run_all(parts, folder)
        if code == 0:
            code, said = run([toolchain.compiler(), *objects, *tail], folder)
            log += said
        return _done(code, log, folder, request, start)

    done = compiled(["-I", light]) if light else None
    if done is not None and (done.object or done.code < 0):
        return done
    return compiled([])


def side_by_side(flags: Sequence[str]) -> list[str]:
    """Has nvcc read code for the host and code for the device at once, unless ``flags`` say how."""
    says = any(re.match(r"(--?threads|-t)(=|$)", f) for f in flags)
    return [] if says else ["--threads", "2"]


# What torch gives nvcc.
_TORCH_CUDA_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)  # fmt: skip


def compile_inline_cuda(request: BuildRequest, folder: str, light: str) -> Compiled:
    """The same for ``load_inline`` with CUDA. ``light`` is the folder of tensor_light.h and of what
    was made of it, "" for none.
    """
    files, cuda_files, finding = _lay_out(request, folder)
    objects = [f"unit{i}.o" for i in range(len(files) + len(cuda_files))]
    done = Compiled()
    tried: Compiled | None = None  # what came of the lighter headers
    before = "" if light else f"{WHOLE}: they cannot be made here\n"
    if light and any("PYBIND11_MODULE" in text for text in request["cuda_sources"]):
        light, before = "", f"{BINDS}\n"
    left_out = {"-fPIC"}  # it is in nvcc's words below
    if any("-std=" in f for f in request["cuda_flags"]):
        left_out.add("-std=c++17")  # nvcc takes one
    for with_light in (True, False) if light else (False,):
        lighter = ["-I", light] if with_light else []
        host = [
            toolchain.compiler(), *lighter, *of_cutlass(request, ()), *cuda_includes(),
            *torch_flags(request["flags"]), *finding, "-fdiagnostics-color=never",
            "-fmax-errors=20",
        ]  # fmt: skip
        usual = [f for f in torch_flags([]) if f not in left_out]
        device = [
            toolchain.nvcc(), *lighter, *of_cutlass(request, ()), *usual, *_TORCH_CUDA_FLAGS,
            gencode(request["arch"]), *request["cuda_flags"], *finding, "-Xcompiler", "-fPIC",
            "-Xptxas", "-v", *side_by_side(request["cuda_flags"]),
        ]  # fmt: skip
        helper = [os.path.join(light, HELPER)] if with_light else []
        link = [
            toolchain.compiler(), "-shared", *objects, *helper, *torch_libraries(),
            "-lc10_cuda", "-ltorch_cuda", *cuda_runtime(), *(f"-L{f}" for f in cuda_folders()),
            *_found(request["ldflags"]),
            "-o", "built.so",
        ]  # fmt: skip
        start = time.monotonic()
        # What nvcc says comes first: it is the kernels that fail.
        parts = [[*device, "-c", f, "-o", o] for f, o in zip(cuda_files, objects, strict=False)]
        others = objects[len(cuda_files) :]
        parts += [[*host, "-c", f, "-o", o] for f, o in zip(files, others, strict=True)]
        code, log = _run_all(parts, folder)
        if code == 0:
            code, said = run(link, folder)
            log += said
        done = _done(code, log, folder, request, start)
        done.log = before + done.log
        if done.object or done.code < 0 or done.killed or not with_light:
            break
        tried = in_torchs_words(done)
        why = lacking(request, tried.errors, tried.log)
        if not why:
            return tried
        before = f"{WHOLE}: {why}\n"
    if tried is not None and not done.object and only_a_header(done.errors):
        also = f"{AGAIN}: {done.errors[0][2]}\n"
        return replace(tried, log=(also + tried.log)[:LOG_KEPT])
    return done


HELPER = "tensor_light.o"
AGAIN = "with all of torch's headers it fails, too"
BINDS = "compiled with all of torch's headers: it binds functions where nvcc compiles"
WHOLE = "compiled with all of torch's headers, as with the lighter ones it fails"


def compile_helper(light: str, folder: str) -> str:
    """Compiles tensor_light.cpp. Returns the path of the object, or ""."""
    out = os.path.join(folder, HELPER)
    command = [
        toolchain.compiler(), "-O1", *cuda_includes(), *torch_flags([]), "-c",
        os.path.join(light, "tensor_light.cpp"), "-o", out,
    ]  # fmt: skip
    code, _ = run(command, folder)
    return out if code == 0 and os.path.exists(out) else ""


def compile_header(flags: Sequence[str], light: str, folder: str, more: Sequence[str] = ()) -> str:
    """Precompiles the light header for these flags. Returns the path of the result, or ""."""
    out = os.path.join(folder, "header.gch")
    header = os.path.join(light, SHIM)
    command = [
        toolchain.compiler(),
        "-I",
        light,
        *more,
        *torch_flags(flags),
        "-x",
        "c++-header",
        header,
        "-o",
        out,
    ]
    code, _ = run(command, folder)
    return out if code == 0 and os.path.exists(out) else ""


def _finish(command: list[str], folder: str, request: BuildRequest, report: str = "") -> Compiled:
    if not command[0]:
        return Compiled(127, "g++ was not found")
    start = time.monotonic()
    code, log = run(command, folder, fixed=request["kind"] == NATIVE)
    return _done(code, log, folder, request, start, report)


def _done(
    code: int, log: str, folder: str, request: BuildRequest, start: float, report: str = ""
) -> Compiled:
    built = os.path.join(folder, "built.so")
    sources = sources_of(request)
    vectorised: list[tuple[int, int, str]] = []
    missed: list[tuple[int, int, str]] = []
    try:
        with open(report or os.devnull, encoding="utf-8", errors="replace") as f:
            vectorised, missed = vectorisation(headers.told_apart(f.read(8 << 20), sources))
    except OSError:
        pass  # no report: nothing was compiled
    made = code == 0 and os.path.exists(built)
    log = headers.told_apart(log, sources)
    return Compiled(
        code=code,
        killed=code == -9 or KILLED.search(log) is not None,
        object=built if made else "",
        loaded=_loaded(built) if made else "",
        reaches=reaches(built, request["kind"]) if made else [],
        log=log[:LOG_KEPT],
        seconds=time.monotonic() - start,
        errors=errors(log),
        kernels=resources(log),
        vectorised=vectorised,
        missed=missed,
    )


def _loaded(built: str) -> str:
    with open(built, "rb") as f:
        return object_digest.digest(f.read())
