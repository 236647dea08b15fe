"""Runs g++ and reads what it says. For the builder's sandbox: sources and the compiler's output are
foreign.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kernelwright
from kwharness.build import artifacts, headers, object_digest
from kwharness.clients.workshop import sources_of
from kwharness.machine import toolchain

COMPILE_TIMEOUT = 180.0
LOG_KEPT = 16 << 10
MAX_DIAGNOSTICS = 40
SHIM = "torch/extension.h"  # the name our lighter header takes in front of torch's own
NATIVE_REPORT = "-fopt-info-vec-optimized-missed"

LIGHT_HEADER = """\
#pragma once
// What kernels use of torch/extension.h: tensors and bindings, without the C++ front end. A source
// that needs more fails to compile with it and is compiled again with the whole.
#include <torch/types.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
"""


# tensor_light.h stands in for these where CUDA is compiled; what includes another of torch's
# headers needs them all.
TENSOR_LIGHT = ("tensor_light.h", "tensor_light.cpp")
STANDS_FOR = (
    "torch/extension.h",
    "torch/types.h",
    "torch/torch.h",
    "torch/all.h",
    "torch/python.h",
    "torch/csrc/utils/pybind.h",
    "ATen/ATen.h",
    "ATen/cuda/CUDAContext.h",
    "ATen/cuda/CUDAContextLight.h",
    "ATen/cuda/Exceptions.h",
    "c10/cuda/CUDAException.h",
    "c10/cuda/CUDAGuard.h",
    "c10/cuda/CUDAStream.h",
    "c10/util/Exception.h",
    "c10/util/Optional.h",
)


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


def inline_source(request: dict[str, Any]) -> str:
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


def inline_cuda_source(request: dict[str, Any]) -> str:
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


def compile_native(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Compiles a native source into ``folder``. Returns the report; "object" is the path, "" where
    it failed.
    """
    name = _lay_alone(request, folder, "cpp")
    with tempfile.TemporaryDirectory() as beside:  # a source finds what lies in its folder
        report = os.path.join(beside, "vectorised.txt")
        command = [
            toolchain.compiler(), *kernelwright.FLAGS, *request["flags"],
            "-fdiagnostics-color=never", "-fmax-errors=20",
            f"{NATIVE_REPORT}={report}", name, "-o", "built.so",
        ]  # fmt: skip
        return _finish(command, folder, request, report)


def _lay_alone(request: dict[str, Any], folder: str, language: str, tail: str = "") -> str:
    """Writes a native source, as the loader of a file does. Returns its name."""
    name = kernelwright.FILES[language]
    _write(folder, name, request["source"] + tail)
    os.utime(os.path.join(folder, name), (0, 0))
    return name


def compile_cuda(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """The same for a native source in CUDA, for the architecture ``request["arch"]``."""
    name = _lay_alone(request, folder, "cuda", kernelwright._CUDA_TAIL)
    command = [
        toolchain.nvcc(), *kernelwright.CUDA_FLAGS, gencode(request["arch"]),
        *of_cutlass(request), *request["flags"], "-Xptxas", "-v", *side_by_side(request["flags"]),
        name, *kernelwright.OWN_RUNTIME, *cuda_runtime(), "-o", "built.so",
    ]  # fmt: skip
    return _finish(command, folder, request)


def compile_kernels(request: dict[str, Any], folder: str) -> dict[str, Any]:
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


def of_cutlass(
    request: dict[str, Any], own: Sequence[str] = kernelwright.CUTLASS_FLAGS
) -> list[str]:
    """The flags of a source that includes CUTLASS's headers: where they are, and the compiler's
    ``own``. None for others.
    """
    folders = request.get("includes")
    return [*(f"-I{f}" for f in folders), *own] if folders else []


def warm_kernels() -> None:
    """Has this process' NVRTC open what it opens at its first use."""
    with contextlib.suppress(OSError, kernelwright.Refused):
        kernelwright.nvrtc('extern "C" __global__ void nothing() {}', "sm_90")


# Names of kernels that are templates over CuTe's layouts have thousands of letters.
_ENTRY = re.compile(r"Compiling entry function '([^']{1,20000})' for '(sm_\w{1,8})'")
_USED = re.compile(r"Used (\d{1,6}) registers")
_SHARED = re.compile(r"(\d{1,9}) bytes smem")
_SPILLS = re.compile(
    r"(\d{1,9}) bytes stack frame, (\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads"
)


def resources(log: str) -> list[dict[str, Any]]:
    """Returns what ptxas says that each kernel uses: registers a thread; bytes of shared memory a
    block, of stack and of spilled registers a thread.
    """
    found: list[dict[str, Any]] = []
    for line in log[:LOG_READ].splitlines():
        if m := _ENTRY.search(line):
            found.append({"name": m[1], "arch": m[2], "registers": 0, "shared_bytes": 0})
            found[-1] |= {"stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0}
        elif not found:
            continue
        elif m := _SPILLS.search(line):
            names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            found[-1] |= {n: int(v) for n, v in zip(names, m.groups(), strict=True)}
        elif m := _USED.search(line):
            found[-1]["registers"] = int(m[1])
            shared = _SHARED.search(line)
            found[-1]["shared_bytes"] = int(shared[1]) if shared else 0
    return found[:MAX_DIAGNOSTICS]


FILES = "files"  # the folder of what was handed over, beside what we write


def _lay_out(request: dict[str, Any], folder: str) -> tuple[list[str], list[str], list[str]]:
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


def compile_inline(request: dict[str, Any], folder: str, light: str) -> dict[str, Any]:
    """The same for ``load_inline`` and ``load``. ``light`` is the folder of the light header, or
    "".
    """
    files, _, finding = _lay_out(request, folder)
    flags = [*torch_flags(request["flags"]), *finding]
    tail = ["-shared", *torch_libraries(), *request["ldflags"], "-o", "built.so"]
    own = ["-fdiagnostics-color=never", "-fmax-errors=20"]
    report = os.path.join(folder, "vectorised.txt")

    def compiled(lighter: Sequence[str]) -> dict[str, Any]:
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
    if done is not None and (done["object"] or done["code"] < 0):
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


def gencode(arch: str) -> str:
    """nvcc's flag for one architecture. ``-arch`` would have it compile a second time, to PTX."""
    return f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}"


def cuda_includes() -> list[str]:
    """The flags with which g++ finds CUDA's headers, and torch those of the toolkit's libraries."""
    return ["-isystem", os.path.join(toolchain.cuda_home(), "include")]


def cuda_folders() -> list[str]:
    """Where CUDA's libraries lie: the toolkit's, and those that came with torch."""
    import torch

    release = (torch.version.cuda or "").partition(".")[0]
    home = toolchain.cuda_home()
    beside = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")
    folders = (f"{home}/lib64", f"{home}/lib", f"{beside}/cu{release}/lib")
    return [f for f in folders if os.path.isdir(f)]


def cuda_runtime() -> list[str]:
    """The flags that link the runtime of CUDA: the one that torch has in the process already."""
    import torch

    name = "libcudart.so." + (torch.version.cuda or "").partition(".")[0]
    # By its path: where pip put the toolkit there is no name without a version.
    found = [p for p in (os.path.join(f, name) for f in cuda_folders()) if os.path.exists(p)]
    return ["-Xlinker", found[0]] if found else ["-lcudart"]


def _found(flags: Sequence[str]) -> list[str]:
    """Returns the linker's flags, with the path of each of CUDA's libraries that is there under a
    name with a version alone, as pip puts it.
    """
    out: list[str] = []
    for flag in flags:
        name = f"lib{flag[2:]}.so" if re.fullmatch(r"-l\w+", flag) else ""
        paths = [os.path.join(f, name) for f in cuda_folders()] if name else []
        versions = [v for p in paths for v in sorted(glob.glob(glob.escape(p) + ".*"))]
        out.append(versions[0] if versions and not any(map(os.path.exists, paths)) else flag)
    return out


def compile_inline_cuda(request: dict[str, Any], folder: str, light: str) -> dict[str, Any]:
    """The same for ``load_inline`` with CUDA. ``light`` is the folder of tensor_light.h and of what
    was made of it, "" for none.
    """
    files, cuda_files, finding = _lay_out(request, folder)
    objects = [f"unit{i}.o" for i in range(len(files) + len(cuda_files))]
    done: dict[str, Any] = {}
    tried: dict[str, Any] = {}  # what came of the lighter headers
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
        done["log"] = before + done["log"]
        if done["object"] or done["code"] < 0 or done["killed"] or not with_light:
            break
        tried = _in_torchs_words(done)
        why = lacking(request, tried["errors"], tried["log"])
        if not why:
            return tried
        before = f"{WHOLE}: {why}\n"
    if tried and not done["object"] and _only_a_header(done["errors"]):
        also = f"{AGAIN}: {done['errors'][0][2]}\n"
        return {**tried, "log": (also + tried["log"])[:LOG_KEPT]}
    return done


# What torch's headers include of the toolkit's may not be there; torch's own are.
_NO_HEADER = re.compile(r"(?!ATen/|c10/|torch/|caffe2/)[\w./+-]{1,200}: No such file")


def _only_a_header(found: Sequence[tuple[int, int, str]]) -> bool:
    return bool(found) and all(_NO_HEADER.match(message) for *_, message in found)


def _in_torchs_words(done: dict[str, Any]) -> dict[str, Any]:
    """Returns a report with the names that torch has for what tensor_light.h declares."""
    said = [(s, n, m.replace(LIGHT_NAMESPACE, "")) for s, n, m in done["errors"]]
    return {**done, "errors": said, "log": done["log"].replace(LIGHT_NAMESPACE, "")}


_UNDEFINED = "undefined reference to "
_NO_CUTLASS = re.compile(r"(cute|cutlass)/\S+: No such file")  # torch's headers have none either
_INCLUDED = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"]((?:ATen|c10|caffe2|torch)/[^>\"\n]+)", re.M
)
_MACRO = re.compile(r"\b(?:AT|C10|TORCH)_[A-Z0-9_]+\b")
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
_USING = re.compile(r"\busing\s+namespace\b")
# An error about something of torch's. A namespace without a name may be any.
_OF_TORCH = re.compile(
    r"\b(?:at|c10|caffe2|py|pybind11|torch)(?:::|[\"'’])|^name (?:followed by|must be a namespace)"
)
# A tensor is no pointer and no number with any header.
_NEVER = re.compile(
    r"\bTensor[\"'’] (?:is incompatible with parameter of type|to) [\"'‘]"
    r"(?:const )?(?:unsigned )?(?:bool|char|double|float|int|long|short|void|__half)\b"
)
# nvcc gives the types in lines of their own.
_TYPES = re.compile(r"^ +(?:operand|argument|object) types? (?:are|is): .*\b(?:at|c10)::", re.M)
_ARGUMENTS = re.compile(r"too (?:many|few) arguments|does not match the argument list")
_CALLS = re.compile(r"(?:\.|->)\w+\(|\b(?:at|c10|torch)::")
_LINKED = re.compile(_UNDEFINED + r"\W?(?:at|c10|torch)::")
_UNKNOWN = re.compile(
    r"identifier \"(\w+)\" is undefined|['‘](\w+)['’] (?:was not declared|does not name"
    r"|has not been declared)|no arguments to ['‘](\w+)['’] that depend on a template"
)
_NOT_IN_STD = re.compile(
    r"namespace \"std\" has no (?:actual )?member (?:\w+ )?\"(\w+)\""
    r"|['‘](\w+)['’] (?:is not a member of|in namespace) ['‘]std['’]"
)


def lacking(request: dict[str, Any], found: Sequence[tuple[int, int, str]], log: str) -> str:
    """Returns the error of a source compiled with the lighter headers that torch's own may mend,
    or "". With those it takes a minute or more.
    """
    texts = [*request["sources"], *request["cuda_sources"]]
    text, own = "\n".join(texts), [headers.apart(t) for t in texts]
    first = next((e[2] for e in found), "")
    if not first or _NO_CUTLASS.match(first):
        return ""
    if set(_INCLUDED.findall(text)) - set(STANDS_FOR):
        return first  # its declarations do not fit together with the lighter ones
    with open(os.path.join(os.path.dirname(__file__), TENSOR_LIGHT[0]), encoding="utf-8") as f:
        known = {*_DEFINED.findall(f.read()), *_DEFINED.findall(text), "TORCH_EXTENSION_NAME"}
    if set(_MACRO.findall(text)) - known or _TYPES.search(log):
        return first
    names: dict[str, str] = {}
    of_std: dict[str, str] = {}
    for source, number, message in found:
        if m := _NOT_IN_STD.search(message):
            of_std[next(filter(None, m.groups()))] = message
        elif m := _UNKNOWN.search(message):
            names[next(filter(None, m.groups()))] = message
        elif message.startswith(_UNDEFINED):
            if _LINKED.match(message):
                return message
        elif _ARGUMENTS.search(message):
            lines = own[source].split("\n")[number - 1 : number] if source < len(own) else ()
            if _OF_TORCH.search(message) or any(map(_CALLS.search, lines)):
                return message
        elif _OF_TORCH.search(message) and not _NEVER.search(message):
            return message
    missing = declared(names, within=_USING.search(text) is not None)
    missing = missing or declared(of_std, within=True)
    return {**of_std, **names}.get(missing, "")


# What torch's headers include beside torch's own, as far as candidates use it.
_BESIDE = (
    "algorithm", "array", "atomic", "cassert", "cctype", "cfloat", "chrono", "climits", "cmath",
    "complex", "cstdint", "cstdio", "cstdlib", "cstring", "ctime", "deque", "exception",
    "functional", "iostream", "iterator", "limits", "list", "map", "memory", "mutex", "numeric",
    "ostream", "set", "sstream", "stdexcept", "string", "string_view", "thread", "tuple",
    "type_traits", "unordered_map", "unordered_set", "utility", "variant", "vector", "cuda.h",
    "cuda_bf16.h", "cuda_bf16.hpp", "cuda_fp16.h", "cuda_fp16.hpp", "cuda_fp8.h", "cublas_v2.h",
    "cublasLt.h", "cuComplex.h", "cusolverDn.h", "cusparse.h",
)  # fmt: skip


_DEFINES = r"^[ \t]*#[ \t]*define[ \t]+NAME"
# By lines. A function's begins with its type.
_DECLARATIONS = (
    _DEFINES,
    r"\b(?:class|concept|enum|namespace|struct|union)[ \t](?:.*[ \t])?NAME[ \t]*(?:[:{]|$)",
    r"^[ \t]*typedef\b[^({]*\bNAME[ \t]*;",
    r"\}[ \t]*NAME[ \t]*;",
    r"\busing[ \t]+(?:[\w:]+::)?NAME[ \t]*[=;]",
    r"^[ \t]*(?:extern|constexpr|inline|static)\b[^(){}=]*[ \t*&]NAME[ \t]*[=;{]",
    r"^[ \t]*NAME[ \t]*=[ \t]*\w+[ \t]*,",
    r"^(?!.*\b(?:return|else|case|new)\b)[ \t]*[A-Za-z_:].*[\w>*&)][ \t]+[*&]{0,2}NAME[ \t]*\(",
)


def declared(names: Collection[str], within: bool) -> str:
    """Returns one of the names that torch's headers or what they include declare, or "". Without
    ``within`` what they declare in a namespace does not count.

    It is read from their text, and may be one too many: that costs a compilation.
    """
    if not names:
        return ""
    one = r"\b(" + "|".join(map(re.escape, sorted(names))) + r")\b"
    word = re.compile(one.encode())
    macro = re.compile(_DEFINES.replace("NAME", one).encode(), re.M)
    line = re.compile("|".join(d.replace("NAME", one) for d in _DECLARATIONS).encode())
    for path, in_namespace in _headers():
        try:
            with open(path, "rb") as f:
                text = f.read() + b"\n"
        except OSError:
            continue
        if not any(n.encode() in text for n in names):
            continue
        found = macro.search(text)
        if found is None and (within or not in_namespace):
            places = (m.span() for m in word.finditer(text))
            lines = (text[text.rfind(b"\n", 0, a) + 1 : text.find(b"\n", b)] for a, b in places)
            found = next(filter(None, map(line.search, lines)), None)
        if found is not None:
            return next(filter(None, found.groups())).decode()
    return ""


def _headers() -> Iterator[tuple[str, bool]]:
    """Gives the headers that torch's include, and torch's, each with whether what it declares is in
    a namespace.
    """
    import torch

    asked = "".join(f"#include <{name}>\n" for name in _BESIDE)
    command = [toolchain.compiler(), "-std=c++17", *cuda_includes(), "-M", "-MG", "-x", "c++", "-"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, input=asked, capture_output=True, timeout=30, text=True)
        for path in re.findall(r"(?<=\s)/[^\s\\]+", done.stdout):
            yield path, "/c++/" in path
    for folder, _, files in os.walk(os.path.join(os.path.dirname(torch.__file__), "include")):
        for name in files:
            yield os.path.join(folder, name), True


HELPER = "tensor_light.o"
AGAIN = "with all of torch's headers it fails, too"
LIGHT_NAMESPACE = "kernelwright_light::"  # within at, of tensor_light.h
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


def _finish(
    command: list[str], folder: str, request: dict[str, Any], report: str = ""
) -> dict[str, Any]:
    if not command[0]:
        return {"code": 127, "object": "", "log": "g++ was not found", "seconds": 0.0, "errors": []}
    start = time.monotonic()
    code, log = run(command, folder, fixed=request["kind"] == artifacts.NATIVE)
    return _done(code, log, folder, request, start, report)


def _done(
    code: int, log: str, folder: str, request: dict[str, Any], start: float, report: str = ""
) -> dict[str, Any]:
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
    return {
        "code": code,
        "killed": code == -9 or KILLED.search(log) is not None,  # it, or what it had started
        "object": built if made else "",
        "loaded": _loaded(built) if made else "",
        "reaches": reaches(built, request["kind"]) if made else [],
        "log": log[:LOG_KEPT],
        "seconds": time.monotonic() - start,
        "errors": errors(log),
        "kernels": resources(log),
        "vectorised": vectorised,
        "missed": missed,
    }


def _loaded(built: str) -> str:
    with open(built, "rb") as f:
        return object_digest.digest(f.read())


# What a kernel has no use for: PyTorch's kernels past the dispatcher, where no trace sees them, the
# dispatcher itself and what it tells of calls, the interpreter that it runs in, and whatever finds
# or changes code at run time.
# On a GPU they are told from helpers by the tensors that they take; the shim for compiled models
# calls them, too.
_PAST_DISPATCH = re.compile(
    r"_ZNK?2at(6native|3cpu(?!\d+(is|L1|L2)_)|19compositeexplicit|17compositeimplicit"
    r"|4cuda\d+\w*NS_6TensorE)"
    r"|aoti_torch_(cpu|cuda)_\w+"
)
# Who excludes dispatch keys hides nothing from the profiler: torch::empty_like does it, too.
_UNSEEN = re.compile(
    r"_ZN2at4_ops\w+10redispatchE"
    r"|_ZNK?3c1010Dispatcher\d"
    r"|_ZN3c104impl(20TorchDispatchModeTLS|19PythonDispatcherTLS|\d+tls_set_dispatch_key_)"
    r"|_ZN2at\d+([gs]et_record_function_tls_|(en|dis)able(RecordFunction|Callback)E"
    r"|reenableCallbackE|removeCallbackE|clear(|Global|ThreadLocal)CallbacksE"
    r"|releaseRecordAllFunctionsE)"
    r"|_ZN5torch(8autograd8profiler|8profiler4impl)"
)
_ELSEWHERE = re.compile(
    r"(dlopen|dlmopen|dlsym|dlvsym|dl_iterate_phdr|mprotect|pkey_mprotect|ptrace|syscall|fork|vfork"
    r"|execv[pe]*|execl[pe]*|posix_spawnp?|system|popen|process_vm_(read|write)v|sigaction|signal"
    r"|clock_settime|settimeofday|timer_create)(@.*)?"
)
_PYTHON = re.compile(r"_?Py[A-Z_]\w*(@.*)?")
MAX_REACHES = 10


def reaches(built: str, kind: str) -> list[str]:
    """Returns the symbols that an object takes from elsewhere and that a kernel has no use for.

    Evidence, and no more: who wants to can find code without naming it. An object that cannot be
    read says nothing.
    """
    command = ["nm", "-D", "--undefined-only", "--format=posix", built]
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, text=True, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return []
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    bad = [
        n
        for n in names
        if _PAST_DISPATCH.match(n)
        or _UNSEEN.match(n)
        or _ELSEWHERE.fullmatch(n)
        or (kind == artifacts.NATIVE and _PYTHON.fullmatch(n))
    ]
    return sorted(bad)[:MAX_REACHES]


_ERROR = re.compile(
    r"source(\d{1,4})\.(?:cpp:|cu[:(])(\d{1,9})(?:\)|:\d+)?: (?:fatal )?error: (.*)"
)
_FOREIGN = re.compile(
    r"(?:[^\s:]+:\d+:(?:\d+:)? |[^\s(]{1,200}\(\d{1,9}\): )?(?:fatal )?error: (.*)"
)
# Of nvcc itself and of what it and NVRTC start. The line that ptxas names is one of the PTX.
_TOOL = re.compile(
    r"\s{0,8}(?:ptxas|nvlink|nvcc) (?:[^;]{1,400}, line \d{1,9}; )?(?:error|fatal) {0,8}: (.*)"
)
_REPORT = re.compile(r"\s{0,8}(?:ptxas (?:info\b| {1,20}\.)|\d{1,9} bytes stack frame)")
# Of the assembler and the linker, where their files do not fit into the builder's folder; the
# compiler itself calls that an error of its own.
TOO_LARGE = re.compile(
    r"No space left on device|[Ff]ile (size limit|too large)|internal compiler error: Bus"
)
LOG_READ = 1 << 20  # characters of what the compiler wrote
_OUTER = re.compile(r"loop nest|nested loops")
_VECTOR = re.compile(
    r"^(?:source(\d{1,4})\.cpp|(kw/\w{1,40}\.h)):(\d{1,9}):\d+:"
    r" (optimized|missed): +(.*)$"
)


def errors(log: str) -> list[tuple[int, int, str]]:
    """Returns the compiler's errors as (source, line, message); line 0 for one that lies in no
    source of ours.
    """
    own: list[tuple[int, int, str]] = []
    others: list[tuple[int, int, str]] = []
    for line in log[:LOG_READ].split("\n"):
        if m := _ERROR.match(line):
            own.append((int(m[1]), int(m[2]), m[3][:500]))
        elif m := _FOREIGN.match(line) or _TOOL.match(line):
            others.append((0, 0, m[1][:500]))
        elif (at := line.find(_UNDEFINED)) >= 0:
            others.append((0, 0, line[at : at + 500]))
    if not own and TOO_LARGE.search(log):
        others = [(0, 0, "the object is too large: make arrays smaller, or fill them at run time")]
    found = own or others
    return list(dict.fromkeys(found))[:MAX_DIAGNOSTICS]


def last_words(log: str) -> str:
    """Returns the end of a log without errors, less what ptxas reports of kernels."""
    lines = [line for line in log.splitlines() if not _REPORT.match(line)]
    return "\n".join(lines).strip()[-300:]


def vectorisation(report: str) -> tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]:
    """Returns the loops that were vectorised and those that were not, as (source, line, what the
    compiler says).
    """
    done: dict[tuple[int, int, str], str] = {}
    missed: dict[tuple[int, int, str], str] = {}
    waiting: tuple[int, int, str] | None = None
    for line in report.splitlines():
        m = _VECTOR.match(line)
        if m is None:
            continue
        # A loop of a header of ours lies in no line of the candidate's.
        place = (0, 0, f"{m[2]}:{m[3]}: ") if m[2] else (int(m[1]), int(m[3]), "")
        what = m[5].strip()[:500]
        if m[4] == "optimized":
            if what.startswith(("loop vectorized", "basic block part vectorized")):
                best = done.get(place, "")
                done[place] = max(best, what, key=lambda w: (w.startswith("loop"), w))
        elif what.startswith("couldn't vectorize loop"):
            waiting = place
        elif waiting is not None:
            # Of an outer loop it says no more than that there are loops within.
            if what.startswith("not vectorized:") and not _OUTER.search(what):
                missed[waiting] = what.removeprefix("not vectorized:").strip()
            waiting = None
    loops = [(s, n, at + w) for (s, n, at), w in sorted(done.items()) if w.startswith("loop")]
    rest = [
        (s, n, at + w)
        for (s, n, at), w in sorted(missed.items())
        if not done.get((s, n, at), "").startswith("loop")
    ]
    return loops[:MAX_DIAGNOSTICS], rest[:MAX_DIAGNOSTICS]
