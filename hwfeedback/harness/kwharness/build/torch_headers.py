"""What a text lacks of torch's headers, as its compiler and its own words say."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from kwharness.base.built import BuildRequest
from kwharness.base.for_builder import Compiled
from kwharness.build import headers
from kwharness.build.cuda_toolkit import cuda_includes
from kwharness.machine import toolchain

SHIM = "torch/extension.h"  # the name our lighter header takes in front of torch's own
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
# What torch's headers include of the toolkit's may not be there; torch's own are.
_NO_HEADER = re.compile(r"(?!ATen/|c10/|torch/|caffe2/)[\w./+-]{1,200}: No such file")


def only_a_header(found: Sequence[tuple[int, int, str]]) -> bool:
    return bool(found) and all(_NO_HEADER.match(message) for *_, message in found)


def in_torchs_words(done: Compiled) -> Compiled:
    """Returns a report with the names that torch has for what tensor_light.h declares."""
    said = [(s, n, m.replace(LIGHT_NAMESPACE, "")) for s, n, m in done.errors]
    return replace(done, errors=said, log=done.log.replace(LIGHT_NAMESPACE, ""))


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


def lacking(request: BuildRequest, found: Sequence[tuple[int, int, str]], log: str) -> str:
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


LIGHT_NAMESPACE = "kernelwright_light::"  # within at, of tensor_light.h
