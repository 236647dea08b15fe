"""Loads C++ and CUDA kernels for a candidate: ``lib = native(source=...)``, then ``lib.fn(x, y,
x.numel())``.

The functions declared ``extern "C"`` in the source become methods. Tensors become pointers, checked
for device, contiguity and the element type of the parameter; numbers are converted as the
parameter's type says. A parameter of type ``cudaStream_t`` is not given: it is torch's current
stream. A launch that CUDA refuses raises RuntimeError.
"""

from __future__ import annotations

import ctypes
import hashlib
import keyword
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-std=c++17", "-fno-math-errno")

CUDA_FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")
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


def _plain(source: str) -> str:
    """Returns the source without comments, preprocessor lines and the insides of literals."""
    tokens = re.compile(
        r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
        re.S,
    )
    text = tokens.sub(lambda m: '"C"' if m[0] == '"C"' else " " if m[0][0] == "/" else '""', source)
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


def prototypes(source: str) -> dict[str, tuple[tuple[str, bool], list[tuple[str, str, bool]]]]:
    """Returns the functions with C linkage: name -> ((type, pointer), [(parameter, type,
    pointer)]).
    """
    out = {}
    for head in _declarations(source):
        m = re.fullmatch(
            r"\s*(?P<kind>[\w\s:*]+?[\s*])(?P<name>\w+)\s*\((?P<parameters>[^()]*)\)\s*(noexcept)?\s*",
            head,
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


# What the functions that _wrap makes refer to.
_OURS = {"stream", "failed", "call", "explain", "blame", "too_large", "out", "wrong", "e"}
_OURS |= {"ArgumentError", "AttributeError", "TypeError", "RuntimeError", "wrapper"}
_OURS |= {f"{letter}{i}" for letter in "adt" for i in range(64)}


def _wrap(
    function: Any,
    name: str,
    result: tuple[str, bool],
    parameters: list[tuple[str, str, bool]],
    on: str = "cpu",
    failed: Callable[[], Any] | None = None,
) -> Callable[..., Any]:
    """Returns a Python function made for one prototype: checks without a loop keep a call under 5
    us. ``failed`` returns what was wrong with its launches, or nothing.
    """

    def stream() -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    space: dict[str, Any] = {
        "stream": stream if raw is None else lambda: raw(torch.cuda.current_device()),
        "failed": failed,
        "call": function,
        "explain": _explain,
        "too_large": _too_large,
        "ArgumentError": ctypes.ArgumentError,
    }
    checks, passed, names, kinds = [], [], [], []
    for i, (parameter, kind, pointer) in enumerate(parameters):
        # As the source calls it, so that Python's own words on a missing one name it.
        named = parameter.isidentifier() and not keyword.iskeyword(parameter)
        a = parameter if named and parameter[0] != "_" and parameter not in _OURS else f"a{i}"
        if kind == _STREAM and not pointer:
            passed.append("stream()")
            kinds.append(ctypes.c_void_p)
            continue
        names.append(a)
        if pointer:
            dtypes = _TYPES.get(kind, (None, ()))[1]
            space[f"d{i}"] = dtypes
            wrong = f"{a}.dtype not in d{i} or " if dtypes else ""
            if len(dtypes) == 1:
                space[f"t{i}"] = dtypes[0]
                wrong = f"{a}.dtype is not t{i} or "
            checks.append(
                f"        if {a} is not None and "
                f"({wrong}not {a}.is_{on} or not {a}.is_contiguous()):\n"
                f"            explain({name!r}, {parameter!r}, {a}, d{i}, {on!r})\n"
            )
            passed.append(f"None if {a} is None else {a}.data_ptr()")
            kinds.append(ctypes.c_void_p)
            continue
        value = _TYPES.get(kind, (None, ()))[0]
        if value is None:
            raise ValueError(
                f"{name}: a parameter of type {kind!r} ({parameter}) cannot be passed by value"
            )
        if value in (ctypes.c_int32, ctypes.c_uint32):
            low, high = (0, 2**32) if value is ctypes.c_uint32 else (-(2**31), 2**31)
            checks.append(
                f"        if not {low} <= {a} < {high}:\n"
                f"            too_large({name!r}, {parameter!r}, {a}, {kind!r})\n"
            )
        passed.append(a)
        kinds.append(value)
    function.argtypes = kinds
    kind, pointer = result
    if kind != "void" and not pointer and _TYPES.get(kind, (None, ()))[0] is None:
        raise ValueError(f"{name}: a result of type {kind!r} cannot be taken")
    function.restype = ctypes.c_void_p if pointer else None if kind == "void" else _TYPES[kind][0]
    given = [(p, k, is_p) for p, k, is_p in parameters if k != _STREAM or is_p]
    wanted = [(p, _TYPES.get(k, (None, ()))[1]) if is_p else None for p, k, is_p in given]
    labels = ", ".join(p for p, _, _ in given)

    def blame(values: Sequence[Any], error: Exception) -> None:
        for value, tensor in zip(values, wanted, strict=True):
            if tensor is not None and value is not None:
                _explain(name, tensor[0], value, tensor[1], on)
        raise TypeError(f"{name}({labels}): {error}") from None

    space["blame"] = blame
    listed = "".join(f"{n}, " for n in names)
    calls = f"        return call({', '.join(passed)})\n"
    if failed is not None:
        calls = (
            f"        out = call({', '.join(passed)})\n        wrong = failed()\n"
            f"        if wrong:\n            raise RuntimeError({name!r} + ': ' + wrong.decode())\n"
            "        return out\n"
        )
    code = (
        f"def wrapper({listed}{'/' if names else ''}):\n    try:\n{''.join(checks)}{calls}"
        f"    except (AttributeError, ArgumentError, TypeError) as e:\n"
        f"        blame(({listed}), e)\n"
    )
    # Made of numbers and of names that matched \w+. By its file's name a call is known to be native
    # code's, wherever the function is kept and whoever loaded it.
    exec(compile(code, "<kernelwright native>", "exec"), space)
    wrapper = space["wrapper"]
    wrapper.__name__ = wrapper.__qualname__ = name
    return wrapper


class Library:
    """The functions of one built source."""

    def __init__(self, path: str, source: str, language: str = "cpp") -> None:
        self._library = ctypes.CDLL(path)
        on, failed = "cpu", None
        if language == "cuda":
            on, failed = "cuda", self._library.kernelwright_launch_error
            failed.restype = ctypes.c_char_p
        found = prototypes(source)
        if not found:
            raise ValueError('no function declared extern "C" was found in the source')
        for name, (result, parameters) in found.items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                continue  # declared only
            setattr(self, name, _wrap(function, name, result, parameters, on, failed))


def _compiler(language: str) -> tuple[list[str], str]:
    """Returns the compiler with our flags, and what else an object of it depends on."""
    if language == "cuda":
        home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
        nvcc = shutil.which("nvcc") or shutil.which(os.path.join(home, "bin", "nvcc"))
        if not nvcc:
            raise RuntimeError("nvcc was not found: install the CUDA toolkit, or set CUDA_HOME")
        major, minor = torch.cuda.get_device_capability()
        of = f"{major}{minor}{'a' if major >= 9 else ''}"
        # Not -arch, which compiles twice: to what the GPU runs, and to PTX.
        return [nvcc, *CUDA_FLAGS, f"-gencode=arch=compute_{of},code=sm_{of}"], ""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise RuntimeError("no C++ compiler was found: install g++")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            machine = next((line for line in f if line.startswith(("flags", "Features"))), "")
    except OSError:
        machine = ""
    return [compiler, *FLAGS], machine


def _build(source: str, flags: Sequence[str], name: str, language: str = "cpp") -> str:
    """Compiles once a machine, into torch's folder for extensions. Returns the object's path."""
    compiler, machine = _compiler(language)
    if language == "cuda":
        source += _CUDA_TAIL
    key = hashlib.sha256(repr((source, compiler, tuple(flags), machine)).encode()).hexdigest()[:32]
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    folder = os.path.join(root, "kernelwright")
    path = os.path.join(folder, f"{name}-{key}.so")
    if os.path.exists(path):
        return path
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        ending = {"cpp": "cpp", "cuda": "cu"}[language]
        text, built = os.path.join(work, f"{name}.{ending}"), os.path.join(work, "built.so")
        with open(text, "w", encoding="utf-8") as f:
            f.write(source)
        command = [*compiler, *flags, text, "-o", built]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name} does not compile:\n{done.stderr}")
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
    return Library(_build(source, tuple(flags), label, language), source, language)
