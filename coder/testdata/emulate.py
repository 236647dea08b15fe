"""Turns a candidate in CUDA into one in C++ that does the same on a CPU, see cuda_on_cpu.h."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess

import kernelwright

HEADER = pathlib.Path(__file__).with_name("cuda_on_cpu.h")
# kernel<4><<<blocks, threads, shared, stream>>>(arguments);
LAUNCH = re.compile(r"(kernel\w+(?:<\d+>)?)<<<(.+?), (\d+), (\d+), stream>>>\((.*?)\);")
SHARED = re.compile(r"extern __shared__ __align__\(16\) unsigned char (\w+)\[\];")

NATIVE = re.compile(r'native\(language="cuda", flags=\(.*?\),')

# What -prec-div=false and -prec-sqrt=false make less exact.
DIVISION = re.compile(r"(const float \w+ = )([\w.\[\]]+) / ([\w.\[\]]+);")
ROOT = re.compile(r"\bsqrtf\(")

FLAGS = ("-O1", "-fno-tree-sra", "-ffp-contract=off", "-w")


@functools.cache
def header() -> pathlib.Path:
    """Precompiles the header, which takes a compiler as long as a candidate does."""
    folder = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], "emulated")
    folder.mkdir()
    copy = folder / HEADER.name
    shutil.copy(HEADER, copy)
    compiler, _ = kernelwright._compiler("cpp", False)
    subprocess.run([*compiler, *FLAGS, "-x", "c++-header", copy, "-o", f"{copy}.gch"], check=True)
    return copy


def on_cpu(source: str) -> str:
    source = LAUNCH.sub(r"emulated::launch(\2, \3, \4, [&] { \1(\5); });", source)
    source = source.replace("#include <cuda_pipeline.h>\n", "")
    source = SHARED.sub(r"unsigned char* const \1 = emulated::dynamic;", source)
    # Stream 0 stands for the one that Python does not hand over.
    source = re.sub(
        r"(extern \"C\" void .*), cudaStream_t stream\) \{",
        r"\1) {\n  const cudaStream_t stream = nullptr;",
        source,
    )
    if '"-prec-div=false"' in source:
        source = DIVISION.sub(r"\1emulated::quotient(\2, \3);", source)
        source = ROOT.sub("emulated::root(", source)
    flags = (*FLAGS, "-include", str(header()))
    return NATIVE.sub(f'native(language="cpp", flags={flags},', source)
