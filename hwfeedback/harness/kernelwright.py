"""Loads C++ and CUDA kernels for a candidate: ``lib = native(source=...)``, then ``lib.fn(x, y,
x.numel())``.

The functions declared ``extern "C"`` in the source become methods. Tensors become pointers, checked
for device, contiguity and the element type of the parameter; numbers are converted as the
parameter's type says. A parameter of type ``cudaStream_t`` is not given: it is torch's current
stream. A launch that CUDA refuses raises RuntimeError.

A source in CUDA whose only functions with C linkage are kernels (``extern "C" __global__``) needs
no code for the host: ``lib.kernel[grid, block](x, y, n)`` launches one on torch's current stream,
``lib.kernel[grid, block, bytes]`` with so much dynamic shared memory. It is compiled by NVRTC,
which comes with torch; what only nvcc compiles is compiled by nvcc, where it is installed.

A source in CUDA may include CUTLASS's headers (``<cute/tensor.hpp>``, ``<cutlass/...>``): the
environment variable CUTLASS_PATH names a checkout of it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import glob
import hashlib
import keyword
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-std=c++17", "-fno-math-errno")

CUDA_FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")
CUBIN_FLAGS = ("-O3", "-std=c++17", "-cubin")
OWN_RUNTIME = ("-cudart", "none", "-cudadevrt", "none")  # nvcc links none by itself
# A source can read what it is called, where it lies, how old it is and the time. So all of that is
# the same wherever it is compiled: alone in the working folder, under these names.
FILES = {"cpp": "source0.cpp", "cuda": "source0.cu"}
FIXED = {"SOURCE_DATE_EPOCH": "0", "TZ": "UTC"}
# Of what includes CUTLASS's headers: many of their constexpr functions say nothing of the device.
CUTLASS_FLAGS, CUTLASS_NVRTC_FLAGS = ("--expt-relaxed-constexpr",), ("-default-device",)
# Behind the source: says what is wrong with a launch, which nobody else would.
_CUDA_TAIL = (
    '\nextern "C" const char* kernelwright_launch_error() {\n'
    "  cudaError_t e = cudaGetLastError();\n"
    "  return e == cudaSuccess ? nullptr : cudaGetErrorString(e);\n}\n"
)

# C type -> (ctypes for a value, torch dtypes a pointer to it may address)
_TYPES: dict[str, tuple[Any, tuple[torch.dtype, ...]]] = {
    "float": (ctypes.c_float, (torch.float32,)),
    "double": (ctypes.c_double, (torch.float64,)),
    "bool": (ctypes.c_bool, (torch.bool, torch.uint8)),
    "char": (ctypes.c_byte, (torch.int8, torch.uint8, torch.bool)),
    "int8_t": (ctypes.c_int8, (torch.int8,)),
    "uint8_t": (ctypes.c_uint8, (torch.uint8, torch.bool)),
    "short": (ctypes.c_int16, (torch.int16,)),
    "int16_t": (ctypes.c_int16, (torch.int16,)),
    "uint16_t": (ctypes.c_uint16, (torch.uint16, torch.int16, torch.float16, torch.bfloat16)),
    "int": (ctypes.c_int32, (torch.int32,)),
    "int32_t": (ctypes.c_int32, (torch.int32,)),
    "uint32_t": (ctypes.c_uint32, (torch.uint32, torch.int32)),
    "long": (ctypes.c_int64, (torch.int64,)),
    "int64_t": (ctypes.c_int64, (torch.int64,)),
    "ptrdiff_t": (ctypes.c_int64, (torch.int64,)),
    "uint64_t": (ctypes.c_uint64, (torch.uint64, torch.int64)),
    "size_t": (ctypes.c_uint64, (torch.uint64, torch.int64)),
    "_Float16": (None, (torch.float16,)),
    "__fp16": (None, (torch.float16,)),
    "__bf16": (None, (torch.bfloat16,)),
    "half": (None, (torch.float16,)),
    "__half": (None, (torch.float16,)),
    "nv_bfloat16": (None, (torch.bfloat16,)),
    "__nv_bfloat16": (None, (torch.bfloat16,)),
    "float2": (None, (torch.float32,)),
    "float4": (None, (torch.float32,)),
    "int4": (None, (torch.int32,)),
}
_STREAM = "cudaStream_t"
_SPELLINGS = {
    "signed char": "int8_t", "unsigned char": "uint8_t", "signed": "int", "signed int": "int",
    "unsigned": "uint32_t", "unsigned int": "uint32_t", "short int": "short",
    "unsigned short": "uint16_t",
    "unsigned short int": "uint16_t", "long int": "long", "long long": "long",
    "long long int": "long",
    "signed long": "long", "signed long long": "long", "unsigned long": "uint64_t",
    "unsigned long int": "uint64_t", "unsigned long long": "uint64_t",
    "unsigned long long int": "uint64_t",
}  # fmt: skip
_WORDS = {"signed", "unsigned", "short", "long", "int", "char", "float", "double", "bool", "void"}
_NOISE = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|struct|register|std)\b|::")


# What a compiler takes whole: comments and literals.
_WHOLE = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
    re.S,
)


def _plain(source: str) -> str:
    """Returns the source without comments, preprocessor lines and the insides of literals."""
    text = _WHOLE.sub(lambda m: '"C"' if m[0] == '"C"' else " " if m[0][0] == "/" else '""', source)
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.M)


def _declarations(source: str) -> list[str]:
    """Returns the heads of the functions with C linkage."""
    text = re.sub(
        r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\[\[.*?\]\]",
        " ",
        _plain(source),
        flags=re.S,
    )
    found: list[str] = []
    for start in (m.end() for m in re.finditer(r'\bextern\s*"C"', text)):
        depth, head = 0, ""
        block = text[start:].lstrip().startswith("{")
        for c in text[start:]:
            if c == "{":
                depth += 1
                if depth == 1 + block:
                    found.append(head)
                    head = ""
            elif c == "}":
                depth -= 1
                head = ""
            elif c == ";" and depth == block:
                found.append(head)
                head = ""
            elif depth == block:
                head += c
            if depth == 0 and (c == "}" or (c == ";" and not block)):
                break
    return found


def _type(text: str) -> tuple[str, bool]:
    """Returns a C type's canonical name and whether it is a pointer."""
    pointer = "*" in text or "[" in text
    words = _NOISE.sub(" ", re.sub(r"\*|\[[^\]]*\]|&", " ", text)).split()
    words = sorted(
        words, key=lambda w: {"unsigned": 0, "signed": 0, "short": 1, "long": 1}.get(w, 2)
    )
    name = " ".join(words)
    return _SPELLINGS.get(name, name), pointer


# Our headers that a source may include, as "kw/exp.h": what each needs before it, and its text.
headers: dict[str, tuple[Sequence[str], str]] = {}
_HEADER = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*[<"](kw/\w{1,40}\.h)[>"][ \t]*(?://[^\n\\]*)?$', re.M
)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.M)


def _inlined(source: str, known: dict[str, tuple[Sequence[str], str]]) -> str:
    """Returns a source with the headers behind the lines that include them, which become comments:
    each once, with what it needs. A compiler is given no folder of them, so that what it sees is
    the same text wherever it runs.

    A line that the preprocessor may leave out does not count for others: each header guards itself.
    """
    whole = [m.span() for m in _WHOLE.finditer(source)] if _HEADER.search(source) else []
    done: set[str] = set()

    def text(m: re.Match[str]) -> str:
        at = m.start(1) - 1  # where the name begins, which may be a literal
        within = any(a <= at < b and (a, b) != (at, m.end(1) + 1) for a, b in whole)
        if m[1] not in known or within:
            return m[0]
        names = [n for n in (*known[m[1]][0], m[1]) if n not in done]
        before = _CONDITION.findall(source, 0, m.start())
        if 2 * before.count("endif") == len(before):
            done.update(names)
        return "\n".join([f"// {m[0].strip()}", *(known[n][1] for n in names)])

    return _HEADER.sub(text, source)


Parameters = list[tuple[str, str, bool]]  # name, type, whether it is a pointer


def prototypes(source: str) -> dict[str, tuple[tuple[str, bool], Parameters]]:
    """Returns the functions with C linkage: name -> ((type, pointer), [(parameter, type,
    pointer)]).
    """
    return {n: f for n, f in _signatures(source).items() if not _is_kernel(f[0][0])}


def kernels(source: str) -> dict[str, Parameters]:
    """Returns the kernels with C linkage of a source that has no function with it: those that are
    launched from here. Name -> [(parameter, type, pointer)].
    """
    found = _signatures(source)
    if not all(_is_kernel(kind) for (kind, _), _ in found.values()):
        return {}
    return {name: parameters for name, (_, parameters) in found.items()}


def _is_kernel(kind: str) -> bool:
    return "__global__" in kind.split()


_BOUNDS = re.compile(
    r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\([^()]*\))*\)"
)


def _signatures(source: str) -> dict[str, tuple[tuple[str, bool], Parameters]]:
    out = {}
    for head in _declarations(source):
        m = re.fullmatch(
            r"\s*(?P<kind>[\w\s:*]+?[\s*])(?P<name>\w+)\s*\((?P<parameters>[^()]*)\)\s*(noexcept)?\s*",
            _BOUNDS.sub(" ", head),
        )
        if m is None or re.search(r"\bstatic\b", m["kind"]):
            continue
        parameters = []
        listed = [] if m["parameters"].strip() in ("", "void") else m["parameters"].split(",")
        for i, text in enumerate(listed):
            named = re.fullmatch(
                r"(?P<kind>.*[\s*&])(?P<name>[A-Za-z_]\w*)\s*(?P<array>(\[[^\]]*\])*)\s*",
                text,
                re.S,
            )
            kind, name = text, f"argument{i}"
            if named and named["name"] not in _WORDS and _NOISE.sub(" ", named["kind"]).strip():
                kind, name = named["kind"] + named["array"], named["name"]
            parameters.append((name, *_type(kind)))
        kind = re.sub(r"\b(inline|extern)\b", " ", m["kind"])
        out[m["name"]] = (_type(kind), parameters)
    return out


def _explain(
    function: str, name: str, value: Any, dtypes: tuple[torch.dtype, ...], on: str = "cpu"
) -> None:
    """Raises what is wrong with a tensor argument, if anything is."""
    where = f"{function}: argument {name!r}"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} must be a tensor, got {type(value).__name__}")
    if value.device.type != on:
        where_it_must_be = "the CPU" if on == "cpu" else "the GPU"
        raise ValueError(f"{where} must be on {where_it_must_be}, is on {value.device}")
    if dtypes and value.dtype not in dtypes:
        raise TypeError(f"{where} must be {' or '.join(map(str, dtypes))}, is {value.dtype}")
    if not value.is_contiguous():
        raise ValueError(f"{where} must be contiguous, has strides {tuple(value.stride())}")


def _too_large(function: str, name: str, value: Any, kind: str) -> None:
    raise OverflowError(f"{function}: argument {name!r} = {value} does not fit {kind}")


# What the functions that are made for prototypes refer to.
_OURS = {"stream", "failed", "call", "explain", "blame", "too_large", "out", "wrong", "e"}
_OURS |= {"ArgumentError", "AttributeError", "TypeError", "RuntimeError", "wrapper"}
_OURS |= {"launch", "lock", "handle", "pointers", "refused"}
_OURS |= {f"{letter}{i}" for letter in "adtv" for i in range(64)}


class _Signature:
    """The Python code that checks and converts the arguments of one prototype: checks without a
    loop keep a call under 5 us.
    """

    def __init__(self, function: str, parameters: Parameters, on: str, streams: bool) -> None:
        self.space: dict[str, Any] = {
            "stream": _current_stream(),
            "explain": _explain,
            "too_large": _too_large,
            "ArgumentError": ctypes.ArgumentError,
        }
        self.checks: list[str] = []
        self.passed: list[str] = []  # an expression for each parameter
        self.kinds: list[Any] = []  # its type
        self.names: list[str] = []
        for i, (parameter, kind, pointer) in enumerate(parameters):
            # As the source calls it, so that Python's own words on a missing one name it.
            named = parameter.isidentifier() and not keyword.iskeyword(parameter)
            a = parameter if named and parameter[0] != "_" and parameter not in _OURS else f"a{i}"
            if streams and kind == _STREAM and not pointer:
                self.passed.append("stream()")
                self.kinds.append(ctypes.c_void_p)
                continue
            self.names.append(a)
            if pointer:
                dtypes = _TYPES.get(kind, (None, ()))[1]
                self.space[f"d{i}"] = dtypes
                wrong = f"{a}.dtype not in d{i} or " if dtypes else ""
                if len(dtypes) == 1:
                    self.space[f"t{i}"] = dtypes[0]
                    wrong = f"{a}.dtype is not t{i} or "
                self.checks.append(
                    f"        if {a} is not None and "
                    f"({wrong}not {a}.is_{on} or not {a}.is_contiguous()):\n"
                    f"            explain({function!r}, {parameter!r}, {a}, d{i}, {on!r})\n"
                )
                self.passed.append(f"None if {a} is None else {a}.data_ptr()")
                self.kinds.append(ctypes.c_void_p)
                continue
            value = _TYPES.get(kind, (None, ()))[0]
            if value is None:
                raise ValueError(
                    f"{function}: a parameter of type {kind!r} ({parameter}) "
                    "cannot be passed by value"
                )
            if value in (ctypes.c_int32, ctypes.c_uint32):
                low, high = (0, 2**32) if value is ctypes.c_uint32 else (-(2**31), 2**31)
                self.checks.append(
                    f"        if not {low} <= {a} < {high}:\n"
                    f"            too_large({function!r}, {parameter!r}, {a}, {kind!r})\n"
                )
            self.passed.append(a)
            self.kinds.append(value)
        self._function, self._on = function, on
        self._given = [(p, k, is_p) for p, k, is_p in parameters if k != _STREAM or is_p]

    def made(self, calls: str, first: str = "") -> Callable[..., Any]:
        """Returns a function of the parameters, and of ``first`` before them, that runs ``calls``
        once they are checked.
        """
        function, on = self._function, self._on
        labels = ", ".join(p for p, _, _ in self._given)
        wanted = [(p, _TYPES.get(k, (None, ()))[1]) if is_p else None for p, k, is_p in self._given]

        def blame(values: Sequence[Any], error: Exception) -> None:
            for value, tensor in zip(values, wanted, strict=True):
                if tensor is not None and value is not None:
                    _explain(function, tensor[0], value, tensor[1], on)
            raise TypeError(f"{function}({labels}): {error}") from None

        self.space["blame"] = blame
        listed = "".join(f"{n}, " for n in self.names)
        taken = f"{first}, {listed}" if first else listed
        code = (
            f"def wrapper({taken}{'/' if taken else ''}):\n"
            f"    try:\n{''.join(self.checks)}{calls}"
            f"    except (AttributeError, ArgumentError, TypeError) as e:\n"
            f"        blame(({listed}), e)\n"
        )
        # Made of numbers and of names that matched \w+. By its file's name a call is known to be
        # native code's, wherever the function is kept and whoever loaded it.
        exec(compile(code, "<kernelwright native>", "exec"), self.space)
        wrapper = self.space["wrapper"]
        wrapper.__name__ = wrapper.__qualname__ = function
        return wrapper


def _current_stream() -> Callable[[], int]:
    def stream() -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return stream if raw is None else lambda: raw(torch.cuda.current_device())


def _result(name: str, kind: str, pointer: bool) -> Any:
    """Returns ctypes' type of what a function gives. Raises ValueError where there is none."""
    if kind != "void" and not pointer and _TYPES.get(kind, (None, ()))[0] is None:
        raise ValueError(f"{name}: a result of type {kind!r} cannot be taken")
    return ctypes.c_void_p if pointer else None if kind == "void" else _TYPES[kind][0]


def _wrap(
    function: Any,
    name: str,
    result: tuple[str, bool],
    parameters: Parameters,
    on: str = "cpu",
    failed: Callable[[], Any] | None = None,
) -> Callable[..., Any]:
    """Returns a Python function for one prototype. ``failed`` returns what was wrong with its
    launches, or nothing.
    """
    signature = _Signature(name, parameters, on, streams=True)
    function.argtypes = signature.kinds
    function.restype = _result(name, *result)
    signature.space |= {"failed": failed, "call": function}
    calls = f"        return call({', '.join(signature.passed)})\n"
    if failed is not None:
        calls = (
            f"        out = call({', '.join(signature.passed)})\n        wrong = failed()\n"
            f"        if wrong:\n            raise RuntimeError({name!r} + ': ' + wrong.decode())\n"
            "        return out\n"
        )
    return signature.made(calls)


# CUDA_ERROR_INVALID_CONTEXT: the thread has not used CUDA yet.
_NO_CONTEXT = 201


class Driver:
    """As much of libcuda as launching takes. Raises OSError where there is no driver."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self.launch = self._lib.cuLaunchKernel
        self.launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        torch.cuda.init()

    def check(self, call: str, *args: Any) -> None:
        if code := getattr(self._lib, call)(*args):
            raise RuntimeError(f"{call}: {self.words(code)}")

    def words(self, code: int) -> str:
        """Returns what an error means."""
        text = ctypes.c_char_p()
        self._lib.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"an unknown error").decode()

    def load(self, image: bytes) -> ctypes.c_void_p:
        """Returns the library of an image, which is never unloaded."""
        library = ctypes.c_void_p()
        none = (None, None, 0)
        self.check("cuLibraryLoadData", ctypes.byref(library), image, *none, *none)
        return library

    def kernel(self, library: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.check("cuLibraryGetKernel", ctypes.byref(handle), library, name.encode())
        return handle

    def allow_shared(self, handle: ctypes.c_void_p, size: int) -> None:
        """Lets a kernel have so many bytes of dynamic shared memory: over 48 KiB it must be said.

        Raises RuntimeError where that is more than the GPU has.
        """
        device = torch.cuda.current_device()
        self.check("cuKernelSetAttribute", 8, ctypes.c_int(size), handle, device)

    def enter(self) -> None:
        """Makes the context of torch's device this thread's, as CUDA's runtime does by itself."""
        context = ctypes.c_void_p()
        device = torch.cuda.current_device()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.check("cuCtxSetCurrent", context)


class Kernel:
    """A kernel that is launched from Python: ``kernel[grid, block](x, y, n)``, on torch's current
    stream. ``grid`` (blocks) and ``block`` (threads) are a number each, or up to three;
    ``kernel[grid, block, bytes]`` gives a block so much dynamic shared memory.
    """

    def __init__(
        self, name: str, parameters: Parameters, handle: ctypes.c_void_p, driver: Driver
    ) -> None:
        self.__name__ = name
        self._handle, self._driver = handle, driver
        self._shared = 48 << 10
        self._known: dict[Any, Callable[..., None]] = {}
        signature = _Signature(name, parameters, "cuda", streams=False)
        values = [kind() for kind in signature.kinds]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        signature.space |= {f"v{i}": v for i, v in enumerate(values)}
        signature.space |= {"call": driver.launch, "handle": handle, "pointers": pointers}
        signature.space |= {"lock": threading.Lock(), "refused": self._refused}
        signature.space |= {"enter": driver.enter}
        held = "".join(f"            v{i}.value = {e}\n" for i, e in enumerate(signature.passed))
        calls = (
            f"        with lock:\n{held}"
            "            wrong = call(handle, *launch, stream(), pointers, None)\n"
            f"            if wrong == {_NO_CONTEXT}:\n                enter()\n"
            "                wrong = call(handle, *launch, stream(), pointers, None)\n"
            "        if wrong:\n            refused(wrong, launch)\n"
        )
        self._launch = signature.made(calls, "launch")

    def __getitem__(self, shape: Any) -> Callable[..., None]:
        try:
            found = self._known.get(shape)
        except TypeError:  # with a list in it
            found = None
        return self._bound(shape) if found is None else found

    def __call__(self, *_: Any) -> None:
        raise TypeError(f"{self.__name__} is a kernel: launch it as {self.__name__}[grid, block]")

    def _bound(self, shape: Any) -> Callable[..., None]:
        if not isinstance(shape, tuple) or len(shape) not in (2, 3):
            raise TypeError(f"{self.__name__}[grid, block] or [grid, block, bytes], not {shape!r}")
        dims = [[int(n) for n in (d if isinstance(d, (tuple, list)) else (d,))] for d in shape[:2]]
        size = int(shape[2]) if len(shape) == 3 else 0
        flat = [n for d in dims for n in d]
        if not all(0 < len(d) <= 3 for d in dims) or not all(0 < n < 1 << 31 for n in flat):
            raise ValueError(f"{self.__name__}: no grid of blocks is {shape!r}")
        if not 0 <= size < 1 << 31:
            raise ValueError(f"{self.__name__}: no size of shared memory is {size}")
        launch = (*(n for d in dims for n in (*d, 1, 1)[:3]), size)
        if size > self._shared:
            try:
                self._driver.allow_shared(self._handle, size)
            except RuntimeError as e:
                raise RuntimeError(
                    f"{self.__name__}: {size} bytes of shared memory are refused: {e}"
                ) from None
            self._shared = size
        found = functools.partial(self._launch, launch)
        if all(type(n) in (int, tuple) for n in shape) and all(
            type(n) is int for d in shape if type(d) is tuple for n in d
        ):
            if len(self._known) > 1000:
                self._known.clear()
            self._known[shape] = found
        return found

    def _refused(self, code: int, launch: tuple[int, ...]) -> None:
        raise RuntimeError(
            f"{self.__name__}: a grid of {launch[:3]} blocks of {launch[3:6]} threads with "
            f"{launch[6]} bytes of dynamic shared memory is refused: {self._driver.words(code)}"
        )


class Library:
    """The functions of one built source. A copy of what holds one holds the same."""

    def __deepcopy__(self, _: Any) -> Any:  # in a function nothing is called Library yet
        return self

    def __init__(self, path: str, source: str, language: str = "cpp") -> None:
        if language == "cuda" and (found := kernels(source)):
            self._launched(path, found)
            return
        self._library = ctypes.CDLL(path)
        on, failed = "cpu", None
        if language == "cuda":
            on, failed = "cuda", self._library.kernelwright_launch_error
            failed.restype = ctypes.c_char_p
        for name, (result, parameters) in declared(source).items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                continue  # declared only
            setattr(self, name, _wrap(function, name, result, parameters, on, failed))

    def _launched(self, path: str, found: dict[str, Parameters]) -> None:
        driver = Driver()
        with open(path, "rb") as f:
            library = driver.load(f.read())
        for name, parameters in found.items():
            setattr(self, name, Kernel(name, parameters, driver.kernel(library, name), driver))


def declared(source: str) -> dict[str, tuple[tuple[str, bool], Parameters]]:
    """Returns ``prototypes``. Raises ValueError where there are none."""
    found = prototypes(source)
    if not found:
        raise ValueError(
            'no function declared extern "C" was found in the source'
            + (' (a kernel that is launched from Python is extern "C", too)')
            * ("__global__" in source)
        )
    return found


# What a compiler of CUDA finds without an #include, or with one of those that NVRTC lacks.
NVRTC_PRELUDE = """\
#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef int64_t intptr_t; typedef uint64_t uintptr_t;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t; using ::uint8_t; using ::size_t;
using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::intptr_t; using ::uintptr_t;
}
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define INT_MAX 0x7fffffff
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 0xffffffff
#define LLONG_MAX 0x7fffffffffffffffLL
#define M_PI 3.14159265358979323846
"""
NVRTC_HEADERS: tuple[str, ...]
NVRTC_HEADERS = ("math.h", "cmath", "stdint.h", "cstdint", "float.h", "cfloat", "limits.h")
NVRTC_HEADERS += ("climits", "stddef.h", "cstddef", "stdio.h", "cstdio", "stdlib.h", "cstdlib")
# What says something of code for the host alone, or is NVRTC's way anyhow.
_HOST_FLAG = re.compile(r"-O\d|-std=c\+\+17|-?-?(expt-|extended-lambda|default-stream).*")


@functools.cache
def _nvrtc() -> tuple[ctypes.CDLL, list[str]]:
    """Returns NVRTC from beside torch, from the toolkit or from the system, and where CUDA's
    headers lie. Raises OSError where there is none.

    What it opens by name at its first use has to be in the process before, since it may lie in no
    folder that the loader looks in.
    """
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    folders = [f for site in sys.path for f in sorted(glob.glob(f"{site}/nvidia/cu*/lib"))]
    folders += [f"{home}/lib64", f"{home}/lib"]
    includes = [os.path.join(os.path.dirname(f), "include") for f in folders]
    includes += [f"{i}/cccl" for i in includes]
    includes = [i for i in dict.fromkeys(includes) if os.path.isdir(i)]
    for folder in folders:
        if found := sorted(glob.glob(f"{folder}/libnvrtc.so.*")):
            for builtins in sorted(glob.glob(f"{folder}/libnvrtc-builtins.so.*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(found[0]), includes
    for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            return ctypes.CDLL(name), includes
        except OSError:
            continue
    raise OSError("NVRTC is not installed")


@functools.cache
def nvrtc_version() -> str:
    """Returns the release of NVRTC, as "13.0", or "" where there is none."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        _nvrtc()[0].nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except OSError:
        return ""
    return f"{major.value}.{minor.value}"


class Refused(Exception):
    """A compiler does not compile a source. The message is its log."""


def nvrtc(
    source: str, arch: str, flags: Sequence[str] = (), name: str = "source0.cu"
) -> tuple[bytes, str]:
    """Compiles device code for an architecture, as "sm_90a". Returns the image, a cubin, and the
    compiler's log. It needs neither a GPU nor a driver; but where there is one it looks at it, and
    what is forked after that cannot use CUDA.

    Raises Refused, and OSError where there is no NVRTC.
    """
    lib, includes = _nvrtc()
    given = [f"--gpu-architecture={arch}", "-std=c++17", *(f"-I{i}" for i in includes)]
    given += [f for f in flags if not _HOST_FLAG.fullmatch(f)]
    options = (ctypes.c_char_p * len(given))(*(f.encode() for f in given))
    names = ("kernelwright_prelude.h", *NVRTC_HEADERS)
    headers = (ctypes.c_char_p * len(names))(*(n.encode() for n in names))
    empty = b"#pragma once\n"
    texts = (ctypes.c_char_p * len(names))(NVRTC_PRELUDE.encode(), *[empty] * len(NVRTC_HEADERS))
    text = f'#include "{names[0]}"\n#line 1 "{name}"\n{source}'
    program = ctypes.c_void_p()

    def taken(what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        getattr(lib, f"nvrtcGet{what}")(program, out)
        return out.raw

    said = lib.nvrtcGetErrorString
    said.restype = ctypes.c_char_p
    begin = (text.encode(), name.encode(), len(names), texts, headers)
    if code := lib.nvrtcCreateProgram(ctypes.byref(program), *begin):
        raise Refused(said(code).decode())
    try:
        code = lib.nvrtcCompileProgram(program, len(given), options)
        log = taken("ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code:
            raise Refused(log or said(code).decode())
        return taken("CUBIN"), log
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


_OF_CUTLASS = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*[<"]((?:cute|cutlass)/[\w./-]{1,200})[>"]', re.M
)


def cutlass_header(source: str) -> str:
    """Returns the first of CUTLASS's headers that a source includes, or ""."""
    found = _OF_CUTLASS.search(source)
    return found[1] if found else ""


def cutlass_folders() -> list[str]:
    """Returns the folders of headers of the CUTLASS that CUTLASS_PATH names, without links on the
    way to them; none where it names none.
    """
    root = os.path.dirname(os.path.realpath(f"{os.environ.get('CUTLASS_PATH') or ''}/include"))
    headers = [f"{root}/include/{h}" for h in ("cute/tensor.hpp", "cutlass/version.h")]
    if not os.environ.get("CUTLASS_PATH") or not all(map(os.path.isfile, headers)):
        return []
    more = f"{root}/tools/util/include"
    return [f"{root}/include", *([more] if os.path.realpath(more) == more else [])]


def cutlass_version(folders: Sequence[str]) -> str:
    """Returns the release of the CUTLASS of these folders, as "4.2.0", "" where there are none."""
    if not folders:
        return ""
    with open(f"{folders[0]}/cutlass/version.h", encoding="utf-8", errors="replace") as f:
        text = f.read(1 << 20)
    parts = [re.search(rf"define CUTLASS_{n}\s+(\d+)", text) for n in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(p[1] for p in parts if p)


def without_cutlass(source: str) -> str:
    """Returns why a source that includes CUTLASS's headers cannot be compiled here, "" for others
    and where there is CUTLASS.
    """
    header = cutlass_header(source)
    if not header or cutlass_folders():
        return ""
    named = os.environ.get("CUTLASS_PATH")
    has = f"CUTLASS_PATH is {named}, where there is no include/cute/tensor.hpp"
    return (
        f"it includes {header} of CUTLASS, and {has if named else 'CUTLASS_PATH is not set'}: set "
        "it to a checkout of CUTLASS (https://github.com/NVIDIA/cutlass)"
    )


def _nvcc() -> str:
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("nvcc") or shutil.which(os.path.join(home, "bin", "nvcc")) or ""


def _arch() -> str:
    """Returns the architecture of the GPU that is there."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _gencode() -> str:
    """Returns nvcc's flag for it. Not -arch, which compiles twice: to what the GPU runs, and to
    PTX.
    """
    arch = _arch()
    return f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}"


def _compiler(language: str, launched: bool) -> tuple[list[str], str]:
    """Returns the compiler with our flags, and what else an object of it depends on."""
    if language == "cuda":
        nvcc = _nvcc()
        if not nvcc and not launched:
            raise RuntimeError("nvcc was not found: install the CUDA toolkit, or set CUDA_HOME")
        own = CUBIN_FLAGS if launched else CUDA_FLAGS
        return [nvcc, *own, _gencode()], ""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise RuntimeError("no C++ compiler was found: install g++")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            machine = next((line for line in f if line.startswith(("flags", "Features"))), "")
    except OSError:
        machine = ""
    return [compiler, *FLAGS], machine


_OTHER_PROCESSOR = re.compile(r"-m(arch|cpu)=(?!native$).*")
_GPU = r"--?(arch|gpu-architecture|code|gpu-code|gencode|generate-code)"
_HANDS_ON = r"(-Xcompiler|--compiler-options)"
# Of nvcc's words: one whose value is the next; a processor in what it hands on.
_ALONE, _OTHER_GPU = re.compile(f"{_GPU}|{_HANDS_ON}"), re.compile(f"{_GPU}=.*")
_IN_HANDED_ON = re.compile(r"(?<=[=,])-m(arch|cpu)=(?!native(,|$))[^,]*")


def _of_this_machine(flags: Sequence[str], language: str) -> tuple[str, ...]:
    """Returns flags that name no architecture but this machine's."""
    if language == "cpp":
        return tuple("-march=native" if _OTHER_PROCESSOR.fullmatch(f) else f for f in flags)
    words: list[str] = []
    for flag in flags:
        if words and _ALONE.fullmatch(words[-1]):
            words[-1] += f"={flag}"
        else:
            words.append(flag)
    return tuple(
        _IN_HANDED_ON.sub("-march=native", w) if re.match(_HANDS_ON, w) else w
        for w in words
        if not _OTHER_GPU.fullmatch(w)
    )


def _cuda_runtime() -> list[str]:
    """Returns the flags that link the CUDA runtime that torch has in this process, and no other."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        paths = ["/" + line.partition("/")[2].strip() for line in f if "/libcudart" in line]
    return [*OWN_RUNTIME, f"-Xlinker={paths[0]}" if paths else "-lcudart"]


@functools.cache
def _own_folder() -> str:
    """Returns a folder that is gone with this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _build(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
    """Compiles once a machine, into torch's folder for extensions. Returns the object's path."""
    launched = language == "cuda" and bool(kernels(source))
    compiler, machine = _compiler(language, launched)
    flags = _of_this_machine(flags, language)
    includes: list[str] = []
    if language == "cuda" and cutlass_header(source):
        folders = cutlass_folders()
        includes, machine = [f"-I{f}" for f in folders], cutlass_version(folders)
        compiler = [*compiler, *includes, *CUTLASS_FLAGS]
    lacks = without_cutlass(source) if language == "cuda" else ""
    if language == "cuda" and not launched:
        source += _CUDA_TAIL
    key = hashlib.sha256(repr((source, compiler, flags, machine, FIXED)).encode()).hexdigest()[:32]
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(caches, "torch_extensions")
    folder = os.path.join(root, "kernelwright")
    path = os.path.join(folder, f"{name}-{key}.{'cubin' if launched else 'so'}")
    if os.path.exists(path):
        return path
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:  # what it compiles lasts for this process then
        folder = _own_folder()
        path = os.path.join(folder, os.path.basename(path))
    with tempfile.TemporaryDirectory(dir=folder) as work:
        text, built = os.path.join(work, FILES[language]), os.path.join(work, "built.so")
        with open(text, "w", encoding="utf-8") as f:
            f.write(source)
        os.utime(text, (0, 0))
        image = b""
        if launched:
            try:
                more = [*includes, *CUTLASS_NVRTC_FLAGS] if includes else []
                image, _ = nvrtc(source, _arch(), [*flags, *more])
            except (OSError, Refused) as e:
                if not compiler[0]:
                    said = f"{name} does not compile, and there is no nvcc:\n{lacks or e}"
                    raise RuntimeError(said) from None
        if image:
            with open(built, "wb") as out:
                out.write(image)
        else:
            linked = _cuda_runtime() if language == "cuda" and not launched else []
            command = [*compiler, *flags, FILES[language], *linked, "-o", "built.so"]
            env = {**os.environ, **FIXED}
            done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{name} does not compile:\n{lacks or done.stderr}")
        os.replace(built, path)
    return path


def native(
    source: str, language: str = "cpp", flags: Sequence[str] = (), name: str | None = None
) -> Library:
    """Builds C++ or CUDA source and returns its functions. ``flags`` are added to ours."""
    if language not in ("cpp", "cuda"):
        raise ValueError(f"native builds language 'cpp' or 'cuda', not {language!r}")
    label = name or "native"
    if not re.fullmatch(r"\w{1,64}", label):
        raise ValueError("name must be letters, digits and underscores")
    source = _inlined(source, headers)
    return Library(_build(source, tuple(flags), label, language), source, language)
